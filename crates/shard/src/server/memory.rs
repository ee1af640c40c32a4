//! What a term holds in memory: a cache of storage, and the facts beside it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
};

use jiff::Timestamp;
use plan::shard::{
    config::Config,
    fence::{self, Age},
    group::Dynamic,
    id::InstanceId,
    instance::{Agent, Machine, Member, Record},
    refusal::Refusal,
};

use crate::store::Etag;

/// Answers that are repeated to a known request id: enough for every retry of a busy operator, and small.
const ANSWERS: usize = 4096;

/// Everything behind the term's lock.
pub struct Memory {
    pub config: Arc<Config>,
    pub config_etag: Etag,
    pub config_modified: Option<Timestamp>,
    pub config_size: usize,
    pub dynamic: Dynamic,
    pub dynamic_etag: Option<Etag>,
    pub entries: BTreeMap<InstanceId, Entry>,
    /// Groups whose creations fail, and when the next may be tried.
    pub failing: HashMap<(String, String), Failing>,
    /// When instances were made: for the limit per minute.
    pub made: VecDeque<Timestamp>,
    pub answers: Answers,
    /// The newest epoch of each tenant's operator.
    pub epochs: HashMap<String, u64>,
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
        }
    }

    pub fn member(&self) -> Member {
        Member {
            record: self.record.clone(),
            machine: self.machine.clone(),
            agent: self.agent.clone(),
            acknowledged: self.acknowledged,
            retry_at: self.failing.map(|failing| failing.retry_at),
        }
    }
}

impl Memory {
    /// The instances of one group.
    pub fn members(&self, tenant: &str, group: &str) -> Vec<Member> {
        let of = |entry: &&Entry| entry.record.tenant == tenant && entry.record.group == group;
        self.entries.values().filter(of).map(Entry::member).collect()
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
    pub fn groups(&self) -> BTreeSet<(String, String)> {
        let mut names = plan::shard::group::all(&self.config, &self.dynamic);
        names.extend(self.entries.values().map(|entry| (entry.record.tenant.clone(), entry.record.group.clone())));
        names
    }

    /// Those of the group that are not deleted.
    pub fn living(&self, tenant: &str, group: &str) -> BTreeSet<InstanceId> {
        let of = |entry: &&Entry| {
            entry.record.tenant == tenant && entry.record.group == group && entry.record.deleted_at.is_none()
        };
        self.entries.values().filter(of).map(|entry| entry.record.id.clone()).collect()
    }
}

/// Answers by tenant and request id, the oldest forgotten first.
#[derive(Default)]
pub struct Answers {
    known: HashMap<(String, String), Vec<u8>>,
    order: VecDeque<(String, String)>,
}

impl Answers {
    pub fn get(&self, tenant: &str, id: &str) -> Option<&[u8]> {
        self.known.get(&(tenant.to_owned(), id.to_owned())).map(Vec::as_slice)
    }

    pub fn put(&mut self, tenant: &str, id: &str, answer: Vec<u8>) {
        let key = (tenant.to_owned(), id.to_owned());
        if self.known.insert(key.clone(), answer).is_none() {
            self.order.push_back(key);
        }
        while self.order.len() > ANSWERS {
            if let Some(oldest) = self.order.pop_front() {
                self.known.remove(&oldest);
            }
        }
    }
}
