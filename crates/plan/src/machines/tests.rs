//! Pool, shard groups and machines together, with a simulated shard server, Cluster API and drains: whatever happens, no
//! instance is removed before its Node is drained, and all of it comes to rest as declared.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::machine::{
    MACHINE_FINALIZER, NstanceMachine, NstanceMachinePool, NstanceShardGroup, POOL_FINALIZER, SHARD_GROUP_FINALIZER,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use serde_json::{from_value, json};

use super::machine::{self, Drain, is_released};
use super::node::NodeRef;
use super::pool;
use super::shard::{Answer, Group, Instance, Members, Outcome, Shard};
use super::shard_group::{self, Call, Note, Tried};
use crate::fact::{Class, Fact, Failure};
use crate::round::{Inputs, Progress};
use crate::shard::instance::MachineStatus;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

/// A shard's server.
#[derive(Clone, Debug, Default)]
struct Server {
    is_silent: bool,
    poll: u64,
    group: Option<Group>,
    remove_first: Vec<String>,
    replace: BTreeSet<String>,
}

/// A Machine of Cluster API.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "facts about a Machine, each by itself")]
struct Machine {
    is_deleting: bool,
    has_hook: bool,
    is_excluded: bool,
    is_marked: bool,
}

#[derive(Clone, Debug)]
struct World {
    replicas: i64,
    pool: NstanceMachinePool,
    servers: BTreeMap<String, Server>,
    shard_groups: BTreeMap<String, (NstanceShardGroup, Note, Call)>,
    members: BTreeMap<String, NstanceMachine>,
    machines: BTreeMap<String, Machine>,
    drains: BTreeMap<String, Drain>,
    next_id: u32,
    acted: bool,
}

/// What a user or the network does.
#[derive(Clone, Debug)]
enum Event {
    Scale(i64),
    Silence(usize),
    Voice(usize),
    Mark(usize),
    DeleteMachine(usize),
    Tick,
}

impl World {
    fn new(shards: &[&str], replicas: i64) -> Self {
        let metadata = json!({ "name": "web", "uid": "pool", "namespace": "ns", "finalizers": [POOL_FINALIZER] });
        let spec = json!({ "group": "web", "shards": shards, "template": "small" });
        let servers = shards.iter().map(|name| ((*name).to_owned(), Server { poll: 1, ..Server::default() })).collect();
        Self {
            replicas,
            pool: from_value(json!({ "metadata": metadata, "spec": spec })).unwrap(),
            servers,
            shard_groups: BTreeMap::new(),
            members: BTreeMap::new(),
            machines: BTreeMap::new(),
            drains: BTreeMap::new(),
            next_id: 0,
            acted: false,
        }
    }

    fn shard(&self, name: &str) -> Shard {
        let server = &self.servers[name];
        let answer = Answer { poll: server.poll, group: server.group.clone() };
        if server.is_silent {
            let why = Failure { class: Class::Transient, message: "silent".to_owned() };
            return Shard::Configured(Fact::Unknown { why, last: Some((answer, Duration::ZERO)) });
        }
        Shard::Configured(Fact::Known { value: answer, age: Duration::ZERO })
    }

    fn owner(&self, id: &str) -> machine::Owner {
        self.machines.get(id).map_or(machine::Owner::Unset, |found| {
            machine::Owner::Machine(machine::Machine {
                name: id.to_owned(),
                is_deleting: found.is_deleting,
                has_hook: found.has_hook,
                is_excluded: found.is_excluded,
                ..machine::Machine::default()
            })
        })
    }

    /// Every controller runs once, then every other program.
    fn tick(&mut self) {
        self.acted = false;
        self.run_pool();
        for name in self.shard_groups.keys().cloned().collect::<Vec<_>>() {
            self.run_shard_group(&name);
        }
        for id in self.members.keys().cloned().collect::<Vec<_>>() {
            self.run_machine(&id);
        }
        self.run_drains();
        self.run_cluster_api();
        for name in self.servers.keys().cloned().collect::<Vec<_>>() {
            self.run_server(&name);
        }
    }

    fn observed_pool(&self) -> pool::Observed {
        let shard_group = |(name, (object, ..)): (&String, &(NstanceShardGroup, Note, Call))| {
            let status = object.status.clone().unwrap_or_default();
            pool::ShardGroup {
                name: name.clone(),
                owner_uid: Some("pool".to_owned()),
                spec: object.spec.clone().unwrap(),
                is_deleting: object.metadata.deletion_timestamp.is_some(),
                is_synced: status.last_sync_time.is_some(),
                provider_ids: status.provider_ids,
                ..pool::ShardGroup::default()
            }
        };
        let member = |(id, object): (&String, &NstanceMachine)| pool::Member {
            instance_id: id.clone(),
            is_deleting: object.metadata.deletion_timestamp.is_some(),
            machine: self.machines.get(id).map(|found| pool::Machine {
                name: id.clone(),
                is_deleting: found.is_deleting,
                is_marked: found.is_marked,
                has_hook: found.has_hook,
                ..pool::Machine::default()
            }),
            ..pool::Member::default()
        };
        pool::Observed {
            owner: pool::Owner::MachinePool { name: "web".to_owned(), generation: None, replicas: Some(self.replicas) },
            shards: self.servers.keys().map(|name| (name.clone(), self.shard(name))).collect(),
            shard_groups: self.shard_groups.iter().map(shard_group).collect(),
            members: self.members.iter().map(member).collect(),
            ..pool::Observed::default()
        }
    }

    fn run_pool(&mut self) {
        let plan = pool::plan(&self.pool, &self.observed_pool());
        self.acted |= !plan.steps.is_empty();
        for step in plan.steps {
            match step.action {
                pool::Action::CreateShardGroup(mut body) => {
                    body["metadata"]["finalizers"] = json!([SHARD_GROUP_FINALIZER]);
                    let object: NstanceShardGroup = from_value(body).unwrap();
                    let name = object.metadata.name.clone().unwrap();
                    self.shard_groups.insert(name, (object, Note::default(), Call::None));
                }
                pool::Action::PatchShardGroup { name, patch } => {
                    let object = &mut self.shard_groups.get_mut(&name).unwrap().0;
                    let mut spec = json!(object.spec);
                    for (field, value) in patch["spec"].as_object().unwrap() {
                        spec[field] = value.clone();
                    }
                    object.spec = from_value(spec).unwrap();
                }
                pool::Action::CreateMachine(mut body) => {
                    body["metadata"]["finalizers"] = json!([MACHINE_FINALIZER]);
                    let object: NstanceMachine = from_value(body).unwrap();
                    self.members.insert(object.metadata.name.clone().unwrap(), object);
                }
                pool::Action::HookMachine { name, .. } => self.machines.get_mut(&name).unwrap().has_hook = true,
                pool::Action::DeleteMachine { name, .. } => self.machines.get_mut(&name).unwrap().is_deleting = true,
                pool::Action::PublishProviderIds { ids } => self.pool.spec.as_mut().unwrap().provider_id_list = ids,
                pool::Action::Annotate => {
                    let annotation = ("nstance.dev/managed-by".to_owned(), "nstance-operator".to_owned());
                    self.pool.metadata.annotations = Some([annotation].into());
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn run_shard_group(&mut self, name: &str) {
        let (object, note, call) = self.shard_groups[name].clone();
        let shard = object.spec.as_ref().unwrap().shard.clone();
        let released =
            self.members.iter().filter(|(id, member)| is_released(member, &self.owner(id))).map(|(id, _)| id.clone());
        let observed = shard_group::Observed {
            shard: self.shard(&shard),
            released: released.collect(),
            call,
            ..shard_group::Observed::default()
        };
        let plan = shard_group::plan(&object, &observed, &note);
        self.acted |= !plan.steps.is_empty();
        let mut call = Call::None;
        for step in &plan.steps {
            match &step.action {
                shard_group::Action::Upsert { push, poll } => {
                    let server = self.servers.get_mut(&shard).unwrap();
                    assert!(!server.is_silent, "a silent shard is asked for nothing");
                    let group = server.group.get_or_insert_default();
                    if group.size == push.size {
                        server.replace.extend(push.remove_first.iter().cloned());
                        server.remove_first.clear();
                    } else {
                        server.remove_first.clone_from(&push.remove_first);
                        server.replace.retain(|id| !push.remove_first.contains(id));
                    }
                    group.size = push.size;
                    group.template.clone_from(&push.template);
                    let tried = Tried { digest: push.digest(), poll: *poll, outcome: Outcome::Accepted };
                    call = Call::Ended(tried);
                }
                other => panic!("{other:?}"),
            }
        }
        let progress: Vec<_> = plan.steps.iter().map(|_| Progress::Done(())).collect();
        let inputs = Inputs { note, ..Inputs::default() };
        let round = shard_group::RoundOf {
            object: &object,
            observed: &observed,
            inputs: &inputs,
            plan: &plan,
            progress: &progress,
        };
        let report = shard_group::report(&round, NOW);
        let stored = self.shard_groups.get_mut(name).unwrap();
        self.acted |= stored.0.status.as_ref() != Some(&report.status);
        stored.0.status = Some(report.status);
        (stored.1, stored.2) = (report.note, call);
    }

    fn holder(&self, id: &str) -> Option<String> {
        let has = |server: &Server| {
            server.group.as_ref().is_some_and(|group| group.instances().iter().any(|instance| instance.id == *id))
        };
        self.servers.iter().find(|(_, server)| has(server)).map(|(name, _)| name.clone())
    }

    fn run_machine(&mut self, id: &str) {
        let object = self.members[id].clone();
        let stored = object.status.as_ref().and_then(|status| status.shard.clone());
        let observed = machine::Observed {
            role: machine::Role::Member { shard: self.holder(id).or(stored) },
            owner: self.owner(id),
            shards: self.servers.keys().map(|name| (name.clone(), self.shard(name))).collect(),
            nodes: Fact::Known { value: vec![node(id)], age: Duration::ZERO },
            drain: self.drains.get(id).cloned().unwrap_or_default(),
            deleted: None,
            call: machine::Call::None,
            is_paused: false,
        };
        let inputs = machine::InputsOf::default();
        let plan = machine::plan(&object, &observed, &inputs);
        self.acted |= !plan.steps.is_empty();
        let progress: Vec<_> = plan.steps.iter().map(|_| Progress::Done(())).collect();
        let round = machine::RoundOf {
            object: &object,
            observed: &observed,
            inputs: &inputs,
            plan: &plan,
            progress: &progress,
        };
        let status = machine::report(&round, NOW).status;
        self.acted |= object.status.as_ref() != Some(&status);
        self.members.get_mut(id).unwrap().status = Some(status);
        for step in plan.steps {
            match step.action {
                machine::Action::SetProviderId { id: provider_id } => {
                    self.members.get_mut(id).unwrap().spec.as_mut().unwrap().provider_id = Some(provider_id);
                }
                machine::Action::Drain { node, .. } => {
                    let running = Drain::Running { blocked: None, left: String::new() };
                    self.drains.insert(node, running);
                }
                machine::Action::ReleaseHook { name, .. } => {
                    let machine = self.machines.get_mut(&name).unwrap();
                    (machine.has_hook, machine.is_excluded) = (false, true);
                }
                machine::Action::DeleteMachine { name, .. } => self.machines.get_mut(&name).unwrap().is_deleting = true,
                machine::Action::DeleteSelf => deleted(self.members.get_mut(id).unwrap()),
                machine::Action::ReleaseFinalizer { .. } => {
                    self.members.remove(id);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn run_drains(&mut self) {
        for drain in self.drains.values_mut().filter(|drain| matches!(drain, Drain::Running { .. })) {
            *drain = Drain::Done;
            self.acted = true;
        }
    }

    fn run_cluster_api(&mut self) {
        for (id, object) in &mut self.members {
            let machine = self.machines.entry(id.clone()).or_insert_with(|| {
                self.acted = true;
                Machine::default()
            });
            if machine.is_deleting && !machine.has_hook && object.metadata.deletion_timestamp.is_none() {
                self.acted = true;
                deleted(object);
            }
        }
        let members = &self.members;
        self.machines.retain(|id, _| members.contains_key(id));
    }

    /// Removes what is too many, the named ones first, and makes what is missing; a replacement comes before the one it
    /// replaces goes.
    fn run_server(&mut self, name: &str) {
        let drained = |drains: &BTreeMap<String, Drain>, id: &str| matches!(drains.get(id), Some(Drain::Done));
        let server = self.servers.get_mut(name).unwrap();
        server.poll += 1;
        let Some(group) = &mut server.group else { return };
        let Members::Listed(instances) = &mut group.members else { panic!("it lists them") };
        let size = usize::try_from(group.size).unwrap();
        let living: BTreeSet<String> = instances.iter().map(|instance| instance.id.clone()).collect();
        server.replace.retain(|id| living.contains(id));
        server.remove_first.retain(|id| living.contains(id));
        while instances.len() < size + usize::from(!server.replace.is_empty()) {
            self.next_id += 1;
            self.acted = true;
            let id = format!("web{:04}", self.next_id);
            instances.push(Instance {
                provider_id: format!("raw-{id}"),
                node_provider_id: format!("process:///{name}/raw-{id}"),
                id,
                status: MachineStatus::Running,
                created_at: None,
                is_leaving: false,
            });
        }
        let mut named = server.remove_first.iter().chain(&server.replace).cloned().collect::<Vec<_>>().into_iter();
        while instances.len() > size {
            let victim = named.next().unwrap_or_else(|| instances[0].id.clone());
            assert!(drained(&self.drains, &victim), "{victim} of {name} is removed and was not drained");
            instances.retain(|instance| instance.id != victim);
            self.acted = true;
        }
    }

    fn happen(&mut self, event: &Event) {
        let nth = |names: Vec<String>, index: usize| names.get(index % names.len().max(1)).cloned();
        match event {
            Event::Scale(replicas) => self.replicas = *replicas,
            Event::Silence(index) | Event::Voice(index) => {
                let name = nth(self.servers.keys().cloned().collect(), *index).unwrap();
                self.servers.get_mut(&name).unwrap().is_silent = matches!(event, Event::Silence(_));
            }
            Event::Mark(index) | Event::DeleteMachine(index) => {
                let name = nth(self.machines.keys().cloned().collect(), *index);
                if let Some(machine) = name.and_then(|name| self.machines.get_mut(&name)) {
                    let is_mark = matches!(event, Event::Mark(_));
                    machine.is_marked |= is_mark;
                    machine.is_deleting |= !is_mark;
                }
            }
            Event::Tick => self.tick(),
        }
    }

    fn instances(&self) -> Vec<String> {
        let groups = self.servers.values().filter_map(|server| server.group.as_ref());
        groups.flat_map(Group::instances).map(|instance| instance.id.clone()).collect()
    }

    /// All shards answer, and nothing else happens any more.
    fn settle(&mut self) {
        for server in self.servers.values_mut() {
            server.is_silent = false;
        }
        for _ in 0..200 {
            self.tick();
            if !self.acted {
                return;
            }
        }
        panic!("it does not come to rest: {self:#?}");
    }
}

fn node(id: &str) -> NodeRef {
    NodeRef { name: id.to_owned(), provider_id: format!("process:///any/raw-{id}") }
}

fn deleted(object: &mut NstanceMachine) {
    object.metadata.deletion_timestamp = Some(Time(NOW));
}

fn check_settled(world: &World) {
    let instances = world.instances();
    assert_eq!(instances.len(), usize::try_from(world.replicas).unwrap());
    let members: Vec<_> = world.members.keys().cloned().collect();
    let mut sorted = instances;
    sorted.sort();
    assert_eq!(members, sorted, "one NstanceMachine for each instance");
    assert_eq!(world.machines.len(), members.len());
    assert!(world.machines.values().all(|machine| machine.has_hook && !machine.is_deleting));
    let published = &world.pool.spec.as_ref().unwrap().provider_id_list;
    let expected: Vec<String> = members.iter().map(|id| node(id).provider_id).collect();
    assert_eq!(published.len(), expected.len(), "{published:?}");
}

#[test]
fn a95_a_pool_grows_and_shrinks_and_the_marked_one_goes() {
    let mut world = World::new(&["dev-1", "dev-2"], 5);
    world.settle();
    check_settled(&world);
    let marked = world.machines.keys().nth(2).unwrap().clone();
    let before: BTreeSet<_> = world.instances().into_iter().collect();
    world.machines.get_mut(&marked).unwrap().is_marked = true;
    world.replicas = 4;
    world.settle();
    check_settled(&world);
    let after: BTreeSet<_> = world.instances().into_iter().collect();
    assert_eq!(before.difference(&after).collect::<Vec<_>>(), [&marked], "only it");
    assert!(after.is_subset(&before));
}

#[test]
fn a_machine_that_a_user_deletes_is_drained_and_replaced() {
    let mut world = World::new(&["dev-1", "dev-2"], 3);
    world.settle();
    let victim = world.machines.keys().next().unwrap().clone();
    world.machines.get_mut(&victim).unwrap().is_deleting = true;
    world.settle();
    check_settled(&world);
    assert!(!world.members.contains_key(&victim));
}

#[test]
fn a41_a_silent_shard_loses_nothing_and_delays_no_other() {
    let mut world = World::new(&["dev-1", "dev-2"], 4);
    world.settle();
    world.servers.get_mut("dev-2").unwrap().is_silent = true;
    let theirs = world.servers["dev-2"].group.clone();
    world.replicas = 8;
    for _ in 0..20 {
        world.tick();
    }
    assert_eq!(world.servers["dev-1"].group.as_ref().unwrap().instances().len(), 4, "up to its share");
    assert_eq!(world.servers["dev-2"].group, theirs);
    assert_eq!(world.members.len(), 6, "no Machine goes because a shard is silent");
    world.settle();
    check_settled(&world);
    assert_eq!(world.servers["dev-2"].group.as_ref().unwrap().size, 4);
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => (0..9_i64).prop_map(Event::Scale),
        1 => (0..3_usize).prop_map(Event::Silence),
        1 => (0..3_usize).prop_map(Event::Voice),
        2 => (0..9_usize).prop_map(Event::Mark),
        1 => (0..9_usize).prop_map(Event::DeleteMachine),
        8 => Just(Event::Tick),
    ]
}

proptest! {
    // A case takes some 40 ms without optimisation; the tests of this crate take seconds together.
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn whatever_happens_nothing_goes_undrained_and_all_comes_to_rest(
        replicas in 0..9_i64,
        events in proptest::collection::vec(any_event(), 0..60),
    ) {
        let mut world = World::new(&["dev-1", "dev-2", "dev-3"], replicas);
        for event in &events {
            world.happen(event);
        }
        world.settle();
        check_settled(&world);
    }
}
