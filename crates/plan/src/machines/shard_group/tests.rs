use api::condition::{ConditionStatus, ConditionType, Reason};
use api::machine::{NstanceShardGroupStatus, SHARD_GROUP_FINALIZER};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, from_value, to_value};

use super::super::shard::{Answer, Group, Instance, Members};
use super::*;
use crate::event::EventKind;
use crate::fact::{Class, Fact, Failure};
use crate::round::{Inputs, Plan, Progress};
use crate::shard::instance::MachineStatus;

fn object(fields: &Value) -> NstanceShardGroup {
    let mut spec = json!({ "group": "web", "shard": "dev-1", "size": 2, "template": "small" });
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let metadata = json!({
        "name": "web--dev-1", "namespace": "strata-system", "uid": "u", "generation": 3,
        "finalizers": [SHARD_GROUP_FINALIZER],
    });
    from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
}

fn instance(id: &str) -> Instance {
    Instance {
        id: id.to_owned(),
        provider_id: format!("raw-{id}"),
        node_provider_id: format!("process:///dev-1/{id}"),
        status: MachineStatus::Running,
        created_at: None,
        is_leaving: false,
    }
}

fn group(size: i32, ids: &[&str]) -> Group {
    let members = Members::Listed(ids.iter().map(|id| instance(id)).collect());
    Group { template: "small".to_owned(), size, members, ..Group::default() }
}

fn answers(poll: u64, group: Option<Group>) -> Observed {
    let age = std::time::Duration::ZERO;
    Observed { shard: Shard::Configured(Fact::Known { value: Answer { poll, group }, age }), ..Observed::default() }
}

fn silent(observed: &Observed) -> Observed {
    let Shard::Configured(Fact::Known { value, age }) = &observed.shard else { panic!("it is silent already") };
    let why = Failure { class: Class::Transient, message: "connection refused".to_owned() };
    Observed { shard: Shard::Configured(Fact::Unknown { why, last: Some((value.clone(), *age)) }), ..observed.clone() }
}

fn planned(object: &NstanceShardGroup, observed: &Observed) -> Plan<Action> {
    planned_with(object, observed, &Note::default())
}

fn planned_with(object: &NstanceShardGroup, observed: &Observed, note: &Note) -> Plan<Action> {
    let read: Observed = from_value(to_value(observed).unwrap()).unwrap();
    assert_eq!(&read, observed, "written to a file and read back");
    plan(object, observed, note)
}

fn pushes(plan: &Plan<Action>) -> Vec<(i32, Vec<&str>)> {
    let push = |action: &'_ Action| match action {
        Action::Upsert { push, .. } => Some(push.clone()),
        _ => None,
    };
    let found: Vec<Push> = plan.actions().filter_map(push).collect();
    assert!(found.len() <= 1, "{found:?}");
    plan.actions()
        .filter_map(|action| match action {
            Action::Upsert { push, .. } => {
                Some((push.size, push.remove_first.iter().map(String::as_str).collect::<Vec<_>>()))
            }
            _ => None,
        })
        .collect()
}

fn status_after(
    object: &NstanceShardGroup,
    observed: &Observed,
    note: &Note,
) -> crate::round::Report<NstanceShardGroupStatus, Note> {
    let plan = plan(object, observed, note);
    let progress: Vec<_> = plan.steps.iter().map(|_| Progress::NotBegun).collect();
    let inputs = Inputs { note: note.clone(), ..Inputs::default() };
    let round = RoundOf { object, observed, inputs: &inputs, plan: &plan, progress: &progress };
    report(&round, Timestamp::UNIX_EPOCH)
}

fn condition(status: &NstanceShardGroupStatus, kind: ConditionType) -> (ConditionStatus, Reason) {
    status.condition(kind).map(|condition| (condition.status, condition.reason)).unwrap()
}

fn tried(push: &Push, poll: u64, outcome: Outcome) -> Tried {
    Tried { digest: push.digest(), poll, outcome }
}

fn first_push(plan: &Plan<Action>) -> Push {
    let push = |action: &Action| match action {
        Action::Upsert { push, .. } => Some(push.clone()),
        _ => None,
    };
    plan.actions().find_map(push).unwrap()
}

#[test]
fn a36_the_finalizer_comes_before_the_first_call() {
    let mut object = object(&json!({}));
    object.metadata.finalizers = None;
    let plan = planned(&object, &answers(1, None));
    assert!(
        matches!(&plan.steps[0].action, Action::AddFinalizer { finalizers } if finalizers == &[SHARD_GROUP_FINALIZER])
    );
    assert!(matches!(&plan.steps[1].action, Action::Upsert { push, .. } if push.size == 2 && push.template == "small"));
    assert_eq!(plan.steps[1].needs.len(), 1);
    assert!(plan.steps[1].is_job, "a round never waits for a shard");
    assert_eq!(&*plan.steps[1].peer.0, "shard dev-1");
}

#[test]
fn a33_what_a_shard_has_is_not_asked_for_again() {
    let of_shard = Group {
        instance_type: "their-own".to_owned(),
        subnet_pool: "private".to_owned(),
        vars: [("of".to_owned(), "template".to_owned())].into(),
        ..group(2, &["a", "b"])
    };
    let same = planned(&object(&json!({})), &answers(1, Some(of_shard.clone())));
    assert_eq!(same.steps, [], "what is not declared is the shard's");
    for (declared, what) in [
        (json!({ "size": 3 }), "size"),
        (json!({ "template": "large" }), "template"),
        (json!({ "instanceType": "other" }), "type"),
        (json!({ "subnetPool": "other" }), "pool"),
        (json!({ "subnets": ["other"] }), "subnets"),
        (json!({ "vars": { "of": "pool" } }), "vars"),
    ] {
        let plan = planned(&object(&declared), &answers(1, Some(of_shard.clone())));
        assert_eq!(plan.steps.len(), 1, "{what}");
    }
}

#[test]
fn a33_what_a_shard_has_beside_what_is_declared_is_named() {
    let kept = Group {
        instance_type: "large".to_owned(),
        vars: [("a".to_owned(), "1".to_owned()), ("b".to_owned(), "2".to_owned())].into(),
        ..group(2, &["a", "b"])
    };
    let said = |fields: &Value, group: &Group| {
        let status = status_after(&object(fields), &answers(1, Some(group.clone())), &Note::default()).status;
        assert_eq!(condition(&status, ConditionType::Ready), (ConditionStatus::True, Reason::SyncSucceeded));
        status.condition(ConditionType::Ready).unwrap().message.clone()
    };
    let fine = "the shard has the group as declared";
    assert_eq!(said(&json!({ "instanceType": "large", "vars": { "a": "1", "b": "2" } }), &kept), fine);
    let removed = said(&json!({ "vars": { "a": "1" } }), &kept);
    assert!(removed.contains("also has the instance type large and the vars b, which no request"), "{removed}");
    let removed = said(&json!({ "instanceType": "large" }), &kept);
    assert!(removed.contains("also has the vars a, b, which no request can clear"), "{removed}");
    assert_eq!(said(&json!({}), &Group { is_static: true, ..kept }), fine, "it is the configuration's");
}

#[test]
fn a90_a_shard_that_lost_or_changed_a_group_gets_it_again_once_per_poll() {
    let object = object(&json!({}));
    for found in
        [None, Some(group(5, &["a", "b"])), Some(Group { template: "other".to_owned(), ..group(2, &["a", "b"]) })]
    {
        let observed = answers(7, found);
        let push = first_push(&planned(&object, &observed));
        assert_eq!(push.size, 2);
        let running = Observed { call: Call::Running { digest: push.digest() }, ..observed.clone() };
        assert_eq!(planned(&object, &running).steps, [], "it is under way");
        for outcome in [Outcome::Accepted, Outcome::Refused("no".into()), Outcome::Unreachable("gone".into())] {
            let ended = Observed { call: Call::Ended(tried(&push, 7, outcome.clone())), ..observed.clone() };
            assert_eq!(planned(&object, &ended).steps, [], "{outcome:?}: not twice on one list");
            let note = status_after(&object, &ended, &Note::default()).note;
            let reported = Observed { call: Call::None, ..observed.clone() };
            assert_eq!(planned_with(&object, &reported, &note).steps, [], "{outcome:?}: nor in a later round");
            let Some(Answer { group, .. }) = observed.shard.answer().cloned() else { panic!("it answered") };
            assert_eq!(planned_with(&object, &answers(8, group), &note).steps.len(), 1, "{outcome:?}: the next list");
        }
    }
}

#[test]
fn a23_a_changed_spec_does_not_wait_for_the_next_poll() {
    let observed = answers(7, Some(group(2, &["a", "b"])));
    let before = first_push(&planned(&object(&json!({ "size": 3 })), &observed));
    let ended = Observed { call: Call::Ended(tried(&before, 7, Outcome::Accepted)), ..observed };
    assert_eq!(pushes(&planned(&object(&json!({ "size": 4 })), &ended)), [(4, vec![])]);
}

#[test]
fn a95_a_size_is_lowered_only_by_what_is_drained_and_names_it() {
    let object = object(&json!({ "size": 1 }));
    let observed = answers(1, Some(group(3, &["a", "b", "c"])));
    assert_eq!(planned(&object, &observed).steps, [], "nothing is drained yet");
    let one = Observed { released: ["b".to_owned()].into(), ..observed.clone() };
    assert_eq!(pushes(&planned(&object, &one)), [(2, vec!["b"])]);
    let both = Observed { released: ["b".to_owned(), "c".to_owned()].into(), ..observed.clone() };
    assert_eq!(pushes(&planned(&object, &both)), [(1, vec!["b", "c"])]);

    // The shard has lowered its size, and has not removed the instance yet.
    let accepted = Observed { released: one.released.clone(), ..answers(2, Some(group(2, &["a", "b", "c"]))) };
    assert_eq!(planned(&object, &accepted).steps, [], "named again at the same size it would be replaced");
    let removed = Observed { released: one.released, ..answers(3, Some(group(2, &["a", "c"]))) };
    assert_eq!(planned(&object, &removed).steps, []);
    assert_eq!(
        status_after(&object, &removed, &Note::default()).status.condition(ConditionType::Ready).unwrap().message,
        "1 instances are drained before shard dev-1 removes them"
    );
}

#[test]
fn instances_that_are_not_made_yet_need_no_drain() {
    let observed = answers(1, Some(group(5, &["a", "b"])));
    assert_eq!(pushes(&planned(&object(&json!({ "size": 1 })), &observed)), [(2, vec![])]);
}

#[test]
fn a_replacement_beside_the_one_it_replaces_changes_no_size() {
    let more = answers(1, Some(group(2, &["a", "b", "c"])));
    assert_eq!(planned(&object(&json!({})), &more).steps, []);
    let shrinking = Observed { released: ["a".to_owned()].into(), ..answers(1, Some(group(2, &["a", "b", "c"]))) };
    assert_eq!(planned(&object(&json!({ "size": 1 })), &shrinking).steps, [], "one of the three is going by itself");
}

#[test]
fn a_released_member_of_a_group_that_keeps_its_size_is_replaced() {
    let observed = Observed { released: ["a".to_owned()].into(), ..answers(1, Some(group(2, &["a", "b"]))) };
    assert_eq!(pushes(&planned(&object(&json!({})), &observed)), [(2, vec!["a"])]);
    let replaced = Observed { released: observed.released.clone(), ..answers(2, Some(group(2, &["a", "b", "c"]))) };
    assert_eq!(planned(&object(&json!({})), &replaced).steps, [], "its successor is there");
    let going = Observed { is_pool_going: true, ..observed };
    assert_eq!(planned(&object(&json!({})), &going).steps, [], "it goes with its pool");
}

#[test]
fn a_server_that_names_no_instances_removes_the_oldest_once_they_are_drained() {
    let members = Members::Counted(vec!["i-1".into(), "i-2".into(), "i-3".into()]);
    let observed = answers(1, Some(Group { members, ..group(3, &[]) }));
    let old = |name: &str, is_drained| OldNode { name: name.to_owned(), is_drained, is_held: is_drained };
    let with = |value: Vec<OldNode>| {
        let oldest = Fact::Known { value, age: std::time::Duration::ZERO };
        Observed { oldest, ..observed.clone() }
    };
    let object = object(&json!({ "size": 1 }));
    let plan = planned(&object, &with(vec![old("n1", false), old("n2", false), old("n3", false)]));
    let drains: Vec<_> = plan.actions().cloned().collect();
    assert_eq!(drains, [Action::DrainNode { node: "n1".into() }, Action::DrainNode { node: "n2".into() }]);
    let later = planned(&object, &with(vec![old("n1", false), old("n2", true), old("n3", false)]));
    assert_eq!(pushes(&later), [], "the oldest is the one that would go");
    let first = planned(&object, &with(vec![old("n1", true), old("n2", false), old("n3", false)]));
    assert_eq!(pushes(&first), [(2, vec![])]);
    let unknown = planned(&object, &observed);
    assert_eq!((unknown.steps.len(), unknown.blocked[0].reason), (0, Reason::StateUnknown));
    let message = |observed: &Observed| {
        let status = status_after(&object, observed, &Note::default()).status;
        status.condition(ConditionType::Ready).unwrap().message.clone()
    };
    assert!(message(&observed).contains("Nodes of the group are not known"), "{}", message(&observed));
    // An instance without a Node needs no drain, and may be the oldest or not.
    assert_eq!(pushes(&planned(&object, &with(vec![]))), [(1, vec![])]);
    assert_eq!(pushes(&planned(&object, &with(vec![old("n3", true)]))), [(1, vec![])]);
    let one = planned(&object, &with(vec![old("n3", false)]));
    assert_eq!(one.actions().collect::<Vec<_>>(), [&Action::DrainNode { node: "n3".into() }]);
}

#[test]
fn a_node_whose_drain_is_wanted_no_more_is_returned_and_one_about_to_go_is_not() {
    let counted = |size: i32, ids: &[&str]| {
        let members = Members::Counted(ids.iter().map(|&id| id.to_owned()).collect());
        answers(1, Some(Group { members, ..group(size, &[]) }))
    };
    let held = |name: &str, is_drained| OldNode { name: name.to_owned(), is_drained, is_held: true };
    let free = |name: &str| OldNode { name: name.to_owned(), is_drained: false, is_held: false };
    let with = |observed: Observed, value: Vec<OldNode>, drains: &[&str]| {
        let oldest = Fact::Known { value, age: std::time::Duration::ZERO };
        Observed { oldest, drains: drains.iter().map(|&name| name.to_owned()).collect(), ..observed }
    };
    let actions = |size: i32, observed: &Observed| {
        planned(&object(&json!({ "size": size })), observed).actions().cloned().collect::<Vec<_>>()
    };
    let back = |node: &str| Action::ReturnNode { node: node.to_owned() };
    let rest = |node: &str| Action::ReleaseDrain { node: node.to_owned() };
    let three = || counted(3, &["i-1", "i-2", "i-3"]);
    // The size was lowered and raised again; also where an earlier process began.
    let again = with(three(), vec![held("n1", true), held("n2", false), free("n3")], &["n1"]);
    assert_eq!(actions(3, &again), [back("n1"), back("n2")]);
    assert_eq!(actions(3, &with(three(), vec![free("n1"), free("n2")], &[])), []);
    let one = actions(2, &again);
    assert!(one.contains(&back("n2")) && !one.contains(&back("n1")), "{one:?}");
    // A drain that is not cordoned yet.
    assert_eq!(actions(3, &with(three(), vec![free("n1")], &["n1"])), [back("n1")]);
    // The server has taken the size, and has not removed the oldest yet: nothing may be let in there.
    let lowered = with(counted(2, &["i-1", "i-2", "i-3"]), vec![held("n1", true), free("n2")], &["n1"]);
    assert_eq!(actions(2, &lowered), []);
    // It has: the Node may still be there for a while.
    assert_eq!(actions(2, &with(counted(2, &["i-2", "i-3"]), vec![free("n2")], &["n1"])), [rest("n1")]);
    let emptied = Observed { drains: ["n1".to_owned()].into(), ..answers(1, Some(group(0, &[]))) };
    assert_eq!(actions(0, &emptied), [rest("n1")]);
    // What was let in again is drained again.
    let used = with(three(), vec![free("n1"), free("n2")], &["n1"]);
    assert_eq!(actions(2, &used), [Action::DrainNode { node: "n1".to_owned() }]);
    // While paused nothing goes on.
    assert_eq!(actions(2, &Observed { is_paused: true, ..again }), [rest("n1")]);
}

#[test]
fn a90_a_shard_that_lost_a_group_is_asked_for_no_less_than_it_had() {
    let mut object = object(&json!({ "size": 1 }));
    object.status = Some(status_after(&object, &answers(1, Some(group(3, &["a", "b", "c"]))), &Note::default()).status);
    let lost = Observed { released: ["x".to_owned()].into(), ..answers(2, None) };
    assert_eq!(pushes(&planned(&object, &lost)), [(3, vec![])], "none of the three is drained");
    let unsynced = NstanceShardGroup { status: None, ..object.clone() };
    assert_eq!(pushes(&planned(&unsynced, &Observed { members: 2, ..lost.clone() })), [(2, vec![])]);
    let status = status_after(&object, &lost, &Note::default()).status;
    assert_eq!((status.provider_ids.len(), status.replicas), (3, 3), "what was published stays");
    assert_eq!(condition(&status, ConditionType::Ready).0, ConditionStatus::False);

    object.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    let plan = planned(&object, &lost);
    assert_eq!((pushes(&plan), first_push(&plan).template), (vec![(3, vec![])], "small".to_owned()), "to drain them");
    let refused = Call::Ended(tried(&first_push(&plan), 2, Outcome::Refused("no such template".to_owned())));
    let given_up = planned(&object, &Observed { call: refused, ..lost });
    assert!(matches!(given_up.actions().collect::<Vec<_>>()[..], [Action::ReleaseFinalizer { .. }]));
}

#[test]
fn a_shard_group_that_its_pool_still_wants_is_released_as_it_is() {
    let object = going(&json!({}));
    let observed = Observed { is_wanted: true, ..answers(1, Some(group(2, &["a", "b"]))) };
    for observed in [observed.clone(), silent(&observed)] {
        let plan = planned(&object, &observed);
        assert!(matches!(plan.actions().collect::<Vec<_>>()[..], [Action::ReleaseFinalizer { .. }]));
        let inputs = Inputs::default();
        let progress = [Progress::Done(())];
        let round = RoundOf { object: &object, observed: &observed, inputs: &inputs, plan: &plan, progress: &progress };
        assert_eq!(report(&round, Timestamp::UNIX_EPOCH).done, [], "no group was deleted");
    }
}

#[test]
fn a35_a_silent_shard_is_unreachable_and_what_it_said_stays() {
    let mut object = object(&json!({}));
    let observed = answers(1, Some(group(2, &["a", "b"])));
    let report = status_after(&object, &observed, &Note::default());
    assert_eq!(condition(&report.status, ConditionType::ShardReachable), (ConditionStatus::True, Reason::Connected));
    assert_eq!(condition(&report.status, ConditionType::Ready), (ConditionStatus::True, Reason::SyncSucceeded));
    assert_eq!(report.transitions[0].reason, "SyncSucceeded");
    object.status = Some(report.status.clone());
    assert_eq!(status_after(&object, &observed, &Note::default()).transitions, [], "only once");

    let lost = status_after(&object, &silent(&observed), &Note::default());
    assert_eq!(lost.status.provider_ids, ["process:///dev-1/a", "process:///dev-1/b"]);
    assert_eq!((lost.status.replicas, lost.status.last_sync_time), (2, report.status.last_sync_time));
    assert_eq!(
        condition(&lost.status, ConditionType::ShardReachable),
        (ConditionStatus::False, Reason::ShardUnreachable)
    );
    assert_eq!(condition(&lost.status, ConditionType::ConfigValid), (ConditionStatus::True, Reason::Valid));
    assert_eq!((lost.transitions[0].kind, lost.transitions[0].reason), (EventKind::Warning, "ShardUnreachable"));
    assert_eq!(planned(&object, &silent(&answers(1, None))).steps, [], "nothing is asked of it");
    object.status = Some(lost.status);
    assert_eq!(status_after(&object, &silent(&observed), &Note::default()).transitions, []);

    let back = status_after(&object, &observed, &Note::default());
    assert_eq!(condition(&back.status, ConditionType::ShardReachable), (ConditionStatus::True, Reason::Connected));
}

#[test]
fn a91_a_refusal_is_an_invalid_configuration_and_a_failure_a_provider_error() {
    let object = object(&json!({ "template": "unknown" }));
    let observed = answers(1, Some(group(2, &["a", "b"])));
    let push = first_push(&planned(&object, &observed));
    for (outcome, ready, valid) in [
        (
            Outcome::Refused("config.template: no such template".to_owned()),
            Reason::ConfigValidationFailed,
            (ConditionStatus::False, Reason::ConfigValidationFailed),
        ),
        (
            Outcome::Failed("storage: conflict".to_owned()),
            Reason::ProviderError,
            (ConditionStatus::Unknown, Reason::Reconciling),
        ),
        (
            Outcome::Unreachable("deadline".to_owned()),
            Reason::ShardUnreachable,
            (ConditionStatus::Unknown, Reason::Reconciling),
        ),
    ] {
        let ended = Observed { call: Call::Ended(tried(&push, 1, outcome)), ..observed.clone() };
        let report = status_after(&object, &ended, &Note::default());
        assert_eq!(condition(&report.status, ConditionType::Ready), (ConditionStatus::False, ready));
        assert_eq!(condition(&report.status, ConditionType::ConfigValid), valid);
        assert_eq!((report.transitions[0].kind, report.transitions[0].reason), (EventKind::Warning, ready.as_str()));
        assert_eq!(report.status.observed_generation, None, "the shard did not take it");
    }
}

#[test]
fn a38_errors_of_the_provider_become_warnings() {
    let errors = vec!["Failed to create instance: quota".to_owned()];
    let observed = Observed { errors, ..answers(1, Some(group(2, &["a", "b"]))) };
    let report = status_after(&object(&json!({})), &observed, &Note::default());
    assert_eq!((report.done[0].kind, report.done[0].reason), (EventKind::Warning, "ProviderError"));
    assert_eq!(report.done[0].note, "Failed to create instance: quota");
}

#[test]
fn a89_status_has_the_shards_config_counts_and_times() {
    let vars = [("a".to_owned(), "b".to_owned())].into();
    let of_shard = Group { subnet_pool: "private".to_owned(), is_static: true, vars, ..group(2, &["b", "a"]) };
    let status = status_after(&object(&json!({})), &answers(1, Some(of_shard)), &Note::default()).status;
    let config = json!({ "template": "small", "subnetPool": "private", "vars": { "a": "b" } });
    assert_eq!(to_value(&status.config).unwrap(), config);
    assert_eq!((status.replicas, status.is_static, status.observed_generation), (2, true, Some(3)));
    assert_eq!(status.provider_ids, ["process:///dev-1/a", "process:///dev-1/b"]);
    assert_eq!(status.last_sync_time, Some(Timestamp::UNIX_EPOCH));
}

fn going(fields: &Value) -> NstanceShardGroup {
    let mut object = object(fields);
    object.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    object
}

#[test]
fn a36_a_dynamic_group_shrinks_through_drains_before_it_is_removed() {
    // With settings that the shard refuses: they play no part any more.
    let object = going(&json!({ "template": "refused" }));
    let observed = answers(1, Some(group(2, &["a", "b"])));
    assert_eq!(planned(&object, &observed).steps, [], "nothing is drained yet");
    let all = Observed { released: ["a".to_owned(), "b".to_owned()].into(), ..observed };
    assert_eq!(pushes(&planned(&object, &all)), [(0, vec!["a", "b"])]);
    let left = answers(2, Some(group(0, &["b"])));
    assert_eq!(planned(&object, &left).steps, [], "an ID remains");
    let empty = answers(3, Some(group(0, &[])));
    let unstored = planned(&object, &Observed { members: 1, ..empty.clone() });
    assert_eq!(
        (unstored.steps.len(), unstored.next_look.is_some()),
        (0, true),
        "a kill would find a group that is lost"
    );
    let empty = planned(&object, &empty);
    assert!(matches!(empty.actions().collect::<Vec<_>>()[..], [Action::DeleteGroup { .. }]));
    let gone = planned(&object, &answers(4, None));
    assert!(matches!(gone.actions().collect::<Vec<_>>()[..], [Action::ReleaseFinalizer { .. }]));
}

#[test]
fn a36_a_static_group_goes_back_to_its_configuration() {
    let object = going(&json!({}));
    let observed = answers(1, Some(Group { is_static: true, ..group(2, &["a", "b"]) }));
    assert!(matches!(planned(&object, &observed).actions().collect::<Vec<_>>()[..], [Action::DeleteGroup { .. }]));
    let done = Tried { digest: DELETE.to_owned(), poll: 1, outcome: Outcome::Accepted };
    let ended = Observed { call: Call::Ended(done), ..observed.clone() };
    assert!(matches!(planned(&object, &ended).actions().collect::<Vec<_>>()[..], [Action::ReleaseFinalizer { .. }]));
    let failed = Tried { digest: DELETE.to_owned(), poll: 1, outcome: Outcome::Failed("storage".to_owned()) };
    let failed = Observed { call: Call::Ended(failed), ..observed };
    assert_eq!(planned(&object, &failed).steps, [], "once per list");
    let report = status_after(&object, &failed, &Note::default());
    assert_eq!((report.done[0].kind, report.done[0].reason), (EventKind::Warning, "DeleteFailed"));
}

#[test]
fn a36_a_silent_shard_holds_the_finalizer_and_one_that_left_the_configuration_does_not() {
    let object = going(&json!({}));
    let mute = planned(&object, &silent(&answers(1, Some(group(0, &[])))));
    assert_eq!((mute.steps.len(), mute.blocked[0].reason), (0, Reason::ShardUnreachable));
    let left = planned(&object, &Observed { shard: Shard::Unconfigured, ..Observed::default() });
    assert!(matches!(left.actions().collect::<Vec<_>>()[..], [Action::ReleaseFinalizer { .. }]));
}

#[test]
fn a98_a_paused_group_is_left_alone() {
    for object in [object(&json!({})), going(&json!({}))] {
        let observed = Observed { is_paused: true, ..answers(1, None) };
        assert_eq!(planned(&object, &observed).steps, []);
        let status = status_after(&object, &observed, &Note::default()).status;
        assert_eq!(condition(&status, ConditionType::Paused), (ConditionStatus::True, Reason::Paused));
    }
}
