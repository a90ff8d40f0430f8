use bookkeeper_proto::{
    AddOp, BookieError, Digester, EntryBuf, EntryError, EntryId, EntryView, Fenced, LedgerId, MasterKey,
};
use bytes::Bytes;

use crate::Quorums;

#[cfg(test)]
mod tests;

/// Finds out where a ledger ends whose writer is gone, so that nothing that may have been acknowledged is lost.
///
/// It fences the bookies of the last ensemble until no ack quorum is left that a writer could still win, takes the highest
/// LAC they know, and reads forward from there. An entry that a bookie still holds is given to those of its write set that
/// lack it (with the recovery flag, since they are fenced); the ledger ends before the first entry that can never have been
/// acknowledged: more than `write - ack` bookies of its write set prove that they do not hold it. Anything else a bookie may
/// answer proves nothing: then recovery fails, and may be tried again.
///
/// Entries are given on as they are, byte for byte, so that all replicas stay equal.
/// Source: BookKeeper protocol, "Ledger recovery".
pub struct Recovery {
    ledger: LedgerId,
    key: MasterKey,
    digester: Digester,
    quorums: Quorums,
    stage: Stage,
    /// The highest entry known to be in the ledger.
    last: EntryId,
    /// An entry and the ledger's length up to it, from a header with a valid digest.
    measured: (EntryId, u64),
}

enum Stage {
    /// One answer per bookie of the last ensemble.
    Fencing(Vec<Answer>),
    /// Asks the whole write set for the entry after the last one; an answer per bookie of the ensemble.
    Reading(Vec<Answer>),
    /// Gives an entry to the bookies of its write set that lack it.
    Rewriting {
        found: EntryView,
        answers: Vec<Answer>,
    },
    /// Nothing lies behind the last entry, whose header is needed for the length.
    Measuring(Vec<Answer>),
    Over,
}

#[derive(Clone)]
enum Answer {
    None,
    /// Is fenced.
    Fenced,
    /// Holds the entry.
    Holds(EntryView),
    /// Proves that it does not hold the entry, and being fenced never will.
    Lacks(RecoveryError),
    Failed(RecoveryError),
}

#[derive(Clone, Debug)]
pub enum RecoveryEvent {
    Fenced { bookie: usize, result: Result<Fenced, BookieError> },
    Read { bookie: usize, entry: EntryId, result: Result<Bytes, BookieError> },
    Added { bookie: usize, entry: EntryId, result: Result<(), BookieError> },
}

#[derive(Clone, Debug)]
pub enum RecoveryEffect {
    Fence {
        bookie: usize,
        key: MasterKey,
    },
    Read {
        bookie: usize,
        entry: EntryId,
    },
    Add {
        bookie: usize,
        op: AddOp,
    },
    /// Close the ledger by compare-and-set; if somebody else has closed it, theirs counts.
    Close {
        last_entry: EntryId,
        length: u64,
    },
    Fail(RecoveryError),
}

/// Why the end of a ledger could not be found. The ledger is fenced, as far as its bookies answered, but stays open.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecoveryError {
    #[error("bookie {bookie} of the ensemble cannot be fenced")]
    Fence { bookie: usize, source: BookieError },
    #[error("bookie {bookie} of the ensemble neither returns entry {entry} nor proves its absence")]
    Read { bookie: usize, entry: EntryId, source: BookieError },
    #[error("bookie {bookie} of the ensemble returned a wrong entry")]
    BadEntry { bookie: usize, source: EntryError },
    #[error("bookie {bookie} of the ensemble does not take recovered entry {entry}")]
    Rewrite { bookie: usize, entry: EntryId, source: BookieError },
}

impl Recovery {
    /// Starts the recovery of a ledger whose metadata says "in recovery", so that its writer can no longer change the
    /// ensemble.
    pub fn new(
        ledger: LedgerId,
        quorums: Quorums,
        last_segment_at: EntryId,
        digester: Digester,
        key: MasterKey,
        out: &mut Vec<RecoveryEffect>,
    ) -> Recovery {
        out.extend((0..quorums.ensemble()).map(|bookie| RecoveryEffect::Fence { bookie, key }));
        Recovery {
            ledger,
            key,
            digester,
            quorums,
            stage: Stage::Fencing(vec![Answer::None; quorums.ensemble()]),
            // An ensemble changes behind the LAC, so all before its first entry is confirmed.
            last: last_segment_at.previous(),
            measured: (EntryId::NONE, 0),
        }
    }

    pub fn on_event(&mut self, event: RecoveryEvent, out: &mut Vec<RecoveryEffect>) {
        match (&mut self.stage, event) {
            (Stage::Fencing(answers), RecoveryEvent::Fenced { bookie, result }) => {
                let checked = match result {
                    Ok(fenced) => check_fenced(self.ledger, &self.digester, bookie, fenced),
                    Err(source) => Err(RecoveryError::Fence { bookie, source }),
                };
                answers[bookie] = match checked {
                    Ok((last_confirmed, last_header)) => {
                        self.last = self.last.max(last_confirmed);
                        if let Some((entry, length)) = last_header.filter(|(entry, _)| *entry > self.measured.0) {
                            self.measured = (entry, length);
                        }
                        Answer::Fenced
                    }
                    Err(error) => Answer::Failed(error),
                };
                if is_covered(answers, self.quorums) {
                    self.read_next(out);
                } else if answers.iter().all(Answer::is_final) {
                    let error = first_failure(answers);
                    self.finish(RecoveryEffect::Fail(error), out);
                }
            }
            (Stage::Reading(answers), RecoveryEvent::Read { bookie, entry, result }) if entry == self.last.next() => {
                answers[bookie] = check_read(self.ledger, &self.digester, bookie, entry, result);
                let write_set = self.quorums.write_set(entry);
                if !write_set.clone().all(|member| answers[member].is_final()) {
                    return;
                }
                let found = write_set.clone().find_map(|member| answers[member].held().cloned());
                let absent = write_set.clone().filter(|member| matches!(answers[*member], Answer::Lacks(_))).count();
                let never_acknowledged = absent > self.quorums.write() - self.quorums.ack();
                match found {
                    Some(found) if write_set.clone().all(|member| answers[member].held().is_some()) => {
                        self.advance(&found, out);
                    }
                    Some(found) => {
                        let mut answers = std::mem::take(answers);
                        for bookie in write_set.filter(|member| answers[*member].held().is_none()).collect::<Vec<_>>() {
                            answers[bookie] = Answer::None;
                            out.push(RecoveryEffect::Add { bookie, op: self.recovery_add(&found) });
                        }
                        self.stage = Stage::Rewriting { found, answers };
                    }
                    None if never_acknowledged => self.end(out),
                    None => {
                        let error = first_failure(answers);
                        self.finish(RecoveryEffect::Fail(error), out);
                    }
                }
            }
            (Stage::Rewriting { found, answers }, RecoveryEvent::Added { bookie, entry, result })
                if entry == found.header.entry =>
            {
                answers[bookie] = match result {
                    Ok(()) => Answer::Holds(found.clone()),
                    Err(source) => Answer::Failed(RecoveryError::Rewrite { bookie, entry, source }),
                };
                let write_set = self.quorums.write_set(entry);
                if !write_set.clone().all(|member| answers[member].is_final()) {
                    return;
                }
                let holders = write_set.filter(|member| answers[*member].held().is_some()).count();
                if holders >= self.quorums.ack() {
                    let found = found.clone();
                    self.advance(&found, out);
                } else {
                    let error = first_failure(answers);
                    self.finish(RecoveryEffect::Fail(error), out);
                }
            }
            (Stage::Measuring(answers), RecoveryEvent::Read { bookie, entry, result }) if entry == self.last => {
                answers[bookie] = check_read(self.ledger, &self.digester, bookie, entry, result);
                let write_set = self.quorums.write_set(entry);
                if let Some(view) = answers[bookie].held() {
                    let length = view.header.length;
                    self.finish(RecoveryEffect::Close { last_entry: entry, length }, out);
                } else if write_set.clone().all(|member| answers[member].is_final()) {
                    // Even a proof of absence is no answer here: the entry was confirmed once.
                    let error = first_failure(answers);
                    self.finish(RecoveryEffect::Fail(error), out);
                }
            }
            // Answers that come after the decision they were asked for.
            (
                Stage::Fencing(_) | Stage::Reading(_) | Stage::Rewriting { .. } | Stage::Measuring(_) | Stage::Over,
                RecoveryEvent::Fenced { .. } | RecoveryEvent::Read { .. } | RecoveryEvent::Added { .. },
            ) => {}
        }
    }

    fn read_next(&mut self, out: &mut Vec<RecoveryEffect>) {
        let entry = self.last.next();
        self.stage = Stage::Reading(vec![Answer::None; self.quorums.ensemble()]);
        out.extend(self.quorums.write_set(entry).map(|bookie| RecoveryEffect::Read { bookie, entry }));
    }

    /// Takes an entry into the ledger and goes on behind it.
    fn advance(&mut self, found: &EntryView, out: &mut Vec<RecoveryEffect>) {
        assert_eq!(found.header.entry, self.last.next(), "recovery of ledger {} leaves a gap", self.ledger);
        self.last = found.header.entry;
        self.measured = (self.last, found.header.length);
        self.read_next(out);
    }

    /// Nothing can lie behind the last entry.
    fn end(&mut self, out: &mut Vec<RecoveryEffect>) {
        let last_entry = self.last;
        if last_entry.is_none() {
            // A bookie may hold a later entry, whose predecessor was refused; an empty ledger has no entry to measure.
            self.finish(RecoveryEffect::Close { last_entry, length: 0 }, out);
            return;
        }
        if self.measured.0 == last_entry {
            self.finish(RecoveryEffect::Close { last_entry, length: self.measured.1 }, out);
            return;
        }
        self.stage = Stage::Measuring(vec![Answer::None; self.quorums.ensemble()]);
        out.extend(self.quorums.write_set(last_entry).map(|bookie| RecoveryEffect::Read { bookie, entry: last_entry }));
    }

    fn finish(&mut self, effect: RecoveryEffect, out: &mut Vec<RecoveryEffect>) {
        self.stage = Stage::Over;
        out.push(effect);
    }

    fn recovery_add(&self, found: &EntryView) -> AddOp {
        let bytes = EntryBuf::verbatim(found.bytes().clone()).expect("a parsed entry has a header");
        AddOp { ledger: self.ledger, entry: found.header.entry, key: self.key, recovery: true, bytes, owner: 0 }
    }
}

impl Answer {
    fn is_final(&self) -> bool {
        !matches!(self, Answer::None)
    }

    fn held(&self) -> Option<&EntryView> {
        match self {
            Answer::Holds(view) => Some(view),
            Answer::None | Answer::Fenced | Answer::Lacks(_) | Answer::Failed(_) => None,
        }
    }
}

/// Whether no ack quorum is left among the bookies that are not fenced: each window of `write` bookies has fewer than `ack`
/// of them. (A bookie that does not know the ledger is not fenced by saying so.)
fn is_covered(answers: &[Answer], quorums: Quorums) -> bool {
    (0..quorums.ensemble()).all(|start| {
        let window = quorums.write_set(EntryId(start as i64));
        window.filter(|bookie| !matches!(answers[*bookie], Answer::Fenced)).count() < quorums.ack()
    })
}

/// The LAC a fenced bookie knows, and id and ledger length of its last entry.
fn check_fenced(
    ledger: LedgerId,
    digester: &Digester,
    bookie: usize,
    fenced: Fenced,
) -> Result<(EntryId, Option<(EntryId, u64)>), RecoveryError> {
    let Some(bytes) = fenced.last_entry else { return Ok((fenced.last_add_confirmed, None)) };
    let bad_entry = |source| RecoveryError::BadEntry { bookie, source };
    let view = EntryView::parse(bytes, digester.digest_type()).map_err(bad_entry)?;
    let header = view.header;
    view.check_identity(ledger, header.entry).map_err(bad_entry)?;
    view.check_digest(digester).map_err(bad_entry)?;
    Ok((fenced.last_add_confirmed.max(header.last_add_confirmed), Some((header.entry, header.length))))
}

fn check_read(
    ledger: LedgerId,
    digester: &Digester,
    bookie: usize,
    entry: EntryId,
    result: Result<Bytes, BookieError>,
) -> Answer {
    let bytes = match result {
        Ok(bytes) => bytes,
        Err(source) if source.proves_absence() => return Answer::Lacks(RecoveryError::Read { bookie, entry, source }),
        Err(source) => return Answer::Failed(RecoveryError::Read { bookie, entry, source }),
    };
    let checked = EntryView::parse(bytes, digester.digest_type()).and_then(|view| {
        view.check_identity(ledger, entry)?;
        view.check_digest(digester)?;
        Ok(view)
    });
    match checked {
        Ok(view) => Answer::Holds(view),
        Err(source) => Answer::Failed(RecoveryError::BadEntry { bookie, source }),
    }
}

/// The error to report when the answers did not suffice: a failure tells more than an absence.
fn first_failure(answers: &[Answer]) -> RecoveryError {
    let failed = answers.iter().find_map(|answer| match answer {
        Answer::Failed(error) => Some(error),
        Answer::None | Answer::Fenced | Answer::Holds(_) | Answer::Lacks(_) => None,
    });
    let lacks = answers.iter().find_map(|answer| match answer {
        Answer::Lacks(error) => Some(error),
        Answer::None | Answer::Fenced | Answer::Holds(_) | Answer::Failed(_) => None,
    });
    failed.or(lacks).cloned().expect("answers that do not suffice hold at least one that is no")
}
