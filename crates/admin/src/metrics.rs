//! `/metrics/` in Prometheus' text format, with the original's names for what exists.

use std::fmt::Write as _;

use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use broker::stats::TopicMetrics;

use crate::Admin;

/// One value of a room below the broker. Values of one name follow each other.
#[derive(Clone, Debug)]
pub struct Sample {
    pub name: &'static str,
    /// `gauge` or `counter`.
    pub kind: &'static str,
    pub value: f64,
}

pub(crate) fn routes() -> Router<Admin> {
    Router::new().route("/metrics", get(|| async { Redirect::to("/metrics/") })).route("/metrics/", get(scrape))
}

async fn scrape(State(admin): State<Admin>) -> Response {
    let cluster = &admin.broker.config().cluster;
    let mut page = Page { text: String::with_capacity(16 << 10), cluster };
    for sample in (admin.inner.samples)() {
        page.family(sample.name, sample.kind);
        page.value(sample.name, &[], sample.value);
    }
    let topics = admin.broker.topic_metrics().await;
    page.broker(&topics);
    page.topics(&topics);
    page.subscriptions(&topics);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page.text).into_response()
}

struct Page<'a> {
    text: String,
    cluster: &'a str,
}

/// A series name and how it is read from a topic.
type TopicFamily = (&'static str, fn(&TopicMetrics) -> u64);

const TOPIC_FAMILIES: &[TopicFamily] = &[
    ("pulsar_producers_count", |topic| topic.producers),
    ("pulsar_subscriptions_count", |topic| topic.subscriptions),
    ("pulsar_consumers_count", |topic| topic.consumers),
    ("pulsar_in_messages_total", |topic| topic.msg_in),
    ("pulsar_in_bytes_total", |topic| topic.bytes_in),
    ("pulsar_out_messages_total", |topic| topic.msg_out),
    ("pulsar_out_bytes_total", |topic| topic.bytes_out),
    ("pulsar_storage_size", |topic| topic.storage_size),
    ("pulsar_msg_backlog", |topic| topic.backlog),
];

impl Page<'_> {
    fn family(&mut self, name: &str, kind: &str) {
        let _ = writeln!(self.text, "# TYPE {name} {kind}");
    }

    fn value(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let _ = write!(self.text, "{name}{{cluster=\"{}\"", Escaped(self.cluster));
        for (label, text) in labels {
            let _ = write!(self.text, ",{label}=\"{}\"", Escaped(text));
        }
        let _ = writeln!(self.text, "}} {value}");
    }

    fn broker(&mut self, topics: &[TopicMetrics]) {
        let sum = |of: fn(&TopicMetrics) -> u64| topics.iter().map(of).sum::<u64>() as f64;
        for (name, value) in [
            ("pulsar_broker_topics_count", topics.len() as f64),
            ("pulsar_broker_producers_count", sum(|topic| topic.producers)),
            ("pulsar_broker_subscriptions_count", sum(|topic| topic.subscriptions)),
            ("pulsar_broker_consumers_count", sum(|topic| topic.consumers)),
            ("pulsar_broker_msg_backlog", sum(|topic| topic.backlog)),
            ("pulsar_broker_storage_size", sum(|topic| topic.storage_size)),
        ] {
            self.family(name, "gauge");
            self.value(name, &[], value);
        }
    }

    fn topics(&mut self, topics: &[TopicMetrics]) {
        for (name, of) in TOPIC_FAMILIES {
            self.family(name, "gauge");
            for topic in topics {
                self.value(name, &[("namespace", namespace(&topic.topic)), ("topic", &topic.topic)], of(topic) as f64);
            }
        }
    }

    fn subscriptions(&mut self, topics: &[TopicMetrics]) {
        for name in [
            "pulsar_subscription_back_log",
            "pulsar_subscription_unacked_messages",
            "pulsar_subscription_consumers_count",
        ] {
            self.family(name, "gauge");
            for topic in topics {
                for subscription in &topic.subscription_metrics {
                    let value = match name {
                        "pulsar_subscription_back_log" => subscription.backlog,
                        "pulsar_subscription_unacked_messages" => subscription.unacked,
                        _ => subscription.consumers,
                    };
                    let labels = [
                        ("namespace", namespace(&topic.topic)),
                        ("topic", topic.topic.as_str()),
                        ("subscription", subscription.subscription.as_str()),
                    ];
                    self.value(name, &labels, value as f64);
                }
            }
        }
    }
}

/// `tenant/namespace` out of `persistent://tenant/namespace/local`.
fn namespace(topic: &str) -> &str {
    let path = topic.split_once("://").map_or(topic, |(_, path)| path);
    match path.match_indices('/').nth(1) {
        Some((end, _)) => &path[..end],
        None => path,
    }
}

/// A label's value: backslash, quote and line feed need a backslash.
struct Escaped<'a>(&'a str);

impl std::fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for part in self.0.split_inclusive(['\\', '"', '\n']) {
            let (plain, special) = match part.as_bytes().last() {
                Some(b'\\') => (&part[..part.len() - 1], "\\\\"),
                Some(b'"') => (&part[..part.len() - 1], "\\\""),
                Some(b'\n') => (&part[..part.len() - 1], "\\n"),
                _ => (part, ""),
            };
            f.write_str(plain)?;
            f.write_str(special)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_the_namespace_is_cut_out() {
        assert_eq!(Escaped("a\"b\\c\nd").to_string(), "a\\\"b\\\\c\\nd");
        assert_eq!(namespace("persistent://public/default/t"), "public/default");
        assert_eq!(namespace("persistent://t/n/with-partition-1"), "t/n");
    }
}
