//! Closing and terminating: everything sent is confirmed, cursors are stored, the open ledger is sealed; in this order.

use ledger::LedgerError;

use super::*;
use crate::cursor::Cursor;
use crate::effect::CloseError;

pub(super) struct Closing {
    token: u64,
    end: End,
    step: Step,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Close,
    Terminate,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Adds, changes of the node and (when closing) cursors come to their end.
    Draining,
    /// The last task runs.
    Sealing,
}

impl ManagedLedger {
    /// Closes: adds and acknowledgements are refused from now on, what was taken is finished, cursors are stored and the
    /// open ledger is sealed. [`Effect::Closed`] follows; afterwards drop it. An error leaves nothing lost: the next owner
    /// recovers.
    pub fn close(&mut self, now: Now, token: u64, out: &mut Effects) {
        self.begin(now, token, End::Close, out);
    }

    /// Ends the topic for good: no more adds, for any owner. [`Effect::Closed`] follows; cursors and readers go on.
    pub fn terminate(&mut self, now: Now, token: u64, out: &mut Effects) {
        self.begin(now, token, End::Terminate, out);
    }

    fn begin(&mut self, now: Now, token: u64, end: End, out: &mut Effects) {
        let answer = match (&self.writing, end) {
            (Writing::Fenced { reason }, _) => Some(Err(CloseError::Fenced { reason: reason.clone() })),
            (Writing::Closed, _) | (Writing::Terminated, End::Terminate) => Some(Ok(())),
            _ if self.closing.is_some() => Some(Err(CloseError::Unclean { reason: "already closing".to_owned() })),
            _ => None,
        };
        if let Some(result) = answer {
            return out.push(Effect::Closed { token, result });
        }
        self.closing = Some(Closing { token, end, step: Step::Draining });
        self.drive(now, out);
    }

    pub(super) fn drive_closing(&mut self, now: Now, out: &mut Effects) {
        let Some(Closing { token, end, step: Step::Draining }) = self.closing else { return };
        // Nothing that changes a node may be on its way when this is over: whoever deletes and creates the topic or a cursor anew
        // gets the same versions again, and a late compare-and-set would take the new node for the old one.
        if self.is_changing_nodes() {
            return;
        }
        if matches!(self.writing, Writing::Recovering { .. }) {
            // Cursors that cannot be stored now are repeated to consumers, and the next owner finds the end.
            return self.finish_closing(Err(CloseError::Unclean { reason: "a write failed".to_owned() }), out);
        }
        if !self.adding.is_empty() || !self.queued.is_empty() || self.info_put.is_some() {
            return;
        }
        if matches!(self.writing, Writing::Open { roll: Roll::Creating, .. }) {
            return;
        }
        if end == End::Terminate {
            self.closing = None;
            self.drop_next_ledger(out);
            return self.put_terminated(now, token, out);
        }
        let ids: Vec<CursorId> = self.cursors.keys().copied().collect();
        let mut stored = true;
        for id in ids {
            let close = |cursor: &mut Cursor, around: cursors::Around<'_>, out: &mut Effects, work: &mut Vec<_>| {
                cursor.close(now, around.owner, around.config, out, work)
            };
            stored &= self.with_cursor(id, out, close).unwrap_or(true);
        }
        if !stored {
            return;
        }
        self.drop_next_ledger(out);
        match &self.writing {
            Writing::Open { appender, .. } => {
                let work = Work::Close {
                    ledger: appender.ledger(),
                    last: appender.last_confirmed(),
                    length: appender.length(),
                };
                self.closing = Some(Closing { token, end, step: Step::Sealing });
                run(out, Purpose::CloseLedger, work);
            }
            _ => self.finish_closing(Ok(()), out),
        }
    }

    fn is_changing_nodes(&self) -> bool {
        let is_busy = |slot: &cursors::Slot| slot.phase != cursors::Phase::Live || slot.cursor.is_changing_its_node();
        self.info_put.as_ref().is_some_and(InfoPut::is_running) || self.cursors.values().any(is_busy)
    }

    fn drop_next_ledger(&mut self, out: &mut Effects) {
        if let Writing::Open { roll, .. } = &mut self.writing
            && let Roll::Ready(next) = std::mem::replace(roll, Roll::NotDue)
        {
            out.push(delete_ledger(next.ledger()));
        }
    }

    pub(super) fn ledger_was_closed(&mut self, result: Result<(), LedgerError>, out: &mut Effects) {
        let result = result.map_err(|error| CloseError::Unclean { reason: error.to_string() });
        self.finish_closing(result, out);
    }

    fn finish_closing(&mut self, result: Result<(), CloseError>, out: &mut Effects) {
        let Some(Closing { token, .. }) = self.closing.take() else { return };
        self.writing = Writing::Closed;
        for slot in self.cursors.values_mut() {
            let error = crate::effect::CursorError::Closed;
            let tokens = slot.cursor.take_tokens();
            out.extend(tokens.into_iter().map(|token| Effect::AckDone { token, result: Err(error.clone()) }));
        }
        out.push(Effect::Closed { token, result });
    }

    pub(super) fn fail_closing(&mut self, reason: &str, out: &mut Effects) {
        if let Some(Closing { token, .. }) = self.closing.take() {
            out.push(Effect::Closed { token, result: Err(CloseError::Fenced { reason: reason.to_owned() }) });
        }
    }
}
