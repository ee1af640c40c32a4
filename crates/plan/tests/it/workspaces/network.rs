//! Who may talk to whom (W09).

use plan::workspaces::{Derived, ObjectKind, Wish, workspace};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::world::workspace;

fn policies(network: Value, api_server: Vec<workspace::Endpoint>) -> Vec<(String, Value)> {
    let surroundings = workspace::Surroundings { api_server, ..workspace::Surroundings::default() };
    let derived = workspace::derive(&workspace(json!({ "network": network })), &surroundings).unwrap();
    let policy = |Derived { id, wish, .. }: Derived| match wish {
        Wish::Apply(body) if id.kind == ObjectKind::NetworkPolicy => Some((id.name, body.0["spec"].clone())),
        _ => None,
    };
    derived.into_iter().filter_map(policy).collect()
}

fn endpoint() -> workspace::Endpoint {
    workspace::Endpoint { address: "192.0.2.1".into(), port: 6443 }
}

fn names(policies: &[(String, Value)]) -> Vec<&str> {
    policies.iter().map(|(name, _)| name.strip_prefix("team-").unwrap()).collect()
}

#[test]
fn w09_the_set_is_exact() {
    let egress = json!([{ "cidr": "10.20.0.0/16", "ports": [5432, 6432] }, { "cidr": "fd00::/8", "ports": [53], "protocol": "UDP" }]);
    let v6 = workspace::Endpoint { address: "2001:db8::1".into(), port: 443 };
    insta::assert_json_snapshot!(policies(json!({ "allowedEgress": egress }), vec![endpoint(), v6]));
}

#[test]
fn w09_what_is_not_known_or_not_wanted_has_no_policy() {
    let all = ["default-deny", "dns", "inside", "internet", "api-server", "ingress-controller"];
    assert_eq!(names(&policies(json!({}), vec![endpoint()])), all);
    assert_eq!(names(&policies(Value::Null, vec![endpoint()])), all);
    let without = names(&policies(json!({ "internet": false, "allowedEgress": [] }), vec![])).join(" ");
    assert_eq!(without, "default-deny dns inside ingress-controller");
    assert_eq!(names(&policies(json!({ "isolation": false }), vec![endpoint()])), [""; 0]);
    let portless = json!({ "allowedEgress": [{ "cidr": "10.0.0.0/8", "ports": [] }] });
    assert_eq!(names(&policies(portless, vec![endpoint()])), all);
}

prop_compose! {
    fn network()(
        internet in any::<Option<bool>>(), namespace in prop::option::of("[a-z]{1,5}"),
        egress in prop::collection::vec(("[0-9]{1,3}", prop::collection::vec(1..65535, 0..3)), 0..4),
    ) -> Value {
        let egress: Vec<_> = egress.iter().map(|(n, ports)| json!({ "cidr": format!("10.{n}.0.0/16"), "ports": ports })).collect();
        json!({ "internet": internet, "ingressNamespace": namespace, "allowedEgress": egress })
    }
}

proptest! {
    /// To Kubernetes an empty rule, an empty list of peers and an empty list of ports all mean "all".
    #[test]
    fn w09_no_rule_allows_everything(network in network(), endpoints in prop::collection::vec(1..65535, 0..3)) {
        let endpoints = endpoints.into_iter().map(|port| workspace::Endpoint { port, ..endpoint() }).collect();
        for (name, spec) in policies(network, endpoints) {
            let rules = |direction: &str| spec[direction].as_array().unwrap().clone();
            let types = spec["policyTypes"].as_array().unwrap();
            prop_assert!(!types.is_empty(), "{name}");
            for (direction, kind, peers) in [("ingress", "Ingress", "from"), ("egress", "Egress", "to")] {
                if name != "team-default-deny" {
                    prop_assert_eq!(types.contains(&json!(kind)), !rules(direction).is_empty(), "{}", name);
                }
                for rule in rules(direction) {
                    prop_assert!(!rule[peers].as_array().unwrap().is_empty(), "{name}");
                    prop_assert!(rule.get("ports").is_none_or(|ports| !ports.as_array().unwrap().is_empty()), "{name}");
                    for peer in rule[peers].as_array().unwrap() {
                        let selector = peer.get("namespaceSelector");
                        let has_labels = |s: &Value| s["matchLabels"].as_object().is_some_and(|l| !l.is_empty());
                        prop_assert!(selector.is_none_or(has_labels), "{name}");
                        let is_world = peer["ipBlock"]["cidr"].as_str().is_some_and(|cidr| cidr.ends_with("/0"));
                        prop_assert!(!is_world || !peer["ipBlock"]["except"].as_array().unwrap().is_empty(), "{name}");
                        prop_assert!(!peer.as_object().unwrap().is_empty(), "{name}");
                    }
                }
            }
        }
    }
}
