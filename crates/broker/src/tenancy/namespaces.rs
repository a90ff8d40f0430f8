//! Clusters, tenants and namespaces: created, listed, changed, remembered.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use metadata::{Event, Expected, Watch};
use pulsar_proto::NamespaceName;

use super::{
    AutoTopicCreationOverride, Bundles, BundlesData, ClusterData, Policies, Tenancy, TenantInfo, metadata_error,
};
use crate::door::{BrokerError, BrokerErrorKind};

/// What is remembered of a namespace.
#[derive(Debug)]
pub(crate) struct Namespace {
    pub policies: Policies,
    pub bundles: Bundles,
}

/// Whose policies an event may have changed.
pub(crate) enum Changed {
    Nothing,
    Namespace(NamespaceName),
    Anything,
}

impl Namespace {
    /// A broker's own namespace: it always exists, has no node in the metadata, is one bundle, and creates topics whatever
    /// the broker's settings say.
    pub(crate) fn heartbeat() -> Namespace {
        let boundaries = ["0x00000000", "0xffffffff"].map(str::to_owned).to_vec();
        let bundles =
            Bundles::parse(&BundlesData { boundaries, num_bundles: 1 }).expect("the whole range is one bundle");
        let allow = AutoTopicCreationOverride { allow_auto_topic_creation: true, ..Default::default() };
        Namespace { policies: Policies { auto_topic_creation_override: Some(allow), ..Default::default() }, bundles }
    }
}

#[derive(serde::Serialize, serde::Deserialize, Default)]
#[serde(default)]
struct LocalPolicies {
    #[serde(skip_serializing_if = "Option::is_none")]
    bundles: Option<BundlesData>,
    migrated: bool,
    #[serde(flatten)]
    rest: serde_json::Map<String, serde_json::Value>,
}

fn policies_path(namespace: &NamespaceName) -> String {
    format!("/admin/policies/{}", namespace.as_str())
}

fn not_found(what: &str, name: &str) -> BrokerError {
    BrokerError::new(BrokerErrorKind::NotFound, format!("{what} `{name}` does not exist"))
}

fn exists(what: &str, name: &str) -> BrokerError {
    BrokerError::new(BrokerErrorKind::AlreadyExists, format!("{what} `{name}` already exists"))
}

fn check_name(what: &str, name: &str) -> Result<(), BrokerError> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "-=:._".contains(c);
    if name.is_empty() || !name.chars().all(fine) {
        let message = format!("{what} name `{name}` is not valid: letters, digits and `-=:._` are allowed");
        return Err(BrokerError::new(BrokerErrorKind::InvalidArgument, message));
    }
    Ok(())
}

impl Tenancy {
    /// The namespace, or `None` when there is none (or it is being deleted).
    pub(crate) async fn namespace(&self, name: &NamespaceName) -> Result<Option<Arc<Namespace>>, BrokerError> {
        if let Some(namespace) = self.namespaces.read().get(name.as_str()) {
            return Ok(Some(namespace.clone()));
        }
        let epoch = self.cache_epoch.load(Ordering::Acquire);
        let Some((policies, _)) = self.read::<Policies>(&policies_path(name)).await? else { return Ok(None) };
        if policies.deleted {
            return Ok(None);
        }
        let bundles = self.bundles(name, &policies).await?;
        let namespace = Arc::new(Namespace { policies, bundles });
        let mut cache = self.namespaces.write();
        // An event that came in between may be about what was read above.
        if self.cache_epoch.load(Ordering::Acquire) == epoch {
            cache.insert(name.as_str().to_owned(), namespace.clone());
        }
        Ok(Some(namespace))
    }

    /// The authoritative boundaries; written on first use from the namespace's policies.
    async fn bundles(&self, name: &NamespaceName, policies: &Policies) -> Result<Bundles, BrokerError> {
        let path = format!("/admin/local-policies/{}", name.as_str());
        let parse = |data: &BundlesData| {
            Bundles::parse(data)
                .map_err(|reason| BrokerError::new(BrokerErrorKind::Metadata, format!("cannot use `{path}`: {reason}")))
        };
        if let Some((LocalPolicies { bundles: Some(data), .. }, _)) = self.read::<LocalPolicies>(&path).await? {
            return parse(&data);
        }
        let bundles = match &policies.bundles {
            Some(data) if !data.boundaries.is_empty() => parse(data)?,
            _ => Bundles::even(1),
        };
        let local = LocalPolicies { bundles: Some(bundles.data()), ..LocalPolicies::default() };
        if !self.create_object(&path, &local).await? {
            // Another broker was faster; its boundaries count.
            if let Some((LocalPolicies { bundles: Some(data), .. }, _)) = self.read::<LocalPolicies>(&path).await? {
                return parse(&data);
            }
        }
        Ok(bundles)
    }

    pub(crate) fn watch(&self) -> Watch {
        self.store.watch("/admin")
    }

    /// Forgets what an event is about.
    pub(crate) fn on_event(&self, event: &Event) -> Changed {
        let mut cache = self.namespaces.write();
        self.cache_epoch.fetch_add(1, Ordering::AcqRel);
        match event.path() {
            Some(path) => {
                let below =
                    path.strip_prefix("/admin/policies/").or_else(|| path.strip_prefix("/admin/local-policies/"));
                let Some(namespace) = below else { return Changed::Nothing };
                cache.remove(namespace);
                // A tenant has its node there, too.
                NamespaceName::parse(namespace).map_or(Changed::Nothing, Changed::Namespace)
            }
            None => {
                cache.clear();
                Changed::Anything
            }
        }
    }

    /// All there are.
    pub(crate) async fn all_namespaces(&self) -> Result<Vec<NamespaceName>, BrokerError> {
        let mut all = Vec::new();
        for tenant in self.tenants().await? {
            all.extend(self.namespaces(&tenant).await?.iter().filter_map(|name| NamespaceName::parse(name).ok()));
        }
        Ok(all)
    }

    pub(crate) async fn brokers(&self) -> Result<Vec<String>, BrokerError> {
        self.children("/loadbalance/brokers").await
    }

    pub(crate) async fn clusters(&self) -> Result<Vec<String>, BrokerError> {
        self.children("/admin/clusters").await
    }

    pub(crate) async fn cluster(&self, cluster: &str) -> Result<Option<ClusterData>, BrokerError> {
        Ok(self.read(&format!("/admin/clusters/{cluster}")).await?.map(|(data, _)| data))
    }

    pub(crate) async fn create_cluster(&self, cluster: &str, data: &ClusterData) -> Result<(), BrokerError> {
        check_name("cluster", cluster)?;
        match self.create_object(&format!("/admin/clusters/{cluster}"), data).await? {
            true => Ok(()),
            false => Err(exists("cluster", cluster)),
        }
    }

    pub(crate) async fn update_cluster(&self, cluster: &str, data: &ClusterData) -> Result<(), BrokerError> {
        let path = format!("/admin/clusters/{cluster}");
        let Some((_, version)) = self.read::<ClusterData>(&path).await? else {
            return Err(not_found("cluster", cluster));
        };
        self.write(&path, data, Expected::Version(version)).await
    }

    pub(crate) async fn tenants(&self) -> Result<Vec<String>, BrokerError> {
        self.children("/admin/policies").await
    }

    pub(crate) async fn tenant(&self, tenant: &str) -> Result<Option<TenantInfo>, BrokerError> {
        Ok(self.read(&format!("/admin/policies/{tenant}")).await?.map(|(info, _)| info))
    }

    async fn check_tenant(&self, tenant: &str, info: &TenantInfo) -> Result<(), BrokerError> {
        check_name("tenant", tenant)?;
        if info.allowed_clusters.is_empty() {
            let message = format!("tenant `{tenant}` needs at least one allowed cluster");
            return Err(BrokerError::new(BrokerErrorKind::InvalidArgument, message));
        }
        let known = self.clusters().await?;
        match info.allowed_clusters.iter().find(|cluster| *cluster != "global" && !known.contains(cluster)) {
            Some(unknown) => {
                Err(BrokerError::new(BrokerErrorKind::InvalidArgument, format!("cluster `{unknown}` does not exist")))
            }
            None => Ok(()),
        }
    }

    pub(crate) async fn create_tenant(&self, tenant: &str, info: &TenantInfo) -> Result<(), BrokerError> {
        self.check_tenant(tenant, info).await?;
        match self.create_object(&format!("/admin/policies/{tenant}"), info).await? {
            true => Ok(()),
            false => Err(exists("tenant", tenant)),
        }
    }

    pub(crate) async fn update_tenant(&self, tenant: &str, info: &TenantInfo) -> Result<(), BrokerError> {
        let path = format!("/admin/policies/{tenant}");
        let Some((_, version)) = self.read::<TenantInfo>(&path).await? else { return Err(not_found("tenant", tenant)) };
        self.check_tenant(tenant, info).await?;
        self.write(&path, info, Expected::Version(version)).await
    }

    pub(crate) async fn delete_tenant(&self, tenant: &str) -> Result<(), BrokerError> {
        let path = format!("/admin/policies/{tenant}");
        let Some((_, version)) = self.read::<TenantInfo>(&path).await? else { return Err(not_found("tenant", tenant)) };
        match self.store.delete(&path, Expected::Version(version)).await {
            Ok(()) => Ok(()),
            Err(metadata::MetadataError::NotEmpty { .. }) => {
                let message = format!("tenant `{tenant}` still has namespaces");
                Err(BrokerError::new(BrokerErrorKind::PreconditionFailed, message))
            }
            Err(error) => Err(metadata_error(&path, error)),
        }
    }

    pub(crate) async fn namespaces(&self, tenant: &str) -> Result<Vec<String>, BrokerError> {
        if self.tenant(tenant).await?.is_none() {
            return Err(not_found("tenant", tenant));
        }
        let mut names = Vec::new();
        for child in self.children(&format!("/admin/policies/{tenant}")).await? {
            let path = format!("/admin/policies/{tenant}/{child}");
            if self.read::<Policies>(&path).await?.is_some() {
                names.push(format!("{tenant}/{child}"));
                continue;
            }
            // The old form: the child is a cluster.
            names.extend(self.children(&path).await?.iter().map(|namespace| format!("{tenant}/{child}/{namespace}")));
        }
        Ok(names)
    }

    pub(crate) async fn create_namespace(
        &self,
        namespace: &NamespaceName,
        policies: Option<Policies>,
    ) -> Result<(), BrokerError> {
        if self.tenant(namespace.tenant()).await?.is_none() {
            return Err(not_found("tenant", namespace.tenant()));
        }
        let defaults = self.default_policies();
        let mut policies = policies.unwrap_or_default();
        if policies.replication_clusters.is_empty() {
            policies.replication_clusters = defaults.replication_clusters;
        }
        policies.bundles = match policies.bundles.take() {
            Some(data) if !data.boundaries.is_empty() => Some(
                Bundles::parse(&data)
                    .map_err(|reason| BrokerError::new(BrokerErrorKind::InvalidArgument, reason))?
                    .data(),
            ),
            Some(data) if data.num_bundles > 0 => Some(Bundles::even(data.num_bundles).data()),
            _ => defaults.bundles,
        };
        match self.create_object(&policies_path(namespace), &policies).await? {
            true => Ok(()),
            false => Err(exists("namespace", namespace.as_str())),
        }
    }

    pub(crate) async fn update_namespace(
        &self,
        namespace: &NamespaceName,
        mut change: impl FnMut(&mut Policies) + Send,
    ) -> Result<(), BrokerError> {
        let path = policies_path(namespace);
        loop {
            let Some((mut policies, version)) = self.read::<Policies>(&path).await? else {
                return Err(not_found("namespace", namespace.as_str()));
            };
            change(&mut policies);
            match self.store.put(&path, super::encode(&policies), Expected::Version(version)).await {
                Ok(_) => return Ok(()),
                Err(error) if error.is_bad_version() => {}
                Err(error) => return Err(metadata_error(&path, error)),
            }
        }
    }

    /// The namespace's nodes; the caller has seen to it that there are no topics.
    pub(crate) async fn delete_namespace(&self, namespace: &NamespaceName) -> Result<(), BrokerError> {
        let path = policies_path(namespace);
        if self.read::<Policies>(&path).await?.is_none() {
            return Err(not_found("namespace", namespace.as_str()));
        }
        for path in [
            format!("/admin/partitioned-topics/{}", namespace.as_str()),
            format!("/managed-ledgers/{}", namespace.as_str()),
            format!("/admin/local-policies/{}", namespace.as_str()),
            path,
        ] {
            self.store.delete_recursive(&path).await.map_err(|error| metadata_error(&path, error))?;
        }
        Ok(())
    }
}
