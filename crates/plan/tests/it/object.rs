//! Comparison of desired objects with live ones.

use plan::object::{differs, digest};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

#[track_caller]
fn check(desired: Value, live: Value, difference: Option<&str>) {
    assert_eq!(differs(&desired, &live).as_deref(), difference, "desired {desired}\nlive {live}");
}

#[test]
fn what_others_added_is_no_difference() {
    let live = json!({"metadata": {"labels": {"a": "1", "b": "2"}, "uid": "u"}, "spec": {"replicas": 1}});
    check(json!({"metadata": {"labels": {"a": "1"}}, "spec": {}}), live.clone(), None);
    check(json!({"metadata": {"labels": {"a": "2"}}}), live.clone(), Some("metadata.labels.a"));
    check(
        json!({"metadata": {"annotations": {"example.com/x": "1"}}}),
        live,
        Some(r#"metadata.annotations["example.com/x"]"#),
    );
}

#[test]
fn lists_are_compared_element_by_element() {
    let live = json!({"ports": [{"port": 80, "protocol": "TCP"}, {"port": 443, "protocol": "TCP"}]});
    check(json!({"ports": [{"port": 80}, {"port": 443}]}), live.clone(), None);
    check(json!({"ports": [{"port": 80}, {"port": 444}]}), live.clone(), Some("ports[1].port"));
    check(json!({"ports": [{"port": 80}]}), live.clone(), Some("ports"));
    check(json!({"ports": []}), live, Some("ports"));
}

#[test]
fn nothing_has_several_forms() {
    for nothing in [json!({}), json!({"x": null}), json!({"x": {}}), json!({"x": []}), json!({"x": {"y": {}}})] {
        check(nothing.clone(), json!({}), None);
        check(nothing.clone(), json!({"x": null}), None);
        check(nothing.clone(), json!({"x": {}}), None);
    }
    check(json!({"x": {}}), json!({"x": []}), None);
    check(json!({"x": []}), json!({"x": {}}), None);
    check(json!({"x": ""}), json!({}), Some("x"));
    check(json!({"x": false}), json!({}), Some("x"));
    check(json!({"x": {"y": 1}}), json!({"x": []}), Some("x"));
}

#[test]
fn quantities_are_equal_by_value_where_quantities_stand() {
    let limits = |value: &str| json!({"resources": {"limits": {"example.com/gpu": value}}});
    let equal = [("0.5", "500m"), ("1Gi", "1024Mi"), ("1e3", "1k"), ("1500", "1.5k"), ("0", "0m"), ("+2", "2.0")];
    for (one, other) in equal {
        check(limits(one), limits(other), None);
        check(limits(other), limits(one), None);
        check(json!({"sizeLimit": one}), json!({"sizeLimit": other}), None);
        check(json!({"env": [{"value": one}]}), json!({"env": [{"value": other}]}), Some("env[0].value"));
    }
    for (one, other) in [("1", "2"), ("1G", "1Gi"), ("1m", "1M"), ("-1", "1"), ("x", "y"), ("", "0"), ("1e9999", "1")] {
        check(limits(one), limits(other), Some(r#"resources.limits["example.com/gpu"]"#));
    }
    check(json!({"requests": {"cpu": 1}}), json!({"requests": {"cpu": "1"}}), None);
}

#[test]
fn numbers_are_equal_by_value() {
    check(json!({"x": 1}), json!({"x": 1.0}), None);
    check(json!({"x": 1}), json!({"x": 2}), Some("x"));
    check(json!({"x": 1}), json!({"x": "1"}), Some("x"));
    check(json!({"x": i64::MAX}), json!({"x": i64::MAX - 1}), Some("x"));
}

#[test]
fn a_digest_stays_the_same_between_versions() {
    assert_eq!(digest(&json!({"b": [1, "x", null], "a": {"c": true}})), "a76f3162778abe3f");
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-c0-9.]{0,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-d]|limits", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// The same value with a field more in every map, as a server's defaults would add.
fn defaulted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| (name.clone(), defaulted(value)));
            Value::Object(fields.chain([("defaulted".to_owned(), json!("by the server"))]).collect())
        }
        Value::Array(elements) => elements.iter().map(defaulted).collect(),
        scalar => scalar.clone(),
    }
}

/// The same value with its fields in the opposite order, as far as the map type has an order of insertion.
fn reversed(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut pairs: Vec<_> = fields.iter().map(|(name, value)| (name.clone(), reversed(value))).collect();
            pairs.reverse();
            Value::Object(pairs.into_iter().collect::<Map<_, _>>())
        }
        Value::Array(elements) => elements.iter().map(reversed).collect(),
        scalar => scalar.clone(),
    }
}

proptest! {
    #[test]
    fn a_value_has_all_of_itself_and_keeps_it_when_defaults_are_added(value in value()) {
        prop_assert_eq!(differs(&value, &value), None);
        prop_assert_eq!(differs(&value, &defaulted(&value)), None);
    }

    #[test]
    fn a_changed_field_is_found_and_named(value in value(), old in 0..100, new in 100..200) {
        let desired = json!({"first": value, "second": {"deep": [{"field": new}]}});
        let live = defaulted(&json!({"first": value, "second": {"deep": [{"field": old}]}}));
        prop_assert_eq!(differs(&desired, &live), Some("second.deep[0].field".to_owned()));
    }

    #[test]
    fn equal_values_have_equal_digests_and_others_do_not(one in value(), other in value()) {
        prop_assert_eq!(digest(&one), digest(&reversed(&one)));
        prop_assert_eq!(digest(&one) == digest(&other), one == other);
    }
}

#[test]
fn a_merge_patch_names_what_changed_and_what_vanished() {
    let before = json!({ "same": 1, "gone": 2, "map": { "same": 1, "gone": 2 }, "list": [1] });
    let after = json!({ "same": 1, "new": 3, "map": { "same": 1, "new": 3 }, "list": [1, 2] });
    let patch = json!({ "gone": null, "new": 3, "map": { "gone": null, "new": 3 }, "list": [1, 2] });
    assert_eq!(plan::object::merge_patch(&before, &after), patch);
    assert_eq!(plan::object::merge_patch(&after, &after), json!({}));
}

#[test]
fn amounts_of_memory_are_read() {
    for (text, amount) in [("512Mi", 536_870_912), ("1G", 1_000_000_000), ("1.5Ki", 1536), ("42", 42)] {
        assert_eq!(plan::object::bytes(text), Some(amount), "{text}");
    }
    for text in ["", "Mi", "-1Mi", "1 Gi", "lots", "0", "1e3", "NaN"] {
        assert_eq!(plan::object::bytes(text), None, "{text}");
    }
}
