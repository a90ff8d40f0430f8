//! Tells the cluster that this broker is here.

use bytes::Bytes;
use metadata::{CreateMode, Expected, MetadataError, MetadataStore};
use serde_json::json;

use crate::config::BrokerConfig;

/// Creates the ephemeral node under which the load balancers of brokers find each other. A broker works without it, so a
/// failure is only told.
pub(super) async fn register(store: &dyn MetadataStore, config: &BrokerConfig) {
    let path = format!("/loadbalance/brokers/{}", config.broker_id);
    let data = json!({
        "webServiceUrl": config.web_service_url,
        "webServiceUrlTls": config.web_service_url_tls,
        "pulsarServiceUrl": config.service_url,
        "pulsarServiceUrlTls": config.service_url_tls,
        "persistentTopicsEnabled": true,
        "nonPersistentTopicsEnabled": false,
        "advertisedListeners": {},
        "protocols": {},
    });
    let value = Bytes::from(data.to_string());
    let mut created = store.create(&path, value.clone(), CreateMode::Ephemeral).await;
    if matches!(created, Err(MetadataError::BadVersion { .. })) && store.delete(&path, Expected::Any).await.is_ok() {
        // Left by a run of this broker whose session has not expired yet.
        created = store.create(&path, value, CreateMode::Ephemeral).await;
    }
    if let Err(error) = created {
        tracing::warn!(broker = %config.broker_id, %error, "cannot register this broker");
    }
}
