//! What a new cluster finds in its metadata store.

use bytes::Bytes;
use futures_util::future::try_join_all;
use metadata::Expected;

use super::{Bundles, ClusterData, PartitionedTopicMetadata, Policies, Tenancy, TenantInfo, encode, metadata_error};
use crate::door::BrokerError;

/// Where the cluster is reached.
pub(crate) struct ClusterUrls<'a> {
    pub web_service_url: &'a str,
    pub service_url: &'a str,
}

impl Tenancy {
    /// Creates what is missing of cluster, tenants `public` and `pulsar`, namespaces `public/default` and `pulsar/system`.
    /// What is there is not touched.
    pub(crate) async fn initialise(&self, urls: ClusterUrls<'_>) -> Result<(), BrokerError> {
        let cluster = ClusterData {
            service_url: Some(urls.web_service_url.to_owned()),
            broker_service_url: Some(urls.service_url.to_owned()),
            ..ClusterData::default()
        };
        let tenant = TenantInfo { allowed_clusters: vec![self.cluster.clone()], ..TenantInfo::default() };
        let policies = self.default_policies();
        let coordinators = PartitionedTopicMetadata { partitions: 1, ..PartitionedTopicMetadata::default() };
        let nodes = [
            (format!("/admin/clusters/{}", self.cluster), encode(&cluster)),
            ("/admin/policies/public".to_owned(), encode(&tenant)),
            ("/admin/policies/pulsar".to_owned(), encode(&tenant)),
            ("/admin/policies/public/default".to_owned(), encode(&policies)),
            ("/admin/policies/pulsar/system".to_owned(), encode(&policies)),
            (
                "/admin/partitioned-topics/pulsar/system/persistent/transaction_coordinator_assign".to_owned(),
                encode(&coordinators),
            ),
        ];
        // All at once: they share one commit.
        try_join_all(nodes.iter().map(|(path, value)| self.put_missing(path, value))).await?;
        Ok(())
    }

    async fn put_missing(&self, path: &str, value: &Bytes) -> Result<(), BrokerError> {
        loop {
            let expected = match self.store.get(path).await.map_err(|error| metadata_error(path, error))? {
                None => Expected::Absent,
                // A child came first and brought its parent along.
                Some(node) if node.value.is_empty() => Expected::Version(node.stat.version),
                Some(_) => return Ok(()),
            };
            match self.store.put(path, value.clone(), expected).await {
                Ok(_) => return Ok(()),
                Err(error) if error.is_bad_version() => {}
                Err(error) => return Err(metadata_error(path, error)),
            }
        }
    }

    /// What a namespace gets when its creator says nothing.
    pub(crate) fn default_policies(&self) -> Policies {
        Policies {
            replication_clusters: vec![self.cluster.clone()],
            bundles: Some(Bundles::even(self.default_bundles).data()),
            ..Policies::default()
        }
    }
}
