//! Carries rounds out: one step after the other, each safe to repeat.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use plan::shard::{
    event,
    group::{self, Group},
    id::InstanceId,
    instance::{Leaving, Machine, MachineRef, Member, Record, Settings},
    pace,
    round::{Action, Observed, Subnet, plan},
};

use super::{
    entries::{Entry, Failing},
    term::{Term, TermError, bounded, bounded_provider},
};
use crate::{
    provider::{Order, ProviderError},
    wire,
};

/// Rounds of one group in a row; what is left then waits for its next turn.
const ROUNDS: usize = 16;

impl Term {
    /// Carries rounds of one group out until nothing is due now. Returns when to look again.
    pub async fn settle(&self, tenant: &str, key: &str) -> Result<Option<Timestamp>, TermError> {
        let gate = self.gate(tenant, key);
        let _one = gate.lock().await;
        for _ in 0..ROUNDS {
            let (acted, next_look) = self.round(tenant, key).await?;
            if !acted {
                return Ok(next_look);
            }
        }
        Ok(Some(self.now()))
    }

    async fn round(&self, tenant: &str, key: &str) -> Result<(bool, Option<Timestamp>), TermError> {
        self.resync(tenant, key).await?;
        let now = self.now();
        let (current, members, unreadable, settings, budget, create_after) = {
            let memory = self.memory();
            let is_unknown = memory.groups.is_unknown(tenant, key);
            let mut members = memory.members(tenant, key);
            if is_unknown {
                // What was decided before goes on; nothing is decided about the others.
                members.retain(Member::is_leaving);
            }
            let budget = memory.create_budget(tenant, key, now);
            let failing = memory.failing.get(&(tenant.to_owned(), key.to_owned()));
            (
                memory.groups.get(tenant, key).filter(|_| !is_unknown).cloned(),
                members,
                memory.unreadable(tenant, key).count(),
                Settings::from(&**memory.groups.config()),
                budget,
                failing.map(|failing| failing.retry_at),
            )
        };
        let group = current.as_ref().map(|current| &current.group);
        let ids: Vec<u128> = (0..budget).map(|_| (self.context.ids)()).collect();
        let observed = Observed { group, members: &members, subnets: &[], ids: &ids, create_after, unreadable };
        let mut round = plan(observed, &settings, now);
        if round.blocked.is_some() {
            // An instance is to be made: only then the provider is asked for room.
            let subnets = self.subnets(group).await;
            round = plan(Observed { subnets: &subnets, ..observed }, &settings, now);
        }
        let (mut acted, mut created, mut is_short) = (false, false, round.is_short);
        for action in round.actions {
            let creates = matches!(action, Action::Create(_));
            // An earlier creation of this round failed.
            if creates && self.is_failing(tenant, key) {
                continue;
            }
            // Those of other groups took what was left.
            if creates && !self.reserve(tenant, key) {
                is_short = true;
                continue;
            }
            let done = self.execute(group, action).await?;
            (acted, created) = (acted || done, created || (creates && done));
        }
        if let Some(why) = round.blocked {
            self.creation_failed(tenant, key, None, why);
        }
        let room_at = self.memory().wait((tenant.to_owned(), key.to_owned()), is_short, created, now);
        Ok((acted, [round.next_look, room_at].into_iter().flatten().min()))
    }

    /// Subnets of the group's pool with their room. One whose room is not known is left out for now.
    async fn subnets(&self, group: Option<&Group>) -> Vec<Subnet> {
        let mut subnets = Vec::new();
        for id in group.map_or(&[][..], |group| &group.blueprint.subnets) {
            if let Ok(free) = bounded_provider(self.context.provider.free(id)).await {
                subnets.push(Subnet { id: id.clone(), free });
            }
        }
        subnets
    }

    /// Whether it had an effect: a failed call to the provider has none, and its retry is due later.
    async fn execute(&self, group: Option<&Group>, action: Action) -> Result<bool, TermError> {
        match action {
            Action::Create(record) => self.create(group, *record).await,
            Action::Launch(id) => {
                self.count(&id);
                self.launch(group, &id).await
            }
            Action::Link(id, machine) => self.link(&id, machine).await.map(|()| true),
            Action::Drain(id, leaving) => self.drain(&id, leaving).await.map(|()| true),
            Action::Delete(id, leaving) => self.delete(&id, leaving).await,
            Action::Forget(id) => self.forget(&id).await.map(|()| true),
        }
    }

    /// The intent first, then the machine.
    pub(super) async fn create(&self, group: Option<&Group>, record: Record) -> Result<bool, TermError> {
        let id = record.id.clone();
        self.write(record).await?;
        self.launch(group, &id).await
    }

    /// Takes a creation from the limit per minute.
    fn reserve(&self, tenant: &str, key: &str) -> bool {
        let now = self.now();
        self.memory().reserve(tenant, key, now)
    }

    /// Counts the creation of a record's machine.
    fn count(&self, id: &InstanceId) {
        let now = self.now();
        if let Some(record) = self.record(id) {
            self.memory().count_made(&record.tenant, record.on_demand, now);
        }
    }

    /// Whether creations of the group wait.
    fn is_failing(&self, tenant: &str, key: &str) -> bool {
        let (name, now) = ((tenant.to_owned(), key.to_owned()), self.now());
        self.memory().failing.get(&name).is_some_and(|failing| failing.retry_at > now)
    }

    async fn launch(&self, group: Option<&Group>, id: &InstanceId) -> Result<bool, TermError> {
        let Some(record) = self.record(id) else { return Ok(false) };
        self.lead.verify().await?;
        let order = self.order(group, &record);
        let now = self.now();
        self.touch(id, |entry| entry.machine = Machine::Unknown);
        let made = bounded_provider(self.context.provider.create(&order)).await;
        match made {
            Ok(machine) => {
                self.touch(id, |entry| entry.observe(Some(&machine)));
                self.succeeded(id);
                self.link(id, MachineRef { provider_id: machine.provider_id, launched_at: now }).await?;
                Ok(true)
            }
            Err(error) => {
                self.failed(id, "Failed to create instance", &error);
                self.creation_failed(&record.tenant, &record.group, error.retry_after, "");
                self.look(id).await;
                Ok(false)
            }
        }
    }

    async fn link(&self, id: &InstanceId, machine: MachineRef) -> Result<(), TermError> {
        let Some(record) = self.record(id) else { return Ok(()) };
        self.write(Record { machine: Some(machine), ..record }).await
    }

    async fn drain(&self, id: &InstanceId, leaving: Leaving) -> Result<(), TermError> {
        let Some(record) = self.record(id) else { return Ok(()) };
        self.write(Record { leaving: Some(leaving), ..record }).await?;
        self.notify(id);
        Ok(())
    }

    /// The intent, the machine, the end.
    async fn delete(&self, id: &InstanceId, leaving: Leaving) -> Result<bool, TermError> {
        let Some(mut record) = self.record(id) else { return Ok(false) };
        if record.leaving.is_none() {
            record.leaving = Some(leaving);
            self.write(record.clone()).await?;
        }
        self.lead.verify().await?;
        self.touch(id, |entry| entry.machine = Machine::Unknown);
        if let Err(error) = bounded_provider(self.context.provider.delete(id.as_str())).await {
            let drained = record.leaving.as_ref().is_some_and(Leaving::drains);
            let what = if drained { "Failed to delete drained instance" } else { "Failed to delete instance" };
            self.failed(id, what, &error);
            self.look(id).await;
            return Ok(false);
        }
        self.touch(id, |entry| entry.machine = Machine::Absent);
        record.deleted_at = Some(self.now());
        self.write(record).await?;
        self.notify(id);
        Ok(true)
    }

    /// Removes what is stored of an instance that was deleted long ago.
    async fn forget(&self, id: &InstanceId) -> Result<(), TermError> {
        let Some(record) = self.record(id) else { return Ok(()) };
        self.lead.verify().await?;
        let layout = &self.context.layout;
        let used = layout.agent_key(id.as_str());
        bounded(&used, self.context.store.delete(&used)).await?;
        let key = layout.instance(&record.tenant, &id.storage_key());
        bounded(&key, self.context.store.delete(&key)).await?;
        self.memory().entries.remove(id);
        Ok(())
    }

    fn record(&self, id: &InstanceId) -> Option<Record> {
        self.memory().entries.get(id).map(|entry| entry.record.clone())
    }

    fn order(&self, group: Option<&Group>, record: &Record) -> Order {
        let config = Arc::clone(self.memory().groups.config());
        let blueprint = group.and_then(|group| group::of_template(&config, group, &record.template));
        let blueprint = blueprint.unwrap_or_default();
        Order {
            instance_id: record.id.to_string(),
            cluster: self.context.cluster.clone(),
            shard: self.context.shard.clone(),
            tenant: record.tenant.clone(),
            group: record.group.clone(),
            kind: record.id.kind().to_owned(),
            on_demand: record.on_demand,
            instance_type: record.instance_type.clone(),
            arch: blueprint.arch,
            subnet: record.subnet.clone(),
            userdata: blueprint.userdata,
            vars: record.vars.clone(),
            args: blueprint.args,
            registration_timeout: config.shard.garbage_collection.registration_timeout.get(),
            report_interval: config.shard.health_check_interval.get(),
        }
    }

    /// Notes a call to the provider, and what is known after it.
    fn touch(&self, id: &InstanceId, after: impl FnOnce(&mut Entry)) {
        if let Some(mut entry) = self.memory().entries.get_mut(id) {
            entry.calls += 1;
            after(&mut entry);
        }
    }

    /// Asks what a failed call left.
    async fn look(&self, id: &InstanceId) {
        if let Ok(found) = bounded_provider(self.context.provider.status(id.as_str())).await {
            self.touch(id, |entry| entry.observe(found.as_ref()));
        }
    }

    fn succeeded(&self, id: &InstanceId) {
        let mut memory = self.memory();
        let name = {
            let Some(mut entry) = memory.entries.get_mut(id) else { return };
            entry.failing = None;
            (entry.record.tenant.clone(), entry.record.group.clone())
        };
        memory.failing.remove(&name);
    }

    fn failed(&self, id: &InstanceId, what: &str, error: &ProviderError) {
        let now = self.now();
        let Some(record) = self.record(id) else { return };
        if let Some(mut entry) = self.memory().entries.get_mut(id) {
            let count = entry.failing.map_or(0, |failing| failing.count) + 1;
            let retry_at = pace::retry_at(count, error.retry_after, seed(id.as_str(), count), now);
            entry.failing = Some(Failing { count, retry_at });
        }
        self.report_failure((&record.tenant, &record.group), id.as_str(), what, error);
    }

    /// Creations of the group wait, at least for as long as the provider says. Says why, once per failure.
    fn creation_failed(&self, tenant: &str, key: &str, retry_after: Option<Duration>, why: &str) {
        let now = self.now();
        let name = (tenant.to_owned(), key.to_owned());
        {
            let mut memory = self.memory();
            let before = memory.failing.get(&name).copied();
            if before.is_some_and(|failing| failing.retry_at > now) {
                return;
            }
            let count = before.map_or(0, |failing| failing.count) + 1;
            let retry_at = pace::retry_at(count, retry_after, seed(key, count), now);
            // A group that is gone is not tried again.
            let known = memory.group_names();
            memory.failing.retain(|name, _| known.contains(name));
            memory.failing.insert(name, Failing { count, retry_at });
        }
        if !why.is_empty() {
            let error = format!("Failed to create instance: {why}");
            tracing::warn!(tenant, group = key, "{error}");
            self.send_error((tenant, key), "", &error);
        }
    }

    /// What the provider did not do for an instance.
    pub(super) fn report_failure(
        &self,
        (tenant, group): (&str, &str),
        instance_id: &str,
        what: &str,
        error: &ProviderError,
    ) {
        let text = format!("{what}: {error}");
        tracing::warn!(tenant, group, instance = instance_id, class = error.class.as_str(), "{text}");
        self.send_error((tenant, group), instance_id, &text);
    }

    fn send_error(&self, (tenant, group): (&str, &str), instance_id: &str, error: &str) {
        let event = wire::ErrorEvent {
            group: group.to_owned(),
            instance_id: instance_id.to_owned(),
            error: error.to_owned(),
            timestamp: Some(wire::timestamp(self.now())),
        };
        self.error_events.send(tenant, event);
    }

    /// Sends what the stored record calls for.
    fn notify(&self, id: &InstanceId) {
        let Some(record) = self.record(id) else { return };
        if let Some(event) = event::of(&record) {
            let now = self.now();
            let left = self.memory().time_left(id, now);
            self.instance_events.send(&record.tenant, wire::instance_event(&record, &event, left));
        }
    }
}

impl From<ProviderError> for tonic::Status {
    fn from(error: ProviderError) -> Self {
        Self::unavailable(format!("the provider failed: {error}"))
    }
}

/// Derived from a name, so that a test repeats it.
pub(super) fn seed(name: &str, count: u32) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325 ^ u64::from(count);
    name.bytes().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}
