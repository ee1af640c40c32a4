//! The controllers with simulated shard servers, Cluster API, drains and users.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::machine::{NstanceMachine, NstanceMachinePool, NstanceShardGroup, POOL_FINALIZER, SHARD_LABEL};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde_json::{Value, from_value, json};

use super::super::machine::{self, Drain, is_released};
use super::super::node::NodeRef;
use super::super::pool;
use super::super::shard::{Answer, Group, Instance, Members, Outcome, Shard};
use super::super::shard_group::{self, Call, DELETE, Tried};
use crate::fact::{Class, Fact, Failure};
use crate::round::{Inputs, Progress};
use crate::shard::instance::MachineStatus;

pub const NOW: Timestamp = Timestamp::UNIX_EPOCH;

/// A shard's server.
#[derive(Clone, Debug, Default)]
pub struct Server {
    pub is_silent: bool,
    /// It has lost its groups, and not their instances.
    pub has_lost: bool,
    /// It has had instances that nothing else knows of: those that are not named it drains by itself.
    was_lost: bool,
    poll: u64,
    pub group: Option<Group>,
    remove_first: Vec<String>,
    replace: BTreeSet<String>,
    /// What it said last.
    said: Answer,
}

/// A Machine of Cluster API.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "facts about a Machine, each by itself")]
pub struct Machine {
    pub is_deleting: bool,
    pub has_hook: bool,
    pub is_excluded: bool,
    pub is_marked: bool,
    has_node_ref: bool,
}

#[derive(Clone, Debug)]
pub struct ShardGroup {
    pub object: NstanceShardGroup,
    note: shard_group::Note,
    call: Call,
}

#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "facts about the world, each by itself")]
pub struct World {
    pub replicas: i64,
    pub pool: NstanceMachinePool,
    pub is_pool_gone: bool,
    pub is_paused: bool,
    pub are_nodes_away: bool,
    pub are_drains_blocked: bool,
    pub servers: BTreeMap<String, Server>,
    pub shard_groups: BTreeMap<String, ShardGroup>,
    pub members: BTreeMap<String, (NstanceMachine, machine::Note)>,
    pub machines: BTreeMap<String, Machine>,
    /// Provider IDs of Nodes.
    pub nodes: BTreeMap<String, String>,
    /// Drains that this process knows.
    pub drains: BTreeMap<String, Drain>,
    /// What shards said of deletions, and this process knows.
    deleted: BTreeMap<String, String>,
    /// Instances that may go: drained, past their deadline, or lost.
    pub free: BTreeSet<String>,
    /// Instances that ever had an NstanceMachine. Of others only their shard knows, and drains them by itself.
    recorded: BTreeSet<String>,
    /// Writes until the process dies.
    fuel: Option<usize>,
    next_id: u32,
    pub acted: bool,
}

/// What a user, the network or chance does.
#[derive(Clone, Debug)]
pub enum Event {
    Scale(i64),
    Silence(usize),
    Voice(usize),
    Mark(usize),
    DeleteMachine(usize),
    DeleteMember(usize),
    DeleteShardGroup(usize),
    Pause(bool),
    TakeNodesAway(bool),
    BlockDrains(bool),
    /// The deadline of every drain that is under way passes.
    Expire,
    /// An instance ends by itself, with a word of its shard or without.
    Lose(usize, bool),
    LoseGroup(usize),
    /// The process dies after so many writes of its next turn.
    Kill(usize),
    Tick,
}

impl World {
    pub fn new(shards: &[&str], replicas: i64) -> Self {
        let metadata = json!({ "name": "web", "uid": "pool", "namespace": "ns", "finalizers": [POOL_FINALIZER] });
        let spec = json!({ "group": "web", "shards": shards, "template": "small" });
        let servers = shards.iter().map(|name| ((*name).to_owned(), Server { poll: 1, ..Server::default() })).collect();
        Self {
            replicas,
            pool: from_value(json!({ "metadata": metadata, "spec": spec })).unwrap(),
            is_pool_gone: false,
            is_paused: false,
            are_nodes_away: false,
            are_drains_blocked: false,
            servers,
            shard_groups: BTreeMap::new(),
            members: BTreeMap::new(),
            machines: BTreeMap::new(),
            nodes: BTreeMap::new(),
            drains: BTreeMap::new(),
            deleted: BTreeMap::new(),
            free: BTreeSet::new(),
            recorded: BTreeSet::new(),
            fuel: None,
            next_id: 0,
            acted: false,
        }
    }

    fn shard(&self, name: &str) -> Shard {
        let server = &self.servers[name];
        let value = server.said.clone();
        if server.is_silent {
            let why = Failure { class: Class::Transient, message: "silent".to_owned() };
            return Shard::Configured(Fact::Unknown { why, last: Some((value, Duration::ZERO)) });
        }
        Shard::Configured(Fact::Known { value, age: Duration::ZERO })
    }

    fn shards(&self) -> BTreeMap<String, Shard> {
        self.servers.keys().map(|name| (name.clone(), self.shard(name))).collect()
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
    pub fn tick(&mut self) {
        self.acted = false;
        for server in self.servers.values_mut().filter(|server| !server.is_silent) {
            let group = server.group.clone().filter(|_| !server.has_lost);
            server.said = Answer { poll: server.poll, group };
        }
        self.run_pool();
        for name in self.shard_groups.keys().cloned().collect::<Vec<_>>() {
            self.run_shard_group(&name);
        }
        for id in self.members.keys().cloned().collect::<Vec<_>>() {
            self.run_machine(&id);
        }
        if self.fuel.take().is_some() {
            self.forget();
        }
        self.run_drains();
        self.run_cluster_api();
        for name in self.servers.keys().cloned().collect::<Vec<_>>() {
            self.run_server(&name);
        }
    }

    /// What only the process knew is gone with it.
    fn forget(&mut self) {
        self.acted = true;
        self.drains.clear();
        self.deleted.clear();
        for group in self.shard_groups.values_mut() {
            (group.note, group.call) = (shard_group::Note::default(), Call::None);
        }
        for (_, note) in self.members.values_mut() {
            *note = machine::Note::default();
        }
    }

    /// Whether the process still lives for one more write.
    fn writes(&mut self) -> bool {
        match &mut self.fuel {
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
            None => true,
        }
    }

    fn observed_pool(&self) -> pool::Observed {
        let shard_group = |(name, group): (&String, &ShardGroup)| {
            let status = group.object.status.clone().unwrap_or_default();
            pool::ShardGroup {
                name: name.clone(),
                owner_uid: Some("pool".to_owned()),
                spec: group.object.spec.clone().unwrap(),
                is_deleting: is_deleting(&group.object.metadata),
                is_static: status.is_static,
                is_synced: status.last_sync_time.is_some(),
                provider_ids: status.provider_ids,
                ..pool::ShardGroup::default()
            }
        };
        let member = |(id, (object, _)): (&String, &(NstanceMachine, machine::Note))| pool::Member {
            instance_id: id.clone(),
            shard: object.status.as_ref().and_then(|status| status.shard.clone()),
            is_deleting: is_deleting(&object.metadata),
            machine: self.machines.get(id).map(|found| pool::Machine {
                name: id.clone(),
                is_deleting: found.is_deleting,
                is_marked: found.is_marked,
                has_hook: found.has_hook,
                is_excluded: found.is_excluded,
                ..pool::Machine::default()
            }),
            ..pool::Member::default()
        };
        pool::Observed {
            owner: pool::Owner::MachinePool { name: "web".to_owned(), generation: None, replicas: Some(self.replicas) },
            shards: self.shards(),
            shard_groups: self.shard_groups.iter().map(shard_group).collect(),
            members: self.members.iter().map(member).collect(),
            is_paused: self.is_paused,
            ..pool::Observed::default()
        }
    }

    fn run_pool(&mut self) {
        if self.is_pool_gone {
            return;
        }
        let observed = self.observed_pool();
        let first = pool::plan(&self.pool, &observed, &pool::InputsOf::default());
        // What is observed here is never behind.
        let inputs = pool::answered(&first, &pool::Marks::new());
        let plan = pool::plan(&self.pool, &observed, &inputs);
        let progress: Vec<_> = plan.steps.iter().map(|_| Progress::Done(())).collect();
        let (object, progress) = (&self.pool, progress.as_slice());
        let round = pool::RoundOf { object, observed: &observed, inputs: &inputs, plan: &plan, progress };
        let status = pool::report(&round, NOW).status;
        self.acted |= !plan.steps.is_empty() || self.pool.status.as_ref() != Some(&status);
        for step in plan.steps {
            if !self.writes() {
                return;
            }
            self.act_for_pool(step.action);
        }
        if self.writes() {
            self.pool.status = Some(status);
        }
    }

    fn act_for_pool(&mut self, action: pool::Action) {
        match action {
            pool::Action::CreateShardGroup(body) => {
                let object: NstanceShardGroup = from_value(body).unwrap();
                let name = object.metadata.name.clone().unwrap();
                let group = ShardGroup { object, note: shard_group::Note::default(), call: Call::None };
                self.shard_groups.insert(name, group);
            }
            pool::Action::PatchShardGroup { name, patch } => {
                let object = &mut self.shard_groups.get_mut(&name).unwrap().object;
                let mut spec = json!(object.spec);
                merge(&mut spec, &patch["spec"]);
                object.spec = from_value(spec).unwrap();
            }
            pool::Action::DeleteShardGroup { name, .. } => self.delete_shard_group(&name),
            pool::Action::CreateMachine(body) => {
                let object: NstanceMachine = from_value(body).unwrap();
                let name = object.metadata.name.clone().unwrap();
                self.recorded.insert(name.clone());
                self.members.insert(name, (object, machine::Note::default()));
            }
            pool::Action::HookMachine { name, .. } => self.machines.get_mut(&name).unwrap().has_hook = true,
            pool::Action::DeleteMachine { name, .. } => self.machines.get_mut(&name).unwrap().is_deleting = true,
            pool::Action::DeleteMember { name, .. } => self.delete_member(&name),
            pool::Action::PublishProviderIds { ids } => self.publish(&ids),
            pool::Action::Annotate => {
                let annotation = ("nstance.dev/managed-by".to_owned(), "nstance-operator".to_owned());
                self.pool.metadata.annotations = Some([annotation].into());
            }
            pool::Action::ReleaseFinalizer { .. } => self.is_pool_gone = true,
            other => panic!("{other:?}"),
        }
    }

    /// Cluster API deletes the Node of an ID that leaves the list.
    fn publish(&mut self, ids: &[String]) {
        let list = &mut self.pool.spec.as_mut().unwrap().provider_id_list;
        let before = std::mem::replace(list, ids.to_vec());
        for (node, id) in self.nodes.clone() {
            if before.contains(&id) && !ids.contains(&id) {
                self.remove_node(&node);
            }
        }
    }

    /// The pods of a Node that is deleted are gone.
    fn remove_node(&mut self, id: &str) {
        if self.nodes.remove(id).is_some() {
            assert!(self.free.contains(id), "the Node of {id} is deleted and was not drained");
        }
    }

    fn delete_member(&mut self, id: &str) {
        if let Some((object, _)) = self.members.get_mut(id)
            && !delete(&mut object.metadata)
        {
            self.members.remove(id);
        }
    }

    fn delete_shard_group(&mut self, name: &str) {
        if let Some(group) = self.shard_groups.get_mut(name)
            && !delete(&mut group.object.metadata)
        {
            self.shard_groups.remove(name);
        }
    }

    fn run_shard_group(&mut self, name: &str) {
        let ShardGroup { object, note, call } = self.shard_groups[name].clone();
        let shard = object.spec.as_ref().unwrap().shard.clone();
        let is_free = |(id, (member, _)): &(&String, &(NstanceMachine, _))| is_released(member, &self.owner(id));
        let label = |member: &NstanceMachine| member.metadata.labels.as_ref().unwrap()[SHARD_LABEL].clone();
        let observed = shard_group::Observed {
            members: self.members.values().filter(|(member, _)| label(member) == shard).count(),
            shard: self.shard(&shard),
            released: self.members.iter().filter(is_free).map(|(id, _)| id.clone()).collect(),
            call,
            is_paused: self.is_paused,
            is_wanted: !self.is_pool_gone && !is_deleting(&self.pool.metadata),
            ..shard_group::Observed::default()
        };
        let plan = shard_group::plan(&object, &observed, &note);
        self.acted |= !plan.steps.is_empty();
        let inputs = Inputs { note, ..Inputs::default() };
        let progress: Vec<_> = plan.steps.iter().map(|_| Progress::Done(())).collect();
        let round = shard_group::RoundOf {
            object: &object,
            observed: &observed,
            inputs: &inputs,
            plan: &plan,
            progress: &progress,
        };
        let report = shard_group::report(&round, NOW);
        let mut call = Call::None;
        for step in plan.steps.clone() {
            if !self.writes() {
                return;
            }
            call = self.act_for_shard_group(name, &shard, step.action).unwrap_or(call);
        }
        let is_alive = self.writes();
        if let Some(stored) = self.shard_groups.get_mut(name).filter(|_| is_alive) {
            self.acted |= stored.object.status.as_ref() != Some(&report.status);
            stored.object.status = Some(report.status);
            (stored.note, stored.call) = (report.note, call);
        }
    }

    fn act_for_shard_group(&mut self, name: &str, shard: &str, action: shard_group::Action) -> Option<Call> {
        let server = self.servers.get_mut(shard).unwrap();
        match action {
            shard_group::Action::AddFinalizer { finalizers } => {
                let stored = self.shard_groups.get_mut(name).unwrap();
                stored.object.metadata.finalizers = Some(finalizers);
                None
            }
            shard_group::Action::ReleaseFinalizer { .. } => {
                self.shard_groups.remove(name);
                None
            }
            shard_group::Action::Upsert { push, poll } => {
                assert!(!server.is_silent, "a silent shard is asked for nothing");
                server.has_lost = false;
                let group = server.group.get_or_insert_default();
                if group.size == push.size {
                    server.replace.extend(push.remove_first.iter().cloned());
                    server.remove_first.clear();
                } else {
                    server.remove_first.clone_from(&push.remove_first);
                    server.replace.retain(|id| !push.remove_first.contains(id));
                }
                group.size = push.size;
                if !push.template.is_empty() {
                    group.template.clone_from(&push.template);
                }
                Some(Call::Ended(Tried { digest: push.digest(), poll, outcome: Outcome::Accepted }))
            }
            shard_group::Action::DeleteGroup { poll, .. } => {
                let is_static = server.group.as_ref().is_some_and(|group| group.is_static);
                let left = server.group.take_if(|_| !is_static);
                assert!(left.is_none_or(|group| group.instances().is_empty()), "a group with instances is deleted");
                Some(Call::Ended(Tried { digest: DELETE.to_owned(), poll, outcome: Outcome::Accepted }))
            }
            other @ (shard_group::Action::DrainNode { .. }
            | shard_group::Action::ReturnNode { .. }
            | shard_group::Action::ReleaseDrain { .. }) => panic!("{other:?}"),
        }
    }

    fn run_machine(&mut self, id: &str) {
        let (object, note) = self.members[id].clone();
        let label = object.metadata.labels.as_ref().and_then(|labels| labels.get(SHARD_LABEL).cloned());
        let node = |(name, id): (&String, &String)| NodeRef { name: name.clone(), provider_id: id.clone() };
        let nodes: Vec<NodeRef> = self.nodes.iter().map(node).collect();
        let why = Failure { class: Class::Transient, message: "away".to_owned() };
        let observed = machine::Observed {
            role: machine::Role::Member { shard: label },
            owner: self.owner(id),
            shards: self.shards(),
            nodes: if self.are_nodes_away {
                Fact::Unknown { why, last: Some((nodes, Duration::ZERO)) }
            } else {
                Fact::Known { value: nodes, age: Duration::ZERO }
            },
            addresses: BTreeMap::new(),
            drain: self.drains.get(id).cloned().unwrap_or_default(),
            asked: self.drains.get(id).map(|_| machine::Asked { left: None }),
            begun: None,
            deleted: self.deleted.get(id).cloned(),
            call: machine::Call::None,
            is_paused: self.is_paused,
        };
        let inputs = machine::InputsOf { note, ..machine::InputsOf::default() };
        let plan = machine::plan(&object, &observed, &inputs);
        self.acted |= !plan.steps.is_empty() || plan.next_look.is_some();
        let progress: Vec<_> = plan.steps.iter().map(|_| Progress::Done(())).collect();
        let round = machine::RoundOf {
            object: &object,
            observed: &observed,
            inputs: &inputs,
            plan: &plan,
            progress: &progress,
        };
        let report = machine::report(&round, NOW);
        for step in plan.steps.clone() {
            if !self.writes() {
                return;
            }
            self.act_for_machine(id, step.action);
        }
        let is_alive = self.writes();
        if let Some((object, note)) = self.members.get_mut(id).filter(|_| is_alive) {
            self.acted |= object.status.as_ref() != Some(&report.status);
            object.status = Some(report.status);
            *note = report.note;
        }
    }

    fn act_for_machine(&mut self, id: &str, action: machine::Action) {
        let (object, _) = self.members.get_mut(id).unwrap();
        match action {
            machine::Action::AddFinalizer { finalizers } => object.metadata.finalizers = Some(finalizers),
            machine::Action::SetProviderId { id } => object.spec.as_mut().unwrap().provider_id = Some(id),
            machine::Action::Drain { node, .. } => {
                self.drains.insert(node, Drain::Running { blocked: None, left: String::new() });
            }
            machine::Action::ReleaseDrain { id } => drop(self.drains.remove(&id)),
            machine::Action::ReleaseHook { name, .. } => {
                let machine = self.machines.get_mut(&name).unwrap();
                (machine.has_hook, machine.is_excluded) = (false, true);
            }
            machine::Action::DeleteMachine { name, .. } => self.machines.get_mut(&name).unwrap().is_deleting = true,
            machine::Action::DeleteSelf => self.delete_member(id),
            machine::Action::ReleaseFinalizer { .. } => {
                self.members.remove(id);
            }
            other => panic!("{other:?}"),
        }
    }

    fn run_drains(&mut self) {
        for (node, drain) in &mut self.drains {
            if self.are_drains_blocked || !matches!(drain, Drain::Running { .. }) {
                continue;
            }
            *drain = Drain::Done;
            self.free.insert(node.clone());
            self.acted = true;
        }
    }

    /// As Cluster API 1.14: it waits for hooks and drains only where a Machine has a Node, deletes the infrastructure, and
    /// the Node after it. It never deletes a Machine by itself.
    fn run_cluster_api(&mut self) {
        let is_pool_there = !self.is_pool_gone && !is_deleting(&self.pool.metadata);
        for (id, (object, _)) in &self.members {
            if is_pool_there && !self.machines.contains_key(id) {
                self.acted = true;
                self.machines.insert(id.clone(), Machine::default());
            }
            let has_id = object.spec.as_ref().is_some_and(|spec| spec.provider_id.is_some());
            if let Some(machine) = self.machines.get_mut(id) {
                machine.has_node_ref |= has_id && self.nodes.contains_key(id);
            }
        }
        for (id, machine) in self.machines.clone() {
            if !machine.is_deleting || (machine.has_node_ref && machine.has_hook) {
                continue;
            }
            match self.members.get(&id) {
                Some((object, _)) if is_deleting(&object.metadata) => {}
                Some(_) if machine.has_node_ref && !machine.is_excluded && self.are_drains_blocked => {}
                Some(_) => {
                    if machine.has_node_ref && !machine.is_excluded {
                        self.free.insert(id.clone());
                    }
                    self.acted = true;
                    self.delete_member(&id);
                }
                None => {
                    self.acted = true;
                    if machine.has_node_ref {
                        self.remove_node(&id);
                    }
                    self.machines.remove(&id);
                }
            }
        }
    }

    /// Removes what is too many, the named ones first, and makes what is missing; a replacement comes before the one it
    /// replaces goes.
    fn run_server(&mut self, name: &str) {
        let server = self.servers.get_mut(name).unwrap();
        server.poll += 1;
        let Some(group) = server.group.as_mut().filter(|_| !server.has_lost) else { return };
        let Members::Listed(instances) = &mut group.members else { panic!("it lists them") };
        let size = usize::try_from(group.size).unwrap();
        let living: BTreeSet<String> = instances.iter().map(|instance| instance.id.clone()).collect();
        server.replace.retain(|id| living.contains(id));
        server.remove_first.retain(|id| living.contains(id));
        while instances.len() < size + usize::from(!server.replace.is_empty()) {
            self.next_id += 1;
            self.acted = true;
            let id = format!("web{:04}", self.next_id);
            let made = instance(name, id.clone());
            // Some never become a Node.
            if !self.next_id.is_multiple_of(5) {
                self.nodes.insert(id, made.node_provider_id.clone());
            }
            instances.push(made);
        }
        let mut named = server.remove_first.iter().chain(&server.replace).cloned().collect::<Vec<_>>().into_iter();
        while instances.len() > size {
            let is_named = named.len() > 0;
            let victim = named.next().unwrap_or_else(|| instances[0].id.clone());
            let is_known = self.recorded.contains(&victim) && self.nodes.contains_key(&victim);
            let is_free = self.free.contains(&victim) || !is_known || (server.was_lost && !is_named);
            assert!(is_free, "{victim} of {name} is removed and was not drained");
            instances.retain(|instance| instance.id != victim);
            // What is left of it is a Node that does not answer.
            self.free.insert(victim);
            self.acted = true;
        }
    }

    pub fn happen(&mut self, event: &Event) {
        match event {
            Event::Scale(replicas) => self.replicas = *replicas,
            Event::Silence(index) => self.server(*index).is_silent = true,
            Event::Voice(index) => self.server(*index).is_silent = false,
            Event::LoseGroup(index) => {
                let server = self.server(*index);
                (server.has_lost, server.was_lost) = (true, true);
            }
            Event::Mark(index) => {
                if let Some(name) = nth(&self.machines, *index) {
                    self.machines.get_mut(&name).unwrap().is_marked = true;
                }
            }
            Event::DeleteMachine(index) => {
                if let Some(name) = nth(&self.machines, *index) {
                    self.machines.get_mut(&name).unwrap().is_deleting = true;
                }
            }
            Event::DeleteMember(index) => {
                if let Some(name) = nth(&self.members, *index) {
                    self.delete_member(&name);
                }
            }
            Event::DeleteShardGroup(index) => {
                if let Some(name) = nth(&self.shard_groups, *index) {
                    self.delete_shard_group(&name);
                }
            }
            Event::Pause(is_paused) => self.is_paused = *is_paused,
            Event::TakeNodesAway(are_away) => self.are_nodes_away = *are_away,
            Event::BlockDrains(are_blocked) => self.are_drains_blocked = *are_blocked,
            Event::Expire => {
                for (node, drain) in &mut self.drains {
                    if matches!(drain, Drain::Running { .. }) {
                        *drain = Drain::Expired { left: "1 pod".to_owned() };
                        self.free.insert(node.clone());
                    }
                }
            }
            Event::Lose(index, is_said) => self.lose(*index, *is_said),
            Event::Kill(writes) => {
                self.fuel = Some(*writes);
                self.tick();
            }
            Event::Tick => self.tick(),
        }
    }

    fn server(&mut self, index: usize) -> &mut Server {
        let name = nth(&self.servers, index).unwrap();
        self.servers.get_mut(&name).unwrap()
    }

    fn lose(&mut self, index: usize, is_said: bool) {
        let ids = self.instances();
        let Some(id) = ids.get(index % ids.len().max(1)) else { return };
        self.free.insert(id.clone());
        for server in self.servers.values_mut() {
            if let Some(Group { members: Members::Listed(instances), .. }) = &mut server.group {
                instances.retain(|instance| instance.id != *id);
            }
        }
        if is_said {
            self.deleted.insert(id.clone(), "unhealthy".to_owned());
        }
    }

    pub fn instances(&self) -> Vec<String> {
        let groups = self.servers.values().filter_map(|server| server.group.as_ref());
        groups.flat_map(Group::instances).map(|instance| instance.id.clone()).collect()
    }

    /// All shards answer, nothing is held up, and nothing else happens any more.
    pub fn settle(&mut self) {
        (self.is_paused, self.are_nodes_away, self.are_drains_blocked) = (false, false, false);
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

    /// As Cluster API deletes the pool of a MachinePool that a user deletes.
    pub fn delete_pool(&mut self) {
        delete(&mut self.pool.metadata);
    }
}

fn nth<T>(objects: &BTreeMap<String, T>, index: usize) -> Option<String> {
    objects.keys().nth(index % objects.len().max(1)).cloned()
}

fn is_deleting(metadata: &ObjectMeta) -> bool {
    metadata.deletion_timestamp.is_some()
}

/// Whether the object stays for its finalizers.
fn delete(metadata: &mut ObjectMeta) -> bool {
    metadata.deletion_timestamp = Some(Time(NOW));
    metadata.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty())
}

fn merge(target: &mut Value, patch: &Value) {
    for (field, value) in patch.as_object().unwrap() {
        target[field] = value.clone();
    }
}

pub fn instance(shard: &str, id: String) -> Instance {
    Instance {
        provider_id: format!("raw-{id}"),
        node_provider_id: format!("process:///{shard}/raw-{id}"),
        id,
        status: MachineStatus::Running,
        created_at: None,
        is_leaving: false,
    }
}
