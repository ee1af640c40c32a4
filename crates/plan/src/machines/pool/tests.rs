use api::condition::{ConditionStatus, ConditionType, Reason};
use api::machine::{MANAGED_BY, MANAGED_BY_ANNOTATION, NstanceMachinePoolStatus, POOL_FINALIZER};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{from_value, json, to_value};

use super::super::shard::{Answer, Group, Instance, Members};
use super::*;
use crate::fact::{Class, Fact, Failure};
use crate::round::{Plan, Progress};
use crate::shard::instance::MachineStatus;

fn pool(fields: &Value) -> NstanceMachinePool {
    let mut spec = json!({ "group": "web", "shards": ["dev-1", "dev-2"], "template": "small" });
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let metadata = json!({
        "name": "web", "namespace": "strata-system", "uid": "pool", "generation": 3, "finalizers": [POOL_FINALIZER],
        "annotations": { MANAGED_BY_ANNOTATION: MANAGED_BY },
    });
    from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
}

fn instance(id: &str, minutes: i64) -> Instance {
    Instance {
        id: id.to_owned(),
        provider_id: id.to_owned(),
        node_provider_id: String::new(),
        status: MachineStatus::Running,
        created_at: Some(Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minutes)),
        is_leaving: false,
    }
}

fn group(size: i32, ids: &[&str]) -> Group {
    let instances = ids.iter().zip(0..).map(|(id, minutes)| instance(id, minutes)).collect();
    Group { template: "small".to_owned(), size, members: Members::Listed(instances), ..Group::default() }
}

fn says(group: Option<Group>) -> Shard {
    Shard::Configured(Fact::Known { value: Answer { poll: 1, group }, age: Duration::ZERO })
}

fn mute(group: Option<Group>) -> Shard {
    let why = Failure { class: Class::Transient, message: "connection refused".to_owned() };
    let last = Some((Answer { poll: 1, group }, Duration::from_mins(5)));
    Shard::Configured(Fact::Unknown { why, last })
}

fn shard_group(shard: &str, size: i32, ids: &[&str]) -> ShardGroup {
    let spec = json!({ "group": "web", "shard": shard, "size": size, "template": "small" });
    ShardGroup {
        name: format!("web--{shard}"),
        uid: format!("uid-{shard}"),
        resource_version: "7".to_owned(),
        owner_uid: Some("pool".to_owned()),
        spec: from_value(spec).unwrap(),
        is_ready: true,
        is_synced: true,
        provider_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        config: Some(GroupConfig { template: Some("small".to_owned()), ..GroupConfig::default() }),
        ..ShardGroup::default()
    }
}

fn member(id: &str) -> Member {
    let machine = Machine {
        name: format!("machine-{id}"),
        uid: format!("machine-uid-{id}"),
        resource_version: "9".to_owned(),
        has_hook: true,
        ..Machine::default()
    };
    Member {
        instance_id: id.to_owned(),
        shard: None,
        uid: format!("uid-{id}"),
        resource_version: "8".to_owned(),
        is_deleting: false,
        machine: Some(machine),
    }
}

/// Two instances on each of two shards, all settled.
fn settled(replicas: i64) -> (NstanceMachinePool, Observed) {
    let observed = Observed {
        taken: BTreeSet::new(),
        owner: Owner::MachinePool { name: "web".to_owned(), generation: Some(5), replicas: Some(replicas) },
        cluster: "c--t".to_owned(),
        elder: None,
        shards: [
            ("dev-1".to_owned(), says(Some(group(2, &["a", "b"])))),
            ("dev-2".to_owned(), says(Some(group(2, &["c", "d"])))),
        ]
        .into(),
        shard_groups: vec![shard_group("dev-1", 2, &["a", "b"]), shard_group("dev-2", 2, &["c", "d"])],
        members: ["a", "b", "c", "d"].map(member).into(),
        is_paused: false,
    };
    (pool(&json!({ "providerIDList": ["a", "b", "c", "d"] })), observed)
}

fn planned(pool: &NstanceMachinePool, observed: &Observed) -> Plan<Action, Ask> {
    let read: Observed = from_value(to_value(observed).unwrap()).unwrap();
    assert_eq!(&read, observed, "written to a file and read back");
    plan(pool, observed, &inputs(pool, observed))
}

/// With what the server says of marks, which is what the cache has.
fn inputs(pool: &NstanceMachinePool, observed: &Observed) -> InputsOf {
    answered(&plan(pool, observed, &InputsOf::default()), &Marks::new())
}

fn actions(plan: &Plan<Action, Ask>) -> Vec<String> {
    let text = |value: &Value, path: &str| value.pointer(path).map(ToString::to_string).unwrap_or_default();
    plan.actions()
        .map(|action| match action {
            Action::AddFinalizer { .. } => "add finalizer".to_owned(),
            Action::CreateMachinePool(body) => format!("create pool of {}", text(body, "/spec/replicas")),
            Action::CreateShardGroup(body) => {
                format!("create {} of {}", text(body, "/metadata/name"), text(body, "/spec/size"))
            }
            Action::PatchShardGroup { name, patch } => format!("patch {name} {}", patch["spec"]),
            Action::CreateMachine(body) => format!("create machine {}", text(body, "/metadata/name")),
            Action::HookMachine { name, .. } => format!("hook {name}"),
            Action::DeleteShardGroup { name, .. } | Action::DeleteMachine { name, .. } => format!("delete {name}"),
            Action::DeleteMember { name, .. } => format!("delete member {name}"),
            Action::PublishProviderIds { ids } => format!("publish {}", ids.join(" ")),
            Action::Annotate => "annotate".to_owned(),
            Action::ReleaseFinalizer { .. } => "release finalizer".to_owned(),
        })
        .collect()
}

fn status(pool: &NstanceMachinePool, observed: &Observed) -> NstanceMachinePoolStatus {
    reported(pool, observed).status
}

fn reported(object: &NstanceMachinePool, observed: &Observed) -> crate::round::Report<NstanceMachinePoolStatus> {
    let inputs = inputs(object, observed);
    let plan = plan(object, observed, &inputs);
    let progress: Vec<_> = plan.steps.iter().map(|_| Progress::NotBegun).collect();
    let round = RoundOf { object, observed, inputs: &inputs, plan: &plan, progress: &progress };
    report(&round, Timestamp::UNIX_EPOCH)
}

fn ready(status: &NstanceMachinePoolStatus) -> (ConditionStatus, Reason, &str) {
    let ready = status.condition(ConditionType::Ready).unwrap();
    (ready.status, ready.reason, &ready.message)
}

#[test]
fn a_settled_pool_needs_nothing() {
    let (pool, observed) = settled(4);
    assert_eq!(actions(&planned(&pool, &observed)), Vec::<String>::new());
}

#[test]
fn a22_a_new_pool_is_distributed_in_the_order_of_its_shards() {
    let mut pool = pool(&json!({ "shards": ["c", "b", "a"] }));
    pool.metadata.finalizers = None;
    pool.metadata.annotations = None;
    let observed = Observed {
        owner: Owner::MachinePool { name: "web".to_owned(), generation: Some(1), replicas: Some(10) },
        shards: ["a", "b", "c"].map(|name| (name.to_owned(), says(None))).into(),
        ..Observed::default()
    };
    let plan = planned(&pool, &observed);
    let expected =
        ["add finalizer", "create \"web--a\" of 4", "create \"web--b\" of 3", "create \"web--c\" of 3", "annotate"];
    assert_eq!(actions(&plan), expected);
    assert!(plan.steps[1..4].iter().all(|step| !step.needs.is_empty()), "the finalizer comes first");
    let Action::CreateShardGroup(body) = &plan.steps[1].action else { panic!("{plan:?}") };
    assert_eq!(
        body,
        &json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1",
            "kind": "NstanceShardGroup",
            "metadata": {
                "name": "web--a", "namespace": "strata-system",
                "labels": { "nstance.dev/group": "web", "nstance.dev/shard": "a" },
                "ownerReferences": [{
                    "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "NstanceMachinePool",
                    "name": "web", "uid": "pool", "controller": true, "blockOwnerDeletion": true,
                }],
            },
            "spec": { "group": "web", "shard": "a", "size": 4, "template": "small" },
        })
    );
}

#[test]
fn a25_unset_replicas_are_none_and_too_many_are_left_to_the_shards() {
    let (pool, mut observed) = settled(4);
    for (replicas, sizes) in [(None, [0, 0]), (Some(-3), [0, 0]), (Some(i64::MAX), [1_073_741_824, 1_073_741_823])] {
        observed.owner = Owner::MachinePool { name: "web".to_owned(), generation: None, replicas };
        let found: Vec<_> =
            actions(&planned(&pool, &observed)).into_iter().filter(|a| a.starts_with("patch")).collect();
        assert_eq!(found[0], format!("patch web--dev-1 {{\"size\":{}}}", sizes[0]));
        assert_eq!(found[1], format!("patch web--dev-2 {{\"size\":{}}}", sizes[1]));
    }
}

#[test]
fn a23_more_replicas_raise_the_sizes() {
    let (pool, observed) = settled(5);
    assert_eq!(actions(&planned(&pool, &observed)), ["patch web--dev-1 {\"size\":3}"]);
    let plan = planned(&pool, &observed);
    let Action::PatchShardGroup { patch, .. } = &plan.steps[0].action else { panic!("{plan:?}") };
    assert_eq!(patch["metadata"], json!({ "uid": "uid-dev-1", "resourceVersion": "7" }));
}

#[test]
fn what_a_pool_declares_reaches_its_shard_groups_and_what_it_drops_leaves_them() {
    let (_, observed) = settled(4);
    let changed = json!({ "providerIDList": ["a", "b", "c", "d"], "template": null, "subnets": ["private"], "vars": { "a": "b" } });
    let change = "{\"subnetPool\":\"private\",\"template\":null,\"vars\":{\"a\":\"b\"}}";
    assert_eq!(
        actions(&planned(&pool(&changed), &observed)),
        [format!("patch web--dev-1 {change}"), format!("patch web--dev-2 {change}")]
    );
}

#[test]
fn a95_the_marked_member_goes_and_only_it() {
    let (pool, mut observed) = settled(3);
    observed.members[2].machine.as_mut().unwrap().is_marked = true;
    let plan = planned(&pool, &observed);
    assert_eq!(actions(&plan), ["patch web--dev-2 {\"size\":1}", "delete machine-c"]);
    assert!(!plan.steps[1].needs.is_empty(), "before its group is smaller it would be replaced");

    // The next round: the size is stored, the Machine is going, its shard still has it.
    observed.shard_groups[1].spec.size = Some(1);
    observed.members[2].machine.as_mut().unwrap().is_deleting = true;
    assert_eq!(actions(&planned(&pool, &observed)), Vec::<String>::new());
}

#[test]
fn a96_a_wish_that_was_never_fulfilled_is_taken_back_before_a_member_goes() {
    let (pool, mut observed) = settled(3);
    let mut lacking = group(2, &["c", "d"]);
    if let Members::Listed(instances) = &mut lacking.members {
        instances[1].provider_id.clear();
        instances[1].status = MachineStatus::Pending;
    }
    // The other shard is larger, and all that it is asked for is there.
    observed.shards.insert("dev-1".to_owned(), says(Some(group(3, &["a", "b", "e"]))));
    observed.shards.insert("dev-2".to_owned(), says(Some(lacking)));
    observed.shard_groups = vec![shard_group("dev-1", 3, &["a", "b", "e"]), shard_group("dev-2", 2, &["c"])];
    observed.members.push(member("e"));
    observed.owner = Owner::MachinePool { name: "web".to_owned(), generation: Some(5), replicas: Some(4) };
    let pool_ids = json!({ "providerIDList": ["a", "b", "c", "e"] });
    let pool = NstanceMachinePool { spec: self::pool(&pool_ids).spec, ..pool };
    assert_eq!(actions(&planned(&pool, &observed)), ["patch web--dev-2 {\"size\":1}", "delete machine-d"]);
}

#[test]
fn a95_a_marked_member_is_paid_for_once() {
    let (pool, mut observed) = settled(4);
    observed.members.extend(["e", "f"].map(member));
    observed.shards.insert("dev-1".to_owned(), mute(Some(group(2, &["a", "b"]))));
    observed.shards.insert("dev-2".to_owned(), says(Some(group(4, &["c", "d", "e", "f"]))));
    observed.shard_groups[1] = shard_group("dev-2", 4, &["c", "d", "e", "f"]);
    for marked in [0, 2] {
        observed.members[marked].machine.as_mut().unwrap().is_marked = true;
    }
    let sizes = |observed: &Observed| {
        let found = decide::distribution(&pool, pool.spec.as_ref().unwrap(), observed, 4);
        found.sizes.into_values().collect::<Vec<_>>()
    };
    assert_eq!(sizes(&observed), [2, 3], "one of each shard, and one of the two is silent");
    // The size is stored, and the deletion of the Machine failed.
    observed.shard_groups[1].spec.size = Some(3);
    assert_eq!(sizes(&observed), [2, 3], "what waits for the silent shard is not taken from the other");
    observed.members[2].machine.as_mut().unwrap().is_deleting = true;
    assert_eq!(sizes(&observed), [2, 3]);
}

#[test]
fn a95_a_mark_alone_removes_nothing() {
    let (pool, mut observed) = settled(4);
    observed.members[2].machine.as_mut().unwrap().is_marked = true;
    assert_eq!(actions(&planned(&pool, &observed)), Vec::<String>::new());
}

#[test]
fn without_marks_the_one_that_does_not_run_then_the_cordoned_then_the_oldest_goes() {
    let (pool, mut observed) = settled(4);
    let four = |first: MachineStatus| {
        let mut instances: Vec<_> = ["a", "b", "e", "f"].iter().zip(0..).map(|(id, age)| instance(id, age)).collect();
        instances[3].status = first;
        says(Some(Group { members: Members::Listed(instances), ..group(4, &[]) }))
    };
    observed.members.extend(["e", "f"].map(member));
    observed.shard_groups[0] = shard_group("dev-1", 4, &["a", "b", "e", "f"]);
    let victims = |observed: &Observed| -> Vec<String> {
        let found = actions(&planned(&pool, observed));
        found.into_iter().filter(|action| action.starts_with("delete")).collect()
    };
    observed.shards.insert("dev-1".to_owned(), four(MachineStatus::Running));
    observed.owner = Owner::MachinePool { name: "web".to_owned(), generation: None, replicas: Some(5) };
    assert_eq!(victims(&observed), ["delete machine-a"], "the oldest");
    observed.members[1].machine.as_mut().unwrap().is_cordoned = true;
    assert_eq!(victims(&observed), ["delete machine-b"], "the cordoned");
    observed.shards.insert("dev-1".to_owned(), four(MachineStatus::Stopped));
    assert_eq!(victims(&observed), ["delete machine-f"], "the one that does not run");
    observed.members[0].machine.as_mut().unwrap().is_deleting = true;
    assert_eq!(victims(&observed), Vec::<String>::new(), "one is going already");
}

#[test]
fn a95_no_member_goes_before_marks_are_read_that_are_as_new_as_the_replicas() {
    let (pool, observed) = settled(3);
    let first = plan(&pool, &observed, &InputsOf::default());
    assert_eq!((actions(&first), first.wants.len()), (Vec::new(), 1), "the cache may lack a mark");
    let read = |version, is_marked| {
        let marks = Marks::from([("machine-b".to_owned(), Mark { version, is_marked })]);
        actions(&plan(&pool, &observed, &answered(&first, &marks)))
    };
    let marked = ["patch web--dev-1 {\"size\":1}", "delete machine-b"];
    assert_eq!(read(10, true), marked, "the server has it marked since");
    let unmarked = ["patch web--dev-2 {\"size\":1}", "delete machine-c"];
    assert_eq!(read(9, true), unmarked, "what the cache has is as new");

    let why = Failure { class: Class::Transient, message: "connection refused".to_owned() };
    let mut failed = InputsOf::default();
    failed.facts.insert(first.wants[0].ask.clone(), Fact::Unknown { why, last: None });
    let held = plan(&pool, &observed, &failed);
    assert_eq!((actions(&held), held.blocked[0].reason), (Vec::new(), Reason::StateUnknown), "{:?}", held.blocked);
    assert!(held.blocked[0].message.contains("connection refused"), "{:?}", held.blocked);
}

#[test]
fn a95_marks_are_read_again_for_other_replicas_and_not_at_all_where_none_or_all_go() {
    let asks = |replicas, generation| {
        let (pool, mut observed) = settled(replicas);
        observed.owner =
            Owner::MachinePool { name: "web".to_owned(), generation: Some(generation), replicas: Some(replicas) };
        plan(&pool, &observed, &InputsOf::default()).wants.into_iter().map(|want| want.ask).collect::<Vec<_>>()
    };
    assert_eq!(asks(3, 5), asks(3, 5));
    assert_ne!(asks(3, 5), asks(3, 6));
    for replicas in [0, 4, 5] {
        assert_eq!(asks(replicas, 5), [], "{replicas}");
    }
}

#[test]
fn a98_a_paused_machine_is_left_alone_and_no_other_goes_in_place_of_a_marked_one() {
    let (pool, mut observed) = settled(3);
    let machine = |observed: &mut Observed, index: usize, is_marked: bool| {
        let machine = observed.members[index].machine.as_mut().unwrap();
        (machine.is_paused, machine.is_marked, machine.has_hook) = (true, is_marked, false);
    };
    machine(&mut observed, 3, false);
    let without = planned(&pool, &observed);
    assert_eq!(
        actions(&without),
        ["patch web--dev-2 {\"size\":1}", "delete machine-c"],
        "the other one goes, unhooked"
    );
    machine(&mut observed, 3, true);
    let marked = planned(&pool, &observed);
    assert_eq!(actions(&marked), ["patch web--dev-2 {\"size\":1}"], "its shard keeps what is not drained");
    assert_eq!(marked.blocked[0].reason, Reason::Paused);
    assert!(marked.blocked[0].message.contains("machine-d"), "{:?}", marked.blocked);
}

#[test]
fn an_instance_more_than_the_size_may_be_a_replacement_and_costs_no_member() {
    let (pool, mut observed) = settled(4);
    observed.shards.insert("dev-1".to_owned(), says(Some(group(2, &["a", "b", "e"]))));
    assert_eq!(actions(&planned(&pool, &observed)), ["create machine \"e\""]);
}

#[test]
fn every_living_instance_gets_a_machine_and_none_under_deletion_does() {
    let (pool, mut observed) = settled(4);
    observed.members.clear();
    let leaving = Instance { is_leaving: true, ..instance("b", 1) };
    let deleting = Instance { status: MachineStatus::Deleting, ..instance("e", 2) };
    let members = Members::Listed(vec![instance("a", 0), leaving, deleting]);
    observed.shards.insert("dev-1".to_owned(), says(Some(Group { members, ..group(2, &[]) })));
    observed.shards.insert("dev-2".to_owned(), mute(Some(group(2, &["c", "d"]))));
    let plan = planned(&pool, &observed);
    assert_eq!(actions(&plan), ["create machine \"a\""]);
    let Action::CreateMachine(body) = &plan.steps[0].action else { panic!("{plan:?}") };
    let labels = json!({
        "cluster.x-k8s.io/cluster-name": "c--t", "cluster.x-k8s.io/pool-name": "web", "nstance.dev/shard": "dev-1",
    });
    assert_eq!(body["metadata"]["labels"], labels);
    let finalizer = json!(["nstancemachine.infrastructure.cluster.x-k8s.io/finalizer"]);
    assert_eq!(body["metadata"]["finalizers"], finalizer, "it never goes without its controller");
    assert_eq!(body["metadata"]["ownerReferences"][0].get("controller"), None, "Cluster API becomes its controller");
}

#[test]
fn instances_of_a_shard_that_the_pool_does_not_name_are_not_its_members() {
    let (pool, mut observed) = settled(4);
    observed.shards.insert("dev-3".to_owned(), says(Some(group(1, &["x"]))));
    assert_eq!(actions(&planned(&pool, &observed)), Vec::<String>::new());
}

#[test]
fn every_machine_waits_for_our_drain() {
    let (pool, mut observed) = settled(4);
    observed.members[0].machine.as_mut().unwrap().has_hook = false;
    let going = observed.members[1].machine.as_mut().unwrap();
    (going.has_hook, going.is_deleting) = (false, true);
    // Its instance is gone, which its own controller has said to Cluster API.
    let lost = observed.members[2].machine.as_mut().unwrap();
    (lost.has_hook, lost.is_excluded) = (false, true);
    assert_eq!(actions(&planned(&pool, &observed)), ["hook machine-a"], "one that goes already is Cluster API's");
}

#[test]
fn a24_a_shard_that_left_the_spec_loses_its_group_through_drains() {
    let (_, observed) = settled(4);
    let pool = pool(&json!({ "shards": ["dev-1"], "providerIDList": ["a", "b", "c", "d"] }));
    let expected = ["patch web--dev-1 {\"size\":4}", "delete web--dev-2", "delete machine-c", "delete machine-d"];
    assert_eq!(actions(&planned(&pool, &observed)), expected);
}

#[test]
fn a26_of_two_pools_with_one_group_the_first_wins() {
    let (mut pool, observed) = settled(4);
    let observed = Observed { elder: Some("older".to_owned()), ..observed };
    let plan = planned(&pool, &observed);
    assert_eq!((plan.steps.len(), plan.blocked[0].reason), (0, Reason::DuplicateGroup));
    let report = reported(&pool, &observed);
    assert_eq!(ready(&report.status).1, Reason::DuplicateGroup);
    assert_eq!(report.transitions[0].reason, "DuplicateGroup");
    pool.status = Some(report.status);
    assert_eq!(reported(&pool, &observed).transitions, [], "only once");
}

#[test]
fn a27_an_unknown_shard_is_invalid_until_it_appears() {
    let (_, mut observed) = settled(4);
    let pool = pool(&json!({ "shards": ["dev-1", "dev-2", "dev-3"], "providerIDList": ["a", "b", "c", "d"] }));
    let plan = planned(&pool, &observed);
    assert_eq!((plan.steps.len(), plan.blocked[0].reason), (0, Reason::Invalid));
    assert!(plan.blocked[0].message.contains("dev-3"), "{:?}", plan.blocked);
    observed.shards.insert("dev-3".to_owned(), says(None));
    assert_eq!(actions(&planned(&pool, &observed)), ["create \"web--dev-3\" of 0"]);
}

#[test]
fn a_foreign_shard_group_is_left_alone_and_named() {
    let (pool, mut observed) = settled(4);
    observed.shard_groups[1].owner_uid = Some("another".to_owned());
    let plan = planned(&pool, &observed);
    assert!(actions(&plan).iter().all(|action| !action.contains("web--dev-2")), "{:?}", actions(&plan));
    assert_eq!(plan.blocked[0].reason, Reason::ObjectTaken);
    // However large it is: the pool's own members are not taken for it.
    observed.shard_groups[1].spec.size = Some(40);
    assert_eq!(actions(&planned(&pool, &observed)), Vec::<String>::new());
}

#[test]
fn a_decrease_takes_the_member_that_a_user_deleted_and_no_other() {
    let (pool, mut observed) = settled(3);
    observed.members[3].machine.as_mut().unwrap().is_deleting = true;
    let expected = ["patch web--dev-2 {\"size\":1}"];
    assert_eq!(actions(&planned(&pool, &observed)), expected, "it would be replaced, and another one deleted for it");
}

#[test]
fn a_shard_that_left_the_configuration_does_not_stop_what_is_done_for_members_of_others() {
    let (pool, mut observed) = settled(4);
    observed.shards.remove("dev-2");
    let machine = observed.members[0].machine.as_mut().unwrap();
    machine.has_hook = false;
    let name = machine.name.clone();
    let plan = planned(&pool, &observed);
    assert_eq!(plan.blocked[0].reason, Reason::Invalid);
    let steps: Vec<_> = plan.steps.iter().map(|step| &step.action).collect();
    assert!(matches!(steps.as_slice(), [Action::HookMachine { name: hooked, .. }] if *hooked == name), "{steps:?}");
}

#[test]
fn foreign_objects_under_the_pools_names_are_named_and_not_asked_for_again() {
    let (pool, mut observed) = settled(4);
    observed.taken = [observed.members.remove(0).instance_id].into();
    let plan = planned(&pool, &observed);
    assert_eq!(actions(&plan), Vec::<String>::new());
    assert_eq!(plan.blocked[0].reason, Reason::ObjectTaken);
    let report = reported(&pool, &observed);
    assert_eq!(ready(&report.status).1, Reason::ObjectTaken);
    let (pool, observed) = settled(4);
    let plan = planned(&pool, &Observed { owner: Owner::Taken, ..observed });
    assert_eq!((plan.steps.len(), plan.blocked[0].reason), (0, Reason::ObjectTaken));
    assert!(plan.blocked[0].message.contains("infrastructureRef"), "{:?}", plan.blocked);
}

#[test]
fn a21_a_pool_alone_gets_a_machine_pool_after_a_while_with_the_sizes_that_are_there() {
    let (pool, observed) = settled(4);
    let alone = |seconds| Observed { owner: Owner::Absent { age: Duration::from_secs(seconds) }, ..observed.clone() };
    let early = planned(&pool, &alone(4));
    assert_eq!((early.steps.len(), early.next_look), (0, Some(Duration::from_secs(6))));
    let plan = planned(&pool, &alone(10));
    assert_eq!(actions(&plan), ["create pool of 4"]);
    let Action::CreateMachinePool(body) = &plan.steps[0].action else { panic!("{plan:?}") };
    assert_eq!(
        body["spec"],
        json!({
            "clusterName": "c--t", "replicas": 4,
            "template": { "spec": {
                "clusterName": "c--t", "bootstrap": { "dataSecretName": "" },
                "infrastructureRef": {
                    "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "NstanceMachinePool", "name": "web",
                },
            } },
        })
    );
    let mut silent = alone(10);
    silent.shards.insert("dev-9".to_owned(), mute(None));
    let waiting = planned(&pool, &silent);
    assert_eq!((waiting.steps.len(), waiting.blocked[0].reason), (0, Reason::Reconciling));
    assert!(waiting.blocked[0].message.contains("dev-9"), "every configured shard must have answered");
}

#[test]
fn a19_uneven_sizes_of_shards_are_taken_over() {
    let (pool, mut observed) = settled(5);
    observed.shard_groups.clear();
    observed.members.clear();
    observed.shards.insert("dev-1".to_owned(), says(Some(group(1, &[]))));
    observed.shards.insert("dev-2".to_owned(), says(Some(group(4, &[]))));
    let found = actions(&planned(&pool, &observed));
    assert_eq!(found[..2], ["create \"web--dev-1\" of 1", "create \"web--dev-2\" of 4"]);
}

#[test]
fn a39_ids_are_sorted_and_never_dropped_before_every_shard_group_is_synced() {
    let (pool, mut observed) = settled(4);
    observed.shard_groups[0].provider_ids = vec!["process:///dev-1/b".to_owned(), "process:///dev-1/a".to_owned()];
    let published = |observed: &Observed| -> Vec<String> {
        actions(&planned(&pool, observed)).into_iter().filter(|action| action.starts_with("publish")).collect()
    };
    assert_eq!(published(&observed), ["publish c d process:///dev-1/a process:///dev-1/b"]);
    observed.shard_groups[1].provider_ids.clear();
    observed.shard_groups[1].is_synced = false;
    assert_eq!(published(&observed), ["publish c d process:///dev-1/a process:///dev-1/b"], "not synced yet");
    observed.shard_groups[1].is_synced = true;
    assert_eq!(published(&observed), ["publish process:///dev-1/a process:///dev-1/b"], "the shard omits them");
}

#[test]
fn a28_a_pool_is_ready_when_all_shard_groups_are_and_status_ready_stays() {
    let (mut pool, mut observed) = settled(4);
    observed.shard_groups[1].is_ready = false;
    observed.shard_groups[1].message = "shard dev-2 does not answer".to_owned();
    let before = status(&pool, &observed);
    assert_eq!(
        (before.ready, ready(&before).0, ready(&before).1),
        (false, ConditionStatus::False, Reason::Reconciling)
    );
    assert!(ready(&before).2.contains("web--dev-2: shard dev-2 does not answer"));
    observed.shard_groups[1].is_ready = true;
    let after = status(&pool, &observed);
    assert_eq!((after.ready, ready(&after).0, ready(&after).1), (true, ConditionStatus::True, Reason::Reconciled));
    pool.status = Some(after);
    observed.shard_groups[1].is_ready = false;
    let later = status(&pool, &observed);
    assert_eq!((later.ready, ready(&later).0), (true, ConditionStatus::False));
    assert_eq!(later.initialization.unwrap().provisioned, Some(true));
}

#[test]
fn a28_a_pool_names_what_its_shards_have_beside_what_is_declared() {
    let (pool, mut observed) = settled(4);
    let vars = [("b".to_owned(), "2".to_owned())].into();
    observed.shard_groups[1].config = Some(GroupConfig { vars, ..GroupConfig::default() });
    let found = status(&pool, &observed);
    let (is_ready, reason, message) = ready(&found);
    assert_eq!((is_ready, reason), (ConditionStatus::True, Reason::Reconciled));
    assert!(message.contains("beside it, dev-2 has the vars b, which no request can clear"), "{message}");
    observed.shard_groups[1].is_static = true;
    assert_eq!(ready(&status(&pool, &observed)).2, "all shards have the group as declared");
}

#[test]
fn a41_what_waits_for_a_silent_shard_is_in_the_condition() {
    let (pool, mut observed) = settled(8);
    observed.shards.insert("dev-2".to_owned(), mute(Some(group(2, &["c", "d"]))));
    assert_eq!(actions(&planned(&pool, &observed)), ["patch web--dev-1 {\"size\":4}"]);
    let status = status(&pool, &observed);
    assert_eq!(ready(&status).1, Reason::Reconciling);
    assert!(ready(&status).2.contains("dev-2 (2 to 4 replicas)"), "{}", ready(&status).2);
    assert_eq!(status.replicas, 4, "its members are counted as it said last");
}

#[test]
fn a29_a_pool_is_static_if_any_shard_says_so_and_follows_both_ways() {
    let (mut pool, mut observed) = settled(4);
    assert!(!status(&pool, &observed).is_static);
    let fixed = Group { is_static: true, ..group(2, &["c", "d"]) };
    observed.shards.insert("dev-2".to_owned(), says(Some(fixed.clone())));
    observed.shard_groups[1].is_static = true;
    let was = status(&pool, &observed);
    assert!(was.is_static);
    pool.status = Some(was);
    observed.shards.insert("dev-2".to_owned(), mute(Some(fixed)));
    assert!(status(&pool, &observed).is_static, "silence changes nothing");
    observed.shards.insert("dev-2".to_owned(), says(Some(group(2, &["c", "d"]))));
    assert!(!status(&pool, &observed).is_static);
}

#[test]
fn a89_status_has_effective_values_generations_and_the_shards_that_report_the_group() {
    let (mut pool, mut observed) = settled(4);
    observed.shards.insert("dev-0".to_owned(), says(None));
    observed.shards.insert("dev-3".to_owned(), says(Some(group(1, &[]))));
    observed.shard_groups[0].config.as_mut().unwrap().subnet_pool = Some("private".to_owned());
    let found = status(&pool, &observed);
    assert_eq!(found.reported_shards, ["dev-1", "dev-2", "dev-3"]);
    assert_eq!((found.template.as_deref(), found.subnet_pool.as_deref()), (Some("small"), Some("private")));
    assert_eq!(found.subnets, ["private"]);
    assert_eq!(found.infrastructure_machine_kind.as_deref(), Some("NstanceMachine"));
    assert_eq!((found.observed_generation, found.observed_owner_generation), (Some(3), Some(5)));
    pool.status = Some(found);
    observed.shards.insert("dev-3".to_owned(), mute(None));
    assert_eq!(status(&pool, &observed).reported_shards, ["dev-1", "dev-2", "dev-3"], "silence changes nothing");
}

#[test]
fn a37_a_pool_goes_when_its_members_and_shard_groups_are_gone() {
    let (mut pool, mut observed) = settled(4);
    pool.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    observed.members.remove(3);
    observed.members[2].machine = None;
    let expected = [
        "create machine \"d\"",
        "delete machine-a",
        "delete machine-b",
        "delete member c",
        "delete web--dev-1",
        "delete web--dev-2",
    ];
    assert_eq!(actions(&planned(&pool, &observed)), expected, "also what Cluster API never knew is drained");
    observed.shard_groups.clear();
    let again = [
        "delete machine-a",
        "delete machine-b",
        "delete member c",
        "create \"web--dev-1\" of 2",
        "create \"web--dev-2\" of 2",
    ];
    assert_eq!(actions(&planned(&pool, &observed)), again, "a user deleted its shard groups");
    for name in ["dev-1", "dev-2"] {
        observed.shards.insert(name.to_owned(), says(None));
    }
    observed.members.truncate(1);
    observed.members[0].is_deleting = true;
    assert_eq!(actions(&planned(&pool, &observed)), Vec::<String>::new(), "one member is left");
    observed.members.clear();
    assert_eq!(actions(&planned(&pool, &observed)), ["release finalizer"]);
    observed.shards.insert("dev-2".to_owned(), mute(None));
    assert_eq!(actions(&planned(&pool, &observed)), ["release finalizer"], "it said so last");
    observed.shards.insert("dev-2".to_owned(), Shard::default());
    let plan = planned(&pool, &observed);
    assert_eq!((plan.steps.len(), plan.blocked[0].reason), (0, Reason::ShardUnreachable));
    assert!(ready(&status(&pool, &observed)).2.contains("dev-2"), "{}", ready(&status(&pool, &observed)).2);
}

#[test]
fn members_of_a_static_group_stay_when_their_pool_goes() {
    let (mut pool, mut observed) = settled(4);
    pool.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    let fixed = Group { is_static: true, ..group(2, &["c", "d"]) };
    observed.shards.insert("dev-2".to_owned(), says(Some(fixed.clone())));
    observed.members.remove(3);
    let expected = ["delete machine-a", "delete machine-b", "delete web--dev-1", "delete web--dev-2"];
    assert_eq!(actions(&planned(&pool, &observed)), expected);
    assert!(ready(&status(&pool, &observed)).2.contains("2 machines"));
    observed.members.drain(..2);
    observed.shard_groups.clear();
    observed.shards.insert("dev-1".to_owned(), says(None));
    assert_eq!(actions(&planned(&pool, &observed)), ["release finalizer"]);

    // After a restart, while the shard is silent.
    observed.shards.insert("dev-2".to_owned(), Shard::default());
    observed.members[0].shard = Some("dev-2".to_owned());
    assert_eq!(actions(&planned(&pool, &observed)), ["delete machine-c"], "of a pool that never was static");
    pool.status = Some(NstanceMachinePoolStatus { is_static: true, ..NstanceMachinePoolStatus::default() });
    assert_eq!(actions(&planned(&pool, &observed)), Vec::<String>::new());
    observed.shard_groups = vec![shard_group("dev-2", 2, &["c"])];
    assert_eq!(actions(&planned(&pool, &observed))[0], "delete machine-c", "its shard said otherwise of the group");
}

#[test]
fn a98_a_paused_or_unknown_pool_is_left_alone() {
    let (pool, observed) = settled(9);
    for observed in
        [Observed { is_paused: true, ..observed.clone() }, Observed { owner: Owner::Unknown, ..observed.clone() }]
    {
        assert_eq!(actions(&planned(&pool, &observed)), Vec::<String>::new());
    }
    let paused = status(&pool, &Observed { is_paused: true, ..observed });
    assert_eq!(paused.condition(ConditionType::Paused).unwrap().status, ConditionStatus::True);
}
