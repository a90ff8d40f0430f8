//! Who serves a bundle. Topics open only through here.
//!
//! [`Ownership`] decides; [`OwnershipShell`] talks to the metadata store and to those who wait. The node of a bundle is
//! ephemeral: who creates it first owns the bundle until its session ends. Losing the session is losing all bundles, and
//! their topics are closed before anything is owned again.

use std::sync::Arc;

use bytes::Bytes;
use metadata::{CreateMode, Expected, MetadataError, MetadataStore};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::door::{BrokerError, BrokerErrorKind};
use crate::tenancy::Bundle;

/// The value of a bundle's node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NamespaceEphemeralData {
    pub native_url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub native_url_tls: Option<String>,
    pub http_url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_url_tls: Option<String>,
    pub disabled: bool,
    pub advertised_listeners: serde_json::Map<String, serde_json::Value>,
}

/// The answer to "who owns this bundle?".
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// This broker, in this term. What is granted in one term is void in the next.
    Us { term: u64 },
    /// Another broker.
    Other(Arc<NamespaceEphemeralData>),
}

pub(crate) type Waiter = oneshot::Sender<Result<Owner, BrokerError>>;

/// Decides which bundles are ours.
///
/// Invariant: a bundle is [`State::Owned`] only after its node was created by (or found to be of) the present session.
pub(crate) struct Ownership<W> {
    /// Counts lost sessions.
    term: u64,
    bundles: FxHashMap<Bundle, State<W>>,
}

enum State<W> {
    /// The node is being created for these.
    Acquiring {
        waiting: Vec<W>,
    },
    Owned,
}

pub(crate) enum Event<W> {
    /// Somebody needs the owner.
    Wanted {
        bundle: Bundle,
        waiter: W,
    },
    /// The answer to [`Effect::Acquire`]. The term is the one it was asked in.
    Acquired {
        bundle: Bundle,
        term: u64,
        result: Result<Held, BrokerError>,
    },
    SessionLost,
}

/// Whose node it is.
pub(crate) enum Held {
    Us,
    Other(Arc<NamespaceEphemeralData>),
}

pub(crate) enum Effect<W> {
    /// Create the bundle's node, or find out whose it is.
    Acquire {
        bundle: Bundle,
        term: u64,
    },
    Answer {
        waiter: W,
        result: Result<Owner, BrokerError>,
    },
    /// Close every topic opened in an earlier term than this.
    CloseTopics {
        term: u64,
    },
}

impl<W> Ownership<W> {
    pub(crate) fn new() -> Self {
        Self { term: 0, bundles: FxHashMap::default() }
    }

    pub(crate) fn on_event(&mut self, event: Event<W>, out: &mut Vec<Effect<W>>) {
        match event {
            Event::Wanted { bundle, waiter } => match self.bundles.get_mut(&bundle) {
                Some(State::Owned) => {
                    out.push(Effect::Answer { waiter, result: Ok(Owner::Us { term: self.term }) });
                }
                Some(State::Acquiring { waiting }) => waiting.push(waiter),
                None => {
                    self.bundles.insert(bundle.clone(), State::Acquiring { waiting: vec![waiter] });
                    out.push(Effect::Acquire { bundle, term: self.term });
                }
            },
            // Asked for in a session that is over: its node is gone, and its waiters were refused.
            Event::Acquired { term, .. } if term != self.term => {}
            Event::Acquired { bundle, term, result } => {
                // Only `Acquiring` has an answer to come, and only a lost session takes that state away.
                let Some(State::Acquiring { waiting }) = self.bundles.remove(&bundle) else { return };
                let answer = match result {
                    Ok(Held::Us) => {
                        self.bundles.insert(bundle, State::Owned);
                        Ok(Owner::Us { term })
                    }
                    // Not remembered: the other may go at any time, and only the store knows.
                    Ok(Held::Other(owner)) => Ok(Owner::Other(owner)),
                    Err(error) => Err(error),
                };
                out.extend(waiting.into_iter().map(|waiter| Effect::Answer { waiter, result: answer.clone() }));
            }
            Event::SessionLost => {
                self.term += 1;
                out.push(Effect::CloseTopics { term: self.term });
                for state in std::mem::take(&mut self.bundles).into_values() {
                    if let State::Acquiring { waiting } = state {
                        let lost =
                            || BrokerError::new(BrokerErrorKind::ServiceNotReady, "the metadata session is lost");
                        out.extend(waiting.into_iter().map(|waiter| Effect::Answer { waiter, result: Err(lost()) }));
                    }
                }
            }
        }
    }

    /// Takes what is owned out; the caller deletes the nodes.
    fn release_all(&mut self) -> Vec<Bundle> {
        self.term += 1;
        let owned = |(bundle, state)| matches!(state, State::Owned).then_some(bundle);
        std::mem::take(&mut self.bundles).into_iter().filter_map(owned).collect()
    }

    fn owned(&self, bundle: &Bundle) -> Option<Owner> {
        matches!(self.bundles.get(bundle), Some(State::Owned)).then_some(Owner::Us { term: self.term })
    }
}

/// Feeds the core from the metadata store.
pub(crate) struct OwnershipShell {
    core: Mutex<Ownership<Waiter>>,
    store: Arc<dyn MetadataStore>,
    us: Bytes,
    /// Tells the shards that a term began.
    close_topics: Box<dyn Fn(u64) + Send + Sync>,
}

impl OwnershipShell {
    pub(crate) fn new(
        store: Arc<dyn MetadataStore>,
        us: &NamespaceEphemeralData,
        close_topics: Box<dyn Fn(u64) + Send + Sync>,
    ) -> Self {
        let us = serde_json::to_vec(us).expect("plain struct with string keys always encodes").into();
        Self { core: Mutex::new(Ownership::new()), store, us, close_topics }
    }

    /// The bundle's owner; this broker becomes it when there is none. Runs on any thread with a tokio runtime.
    pub(crate) async fn owner(self: &Arc<Self>, bundle: &Bundle) -> Result<Owner, BrokerError> {
        if let Some(owner) = self.core.lock().owned(bundle) {
            return Ok(owner);
        }
        let (waiter, answer) = oneshot::channel();
        self.feed(Event::Wanted { bundle: bundle.clone(), waiter });
        answer.await.unwrap_or_else(|_| Err(BrokerError::stopping()))
    }

    /// Follows the session until the store is closed. Awaited by the broker.
    ///
    /// Watches from the call on, not from the first poll: a loss in between must not be missed.
    pub(crate) fn follow_session(self: Arc<Self>) -> impl Future<Output = ()> + Send + 'static {
        let mut watch = self.store.session();
        let mut generation = watch.current().generation;
        async move {
            loop {
                let session = watch.changed().await;
                if session.generation != generation || session.state == metadata::SessionState::Lost {
                    generation = session.generation;
                    tracing::warn!(generation, "metadata session lost: closing all topics");
                    self.feed(Event::SessionLost);
                }
            }
        }
    }

    /// Gives all bundles back, so that others need not wait for the end of the session. Their topics are closed.
    pub(crate) async fn release_all(&self) {
        let bundles = self.core.lock().release_all();
        for bundle in bundles {
            // Whatever is not deleted goes with the session.
            if let Err(error) = self.store.delete(&bundle.owner_path(), Expected::Any).await {
                tracing::debug!(bundle = %bundle, %error, "bundle not released");
            }
        }
    }

    fn feed(self: &Arc<Self>, event: Event<Waiter>) {
        let mut effects = Vec::new();
        self.core.lock().on_event(event, &mut effects);
        for effect in effects {
            match effect {
                Effect::Acquire { bundle, term } => {
                    // Its own task: the one who asked may go away, the others who wait may not.
                    let shell = self.clone();
                    tokio::spawn(async move {
                        let result = shell.acquire(&bundle).await;
                        shell.feed(Event::Acquired { bundle, term, result });
                    });
                }
                // Who no longer waits needs no answer.
                Effect::Answer { waiter, result } => drop(waiter.send(result)),
                Effect::CloseTopics { term } => (self.close_topics)(term),
            }
        }
    }

    async fn acquire(&self, bundle: &Bundle) -> Result<Held, BrokerError> {
        let path = bundle.owner_path();
        // A few rounds: the node of a dying owner may vanish between the create and the read.
        for _ in 0..3 {
            match self.store.create(&path, self.us.clone(), CreateMode::Ephemeral).await {
                Ok(_) => {
                    tracing::info!(bundle = %bundle, "bundle owned");
                    return Ok(Held::Us);
                }
                Err(MetadataError::BadVersion { .. } | MetadataError::OutcomeUnknown { .. }) => {}
                Err(error) => return Err(crate::tenancy::metadata_error(&path, error)),
            }
            match self.store.get(&path).await {
                Ok(Some(node)) if node.stat.mine => return Ok(Held::Us),
                Ok(Some(node)) => {
                    let owner = serde_json::from_slice(&node.value).map_err(|error| {
                        BrokerError::new(
                            BrokerErrorKind::Metadata,
                            format!("cannot parse owner of bundle `{bundle}`: {error}"),
                        )
                    })?;
                    return Ok(Held::Other(Arc::new(owner)));
                }
                Ok(None) => {}
                Err(error) => return Err(crate::tenancy::metadata_error(&path, error)),
            }
        }
        Err(BrokerError::new(BrokerErrorKind::ServiceNotReady, format!("the owner of bundle `{bundle}` is changing")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenancy::Bundles;

    /// `wN`: N wants the bundle; `us`, `other`, `fail`: the answer of the store; `lost`: the session.
    /// `acquire`, `N=us`, `N=other`, `N!`, `close`: what comes of it.
    fn check(input: &str, expected: &str) {
        let bundle = Bundles::even(1).of("t/n", 0);
        let mut core = Ownership::<u32>::new();
        let mut asked_in = 0;
        let mut seen = Vec::new();
        for word in input.split_whitespace() {
            let acquired = |result| Event::Acquired { bundle: bundle.clone(), term: asked_in, result };
            let event = match word {
                "us" => acquired(Ok(Held::Us)),
                "other" => acquired(Ok(Held::Other(Arc::default()))),
                "fail" => acquired(Err(BrokerError::stopping())),
                "lost" => Event::SessionLost,
                want => Event::Wanted { bundle: bundle.clone(), waiter: want[1..].parse().unwrap() },
            };
            let mut out = Vec::new();
            core.on_event(event, &mut out);
            for effect in out {
                seen.push(match effect {
                    Effect::Acquire { term, .. } => {
                        asked_in = term;
                        "acquire".to_owned()
                    }
                    Effect::Answer { waiter, result: Ok(Owner::Us { .. }) } => format!("{waiter}=us"),
                    Effect::Answer { waiter, result: Ok(Owner::Other(_)) } => format!("{waiter}=other"),
                    Effect::Answer { waiter, result: Err(_) } => format!("{waiter}!"),
                    Effect::CloseTopics { .. } => "close".to_owned(),
                });
            }
        }
        assert_eq!(seen.join(" "), expected, "{input}");
    }

    #[test]
    fn a_bundle_is_ours_only_within_the_session_that_holds_its_node() {
        check("w1 us w2", "acquire 1=us 2=us");
        check("w1 w2 us", "acquire 1=us 2=us");
        check("w1 other w2", "acquire 1=other acquire");
        check("w1 fail w2", "acquire 1! acquire");
        check("w1 us lost w2 us", "acquire 1=us close acquire 2=us");
        check("w1 lost us w2", "acquire close 1! acquire");
        check("w1 lost us lost us", "acquire close 1! close");
    }
}
