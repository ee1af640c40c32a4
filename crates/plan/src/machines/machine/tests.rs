use api::machine::{MACHINE_FINALIZER, NstanceMachineStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, from_value, json, to_value};

use super::super::shard::{Answer as ShardAnswer, Group, Members};
use super::*;
use crate::event::EventKind;
use crate::fact::{Class, Failure};
use crate::round::{Plan, Progress};
use crate::shard::instance::MachineStatus;

fn machine(name: &str, spec: &Value, status: &Value) -> NstanceMachine {
    let metadata = json!({
        "name": name, "namespace": "strata-system", "uid": "uid", "generation": 1, "finalizers": [MACHINE_FINALIZER],
    });
    from_value(json!({ "metadata": metadata, "spec": spec, "status": status })).unwrap()
}

fn member_machine() -> NstanceMachine {
    let status = json!({ "instanceID": "a", "shard": "dev-1", "providerID": "raw-a", "ready": true });
    machine("a", &json!({ "group": "web", "providerID": "process:///dev-1/raw-a" }), &status)
}

fn own_machine() -> NstanceMachine {
    machine("mine", &json!({ "group": "web" }), &json!({}))
}

fn instance(id: &str) -> Instance {
    Instance {
        id: id.to_owned(),
        provider_id: format!("raw-{id}"),
        node_provider_id: String::new(),
        status: MachineStatus::Running,
        created_at: None,
        is_leaving: false,
    }
}

fn says(group: Option<Group>) -> Shard {
    Shard::Configured(Fact::Known { value: ShardAnswer { poll: 1, group }, age: Duration::ZERO })
}

fn with(ids: &[&str]) -> Shard {
    let members = Members::Listed(ids.iter().map(|id| instance(id)).collect());
    says(Some(Group { members, size: 1, ..Group::default() }))
}

fn mute() -> Shard {
    Shard::default()
}

fn known<T>(value: T) -> Fact<T> {
    Fact::Known { value, age: Duration::ZERO }
}

fn node() -> NodeRef {
    NodeRef { name: "node-a".to_owned(), provider_id: "process:///dev-1/raw-a".to_owned() }
}

fn owner() -> Machine {
    Machine {
        name: "machine-a".to_owned(),
        uid: "owner".to_owned(),
        resource_version: "5".to_owned(),
        has_hook: true,
        ..Machine::default()
    }
}

fn member() -> Observed {
    Observed {
        role: Role::Member { shard: Some("dev-1".to_owned()) },
        owner: Owner::Machine(owner()),
        shards: [("dev-1".to_owned(), with(&["a"]))].into(),
        nodes: known(vec![node()]),
        addresses: BTreeMap::new(),
        drain: Drain::None,
        asked: None,
        begun: None,
        deleted: None,
        call: Call::None,
        is_paused: false,
    }
}

fn own() -> Observed {
    let shards = [("dev-1".to_owned(), with(&[])), ("dev-2".to_owned(), with(&[])), ("dev-3".to_owned(), says(None))];
    Observed { role: Role::Own, shards: shards.into(), nodes: known(vec![]), ..member() }
}

fn planned(machine: &NstanceMachine, observed: &Observed, inputs: &InputsOf) -> Plan<Action, Ask> {
    let read: Observed = from_value(to_value(observed).unwrap()).unwrap();
    assert_eq!(&read, observed, "written to a file and read back");
    plan(machine, observed, inputs)
}

fn actions(machine: &NstanceMachine, observed: &Observed, inputs: &InputsOf) -> Vec<String> {
    planned(machine, observed, inputs)
        .actions()
        .map(|action| match action {
            Action::AddFinalizer { .. } => "add finalizer".to_owned(),
            Action::CreateInstance { shard, group, .. } => format!("create in {group} on {shard}"),
            Action::SetProviderId { id } => format!("id {id}"),
            Action::HookMachine { name, .. } => format!("hook {name}"),
            Action::Drain { node, .. } => format!("drain {node}"),
            Action::ReleaseDrain { id } => format!("release drain {id}"),
            Action::ReleaseHook { name, .. } => format!("release hook of {name}"),
            Action::DeleteMachine { name, .. } => format!("delete {name}"),
            Action::DeleteSelf => "delete self".to_owned(),
            Action::DeleteInstance { shard, id } => format!("delete {id} on {shard}"),
            Action::ReleaseFinalizer { .. } => "release finalizer".to_owned(),
        })
        .collect()
}

fn none() -> InputsOf {
    InputsOf::default()
}

/// An earlier list of the shard omitted the instance.
fn missed() -> InputsOf {
    InputsOf { note: Note { missed: Some(0), ..Note::default() }, ..InputsOf::default() }
}

fn reported(
    object: &NstanceMachine,
    observed: &Observed,
    inputs: &InputsOf,
    progress: &Progress,
) -> crate::round::Report<NstanceMachineStatus, Note> {
    let plan = plan(object, observed, inputs);
    let progress: Vec<_> = plan.steps.iter().map(|_| progress.clone()).collect();
    report(&RoundOf { object, observed, inputs, plan: &plan, progress: &progress }, Timestamp::UNIX_EPOCH)
}

fn status(object: &NstanceMachine, observed: &Observed, inputs: &InputsOf) -> NstanceMachineStatus {
    reported(object, observed, inputs, &Progress::NotBegun).status
}

fn condition(status: &NstanceMachineStatus, kind: ConditionType) -> (ConditionStatus, &str) {
    status.condition(kind).map(|condition| (condition.status, condition.reason.as_str())).unwrap()
}

#[test]
fn a_settled_member_needs_nothing_and_costs_no_call() {
    let plan = planned(&member_machine(), &member(), &none());
    assert_eq!((plan.steps.len(), plan.wants.len(), plan.next_look), (0, 0, None));
    assert_eq!(
        condition(&status(&member_machine(), &member(), &none()), ConditionType::Ready),
        (ConditionStatus::True, "Running")
    );
}

#[test]
fn a59_failure_domain_and_addresses_are_reported_and_a_silent_cluster_takes_none_away() {
    let address = |text| MachineAddress::of_node("InternalIP", text).unwrap();
    let addresses = BTreeMap::from([("node-a".to_owned(), vec![address("10.0.0.1")])]);
    let mut object = member_machine();
    let first = status(&object, &Observed { addresses, ..member() }, &none());
    assert_eq!(
        (first.failure_domain.as_deref(), first.addresses.as_slice()),
        (Some("dev-1"), &[address("10.0.0.1")][..])
    );
    object.status = Some(first.clone());
    let why = Failure { class: Class::Transient, message: "away".to_owned() };
    let away = Observed { nodes: Fact::Unknown { why, last: None }, ..member() };
    let silent = Observed { shards: [("dev-1".to_owned(), mute())].into(), ..away.clone() };
    for observed in [away, silent, Observed { nodes: known(vec![]), ..member() }] {
        let after = status(&object, &observed, &none());
        assert_eq!(
            (&after.failure_domain, &after.addresses),
            (&first.failure_domain, &first.addresses),
            "{observed:?}"
        );
    }
    assert_eq!(MachineAddress::of_node("Pigeon", "10.0.0.1"), None);
    assert_eq!(MachineAddress::of_node("InternalIP", ""), None);
    assert_eq!(MachineAddress::of_node("Hostname", &"a".repeat(257)), None);
}

#[test]
fn a95_a_deleted_member_goes_in_order_hook_drain_exclusion_removal_gone() {
    let mut object = member_machine();
    let mut observed = member();
    let Owner::Machine(owner) = &mut observed.owner else { panic!("it has one") };
    owner.is_deleting = true;
    assert_eq!(actions(&object, &observed, &none()), ["drain node-a"]);

    observed.drain = Drain::Running { blocked: Some("pod a of budget b".to_owned()), left: "1 pod left".to_owned() };
    observed.asked = Some(Asked { left: None });
    assert_eq!(actions(&object, &observed, &none()), Vec::<String>::new());
    let blocked = reported(&object, &observed, &none(), &Progress::NotBegun);
    assert_eq!(condition(&blocked.status, ConditionType::Drained), (ConditionStatus::False, "BlockedByPDB"));
    assert_eq!((blocked.transitions[0].kind, blocked.transitions[0].reason), (EventKind::Warning, "BlockedByPDB"));
    assert!(!is_released(&object, &observed.owner));

    observed.drain = Drain::Done;
    assert_eq!(actions(&object, &observed, &none()), ["release hook of machine-a"]);
    object.status = Some(status(&object, &observed, &none()));
    assert_eq!(condition(object.status.as_ref().unwrap(), ConditionType::Drained), (ConditionStatus::True, "Drained"));

    let Owner::Machine(owner) = &mut observed.owner else { panic!("it has one") };
    (owner.has_hook, owner.is_excluded) = (false, true);
    assert_eq!(actions(&object, &observed, &none()), Vec::<String>::new(), "Cluster API goes on");
    assert!(!is_released(&object, &observed.owner), "Cluster API has not deleted it yet");

    object.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    assert!(is_released(&object, &observed.owner));
    observed.drain = Drain::None;
    assert_eq!(actions(&object, &observed, &none()), Vec::<String>::new(), "its group's size takes it away");
    observed.shards = [("dev-1".to_owned(), mute())].into();
    assert_eq!(actions(&object, &observed, &none()), Vec::<String>::new(), "silence is not gone");
    observed.shards = [("dev-1".to_owned(), with(&[]))].into();
    assert_eq!(actions(&object, &observed, &none()), ["release finalizer"]);
    object.metadata.finalizers = None;
    assert_eq!(actions(&object, &observed, &none()), Vec::<String>::new());
}

#[test]
fn a98_past_the_deadline_the_machine_goes_and_a_warning_names_what_was_left() {
    let mut object = member_machine();
    let mut observed = member();
    observed.owner = Owner::Machine(Machine { is_deleting: true, ..owner() });
    observed.drain = Drain::Expired { left: "1 pod left: ns/db".to_owned() };
    assert_eq!(actions(&object, &observed, &none()), ["release hook of machine-a"]);
    let report = reported(&object, &observed, &none(), &Progress::NotBegun);
    assert_eq!(condition(&report.status, ConditionType::Drained), (ConditionStatus::False, "DrainExpired"));
    assert!(report.transitions[0].note.contains("ns/db"), "{:?}", report.transitions);
    object.status = Some(report.status);
    object.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    assert!(is_released(&object, &Owner::Gone), "also without its Machine");
    observed.drain = Drain::None;
    let later = status(&object, &observed, &none());
    assert_eq!(condition(&later, ConditionType::Drained), (ConditionStatus::False, "DrainExpired"), "it is kept");
}

#[test]
fn a47_without_a_node_there_is_nothing_to_drain_and_while_nodes_are_unknown_nothing_goes() {
    let object = member_machine();
    let mut observed = Observed { nodes: known(vec![]), ..member() };
    observed.owner = Owner::Machine(Machine { is_deleting: true, ..owner() });
    assert_eq!(actions(&object, &observed, &none()), ["release hook of machine-a"]);
    let why = Failure { class: Class::Transient, message: "workload cluster away".to_owned() };
    observed.nodes = Fact::Unknown { why, last: None };
    let plan = planned(&object, &observed, &none());
    assert_eq!((plan.steps.len(), plan.blocked[0].reason), (0, Reason::StateUnknown));
    let drained = status(&object, &observed, &none());
    assert_eq!(condition(&drained, ConditionType::Drained), (ConditionStatus::Unknown, "StateUnknown"));
}

#[test]
fn an_id_that_two_nodes_claim_is_drained_on_neither() {
    let object = member_machine();
    let twin = NodeRef { name: "node-b".to_owned(), ..node() };
    let mut observed = Observed { nodes: known(vec![node(), twin]), ..member() };
    assert_eq!(condition(&status(&object, &observed, &none()), ConditionType::Ready).1, "NodeAmbiguous");
    observed.owner = Owner::Machine(Machine { is_deleting: true, ..owner() });
    let plan = planned(&object, &observed, &none());
    assert_eq!((plan.steps.len(), plan.blocked[0].reason), (0, Reason::NodeAmbiguous));
    assert!(plan.blocked[0].message.contains("node-a, node-b"));
    let drained = status(&object, &observed, &none());
    assert_eq!(condition(&drained, ConditionType::Drained), (ConditionStatus::Unknown, "NodeAmbiguous"));
}

#[test]
fn a_member_without_a_machine_is_drained_by_its_own_deletion() {
    let mut object = member_machine();
    object.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    let mut observed = Observed { owner: Owner::Unset, ..member() };
    assert_eq!(actions(&object, &observed, &none()), ["drain node-a"]);
    assert!(!is_released(&object, &observed.owner));
    observed.drain = Drain::Done;
    assert_eq!(actions(&object, &observed, &none()), Vec::<String>::new());
    object.status = Some(status(&object, &observed, &none()));
    assert!(is_released(&object, &observed.owner));
}

#[test]
fn a53_a_member_that_its_shard_deleted_takes_its_machine_with_it_undrained() {
    let object = member_machine();
    let mut observed = Observed { deleted: Some("spot-terminating".to_owned()), ..member() };
    assert_eq!(actions(&object, &observed, &none()), ["release hook of machine-a"], "said before it is deleted");
    let report = reported(&object, &observed, &none(), &Progress::NotBegun);
    assert!(!report.status.ready);
    assert_eq!(condition(&report.status, ConditionType::ServerDeleted), (ConditionStatus::True, "SpotTerminating"));
    assert_eq!(report.transitions[0].reason, "ServerDeleted");
    observed.owner = Owner::Machine(Machine { has_hook: false, is_excluded: true, ..owner() });
    assert_eq!(actions(&object, &observed, &none()), ["delete machine-a"]);
    observed.owner = Owner::Machine(Machine { has_hook: false, is_excluded: true, is_deleting: true, ..owner() });
    assert_eq!(actions(&object, &observed, &none()), Vec::<String>::new(), "it is going already");
}

#[test]
fn a54_without_a_machine_the_nstance_machine_itself_goes() {
    let mut object = member_machine();
    let mut observed = Observed { shards: [("dev-1".to_owned(), with(&["b"]))].into(), ..member() };
    observed.owner = Owner::Unset;
    assert_eq!(actions(&object, &observed, &missed()), ["delete self"], "its shard lists it no more");
    assert_eq!(condition(&status(&object, &observed, &missed()), ConditionType::ServerDeleted).1, "ServerDeleted");
    observed.owner = Owner::Gone;
    assert_eq!(actions(&object, &observed, &missed()), Vec::<String>::new());
    object.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    assert_eq!(actions(&object, &observed, &missed()), ["release finalizer"], "and no DeleteInstance");
    observed.owner = Owner::Machine(Machine { is_deleting: true, ..owner() });
    assert_eq!(actions(&object, &observed, &missed()), ["release hook of machine-a", "release finalizer"]);
}

#[test]
fn a90_one_list_that_omits_a_member_or_its_group_proves_nothing() {
    let object = member_machine();
    let omits = Observed { shards: [("dev-1".to_owned(), with(&["b"]))].into(), ..member() };
    let plan = planned(&object, &omits, &none());
    assert_eq!((plan.steps.len(), plan.next_look), (0, Some(Duration::from_secs(10))));
    let report = reported(&object, &omits, &none(), &Progress::NotBegun);
    assert_eq!((report.note.missed, report.status.ready), (Some(1), true));
    let same = InputsOf { note: report.note, ..InputsOf::default() };
    assert_eq!(actions(&object, &omits, &same), Vec::<String>::new(), "the same list again");
    assert_eq!(actions(&object, &omits, &missed()), ["release hook of machine-a"], "another one");
    assert_eq!(reported(&object, &member(), &same, &Progress::NotBegun).note, Note::default(), "it is back");

    let lost = Observed { shards: [("dev-1".to_owned(), says(None))].into(), ..member() };
    assert_eq!(actions(&object, &lost, &missed()), Vec::<String>::new(), "its shard gets the group again");
    let going = Owner::Machine(Machine { is_deleting: true, ..owner() });
    let deleted = Observed { owner: going, ..lost.clone() };
    assert_eq!(actions(&object, &deleted, &missed()), ["drain node-a"], "a deletion drains all the same");
    let mut released = object;
    released.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    let excluded = Machine { is_deleting: true, is_excluded: true, has_hook: false, ..owner() };
    let asked_for = Observed { owner: Owner::Machine(excluded), ..lost };
    assert_eq!(actions(&released, &asked_for, &none()), ["release finalizer"], "its removal was asked for");
}

#[test]
fn a_member_of_a_server_that_names_no_instances_is_neither_gone_nor_chosen() {
    let counted = |ids: &[&str]| {
        let members = Members::Counted(ids.iter().map(|id| (*id).to_owned()).collect());
        Observed {
            shards: [("dev-1".to_owned(), says(Some(Group { members, ..Group::default() })))].into(),
            ..member()
        }
    };
    let mut object = member_machine();
    assert_eq!(actions(&object, &counted(&["raw-a", "raw-b"]), &missed()), Vec::<String>::new());
    assert_eq!(actions(&object, &counted(&["raw-b"]), &none()), Vec::<String>::new(), "the next list must omit it too");
    assert_eq!(actions(&object, &counted(&["raw-b"]), &missed()), ["release hook of machine-a"]);
    let unlinked = machine("a", &json!({ "group": "web" }), &json!({ "shard": "dev-1" }));
    assert_eq!(actions(&unlinked, &counted(&["raw-b"]), &missed()), Vec::<String>::new(), "its ID is not known");

    object.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    let excluded = Machine { is_deleting: true, is_excluded: true, has_hook: false, ..owner() };
    let observed = Observed { owner: Owner::Machine(excluded.clone()), ..counted(&["raw-a"]) };
    let plan = planned(&object, &observed, &none());
    assert_eq!(plan.steps.len(), 0);
    assert!(plan.blocked[0].message.contains("lower the replicas"), "{:?}", plan.blocked);
    let observed = Observed { owner: Owner::Machine(excluded), ..counted(&["raw-b"]) };
    assert_eq!(actions(&object, &observed, &none()), ["release finalizer"]);
}

#[test]
fn while_the_shard_is_silent_a_node_is_found_by_what_was_stored_and_without_that_nothing_goes() {
    let mut observed = Observed { shards: [("dev-1".to_owned(), mute())].into(), ..member() };
    observed.owner = Owner::Machine(Machine { is_deleting: true, ..owner() });
    let in_spec = machine("a", &json!({ "group": "web", "providerID": "process:///dev-1/raw-a" }), &json!({}));
    let unlinked = machine("a", &json!({ "group": "web" }), &json!({ "shard": "dev-1" }));
    let unlabelled = machine("a", &json!({ "group": "web" }), &json!({}));
    for is_deleting in [false, true] {
        let deleted = |mut object: NstanceMachine| {
            object.metadata.deletion_timestamp = is_deleting.then_some(Time(Timestamp::UNIX_EPOCH));
            object
        };
        assert_eq!(actions(&deleted(in_spec.clone()), &observed, &none()), ["drain node-a"]);
        let plan = planned(&deleted(unlinked.clone()), &observed, &none());
        assert_eq!((plan.steps.len(), plan.blocked[0].reason), (0, Reason::StateUnknown));
        let status = status(&deleted(unlinked.clone()), &observed, &none());
        assert_eq!(condition(&status, ConditionType::Drained), (ConditionStatus::Unknown, "StateUnknown"));
        let nowhere = Observed { role: Role::Member { shard: None }, ..observed.clone() };
        let plan = planned(&deleted(unlabelled.clone()), &nowhere, &none());
        assert!(plan.actions().any(|action| matches!(action, Action::ReleaseHook { .. })), "there is nothing to ask");
    }
}

#[test]
fn that_there_is_no_node_is_said_only_by_a_round_that_looked() {
    let going = |owner: Machine| Observed { owner: Owner::Machine(Machine { is_deleting: true, ..owner }), ..member() };
    let mut object = member_machine();
    let drained = |object: &NstanceMachine, observed: &Observed| {
        let status = status(object, observed, &none());
        status.condition(ConditionType::Drained).map(|found| (found.status, found.reason.as_str().to_owned())).unwrap()
    };
    let paused = Observed { is_paused: true, ..going(owner()) };
    let unknown = (ConditionStatus::Unknown, "Paused".to_owned());
    assert_eq!(drained(&object, &paused), unknown);
    let no_node = Observed { nodes: known(vec![]), ..going(owner()) };
    object.status = Some(status(&object, &no_node, &none()));
    assert_eq!(drained(&object, &no_node), (ConditionStatus::True, "Drained".to_owned()));
    assert_eq!(drained(&object, &paused), unknown, "there may be one by now");
    let begins = (ConditionStatus::False, "Draining".to_owned());
    assert_eq!(drained(&object, &going(owner())), begins, "there is one by now");
    assert_eq!(actions(&object, &going(owner()), &none()), ["drain node-a"]);
    object.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    object.status = Some(status(&object, &paused, &none()));
    assert!(!is_released(&object, &paused.owner), "the shard keeps it until a round has looked");

    let unhooked = Machine { has_hook: false, ..owner() };
    assert_eq!(drained(&member_machine(), &going(unhooked)), begins, "Cluster API drains it");
    let mut fresh = member_machine();
    fresh.metadata.finalizers = None;
    assert_eq!(actions(&fresh, &going(owner()), &none()), ["add finalizer"]);
    assert_eq!(drained(&fresh, &going(owner())), begins);
}

#[test]
fn a_drain_that_expired_is_not_begun_again_by_the_next_process() {
    let mut object = member_machine();
    let mut observed = Observed { owner: Owner::Machine(Machine { is_deleting: true, ..owner() }), ..member() };
    observed.drain = Drain::Expired { left: "1 pod left: ns/db".to_owned() };
    object.status = Some(status(&object, &observed, &none()));
    observed.drain = Drain::None;
    assert_eq!(actions(&object, &observed, &none()), ["release hook of machine-a"]);
    assert_eq!(condition(&status(&object, &observed, &none()), ConditionType::Drained).1, "DrainExpired");
}

#[test]
fn a_machine_that_excludes_its_node_is_not_drained() {
    let observed =
        Observed { owner: Owner::Machine(Machine { is_deleting: true, is_excluded: true, ..owner() }), ..member() };
    assert_eq!(actions(&member_machine(), &observed, &none()), ["release hook of machine-a"]);
    let status = status(&member_machine(), &observed, &none());
    assert_eq!(condition(&status, ConditionType::Drained), (ConditionStatus::True, "Drained"));
}

#[test]
fn a_machine_of_a_shard_that_left_the_configuration_is_drained_and_leaves_no_hook_behind() {
    let mut object = member_machine();
    let mut observed = Observed { shards: [("dev-1".to_owned(), Shard::Unconfigured)].into(), ..member() };
    observed.owner = Owner::Machine(Machine { is_deleting: true, ..owner() });
    assert_eq!(actions(&object, &observed, &none()), ["drain node-a"]);
    object.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    assert_eq!(actions(&object, &observed, &none()), ["drain node-a"]);
    observed.drain = Drain::Done;
    assert_eq!(actions(&object, &observed, &none()), ["release hook of machine-a", "release finalizer"]);
    let plan = planned(&object, &observed, &none());
    assert_eq!(plan.steps[1].needs.len(), 1, "the finalizer stays while the hook does");
}

#[test]
fn a_member_under_deletion_takes_its_machine_with_it() {
    let mut object = member_machine();
    object.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    assert_eq!(actions(&object, &member(), &none()), ["delete machine-a"]);
    let own = Observed { role: Role::Own, ..member() };
    let drains = actions(&object, &own, &answered("dev-1", "a", Some(instance("a"))));
    assert_eq!(drains, ["drain node-a"], "a Machine of another owner is its own");
}

#[test]
fn every_machine_of_its_own_waits_for_our_drain() {
    let object = machine("mine", &json!({ "group": "web" }), &json!({ "shard": "dev-1", "instanceID": "a" }));
    let there = answered("dev-1", "a", Some(instance("a")));
    let with = |owner: Machine| actions(&object, &Observed { owner: Owner::Machine(owner), ..own() }, &there);
    assert_eq!(with(Machine { has_hook: false, ..owner() }), ["hook machine-a"]);
    assert_eq!(with(Machine { has_hook: false, is_excluded: true, ..owner() }), Vec::<String>::new());
    assert_eq!(with(Machine { has_hook: false, is_deleting: true, ..owner() }), Vec::<String>::new());
}

#[test]
fn a58_no_shard_is_chosen_before_the_machine_is_known() {
    let object = own_machine();
    for owner in [Owner::Unset, Owner::Gone] {
        let plan = planned(&object, &Observed { owner, ..own() }, &none());
        assert_eq!((plan.steps.len(), plan.blocked[0].reason), (0, Reason::Provisioning));
    }
    let going = Owner::Machine(Machine { is_deleting: true, ..owner() });
    let plan = actions(&object, &Observed { owner: going.clone(), ..own() }, &none());
    assert_eq!(plan, ["release hook of machine-a"], "nothing is asked for any more");
    let asked = machine("mine", &json!({ "group": "web" }), &json!({ "shard": "dev-1" }));
    let observed = Observed { owner: going, ..own() };
    assert_eq!(actions(&asked, &observed, &none()), ["create in web on dev-1"], "what was made is found first");
}

#[test]
fn a35_a_silent_shard_deletes_nothing() {
    let observed = Observed { shards: [("dev-1".to_owned(), mute())].into(), ..member() };
    assert_eq!(actions(&member_machine(), &observed, &none()), Vec::<String>::new());
    let status = status(&member_machine(), &observed, &none());
    assert!(status.ready, "what is not known has not changed");
    assert_eq!(condition(&status, ConditionType::Ready), (ConditionStatus::True, "Running"));
}

fn created(observed: Observed, id: &str) -> Observed {
    Observed { call: Call::Created { id: id.to_owned() }, ..observed }
}

fn answered(shard: &str, id: &str, answer: Option<Instance>) -> InputsOf {
    let mut inputs = InputsOf::default();
    inputs.facts.insert(Ask::Instance { shard: shard.to_owned(), id: id.to_owned() }, known(Answer::Instance(answer)));
    inputs
}

#[test]
fn a58_an_instance_is_made_in_the_failure_domain_or_where_the_group_is() {
    let object = own_machine();
    let mut observed = own();
    let asks = |shard: &str| Owner::Machine(Machine { failure_domain: Some(shard.to_owned()), ..owner() });
    observed.owner = asks("dev-3");
    assert_eq!(actions(&object, &observed, &none()), ["create in web on dev-3"]);
    let plan = planned(&object, &observed, &none());
    assert!(plan.steps[0].announced && plan.steps[0].is_job, "the shard is stored before it is asked");
    assert_eq!(&*plan.steps[0].peer.0, "shard dev-3");
    observed.owner = asks("dev-9");
    assert_eq!(planned(&object, &observed, &none()).blocked[0].reason, Reason::Invalid);
    observed.shards.insert("dev-9".to_owned(), mute());
    assert_eq!(planned(&object, &observed, &none()).blocked[0].reason, Reason::ShardUnreachable);

    observed = own();
    let first = actions(&object, &observed, &none());
    assert!(
        first == ["create in web on dev-1"] || first == ["create in web on dev-2"],
        "{first:?}: they have the group"
    );
    for shard in ["dev-1", "dev-2"] {
        observed.shards.insert(shard.to_owned(), says(None));
    }
    assert_eq!(planned(&object, &observed, &none()).blocked[0].reason, Reason::Invalid, "no shard knows the group");
    observed.shards.insert("dev-1".to_owned(), mute());
    assert_eq!(planned(&object, &observed, &none()).blocked[0].reason, Reason::ShardUnreachable, "one of them may");
}

#[test]
fn the_shard_that_was_chosen_is_not_chosen_again() {
    let mut object = own_machine();
    let chosen = reported(&object, &own(), &none(), &Progress::Begun).status;
    let shard = chosen.shard.clone().unwrap();
    object.status = Some(chosen);
    let mut observed = own();
    observed.shards.insert(shard.clone(), mute());
    assert_eq!(actions(&object, &observed, &none()), Vec::<String>::new(), "it may have made the instance");
    observed.shards.insert(shard.clone(), says(None));
    assert_eq!(actions(&object, &observed, &none()), [format!("create in web on {shard}")]);
}

#[test]
fn a59_an_own_instance_is_asked_for_until_it_runs_and_has_a_node() {
    let mut object = machine("mine", &json!({ "group": "web" }), &json!({ "shard": "dev-1" }));
    let observed = created(own(), "x");
    let plan = planned(&object, &observed, &none());
    let ask = Ask::Instance { shard: "dev-1".to_owned(), id: "x".to_owned() };
    assert_eq!((plan.steps.len(), &plan.wants[0].ask, plan.wants[0].max_age), (0, &ask, Duration::from_secs(10)));
    object.status = Some(status(&object, &observed, &none()));
    assert_eq!(object.status.as_ref().unwrap().instance_id.as_deref(), Some("x"));

    let pending = answered("dev-1", "x", Some(Instance { status: MachineStatus::Pending, ..instance("x") }));
    let waiting = status(&object, &own(), &pending);
    assert_eq!((waiting.ready, condition(&waiting, ConditionType::Ready).1), (false, "Provisioning"));
    let running = answered("dev-1", "x", Some(instance("x")));
    assert_eq!(actions(&object, &own(), &running), Vec::<String>::new(), "the provider's own ID is never published");
    let node = NodeRef { name: "x".to_owned(), provider_id: "aws:///z/raw-x".to_owned() };
    let linked = Observed { nodes: known(vec![node]), ..own() };
    assert_eq!(actions(&object, &linked, &running), ["id aws:///z/raw-x"]);
    let up = status(&object, &linked, &running);
    assert_eq!((up.ready, up.provider_id.as_deref()), (true, Some("raw-x")));
    assert_eq!(up.initialization.unwrap().provisioned, Some(true));
    object.status = Some(up);
    object.spec.as_mut().unwrap().provider_id = Some("aws:///z/raw-x".to_owned());
    let plan = planned(&object, &linked, &running);
    assert_eq!((plan.steps.len(), plan.wants[0].max_age), (0, Duration::from_mins(1)));
}

#[test]
fn a59_a_node_may_be_named_by_the_instance() {
    let object = machine("mine", &json!({ "group": "web" }), &json!({ "shard": "dev-1", "instanceID": "x" }));
    let node = NodeRef { name: "x".to_owned(), provider_id: "process:///dev-1/x".to_owned() };
    let mut observed = Observed { nodes: known(vec![node]), ..own() };
    let running = answered("dev-1", "x", Some(instance("x")));
    assert_eq!(actions(&object, &observed, &running), ["id process:///dev-1/x"]);
    observed.owner = Owner::Machine(Machine { is_deleting: true, ..owner() });
    assert_eq!(actions(&object, &observed, &none()), ["drain x"], "also while its shard does not answer");
}

#[test]
fn a60_a61_an_own_instance_is_drained_deleted_and_released_only_when_proven_gone() {
    let status = json!({ "instanceID": "a", "shard": "dev-1", "providerID": "raw-a", "ready": true });
    let mut object = machine("mine", &json!({ "group": "web" }), &status);
    object.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    let there = answered("dev-1", "a", Some(instance("a")));
    let mut observed = Observed { nodes: known(vec![node()]), owner: Owner::Gone, ..own() };
    assert_eq!(actions(&object, &observed, &there), ["drain node-a"]);
    observed.drain = Drain::Done;
    assert_eq!(actions(&object, &observed, &there), ["delete a on dev-1"]);
    observed.call = Call::Running;
    assert_eq!(actions(&object, &observed, &there), Vec::<String>::new());
    observed.call = Call::None;
    let going = answered("dev-1", "a", Some(Instance { is_leaving: true, ..instance("a") }));
    assert_eq!(actions(&object, &observed, &going), Vec::<String>::new(), "it is on its way");
    assert_eq!(actions(&object, &observed, &none()), Vec::<String>::new(), "not asked yet is not gone");
    let gone = answered("dev-1", "a", None);
    assert_eq!(actions(&object, &observed, &gone), ["release finalizer"]);
}

#[test]
fn an_instance_whose_id_was_never_stored_is_found_again_before_the_object_goes() {
    let mut object = machine("mine", &json!({ "group": "web" }), &json!({ "shard": "dev-1" }));
    object.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    let observed = own();
    assert_eq!(
        actions(&object, &observed, &none()),
        ["create in web on dev-1"],
        "the same request makes no second one"
    );
    let found = created(own(), "a");
    assert_eq!(actions(&object, &found, &answered("dev-1", "a", Some(instance("a")))), ["delete a on dev-1"]);
    let refused = Observed { call: Call::Ended(Outcome::Refused("no such group".to_owned())), ..own() };
    let released = ["release hook of machine-a", "release finalizer"];
    assert_eq!(actions(&object, &refused, &none()), released);
    let mut never = own_machine();
    never.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    assert_eq!(actions(&never, &observed, &none()), released, "no shard was asked");
}

#[test]
fn a91_what_a_shard_refuses_and_what_it_cannot_do_have_their_reasons() {
    let object = own_machine();
    for (outcome, reason) in [
        (Outcome::Refused("type not allowed".to_owned()), "ConfigValidationFailed"),
        (Outcome::Failed("quota".to_owned()), "ProviderError"),
        (Outcome::Unreachable("deadline".to_owned()), "ShardUnreachable"),
    ] {
        let observed = Observed { call: Call::Ended(outcome), ..own() };
        assert_eq!(
            condition(&status(&object, &observed, &none()), ConditionType::Ready),
            (ConditionStatus::False, reason)
        );
        assert_eq!(actions(&object, &observed, &none()), Vec::<String>::new(), "not at once");
    }
}

#[test]
fn a98_a_paused_machine_is_left_alone() {
    let mut object = member_machine();
    object.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    for object in [object, own_machine()] {
        let observed = Observed { is_paused: true, ..member() };
        assert_eq!(actions(&object, &observed, &none()), Vec::<String>::new());
    }
}

#[test]
fn a98_while_paused_a_drain_rests_and_goes_on_by_the_same_id_afterwards() {
    let object = member_machine();
    let going = Observed { owner: Owner::Machine(Machine { is_deleting: true, ..owner() }), ..member() };
    let running = Observed {
        drain: Drain::Running { blocked: None, left: "1 pod left".to_owned() },
        asked: Some(Asked { left: None }),
        ..going.clone()
    };
    assert_eq!(actions(&object, &running, &none()), Vec::<String>::new());
    let paused = Observed { is_paused: true, ..running };
    assert_eq!(actions(&object, &paused, &none()), ["release drain a"]);
    let resting = Observed { is_paused: true, ..going.clone() };
    assert_eq!(actions(&object, &resting, &none()), Vec::<String>::new());
    let is_drain = |action: &Action| matches!(action, Action::Drain { id, .. } if id == "a");
    assert!(planned(&object, &going, &none()).actions().any(is_drain));
}

/// What the API server's clock and our monotonic one show.
fn clocks(server: Option<i64>, uptime: u64) -> Clocks {
    Clocks { server: server.map(|seconds| Timestamp::new(seconds, 0).unwrap()), uptime: Duration::from_secs(uptime) }
}

/// The times that drains are asked for with, so many seconds after the status was stored; without a limit `None`.
fn asked_time(object: &NstanceMachine, observed: &Observed, seconds: i64) -> Vec<Option<u64>> {
    let begun = Begun::of(object, None, clocks(Some(seconds), 0));
    let plan = plan(object, &Observed { begun, ..observed.clone() }, &none());
    let timeouts = plan.actions().filter_map(|action| match action {
        Action::Drain { timeout, .. } => Some(timeout.map(|timeout| timeout.as_secs())),
        _ => None,
    });
    timeouts.collect()
}

#[test]
fn the_time_of_a_drain_runs_from_its_beginning() {
    let drain_timeout = Some(Duration::from_mins(10));
    let owner = Owner::Machine(Machine { is_deleting: true, drain_timeout, ..owner() });
    let going = Observed { owner, ..member() };
    let mut object = member_machine();
    object.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    // However long ago it was deleted, and whatever kept the drain from its beginning.
    assert_eq!(asked_time(&object, &going, 3600), [Some(600)]);
    let why = Failure { class: Class::Transient, message: "workload cluster away".to_owned() };
    let away = Observed { nodes: Fact::Unknown { why, last: None }, ..going.clone() };
    object.status = Some(status(&object, &away, &none()));
    assert_eq!(asked_time(&object, &going, 3600), [Some(600)]);
    // From the first word about it, also for the next process.
    object.status = Some(status(&object, &going, &none()));
    assert_eq!(asked_time(&object, &going, 240), [Some(360)]);
    assert_eq!(asked_time(&object, &going, 3600), [Some(0)]);
}

#[test]
fn no_step_of_a_clock_ends_a_drain() {
    let going = Observed { owner: Owner::Machine(Machine { is_deleting: true, ..owner() }), ..member() };
    let mut object = member_machine();
    assert_eq!(Begun::of(&object, None, clocks(Some(0), 0)), None);
    object.status = Some(status(&object, &going, &none()));
    let age = |former, clocks| Begun::of(&object, former, clocks).unwrap().age.as_secs();
    let seen = Begun::of(&object, None, clocks(Some(60), 1000));
    assert_eq!(age(None, clocks(Some(60), 1000)), 60, "as the server counts");
    for server in [Some(-3600), Some(90), Some(3600), None] {
        assert_eq!(age(seen, clocks(server, 1030)), 90, "as we count from then on");
    }
    for server in [Some(-3600), None] {
        assert_eq!(age(None, clocks(server, 1000)), 0, "what is not known has not lasted");
    }
    let round = Observed { begun: seen, ..going };
    assert_eq!(reported(&object, &round, &none(), &Progress::NotBegun).note.begun, seen, "the next round counts on");
}

#[test]
fn a_drain_that_runs_gets_what_is_wanted_of_it_now() {
    let drain = Drain::Running { blocked: None, left: "1 pod left".to_owned() };
    let running = |timeout: Option<u64>, asked: Option<Option<u64>>| {
        let owner = Machine { is_deleting: true, drain_timeout: timeout.map(Duration::from_secs), ..owner() };
        let asked = asked.map(|left| Asked { left: left.map(Duration::from_secs) });
        Observed { owner: Owner::Machine(owner), drain: drain.clone(), asked, ..member() }
    };
    let object = member_machine();
    assert_eq!(asked_time(&object, &running(None, None), 0), [None], "its shard began it");
    assert_eq!(asked_time(&object, &running(None, Some(None)), 0), []);
    assert_eq!(asked_time(&object, &running(Some(60), Some(None)), 0), [Some(60)], "the timeout was set");
    assert_eq!(asked_time(&object, &running(Some(60), Some(Some(59))), 0), []);
    assert_eq!(asked_time(&object, &running(Some(60), Some(Some(600))), 0), [Some(60)], "it was lowered");
    assert_eq!(asked_time(&object, &running(None, Some(Some(600))), 0), [None], "it was removed");
}
