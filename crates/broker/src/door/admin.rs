//! What the admin doors ask of a broker: tenants, namespaces, topics and their numbers.

use std::collections::BTreeSet;

use tokio::sync::oneshot;

use super::{
    Broker, BrokerError, BrokerErrorKind, ClusterData, Creation, NamespaceName, PartitionedTopicMetadata, Policies,
    Position, TenantInfo, TopicName, topic_not_found,
};
use crate::mailbox::{Command, TopicRequest};
use crate::stats::{TopicInternalStats, TopicMetrics, TopicStats};

/// Which topics a list holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicsMode {
    Persistent,
    NonPersistent,
    All,
}

impl Broker {
    pub async fn clusters(&self) -> Result<Vec<String>, BrokerError> {
        self.inner().tenancy.clusters().await
    }

    pub async fn cluster(&self, cluster: &str) -> Result<Option<ClusterData>, BrokerError> {
        self.inner().tenancy.cluster(cluster).await
    }

    /// `AlreadyExists` when there is one of that name.
    pub async fn create_cluster(&self, cluster: &str, data: ClusterData) -> Result<(), BrokerError> {
        self.inner().tenancy.create_cluster(cluster, &data).await
    }

    pub async fn update_cluster(&self, cluster: &str, data: ClusterData) -> Result<(), BrokerError> {
        self.inner().tenancy.update_cluster(cluster, &data).await
    }

    pub async fn tenants(&self) -> Result<Vec<String>, BrokerError> {
        self.inner().tenancy.tenants().await
    }

    pub async fn tenant(&self, tenant: &str) -> Result<Option<TenantInfo>, BrokerError> {
        self.inner().tenancy.tenant(tenant).await
    }

    /// `AlreadyExists`; `InvalidArgument` for a bad name, no clusters or an unknown one.
    pub async fn create_tenant(&self, tenant: &str, info: TenantInfo) -> Result<(), BrokerError> {
        self.inner().tenancy.create_tenant(tenant, &info).await
    }

    pub async fn update_tenant(&self, tenant: &str, info: TenantInfo) -> Result<(), BrokerError> {
        self.inner().tenancy.update_tenant(tenant, &info).await
    }

    /// `NotFound`; `PreconditionFailed` while it has namespaces.
    pub async fn delete_tenant(&self, tenant: &str) -> Result<(), BrokerError> {
        self.inner().tenancy.delete_tenant(tenant).await
    }

    /// Names as `tenant/namespace`; `NotFound` without the tenant.
    pub async fn namespaces(&self, tenant: &str) -> Result<Vec<String>, BrokerError> {
        self.inner().tenancy.namespaces(tenant).await
    }

    pub async fn namespace(&self, namespace: &NamespaceName) -> Result<Option<Policies>, BrokerError> {
        Ok(self.inner().tenancy.namespace(namespace).await?.map(|namespace| namespace.policies.clone()))
    }

    /// `NotFound` without the tenant; `AlreadyExists`. `None`: default policies.
    pub async fn create_namespace(
        &self,
        namespace: &NamespaceName,
        policies: Option<Policies>,
    ) -> Result<(), BrokerError> {
        self.inner().tenancy.create_namespace(namespace, policies).await
    }

    /// Reads, changes and writes policies (again when somebody else was faster). `NotFound`.
    pub async fn update_namespace(
        &self,
        namespace: &NamespaceName,
        change: impl FnMut(&mut Policies) + Send,
    ) -> Result<(), BrokerError> {
        self.inner().tenancy.update_namespace(namespace, change).await
    }

    /// `NotFound`; `PreconditionFailed` while it has topics.
    pub async fn delete_namespace(&self, namespace: &NamespaceName) -> Result<(), BrokerError> {
        let tenancy = &self.inner().tenancy;
        if !tenancy.partitioned_topics(namespace).await?.is_empty()
            || !tenancy.persistent_topics(namespace).await?.is_empty()
        {
            let message = format!("namespace `{}` still has topics", namespace.as_str());
            return Err(BrokerError::new(BrokerErrorKind::PreconditionFailed, message));
        }
        tenancy.delete_namespace(namespace).await
    }

    /// Full names, partitions one by one, sorted; `NotFound` without the namespace.
    pub async fn topics(
        &self,
        namespace: &NamespaceName,
        mode: TopicsMode,
        include_system_topics: bool,
    ) -> Result<Vec<String>, BrokerError> {
        let tenancy = &self.inner().tenancy;
        if tenancy.namespace(namespace).await?.is_none() {
            let message = format!("Namespace not found: {}", namespace.as_str());
            return Err(BrokerError::new(BrokerErrorKind::NotFound, message));
        }
        if mode == TopicsMode::NonPersistent {
            return Ok(Vec::new());
        }
        let mut names = BTreeSet::new();
        for topic in tenancy.partitioned_topics(namespace).await? {
            if let Some(metadata) = tenancy.partitioned(&topic).await?
                && (include_system_topics || !is_system(&topic))
            {
                names.extend((0..metadata.partitions).map(|index| topic.partition(index).to_string()));
            }
        }
        let stored = tenancy.persistent_topics(namespace).await?;
        let shown = stored.iter().filter(|topic| include_system_topics || !is_system(topic));
        names.extend(shown.map(ToString::to_string));
        Ok(names.into_iter().collect())
    }

    /// Full base names, sorted.
    pub async fn partitioned_topics(&self, namespace: &NamespaceName) -> Result<Vec<String>, BrokerError> {
        let mut names: Vec<String> =
            self.inner().tenancy.partitioned_topics(namespace).await?.iter().map(ToString::to_string).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// `AlreadyExists` when there is any topic of that name; `TopicNotFound` without the namespace.
    pub async fn create_topic(&self, topic: &TopicName) -> Result<(), BrokerError> {
        self.namespace_of(topic).await?;
        self.check_free(topic).await?;
        self.ask_topic(topic, Creation::Always, |reply| TopicRequest::Touch { reply }).await
    }

    async fn check_free(&self, topic: &TopicName) -> Result<(), BrokerError> {
        let tenancy = &self.inner().tenancy;
        if tenancy.partitioned(topic).await?.is_some() || tenancy.managed_ledger_exists(topic).await? {
            return Err(BrokerError::new(BrokerErrorKind::AlreadyExists, "This topic already exists"));
        }
        Ok(())
    }

    /// `TopicNotFound`; `PreconditionFailed` with producers or consumers unless `force`.
    pub async fn delete_topic(&self, topic: &TopicName, force: bool) -> Result<(), BrokerError> {
        self.ask_topic(topic, Creation::Never, |reply| TopicRequest::Delete { force, reply }).await
    }

    /// `AlreadyExists`; `InvalidArgument` for a count that is not allowed; `TopicNotFound` without the namespace.
    pub async fn create_partitioned_topic(
        &self,
        topic: &TopicName,
        metadata: PartitionedTopicMetadata,
    ) -> Result<(), BrokerError> {
        self.namespace_of(topic).await?;
        self.check_partitions(metadata.partitions)?;
        self.check_free(topic).await?;
        if !self.inner().tenancy.create_partitioned(topic, &metadata).await? {
            return Err(BrokerError::new(BrokerErrorKind::AlreadyExists, "This topic already exists"));
        }
        self.create_partitions(topic, 0, metadata.partitions).await
    }

    async fn create_partitions(&self, topic: &TopicName, first: u32, end: u32) -> Result<(), BrokerError> {
        for index in first..end {
            let partition = topic.partition(index);
            self.ask_topic(&partition, Creation::Always, |reply| TopicRequest::Touch { reply }).await?;
        }
        Ok(())
    }

    fn check_partitions(&self, partitions: u32) -> Result<(), BrokerError> {
        let max = self.config().max_partitions_per_topic;
        if partitions == 0 || max.is_some_and(|max| partitions > max) {
            let message = match max {
                Some(max) => format!("Number of partitions should be between 1 and {max}"),
                None => "Number of partitions should be more than 0".to_owned(),
            };
            return Err(BrokerError::new(BrokerErrorKind::InvalidArgument, message));
        }
        Ok(())
    }

    /// `InvalidArgument` unless there are more than now; `TopicNotFound`.
    pub async fn update_partitions(&self, topic: &TopicName, partitions: u32) -> Result<(), BrokerError> {
        self.check_partitions(partitions)?;
        match self.inner().tenancy.grow_partitioned(topic, partitions).await? {
            None => Err(topic_not_found(topic)),
            Some(before) if before >= partitions => {
                let message =
                    format!("Number of new partitions must be greater than existing number of partitions ({before})");
                Err(BrokerError::new(BrokerErrorKind::InvalidArgument, message))
            }
            Some(before) => {
                let names = self.subscriptions(&topic.partition(0)).await?;
                self.create_partitions(topic, before, partitions).await?;
                for index in before..partitions {
                    for name in &names {
                        self.create_subscription(&topic.partition(index), name, Position::LATEST).await?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Deletes the partitions and the metadata. `TopicNotFound`; `PreconditionFailed` as [`Self::delete_topic`].
    pub async fn delete_partitioned_topic(&self, topic: &TopicName, force: bool) -> Result<(), BrokerError> {
        let tenancy = &self.inner().tenancy;
        let Some(metadata) = tenancy.partitioned(topic).await? else { return Err(topic_not_found(topic)) };
        for index in 0..metadata.partitions {
            let partition = topic.partition(index);
            if tenancy.managed_ledger_exists(&partition).await? {
                self.delete_topic(&partition, force).await?;
            }
        }
        tenancy.delete_partitioned(topic).await
    }

    /// `None`: not a partitioned topic (which may exist as another).
    pub async fn partitioned_metadata(
        &self,
        topic: &TopicName,
    ) -> Result<Option<PartitionedTopicMetadata>, BrokerError> {
        self.inner().tenancy.partitioned(topic).await
    }

    /// Loads the topic if need be; `TopicNotFound`.
    pub async fn topic_stats(&self, topic: &TopicName) -> Result<TopicStats, BrokerError> {
        Ok(*self.ask_topic(topic, Creation::Never, |reply| TopicRequest::Stats { reply }).await?)
    }

    pub async fn topic_internal_stats(&self, topic: &TopicName) -> Result<TopicInternalStats, BrokerError> {
        Ok(*self.ask_topic(topic, Creation::Never, |reply| TopicRequest::InternalStats { reply }).await?)
    }

    /// Closes the topic with its clients; they come back and open it again.
    pub async fn unload_topic(&self, topic: &TopicName) -> Result<(), BrokerError> {
        let (reply, answer) = oneshot::channel();
        self.shard_of(topic).post(Command::Unload { topic: topic.clone(), reply });
        answer.await.unwrap_or_else(|_| Err(BrokerError::stopping()))
    }

    pub async fn subscriptions(&self, topic: &TopicName) -> Result<Vec<String>, BrokerError> {
        self.ask_topic(topic, Creation::Never, |reply| TopicRequest::Subscriptions { reply }).await
    }

    /// `AlreadyExists`; [`Position::EARLIEST`] and [`Position::LATEST`] are allowed. The topic comes into being if that is
    /// allowed.
    pub async fn create_subscription(
        &self,
        topic: &TopicName,
        subscription: &str,
        at: Position,
    ) -> Result<(), BrokerError> {
        let name = subscription.to_owned();
        let ask = |reply| TopicRequest::CreateSubscription { name, at, reply };
        self.ask_topic(topic, Creation::IfAllowed, ask).await
    }

    /// `PreconditionFailed` with consumers unless `force`; `SubscriptionNotFound`.
    pub async fn delete_subscription(
        &self,
        topic: &TopicName,
        subscription: &str,
        force: bool,
    ) -> Result<(), BrokerError> {
        let name = subscription.to_owned();
        let ask = |reply| TopicRequest::DeleteSubscription { name, force, reply };
        self.ask_topic(topic, Creation::Never, ask).await
    }

    /// Acknowledges everything.
    pub async fn skip_all(&self, topic: &TopicName, subscription: &str) -> Result<(), BrokerError> {
        let subscription = subscription.to_owned();
        self.ask_topic(topic, Creation::Never, |reply| TopicRequest::SkipAll { subscription, reply }).await
    }

    /// The last entry; (-1,-1) or entry -1 when there is none.
    pub async fn last_message_id(&self, topic: &TopicName) -> Result<Position, BrokerError> {
        self.ask_topic(topic, Creation::Never, |reply| TopicRequest::LastMessageId { reply }).await
    }

    /// Numbers of all open topics.
    pub async fn topic_metrics(&self) -> Vec<TopicMetrics> {
        let mut all = Vec::new();
        for shard in self.all_shards() {
            let (reply, answer) = oneshot::channel();
            shard.post(Command::Metrics { reply });
            // A shard that has stopped has no topics.
            all.extend(answer.await.unwrap_or_default());
        }
        all
    }

    /// Brokers that are registered, as `host:port` of their admin REST.
    pub async fn brokers(&self) -> Result<Vec<String>, BrokerError> {
        self.inner().tenancy.brokers().await
    }
}

/// Topics of the brokers themselves: left out of lists.
fn is_system(topic: &TopicName) -> bool {
    let base = topic.partitioned_topic();
    let name = base.local_name();
    name == "__change_events"
        || name.starts_with("__transaction_")
        || name.ends_with("__transaction_pending_ack")
        || base.namespace_str() == "pulsar/system" && name == "transaction_coordinator_assign"
}
