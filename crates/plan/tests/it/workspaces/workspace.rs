//! Workspace.

use api::workspace::WorkspacePhase;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use plan::event::EventKind;
use plan::fact::Class;
use plan::round::{Progress, Refusal};
use plan::workspaces::{ObjectId, ObjectKind, workspace};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::world::{World, at, basic, chart, condition, golden, outdated, workspace};

#[test]
fn w02_golden_objects_of_a_workspace() {
    let spec = json!({
        "domain": "example.com",
        "ingress": {
            "class": "nginx", "issuer": "letsencrypt", "authURL": "https://auth.example/check",
            "authSigninURL": "https://auth.example/in", "annotations": { "a": "b" },
        },
        "imagePullSecrets": [{ "name": "registry" }],
        "services": {
            "db": { "chart": chart("db"), "deleteData": true, "valuesFrom": [{ "kind": "Secret", "name": "db-values" }] },
            "off": { "chart": chart("off"), "enabled": false },
            "web": {
                "chart": chart("web"), "values": { "note": "a" }, "dependsOn": ["db"], "timeout": "90s",
                "valuesFrom": [{ "kind": "ConfigMap", "name": "settings", "key": "web.yaml" }],
                "expose": { "service": "web", "port": 80, "hostPrefix": "www", "access": "authenticated" },
            },
        },
        "configs": { "settings": { "data": { "web.yaml": "a: 1" } }, "token": { "kind": "Secret", "data": { "T": "x" } } },
        "userDefaults": {
            "image": "ide:1", "storage": { "size": "5Gi", "class": "fast" }, "nodeSelector": { "pool": "ide" },
            "env": [{ "name": "A", "value": "default" }, { "name": "B", "value": "default" }],
            "envFrom": [{ "kind": "Secret", "name": "token" }],
        },
        "users": [{
            "slug": "ana", "email": "ana@example.com", "name": "Ana", "permissions": ["code-server"],
            "codeServer": { "image": "ide:2", "storage": { "retention": "delete" }, "env": [{ "name": "B", "value": "own" }] },
        }],
        "network": { "allowedEgress": [{ "cidr": "10.20.0.0/16", "ports": [5432] }] },
    });
    let world = World::new(spec);
    insta::assert_json_snapshot!(golden(&world.derived()));
}

#[test]
fn w02_a_workspace_converges_and_then_nothing_is_planned() {
    let mut world = World::new(basic());
    world.workspace_round();
    assert_eq!(world.status().phase, Some(WorkspacePhase::Progressing));
    assert_eq!(
        world.condition("ServicesReady"),
        "False ServicesNotReady: 0 of 2 services are ready; not so: db (Progressing), web (Progressing)"
    );
    world.settle();
    let status = world.status();
    assert_eq!(status.phase, Some(WorkspacePhase::Ready));
    assert_eq!((status.services_ready.as_deref(), status.users_ready.as_deref()), (Some("2/2"), Some("1/1")));
    let kinds: Vec<_> = status.conditions.iter().map(|c| c.kind.as_str()).collect();
    assert_eq!(kinds, ["Ready", "ServicesReady", "UsersReady", "NetworkReady"]);
    assert_eq!(status.services[1].url.as_deref(), Some("http://web.team.example.com"));
    assert_eq!(status.users[0].url.as_deref(), Some("http://ana.team.example.com"));
    assert_eq!(status.users[1].reason.as_deref(), Some("Disabled"));
    assert!(status.inventory.iter().any(|e| e.kind == "NetworkPolicy.networking.k8s.io" && e.name == "team-dns"));
    assert_eq!(world.done[0], "add finalizer");
    assert!(world.workspace_plan().steps.is_empty());
    let recorded: Vec<_> = world.events.iter().map(|e| (e.kind, e.reason)).collect();
    assert_eq!(recorded, [(EventKind::Normal, "Succeeded")]);
}

#[test]
fn w04_changing_one_user_touches_only_that_user() {
    let mut world = World::ready(basic());
    world.change(|spec| spec["users"][0]["codeServer"] = json!({ "image": "other:1" }));
    world.settle();
    assert_eq!(world.done, ["apply User ana", "apply StatefulSet code-server-ana"]);
    world.done.clear();
    world.change(|spec| drop(spec["users"].as_array_mut().unwrap().remove(0)));
    world.settle();
    assert_eq!(world.done, ["delete User ana"]);
    assert_eq!(world.names(ObjectKind::StatefulSet), [""; 0]);
    assert_eq!(world.events.last().unwrap().note, "Removed User ana");
}

#[test]
fn w07_one_broken_service_is_described_and_the_rest_is_done() {
    let mut world = World::ready(basic());
    let web = world.object(ObjectKind::HelmRelease, "web");
    web.status["conditions"] = condition("False", "InstallFailed", "helm says no");
    web.status["failed"] = json!(true);
    world.change(|spec| spec["users"].as_array_mut().unwrap().push(json!({ "slug": "cyd", "email": "c@d" })));
    world.settle();
    assert_eq!(world.status().phase, Some(WorkspacePhase::Failed));
    let web = &world.status().services[1];
    assert_eq!((web.reason.as_deref(), web.message.as_deref()), (Some("InstallFailed"), Some("helm says no")));
    assert_eq!(
        world.condition("Ready"),
        "False ServicesNotReady: 1 of 2 services are ready; not so: web (InstallFailed)"
    );
    assert!(world.done.contains(&"apply User cyd".to_owned()));
}

#[test]
fn w07_a_refused_or_taken_object_stops_no_other() {
    let mut world = World::new(basic());
    world.stranger(ObjectKind::HelmRelease, "db", json!({}));
    let refused = Progress::Refused(Refusal::Rejected("quota".to_owned()));
    world.refusals.insert(ObjectId::new(ObjectKind::User, "ana"), refused);
    world.workspace_round();
    assert_eq!(
        world.condition("Ready"),
        "False ObjectTaken: HelmRelease db exists and belongs to another owner; rename or delete it"
    );
    assert_eq!(world.status().users[0].reason.as_deref(), Some("ObjectRejected"));
    assert!(world.condition("UsersReady").contains("ana (ObjectRejected)"), "{}", world.condition("UsersReady"));
    for done in ["apply HelmRelease web", "apply User bob", "apply Ingress team-web"] {
        assert!(world.done.contains(&done.to_owned()), "{done} in {:?}", world.done);
    }
    assert!(!world.done.contains(&"apply HelmRelease db".to_owned()));
    assert!(world.workspace_plan().next_look.is_some(), "no event says when the name is free");
    assert_eq!(world.status().phase, Some(WorkspacePhase::Failed));
}

#[test]
fn w08_stopped_is_passed_on_and_everything_is_kept() {
    let mut world = World::ready(basic());
    world.change(|spec| spec["stopped"] = json!(true));
    world.settle();
    assert_eq!(world.status().phase, Some(WorkspacePhase::Stopped));
    assert!(world.condition("Ready").starts_with("True Stopped"));
    assert_eq!(world.object(ObjectKind::HelmRelease, "web").content.0["spec"]["stopped"], true);
    assert_eq!(world.object(ObjectKind::StatefulSet, "code-server-ana").content.0["spec"]["replicas"], 0);
    assert!(!world.done.iter().any(|done| done.starts_with("delete")), "{:?}", world.done);
    world.change(|spec| spec["stopped"] = json!(false));
    world.settle();
    assert_eq!(world.status().phase, Some(WorkspacePhase::Ready));
    assert_eq!(world.object(ObjectKind::StatefulSet, "code-server-ana").content.0["spec"]["replicas"], 1);
}

#[test]
fn w11_an_edited_object_is_applied_again_and_others_fields_are_left_alone() {
    let mut world = World::ready(basic());
    let policy = world.object(ObjectKind::NetworkPolicy, "team-default-deny");
    policy.content.0["metadata"]["labels"]["foreign"] = json!("stays");
    assert!(world.workspace_plan().steps.is_empty());
    for edit in [
        json!({ "podSelector": { "matchLabels": { "app": "none" } } }),
        json!({ "egress": [{}] }),
        json!({ "policyTypes": ["Ingress"] }),
    ] {
        let policy = world.object(ObjectKind::NetworkPolicy, "team-default-deny");
        for (field, value) in edit.as_object().unwrap() {
            policy.content.0["spec"][field] = value.clone();
        }
        world.settle();
        assert_eq!(world.done, ["apply NetworkPolicy team-default-deny"], "{edit}");
        world.done.clear();
    }
}

#[test]
fn what_the_server_made_of_our_own_apply_is_accepted() {
    let mut world = World::ready(basic());
    let release = world.object(ObjectKind::HelmRelease, "web");
    release.content.0["spec"]["dependsOn"] = json!(["db", "injected"]);
    release.accepted = Some(plan::workspaces::fingerprint(&release.content.0));
    assert!(world.workspace_plan().steps.is_empty());
    world.object(ObjectKind::HelmRelease, "web").content.0["spec"]["dependsOn"] = json!(["by hand"]);
    assert_eq!(world.workspace_plan().steps.len(), 1);
}

#[test]
fn what_the_server_made_of_an_apply_is_remembered_until_the_object_goes() {
    let mut world = World::new(basic());
    let web = ObjectId::new(ObjectKind::HelmRelease, "web");
    world.refusals.insert(web.clone(), Progress::Done(Some("made otherwise".to_owned())));
    world.workspace_round();
    assert_eq!(world.note.accepted.get(&web).map(String::as_str), Some("made otherwise"));
    assert_eq!(world.note.accepted.len(), 1);
    world.refusals.clear();
    world.workspace_round();
    assert_eq!(world.note.accepted.len(), 0, "the next apply gave what was asked for");
}

#[test]
fn what_needs_a_refused_config_waits_and_nothing_else_does() {
    let mut spec = basic();
    spec["configs"] = json!({ "values": { "kind": "Secret", "data": { "values.yaml": "a: 1" } } });
    spec["services"]["web"]["valuesFrom"] = json!([{ "kind": "Secret", "name": "values" }]);
    let mut world = World::new(spec);
    let secret = world.derived().into_iter().find(|derived| derived.id.kind == ObjectKind::Secret).unwrap().id;
    world.refusals.insert(secret.clone(), Progress::Refused(Refusal::Rejected("quota".to_owned())));
    world.workspace_round();
    assert_eq!(world.names(ObjectKind::HelmRelease), ["db"]);
    assert_eq!(world.names(ObjectKind::User), ["ana", "bob"]);
    assert_eq!(world.condition("Ready"), format!("False ObjectRejected: {secret} was refused: quota"));
    assert_eq!(world.status().services[1].reason.as_deref(), Some("Progressing"));
    world.refusals.clear();
    world.settle();
    assert!(world.condition("Ready").starts_with("True"));
}

#[test]
fn what_could_not_be_applied_is_not_said_to_be_in_place() {
    let mut spec = basic();
    spec["configs"] = json!({ "settings": { "data": { "a": "1" } } });
    let mut world = World::ready(spec);
    for kind in [ObjectKind::Ingress, ObjectKind::NetworkPolicy, ObjectKind::ConfigMap] {
        let lost = world.derived().into_iter().find(|derived| derived.id.kind == kind).unwrap().id;
        world.objects.remove(&lost);
        world.refusals.insert(lost.clone(), outdated());
        world.workspace_round();
        let why = format!(
            "StateUnknown: {lost} could not be applied yet: what was planned on has changed; the operator goes on trying"
        );
        assert_eq!(world.status().phase, Some(WorkspacePhase::Progressing));
        assert_eq!(world.condition("Ready"), format!("False {why}"));
        if kind != ObjectKind::ConfigMap {
            assert_eq!(world.condition("NetworkReady"), format!("Unknown {why}"));
        }
        world.refusals.clear();
        world.settle();
        assert_eq!(world.status().phase, Some(WorkspacePhase::Ready));
    }
}

#[test]
fn what_could_not_be_removed_is_not_said_to_be_gone() {
    let refused = Progress::Refused(Refusal::Rejected("not yours".to_owned()));
    let too_large = Progress::Failed { class: Class::Terminal, retry: None, message: "too large".to_owned() };
    let cases = [
        (outdated(), WorkspacePhase::Progressing, "Unknown StateUnknown", "could not be removed yet: what was planned"),
        (refused, WorkspacePhase::Failed, "False ObjectRejected", "was refused: not yours"),
        (too_large, WorkspacePhase::Failed, "False ObjectRejected", "was refused: too large"),
    ];
    for (failure, phase, network, message) in cases {
        let mut world = World::ready(basic());
        let policies = world.names(ObjectKind::NetworkPolicy).into_iter();
        let internet = policies.filter(|name| name.ends_with("-internet")).map(str::to_owned).next().unwrap();
        let internet = ObjectId::new(ObjectKind::NetworkPolicy, internet);
        world.change(|spec| spec["network"] = json!({ "internet": false }));
        world.refusals.insert(internet.clone(), failure);
        world.workspace_round();
        let (ready, of_network) = (world.condition("Ready"), world.condition("NetworkReady"));
        assert_eq!(world.status().phase, Some(phase), "{ready}");
        assert!(ready.starts_with("False") && ready.contains(message), "{ready}");
        assert!(of_network.starts_with(network) && of_network.contains(&internet.to_string()), "{of_network}");
        world.refusals.clear();
        world.settle();
        assert_eq!(world.status().phase, Some(WorkspacePhase::Ready));
    }
}

#[test]
fn nothing_is_made_before_the_finalizer_is_stored() {
    let world = World::new(basic());
    let plan = world.workspace_plan();
    assert!(plan.steps[1..].iter().all(|step| step.needs.first().is_some_and(|need| need.index() == 0)));
}

#[test]
fn w13_the_younger_of_two_workspaces_does_nothing() {
    let mut world = World::new(basic());
    world.rival = Some("first".to_owned());
    world.settle();
    assert_eq!(world.done, [""; 0]);
    assert!(!world.has_finalizer());
    assert_eq!(
        world.condition("Ready"),
        "False NamespaceTaken: Workspace first already uses this namespace; move one of the two to a namespace of its own"
    );
    assert!(world.condition("NetworkReady").starts_with("Unknown NamespaceTaken"));
}

#[test]
fn w13_the_older_wins_and_the_name_decides_within_a_second() {
    let meta = |name: &str, second: i64| ObjectMeta {
        name: Some(name.to_owned()),
        uid: Some(name.to_owned()),
        creation_timestamp: Some(Time(at(second))),
        ..ObjectMeta::default()
    };
    let all = [meta("b", 0), meta("a", 0), meta("c", -1)];
    let rivals: Vec<_> = all.iter().map(|own| workspace::rival(own, all.iter())).collect();
    assert_eq!(rivals, [Some("c".to_owned()), Some("c".to_owned()), None]);
    assert_eq!(workspace::rival(&all[1], all[..2].iter()), None);
    assert_eq!(workspace::rival(&all[0], all[..2].iter()), Some("a".to_owned()));
}

#[track_caller]
fn check_invalid(change: impl FnOnce(&mut Value), words: &[&str]) {
    let mut world = World::ready(basic());
    world.change(change);
    world.settle();
    assert_eq!(world.done, [""; 0], "the former state stays");
    let ready = world.condition("Ready");
    assert!(ready.starts_with("False InvalidSpec"), "{ready}");
    for word in words {
        assert!(ready.contains(word), "{word} in {ready}");
    }
    assert_eq!(world.status().services.len(), 2, "what was said of the services is still said");
}

#[test]
fn a_host_that_leads_to_two_places_is_refused_before_anything_changes() {
    check_invalid(
        |spec| spec["services"]["web"]["expose"]["hostPrefix"] = json!("ana"),
        &["service web", "user ana", "ana.team.example.com"],
    );
    check_invalid(
        |spec| spec["services"]["db"]["expose"] = json!({ "service": "db", "port": 1, "hostPrefix": "web" }),
        &["service db", "service web"],
    );
    check_invalid(
        |spec| {
            let exposure = json!({ "service": "app", "port": 3000 });
            spec["users"][0]["codeServer"] = json!({ "exposures": [exposure, exposure] });
        },
        &["exposure app of user ana", "app-ana.team.example.com"],
    );
    check_invalid(
        |spec| spec["services"]["web"]["expose"]["access"] = json!("authenticated"),
        &["spec.ingress.authURL"],
    );
    check_invalid(
        |spec| {
            spec["ingress"] = json!({ "class": "traefik", "authURL": "https://auth.example" });
            spec["services"]["web"]["expose"]["access"] = json!("authenticated");
        },
        &["service web", "spec.ingress.controller: nginx", "traefik"],
    );
    check_invalid(|spec| spec["domain"] = Value::Null, &["spec.domain", "service web"]);
    check_invalid(|spec| spec["services"]["web"]["expose"]["hostPrefix"] = json!("x".repeat(64)), &["63 characters"]);
}

#[test]
fn a_release_with_data_stays_until_its_data_may_go() {
    let mut world = World::ready(basic());
    world.change(|spec| drop(spec["services"].as_object_mut().unwrap().remove("db")));
    world.settle();
    assert_eq!(world.done, [""; 0]);
    let ready = world.condition("Ready");
    assert!(ready.starts_with("False DataProtected") && ready.contains("spec.services.db"), "{ready}");
    assert_eq!(world.status().services[1].reason.as_deref(), Some("DataProtected"));
    // Allowed and taken away in one go.
    world.change(|spec| spec["services"]["db"] = json!({ "chart": chart("db"), "deleteData": true, "enabled": false }));
    world.settle();
    assert_eq!(world.done, ["patch HelmRelease db", "delete HelmRelease db"]);
    assert!(world.condition("Ready").starts_with("True"));
}

#[test]
fn w08_a_release_that_only_its_data_holds_stops_with_the_workspace() {
    let mut world = World::ready(basic());
    world.change(|spec| drop(spec["services"].as_object_mut().unwrap().remove("db")));
    for stopped in [true, false] {
        world.change(|spec| spec["stopped"] = json!(stopped));
        world.settle();
        let db = &world.object(ObjectKind::HelmRelease, "db").content.0;
        assert_eq!(db["spec"]["stopped"] == true, stopped);
    }
}

#[test]
fn a_suspended_release_with_data_is_left_behind() {
    let mut world = World::ready(basic());
    world.object(ObjectKind::HelmRelease, "db").content.0["spec"]["suspend"] = json!(true);
    world.delete();
    world.settle();
    assert!(!world.has_finalizer(), "{:?}", world.done);
    assert!(!world.done.contains(&"patch HelmRelease db".to_owned()), "{:?}", world.done);
}

#[test]
fn what_is_not_known_of_a_deployed_release_counts_as_data() {
    let mut world = World::ready(basic());
    let web = world.object(ObjectKind::HelmRelease, "web");
    web.status["holdsData"] = Value::Null;
    world.change(|spec| drop(spec["services"].as_object_mut().unwrap().remove("web")));
    world.workspace_round();
    assert_eq!(world.done, ["delete Ingress team-web"]);
    assert!(world.condition("Ready").starts_with("False DataProtected"));
}

#[test]
fn deletion_waits_for_users_and_releases_and_spares_data() {
    let mut world = World::ready(basic());
    world.delete();
    world.settle();
    assert_eq!(world.done, [""; 0], "nothing goes while data would be lost");
    assert!(world.condition("Ready").starts_with("False DataProtected"));
    assert_eq!(world.status().phase, Some(WorkspacePhase::Terminating));
    world.change(|spec| spec["services"]["db"]["deleteData"] = json!(true));
    world.settle();
    assert!(world.done.contains(&"patch HelmRelease db".to_owned()), "{:?}", world.done);
    assert_eq!(world.done.last().unwrap(), "release finalizer");
    assert!(!world.has_finalizer());
    assert_eq!(world.names(ObjectKind::HelmRelease), [""; 0]);
    assert_eq!(world.names(ObjectKind::User), [""; 0]);
}

#[test]
fn w39_in_a_namespace_that_goes_nothing_is_made_and_nothing_is_held() {
    let mut world = World::ready(basic());
    let before = world.status();
    world.is_namespace_terminating = true;
    world.objects.clear();
    world.settle();
    assert_eq!(world.done, [""; 0]);
    world.delete();
    world.settle();
    assert_eq!(world.done, ["release finalizer"]);
    assert_eq!(world.status(), before);
}

#[test]
fn an_unreadable_spec_is_reported() {
    let mut world = World::new(json!({}));
    world.workspace.spec = None;
    world.settle();
    assert_eq!(world.done, [""; 0]);
    assert!(world.condition("Ready").starts_with("False InvalidSpec"));
}

#[test]
fn transition_times_change_with_the_status_only() {
    let mut world = World::ready(basic());
    let since = world.status().conditions[0].last_transition_time;
    world.now = at(60);
    world.change(|spec| spec["stopped"] = json!(true));
    world.settle();
    // True → False while it stops → True.
    assert_eq!(world.status().conditions[0].last_transition_time, at(60));
    assert_eq!(world.status().conditions[3].last_transition_time, since, "the network did not change");
}

prop_compose! {
    fn spec()(
        services in prop::collection::btree_set("[a-c]", 0..3), users in prop::collection::btree_set("[x-z]", 0..3),
        domain in any::<bool>(), isolation in any::<bool>(), stopped in any::<bool>(), enabled in any::<bool>(),
        right in any::<bool>(), delete in any::<bool>(), text in "[a-z]{0,2}",
    ) -> Value {
        let expose = if domain { json!({ "service": "s", "port": 1 }) } else { Value::Null };
        let source = json!([{ "kind": "Secret", "name": "values" }]);
        let service = json!({ "chart": chart("c"), "enabled": enabled, "expose": expose, "deleteData": delete, "valuesFrom": source });
        let permissions = if right { json!(["code-server"]) } else { json!([]) };
        json!({
            "domain": domain.then_some("example.com"), "stopped": stopped, "network": { "isolation": isolation },
            "services": services.into_iter().map(|name| (name, service.clone())).collect::<serde_json::Map<_, _>>(),
            "users": users.into_iter().map(|slug| json!({ "slug": slug, "email": "a@b", "permissions": permissions })).collect::<Vec<_>>(),
            "configs": { "values": { "kind": "Secret", "data": { "values.yaml": text } } },
        })
    }
}

proptest! {
    /// From any spec to any other, after any number of rounds: everything wanted is there, nothing else, and planning
    /// again yields nothing; strangers are never touched.
    #[test]
    fn every_world_converges(first in spec(), second in spec(), rounds in 0..4, stranger in "[a-c]") {
        let mut world = World::new(first);
        world.stranger(ObjectKind::HelmRelease, &stranger, json!({ "kept": true }));
        for _ in 0..rounds {
            world.workspace_round();
        }
        world.workspace.spec = serde_json::from_value(second).unwrap();
        world.workspace.metadata.generation = Some(2);
        world.settle();
        prop_assert!(world.workspace_plan().steps.is_empty());
        let wanted = world.derived();
        for derived in &wanted {
            prop_assert!(world.objects.contains_key(&derived.id), "{} is missing", derived.id);
        }
        let of_workspace = |found: &plan::workspaces::Found| found.owner_uid.as_deref() == Some("team-uid");
        for (id, _) in world.objects.iter().filter(|(_, found)| of_workspace(found)) {
            prop_assert!(wanted.iter().any(|derived| derived.id == *id), "{id} is left over");
        }
        let kept = &world.objects[&ObjectId::new(ObjectKind::HelmRelease, stranger)];
        prop_assert_eq!(&kept.content.0, &json!({ "kept": true }));
    }

    #[test]
    fn two_derivations_are_the_same_and_actions_never_show_content(spec in spec()) {
        let workspace = workspace(spec);
        let derive = || workspace::derive(&workspace, &workspace::Surroundings::default());
        prop_assert!(derive() == derive());
        let shown = format!("{:?}", World::new(serde_json::to_value(&workspace.spec).unwrap()).workspace_plan());
        prop_assert!(!shown.contains("values.yaml") && !shown.contains("email"));
    }
}

#[test]
fn a_refusal_follows_its_cause_and_not_its_numbers() {
    let mut world = World::new(basic());
    let refuse = |world: &mut World, message: &str| {
        let refused = Progress::Refused(Refusal::Rejected(message.to_owned()));
        world.refusals.insert(ObjectId::new(ObjectKind::HelmRelease, "web"), refused);
        world.workspace_round();
        (world.condition("Ready"), world.status().services[1].message.clone().unwrap())
    };
    let quota = refuse(&mut world, "exceeded quota: q, used: memory=900Mi");
    assert!(quota.0.contains("900Mi") && quota.1.contains("900Mi"), "{quota:?}");
    assert_eq!(refuse(&mut world, "exceeded quota: q, used: memory=1.5Gi"), quota);
    let denied = refuse(&mut world, "admission webhook denied the request");
    assert!(denied.0.contains("admission webhook") && denied.1.contains("admission webhook"), "{denied:?}");
    let long = refuse(&mut world, &"x".repeat(1 << 20));
    assert!(long.0.len() < 5000 && long.1.len() < 5000);
}

#[test]
fn what_cannot_be_read_of_a_child_is_unknown_and_not_none() {
    let mut world = World::ready(basic());
    world.object(ObjectKind::HelmRelease, "web").status = json!("unreadable");
    world.workspace_round();
    let web = &world.status().services[1];
    assert_eq!((web.ready, web.reason.as_deref()), (false, Some("StateUnknown")));
    assert!(web.message.as_deref().is_some_and(|message| message.contains("HelmRelease web cannot be read")));
    // It may hold data.
    world.change(|spec| drop(spec["services"].as_object_mut().unwrap().remove("web")));
    world.done.clear();
    world.workspace_round();
    assert!(!world.done.contains(&"delete HelmRelease web".to_owned()), "{:?}", world.done);
    assert!(world.condition("Ready").contains("DataProtected"), "{}", world.condition("Ready"));
    world.object(ObjectKind::HelmRelease, "web").status = json!({ "holdsData": false });
    world.workspace_round();
    assert!(world.done.contains(&"delete HelmRelease web".to_owned()), "{:?}", world.done);
}
