use bookkeeper_proto::layout::{
    AVAILABLE_PATH, HIERARCHICAL_LAYOUT, INSTANCE_ID_PATH, LAYOUT_PATH, LEDGERS_ROOT, READ_ONLY_PATH,
};
use bytes::Bytes;
use metadata::{Expected, MetadataError, MetadataStore};

use crate::LedgerError;

/// Prepares a metadata store for a cluster, unless it is prepared already. Returns the cluster's instance id.
///
/// `new_instance_id` (a UUID in its 36 character form) is used for a new cluster only. Idempotent; a half-finished run of an
/// earlier process is completed.
/// # Errors
/// [`LedgerError::OtherLayout`]: the ledgers in this store lie elsewhere than this client would look for them.
pub async fn initialize(store: &dyn MetadataStore, new_instance_id: &str) -> Result<String, LedgerError> {
    for path in [LEDGERS_ROOT, AVAILABLE_PATH, READ_ONLY_PATH] {
        get_or_create(store, path, "").await?;
    }
    let instance_id = get_or_create(store, INSTANCE_ID_PATH, new_instance_id).await?;
    let layout = get_or_create(store, LAYOUT_PATH, HIERARCHICAL_LAYOUT).await?;
    if layout != HIERARCHICAL_LAYOUT {
        return Err(LedgerError::OtherLayout { found: layout, expected: HIERARCHICAL_LAYOUT });
    }
    Ok(instance_id)
}

/// The value of the node, which is `value` if it was not there before.
async fn get_or_create(store: &dyn MetadataStore, path: &str, value: &str) -> Result<String, LedgerError> {
    let failed = |doing| move |source| LedgerError::Metadata { doing, path: path.to_owned(), source };
    if let Some(node) = store.get(path).await.map_err(failed("read"))? {
        return Ok(String::from_utf8_lossy(&node.value).into_owned());
    }
    match store.put(path, Bytes::copy_from_slice(value.as_bytes()), Expected::Absent).await {
        Ok(_) => Ok(value.to_owned()),
        // Another process initializes at the same time: what it wrote counts.
        Err(MetadataError::BadVersion { .. }) => {
            let node = store.get(path).await.map_err(failed("read"))?;
            Ok(node.map(|node| String::from_utf8_lossy(&node.value).into_owned()).unwrap_or_default())
        }
        Err(error) => Err(failed("create")(error)),
    }
}
