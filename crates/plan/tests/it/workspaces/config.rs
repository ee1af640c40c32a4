//! Configs with a hash of their content in the name (W10).

use std::collections::BTreeSet;

use api::workspace::WorkspaceStatus;
use plan::workspaces::{Data, Digested, ObjectId, ObjectKind, Wish, encoded, workspace};
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
    let derived = workspace::derive(&workspace(spec), &workspace::Surroundings::default()).unwrap();
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
    world.referred_to = BTreeSet::from([old.clone()]);
    world.change(|spec| spec["configs"] = json!({}));
    world.settle();
    assert!(world.names(ObjectKind::Secret).contains(&old.as_str()));
    world.referred_to.clear();
    world.settle();
    assert!(!world.names(ObjectKind::Secret).contains(&old.as_str()));
}

/// A config that takes all of Secret `source`, which a service and a user refer to.
fn from_source() -> Value {
    let mut spec = spec(json!({}));
    spec["configs"]["values"] = json!({ "kind": "Secret", "fromSecret": { "name": "source" } });
    spec
}

fn data(value: &str) -> Data {
    Data::from([("a".to_owned(), encoded(value.as_bytes().to_vec()))])
}

fn of_workspace(world: &World) -> Vec<String> {
    world.names(ObjectKind::Secret).into_iter().filter(|n| n.starts_with("team-")).map(str::to_owned).collect()
}

#[test]
fn w10_content_may_come_from_a_secret() {
    let mut world = World::new(from_source());
    world.settle();
    let ready = world.condition("Ready");
    assert!(ready.starts_with("False ValuesMissing") && ready.contains("Secret source"), "{ready}");
    assert_eq!(world.names(ObjectKind::HelmRelease), [""; 0], "what needs it is held");
    world.sources.insert("source".to_owned(), (1, data("1")));
    world.settle();
    assert!(world.condition("Ready").starts_with("True"));
    // The source does not matter, the content does.
    let made = name(spec(json!({ "a": "1" })));
    assert_eq!(of_workspace(&world), [made.as_str()]);
    assert_eq!(world.contents[&ObjectId::new(ObjectKind::Secret, made)], data("1"));
    let too_much = data(&"x".repeat(workspace::MOST_TAKEN));
    for (source, reason) in [(None, "ValuesMissing"), (Some((2, too_much)), "ValuesInvalid")] {
        world.done.clear();
        world.sources = source.into_iter().map(|source| ("source".to_owned(), source)).collect();
        world.settle();
        assert_eq!(world.done, [""; 0], "what was made of it stays");
        let ready = world.condition("Ready");
        assert!(ready.starts_with(&format!("False {reason}: spec.configs.values:")), "{ready}");
    }
}

#[test]
fn w10_one_version_of_a_source_is_asked_for_once() {
    let mut world = World::new(from_source());
    world.sources.insert("source".to_owned(), (1, data("1")));
    let asks = |world: &World| world.workspace_plan().wants.into_iter().map(|want| want.ask).collect::<Vec<_>>();
    let ask =
        |version| workspace::SourceAsk { namespace: "ns".into(), name: "source".into(), resource_version: version };
    assert_eq!(asks(&world), [ask(1)]);
    world.settle();
    assert_eq!(asks(&world), [], "remembered");
    world.sources.insert("source".to_owned(), (2, data("2")));
    assert_eq!(asks(&world), [ask(2)]);
    world.settle();
    assert_eq!(of_workspace(&world), [name(spec(json!({ "a": "2" })))]);
    let of_source = world.note.sources["source"].clone();
    assert_eq!(of_source, workspace::Source::Present { resource_version: 2, content: Some(Digested::of(&data("2"))) });
}

#[test]
fn w10_while_a_source_cannot_be_read_all_that_was_made_of_it_stays_and_the_rest_goes_on() {
    let mut world = World::new(from_source());
    world.sources.insert("source".to_owned(), (1, data("1")));
    // Nothing refers to this one.
    world.change(|spec| spec["configs"]["spare"] = json!({ "fromSecret": { "name": "source" } }));
    world.settle();
    let (before, status) = (of_workspace(&world), world.status());
    assert_eq!(before.len(), 2);
    // As after a restart, with an API server that does not answer.
    world.note = workspace::Note::default();
    world.are_sources_readable = false;
    world.done.clear();
    world.settle();
    assert_eq!((world.done.clone(), of_workspace(&world)), (vec![], before));
    assert_eq!(world.status(), status, "no news");
    assert!(world.workspace_plan().next_look.is_some(), "no event says when it can be read");
    world.change(|spec| spec["services"]["db"] = json!({ "chart": chart("db") }));
    world.settle();
    assert_eq!(world.names(ObjectKind::HelmRelease), ["db", "web"]);
}

#[test]
fn w08_what_is_held_for_want_of_a_source_stops_and_starts() {
    let mut world = World::new(from_source());
    world.sources.insert("source".to_owned(), (1, data("1")));
    world.settle();
    world.sources.clear();
    world.settle();
    for stopped in [true, false] {
        world.done.clear();
        world.change(|spec| spec["stopped"] = json!(stopped));
        world.settle();
        assert_eq!(world.done, ["patch HelmRelease web", "patch User ana", "apply StatefulSet code-server-ana"]);
        for (kind, name) in [(ObjectKind::HelmRelease, "web"), (ObjectKind::User, "ana")] {
            assert_eq!(world.object(kind, name).content.0["spec"]["stopped"], stopped);
        }
        let set = world.object(ObjectKind::StatefulSet, "code-server-ana");
        assert_eq!(set.content.0["spec"]["replicas"], i32::from(!stopped));
        assert!(world.condition("Ready").starts_with("False ValuesMissing"), "{}", world.condition("Ready"));
    }
    world.change(|spec| spec["stopped"] = json!(true));
    world.object(ObjectKind::HelmRelease, "web").owner_uid = None;
    world.object(ObjectKind::User, "ana").is_going = true;
    assert!(world.workspace_plan().steps.is_empty(), "nothing of others, and nothing that goes");
}

#[test]
fn w10_nothing_is_said_of_a_spec_before_its_sources_are_known() {
    let mut world = World::new(from_source());
    world.sources.insert("source".to_owned(), (1, data("1")));
    world.are_sources_readable = false;
    world.settle();
    assert_eq!(world.status(), WorkspaceStatus::default(), "not ready, and nothing is wrong with it");
    assert!(world.has_finalizer());
    assert_eq!((of_workspace(&world).len(), world.names(ObjectKind::HelmRelease).len()), (0, 0));
    world.are_sources_readable = true;
    world.settle();
    assert!(world.condition("Ready").starts_with("True"));
}

#[test]
fn w10_a_source_that_changes_before_it_is_taken_is_not_taken() {
    let mut world = World::new(from_source());
    world.sources.insert("source".to_owned(), (1, data("1")));
    world.workspace_round();
    assert_eq!(of_workspace(&world), [name(spec(json!({ "a": "1" })))]);
    world.objects.retain(|id, _| !id.name.starts_with("team-values"));
    world.contents.clear();
    // Its event has not arrived: the version and its digest are the former ones.
    world.sources.insert("source".to_owned(), (1, data("2")));
    world.workspace_round();
    assert_eq!(of_workspace(&world), [""; 0], "not under a name that speaks of other content");
    world.sources.insert("source".to_owned(), (2, data("2")));
    world.settle();
    assert_eq!(of_workspace(&world), [name(spec(json!({ "a": "2" })))]);
}

#[test]
fn no_content_of_a_secret_is_in_what_is_planned_on_or_in_a_plan() {
    let mut spec = from_source();
    spec["configs"]["inline"] = json!({ "kind": "Secret", "data": { "token": "canary-inline" } });
    let mut world = World::new(spec);
    world.sources.insert("source".to_owned(), (1, data("canary-source")));
    // Each of these plans is searched for all contents, see `World::same_from_file`.
    world.settle();
    let held: Vec<_> = world.contents.values().flat_map(Data::values).collect();
    assert_eq!(held.len(), 3, "inline, taken and password");
    let (observed, user) = (world.workspace_observed(), world.user("ana"));
    let text =
        serde_json::to_string(&(observed, &world.note, world.user_observed(&user), world.workspace_plan().wants))
            .unwrap();
    for canary in ["canary-inline", "canary-source"].iter().map(|canary| encoded(canary.as_bytes().to_vec())) {
        assert!(held.contains(&&canary), "the canary is alive");
        assert!(!text.contains(&canary));
    }
    assert!(!text.contains("canary"));
}

#[test]
fn a_secret_beside_a_config_map_config_of_one_name_is_left_alone() {
    let mut other = spec(json!({}));
    other["configs"]["values"]["kind"] = json!("ConfigMap");
    let derived = workspace::derive(&workspace(other), &workspace::Surroundings::default()).unwrap();
    let release = derived.iter().find(|derived| derived.id.kind == ObjectKind::HelmRelease).unwrap();
    let Wish::Apply(body) = &release.wish else { panic!("held") };
    assert_eq!(body.0["spec"]["valuesFrom"][0]["name"], "values");
}
