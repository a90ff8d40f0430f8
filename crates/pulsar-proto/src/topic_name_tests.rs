use super::*;
use proptest::prelude::*;

/// `domain | tenant | cluster | namespace | local name`
fn show(name: &str) -> String {
    match TopicName::parse(name) {
        Ok(topic) => {
            let namespace = topic.namespace();
            assert_eq!(namespace, NamespaceName::parse(namespace.as_str()).unwrap());
            assert_eq!((namespace.tenant(), namespace.cluster()), (topic.tenant(), topic.cluster()));
            let cluster = topic.cluster().unwrap_or("");
            [topic.domain().as_str(), topic.tenant(), cluster, namespace.local_name(), topic.local_name()].join("|")
        }
        Err(error) => error.to_string(),
    }
}

#[test]
fn names() {
    for (name, expected) in [
        ("persistent://public/default/t", "persistent|public||default|t"),
        ("non-persistent://a/b/c d", "non-persistent|a||b|c d"),
        ("persistent://prop/cluster/ns/t", "persistent|prop|cluster|ns|t"),
        ("persistent://prop/cluster/ns/t/with/slash", "persistent|prop|cluster|ns|t/with/slash"),
        ("t", "persistent|public||default|t"),
        ("täst", "persistent|public||default|täst"),
        ("a/b/c", "persistent|a||b|c"),
        ("a-=:._Z9/b/c", "persistent|a-=:._Z9||b|c"),
    ] {
        assert_eq!(show(name), expected);
    }
    let shape = "expected `name`, `tenant/namespace/name` or `persistent://tenant/namespace/name`";
    for name in
        ["", "a/b", "a/b/c/d", "persistent://a/b", "persistent://a", "persistent://", "a/b/", "persistent://a/b/"]
    {
        assert_eq!(show(name), format!("cannot parse topic `{name}`: {shape}"));
    }
    for (name, part) in [("/b/c", ""), ("a//c", ""), ("persistent://a b/n/t", "a b"), ("persistent://a/ä/t", "ä")] {
        let grammar = "must be of letters, digits and `-=:._`, and not empty";
        assert_eq!(show(name), format!("cannot parse `{name}`: `{part}` {grammar}"));
    }
    assert_eq!(
        show("topic://a/b/c"),
        "cannot parse topic `topic://a/b/c`: domain must be `persistent` or `non-persistent`"
    );
}

#[test]
fn namespaces() {
    for name in ["a/b", "a/b/c"] {
        assert_eq!(NamespaceName::parse(name).unwrap().as_str(), name);
    }
    for name in ["", "a", "a/", "/b", "a/b/c/d", "a/b c"] {
        assert!(NamespaceName::parse(name).is_err(), "{name}");
    }
}

#[test]
fn partitions() {
    for (local, base, index) in [
        ("t", "t", None),
        ("t-partition-0", "t", Some(0)),
        ("t-partition-12", "t", Some(12)),
        ("t-partition-2147483647", "t", Some(2_147_483_647)),
        ("t-partition-2147483648", "t-partition-2147483648", None),
        ("t-partition-1-partition-3", "t-partition-1", Some(3)),
        ("t-partition-007", "t-partition-007", None),
        ("t-partition-00", "t-partition-00", None),
        ("t-partition-", "t-partition-", None),
        ("t-partition--1", "t-partition--1", None),
        ("t-partition-+1", "t-partition-+1", None),
        ("t-partition-1x", "t-partition-1x", None),
        ("-partition-1", "-partition-1", None),
    ] {
        let topic = TopicName::parse(local).unwrap();
        assert_eq!(topic.partition_index(), index, "{local}");
        assert_eq!(topic.partitioned_topic(), TopicName::parse(base).unwrap());
        assert_eq!(topic.partitioned_topic().local_name(), base);
        if let Some(index) = index {
            assert_eq!(topic.partition(index), topic);
            assert_eq!(TopicName::parse(base).unwrap().partition(index), topic);
        }
    }
}

#[test]
fn derived_names() {
    let topic = TopicName::parse("persistent://t/n/ä b/*-partition-3");
    assert!(topic.is_err(), "a slash makes `t/n/ä b` a tenant, cluster and namespace, and that is none");
    let namespace = NamespaceName::parse("t/n").unwrap();
    assert!(TopicName::of(Domain::Persistent, &namespace, "a/b").is_err());

    let topic = TopicName::of(Domain::Persistent, &namespace, "ä b*(~)-partition-3").unwrap();
    assert_eq!(topic.as_str(), "persistent://t/n/ä b*(~)-partition-3");
    assert_eq!(topic.managed_ledger_name(), "t/n/persistent/%C3%A4+b*%28%7E%29-partition-3");
    assert_eq!(topic.schema_id(), "t/n/%C3%A4+b*%28%7E%29");
    assert_eq!(topic.rest_path(), "persistent/t/n/%C3%A4%20b*%28%7E%29-partition-3");

    let old = TopicName::parse("persistent://t/c/n/a/b").unwrap();
    assert_eq!(old.managed_ledger_name(), "t/c/n/persistent/a%2Fb");
    for topic in [topic, old] {
        assert_eq!(TopicName::from_managed_ledger_name(&topic.managed_ledger_name()), Ok(topic));
    }
    for name in ["t/n/persistent", "t/n/other/a", "t/n/persistent/%4", "t/n/persistent/%zz", "t/n/persistent/%FF"] {
        let error = NameError::ManagedLedger { name: name.to_owned() };
        assert_eq!(TopicName::from_managed_ledger_name(name), Err(error));
    }
}

#[test]
fn bundle_hashes_of_the_original_4_0_1() {
    assert_eq!(TopicName::parse("persistent://public/default/t").unwrap().bundle_hash(), 0x823c_d929);
    assert_eq!(TopicName::parse("persistent://public/default/my-topic").unwrap().bundle_hash(), 0x2bad_45f7);
}

proptest! {
    #[test]
    fn parsing_never_panics(name: String) {
        if let Ok(topic) = TopicName::parse(&name) {
            prop_assert_eq!(TopicName::parse(topic.as_str()), Ok(topic.clone()));
            prop_assert_eq!(TopicName::from_managed_ledger_name(&topic.managed_ledger_name()), Ok(topic));
        }
        let _ = NamespaceName::parse(&name);
        let _ = TopicName::from_managed_ledger_name(&name);
    }

    #[test]
    fn valid_names_survive(tenant in "[-=:.\\w&&[:ascii:]]{1,9}", namespace in "[-=:.\\w&&[:ascii:]]{1,9}", local in "[^/]{1,20}") {
        let name = format!("persistent://{tenant}/{namespace}/{local}");
        let topic = TopicName::parse(&name).unwrap();
        prop_assert_eq!(topic.as_str(), &name);
        prop_assert_eq!((topic.tenant(), topic.local_name()), (&tenant[..], &local[..]));
        prop_assert_eq!(TopicName::from_managed_ledger_name(&topic.managed_ledger_name()), Ok(topic));
    }

    #[test]
    fn form_encoding_round_trips(text: String) {
        let encoded = encode_form(&text);
        prop_assert!(!encoded.contains('/'));
        prop_assert_eq!(decode_form(&encoded), Some(Cow::Borrowed(&text[..])));
        let _ = decode_form(&text);
    }
}

#[test]
fn form_encoding_is_that_of_java() {
    for (name, encoded) in [
        ("sub", "sub"),
        ("a b", "a+b"),
        ("a+b/c", "a%2Bb%2Fc"),
        ("pulsar.repl.west-1_*", "pulsar.repl.west-1_*"),
        ("~é", "%7E%C3%A9"),
    ] {
        assert_eq!(encode_form(name), encoded);
        assert_eq!(decode_form(encoded).as_deref(), Some(name));
    }
    for bad in ["%", "%4", "%zz", "%ff"] {
        assert_eq!(decode_form(bad), None);
    }
}
