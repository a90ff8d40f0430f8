//! A shard: one thread that owns topics. It drains its mailbox, feeds the topics, performs their effects in the order given,
//! and hands each connection at the end of the turn what the turn had for it.
//!
//! Absent on purpose, so far: eviction. A topic that nobody uses stays open until its bundle is lost or the broker stops; it
//! may be closed like by `Command::Unload` at any time it has no producers and consumers.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bookkeeper_proto::{AddDone, AddSink};
use ledger::BookieAccess;
use managed_ledger::{
    Context, Effect, Effects, Event, ManagedLedger, ManagedLedgerConfig, Now, OpenError, OpenOptions, Retention,
    TaskResult,
};
use pulsar_proto::{NamespaceName, TopicName};
use rustc_hash::FxHashMap;
use tokio::sync::Notify;

use crate::door::{BrokerError, BrokerErrorKind};
use crate::mailbox::{Command, Grant, Reply, TopicRequest};
use crate::outboxes::Outboxes;
use crate::tenancy::Namespace;
use crate::topic::{Env, Topic, Turn};

/// How often topics hear that time passes. Nothing ticks while there are none.
const TICK: Duration = Duration::from_secs(1);

/// What a shard's own tasks bring back.
enum Arrival {
    Finished { topic: u64, result: TaskResult },
    Opened { key: u64, name: TopicName, grant: Grant, result: Result<Box<ManagedLedger>, OpenError> },
    Deleted { name: TopicName, result: Result<(), OpenError>, reply: Reply<()> },
}

/// Where they bring it. Same thread, no lock.
#[derive(Default)]
struct Arrivals {
    queue: RefCell<Vec<Arrival>>,
    notify: Notify,
}

impl Arrivals {
    fn push(&self, arrival: Arrival) {
        self.queue.borrow_mut().push(arrival);
        self.notify.notify_one();
    }
}

enum Slot {
    /// Being opened; these wait for it.
    Loading(Vec<(Grant, TopicRequest)>),
    Open(u64),
    /// Closed, and what it has stored is being deleted.
    Deleting,
}

pub(crate) struct Shard {
    env: Env,
    context: Context,
    bookie: Arc<dyn BookieAccess>,
    sink: Arc<dyn AddSink>,
    arrivals: Rc<Arrivals>,
    topics: FxHashMap<u64, Topic>,
    names: FxHashMap<TopicName, Slot>,
    /// Openings that wait because enough are under way.
    queued: VecDeque<(TopicName, Grant)>,
    loading: usize,
    out: Outboxes,
    next_key: u64,
    /// Topics with something to dispatch.
    dirty: Vec<u64>,
    /// Topics whose caches hold something.
    caching: Vec<u64>,
    /// Where the windows of the caches were when those were last looked at.
    swept: u64,
    effects: Effects,
    /// Of the present term of ownership: what was granted before it is void.
    term: u64,
    stopping: bool,
    started: Instant,
}

impl Shard {
    pub(crate) fn new(index: usize, env: Env, context: Context) -> Self {
        let sink: Arc<dyn AddSink> = env.mailbox.clone();
        Self {
            bookie: context.ledgers.bookie(0).clone(),
            out: Outboxes::new(index, env.outbound.clone()),
            env,
            context,
            sink,
            arrivals: Rc::default(),
            topics: FxHashMap::default(),
            names: FxHashMap::default(),
            queued: VecDeque::new(),
            loading: 0,
            next_key: 0,
            dirty: Vec::new(),
            caching: Vec::new(),
            swept: 0,
            effects: Effects::new(),
            term: 0,
            stopping: false,
            #[expect(clippy::disallowed_methods, reason = "the shell reads the clock for its cores")]
            started: Instant::now(),
        }
    }

    /// Runs until it was told to stop and every topic is closed.
    pub(crate) async fn run(mut self) {
        let mailbox = self.env.mailbox.clone();
        let arrivals = self.arrivals.clone();
        let mut batch: Vec<Command> = Vec::new();
        let mut last_tick = self.now().monotonic_ms;
        // One timer for all turns: registering a new one in each of them wakes this thread's own poll every time.
        let mut alarm = std::pin::pin!(tokio::time::sleep(TICK));
        loop {
            // No order matters: each branch only wakes, and the turn below looks at everything. Both waits keep their
            // wake-up when they are dropped.
            tokio::select! {
                () = mailbox.posted() => {}
                () = arrivals.notify.notified() => {}
                () = alarm.as_mut(), if !self.topics.is_empty() => alarm.as_mut().reset(tokio::time::Instant::now() + TICK),
            }
            let now = self.now();
            mailbox.take(&mut batch);
            for command in batch.drain(..) {
                self.command(command, now);
            }
            // A burst is not kept for ever.
            if batch.capacity() > 4096 {
                batch = Vec::new();
            }
            let arrived = std::mem::take(&mut *arrivals.queue.borrow_mut());
            for arrival in arrived {
                self.arrived(arrival, now);
            }
            if now.monotonic_ms.saturating_sub(last_tick) >= TICK.as_millis() as u64 {
                last_tick = now.monotonic_ms;
                alarm.as_mut().reset(tokio::time::Instant::now() + TICK);
                self.tick(now);
            }
            self.finish_turn(now);
            if self.stopping && self.names.is_empty() {
                break;
            }
            // Connections live on this thread, too: they get their turn even when the mailbox is never empty.
            tokio::task::yield_now().await;
        }
        mailbox.close();
    }

    #[expect(clippy::disallowed_methods, reason = "the shell reads the clock for its cores")]
    fn now(&self) -> Now {
        let unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        Now { unix_ms, monotonic_ms: self.started.elapsed().as_millis() as u64 }
    }

    fn command(&mut self, command: Command, now: Now) {
        match command {
            Command::Publish { topic, producer, publish } => {
                self.with(topic, now, |topic, turn| topic.publish(producer, publish, turn));
            }
            Command::Consumer { topic, consumer, command } => {
                self.with(topic, now, |topic, turn| topic.consumer_command(consumer, command, turn));
            }
            Command::CloseProducer { topic, producer, reply } => {
                self.with(topic, now, |topic, turn| topic.close_producer(producer, reply, turn));
            }
            Command::Added(done) => self.added(done, now),
            Command::Open { topic, grant, request } => self.open(topic, grant, request, now),
            Command::Unload { topic, reply } => match self.names.get(&topic) {
                Some(Slot::Open(key)) => {
                    let key = *key;
                    self.with(key, now, |topic, turn| topic.close(reply, turn));
                }
                Some(Slot::Loading(_) | Slot::Deleting) => {
                    let message = format!("topic {topic} is being loaded or deleted");
                    drop(reply.send(Err(BrokerError::new(BrokerErrorKind::ServiceNotReady, message))));
                }
                None => drop(reply.send(Ok(()))),
            },
            Command::Metrics { reply } => drop(reply.send(self.topics.values().map(Topic::metrics).collect())),
            Command::Policies { name, namespace } => self.new_policies(&name, &namespace, now),
            Command::NewTerm { term } => {
                self.term = self.term.max(term);
                self.close_all(now, |topic| topic.term < term);
            }
            Command::Resume { outbox } => {
                for topic in self.out.resumed(outbox) {
                    self.mark_dirty(topic);
                }
            }
            Command::Room => self.retry_starved(),
            // Not awaited here: what runs on it has an owner elsewhere (a door), which ends it before the shard stops.
            Command::Spawn(make) => drop(tokio::task::spawn_local(make())),
            Command::Stop => {
                self.stopping = true;
                self.close_all(now, |_| true);
            }
        }
    }

    fn new_policies(&mut self, name: &NamespaceName, namespace: &Arc<Namespace>, now: Now) {
        let config = self.ledger_config(namespace);
        let mut open = Vec::new();
        for (_, slot) in self.names.iter_mut().filter(|(topic, _)| topic.namespace() == *name) {
            match slot {
                Slot::Open(key) => open.push(*key),
                Slot::Loading(waiting) => {
                    waiting.iter_mut().for_each(|(grant, _)| grant.namespace = namespace.clone());
                }
                Slot::Deleting => {}
            }
        }
        for key in open {
            self.with(key, now, |topic, turn| topic.set_policies(namespace.clone(), config.clone(), turn));
        }
    }

    /// The settings of the managed ledgers of a namespace.
    fn ledger_config(&self, namespace: &Namespace) -> Arc<ManagedLedgerConfig> {
        match &namespace.policies.retention_policies {
            None => self.context.config.clone(),
            Some(policy) => {
                let retention = Retention::from_policy(policy.retention_time_in_minutes, policy.retention_size_in_mb);
                Arc::new(ManagedLedgerConfig { retention, ..(*self.context.config).clone() })
            }
        }
    }

    fn close_all(&mut self, now: Now, which: impl Fn(&Topic) -> bool) {
        let keys: Vec<u64> = self.topics.values().filter(|topic| which(topic)).map(|topic| topic.key).collect();
        for key in keys {
            // Nobody waits for the single topic.
            let (reply, _) = tokio::sync::oneshot::channel();
            self.with(key, now, |topic, turn| topic.close(reply, turn));
        }
    }

    /// One commit: each topic gets its own in the order they were written.
    fn added(&mut self, done: Vec<AddDone>, now: Now) {
        self.context.cache.block_written();
        let mut done = done.into_iter().peekable();
        while let Some(first) = done.next() {
            let owner = first.owner;
            let others = std::iter::from_fn(|| done.next_if(|next| next.owner == owner));
            let run = std::iter::once(first).chain(others);
            self.with(owner, now, |topic, turn| topic.appended(run, turn));
        }
    }

    /// Lets a topic do something and performs what comes of it.
    fn with(&mut self, key: u64, now: Now, act: impl FnOnce(&mut Topic, &mut Turn<'_>)) {
        // A topic that is gone: its clients have been told.
        let Some(topic) = self.topics.get_mut(&key) else { return };
        let mut turn =
            Turn { now, effects: &mut self.effects, out: &mut self.out, env: &self.env, next_key: &mut self.next_key };
        act(topic, &mut turn);
        self.perform(key, now);
    }

    /// Performs effects in order, and what they lead to, until nothing is left.
    fn perform(&mut self, key: u64, now: Now) {
        let Some(topic) = self.topics.get_mut(&key) else { return };
        let mut batch = Effects::new();
        while !self.effects.is_empty() {
            std::mem::swap(&mut batch, &mut self.effects);
            for effect in batch.drain(..) {
                match effect {
                    Effect::Append(op) => self.bookie.add(op, &self.sink),
                    Effect::Run(task) => {
                        let (context, arrivals) = (self.context.clone(), self.arrivals.clone());
                        // Ends with the topic's close, which waits for it, or with the runtime.
                        tokio::task::spawn_local(async move {
                            let result = task.run(&context).await;
                            arrivals.push(Arrival::Finished { topic: key, result });
                        });
                    }
                    effect => {
                        let mut turn = Turn {
                            now,
                            effects: &mut self.effects,
                            out: &mut self.out,
                            env: &self.env,
                            next_key: &mut self.next_key,
                        };
                        topic.on_effect(effect, &mut turn);
                    }
                }
            }
            // Keeps the larger buffer for the next time.
            if self.effects.is_empty() {
                std::mem::swap(&mut batch, &mut self.effects);
                break;
            }
        }
        if topic.dirty && !topic.listed {
            topic.listed = true;
            self.dirty.push(key);
        }
        if !topic.caching && topic.has_cached() {
            topic.caching = true;
            self.caching.push(key);
        }
        if topic.is_closed() {
            let name = topic.name.clone();
            let delete = topic.delete.take();
            tracing::info!(topic = %name, "topic closed");
            self.topics.remove(&key);
            self.names.remove(&name);
            if let Some(reply) = delete {
                self.delete(name, reply);
            }
        }
    }

    /// Deletes what a closed topic has stored. Nobody opens it before that has ended.
    fn delete(&mut self, name: TopicName, reply: Reply<()>) {
        self.names.insert(name.clone(), Slot::Deleting);
        let (context, arrivals) = (self.context.clone(), self.arrivals.clone());
        tokio::task::spawn_local(async move {
            let result = ManagedLedger::delete(&context, &name.managed_ledger_name()).await;
            arrivals.push(Arrival::Deleted { name, result, reply });
        });
    }

    fn mark_dirty(&mut self, key: u64) {
        if let Some(topic) = self.topics.get_mut(&key)
            && !topic.listed
        {
            topic.listed = true;
            self.dirty.push(key);
        }
    }

    /// Caches of topics without a turn of their own must not hold blocks that the windows have passed: not on this shard,
    /// nor on one that has nothing to do.
    fn sweep_caches(&mut self) {
        let edge = self.context.cache.edge();
        if edge == self.swept {
            return;
        }
        self.swept = edge;
        let topics = &mut self.topics;
        self.caching.retain(|key| topics.get_mut(key).is_some_and(Topic::expire_cache));
        self.env.outbound.wake_shards();
    }

    fn finish_turn(&mut self, now: Now) {
        while !self.dirty.is_empty() {
            for key in std::mem::take(&mut self.dirty) {
                self.with(key, now, |topic, turn| {
                    topic.listed = false;
                    topic.dispatch(turn);
                });
            }
        }
        for topic in self.out.flush() {
            self.mark_dirty(topic);
        }
        self.sweep_caches();
        if !self.dirty.is_empty() {
            self.arrivals.notify.notify_one();
        }
    }

    fn retry_starved(&mut self) {
        for topic in self.out.starved() {
            self.mark_dirty(topic);
        }
    }

    fn tick(&mut self, now: Now) {
        // Nobody tells when a little has become free, and for a small message that is enough.
        self.retry_starved();
        let keys: Vec<u64> = self.topics.keys().copied().collect();
        for key in keys {
            self.with(key, now, |topic, turn| topic.tick(turn));
        }
    }

    fn arrived(&mut self, arrival: Arrival, now: Now) {
        match arrival {
            Arrival::Finished { topic, result } => {
                self.with(topic, now, |topic, turn| topic.on_event(Event::Finished(result), turn));
            }
            Arrival::Opened { key, name, grant, result } => {
                self.loading -= 1;
                self.opened(key, name, grant, result, now);
                self.load_queued(now);
            }
            Arrival::Deleted { name, result, reply } => {
                self.names.remove(&name);
                let result = result.map_err(|error| {
                    let message = format!("cannot delete topic {name}: {}", chain(&error));
                    BrokerError::new(BrokerErrorKind::Metadata, message)
                });
                drop(reply.send(result));
            }
        }
    }

    /// A request for a topic: now if it is open, later if it is being opened.
    fn open(&mut self, name: TopicName, grant: Grant, request: TopicRequest, now: Now) {
        if self.stopping {
            return request.refuse(BrokerError::stopping());
        }
        if grant.term < self.term {
            let message = format!("topic {name} is not owned by this broker any more");
            return request.refuse(BrokerError::new(BrokerErrorKind::ServiceNotReady, message));
        }
        match self.names.get_mut(&name) {
            Some(Slot::Open(key)) => {
                let key = *key;
                self.with(key, now, |topic, turn| topic.request(request, turn));
            }
            Some(Slot::Loading(waiting)) => waiting.push((grant, request)),
            Some(Slot::Deleting) => {
                let message = format!("topic {name} is being deleted");
                request.refuse(BrokerError::new(BrokerErrorKind::ServiceNotReady, message));
            }
            None => {
                self.names.insert(name.clone(), Slot::Loading(vec![(grant.clone(), request)]));
                self.queued.push_back((name, grant));
                self.load_queued(now);
            }
        }
    }

    fn load_queued(&mut self, now: Now) {
        while self.loading < self.env.config.max_concurrent_topic_loads
            && let Some((name, grant)) = self.queued.pop_front()
        {
            self.loading += 1;
            self.next_key += 1;
            let key = self.next_key;
            let (context, arrivals) = (self.context.clone(), self.arrivals.clone());
            let options = OpenOptions {
                owner: key,
                create_if_missing: grant.create,
                config: Some(self.ledger_config(&grant.namespace)),
                properties: Vec::new(),
                now,
            };
            tokio::task::spawn_local(async move {
                let result = ManagedLedger::open(&context, &name.managed_ledger_name(), options).await.map(Box::new);
                arrivals.push(Arrival::Opened { key, name, grant, result });
            });
        }
    }

    fn opened(
        &mut self,
        key: u64,
        name: TopicName,
        grant: Grant,
        result: Result<Box<ManagedLedger>, OpenError>,
        now: Now,
    ) {
        let waiting = match self.names.remove(&name) {
            Some(Slot::Loading(waiting)) => waiting,
            Some(Slot::Open(_) | Slot::Deleting) | None => {
                unreachable!("a topic stays in its loading slot until its opening ends")
            }
        };
        match result {
            // The bundle was lost meanwhile: whoever owns it now has fenced the ledger, or will.
            Ok(_) if grant.term < self.term || self.stopping => {
                let error =
                    BrokerError::new(BrokerErrorKind::ServiceNotReady, format!("topic {name} is not owned any more"));
                waiting.into_iter().for_each(|(_, request)| request.refuse(error.clone()));
            }
            Ok(ledger) => {
                tracing::info!(topic = %name, "topic opened");
                // Policies may have changed while it was opened; those who wait have been told.
                let namespace = waiting.first().map_or(grant.namespace, |(grant, _)| grant.namespace.clone());
                let config = self.ledger_config(&namespace);
                let mut turn = Turn {
                    now,
                    effects: &mut self.effects,
                    out: &mut self.out,
                    env: &self.env,
                    next_key: &mut self.next_key,
                };
                let mut topic = Topic::new(key, name.clone(), grant.term, namespace.clone(), *ledger, &mut turn);
                topic.set_policies(namespace, config, &turn);
                self.topics.insert(key, topic);
                self.names.insert(name.clone(), Slot::Open(key));
                for (grant, request) in waiting {
                    self.open(name.clone(), grant, request, now);
                }
            }
            Err(OpenError::NotFound { .. }) => {
                // Somebody who may create it came while it was looked for by somebody who may not.
                let (may, may_not): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|(grant, _)| grant.create);
                for (_, request) in may_not {
                    let message = format!("Topic {name} does not exist");
                    request.refuse(BrokerError::new(BrokerErrorKind::TopicNotFound, message));
                }
                for (grant, request) in may {
                    self.open(name.clone(), grant, request, now);
                }
            }
            Err(error) => {
                tracing::warn!(topic = %name, error = %chain(&error), "cannot open topic");
                let kind = match &error {
                    OpenError::Contended { .. } => BrokerErrorKind::ServiceNotReady,
                    OpenError::Ledger { .. } => BrokerErrorKind::Persistence,
                    _ => BrokerErrorKind::Metadata,
                };
                let error = BrokerError::new(kind, format!("cannot open topic {name}: {}", chain(&error)));
                waiting.into_iter().for_each(|(_, request)| request.refuse(error.clone()));
            }
        }
    }
}

/// An error with its causes, for those who cannot follow them.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
