//! What a term holds in memory: a cache of storage, and the facts beside it.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use jiff::{SignedDuration, Timestamp};
use plan::shard::{
    fence::{self, Age},
    id::InstanceId,
    instance::{Agent, Machine, MachineStatus, Member, Record},
    pace,
    refusal::Refusal,
};
use tokio::time::Instant;

use super::{groups::Groups, listing::Listed};
use crate::{clock::Clock, provider::MachineInfo, store::Etag};

/// Answers that are repeated to a known request id: enough for every retry of a busy operator, and small.
const ANSWERS: usize = 4096;

/// The answer about a group names its instances: large ones are remembered for fewer requests, so that a shard of ten
/// thousand instances stays within its memory.
const ANSWER_BYTES: usize = 4 * 1024 * 1024;

/// A clock that is corrected little by little differs by milliseconds between two looks; one that differs by more was set.
const SET: SignedDuration = SignedDuration::from_secs(2);

/// Everything behind the term's lock.
pub struct Memory {
    pub groups: Groups,
    pub config_etag: Etag,
    pub config_modified: Option<Timestamp>,
    pub config_size: usize,
    pub dynamic_etag: Option<Etag>,
    pub entries: Entries,
    /// Groups whose creations fail, and when the next may be tried.
    pub failing: HashMap<(String, String), Failing>,
    /// When the instances of the last minute were made: for the limit per minute.
    pub made: Vec<Timestamp>,
    pub answers: Answers,
    pub listed: Listed,
    /// The newest epoch of each tenant's operator.
    pub epochs: HashMap<String, u64>,
    /// Both clocks as they were last seen: a difference that grew is a wall clock that was set.
    pub time: (Timestamp, Instant),
}

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
    /// By how much the wall clock was set since its creation or launch was stored, and since its leaving was.
    set_since: (SignedDuration, SignedDuration),
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

fn shifted(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.saturating_add(by).unwrap_or(if by.is_negative() { Timestamp::MIN } else { Timestamp::MAX })
}

impl Entry {
    pub fn new(record: Record, etag: Option<Etag>, now: Timestamp) -> Self {
        let agent = Agent { registered: false, last_seen: now, reported: false, notice: None };
        Self {
            record,
            etag,
            machine: Machine::Unknown,
            agent,
            acknowledged: false,
            failing: None,
            calls: 0,
            streams: 0,
            follow_up: None,
            set_since: (SignedDuration::ZERO, SignedDuration::ZERO),
        }
    }

    /// What storage holds.
    pub fn replace(&mut self, record: Record, etag: Etag) {
        if record.machine != self.record.machine {
            self.set_since.0 = SignedDuration::ZERO;
        }
        if record.leaving != self.record.leaving {
            self.set_since.1 = SignedDuration::ZERO;
        }
        (self.record, self.etag) = (record, Some(etag));
    }

    /// What the provider said; `None` if it has no machine of this instance.
    pub fn observe(&mut self, found: Option<&MachineInfo>) {
        self.machine = found.map_or(Machine::Absent, |machine| match machine.status {
            MachineStatus::Unknown => Machine::Unknown,
            status => Machine::There { provider_id: machine.provider_id.clone(), status },
        });
        // A notice whose leader died before it stored anything is known to the provider still.
        if found.is_some_and(|machine| machine.noticed) {
            self.agent.notice.get_or_insert(None);
        }
    }

    /// Moves what is measured with a clock that was set by so much.
    fn shift(&mut self, by: SignedDuration) {
        self.agent.last_seen = shifted(self.agent.last_seen, by);
        self.set_since = (self.set_since.0.saturating_add(by), self.set_since.1.saturating_add(by));
        if let Some(failing) = &mut self.failing {
            failing.retry_at = shifted(failing.retry_at, by);
        }
        if let Some(follow_up) = &mut self.follow_up {
            follow_up.at = shifted(follow_up.at, by);
        }
    }

    /// The record with its times by the clock as it is set now.
    fn timed_record(&self) -> Record {
        let mut record = self.record.clone();
        match &mut record.machine {
            Some(machine) => machine.launched_at = shifted(machine.launched_at, self.set_since.0),
            // As long as it is tried, its creation is what is measured.
            None => record.created_at = shifted(record.created_at, self.set_since.0),
        }
        // Only later: the operator was promised the time that is stored.
        if let Some(leaving) = &mut record.leaving {
            leaving.delete_at = leaving.delete_at.max(shifted(leaving.delete_at, self.set_since.1));
        }
        record
    }

    pub fn member(&self) -> Member {
        Member {
            record: self.timed_record(),
            machine: self.machine.clone(),
            agent: self.agent.clone(),
            acknowledged: self.acknowledged,
            retry_at: self.failing.map(|failing| failing.retry_at),
        }
    }
}

/// Instances by id, and which of them a group has: a shard has thousands, and most questions are about one group.
#[derive(Default)]
pub struct Entries {
    by_id: HashMap<InstanceId, Entry>,
    /// By tenant, then group.
    groups: BTreeMap<String, BTreeMap<String, BTreeSet<InstanceId>>>,
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
    pub fn get_mut(&mut self, id: &InstanceId) -> Option<&mut Entry> {
        self.by_id.get_mut(id)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.by_id.values()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.by_id.values_mut()
    }

    pub fn of_group(&self, tenant: &str, group: &str) -> impl Iterator<Item = &Entry> {
        let ids = self.groups.get(tenant).and_then(|groups| groups.get(group));
        ids.into_iter().flatten().filter_map(|id| self.by_id.get(id))
    }

    /// Tenant and name of every group that has instances.
    pub fn groups(&self) -> impl Iterator<Item = (String, String)> {
        let names = |(tenant, groups): (&String, &BTreeMap<String, _>)| {
            groups.keys().map(|group| (tenant.clone(), group.clone())).collect::<Vec<_>>()
        };
        self.groups.iter().flat_map(names)
    }

    /// The entry of that record: one that is there, or a new one.
    pub fn add(&mut self, record: &Record, now: Timestamp) -> &mut Entry {
        if !self.by_id.contains_key(&record.id) {
            let groups = self.groups.entry(record.tenant.clone()).or_default();
            groups.entry(record.group.clone()).or_default().insert(record.id.clone());
        }
        self.by_id.entry(record.id.clone()).or_insert_with(|| Entry::new(record.clone(), None, now))
    }

    pub fn remove(&mut self, id: &InstanceId) {
        let Some(entry) = self.by_id.remove(id) else { return };
        let Some(groups) = self.groups.get_mut(&entry.record.tenant) else { return };
        if let Some(ids) = groups.get_mut(&entry.record.group) {
            ids.remove(id);
        }
        groups.retain(|_, ids| !ids.is_empty());
        self.groups.retain(|_, groups| !groups.is_empty());
    }
}

impl Memory {
    /// The instances of one group.
    pub fn members(&self, tenant: &str, group: &str) -> Vec<Member> {
        self.entries.of_group(tenant, group).map(Entry::member).collect()
    }

    /// Refuses the request of an operator that lost its lease to a newer one, and remembers the newest.
    pub fn check_epoch(&mut self, tenant: &str, epoch: Option<u64>) -> Result<(), Refusal> {
        let Some(epoch) = epoch else { return Ok(()) };
        let newest = self.epochs.entry(tenant.to_owned()).or_default();
        let age = |epoch| Age::read(Some(epoch), None);
        fence::check(age(*newest), age(epoch))?;
        *newest = epoch;
        Ok(())
    }

    /// Names of all groups, those included that are gone but have instances.
    pub fn group_names(&self) -> BTreeSet<(String, String)> {
        let mut names = plan::shard::group::all(self.groups.config(), self.groups.dynamic());
        names.extend(self.entries.groups());
        names
    }

    /// Those of the group that are not deleted.
    pub fn living(&self, tenant: &str, group: &str) -> BTreeSet<InstanceId> {
        let living = self.entries.of_group(tenant, group).filter(|entry| entry.record.deleted_at.is_none());
        living.map(|entry| entry.record.id.clone()).collect()
    }

    /// Wall time. A clock that was set since the last look moves what is measured in memory with it, so that no agent is
    /// late and no retry far away because of it.
    pub fn follow(&mut self, clock: &Clock) -> Timestamp {
        let (wall, instant) = (clock.now(), clock.instant());
        let expected = self.time.0.saturating_add(instant.duration_since(self.time.1)).unwrap_or(Timestamp::MAX);
        let by = wall.duration_since(expected);
        self.time = (wall, instant);
        if by.abs() >= SET {
            tracing::warn!(?by, "the clock was set");
            for entry in self.entries.iter_mut() {
                entry.shift(by);
            }
            for failing in self.failing.values_mut() {
                failing.retry_at = shifted(failing.retry_at, by);
            }
            for at in &mut self.made {
                *at = shifted(*at, by);
            }
        }
        wall
    }

    /// Notes that a machine was asked for, and forgets what is too old to count.
    pub fn count_made(&mut self, now: Timestamp) {
        self.made.retain(|at| pace::counts(*at, now));
        self.made.push(now);
    }
}

/// Answers by tenant, call and request id, the oldest forgotten first.
#[derive(Default)]
pub struct Answers {
    known: HashMap<Asked, Vec<u8>>,
    order: VecDeque<Asked>,
    bytes: usize,
}

/// Which request was answered. An id that a client uses for two calls names two requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Asked {
    pub tenant: String,
    pub call: Call,
    pub request_id: String,
}

/// A call whose answer is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    UpsertGroup,
    DeleteGroup,
    CreateInstance,
    DeleteInstance,
    AcknowledgeDrained,
}

impl Answers {
    pub fn get(&self, asked: &Asked) -> Option<&[u8]> {
        self.known.get(asked).map(Vec::as_slice)
    }

    pub fn put(&mut self, asked: Asked, answer: Vec<u8>) {
        self.bytes += answer.len();
        match self.known.insert(asked.clone(), answer) {
            Some(before) => self.bytes -= before.len(),
            None => self.order.push_back(asked),
        }
        while self.order.len() > ANSWERS || self.bytes > ANSWER_BYTES {
            let Some(oldest) = self.order.pop_front() else { return };
            self.bytes -= self.known.remove(&oldest).map_or(0, |answer| answer.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use plan::shard::group::Blueprint;

    use super::*;

    #[test]
    fn answers_are_bounded_in_number_and_in_bytes() {
        let asked = |call, number: usize| Asked { tenant: "t".to_owned(), call, request_id: number.to_string() };
        let upsert = |number| asked(Call::UpsertGroup, number);
        let mut answers = Answers::default();
        for number in 0..=ANSWERS {
            answers.put(upsert(number), vec![1]);
        }
        assert_eq!((answers.get(&upsert(0)), answers.get(&upsert(1))), (None, Some(&[1][..])));
        assert_eq!(answers.get(&asked(Call::DeleteGroup, 1)), None);
        // As large as the answer about a group of a thousand instances.
        for number in 0..100 {
            answers.put(upsert(number), vec![2; 150_000]);
        }
        let bytes = |answers: &Answers| answers.known.values().map(Vec::len).sum::<usize>();
        assert!(bytes(&answers) <= ANSWER_BYTES);
        assert_eq!(answers.known.len(), answers.order.len());
        assert!(answers.get(&upsert(0)).is_none() && answers.get(&upsert(99)).is_some());
        answers.put(upsert(99), vec![3]);
        assert_eq!(answers.bytes, bytes(&answers), "a repeated id is counted once");
    }

    #[test]
    fn entries_are_found_by_group_until_they_are_removed() {
        let now = Timestamp::UNIX_EPOCH;
        let id = |number| InstanceId::new("web", number);
        let mut entries = Entries::default();
        for (number, tenant, group) in [(1, "a", "g"), (2, "a", "h"), (3, "b", "g"), (4, "a", "g"), (4, "a", "g")] {
            entries.add(&Record::new(id(number), (tenant, group, "w"), &Blueprint::default(), "s", now), now);
        }
        let of = |entries: &Entries, tenant: &str, group: &str| -> Vec<InstanceId> {
            entries.of_group(tenant, group).map(|entry| entry.record.id.clone()).collect()
        };
        assert_eq!(of(&entries, "a", "g"), [id(1), id(4)]);
        assert_eq!(of(&entries, "b", "g"), [id(3)]);
        assert_eq!(of(&entries, "b", "h"), []);
        entries.remove(&id(3));
        entries.remove(&id(3));
        let names: Vec<_> = entries.groups().collect();
        assert_eq!(names, [("a".to_owned(), "g".to_owned()), ("a".to_owned(), "h".to_owned())]);
        assert_eq!(entries.iter().count(), 3);
    }
}
