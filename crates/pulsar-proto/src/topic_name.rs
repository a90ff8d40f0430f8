//! Names of topics and namespaces, and every other name that is derived from them.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Whether a topic's messages are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Domain {
    Persistent,
    NonPersistent,
}

/// A full topic name: `persistent://tenant/namespace/name`, or with a cluster before the namespace (the old form, "v1").
///
/// Cheap to clone; equal and ordered by its text.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicName {
    /// First, so that comparing compares the text; the offsets follow from it.
    full: Arc<str>,
    /// Where the parts begin, in bytes; each part but the local name ends one byte before the next begins.
    tenant_at: u32,
    cluster_at: Option<u32>,
    namespace_at: u32,
    local_at: u32,
}

/// `tenant/namespace`, or `tenant/cluster/namespace` (the old form, "v1").
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamespaceName {
    full: Arc<str>,
    cluster_at: Option<u32>,
    namespace_at: u32,
}

/// Why text does not name what it should.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error(
        "cannot parse topic `{name}`: expected `name`, `tenant/namespace/name` or `persistent://tenant/namespace/name`"
    )]
    Topic { name: String },
    #[error("cannot parse topic `{name}`: domain must be `persistent` or `non-persistent`")]
    Domain { name: String },
    #[error("cannot parse namespace `{name}`: expected `tenant/namespace`")]
    Namespace { name: String },
    #[error("cannot parse `{name}`: `{part}` must be of letters, digits and `-=:._`, and not empty")]
    Part { name: String, part: String },
    #[error("cannot parse managed ledger name `{name}`: expected `tenant/namespace/persistent/name`")]
    ManagedLedger { name: String },
}

/// Separates a topic from the index of its partition.
const PARTITION_SUFFIX: &str = "-partition-";

impl Domain {
    pub fn as_str(self) -> &'static str {
        match self {
            Domain::Persistent => "persistent",
            Domain::NonPersistent => "non-persistent",
        }
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Domain {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        match text {
            "persistent" => Ok(Domain::Persistent),
            "non-persistent" => Ok(Domain::NonPersistent),
            _ => Err(NameError::Domain { name: text.to_owned() }),
        }
    }
}

impl TopicName {
    /// Reads a full name, or completes a short one: `name` is in `public/default`, and both short forms are persistent.
    pub fn parse(name: &str) -> Result<Self, NameError> {
        if let Some((domain, rest)) = name.split_once("://") {
            let domain = domain.parse().map_err(|_| NameError::Domain { name: name.to_owned() })?;
            let parts: Vec<&str> = rest.splitn(4, '/').collect();
            return match *parts {
                [tenant, namespace, local] => Self::of_parts(name, domain, tenant, None, namespace, local),
                [tenant, cluster, namespace, local] => {
                    Self::of_parts(name, domain, tenant, Some(cluster), namespace, local)
                }
                _ => Err(NameError::Topic { name: name.to_owned() }),
            };
        }
        let parts: Vec<&str> = name.splitn(4, '/').collect();
        match *parts {
            [local] => Self::of_parts(name, Domain::Persistent, "public", None, "default", local),
            [tenant, namespace, local] => Self::of_parts(name, Domain::Persistent, tenant, None, namespace, local),
            _ => Err(NameError::Topic { name: name.to_owned() }),
        }
    }

    /// The topic `local` of a namespace; `local` is not encoded.
    pub fn of(domain: Domain, namespace: &NamespaceName, local: &str) -> Result<Self, NameError> {
        let name = format!("{domain}://{namespace}/{local}");
        // In the new form a slash in `local` would make its first part a namespace.
        if namespace.cluster().is_none() && local.contains('/') {
            return Err(NameError::Topic { name });
        }
        Self::parse(&name)
    }

    /// The topic a managed ledger belongs to: the inverse of [`managed_ledger_name`](Self::managed_ledger_name).
    pub fn from_managed_ledger_name(name: &str) -> Result<Self, NameError> {
        let error = || NameError::ManagedLedger { name: name.to_owned() };
        let parts: Vec<&str> = name.split('/').collect();
        let (namespace, domain, local) = match *parts {
            [tenant, namespace, domain, local] => (format!("{tenant}/{namespace}"), domain, local),
            [tenant, cluster, namespace, domain, local] => (format!("{tenant}/{cluster}/{namespace}"), domain, local),
            _ => return Err(error()),
        };
        let local = decode_form(local).ok_or_else(error)?;
        Self::of(domain.parse().map_err(|_| error())?, &NamespaceName::parse(&namespace)?, &local)
    }

    fn of_parts(
        name: &str,
        domain: Domain,
        tenant: &str,
        cluster: Option<&str>,
        namespace: &str,
        local: &str,
    ) -> Result<Self, NameError> {
        for part in [Some(tenant), cluster, Some(namespace)].into_iter().flatten() {
            check_part(name, part)?;
        }
        if local.is_empty() {
            return Err(NameError::Topic { name: name.to_owned() });
        }
        let mut full = String::with_capacity(32 + name.len());
        full.push_str(domain.as_str());
        full.push_str("://");
        let tenant_at = full.len() as u32;
        full.push_str(tenant);
        full.push('/');
        let cluster_at = cluster.map(|cluster| {
            let at = full.len() as u32;
            full.push_str(cluster);
            full.push('/');
            at
        });
        let namespace_at = full.len() as u32;
        full.push_str(namespace);
        full.push('/');
        let local_at = full.len() as u32;
        full.push_str(local);
        Ok(TopicName { full: full.into(), tenant_at, cluster_at, namespace_at, local_at })
    }

    /// The full name.
    pub fn as_str(&self) -> &str {
        &self.full
    }

    pub fn domain(&self) -> Domain {
        if self.full.starts_with("non-") { Domain::NonPersistent } else { Domain::Persistent }
    }

    pub fn is_persistent(&self) -> bool {
        self.domain() == Domain::Persistent
    }

    pub fn tenant(&self) -> &str {
        let end = self.cluster_at.unwrap_or(self.namespace_at) as usize - 1;
        &self.full[self.tenant_at as usize..end]
    }

    /// Only names of the old form have one.
    pub fn cluster(&self) -> Option<&str> {
        self.cluster_at.map(|at| &self.full[at as usize..self.namespace_at as usize - 1])
    }

    pub fn namespace(&self) -> NamespaceName {
        NamespaceName {
            full: self.namespace_str().into(),
            cluster_at: self.cluster_at.map(|at| at - self.tenant_at),
            namespace_at: self.namespace_at - self.tenant_at,
        }
    }

    /// `tenant/namespace` (old form: `tenant/cluster/namespace`).
    pub fn namespace_str(&self) -> &str {
        &self.full[self.tenant_at as usize..self.local_at as usize - 1]
    }

    /// What follows the namespace, partition suffix included.
    pub fn local_name(&self) -> &str {
        &self.full[self.local_at as usize..]
    }

    /// The local name as in metadata paths.
    pub fn encoded_local_name(&self) -> String {
        encode_form(self.local_name())
    }

    /// The index, if this names one partition of a topic: what follows the last `-partition-`, without leading zeros.
    pub fn partition_index(&self) -> Option<u32> {
        self.split_partition().map(|(_, index)| index)
    }

    pub fn is_partition(&self) -> bool {
        self.partition_index().is_some()
    }

    /// The topic a partition belongs to; itself, if it is not a partition.
    pub fn partitioned_topic(&self) -> TopicName {
        match self.split_partition() {
            Some((base, _)) => TopicName { full: base.into(), ..*self },
            None => self.clone(),
        }
    }

    /// The name of one of its partitions; itself, if it already is that partition.
    pub fn partition(&self, index: u32) -> TopicName {
        if self.partition_index() == Some(index) {
            return self.clone();
        }
        TopicName { full: format!("{}{PARTITION_SUFFIX}{index}", self.full).into(), ..*self }
    }

    fn split_partition(&self) -> Option<(&str, u32)> {
        let (base, index) = self.local_name().rsplit_once(PARTITION_SUFFIX)?;
        let canonical = index == "0" || (index.bytes().all(|byte| byte.is_ascii_digit()) && !index.starts_with('0'));
        // Clients hold the index in an int32.
        let index: i32 = if canonical { index.parse().ok()? } else { return None };
        if base.is_empty() {
            return None;
        }
        Some((&self.full[..self.local_at as usize + base.len()], index as u32))
    }

    /// `tenant/namespace/persistent/encoded name`: the topic's name below `/managed-ledgers`.
    pub fn managed_ledger_name(&self) -> String {
        format!("{}/{}/{}", self.namespace_str(), self.domain(), self.encoded_local_name())
    }

    /// The name of the topic's schema; all partitions share it.
    pub fn schema_id(&self) -> String {
        let base = self.split_partition().map_or(self.as_str(), |(base, _)| base);
        format!("{}/{}", self.namespace_str(), encode_form(&base[self.local_at as usize..]))
    }

    /// Decides the bundle of the namespace the topic belongs to.
    pub fn bundle_hash(&self) -> u32 {
        crc32fast::hash(self.full.as_bytes())
    }

    /// `domain/namespace/encoded name`, as in REST paths and `lookup` URLs.
    pub fn rest_path(&self) -> String {
        format!("{}/{}/{}", self.domain(), self.namespace_str(), self.encoded_local_name().replace('+', "%20"))
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.full)
    }
}

impl fmt::Debug for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.full)
    }
}

impl FromStr for TopicName {
    type Err = NameError;

    fn from_str(name: &str) -> Result<Self, NameError> {
        Self::parse(name)
    }
}

impl NamespaceName {
    /// Reads `tenant/namespace` or `tenant/cluster/namespace`.
    pub fn parse(name: &str) -> Result<Self, NameError> {
        let parts: Vec<&str> = name.splitn(4, '/').collect();
        for part in &parts {
            check_part(name, part)?;
        }
        let (cluster_at, namespace_at) = match *parts {
            [tenant, _] => (None, tenant.len() + 1),
            [tenant, cluster, _] => (Some(tenant.len() as u32 + 1), tenant.len() + cluster.len() + 2),
            _ => return Err(NameError::Namespace { name: name.to_owned() }),
        };
        Ok(NamespaceName { full: name.into(), cluster_at, namespace_at: namespace_at as u32 })
    }

    /// `tenant/namespace` (old form: `tenant/cluster/namespace`).
    pub fn as_str(&self) -> &str {
        &self.full
    }

    pub fn tenant(&self) -> &str {
        &self.full[..self.cluster_at.unwrap_or(self.namespace_at) as usize - 1]
    }

    /// Only names of the old form have one.
    pub fn cluster(&self) -> Option<&str> {
        self.cluster_at.map(|at| &self.full[at as usize..self.namespace_at as usize - 1])
    }

    /// What follows tenant and cluster.
    pub fn local_name(&self) -> &str {
        &self.full[self.namespace_at as usize..]
    }
}

impl fmt::Display for NamespaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.full)
    }
}

impl fmt::Debug for NamespaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.full)
    }
}

impl FromStr for NamespaceName {
    type Err = NameError;

    fn from_str(name: &str) -> Result<Self, NameError> {
        Self::parse(name)
    }
}

fn check_part(name: &str, part: &str) -> Result<(), NameError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-=:._".contains(&byte);
    if part.is_empty() || !part.bytes().all(allowed) {
        return Err(NameError::Part { name: name.to_owned(), part: part.to_owned() });
    }
    Ok(())
}

/// Encodes like an HTML form: a space becomes `+`, everything but letters, digits and `.-*_` becomes `%XX` of its UTF-8.
pub fn encode_form(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'*' | b'_' => out.push(char::from(byte)),
            b' ' => out.push('+'),
            _ => {
                const HEX: &[u8; 16] = b"0123456789ABCDEF";
                out.push('%');
                out.push(char::from(HEX[usize::from(byte >> 4)]));
                out.push(char::from(HEX[usize::from(byte & 15)]));
            }
        }
    }
    out
}

/// The inverse of [`encode_form`]; `None` if a `%` is not followed by two hex digits, or the result is not UTF-8.
pub fn decode_form(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains(['%', '+']) {
        return Some(Cow::Borrowed(text));
    }
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'+' => out.push(b' '),
            b'%' => {
                let high = char::from(bytes.next()?).to_digit(16)?;
                let low = char::from(bytes.next()?).to_digit(16)?;
                out.push((high << 4 | low) as u8);
            }
            _ => out.push(byte),
        }
    }
    String::from_utf8(out).ok().map(Cow::Owned)
}

#[cfg(test)]
#[path = "topic_name_tests.rs"]
mod tests;
