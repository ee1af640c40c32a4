//! Label selectors.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

pub type Labels = BTreeMap<String, String>;

/// Whether a selector selects these labels; an empty one selects all. What is no selector selects nothing: the API
/// server refuses to store it.
pub fn matches(selector: &LabelSelector, labels: &Labels) -> bool {
    let equal = selector.match_labels.iter().flatten();
    let expressions = selector.match_expressions.iter().flatten();
    equal.into_iter().all(|(key, value)| labels.get(key) == Some(value))
        && expressions.into_iter().all(|expression| holds(expression, labels))
}

fn holds(LabelSelectorRequirement { key, operator, values }: &LabelSelectorRequirement, labels: &Labels) -> bool {
    let value = labels.get(key);
    let is_listed = || value.is_some_and(|value| values.iter().flatten().any(|listed| listed == value));
    match operator.as_str() {
        "In" => is_listed(),
        "NotIn" => !is_listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_requirement_must_hold() {
        let labels = Labels::from([("app", "web"), ("tier", "front")].map(|(k, v)| (k.to_owned(), v.to_owned())));
        for (selector, expected) in [
            (json!({}), true),
            (json!({"matchLabels": {"app": "web"}}), true),
            (json!({"matchLabels": {"app": "web", "tier": "back"}}), false),
            (json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["api", "web"]}]}), true),
            (json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}), false),
            (json!({"matchExpressions": [{"key": "none", "operator": "NotIn", "values": ["web"]}]}), true),
            (json!({"matchExpressions": [{"key": "none", "operator": "Exists"}]}), false),
            (json!({"matchExpressions": [{"key": "none", "operator": "DoesNotExist"}]}), true),
            (json!({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "x", "operator": "Exists"}]}), false),
            (json!({"matchExpressions": [{"key": "app", "operator": "Like", "values": ["web"]}]}), false),
        ] {
            let parsed = serde_json::from_value(selector.clone()).unwrap();
            assert_eq!(matches(&parsed, &labels), expected, "{selector}");
        }
    }
}
