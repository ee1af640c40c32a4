//! Groups as clients see them, with their instances.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
};

use bytes::Bytes;
use plan::shard::instance::{Machine, MachineStatus};
use prost::Message;

use super::{
    groups::Current,
    memory::{Entry, Memory},
    term::Term,
};
use crate::{provider::MachineInfo, wire};

/// Groups as they were sent last, by tenant and key, each with what it was made of.
pub type Listed = HashMap<String, HashMap<String, (u64, Bytes)>>;

impl Term {
    /// The tenant's groups. Operators poll: what is as it was at the last poll is not encoded again.
    pub fn list_groups(&self, tenant: &str) -> wire::ListGroupsResponse {
        let mut memory = self.memory();
        let mut before = memory.listed.remove(tenant).unwrap_or_default();
        let mut listed = HashMap::new();
        let mut encoded = Vec::new();
        for current in memory.groups.of_tenant(tenant) {
            let print = fingerprint(&memory, current);
            let known = before.remove(&current.group.key).filter(|(known, _)| Some(*known) == print);
            let bytes =
                known.map_or_else(|| self.describe(&memory, current).encode_to_vec().into(), |(_, bytes)| bytes);
            if let Some(print) = print {
                listed.insert(current.group.key.clone(), (print, Bytes::clone(&bytes)));
            }
            encoded.push(bytes);
        }
        if !listed.is_empty() {
            memory.listed.insert(tenant.to_owned(), listed);
        }
        wire::ListGroupsResponse { groups: Vec::new(), encoded }
    }

    /// An instance's provider ID as its Node has it.
    pub(super) fn node_provider_id(&self, entry: &Entry) -> String {
        self.context.provider.node_provider_id(&self.context.shard, &machine(entry))
    }

    pub(super) fn describe(&self, memory: &Memory, current: &Current) -> wire::GroupStatus {
        let group = &current.group;
        let instance = |entry: &Entry| {
            let machine = machine(entry);
            wire::group_status::Instance {
                node_provider_id: self.context.provider.node_provider_id(&self.context.shard, &machine),
                instance_id: machine.instance_id,
                provider_id: machine.provider_id,
                status: machine.status.as_str().to_owned(),
                created_at: Some(wire::timestamp(machine.created_at)),
            }
        };
        let instances: Vec<_> = counted(memory, current).map(instance).collect();
        let mut provider_ids: Vec<_> = instances.iter().map(|instance| instance.provider_id.clone()).collect();
        provider_ids.sort_unstable();
        wire::GroupStatus {
            etag: current.etag.clone(),
            key: group.key.clone(),
            tenant: group.tenant.clone(),
            template: group.template.clone(),
            size: group.size,
            instance_type: group.instance_type.clone(),
            subnet_pool: group.subnet_pool.clone(),
            vars: group.vars.clone(),
            is_static: group.is_static,
            actual_size: i32::try_from(instances.len()).unwrap_or(i32::MAX),
            provider_ids,
            instances,
        }
    }
}

/// An instance as its provider knows it.
fn machine(entry: &Entry) -> MachineInfo {
    MachineInfo {
        instance_id: entry.record.id.to_string(),
        provider_id: entry.record.provider_id().to_owned(),
        status: status(entry),
        created_at: entry.record.created_at,
        noticed: entry.agent.notice.is_some(),
    }
}

/// Of everything that a group's description shows; `None` while it is not known what storage holds of an instance.
fn fingerprint(memory: &Memory, current: &Current) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    current.etag.hash(&mut hasher);
    for entry in counted(memory, current) {
        // A record changes with its etag.
        entry.record.id.hash(&mut hasher);
        entry.etag.as_ref()?.hash(&mut hasher);
        status(entry).as_str().hash(&mut hasher);
    }
    Some(hasher.finish())
}

/// Those of the group's actual size.
fn counted<'a>(memory: &'a Memory, current: &Current) -> impl Iterator<Item = &'a Entry> {
    let is_counted = |entry: &&Entry| {
        !entry.record.on_demand
            && entry.record.deleted_at.is_none()
            && entry.record.machine.is_some()
            && !matches!(status(entry), MachineStatus::Deleting | MachineStatus::Deleted)
    };
    memory.entries.of_group(&current.group.tenant, &current.group.key).filter(is_counted)
}

/// What clients see of an instance.
pub(super) fn status(entry: &Entry) -> MachineStatus {
    match &entry.machine {
        _ if entry.record.machine.is_none() => MachineStatus::Pending,
        Machine::Unknown => MachineStatus::Unknown,
        Machine::Absent => MachineStatus::Deleted,
        Machine::There { status, .. } => *status,
    }
}
