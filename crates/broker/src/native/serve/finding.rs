//! Finding topics: lookup, partitions, lists.

use std::sync::Arc;

use pulsar_proto::{
    NamespaceName, TopicName,
    proto::{self, ServerError},
};

use super::super::{close_reason::CloseReason, connection::Connection, replies, resources::Done};
use crate::door::TopicsMode;

impl Connection {
    pub(super) fn lookup(&mut self, request: proto::CommandLookupTopic) {
        let request_id = request.request_id;
        let topic = match TopicName::parse(&request.topic) {
            Ok(topic) => topic,
            Err(error) => {
                return self.answer(replies::lookup_failed(
                    request_id,
                    ServerError::InvalidTopicName,
                    invalid_topic(&error),
                ));
            }
        };
        if let Some(listener) = request.advertised_listener_name.filter(|name| !name.is_empty()) {
            let message = format!("the broker do not have {listener} listener");
            return self.answer(replies::lookup_failed(request_id, ServerError::ServiceNotReady, message));
        }
        let Ok(permit) = Arc::clone(&self.shared.lookups).try_acquire_owned() else {
            let error = ServerError::TooManyRequests;
            return self.answer(replies::lookup_failed(request_id, error, TOO_MANY_LOOKUPS.into()));
        };
        let (broker, standalone) = (self.shared.broker.clone(), self.shared.config.standalone);
        self.start(async move {
            let result = broker.lookup(&topic).await;
            drop(permit);
            Done::Answer(replies::lookup(request_id, standalone, result))
        });
    }

    pub(super) fn partition_metadata(&mut self, request: proto::CommandPartitionedTopicMetadata) {
        let request_id = request.request_id;
        let topic = match TopicName::parse(&request.topic) {
            Ok(topic) => topic,
            Err(error) => {
                return self.answer(replies::partitions_failed(
                    request_id,
                    ServerError::InvalidTopicName,
                    invalid_topic(&error),
                ));
            }
        };
        let Ok(permit) = Arc::clone(&self.shared.lookups).try_acquire_owned() else {
            let error = ServerError::TooManyRequests;
            return self.answer(replies::partitions_failed(request_id, error, TOO_MANY_LOOKUPS.into()));
        };
        let (broker, auto_create) = (self.shared.broker.clone(), request.metadata_auto_creation_enabled());
        self.start(async move {
            let result = broker.partitions(&topic, auto_create).await;
            drop(permit);
            Done::Answer(replies::partitions(request_id, result))
        });
    }

    pub(super) fn topics_of_namespace(
        &mut self,
        request: proto::CommandGetTopicsOfNamespace,
    ) -> Result<(), CloseReason> {
        use proto::command_get_topics_of_namespace::Mode;
        let request_id = request.request_id;
        let mode = match request.mode() {
            Mode::Persistent => TopicsMode::Persistent,
            Mode::NonPersistent => TopicsMode::NonPersistent,
            Mode::All => TopicsMode::All,
        };
        let Ok(namespace) = NamespaceName::parse(&request.namespace) else {
            return Err(CloseReason::BadNamespace(request.namespace));
        };
        let Ok(permit) = Arc::clone(&self.shared.lookups).try_acquire_owned() else {
            self.answer(replies::error(request_id, ServerError::TooManyRequests, TOO_MANY_LOOKUPS));
            return Ok(());
        };
        let broker = self.shared.broker.clone();
        self.start(async move {
            let result = broker.topics(&namespace, mode, false).await;
            drop(permit);
            Done::Answer(replies::topics(request_id, request.topics_hash.as_deref(), result))
        });
        Ok(())
    }

    /// The topic, or an ERROR.
    pub(super) fn topic(&mut self, request_id: u64, name: &str) -> Option<TopicName> {
        match TopicName::parse(name) {
            Ok(topic) => Some(topic),
            Err(error) => {
                self.answer(replies::error(request_id, ServerError::InvalidTopicName, invalid_topic(&error)));
                None
            }
        }
    }
}

const TOO_MANY_LOOKUPS: &str = "Failed due to too many pending lookup requests";

fn invalid_topic(error: &impl std::fmt::Display) -> String {
    format!("Invalid topic name: {error}")
}
