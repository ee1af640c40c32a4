//! User.

use api::workspace::{User, UserPhase, UserStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use plan::workspaces::{Action, Content, ObjectId, ObjectKind, Objects, fingerprint, user};
use serde_json::{Value, json};

use super::world::{World, at, golden, outdated};

const SET: &str = "code-server-ana";

fn user_of(spec: Value) -> User {
    let metadata = json!({ "name": "ana", "namespace": "ns", "uid": "ana-uid", "labels": { "workspaces.strata.dev/workspace": "team" } });
    serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
}

fn one_user(settings: Value) -> Value {
    json!({ "domain": "example.com", "users": [{
        "slug": "ana", "email": "a@b", "permissions": ["code-server"], "codeServer": settings,
    }] })
}

fn status(world: &World) -> UserStatus {
    world.user("ana").status.unwrap()
}

#[test]
fn w02_golden_objects_of_a_user() {
    let spec = json!({
        "slug": "ana", "email": "a@b", "permissions": ["code-server"], "host": "ana.team.example.com",
        "ingress": { "class": "nginx", "issuer": "letsencrypt", "authURL": "https://auth.example" },
        "imagePullSecrets": [{ "name": "registry" }],
        "codeServer": {
            "resources": { "requests": { "cpu": "500m" } }, "storage": { "size": "5Gi", "class": "fast" },
            "env": [{ "name": "A", "value": "1" }],
            "envFrom": [
                { "kind": "Secret", "name": "team-token-0123456789" },
                { "kind": "ConfigMap", "name": "settings", "key": "LEVEL", "optional": true },
            ],
            "nodeSelector": { "pool": "ide" }, "restartedAt": "2026-01-01",
            "exposures": [{ "service": "app", "port": 3000, "access": "authenticated" }],
        },
    });
    let derived = user::derive(&user_of(spec), &Objects::new()).unwrap();
    insta::assert_json_snapshot!(golden(&derived));
}

#[test]
fn of_variables_and_pull_secrets_with_one_name_there_is_one_and_the_password_stays() {
    let mut spec = one_user(json!({
        "env": [{ "name": "A", "value": "1" }, { "name": "B", "value": "2" }, { "name": "A", "value": "3" },
            { "name": "PASSWORD", "value": "known" }],
        "envFrom": [
            { "kind": "ConfigMap", "name": "first", "key": "LEVEL" }, { "kind": "Secret", "name": "some", "key": "B" },
            { "kind": "ConfigMap", "name": "second", "key": "LEVEL" }, { "kind": "Secret", "name": "some", "key": "PASSWORD" },
        ],
    }));
    spec["imagePullSecrets"] = json!([{ "name": "one" }, { "name": "two" }, { "name": "one" }]);
    let mut world = World::ready(spec);
    let password = world.names(ObjectKind::Secret)[0].to_owned();
    let pod = world.object(ObjectKind::StatefulSet, SET).content.0["spec"]["template"]["spec"].clone();
    assert_eq!(pod["imagePullSecrets"], json!([{ "name": "two" }, { "name": "one" }]));
    let level = json!({ "configMapKeyRef": { "name": "second", "key": "LEVEL", "optional": false } });
    let expected = json!([
        { "name": "PASSWORD", "valueFrom": { "secretKeyRef": { "name": password, "key": "password" } } },
        { "name": "LEVEL", "valueFrom": level },
        { "name": "B", "value": "2" },
        { "name": "A", "value": "3" },
    ]);
    assert_eq!(pod["containers"][0]["env"], expected);
}

/// The User is not ready while a change of the object fails, and what it says of it; then it comes to this phase.
fn is_unfinished_until_done(world: &mut World, id: &ObjectId, says: &str, then: UserPhase) {
    world.refusals.insert(id.clone(), outdated());
    world.user_round("ana");
    let ready = status(world).conditions.remove(0);
    assert_eq!((status(world).phase, ready.reason.as_str()), (Some(UserPhase::Progressing), "StateUnknown"));
    assert!(ready.message.starts_with(&format!("{id} {says}")), "{}", ready.message);
    world.refusals.clear();
    world.settle();
    assert_eq!(status(world).phase, Some(then));
}

#[test]
fn a_user_whose_service_could_not_be_applied_is_not_ready() {
    let mut world = World::ready(one_user(json!({})));
    let service = ObjectId::new(ObjectKind::Service, world.names(ObjectKind::Service)[0]);
    world.objects.remove(&service);
    is_unfinished_until_done(&mut world, &service, "could not be applied yet", UserPhase::Ready);
}

#[test]
fn a_code_server_that_could_not_be_removed_is_not_called_disabled() {
    let mut world = World::ready(one_user(json!({})));
    world.change(|spec| spec["users"][0]["permissions"] = json!([]));
    world.workspace_round();
    let set = ObjectId::new(ObjectKind::StatefulSet, SET);
    is_unfinished_until_done(&mut world, &set, "could not be removed yet", UserPhase::Disabled);
}

#[test]
fn w05_without_the_right_or_disabled_the_compute_goes_and_comes_back_as_it_was() {
    let mut world = World::ready(one_user(json!({})));
    let password = world.names(ObjectKind::Secret)[0].to_owned();
    for change in [json!({ "permissions": [] }), json!({ "codeServer": { "disabled": true } })] {
        world.change(|spec| {
            for (field, value) in change.as_object().unwrap() {
                spec["users"][0][field] = value.clone();
            }
        });
        world.settle();
        assert_eq!(status(&world).phase, Some(UserPhase::Disabled));
        assert_eq!(status(&world).url, None);
        let left: Vec<_> = world.objects.keys().filter(|id| id.name.contains(SET)).map(ToString::to_string).collect();
        assert_eq!(left, [format!("Secret {password}")], "{change}");
        world.change(|spec| spec["users"] = one_user(json!({}))["users"].clone());
        world.settle();
        assert_eq!(status(&world).phase, Some(UserPhase::Ready));
        assert_eq!(world.names(ObjectKind::StatefulSet), [SET]);
        assert_eq!(world.names(ObjectKind::Secret), [password.as_str()], "the password is the same");
    }
}

#[test]
fn w06_restarted_at_changes_the_pod_and_nothing_else_does() {
    let mut world = World::ready(one_user(json!({})));
    world.change(|spec| spec["users"][0]["codeServer"]["restartedAt"] = json!("now"));
    world.settle();
    assert_eq!(world.done, ["apply User ana", "apply StatefulSet code-server-ana"]);
    let set = world.object(ObjectKind::StatefulSet, SET);
    assert_eq!(
        set.content.0["spec"]["template"]["metadata"]["annotations"]["workspaces.strata.dev/restarted-at"],
        "now"
    );
    world.done.clear();
    world.change(|spec| spec["users"][0]["name"] = json!("Ana"));
    world.settle();
    assert_eq!(world.done, ["apply User ana"]);
}

#[test]
fn the_volume_stays_as_it_was_made() {
    let mut world = World::ready(one_user(json!({ "storage": { "size": "1024Mi" } })));
    let claim = |world: &mut World| {
        world.object(ObjectKind::StatefulSet, SET).content.0["spec"]["volumeClaimTemplates"][0]["spec"].clone()
    };
    assert_eq!(claim(&mut world)["resources"]["requests"]["storage"], "1024Mi");
    // As the server writes it.
    world.object(ObjectKind::StatefulSet, SET).content.0["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]
        ["storage"] = json!("1Gi");
    world.settle();
    assert_eq!(world.done, [""; 0], "the same size in other words");
    world.change(|spec| spec["users"][0]["codeServer"]["storage"] = json!({ "size": "2Gi", "class": "fast" }));
    world.settle();
    assert_eq!(claim(&mut world)["resources"]["requests"]["storage"], "1Gi");
    assert_eq!(claim(&mut world)["storageClassName"], Value::Null);

    let mut world = World::ready(one_user(json!({ "storage": { "size": "1Gi", "class": "fast" } })));
    world.change(|spec| spec["users"][0]["codeServer"] = json!({ "storage": { "size": "1Gi" } }));
    world.settle();
    assert_eq!(claim(&mut world)["storageClassName"], "fast");
}

#[test]
fn a_lost_password_is_replaced_and_rolled_out_once() {
    let mut world = World::ready(one_user(json!({})));
    let password = world.names(ObjectKind::Secret)[0].to_owned();
    let lost = world.contents[&ObjectId::new(ObjectKind::Secret, password.as_str())].clone();
    world.objects.remove(&ObjectId::new(ObjectKind::Secret, password.as_str()));
    world.settle();
    let new = world.names(ObjectKind::Secret)[0].to_owned();
    assert_ne!(new, password, "a pod reads its password only when it starts");
    assert_eq!(world.done, [format!("apply Secret {new}"), "apply StatefulSet code-server-ana".to_owned()]);
    assert_ne!(world.contents[&ObjectId::new(ObjectKind::Secret, new)], lost);
    assert_eq!(status(&world).phase, Some(UserPhase::Ready));
}

/// As the StatefulSet controller does it.
fn make_claim(world: &mut World) {
    let template = &world.object(ObjectKind::StatefulSet, SET).content.0["spec"]["volumeClaimTemplates"][0];
    let metadata = json!({ "labels": template["metadata"]["labels"] });
    world.stranger(ObjectKind::PersistentVolumeClaim, "home-code-server-ana-0", json!({ "metadata": metadata }));
}

#[test]
fn the_volume_goes_with_the_user_only_where_the_spec_says_so() {
    for (retention, last) in [("retain", "delete User ana"), ("delete", "release finalizer")] {
        let mut world = World::ready(one_user(json!({ "storage": { "retention": retention } })));
        make_claim(&mut world);
        let mut user = world.user("ana");
        assert_eq!(user.metadata.finalizers.is_some(), retention == "delete");
        world.change(|spec| spec["users"] = json!([]));
        if retention == "retain" {
            world.settle();
        } else {
            user.metadata.deletion_timestamp = Some(Time(at(0)));
            for expected in
                ["delete StatefulSet code-server-ana", "delete PersistentVolumeClaim home-code-server-ana-0"]
            {
                let plan = world.user_plan(&user, &world.user_observed(&user));
                assert!(format!("{plan:?}").contains(expected.rsplit(' ').next().unwrap()), "{plan:?}");
                world.objects.retain(|id, _| format!("delete {id}") != expected);
            }
            let plan = world.user_plan(&user, &world.user_observed(&user));
            assert!(format!("{plan:?}").contains("ReleaseFinalizer"), "{plan:?}");
            world.done.push(last.to_owned());
        }
        assert_eq!(world.done.last().unwrap(), last);
        assert_eq!(world.names(ObjectKind::PersistentVolumeClaim).len(), usize::from(retention == "retain"));
    }
}

#[test]
fn w11_labels_of_the_password_are_repaired_and_its_content_is_left_alone() {
    const LABEL: &str = "app.kubernetes.io/managed-by";
    let mut world = World::ready(one_user(json!({})));
    let password = world.names(ObjectKind::Secret)[0].to_owned();
    let user = world.user("ana");
    let whole = world.object(ObjectKind::Secret, &password).content.0.clone();
    world.object(ObjectKind::Secret, &password).content.0["metadata"]["labels"][LABEL] = json!("another");
    let plan = world.user_plan(&user, &world.user_observed(&user));
    let [Action::Patch { id, patch, .. }] = &plan.actions().collect::<Vec<_>>()[..] else { panic!("{plan:?}") };
    assert_eq!((id.name.as_str(), &patch.0["metadata"]["labels"][LABEL]), (password.as_str(), &json!("strata")));
    assert_eq!(patch.0.as_object().unwrap().len(), 1, "nothing but metadata");
    world.settle();
    assert_eq!(world.object(ObjectKind::Secret, &password).content.0, whole);

    // What a webhook undoes is not asked for again.
    let live = world.object(ObjectKind::Secret, &password);
    live.content.0["metadata"]["labels"][LABEL] = json!("another");
    live.accepted = Some(fingerprint(&live.content.0));
    let plan = world.user_plan(&user, &world.user_observed(&user));
    assert!(plan.steps.is_empty(), "{plan:?}");
}

#[test]
fn w11_the_volume_of_a_person_who_is_still_listed_stays() {
    let mut world = World::ready(one_user(json!({ "storage": { "retention": "delete" } })));
    make_claim(&mut world);
    let mut user = world.user("ana");
    user.metadata.deletion_timestamp = Some(Time(at(0)));
    let check = |world: &World, user: &User, goes: bool| {
        let mut observed = world.user_observed(user);
        observed.objects.remove(&ObjectId::new(ObjectKind::StatefulSet, SET));
        let actions = format!("{:?}", world.user_plan(user, &observed).steps);
        assert_eq!(actions.contains("home-code-server-ana-0"), goes, "{actions}");
        assert!(actions.contains("ReleaseFinalizer"), "{actions}");
    };
    check(&world, &user, false);
    let mut unreadable = World::ready(one_user(json!({})));
    unreadable.objects = world.objects.clone();
    unreadable.workspace.spec = None;
    check(&unreadable, &user, false);
    // No Workspace would make these again.
    let mut alone = user.clone();
    alone.metadata.owner_references = None;
    check(&world, &alone, true);
    let mut of_former = user.clone();
    of_former.metadata.owner_references.as_mut().unwrap()[0].uid = "another".to_owned();
    check(&world, &of_former, true);
    world.delete();
    check(&world, &user, true);
    world.workspace.metadata.deletion_timestamp = None;
    world.change(|spec| spec["users"][0]["slug"] = json!("bob"));
    check(&world, &user, true);
}

#[test]
fn a_user_that_goes_leaves_the_volumes_of_others_of_its_slug() {
    let set = ObjectId::new(ObjectKind::StatefulSet, SET);
    let settings = json!({ "storage": { "retention": "delete" } });
    let mut world = World::ready(one_user(settings.clone()));
    make_claim(&mut world);
    world.change(|spec| spec["users"] = json!([]));
    let mut other = user_of(one_user(settings)["users"][0].clone());
    other.metadata.finalizers = Some(vec!["workspaces.strata.dev/finalizer".to_owned()]);
    for mut user in [other, world.user("ana")] {
        user.metadata.deletion_timestamp = Some(Time(at(0)));
        let is_maker = user.metadata.uid.as_deref() != Some("ana-uid");
        for holder in [None, Some("another")] {
            let mut observed = world.user_observed(&user);
            match holder {
                Some(holder) => observed.objects.get_mut(&set).unwrap().owner_uid = Some(holder.to_owned()),
                None => drop(observed.objects.remove(&set)),
            }
            let found = format!("{:?}", world.user_plan(&user, &observed).steps);
            assert_eq!(found.contains("home-code-server-ana-0"), is_maker && holder.is_none(), "{found}");
            assert!(found.contains("ReleaseFinalizer") && !found.contains("StatefulSet"), "{found}");
        }
    }
}

#[test]
fn a_user_of_another_workspace_label_keeps_the_template_of_its_volume() {
    let world = World::ready(one_user(json!({})));
    let mut user = world.user("ana");
    let before = user::derive(&user, &world.objects).unwrap();
    user.metadata.labels = None;
    let after = user::derive(&user, &world.objects).unwrap();
    let set = |derived: &[_]| golden(derived).into_iter().find(|body| body["kind"] == "StatefulSet").unwrap();
    let (before, after) = (set(&before), set(&after));
    assert_ne!(before["metadata"]["labels"], after["metadata"]["labels"]);
    assert_eq!(before["spec"]["volumeClaimTemplates"], after["spec"]["volumeClaimTemplates"]);
}

#[test]
fn w07_the_pod_says_why_a_user_fails() {
    let mut world = World::ready(one_user(json!({})));
    world.object(ObjectKind::StatefulSet, SET).status["readyReplicas"] = json!(0);
    let check = |world: &World, pod: Value, phase: UserPhase, words: &str| {
        let user = world.user("ana");
        let observed = user::Observed { pod: Some(user::PodFacts::read(&pod)), ..world.user_observed(&user) };
        let plan = world.user_plan(&user, &observed);
        assert!(plan.steps.is_empty());
        let status = world.user_status(&user, &observed, &plan, &[]);
        let ready = &status.conditions[0];
        assert_eq!((status.phase, format!("{} {}", ready.reason, ready.message).as_str()), (Some(phase), words));
    };
    let waiting = |reason: &str| json!({ "containerStatuses": [{ "state": { "waiting": { "reason": reason, "message": "m" } } }] });
    check(&world, waiting("ContainerCreating"), UserPhase::Progressing, "Starting The code-server is starting");
    let words = "ImagePullFailed The code-server does not start: ErrImagePull: m";
    check(&world, waiting("ErrImagePull"), UserPhase::Failed, words);
    check(
        &world,
        waiting("CrashLoopBackOff"),
        UserPhase::Failed,
        "CrashLoop The code-server does not start: CrashLoopBackOff: m",
    );
    for word in ["RunContainerError", "CreateContainerConfigError"] {
        let words = format!("ContainerConfigError The code-server does not start: {word}: m");
        check(&world, waiting(word), UserPhase::Failed, &words);
    }
    let words_of = |word: &str| format!("ImagePullFailed The code-server does not start: {word}: m");
    for word in ["ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed"] {
        check(&world, waiting(word), UserPhase::Failed, &words_of(word));
    }
    let beside = |ours: Value, init: Value| {
        let sidecar = json!({ "name": "agent", "state": { "running": {} } });
        let ours = json!({ "name": "code-server", "state": ours });
        json!({ "containerStatuses": [sidecar, ours], "initContainerStatuses": [{ "name": "setup", "state": init }] })
    };
    let failing = |word: &str| json!({ "waiting": { "reason": word, "message": "m" } });
    let pod = beside(failing("ErrImagePull"), json!({ "terminated": { "exitCode": 0 } }));
    check(&world, pod, UserPhase::Failed, words);
    let pod = beside(failing("PodInitializing"), failing("CrashLoopBackOff"));
    let words = "CrashLoop The container setup beside the code-server does not start: CrashLoopBackOff: m";
    check(&world, pod, UserPhase::Failed, words);
    let pending = json!({ "conditions": [{ "type": "PodScheduled", "reason": "Unschedulable", "message": "full" }] });
    check(&world, pending, UserPhase::Failed, "SchedulingFailed No node can run the code-server: full");
}

#[test]
fn names_of_one_user_never_meet_those_of_another() {
    let with = |slug: &str, exposure: &str| {
        let exposures = json!([{ "service": exposure, "port": 3000 }]);
        json!({ "slug": slug, "email": "a@b", "permissions": ["code-server"], "codeServer": { "exposures": exposures } })
    };
    let mut world = World::new(json!({ "domain": "example.com", "users": [with("ana", "x"), with("ana-x", "y")] }));
    world.settle();
    assert!(world.condition("Ready").starts_with("True"), "{}", world.condition("Ready"));
    assert_eq!(world.names(ObjectKind::Ingress).len(), 4);
}

#[test]
fn two_users_of_one_slug_do_not_share() {
    let mut world = World::ready(one_user(json!({})));
    world.object(ObjectKind::StatefulSet, SET).owner_uid = Some("another".to_owned());
    world.user_round("ana");
    let ready = &status(&world).conditions[0];
    assert_eq!(ready.reason.as_str(), "ObjectTaken");
    assert!(ready.message.contains("StatefulSet code-server-ana"));
}

#[test]
fn nothing_runs_as_or_is_bound_to_what_is_a_strangers() {
    for (kind, binding, set) in [
        (ObjectKind::ServiceAccount, None, None),
        (ObjectKind::Role, None, Some(SET)),
        (ObjectKind::Service, Some(SET), Some(SET)),
    ] {
        let mut world = World::ready(one_user(json!({})));
        // All but the account, the Role or the Service, which another controller has, is to be made anew.
        world.objects.retain(|id, _| id.kind == kind || matches!(id.kind, ObjectKind::User | ObjectKind::Secret));
        world.object(kind, SET).owner_uid = None;
        world.user_round("ana");
        assert_eq!(world.names(ObjectKind::RoleBinding).first().copied(), binding, "{kind:?}");
        assert_eq!(world.names(ObjectKind::StatefulSet).first().copied(), set, "{kind:?}");
        let ready = &status(&world).conditions[0];
        assert_eq!(ready.reason.as_str(), "ObjectTaken");
        assert!(ready.message.starts_with(&format!("{} {SET}", kind.as_str())), "{}", ready.message);
    }
}

#[test]
fn a_password_that_is_a_strangers_is_not_read() {
    let user = user_of(json!({ "slug": "ana", "email": "a@b", "permissions": ["code-server"] }));
    let derived = user::derive(&user, &Objects::new()).unwrap();
    let secret = derived.iter().find(|derived| derived.id.kind == ObjectKind::Secret).unwrap().id.clone();
    let mut world = World::ready(one_user(json!({})));
    let mut theirs = world.object(ObjectKind::ServiceAccount, SET).clone();
    theirs.owner_uid = None;
    let observed = user::Observed {
        is_listed: true,
        is_namespace_terminating: false,
        objects: Objects::from([(secret, theirs)]),
        pod: None,
    };
    let plan = format!("{:?}", world.user_plan(&user, &observed).steps);
    assert!(
        plan.contains("ServiceAccount") && !plan.contains("StatefulSet") && !plan.contains("RoleBinding"),
        "{plan}"
    );
}

#[test]
fn a_refused_account_stops_what_relies_on_it_and_nothing_else() {
    let mut world = World::new(one_user(json!({})));
    world.workspace_round();
    let refused = plan::round::Progress::Refused(plan::round::Refusal::Rejected("no".to_owned()));
    world.refusals.insert(ObjectId::new(ObjectKind::ServiceAccount, SET), refused);
    world.user_round("ana");
    assert_eq!(world.names(ObjectKind::StatefulSet).len() + world.names(ObjectKind::RoleBinding).len(), 0);
    for kind in [ObjectKind::Role, ObjectKind::Service, ObjectKind::Ingress] {
        assert_eq!(world.names(kind), [SET], "{kind:?}");
    }
    assert_eq!(status(&world).conditions[0].reason.as_str(), "ObjectRejected");
    let refusals = std::mem::take(&mut world.refusals);
    world.settle();
    assert_eq!(status(&world).phase, Some(UserPhase::Ready));
    // An account that is there serves, even if it cannot be repaired.
    world.refusals = refusals;
    world.object(ObjectKind::ServiceAccount, SET).content.0["metadata"]["labels"] = json!({});
    world.change(|spec| spec["stopped"] = json!(true));
    world.workspace_round();
    world.user_round("ana");
    assert_eq!(world.object(ObjectKind::StatefulSet, SET).content.0["spec"]["replicas"], 0);
}

#[test]
fn the_finalizer_is_not_released_before_the_volume_is_deleted() {
    let mut world = World::ready(one_user(json!({ "storage": { "retention": "delete" } })));
    make_claim(&mut world);
    let mut user = world.user("ana");
    user.metadata.deletion_timestamp = Some(Time(at(0)));
    world.change(|spec| spec["users"] = json!([]));
    world.objects.remove(&ObjectId::new(ObjectKind::StatefulSet, SET));
    let plan = world.user_plan(&user, &world.user_observed(&user));
    assert!(matches!(plan.steps[0].action, Action::Delete { .. }));
    assert!(matches!(plan.steps[1].action, Action::ReleaseFinalizer { .. }));
    assert_eq!(plan.steps[1].needs.iter().map(|need| need.index()).collect::<Vec<_>>(), [0]);
}

#[test]
fn the_plan_knows_no_password() {
    let world = {
        let mut world = World::new(one_user(json!({})));
        world.workspace_round();
        world
    };
    let user = world.user("ana");
    let plan = world.user_plan(&user, &world.user_observed(&user));
    let secret = plan.actions().find_map(|action| match action {
        Action::Apply { id, body, content } if id.kind == ObjectKind::Secret => Some((body.0.clone(), content.clone())),
        _ => None,
    });
    let (body, content) = secret.unwrap();
    assert_eq!((&body["data"], &body["stringData"], content), (&Value::Null, &Value::Null, Some(Content::NewPassword)));
    assert_eq!(body["immutable"], true);
}

#[test]
fn a_back_off_between_two_pulls_is_no_news() {
    let mut world = World::ready(one_user(json!({})));
    world.object(ObjectKind::StatefulSet, SET).status["readyReplicas"] = json!(0);
    let mut pull = |word: &str, message: &str| {
        let user = world.user("ana");
        let waiting = json!({ "waiting": { "reason": word, "message": message } });
        let pod = user::PodFacts::read(&json!({ "containerStatuses": [{ "name": "code-server", "state": waiting }] }));
        let observed = user::Observed { pod: Some(pod), ..world.user_observed(&user) };
        let plan = world.user_plan(&user, &observed);
        let status = world.user_status(&user, &observed, &plan, &[]);
        world.object(ObjectKind::User, "ana").status = json!(status);
        status.conditions[0].message.clone()
    };
    let failed = "The code-server does not start: ErrImagePull: not found";
    assert_eq!(pull("ErrImagePull", "not found"), failed);
    assert_eq!(pull("ImagePullBackOff", "Back-off pulling image"), failed, "kubelet waits for its next try");
    assert_eq!(pull("ErrImagePull", "not found"), failed);
    assert!(pull("ErrImagePull", "no such host").contains("no such host"));
}
