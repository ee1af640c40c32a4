//! Groups as clients see them, with their instances.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use plan::shard::instance::MachineStatus;
use prost::Message;

use super::{entries::Entry, groups::Current, memory::Memory, quarantine::last_known, term::Term};
use crate::{provider::MachineInfo, wire};

/// Groups as they were sent last, by tenant and key.
pub type Listed = HashMap<String, HashMap<String, Sent>>;

/// One group on the wire, and what it was made of.
pub struct Sent {
    group: Arc<Current>,
    /// Of its instances, and of those that cannot be read.
    changes: (u64, u64),
    bytes: Bytes,
}

impl Term {
    /// The tenant's groups. Operators poll: what is as it was at the last poll is neither encoded nor looked at again.
    pub fn list_groups(&self, tenant: &str) -> wire::ListGroupsResponse {
        let mut memory = self.memory();
        let mut before = memory.listed.remove(tenant).unwrap_or_default();
        let mut listed = HashMap::new();
        let mut encoded = Vec::new();
        for current in memory.groups.of_tenant(tenant) {
            let key = &current.group.key;
            let changes = (memory.entries.changed(tenant, key), memory.quarantine.changed());
            let is_same = |sent: &Sent| Arc::ptr_eq(&sent.group, current) && sent.changes == changes;
            let sent = before.remove(key).filter(is_same).unwrap_or_else(|| {
                let bytes = self.describe(&memory, current).encode_to_vec().into();
                Sent { group: Arc::clone(current), changes, bytes }
            });
            encoded.push(Bytes::clone(&sent.bytes));
            listed.insert(key.clone(), sent);
        }
        if !listed.is_empty() {
            memory.listed.insert(tenant.to_owned(), listed);
        }
        wire::ListGroupsResponse { groups: Vec::new(), encoded }
    }

    /// An instance's provider ID as its Node has it; empty while it has no machine.
    pub(super) fn node_provider_id(&self, entry: &Entry) -> String {
        let provider = &self.context.provider;
        last_known(entry).map(|machine| provider.node_provider_id(&self.context.shard, &machine)).unwrap_or_default()
    }

    pub(super) fn describe(&self, memory: &Memory, current: &Current) -> wire::GroupStatus {
        let group = &current.group;
        let instance = |machine: MachineInfo| wire::group_status::Instance {
            node_provider_id: self.context.provider.node_provider_id(&self.context.shard, &machine),
            instance_id: machine.instance_id,
            provider_id: machine.provider_id,
            status: machine.status.as_str().to_owned(),
            created_at: Some(wire::timestamp(machine.created_at)),
        };
        let known = counted(memory, current)
            .filter_map(|entry| Some(MachineInfo { status: entry.status(), ..last_known(entry)? }));
        // One that cannot be read is there: an operator that misses it in this list takes its Node for gone.
        let unreadable = memory.unreadable(&group.tenant, &group.key).map(|(_, machine)| machine.clone());
        let unreadable = unreadable.map(|machine| MachineInfo { status: MachineStatus::Unknown, ..machine });
        let instances: Vec<_> = known.chain(unreadable).map(instance).collect();
        let actual_size = i32::try_from(instances.len()).unwrap_or(i32::MAX);
        let mut provider_ids: Vec<_> = instances.iter().map(|instance| instance.provider_id.clone()).collect();
        provider_ids.sort_unstable();
        wire::GroupStatus {
            etag: current.etag.clone(),
            key: group.key.clone(),
            tenant: group.tenant.clone(),
            template: group.template.clone(),
            // What an unknown one should have is not known; what it has is.
            size: if current.is_unknown { actual_size } else { group.size },
            instance_type: group.instance_type.clone(),
            subnet_pool: group.subnet_pool.clone(),
            vars: group.vars.clone(),
            is_static: group.is_static,
            actual_size,
            provider_ids,
            instances,
        }
    }
}

/// Those of the group's actual size.
fn counted<'a>(memory: &'a Memory, current: &Current) -> impl Iterator<Item = &'a Entry> {
    let is_counted = |entry: &&Entry| {
        !entry.record.on_demand
            && entry.record.deleted_at.is_none()
            && entry.record.machine.is_some()
            && !matches!(entry.status(), MachineStatus::Deleting | MachineStatus::Deleted)
    };
    memory.entries.of_group(&current.group.tenant, &current.group.key).filter(is_counted)
}
