use metadata::MetadataStore;

use crate::LedgerError;

/// Prepares a metadata store for a cluster, unless it is prepared already. Returns the cluster's instance id.
///
/// `new_instance_id` (a UUID in its 36 character form) is used for a new cluster only. Idempotent; a half-finished run of an
/// earlier process is completed.
/// # Errors
/// [`LedgerError::OtherLayout`]: the ledgers in this store lie elsewhere than this client would look for them.
pub async fn initialize(store: &dyn MetadataStore, new_instance_id: &str) -> Result<String, LedgerError> {
    todo!()
}
