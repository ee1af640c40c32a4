//! Instances in memory: what storage holds of each, and the facts beside it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::{Deref, DerefMut},
};

use jiff::{SignedDuration, Timestamp};
use plan::shard::{
    id::InstanceId,
    instance::{Agent, Machine, MachineStatus, Member, Record},
};
use tokio::time::Instant;

use crate::{provider::MachineInfo, store::Etag};

/// Wall time and monotonic time, as they were seen together.
pub type Moment = (Timestamp, Instant);

/// One instance.
pub struct Entry {
    pub record: Record,
    /// `None` while it is not known what storage holds.
    pub etag: Option<Etag>,
    pub machine: Machine,
    pub agent: Agent,
    pub acknowledged: bool,
    pub failing: Option<Failing>,
    /// Counts provider calls: a list that began before one says nothing about it.
    pub calls: u64,
    /// Health streams that its agent has open.
    pub streams: u32,
    /// Its agent hung up; the machine is looked at until it is back.
    pub follow_up: Option<FollowUp>,
    /// When it was looked at last because of that.
    pub followed_up: Option<Instant>,
    /// Since when this server knows it.
    known_since: Instant,
    set_since: SetSince,
}

/// By how much the wall clock was set since each of these was stored; since this server knows the instance at most.
#[derive(Clone, Copy, Default)]
struct SetSince {
    creation: SignedDuration,
    /// The creation, until the machine was launched; then the launch.
    launch: SignedDuration,
    leaving: SignedDuration,
    deletion: SignedDuration,
}

/// The next look at a machine whose agent hung up.
#[derive(Clone, Copy, Debug)]
pub struct FollowUp {
    pub looks: usize,
    pub at: Timestamp,
}

/// Failures in a row.
#[derive(Clone, Copy, Debug)]
pub struct Failing {
    pub count: u32,
    pub retry_at: Timestamp,
}

pub fn shifted(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.saturating_add(by).unwrap_or(if by.is_negative() { Timestamp::MIN } else { Timestamp::MAX })
}

fn later(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.max(shifted(time, by))
}

impl Entry {
    fn new(record: Record, now: Moment) -> Self {
        let agent = Agent { registered: false, last_seen: now.0, reported: false, notice: None };
        Self {
            record,
            etag: None,
            machine: Machine::Unknown,
            agent,
            acknowledged: false,
            failing: None,
            calls: 0,
            streams: 0,
            follow_up: None,
            followed_up: None,
            known_since: now.1,
            set_since: SetSince::default(),
        }
    }

    /// What storage holds.
    pub fn replace(&mut self, record: Record, etag: Etag) {
        if record.machine != self.record.machine {
            self.set_since.launch = SignedDuration::ZERO;
        }
        if record.leaving != self.record.leaving {
            self.set_since.leaving = SignedDuration::ZERO;
        }
        if record.deleted_at != self.record.deleted_at {
            self.set_since.deletion = SignedDuration::ZERO;
        }
        (self.record, self.etag) = (record, Some(etag));
    }

    /// Whether a machine with the instance's label is its own: the one that its record names, or any while it names none.
    pub fn is_own(&self, machine: &MachineInfo) -> bool {
        self.record.machine.as_ref().is_none_or(|linked| linked.provider_id == machine.provider_id)
    }

    /// What the provider said; `None` if it has no machine of this instance. Another one with its label, a person's copy
    /// for example, says nothing about its own.
    pub fn observe(&mut self, found: Option<&MachineInfo>) {
        self.machine = found.map_or(Machine::Absent, |machine| match machine.status {
            MachineStatus::Unknown => Machine::Unknown,
            _ if !self.is_own(machine) => Machine::Unknown,
            status => Machine::There { provider_id: machine.provider_id.clone(), status },
        });
        // A notice whose leader died before it stored anything is known to the provider still.
        if found.is_some_and(|machine| machine.noticed && self.is_own(machine)) {
            self.agent.notice.get_or_insert(None);
        }
    }

    /// What clients see of it.
    pub fn status(&self) -> MachineStatus {
        match &self.machine {
            _ if self.record.machine.is_none() => MachineStatus::Pending,
            Machine::Unknown => MachineStatus::Unknown,
            Machine::Absent => MachineStatus::Deleted,
            Machine::There { status, .. } => *status,
        }
    }

    /// Changes with all that clients see of it: a record changes with its etag.
    fn shown(&self) -> (Option<Etag>, MachineStatus) {
        (self.etag.clone(), self.status())
    }

    /// Moves what is measured with a clock that was set by so much.
    pub fn shift(&mut self, by: SignedDuration) {
        self.agent.last_seen = shifted(self.agent.last_seen, by);
        let SetSince { creation, launch, leaving, deletion } = &mut self.set_since;
        for since in [creation, launch, leaving, deletion] {
            *since = since.saturating_add(by);
        }
        if let Some(failing) = &mut self.failing {
            failing.retry_at = shifted(failing.retry_at, by);
        }
        if let Some(follow_up) = &mut self.follow_up {
            follow_up.at = shifted(follow_up.at, by);
        }
    }

    /// When its drain ends, by the clock as it is set now. Only later: the operator was promised the time that is stored.
    pub fn delete_at(&self) -> Option<Timestamp> {
        self.record.leaving.as_ref().map(|leaving| later(leaving.delete_at, self.set_since.leaving))
    }

    /// The record with its times by the clock as it is set now.
    fn timed_record(&self) -> Record {
        let mut record = self.record.clone();
        match &mut record.machine {
            Some(machine) => {
                machine.launched_at = shifted(machine.launched_at, self.set_since.launch);
                // Only later: the clock may have been wrong when this server began, and is right now.
                record.created_at = later(record.created_at, self.set_since.creation);
            }
            // As long as it is tried, its creation is what is measured.
            None => record.created_at = shifted(record.created_at, self.set_since.launch),
        }
        if let (Some(leaving), Some(delete_at)) = (&mut record.leaving, self.delete_at()) {
            leaving.delete_at = delete_at;
        }
        // Only later: watchers that were away are to learn of it.
        record.deleted_at = record.deleted_at.map(|at| later(at, self.set_since.deletion));
        record
    }

    pub fn member(&self, now: Instant) -> Member {
        Member {
            record: self.timed_record(),
            machine: self.machine.clone(),
            agent: self.agent.clone(),
            acknowledged: self.acknowledged,
            retry_at: self.failing.map(|failing| failing.retry_at),
            known_for: now.saturating_duration_since(self.known_since),
        }
    }
}

/// Instances by id, and which of them a group has: a shard has thousands, and most questions are about one group.
#[derive(Default)]
pub struct Entries {
    by_id: HashMap<InstanceId, Entry>,
    /// By tenant, then group.
    groups: BTreeMap<String, BTreeMap<String, Members>>,
    /// Counts changes of what clients see.
    changes: u64,
}

/// The instances of one group.
#[derive(Default)]
struct Members {
    ids: BTreeSet<InstanceId>,
    /// The number of the last change of what clients see of them.
    changed: u64,
}

/// An entry that may be changed. What clients see of it is compared when this is dropped, so that no change of it is
/// missed, and the reports of thousands of agents are none.
pub struct Changing<'a> {
    entry: &'a mut Entry,
    before: (Option<Etag>, MachineStatus),
    members: Option<&'a mut Members>,
    changes: &'a mut u64,
}

impl Deref for Changing<'_> {
    type Target = Entry;

    fn deref(&self) -> &Entry {
        self.entry
    }
}

impl DerefMut for Changing<'_> {
    fn deref_mut(&mut self) -> &mut Entry {
        self.entry
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        if self.entry.shown() == self.before {
            return;
        }
        *self.changes += 1;
        if let Some(members) = &mut self.members {
            members.changed = *self.changes;
        }
    }
}

impl Entries {
    pub fn get(&self, id: &InstanceId) -> Option<&Entry> {
        self.by_id.get(id)
    }

    /// By a text that may be no id.
    pub fn find(&self, id: &str) -> Option<&Entry> {
        self.by_id.get(id)
    }

    /// Tenant and group of its record stay as they are.
    pub fn get_mut(&mut self, id: &InstanceId) -> Option<Changing<'_>> {
        let Self { by_id, groups, changes } = self;
        let entry = by_id.get_mut(id)?;
        let members = groups.get_mut(&entry.record.tenant).and_then(|groups| groups.get_mut(&entry.record.group));
        Some(Changing { before: entry.shown(), entry, members, changes })
    }

    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.by_id.values()
    }

    /// Changes every entry.
    pub fn for_each_mut(&mut self, mut change: impl FnMut(&mut Entry)) {
        let Self { by_id, groups, changes } = self;
        for entry in by_id.values_mut() {
            let before = entry.shown();
            change(entry);
            if entry.shown() == before {
                continue;
            }
            *changes += 1;
            let members = groups.get_mut(&entry.record.tenant).and_then(|groups| groups.get_mut(&entry.record.group));
            if let Some(members) = members {
                members.changed = *changes;
            }
        }
    }

    pub fn of_group(&self, tenant: &str, group: &str) -> impl Iterator<Item = &Entry> {
        let members = self.groups.get(tenant).and_then(|groups| groups.get(group));
        members.into_iter().flat_map(|members| &members.ids).filter_map(|id| self.by_id.get(id))
    }

    /// The number of the last change of what clients see of a group's instances. It never returns to an earlier one but
    /// for a group that has none.
    pub fn changed(&self, tenant: &str, group: &str) -> u64 {
        self.groups.get(tenant).and_then(|groups| groups.get(group)).map_or(0, |members| members.changed)
    }

    /// Tenant and name of every group that has instances.
    pub fn groups(&self) -> impl Iterator<Item = (String, String)> {
        let names = |(tenant, groups): (&String, &BTreeMap<String, _>)| {
            groups.keys().map(|group| (tenant.clone(), group.clone())).collect::<Vec<_>>()
        };
        self.groups.iter().flat_map(names)
    }

    /// The entry of that record: one that is there, or a new one.
    pub fn add(&mut self, record: &Record, now: Moment) -> Changing<'_> {
        let Self { by_id, groups, changes } = self;
        let members = groups.entry(record.tenant.clone()).or_default().entry(record.group.clone()).or_default();
        if members.ids.insert(record.id.clone()) {
            *changes += 1;
            members.changed = *changes;
        }
        let entry = by_id.entry(record.id.clone()).or_insert_with(|| Entry::new(record.clone(), now));
        Changing { before: entry.shown(), entry, members: Some(members), changes }
    }

    pub fn remove(&mut self, id: &InstanceId) -> Option<Entry> {
        let entry = self.by_id.remove(id)?;
        let groups = self.groups.get_mut(&entry.record.tenant)?;
        if let Some(members) = groups.get_mut(&entry.record.group) {
            members.ids.remove(id);
            self.changes += 1;
            members.changed = self.changes;
        }
        groups.retain(|_, members| !members.ids.is_empty());
        self.groups.retain(|_, groups| !groups.is_empty());
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use plan::shard::{group::Blueprint, instance::MachineRef};

    use super::*;
    use crate::store::{Expect, MemoryStore, Store};

    fn id(number: u128) -> InstanceId {
        InstanceId::new("web", number)
    }

    fn record(number: u128, tenant: &str, group: &str) -> Record {
        Record::new(id(number), (tenant, group, "w"), &Blueprint::default(), "s", Timestamp::UNIX_EPOCH)
    }

    #[tokio::test(start_paused = true)]
    async fn entries_are_found_by_group_until_they_are_removed() {
        let now = (Timestamp::UNIX_EPOCH, Instant::now());
        let mut entries = Entries::default();
        for (number, tenant, group) in [(1, "a", "g"), (2, "a", "h"), (3, "b", "g"), (4, "a", "g"), (4, "a", "g")] {
            entries.add(&record(number, tenant, group), now);
        }
        let of = |entries: &Entries, tenant: &str, group: &str| -> Vec<InstanceId> {
            entries.of_group(tenant, group).map(|entry| entry.record.id.clone()).collect()
        };
        assert_eq!(of(&entries, "a", "g"), [id(1), id(4)]);
        assert_eq!(of(&entries, "b", "g"), [id(3)]);
        assert_eq!(of(&entries, "b", "h"), []);
        entries.remove(&id(3));
        entries.remove(&id(3));
        let names = |tenant: &str, group: &str| (tenant.to_owned(), group.to_owned());
        assert_eq!(entries.groups().collect::<Vec<_>>(), [names("a", "g"), names("a", "h")]);
    }

    /// A poll encodes again what changed, and nothing else.
    #[tokio::test(start_paused = true)]
    async fn a_change_that_clients_see_is_counted_for_its_group_alone() {
        let now = (Timestamp::UNIX_EPOCH, Instant::now());
        let store = MemoryStore::default();
        let etag = store.put("x", vec![], Expect::Absent).await.unwrap();
        let mut entries = Entries::default();
        for number in 1..=2 {
            let mut record = record(number, "a", if number == 1 { "g" } else { "h" });
            record.machine = Some(MachineRef { provider_id: "i".to_owned(), launched_at: Timestamp::UNIX_EPOCH });
            entries.add(&record, now).etag = Some(etag.clone());
        }
        let numbers = |entries: &Entries| (entries.changed("a", "g"), entries.changed("a", "h"));
        let before = numbers(&entries);
        // What agents say, and what is only asked, is nothing that clients see.
        entries.get_mut(&id(1)).unwrap().agent.last_seen = Timestamp::MAX;
        entries.for_each_mut(|entry| entry.shift(SignedDuration::from_hours(1)));
        entries.for_each_mut(|entry| entry.calls += 1);
        assert_eq!(numbers(&entries), before);
        let there = || Machine::There { provider_id: "i".to_owned(), status: MachineStatus::Running };
        entries.for_each_mut(|entry| {
            if entry.record.id == id(1) {
                entry.machine = there();
            }
        });
        let after = numbers(&entries);
        assert!(after.0 > before.0 && after.1 == before.1, "{after:?}");
        entries.get_mut(&id(2)).unwrap().etag = None;
        let later = numbers(&entries);
        assert!(later.0 == after.0 && later.1 > after.1, "{later:?}");
        entries.remove(&id(1));
        assert_eq!(numbers(&entries), (0, later.1));
        entries.add(&record(1, "a", "g"), now);
        assert!(entries.changed("a", "g") > after.0, "no number is given twice");
    }
}
