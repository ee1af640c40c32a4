//! What clients ask of a term. Tenants are kept apart here: every request names its tenant, and no answer speaks of
//! another's.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use plan::shard::{
    event,
    fence::{self, Age},
    group::{self, Group, Upsert},
    id::{self, InstanceId},
    instance::{Leaving, MachineStatus, Reason, Record},
    on_demand,
    refusal::{Code, Refusal},
    round::Subnet,
};
use prost::Message;

use super::{
    entries::Entry,
    memory::{Asked, Call, Memory},
    term::{Term, TermError, load_config},
    watch::Watched,
};
use crate::wire::{self, Fence, group_event::Type};

impl Term {
    /// The snapshot and the registration are one step: no change falls between them.
    pub fn watch_groups(&self, tenant: &str) -> Watched<wire::GroupEvent> {
        let memory = self.memory();
        let statuses = memory.groups.of_tenant(tenant).map(|current| self.describe(&memory, current));
        let snapshot = statuses.map(|group| group_event(Type::Upsert, group)).collect();
        self.group_events.watch(tenant, snapshot)
    }

    pub fn watch_instances(&self, tenant: &str) -> Watched<wire::InstanceEvent> {
        let mut memory = self.memory();
        let now = memory.follow(&self.context.clock);
        let records = memory.entries.iter().map(|entry| &entry.record).filter(|record| record.tenant == tenant);
        let left = |record: &Record| memory.time_left(&record.id, now);
        let events = event::snapshot(records);
        let events = events.iter().map(|(record, event)| wire::instance_event(record, event, left(record)));
        self.instance_events.watch(tenant, events.collect())
    }

    pub fn watch_errors(&self, tenant: &str) -> Watched<wire::ErrorEvent> {
        self.error_events.watch(tenant, Vec::new())
    }

    /// Creates or changes a group; its instances follow.
    pub async fn upsert_group(
        &self,
        tenant: &str,
        request: wire::UpsertGroupRequest,
        fence: &Fence,
    ) -> Result<wire::GroupStatus, TermError> {
        if let Some(known) = self.known_answer(tenant, Call::UpsertGroup, fence) {
            return Ok(known);
        }
        id::check("tenant", tenant)?;
        id::check("key", &request.key)?;
        let wire::UpsertGroupRequest { key, config, remove_first } = request;
        let Some(config) = config else {
            return Err(Refusal::new(Code::InvalidArgument, "config: must be set").into());
        };
        let wire::GroupConfig { template, size, instance_type, subnet_pool, vars, args } = config;
        let request = Upsert { template, size, instance_type, subnet_pool, vars, args, remove_first };
        let age = Age::read(fence.epoch, fence.generation);
        let turn = self.turn(tenant);
        let _turns = (turn.lock().await, self.groups_gate.lock().await);
        self.reload_groups().await?;
        let after = {
            let mut memory = self.memory();
            memory.check_epoch(tenant, fence.epoch)?;
            self.readable(&memory, tenant, &key)?;
            let before = memory.groups.dynamic().get(tenant, &key);
            fence::check(before.and_then(|before| before.age), age)?;
            let living = memory.living(tenant, &key);
            let (config, dynamic) = (memory.groups.config(), memory.groups.dynamic());
            let mut entry = group::upsert(config, dynamic, (tenant, &key), &request, &living)?;
            entry.age = age.or(entry.age);
            let mut after = memory.groups.dynamic().clone();
            after.set(tenant, &key, Some(entry));
            group::check_share(&after, tenant)?;
            after
        };
        self.store_groups(after).await?;
        self.enqueue(tenant, &key);
        let status = self.group_status(&self.memory(), tenant, &key);
        let status = status.ok_or_else(|| Refusal::new(Code::NotFound, "config.template: not a template"))?;
        self.group_events.send(tenant, group_event(Type::Upsert, status.clone()));
        self.remember(tenant, Call::UpsertGroup, fence, &status);
        Ok(status)
    }

    /// Removes what requests said about a group. A static group goes on with what the configuration says.
    pub async fn delete_group(&self, tenant: &str, key: &str, fence: &Fence) -> Result<(), TermError> {
        id::check("key", key)?;
        if self.known_answer::<()>(tenant, Call::DeleteGroup, fence).is_some() {
            return Ok(());
        }
        let turn = self.turn(tenant);
        let _turns = (turn.lock().await, self.groups_gate.lock().await);
        self.reload_groups().await?;
        let after = {
            let mut memory = self.memory();
            memory.check_epoch(tenant, fence.epoch)?;
            self.readable(&memory, tenant, key)?;
            let Some(before) = memory.groups.dynamic().get(tenant, key) else { return Ok(()) };
            fence::check(before.age, Age::read(fence.epoch, fence.generation))?;
            let mut after = memory.groups.dynamic().clone();
            after.set(tenant, key, None);
            after
        };
        self.store_groups(after).await?;
        self.enqueue(tenant, key);
        let status = self.group_status(&self.memory(), tenant, key);
        let event = match status {
            Some(status) => group_event(Type::Upsert, status),
            None => deleted_group(tenant, key),
        };
        self.group_events.send(tenant, event);
        self.remember(tenant, Call::DeleteGroup, fence, &());
        Ok(())
    }

    /// Reads the configuration again. One with problems is refused, and the last good one stays.
    pub async fn refresh_config(&self, tenant: &str) -> Result<wire::RefreshConfigResponse, TermError> {
        id::check("tenant", tenant)?;
        // No tenant has the empty name, so these are for refreshes alone: one at a time, and of each tenant at most one
        // that waits for it. The tenant's changes of its groups wait for neither.
        let (own, all) = (self.gate("", tenant), self.gate("", ""));
        let _turns = (own.lock().await, all.lock().await);
        self.recheck().await?;
        let _one = self.groups_gate.lock().await;
        let loaded = load_config(&self.context).await;
        self.note_config(loaded.as_ref().err());
        let (config, object) = loaded?;
        self.reload_groups().await?;
        let (before, old, dynamic) = {
            let memory = self.memory();
            (memory.config_etag.clone(), Arc::clone(memory.groups.config()), memory.groups.dynamic().clone())
        };
        let updated = before != object.etag;
        if updated {
            let after = group::after_refresh(&old, &config, &dynamic);
            if after != dynamic {
                self.store_groups(after).await?;
            }
            self.replace_config(config, &object);
        }
        let (prev_etag, etag) = (before.to_string(), object.etag.to_string());
        Ok(wire::RefreshConfigResponse { updated, prev_etag, etag })
    }

    /// Logs the problems of a configuration when they begin and change: any tenant may ask as often as it likes.
    fn note_config(&self, error: Option<&TermError>) {
        let mut memory = self.memory();
        match error {
            Some(error @ TermError::Config { .. }) => {
                let error = error.to_string();
                if memory.config_problems.is_news(&error) {
                    tracing::error!(error, "the configuration in storage is not used; the last good one stays");
                }
            }
            None => {
                memory.config_problems.ends();
            }
            // Storage did not answer, or has no text: that is said elsewhere.
            Some(_) => {}
        }
    }

    pub fn config_status(&self) -> wire::GetConfigStatusResponse {
        let memory = self.memory();
        wire::GetConfigStatusResponse {
            etag: memory.config_etag.to_string(),
            last_modified: memory.config_modified.map(wire::timestamp),
            size: i64::try_from(memory.config_size).unwrap_or(i64::MAX),
        }
    }

    /// Makes one instance beside the group's size. A failed machine is retried: the answer is its id either way.
    pub async fn create_instance(
        &self,
        tenant: &str,
        request: wire::CreateInstanceRequest,
        fence: &Fence,
    ) -> Result<wire::CreateInstanceResponse, TermError> {
        if let Some(known) = self.known_answer(tenant, Call::CreateInstance, fence) {
            return Ok(known);
        }
        let Some(config) = request.config else {
            return Err(Refusal::new(Code::InvalidArgument, "config: must be set").into());
        };
        let wire::InstanceConfig { group, template, instance_type, subnet_pool, vars } = config;
        id::check("config.group", &group)?;
        let instance_id = request.instance_id;
        let request = on_demand::Request { instance_id, group, template, instance_type, subnet_pool, vars };
        let gate = self.gate(tenant, &request.group);
        let _one = gate.lock().await;
        // An attempt before this one may have failed to store what it holds in memory.
        self.resync(tenant, &request.group).await?;
        let room = self.room().await;
        let now = self.now();
        let (record, group) = {
            let mut memory = self.memory();
            memory.check_epoch(tenant, fence.epoch)?;
            if let Some(known) = memory.entries.iter().find(|entry| is_answer(&entry.record, tenant, fence)) {
                // The leader before this one made it.
                return Ok(created(known));
            }
            if let Some(why) = group::unknown(memory.groups.config(), memory.groups.dynamic(), tenant, &request.group) {
                return Err(self.damaged_groups(&why));
            }
            let pair = (&**memory.groups.config(), memory.groups.dynamic());
            let exists = |id: &InstanceId| memory.entries.get(id).is_some() || memory.quarantine.of(id).is_some();
            let subnets = |names: &[String]| room.iter().filter(|subnet| names.contains(&subnet.id)).cloned().collect();
            let uuid = (self.context.ids)();
            let mut record = on_demand::record(pair, tenant, &request, uuid, exists, subnets, now)?;
            record.request_id.clone_from(&fence.request_id);
            (record, memory.groups.get(tenant, &request.group).cloned())
        };
        let id = record.id.clone();
        self.memory().count_made(tenant, true, now);
        self.create(group.as_ref().map(|current| &current.group), record).await?;
        self.enqueue(tenant, &request.group);
        let answer = self.memory().entries.get(&id).map(created);
        let answer = answer.ok_or_else(|| unknown(&id))?;
        self.remember(tenant, Call::CreateInstance, fence, &answer);
        Ok(answer)
    }

    /// Deletes at once: the caller has drained it.
    pub async fn delete_instance(
        &self,
        tenant: &str,
        id: &str,
        fence: &Fence,
    ) -> Result<wire::DeleteInstanceResponse, TermError> {
        if let Some(known) = self.known_answer(tenant, Call::DeleteInstance, fence) {
            return Ok(known);
        }
        let id = InstanceId::parse(id)?;
        self.memory().check_epoch(tenant, fence.epoch)?;
        let status = self.begin_deletion(tenant, &id).await?;
        let answer = wire::DeleteInstanceResponse { status: status.to_owned() };
        self.remember(tenant, Call::DeleteInstance, fence, &answer);
        Ok(answer)
    }

    async fn begin_deletion(&self, tenant: &str, id: &InstanceId) -> Result<&'static str, TermError> {
        self.recheck_instance(id).await?;
        let Some(group) = self.owned(tenant, id)? else { return Ok("unknown") };
        let gate = self.gate(tenant, &group);
        let _one = gate.lock().await;
        self.resync(tenant, &group).await?;
        let record = owner(&self.memory(), tenant, id)?.map(|entry| entry.record.clone());
        let Some(mut record) = record else { return Ok("unknown") };
        if record.deleted_at.is_some() {
            return Ok("deleted");
        }
        let now = self.now();
        let due = record.leaving.as_ref().is_some_and(|leaving| leaving.delete_at <= now);
        if !due {
            let reason = record.leaving.as_ref().map_or(Reason::Request, |leaving| leaving.reason);
            let since = record.leaving.as_ref().map_or(now, |leaving| leaving.since);
            record.leaving = Some(Leaving { reason, since, delete_at: now });
            self.write(record).await?;
        }
        self.enqueue(tenant, &group);
        Ok("deleting")
    }

    pub fn instance_status(&self, tenant: &str, id: &str) -> Result<wire::InstanceStatusResponse, TermError> {
        let id = InstanceId::parse(id)?;
        let memory = self.memory();
        let entry = owner(&memory, tenant, &id)?.filter(|entry| entry.record.deleted_at.is_none());
        let Some(entry) = entry else { return Err(unknown(&id).into()) };
        Ok(wire::InstanceStatusResponse {
            instance_id: id.to_string(),
            tenant: tenant.to_owned(),
            status: entry.status().as_str().to_owned(),
            created_at: Some(wire::timestamp(entry.record.created_at)),
            last_seen: Some(wire::timestamp(entry.agent.last_seen)),
            provider_instance_id: entry.record.provider_id().to_owned(),
            node_provider_id: self.node_provider_id(entry),
        })
    }

    /// The operator drained it: it goes, whatever was said before.
    pub fn acknowledge_drained(&self, tenant: &str, id: &str, fence: &Fence) -> Result<(), TermError> {
        if self.known_answer::<()>(tenant, Call::AcknowledgeDrained, fence).is_some() {
            return Ok(());
        }
        let id = InstanceId::parse(id)?;
        self.memory().check_epoch(tenant, fence.epoch)?;
        let group = {
            let mut memory = self.memory();
            owner(&memory, tenant, &id)?;
            let entry = memory.entries.get_mut(&id).filter(|entry| entry.record.deleted_at.is_none());
            let Some(mut entry) = entry else { return Err(unknown(&id).into()) };
            entry.acknowledged = true;
            entry.record.group.clone()
        };
        self.enqueue(tenant, &group);
        self.remember(tenant, Call::AcknowledgeDrained, fence, &());
        Ok(())
    }

    /// A report of an instance's agent, with the end of its machine if that is near.
    pub fn report_health(&self, tenant: &str, id: &str, notice: Option<Option<Timestamp>>) -> Result<(), TermError> {
        let id = InstanceId::parse(id)?;
        let now = self.now();
        let news = {
            let mut memory = self.memory();
            owner(&memory, tenant, &id)?;
            let Some(mut entry) = memory.entries.get_mut(&id) else { return Err(unknown(&id).into()) };
            let first = !entry.agent.registered;
            entry.agent.registered = true;
            entry.agent.reported = true;
            entry.agent.last_seen = now;
            entry.follow_up = None;
            // A repeated notice is no news, and none takes an earlier one back: the earliest end counts.
            let before = entry.agent.notice;
            entry.agent.notice = match (before, notice) {
                (Some(Some(before)), Some(Some(now))) => Some(Some(before.min(now))),
                (Some(Some(_)), _) | (_, None) => before,
                (_, Some(_)) => notice,
            };
            (first || entry.agent.notice != before).then(|| entry.record.group.clone())
        };
        if let Some(group) = news {
            self.enqueue(tenant, &group);
        }
        Ok(())
    }

    /// Refuses the agent of an instance that is gone: its key would outlive the record that it goes with. One whose
    /// record cannot be read may be there.
    pub fn may_register(&self, tenant: &str, id: &str) -> Result<(), TermError> {
        let id = InstanceId::parse(id)?;
        match owner(&self.memory(), tenant, &id) {
            Ok(Some(entry)) if entry.record.deleted_at.is_none() => Ok(()),
            Ok(_) => Err(Refusal::new(Code::NotFound, "registration_nonce_jwt: its instance is gone").into()),
            Err(TermError::Quarantined(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The group of an instance of this tenant. `None` if there is no such instance; another tenant's is refused.
    pub(super) fn owned(&self, tenant: &str, id: &InstanceId) -> Result<Option<String>, TermError> {
        Ok(owner(&self.memory(), tenant, id)?.map(|entry| entry.record.group.clone()))
    }

    /// Takes the new configuration; deletions and changes are sent before additions.
    fn replace_config(&self, config: plan::shard::config::Config, object: &crate::store::Object) {
        let (mut events, groups) = {
            let mut memory = self.memory();
            let before = self.all_groups(&memory);
            memory.groups.set_config(config);
            memory.config_etag = object.etag.clone();
            memory.config_modified = object.modified;
            memory.config_size = object.body.len();
            let after = self.all_groups(&memory);
            let gone = before.iter().filter(|(name, _)| !after.contains_key(*name));
            let mut events: Vec<_> =
                gone.map(|((tenant, key), _)| (0, tenant.clone(), deleted_group(tenant, key))).collect();
            for (name, group) in &after {
                let rank = match before.get(name) {
                    Some(old) if old.etag == group.etag => continue,
                    Some(_) => 1,
                    None => 2,
                };
                events.push((rank, name.0.clone(), group_event(Type::Upsert, group.clone())));
            }
            (events, memory.group_names())
        };
        events.sort_by_key(|(rank, _, _)| *rank);
        for (_, tenant, event) in events {
            self.group_events.send(&tenant, event);
        }
        for (tenant, key) in groups {
            self.enqueue(&tenant, &key);
        }
    }

    /// Every group with its instances.
    fn all_groups(&self, memory: &Memory) -> BTreeMap<(String, String), wire::GroupStatus> {
        let name = |group: &Group| (group.tenant.clone(), group.key.clone());
        memory.groups.iter().map(|current| (name(&current.group), self.describe(memory, current))).collect()
    }

    fn group_status(&self, memory: &Memory, tenant: &str, key: &str) -> Option<wire::GroupStatus> {
        Some(self.describe(memory, memory.groups.get(tenant, key)?))
    }

    /// The room of every subnet of every pool.
    async fn room(&self) -> Vec<Subnet> {
        let names: Vec<String> = {
            let memory = self.memory();
            memory.groups.config().shard.subnet_pools.values().flatten().cloned().collect()
        };
        let mut room = Vec::new();
        for id in names {
            if let Ok(free) = super::term::bounded_provider(self.context.provider.free(&id)).await {
                room.push(Subnet { id, free });
            }
        }
        room
    }

    fn known_answer<T: Message + Default>(&self, tenant: &str, call: Call, fence: &Fence) -> Option<T> {
        T::decode(self.memory().answers.get(&asked(tenant, call, fence)?)?).ok()
    }

    fn remember(&self, tenant: &str, call: Call, fence: &Fence, answer: &impl Message) {
        if let Some(asked) = asked(tenant, call, fence) {
            self.memory().answers.put(asked, answer.encode_to_vec());
        }
    }
}

/// `None` for a request without an id.
fn asked(tenant: &str, call: Call, fence: &Fence) -> Option<Asked> {
    Some(Asked { tenant: tenant.to_owned(), call, request_id: fence.request_id.clone()? })
}

/// Whether that request made it.
fn is_answer(record: &Record, tenant: &str, fence: &Fence) -> bool {
    fence.request_id.is_some() && record.tenant == tenant && record.request_id == fence.request_id
}

fn created(entry: &Entry) -> wire::CreateInstanceResponse {
    let made = entry.record.machine.is_some();
    let status = if made { MachineStatus::Running } else { MachineStatus::Pending };
    wire::CreateInstanceResponse { instance_id: entry.record.id.to_string(), status: status.as_str().to_owned() }
}

/// An instance of this tenant. `None` if there is no such instance; another tenant's is refused. One whose record
/// cannot be read is an error: what is asked about it would be answered as if it were gone.
fn owner<'a>(memory: &'a Memory, tenant: &str, id: &InstanceId) -> Result<Option<&'a Entry>, TermError> {
    let (entry, damaged) = (memory.entries.get(id), memory.quarantine.of(id));
    let owner = match (entry, damaged.and_then(|damaged| damaged.owner.as_ref())) {
        (Some(entry), _) => &entry.record.tenant,
        (None, Some((owner, _))) => owner,
        (None, None) => return Ok(None),
    };
    if owner != tenant {
        return Err(Refusal::new(Code::PermissionDenied, "instance_id: belongs to another tenant").into());
    }
    match entry {
        Some(entry) => Ok(Some(entry)),
        None => Err(TermError::Quarantined(id.clone())),
    }
}

fn unknown(id: &InstanceId) -> Refusal {
    Refusal::new(Code::NotFound, format!("instance_id: {id} is not an instance"))
}

fn group_event(kind: Type, group: wire::GroupStatus) -> wire::GroupEvent {
    wire::GroupEvent { r#type: kind.into(), group: Some(group) }
}

fn deleted_group(tenant: &str, key: &str) -> wire::GroupEvent {
    let group = wire::GroupStatus { key: key.to_owned(), tenant: tenant.to_owned(), ..wire::GroupStatus::default() };
    group_event(Type::Delete, group)
}
