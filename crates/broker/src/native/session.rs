//! The handshake and the keepalive of one connection, as a plain state machine.
//!
//! It decides whether a command may be served and when a silent peer is given up; the connection task performs it.

use pulsar_proto::PROTOCOL_VERSION;

/// The first version whose clients answer a PING.
const KEEPALIVE_SINCE: i32 = 1;

/// What the other side told about itself in CONNECT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Peer {
    /// min(the client's, ours).
    pub(super) protocol_version: i32,
    /// Free text such as `Pulsar-Java-v4.0.1`.
    pub(super) client_version: String,
    /// Shown in statistics.
    pub(super) supports_partial_producer: bool,
}

impl Peer {
    /// `protocol_version` as the client sent it; anything below 0 is treated as 0.
    pub(super) fn new(protocol_version: i32, client_version: String, supports_partial_producer: bool) -> Self {
        Self {
            protocol_version: protocol_version.clamp(0, PROTOCOL_VERSION),
            client_version,
            supports_partial_producer,
        }
    }
}

/// One received command, as far as the session cares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Heard {
    Connect(Peer),
    Ping,
    Pong,
    Request,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Answer PONG.
    Pong,
    /// Answer CONNECTED.
    Welcome,
    /// The command may be served.
    Serve,
    Nothing,
    Close(Breach),
}

/// What the keepalive wants, once per interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tick {
    SendPing,
    Nothing,
    Close(Breach),
}

/// Whether the connection was read since the last tick: we do not blame a peer for what we did not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    Open,
    Suspended,
}

/// Why the session ends a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Breach {
    #[error("the handshake was not completed in time")]
    HandshakeTimeout,
    #[error("the peer did not answer the keepalive ping")]
    PeerSilent,
    #[error("a second CONNECT")]
    SecondConnect,
    #[error("a command before CONNECT")]
    CommandBeforeConnect,
}

#[derive(Debug)]
enum State {
    /// Nothing but CONNECT (and PING, PONG) is served.
    Start,
    Connected(Peer),
    /// As `Connected`, with a PING under way that nothing has answered yet.
    Pinged(Peer),
}

/// Invariant: no command is served before CONNECT or after a breach was reported (the caller closes then).
#[derive(Debug)]
pub(super) struct Session {
    state: State,
}

impl Session {
    pub(super) fn new() -> Self {
        Self { state: State::Start }
    }

    /// The peer, once the handshake is done.
    pub(super) fn peer(&self) -> Option<&Peer> {
        match &self.state {
            State::Start => None,
            State::Connected(peer) | State::Pinged(peer) => Some(peer),
        }
    }

    pub(super) fn heard(&mut self, heard: Heard) -> Verdict {
        // Anything that arrives is a sign of life, not only PONG.
        if let State::Pinged(peer) = &self.state {
            self.state = State::Connected(peer.clone());
        }
        match (&self.state, heard) {
            (_, Heard::Ping) => Verdict::Pong,
            (_, Heard::Pong) => Verdict::Nothing,
            (State::Start, Heard::Connect(peer)) => {
                self.state = State::Connected(peer);
                Verdict::Welcome
            }
            (State::Start, Heard::Request) => Verdict::Close(Breach::CommandBeforeConnect),
            (State::Connected(_) | State::Pinged(_), Heard::Connect(_)) => Verdict::Close(Breach::SecondConnect),
            (State::Connected(_) | State::Pinged(_), Heard::Request) => Verdict::Serve,
        }
    }

    /// To be called once per keepalive interval.
    pub(super) fn tick(&mut self, reading: Reading) -> Tick {
        match (&self.state, reading) {
            (State::Start, _) => Tick::Close(Breach::HandshakeTimeout),
            (State::Pinged(_), Reading::Open) => Tick::Close(Breach::PeerSilent),
            // Its answer may lie unread in the socket: ask again later.
            (State::Pinged(_), Reading::Suspended) => Tick::Nothing,
            (State::Connected(peer), _) if peer.protocol_version >= KEEPALIVE_SINCE => {
                self.state = State::Pinged(peer.clone());
                Tick::SendPing
            }
            (State::Connected(_), _) => Tick::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `c`: CONNECT of a current client; `o`: of a version 0 client; `p`: PING; `q`: PONG; `r`: a request;
    /// `t`: a tick; `s`: a tick while reading is suspended.
    /// Expected: `W`elcome, `P`ong, `S`erve, `!` send PING, `-` nothing, `X` close.
    fn check(events: &str, expected: &str) {
        let mut session = Session::new();
        let mut got = String::new();
        for event in events.chars() {
            let verdict = match event {
                'c' => session.heard(Heard::Connect(Peer::new(21, "x".into(), true))),
                'o' => session.heard(Heard::Connect(Peer::new(0, "x".into(), false))),
                'p' => session.heard(Heard::Ping),
                'q' => session.heard(Heard::Pong),
                'r' => session.heard(Heard::Request),
                't' | 's' => {
                    let reading = if event == 't' { Reading::Open } else { Reading::Suspended };
                    got.push(match session.tick(reading) {
                        Tick::SendPing => '!',
                        Tick::Nothing => '-',
                        Tick::Close(_) => 'X',
                    });
                    continue;
                }
                other => panic!("unknown event {other}"),
            };
            got.push(match verdict {
                Verdict::Welcome => 'W',
                Verdict::Pong => 'P',
                Verdict::Serve => 'S',
                Verdict::Nothing => '-',
                Verdict::Close(_) => 'X',
            });
        }
        assert_eq!(got, expected, "events {events}");
    }

    #[test]
    fn handshake_and_keepalive() {
        check("cr", "WS");
        check("r", "X");
        check("pqcr", "P-WS");
        check("cc", "WX");
        check("t", "X");
        check("pt", "PX"); // Pings do not complete a handshake.
        check("ctt", "W!X");
        check("ctqt", "W!-!");
        check("ctrt", "W!S!"); // Any command is a sign of life.
        check("ctpt", "W!P!");
        check("ctst", "W!-X");
        check("ctsqt", "W!--!");
        check("ottt", "W---"); // A version 0 client knows no PING.
        check("ctc", "W!X");
    }

    #[test]
    fn the_version_is_the_lower_one() {
        for (client, agreed) in [(-5, 0), (0, 0), (12, 12), (21, 21), (22, 21), (i32::MAX, 21)] {
            assert_eq!(Peer::new(client, String::new(), false).protocol_version, agreed);
        }
    }
}
