//! Which topics there are.

use metadata::Expected;
use pulsar_proto::topic_name::decode_form;
use pulsar_proto::{Domain, NamespaceName, TopicName};

use super::{PartitionedTopicMetadata, Tenancy, metadata_error};
use crate::door::BrokerError;

fn partitioned_path(topic: &TopicName) -> String {
    let domain = topic.domain().as_str();
    format!("/admin/partitioned-topics/{}/{domain}/{}", topic.namespace_str(), topic.encoded_local_name())
}

impl Tenancy {
    /// `None`: not a partitioned topic (or one that is being deleted).
    pub(crate) async fn partitioned(&self, topic: &TopicName) -> Result<Option<PartitionedTopicMetadata>, BrokerError> {
        let metadata = self.read::<PartitionedTopicMetadata>(&partitioned_path(topic)).await?;
        Ok(metadata.map(|(metadata, _)| metadata).filter(|metadata| !metadata.deleted))
    }

    /// Answers false when it is there already.
    pub(crate) async fn create_partitioned(
        &self,
        topic: &TopicName,
        metadata: &PartitionedTopicMetadata,
    ) -> Result<bool, BrokerError> {
        self.create_object(&partitioned_path(topic), metadata).await
    }

    /// Sets the count if it grows. `None`: there is no such topic; otherwise the count before.
    pub(crate) async fn grow_partitioned(
        &self,
        topic: &TopicName,
        partitions: u32,
    ) -> Result<Option<u32>, BrokerError> {
        let path = partitioned_path(topic);
        let Some((mut metadata, version)) = self.read::<PartitionedTopicMetadata>(&path).await? else {
            return Ok(None);
        };
        let before = metadata.partitions;
        if partitions > before {
            metadata.partitions = partitions;
            self.write(&path, &metadata, Expected::Version(version)).await?;
        }
        Ok(Some(before))
    }

    pub(crate) async fn delete_partitioned(&self, topic: &TopicName) -> Result<(), BrokerError> {
        let path = partitioned_path(topic);
        match self.store.delete(&path, Expected::Any).await {
            Err(error) if !error.is_not_found() => Err(metadata_error(&path, error)),
            _ => Ok(()),
        }
    }

    /// Whether the topic's managed ledger is there. Partitions of a partitioned topic come into being on first use.
    pub(crate) async fn managed_ledger_exists(&self, topic: &TopicName) -> Result<bool, BrokerError> {
        let path = format!("/managed-ledgers/{}", topic.managed_ledger_name());
        let node = self.store.get(&path).await.map_err(|error| metadata_error(&path, error))?;
        Ok(node.is_some_and(|node| !node.value.is_empty()))
    }

    /// Names of the persistent topics with a managed ledger, in the order of the metadata.
    pub(crate) async fn persistent_topics(&self, namespace: &NamespaceName) -> Result<Vec<TopicName>, BrokerError> {
        let path = format!("/managed-ledgers/{}/persistent", namespace.as_str());
        Ok(decode_names(Domain::Persistent, namespace, &self.children(&path).await?))
    }

    pub(crate) async fn partitioned_topics(&self, namespace: &NamespaceName) -> Result<Vec<TopicName>, BrokerError> {
        let path = format!("/admin/partitioned-topics/{}/persistent", namespace.as_str());
        Ok(decode_names(Domain::Persistent, namespace, &self.children(&path).await?))
    }
}

fn decode_names(domain: Domain, namespace: &NamespaceName, encoded: &[String]) -> Vec<TopicName> {
    // A node whose name no topic could have was not written by a broker: it is no topic.
    let decode = |name: &String| TopicName::of(domain, namespace, &decode_form(name)?).ok();
    encoded.iter().filter_map(decode).collect()
}
