//! Clusters, tenants, namespaces and partitioned topics as the metadata store holds them.

mod bundles;
mod data;
mod init;
mod namespaces;
mod topics;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use metadata::{Expected, MetadataError, MetadataStore};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::door::{BrokerError, BrokerErrorKind};

pub(crate) use self::bundles::{Bundle, Bundles};
pub use self::data::{
    AutoSubscriptionCreationOverride, AutoTopicCreationOverride, BundlesData, ClusterData, PartitionedTopicMetadata,
    Policies, RetentionPolicies, TenantInfo,
};
pub(crate) use self::init::ClusterUrls;
pub(crate) use self::namespaces::{Changed, Namespace};

/// Reads and writes what is below `/admin`, and remembers namespaces until they change.
pub(crate) struct Tenancy {
    store: Arc<dyn MetadataStore>,
    cluster: String,
    default_bundles: u32,
    namespaces: RwLock<FxHashMap<String, Arc<Namespace>>>,
    /// Counts invalidations: what was read before one must not be cached after it.
    cache_epoch: AtomicU64,
}

impl Tenancy {
    pub(crate) fn new(store: Arc<dyn MetadataStore>, cluster: String, default_bundles: u32) -> Self {
        Self { store, cluster, default_bundles, namespaces: RwLock::default(), cache_epoch: AtomicU64::new(0) }
    }

    async fn read<T: DeserializeOwned>(&self, path: &str) -> Result<Option<(T, i64)>, BrokerError> {
        let Some(node) = self.store.get(path).await.map_err(|error| metadata_error(path, error))? else {
            return Ok(None);
        };
        // Parents come into being with empty values: not an object of its own.
        if node.value.is_empty() {
            return Ok(None);
        }
        let value = serde_json::from_slice(&node.value).map_err(|error| {
            // What cannot be read is not replaced by a default: that could let strangers in or lose data.
            BrokerError::new(BrokerErrorKind::Metadata, format!("cannot parse metadata node `{path}`: {error}"))
        })?;
        Ok(Some((value, node.stat.version)))
    }

    async fn write<T: Serialize>(&self, path: &str, value: &T, expected: Expected) -> Result<(), BrokerError> {
        let value = encode(value);
        self.store.put(path, value, expected).await.map(drop).map_err(|error| metadata_error(path, error))
    }

    /// Creates an object whose node may exist as an empty parent. Answers false when there is one already.
    async fn create_object<T: Serialize>(&self, path: &str, value: &T) -> Result<bool, BrokerError> {
        let expected = match self.store.get(path).await.map_err(|error| metadata_error(path, error))? {
            None => Expected::Absent,
            Some(node) if node.value.is_empty() => Expected::Version(node.stat.version),
            Some(_) => return Ok(false),
        };
        match self.store.put(path, encode(value), expected).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_bad_version() => Ok(false),
            Err(error) => Err(metadata_error(path, error)),
        }
    }

    async fn children(&self, path: &str) -> Result<Vec<String>, BrokerError> {
        self.store.children(path).await.map_err(|error| metadata_error(path, error))
    }
}

fn encode<T: Serialize>(value: &T) -> Bytes {
    Bytes::from(serde_json::to_vec(value).expect("plain structs with string keys always encode"))
}

pub(crate) fn metadata_error(path: &str, error: MetadataError) -> BrokerError {
    BrokerError::new(BrokerErrorKind::Metadata, format!("metadata of `{path}`: {error}"))
}
