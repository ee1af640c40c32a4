//! What clients ask of a term. Tenants are kept apart here: every request names its tenant, and no answer speaks of
//! another's.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use jiff::Timestamp;
use plan::shard::{
    event,
    fence::{self, Age},
    group::{self, Dynamic, Group, Upsert, effective},
    id::{self, InstanceId},
    instance::{Leaving, Machine, MachineStatus, Reason, Record},
    on_demand,
    refusal::{Code, Refusal},
    round::Subnet,
};
use prost::Message;

use super::{
    memory::{Entry, Memory},
    term::{Term, TermError, bounded, load_config, load_groups},
    watch::Watched,
};
use crate::{
    provider::MachineInfo,
    store::Expect,
    wire::{self, Fence, group_event::Type},
};

impl Term {
    pub fn list_groups(&self, tenant: &str) -> Vec<wire::GroupStatus> {
        let ours = self.all_groups(&self.memory()).into_iter().filter(|((owner, _), _)| owner == tenant);
        ours.map(|(_, group)| group).collect()
    }

    /// The snapshot and the registration are one step: no change falls between them.
    pub fn watch_groups(&self, tenant: &str) -> Watched<wire::GroupEvent> {
        let memory = self.memory();
        let ours = self.all_groups(&memory).into_iter().filter(|((owner, _), _)| owner == tenant);
        let snapshot = ours.map(|(_, group)| group_event(Type::Upsert, group)).collect();
        self.group_events.watch(tenant, snapshot)
    }

    pub fn watch_instances(&self, tenant: &str) -> Watched<wire::InstanceEvent> {
        let memory = self.memory();
        let ours = memory.entries.values().filter(|entry| entry.record.tenant == tenant);
        let records: Vec<_> = ours.map(|entry| entry.record.clone()).collect();
        let events = event::snapshot(&records);
        let snapshot = events.iter().map(|(record, event)| wire::instance_event(record, event)).collect();
        self.instance_events.watch(tenant, snapshot)
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
        if let Some(known) = self.known_answer(tenant, fence) {
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
        let _one = self.groups_gate.lock().await;
        self.reload_groups().await?;
        let after = {
            let mut memory = self.memory();
            memory.check_epoch(tenant, fence.epoch)?;
            let before = memory.dynamic.get(tenant, &key);
            fence::check(before.and_then(|before| before.age), age)?;
            let living = memory.living(tenant, &key);
            let mut entry = group::upsert(&memory.config, &memory.dynamic, (tenant, &key), &request, &living)?;
            entry.age = age.or(entry.age);
            let mut after = memory.dynamic.clone();
            after.set(tenant, &key, Some(entry));
            after
        };
        self.store_groups(after).await?;
        self.enqueue(tenant, &key);
        let status = self.group_status(&self.memory(), tenant, &key);
        let status = status.ok_or_else(|| Refusal::new(Code::NotFound, "config.template: not a template"))?;
        self.group_events.send(tenant, group_event(Type::Upsert, status.clone()));
        self.remember(tenant, fence, &status);
        Ok(status)
    }

    /// Removes what requests said about a group. A static group goes on with what the configuration says.
    pub async fn delete_group(&self, tenant: &str, key: &str, fence: &Fence) -> Result<(), TermError> {
        id::check("key", key)?;
        if self.known_answer::<()>(tenant, fence).is_some() {
            return Ok(());
        }
        let _one = self.groups_gate.lock().await;
        self.reload_groups().await?;
        let after = {
            let mut memory = self.memory();
            memory.check_epoch(tenant, fence.epoch)?;
            let Some(before) = memory.dynamic.get(tenant, key) else { return Ok(()) };
            fence::check(before.age, Age::read(fence.epoch, fence.generation))?;
            let mut after = memory.dynamic.clone();
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
        self.remember(tenant, fence, &());
        Ok(())
    }

    /// Reads the configuration again. One with problems is refused, and the last good one stays.
    pub async fn refresh_config(&self) -> Result<wire::RefreshConfigResponse, TermError> {
        let _one = self.groups_gate.lock().await;
        let (config, object) = load_config(&self.context).await?;
        self.reload_groups().await?;
        let (before, old, dynamic) = {
            let memory = self.memory();
            (memory.config_etag.clone(), Arc::clone(&memory.config), memory.dynamic.clone())
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
        if let Some(known) = self.known_answer(tenant, fence) {
            return Ok(known);
        }
        let Some(config) = request.config else {
            return Err(Refusal::new(Code::InvalidArgument, "config: must be set").into());
        };
        let wire::InstanceConfig { group, template, instance_type, subnet_pool, vars } = config;
        let instance_id = request.instance_id;
        let request = on_demand::Request { instance_id, group, template, instance_type, subnet_pool, vars };
        let gate = self.gate(tenant, &request.group);
        let _one = gate.lock().await;
        let room = self.room().await;
        let now = self.context.clock.now();
        let (record, group) = {
            let mut memory = self.memory();
            memory.check_epoch(tenant, fence.epoch)?;
            if let Some(known) = memory.entries.values().find(|entry| is_answer(&entry.record, tenant, fence)) {
                // The leader before this one made it.
                return Ok(created(known));
            }
            let pair = (&*memory.config, &memory.dynamic);
            let exists = |id: &InstanceId| memory.entries.contains_key(id);
            let subnets = |names: &[String]| room.iter().filter(|subnet| names.contains(&subnet.id)).cloned().collect();
            let uuid = (self.context.ids)();
            let mut record = on_demand::record(pair, tenant, &request, uuid, exists, subnets, now)?;
            record.request_id.clone_from(&fence.request_id);
            (record, effective(&memory.config, &memory.dynamic, tenant, &request.group))
        };
        let id = record.id.clone();
        self.create(group.as_ref(), record).await?;
        self.enqueue(tenant, &request.group);
        let answer = self.memory().entries.get(&id).map(created);
        let answer = answer.ok_or_else(|| unknown(&id))?;
        self.remember(tenant, fence, &answer);
        Ok(answer)
    }

    /// Deletes at once: the caller has drained it.
    pub async fn delete_instance(
        &self,
        tenant: &str,
        id: &str,
        fence: &Fence,
    ) -> Result<wire::DeleteInstanceResponse, TermError> {
        let answer = |status: &str| Ok(wire::DeleteInstanceResponse { status: status.to_owned() });
        let id = InstanceId::parse(id)?;
        self.memory().check_epoch(tenant, fence.epoch)?;
        let Some(group) = self.owned(tenant, &id)? else { return answer("unknown") };
        let gate = self.gate(tenant, &group);
        let _one = gate.lock().await;
        self.resync(tenant, &group).await?;
        let record = self.memory().entries.get(&id).map(|entry| entry.record.clone());
        let Some(mut record) = record else { return answer("unknown") };
        if record.deleted_at.is_some() {
            return answer("deleted");
        }
        let now = self.context.clock.now();
        let due = record.leaving.as_ref().is_some_and(|leaving| leaving.delete_at <= now);
        if !due {
            let reason = record.leaving.as_ref().map_or(Reason::Request, |leaving| leaving.reason);
            let since = record.leaving.as_ref().map_or(now, |leaving| leaving.since);
            record.leaving = Some(Leaving { reason, since, delete_at: now });
            self.write(record).await?;
        }
        self.enqueue(tenant, &group);
        answer("deleting")
    }

    pub fn instance_status(&self, tenant: &str, id: &str) -> Result<wire::InstanceStatusResponse, TermError> {
        let id = InstanceId::parse(id)?;
        let known = self.owned(tenant, &id)?;
        let memory = self.memory();
        let entry = memory.entries.get(&id).filter(|entry| known.is_some() && entry.record.deleted_at.is_none());
        let Some(entry) = entry else { return Err(unknown(&id).into()) };
        Ok(wire::InstanceStatusResponse {
            instance_id: id.to_string(),
            tenant: tenant.to_owned(),
            status: status(entry).as_str().to_owned(),
            created_at: Some(wire::timestamp(entry.record.created_at)),
            last_seen: Some(wire::timestamp(entry.agent.last_seen)),
            provider_instance_id: entry.record.provider_id().to_owned(),
        })
    }

    /// The operator drained it: it goes, whatever was said before.
    pub fn acknowledge_drained(&self, tenant: &str, id: &str, fence: &Fence) -> Result<(), TermError> {
        let id = InstanceId::parse(id)?;
        self.memory().check_epoch(tenant, fence.epoch)?;
        let Some(group) = self.owned(tenant, &id)? else { return Err(unknown(&id).into()) };
        {
            let mut memory = self.memory();
            let entry = memory.entries.get_mut(&id).filter(|entry| entry.record.deleted_at.is_none());
            let Some(entry) = entry else { return Err(unknown(&id).into()) };
            entry.acknowledged = true;
        }
        self.enqueue(tenant, &group);
        Ok(())
    }

    /// A report of an instance's agent, with the end of its machine if that is near.
    pub fn report_health(&self, tenant: &str, id: &str, notice: Option<Option<Timestamp>>) -> Result<(), TermError> {
        let id = InstanceId::parse(id)?;
        let Some(group) = self.owned(tenant, &id)? else { return Err(unknown(&id).into()) };
        let now = self.context.clock.now();
        let news = {
            let mut memory = self.memory();
            let Some(entry) = memory.entries.get_mut(&id) else { return Err(unknown(&id).into()) };
            let first = !entry.agent.registered;
            entry.agent.registered = true;
            entry.agent.reported = true;
            entry.agent.last_seen = now;
            entry.follow_up = None;
            // A repeated notice is no news, and none takes an earlier one back.
            let noticed = notice.is_some() && entry.agent.notice != notice;
            entry.agent.notice = notice.or(entry.agent.notice);
            first || noticed
        };
        if news {
            self.enqueue(tenant, &group);
        }
        Ok(())
    }

    /// The group of an instance of this tenant. `None` if there is no such instance; another tenant's is refused.
    pub(super) fn owned(&self, tenant: &str, id: &InstanceId) -> Result<Option<String>, Refusal> {
        let memory = self.memory();
        let Some(entry) = memory.entries.get(id) else { return Ok(None) };
        if entry.record.tenant != tenant {
            return Err(Refusal::new(Code::PermissionDenied, "instance_id: belongs to another tenant"));
        }
        Ok(Some(entry.record.group.clone()))
    }

    /// Takes over what another hand changed in the groups file.
    async fn reload_groups(&self) -> Result<(), TermError> {
        let (dynamic, etag) = load_groups(&self.context).await?;
        let mut memory = self.memory();
        if memory.dynamic_etag != etag {
            memory.dynamic = dynamic;
            memory.dynamic_etag = etag;
        }
        Ok(())
    }

    async fn store_groups(&self, after: Dynamic) -> Result<(), TermError> {
        self.lead.verify().await?;
        let key = self.context.layout.groups();
        let etag = {
            let memory = self.memory();
            if memory.dynamic == after {
                return Ok(());
            }
            memory.dynamic_etag.clone()
        };
        let body = serde_json::to_vec_pretty(&after).expect("groups are plain data");
        let expect = etag.map_or(Expect::Absent, Expect::Content);
        let etag = bounded(&key, self.context.store.put(&key, body, expect)).await?;
        let mut memory = self.memory();
        memory.dynamic = after;
        memory.dynamic_etag = Some(etag);
        Ok(())
    }

    /// Takes the new configuration; deletions and changes are sent before additions.
    fn replace_config(&self, config: plan::shard::config::Config, object: &crate::store::Object) {
        let (mut events, groups) = {
            let mut memory = self.memory();
            let before = self.all_groups(&memory);
            memory.config = Arc::new(config);
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
            (events, memory.groups())
        };
        events.sort_by_key(|(rank, _, _)| *rank);
        for (_, tenant, event) in events {
            self.group_events.send(&tenant, event);
        }
        for (tenant, key) in groups {
            self.enqueue(&tenant, &key);
        }
    }

    /// Every group with its instances, in one pass over them.
    fn all_groups(&self, memory: &Memory) -> BTreeMap<(String, String), wire::GroupStatus> {
        let mut entries: HashMap<(&str, &str), Vec<&Entry>> = HashMap::new();
        for entry in memory.entries.values().filter(|entry| counts(entry)) {
            entries.entry((&entry.record.tenant, &entry.record.group)).or_default().push(entry);
        }
        let status = |(tenant, key): (String, String)| {
            let group = effective(&memory.config, &memory.dynamic, &tenant, &key)?;
            let ours = entries.get(&(&*tenant, &*key)).map_or(&[][..], Vec::as_slice);
            let status = self.describe(group, ours);
            Some(((tenant, key), status))
        };
        group::all(&memory.config, &memory.dynamic).into_iter().filter_map(status).collect()
    }

    fn group_status(&self, memory: &Memory, tenant: &str, key: &str) -> Option<wire::GroupStatus> {
        let group = effective(&memory.config, &memory.dynamic, tenant, key)?;
        let ours = |entry: &&Entry| counts(entry) && entry.record.tenant == tenant && entry.record.group == key;
        let entries: Vec<&Entry> = memory.entries.values().filter(ours).collect();
        Some(self.describe(group, &entries))
    }

    fn describe(&self, group: Group, entries: &[&Entry]) -> wire::GroupStatus {
        let mut provider_ids: Vec<_> = entries.iter().map(|entry| entry.record.provider_id().to_owned()).collect();
        provider_ids.sort();
        let instance = |entry: &&Entry| {
            let machine = MachineInfo {
                instance_id: entry.record.id.to_string(),
                provider_id: entry.record.provider_id().to_owned(),
                status: status(entry),
                created_at: entry.record.created_at,
            };
            wire::group_status::Instance {
                node_provider_id: self.context.provider.node_provider_id(&self.context.shard, &machine),
                instance_id: machine.instance_id,
                provider_id: machine.provider_id,
                status: machine.status.as_str().to_owned(),
                created_at: Some(wire::timestamp(machine.created_at)),
            }
        };
        wire::GroupStatus {
            etag: group.etag(),
            key: group.key,
            tenant: group.tenant,
            template: group.template,
            size: group.size,
            instance_type: group.instance_type,
            subnet_pool: group.subnet_pool,
            vars: group.vars,
            is_static: group.is_static,
            actual_size: i32::try_from(entries.len()).unwrap_or(i32::MAX),
            provider_ids,
            instances: entries.iter().map(instance).collect(),
        }
    }

    /// The room of every subnet of every pool.
    async fn room(&self) -> Vec<Subnet> {
        let names: Vec<String> = {
            let memory = self.memory();
            memory.config.shard.subnet_pools.values().flatten().cloned().collect()
        };
        let mut room = Vec::new();
        for id in names {
            if let Ok(free) = super::term::bounded_provider(self.context.provider.free(&id)).await {
                room.push(Subnet { id, free });
            }
        }
        room
    }

    fn known_answer<T: Message + Default>(&self, tenant: &str, fence: &Fence) -> Option<T> {
        let id = fence.request_id.as_deref()?;
        T::decode(self.memory().answers.get(tenant, id)?).ok()
    }

    fn remember(&self, tenant: &str, fence: &Fence, answer: &impl Message) {
        if let Some(id) = &fence.request_id {
            self.memory().answers.put(tenant, id, answer.encode_to_vec());
        }
    }
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

/// Whether it is one of its group's actual size.
fn counts(entry: &Entry) -> bool {
    !entry.record.on_demand
        && entry.record.deleted_at.is_none()
        && entry.record.machine.is_some()
        && !matches!(status(entry), MachineStatus::Deleting | MachineStatus::Deleted)
}

/// What clients see of an instance.
fn status(entry: &Entry) -> MachineStatus {
    match &entry.machine {
        _ if entry.record.machine.is_none() => MachineStatus::Pending,
        Machine::Unknown => MachineStatus::Unknown,
        Machine::Absent => MachineStatus::Deleted,
        Machine::There { status, .. } => *status,
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
