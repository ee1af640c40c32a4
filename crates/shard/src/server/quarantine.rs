//! Records that cannot be read. Their instances are unknown, which is not absent: none is made under their ids, their
//! machines are neither swept nor decided on, and their groups keep their places. They are read again at every look at
//! the machines, and when the configuration is.

use std::collections::{BTreeMap, HashMap};

use plan::shard::{
    id::InstanceId,
    instance::{MachineStatus, Record},
};

use super::{
    entries::Entry,
    term::{Term, TermError, bounded, check_gone},
};
use crate::{
    provider::MachineInfo,
    record::{self, Damaged},
    store::{Etag, Object, layout::ShardLayout},
};

/// The damaged records by their keys.
#[derive(Default)]
pub struct Quarantine {
    objects: BTreeMap<String, Kept>,
    /// Counts changes of what clients see.
    changed: u64,
}

struct Kept {
    damaged: Damaged,
    /// What the provider has under the instance's name.
    machine: Option<MachineInfo>,
}

/// Reads the record of an object.
pub fn decode(layout: &ShardLayout, key: &str, object: Object) -> Result<(Record, Etag), Damaged> {
    Ok((record::read(layout, key, &object.body)?, object.etag))
}

impl Quarantine {
    /// Keeps a damaged record, and says so if that is news. `machine` is what is known of its machine.
    pub fn put(&mut self, damaged: Damaged, machine: Option<MachineInfo>) {
        let before = self.objects.remove(&damaged.key);
        if before.as_ref().is_none_or(|before| before.damaged != damaged) {
            tracing::error!(object = damaged.key, "quarantined: {damaged}");
        }
        let machine = machine.or(before.and_then(|before| before.machine));
        self.changed += 1;
        self.objects.insert(damaged.key.clone(), Kept { damaged, machine });
    }

    fn remove(&mut self, key: &str) {
        self.objects.remove(key);
        self.changed += 1;
    }

    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// The number of the last change of what clients see.
    pub fn changed(&self) -> u64 {
        self.changed
    }

    /// The damaged record of that instance.
    pub fn of(&self, id: &InstanceId) -> Option<&Damaged> {
        let is_its = |damaged: &&Damaged| damaged.owner.as_ref().is_some_and(|(_, owner)| owner == id);
        self.objects.values().map(|kept| &kept.damaged).find(is_its)
    }

    /// Whether one of them may be about that instance: those that do not say whom they are about may be about any.
    pub fn may_hold(&self, id: &str) -> bool {
        let mut owners = self.objects.values().map(|kept| kept.damaged.owner.as_ref());
        owners.any(|owner| owner.is_none_or(|(_, owner)| owner.as_str() == id))
    }

    /// Those that the provider's labels put into the group.
    pub fn of_group(&self, tenant: &str, group: &str) -> impl Iterator<Item = (&InstanceId, &MachineInfo)> {
        self.objects.values().filter_map(move |kept| {
            let (owner, id) = kept.damaged.owner.as_ref()?;
            let machine = kept.machine.as_ref()?;
            (owner == tenant && machine.group == group && !machine.on_demand).then_some((id, machine))
        })
    }

    /// Takes over what a list of machines says.
    pub fn observe(&mut self, found: &HashMap<&str, &MachineInfo>) {
        for kept in self.objects.values_mut() {
            let Some((_, id)) = &kept.damaged.owner else { continue };
            let mut machine = found.get(id.as_str()).copied().cloned();
            if let (Some(machine), Some(before)) = (&mut machine, &kept.machine)
                && machine.group.is_empty()
            {
                // A provider that cannot say whose it is takes nothing back.
                machine.group.clone_from(&before.group);
                machine.on_demand = before.on_demand;
            }
            if machine != kept.machine {
                kept.machine = machine;
                self.changed += 1;
            }
        }
    }
}

/// As the provider would list the machine of an instance that was known until now.
pub fn last_known(entry: &Entry) -> Option<MachineInfo> {
    let record = &entry.record;
    record.machine.as_ref().map(|machine| MachineInfo {
        instance_id: record.id.to_string(),
        provider_id: machine.provider_id.clone(),
        status: MachineStatus::Unknown,
        created_at: record.created_at,
        noticed: entry.agent.notice.is_some(),
        group: record.group.clone(),
        on_demand: record.on_demand,
    })
}

impl Term {
    /// How many objects of instances cannot be read.
    pub fn damaged(&self) -> usize {
        self.memory().quarantine.len()
    }

    /// How many groups, or tenants, have something stored that cannot be read or used.
    pub fn unknown_groups(&self) -> usize {
        self.memory().groups.unknown()
    }

    /// Reads the damaged records and groups again: they may have been restored, or removed.
    pub async fn recheck(&self) -> Result<(), TermError> {
        self.recheck_groups().await?;
        let keys: Vec<String> = self.memory().quarantine.objects.keys().cloned().collect();
        for key in keys {
            self.recheck_one(&key).await?;
        }
        Ok(())
    }

    /// Reads the record of an instance again if it is damaged.
    pub(super) async fn recheck_instance(&self, id: &InstanceId) -> Result<(), TermError> {
        let key = self.memory().quarantine.of(id).map(|damaged| damaged.key.clone());
        match key {
            Some(key) => self.recheck_one(&key).await,
            None => Ok(()),
        }
    }

    async fn recheck_one(&self, key: &str) -> Result<(), TermError> {
        let (store, layout) = (&self.context.store, &self.context.layout);
        let object = bounded(key, store.get(key)).await?;
        if object.is_none() {
            check_gone(&self.context, &[key.to_owned()]).await?;
        }
        let read = object.map(|object| decode(layout, key, object)).transpose();
        let registered = match &read {
            Ok(Some((record, _))) => {
                let used = layout.agent_key(record.id.as_str());
                bounded(&used, store.get(&used)).await?.is_some()
            }
            _ => false,
        };
        let now = (self.now(), self.context.clock.instant());
        {
            let mut memory = self.memory();
            // Another call may have been first, and knows more by now.
            if !memory.quarantine.objects.contains_key(key) {
                return Ok(());
            }
            let read = match read {
                Ok(read) => read,
                Err(damaged) => {
                    memory.quarantine.put(damaged, None);
                    return Ok(());
                }
            };
            memory.quarantine.remove(key);
            tracing::info!(object = key, is_there = read.is_some(), "a damaged record was restored or removed");
            if let Some((record, etag)) = read {
                let mut entry = memory.entries.add(&record, now);
                entry.replace(record, etag);
                entry.agent.registered = registered;
            }
        }
        self.enqueue_all();
        Ok(())
    }
}
