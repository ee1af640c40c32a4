//! What a term holds in memory: a cache of storage, and the facts beside it.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use jiff::{SignedDuration, Timestamp};
use plan::shard::{
    fence::{self, Age},
    id::InstanceId,
    instance::Member,
    pace::{self, Demand, Made},
    refusal::Refusal,
    sweep::Owner,
};
use tokio::time::Instant;

use super::{
    entries::{Entries, Failing, Moment, shifted},
    groups::Groups,
    listing::Listed,
    quarantine::Quarantine,
    said::Said,
};
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
    /// Of the configuration in storage, which is not used because of them.
    pub config_problems: Said,
    pub dynamic_etag: Etag,
    /// Of the file of dynamic groups as a whole.
    pub groups_damage: Said,
    pub entries: Entries,
    pub quarantine: Quarantine,
    /// Since when machines have been found that no record owns, by their provider ids.
    pub unowned: HashMap<String, Instant>,
    /// Groups whose creations fail, and when the next may be tried.
    pub failing: HashMap<(String, String), Failing>,
    /// The creations of the last minute, while there is a limit per minute.
    pub made: Vec<Made>,
    /// Groups that the limit holds up, and since when they were given nothing.
    pub waiting: BTreeMap<(String, String), Timestamp>,
    pub answers: Answers,
    pub listed: Listed,
    /// The newest epoch of each tenant's operator.
    pub epochs: HashMap<String, u64>,
    /// Both clocks as they were last seen: a difference that grew is a wall clock that was set.
    pub time: Moment,
}

impl Memory {
    /// The instances of one group.
    pub fn members(&self, tenant: &str, group: &str) -> Vec<Member> {
        self.entries.of_group(tenant, group).map(|entry| entry.member(self.time.1)).collect()
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
        let unreadable = self.unreadable(tenant, group).map(|(id, _)| id.clone());
        living.map(|entry| entry.record.id.clone()).chain(unreadable).collect()
    }

    /// Instances of the group whose records cannot be read, with what the provider says of their machines.
    pub fn unreadable(&self, tenant: &str, group: &str) -> impl Iterator<Item = (&InstanceId, &MachineInfo)> {
        // One whose record is elsewhere is known by that.
        self.quarantine.of_group(tenant, group).filter(|(id, _)| self.entries.get(id).is_none())
    }

    /// Whose a machine is, by the id of its instance.
    pub fn owner(&self, id: &str) -> Owner<'_> {
        match self.entries.find(id) {
            Some(entry) => Owner::Record(&entry.record),
            None if self.quarantine.may_hold(id) => Owner::Unknown,
            None => Owner::None,
        }
    }

    /// Of the drain of an instance.
    pub fn time_left(&self, id: &InstanceId, now: Timestamp) -> Option<SignedDuration> {
        Some(self.entries.get(id)?.delete_at()?.duration_since(now))
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
            self.entries.for_each_mut(|entry| entry.shift(by));
            for failing in self.failing.values_mut() {
                failing.retry_at = shifted(failing.retry_at, by);
            }
            for at in self.made.iter_mut().map(|made| &mut made.at).chain(self.waiting.values_mut()) {
                *at = shifted(*at, by);
            }
        }
        wall
    }

    /// How many instances the group may be given now.
    pub fn create_budget(&self, tenant: &str, group: &str, now: Timestamp) -> usize {
        let demand = Demand { made: &self.made, waiting: &self.waiting };
        pace::create_budget(self.create_limit(), demand, (tenant, group), now)
    }

    /// Takes the group's next instance from the limit, if that allows one. Rounds of other groups run meanwhile, so that
    /// each creation is counted before it begins.
    pub fn reserve(&mut self, tenant: &str, group: &str, now: Timestamp) -> bool {
        let may = self.create_budget(tenant, group, now) > 0;
        if may {
            self.count_made(tenant, false, now);
        }
        may
    }

    /// Notes that a machine is asked for, and forgets what is too old to count.
    pub fn count_made(&mut self, tenant: &str, on_demand: bool, now: Timestamp) {
        self.made.retain(|made| pace::counts(made.at, now));
        if self.create_limit().is_some() {
            self.made.push(Made { tenant: tenant.to_owned(), on_demand, at: now });
        }
    }

    /// Notes whether the limit holds the group up, and returns when to look again if it does.
    pub fn wait(&mut self, name: (String, String), is_short: bool, created: bool, now: Timestamp) -> Option<Timestamp> {
        if !is_short || self.create_limit().is_none() {
            self.waiting.remove(&name);
            return None;
        }
        let since = self.waiting.entry(name).or_insert(now);
        if created {
            *since = now;
        }
        pace::room_at(&self.made, now)
    }

    fn create_limit(&self) -> Option<u32> {
        self.groups.config().shard.create_rate_limit
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
}
