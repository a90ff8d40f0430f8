//! Which policies a namespace may have: nothing that no part of this version acts on is accepted.

use axum::http::StatusCode;
use broker::door::{Policies, RetentionPolicies};
use serde_json::Value;

use crate::reply::Refusal;

/// Values with which clients spell out the original's defaults; all others say nothing by being empty.
const DEFAULTS: [(&str, &[&str]); 3] = [
    ("subscription_auth_mode", &["None"]),
    ("schema_compatibility_strategy", &["UNDEFINED", "FULL", "Full"]),
    ("schema_auto_update_compatibility_strategy", &["Full"]),
];

/// Refuses what would have no effect: 501 with the policy's name.
pub(crate) fn check(policies: &Policies, own_cluster: &str) -> Result<(), Refusal> {
    if policies.replication_clusters.iter().any(|cluster| cluster != own_cluster) {
        let reason =
            format!("geo-replication is not supported yet: `replication_clusters` may hold `{own_cluster}` only");
        return Err(Refusal::new(StatusCode::NOT_IMPLEMENTED, reason));
    }
    if policies.deleted {
        return Err(Refusal::new(StatusCode::PRECONDITION_FAILED, "a namespace cannot be created as deleted"));
    }
    if let Some(retention) = &policies.retention_policies {
        check_retention(retention)?;
    }
    match policies.rest.iter().find(|(policy, value)| !is_without_effect(policy, value, own_cluster)) {
        None => Ok(()),
        Some((policy, _)) => {
            Err(Refusal::new(StatusCode::NOT_IMPLEMENTED, format!("policy `{policy}` is not supported yet")))
        }
    }
}

pub(crate) fn check_retention(retention: &RetentionPolicies) -> Result<(), Refusal> {
    // A limit that is zero beside one that is not would keep nothing, which nobody means.
    if (retention.retention_time_in_minutes == 0) != (retention.retention_size_in_mb == 0) {
        let reason = "Invalid Retention Policy: time and size must both be zero or both not be zero";
        return Err(Refusal::new(StatusCode::PRECONDITION_FAILED, reason));
    }
    Ok(())
}

/// Whether leaving the policy out would mean the same.
fn is_without_effect(policy: &str, value: &Value, own_cluster: &str) -> bool {
    match policy {
        // Labels of the user: they are kept and shown, and do nothing in the original, either.
        "properties" => true,
        "allowed_clusters" => value.as_array().is_some_and(|all| all.iter().all(|cluster| cluster == own_cluster)),
        "is_allow_auto_update_schema" => matches!(value, Value::Null | Value::Bool(true)),
        "offload_threshold" | "offload_threshold_in_seconds" => value.is_null() || value == -1,
        _ => {
            let default = DEFAULTS.iter().find(|(name, _)| *name == policy);
            is_empty(value)
                || default.is_some_and(|(_, texts)| value.as_str().is_some_and(|text| texts.contains(&text)))
        }
    }
}

/// Null, false, zero, or nothing but such inside.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(set) => !set,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.iter().all(is_empty),
        Value::Object(fields) => fields.values().all(is_empty),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_without_effect_are_refused_by_name() {
        let check = |body: &str, expected: &str| {
            let policies: Policies = serde_json::from_str(body).unwrap();
            let got = match check(&policies, "here") {
                Ok(()) => "fine".to_owned(),
                Err(refusal) => refusal.line(),
            };
            assert_eq!(got, expected, "{body}");
        };
        check("{}", "fine");
        check(r#"{"replication_clusters":["here"],"allowed_clusters":["here"],"bundles":{"numBundles":8}}"#, "fine");
        check(r#"{"retention_policies":{"retentionTimeInMinutes":-1,"retentionSizeInMB":-1}}"#, "fine");
        check(r#"{"max_producers_per_topic":3,"encryption_required":true,"properties":{"team":"a"}}"#, "fine");
        // What the original's command line and the Go client send when nothing was asked for.
        check(
            r#"{"auth_policies":{"namespace_auth":{},"destination_auth":{},"subscription_auth_roles":{}},
                "backlog_quota_map":{},"persistence":null,"message_ttl_in_seconds":null,"offload_threshold":-1,
                "offload_threshold_in_seconds":-1,"subscription_auth_mode":"None","schema_validation_enforced":false,
                "schema_compatibility_strategy":"UNDEFINED","is_allow_auto_update_schema":null,"max_topics_per_namespace":0}"#,
            "fine",
        );
        check(r#"{"schema_auto_update_compatibility_strategy":"Full","schema_compatibility_strategy":"Full"}"#, "fine");

        let unsupported = |policy: &str| format!("501 policy `{policy}` is not supported yet");
        check(r#"{"message_ttl_in_seconds":60}"#, &unsupported("message_ttl_in_seconds"));
        check(
            r#"{"backlog_quota_map":{"destination_storage":{"limitSize":10,"policy":"producer_exception"}}}"#,
            &unsupported("backlog_quota_map"),
        );
        check(r#"{"deduplicationEnabled":true}"#, &unsupported("deduplicationEnabled"));
        check(r#"{"max_topics_per_namespace":5}"#, &unsupported("max_topics_per_namespace"));
        check(r#"{"is_allow_auto_update_schema":false}"#, &unsupported("is_allow_auto_update_schema"));
        check(r#"{"offload_threshold":0}"#, &unsupported("offload_threshold"));
        check(r#"{"auth_policies":{"namespace_auth":{"me":["produce"]}}}"#, &unsupported("auth_policies"));
        check(r#"{"of_a_later_version":1}"#, &unsupported("of_a_later_version"));
        check(
            r#"{"replication_clusters":["here","there"]}"#,
            "501 geo-replication is not supported yet: `replication_clusters` may hold `here` only",
        );
        check(r#"{"deleted":true}"#, "412 a namespace cannot be created as deleted");
        check(
            r#"{"retention_policies":{"retentionTimeInMinutes":5}}"#,
            "412 Invalid Retention Policy: time and size must both be zero or both not be zero",
        );
    }
}
