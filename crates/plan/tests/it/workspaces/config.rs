//! Configs with a hash of their content in the name (W10).

use std::collections::BTreeMap;

use plan::workspaces::{
    Body, ObjectKind, Wish,
    team::{self, Source},
};
use serde_json::{Value, json};

use super::world::{World, chart, workspace};

fn spec(data: Value) -> Value {
    json!({
        "configs": { "values": { "kind": "Secret", "data": data } },
        "services": { "web": { "chart": chart("web"), "valuesFrom": [{ "kind": "Secret", "name": "values" }] } },
        "users": [{
            "slug": "ana", "email": "a@b", "permissions": ["code-server"],
            "codeServer": { "envFrom": [{ "kind": "Secret", "name": "values" }] },
        }],
    })
}

fn name(spec: Value) -> String {
    let derived = team::derive(&workspace(spec), &team::Surroundings::default()).unwrap();
    derived.into_iter().find(|derived| derived.id.kind == ObjectKind::Secret).unwrap().id.name
}

#[test]
fn w10_one_value_has_one_name_whatever_its_order() {
    let one = name(spec(json!({ "a": "1", "b": "2" })));
    assert_eq!(
        one,
        name(
            serde_json::from_str(&spec(json!({})).to_string().replace("\"data\":{}", r#""data":{"b":"2","a":"1"}"#))
                .unwrap()
        )
    );
    assert_ne!(one, name(spec(json!({ "a": "1", "b": "3" }))));
    let hash = one.strip_prefix("team-values-").unwrap();
    assert!(hash.len() == 10 && hash.chars().all(|c| c.is_ascii_hexdigit()), "{one}");
}

#[test]
fn w10_new_content_is_a_new_name_everywhere_and_the_old_one_is_collected_when_nobody_needs_it() {
    let mut world = World::ready(spec(json!({ "values.yaml": "a: 1" })));
    let old = world.names(ObjectKind::Secret).into_iter().find(|n| n.starts_with("team-")).unwrap().to_owned();
    world.change(|spec| spec["configs"]["values"]["data"]["values.yaml"] = json!("a: 2"));
    world.settle();
    let new = world.names(ObjectKind::Secret).into_iter().find(|n| n.starts_with("team-")).unwrap().to_owned();
    assert_ne!(old, new);
    let expected = [
        format!("apply Secret {new}"),
        "apply User ana".into(),
        "apply HelmRelease web".into(),
        "apply StatefulSet code-server-ana".into(),
        format!("delete Secret {old}"),
    ];
    assert_eq!(world.done, expected, "one rollout each, and the collection last");
    let release = world.object(ObjectKind::HelmRelease, "web").content.0.to_string();
    assert!(release.contains(&new) && !release.contains(&old));
}

#[test]
fn w10_what_anybody_refers_to_is_never_collected() {
    let mut world = World::ready(spec(json!({ "values.yaml": "a: 1" })));
    let old = world.names(ObjectKind::Secret).into_iter().find(|n| n.starts_with("team-")).unwrap().to_owned();
    world.referrers = vec![Body(json!({ "kind": "HelmRelease", "spec": { "valuesFrom": [{ "name": old }] } }))];
    world.change(|spec| spec["configs"] = json!({}));
    world.settle();
    assert!(world.names(ObjectKind::Secret).contains(&old.as_str()));
    world.referrers.clear();
    world.settle();
    assert!(!world.names(ObjectKind::Secret).contains(&old.as_str()));
}

#[test]
fn w10_content_may_come_from_a_secret() {
    let from = json!({ "kind": "Secret", "fromSecret": { "name": "source" } });
    let mut with_source = spec(json!({}));
    with_source["configs"]["values"] = from;
    let mut world = World::new(with_source);
    world.surroundings.sources = BTreeMap::from([("source".to_owned(), Source::Missing)]);
    world.settle();
    let ready = world.condition("Ready");
    assert!(ready.starts_with("False ValuesMissing") && ready.contains("Secret source"), "{ready}");
    assert_eq!(world.names(ObjectKind::HelmRelease), [""; 0], "what needs it is held");
    // base64 of the value in `w10_one_value…`: the source does not matter, the content does.
    let content = BTreeMap::from([("a".to_owned(), "MQ==".to_owned())]);
    world.surroundings.sources = BTreeMap::from([("source".to_owned(), Source::Content(content))]);
    world.settle();
    assert!(world.condition("Ready").starts_with("True"));
    assert!(world.names(ObjectKind::Secret).contains(&name(spec(json!({ "a": "1" }))).as_str()));
    for (source, reason) in [(Source::Missing, "ValuesMissing"), (Source::TooMuch, "ValuesInvalid")] {
        world.done.clear();
        world.surroundings.sources = BTreeMap::from([("source".to_owned(), source)]);
        world.settle();
        assert_eq!(world.done, [""; 0], "what was made of it stays");
        let ready = world.condition("Ready");
        assert!(ready.starts_with(&format!("False {reason}: spec.configs.values:")), "{ready}");
    }
}

#[test]
fn a_secret_beside_a_config_map_config_of_one_name_is_left_alone() {
    let mut other = spec(json!({}));
    other["configs"]["values"]["kind"] = json!("ConfigMap");
    let derived = team::derive(&workspace(other), &team::Surroundings::default()).unwrap();
    let release = derived.iter().find(|derived| derived.id.kind == ObjectKind::HelmRelease).unwrap();
    let Wish::Apply(body) = &release.wish else { panic!("held") };
    assert_eq!(body.0["spec"]["valuesFrom"][0]["name"], "values");
}
