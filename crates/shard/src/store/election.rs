//! Election through storage: one lock object, written only over the content that was seen.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use plan::shard::election::{Candidate, Lock, Step, Timing, step};
use tokio::time::Instant;

use super::{Etag, Expect, Object, Store, StoreError};

/// One candidate for one lock.
pub struct Election {
    store: Arc<dyn Store>,
    key: String,
    holder: String,
    address: String,
    timing: Timing,
    seen: Option<Seen>,
    lead: Option<Lead>,
}

/// The lock's content, and since when it has been this one.
struct Seen {
    lock: Option<(Lock, Etag)>,
    since: Instant,
}

/// What a look at the lock found.
#[derive(Clone, Debug)]
pub enum Role {
    Leader(Lead),
    /// `leader` is where the holder's election port is; look again within `look_in`.
    Standby {
        leader: Option<String>,
        look_in: Duration,
    },
}

/// A lead of one epoch. Clones share it; renewals prolong it, a loss ends it for good.
#[derive(Clone)]
pub struct Lead {
    epoch: u64,
    holder: String,
    key: String,
    store: Arc<dyn Store>,
    patience: Duration,
    /// `None` once it was lost or released.
    valid_until: Arc<Mutex<Option<Instant>>>,
}

/// The lead ended, or nothing proves that it lasts.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    #[error("this server does not lead any more")]
    Ended,
    #[error("the lead cannot be verified")]
    Unverified(#[from] StoreError),
}

impl std::fmt::Debug for Lead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lead").field("key", &self.key).field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl Lead {
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// By this server's own clock.
    pub fn is_valid(&self) -> bool {
        self.until().is_some_and(|until| Instant::now() < until)
    }

    /// Resolves when the lead lapses or was lost, unless it is renewed before.
    pub async fn ended(&self) {
        while let Some(until) = self.until().filter(|until| Instant::now() < *until) {
            tokio::time::sleep_until(until).await;
        }
    }

    /// Looks at the lock itself: before an effect, because a clock alone does not show that another server took over
    /// while this process was stopped.
    pub async fn verify(&self) -> Result<(), Lost> {
        if !self.is_valid() {
            return Err(Lost::Ended);
        }
        let object = bounded(&self.key, self.patience, self.store.get(&self.key)).await?;
        let lock = object.map(|object| read(&self.key, object)).transpose()?.map(|(lock, _)| lock);
        let held = lock.is_some_and(|lock| lock.holder == self.holder && lock.epoch == self.epoch && !lock.released);
        if !held {
            self.end();
        }
        if self.is_valid() { Ok(()) } else { Err(Lost::Ended) }
    }

    pub(crate) fn until(&self) -> Option<Instant> {
        *self.valid_until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn prolong(&self, until: Instant) {
        *self.valid_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
    }

    fn end(&self) {
        *self.valid_until.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Election {
    /// `holder` names this run of this server, `address` its election port.
    pub fn new(store: Arc<dyn Store>, key: &str, holder: &str, address: &str, timing: Timing) -> Self {
        let (key, holder, address) = (key.to_owned(), holder.to_owned(), address.to_owned());
        Self { store, key, holder, address, timing, seen: None, lead: None }
    }

    /// Looks at the lock once and takes or renews it if that is due. A leader calls this every `timing.renew`.
    pub async fn look(&mut self) -> Result<Role, StoreError> {
        if self.lead.as_ref().is_some_and(|lead| !lead.is_valid()) {
            self.lose();
        }
        let leads = self.lead.is_some();
        // A leader knows the content it wrote; a refused write shows if that is wrong.
        if !leads || self.seen.is_none() {
            self.read().await?;
        }
        let step = self.step();
        match step {
            Step::Wait(look_in) => {
                self.lose();
                let seen = self.seen.as_ref().and_then(|seen| seen.lock.as_ref());
                let leader = seen.filter(|(lock, _)| !lock.released).map(|(lock, _)| lock.address.clone());
                Ok(Role::Standby { leader, look_in })
            }
            Step::Acquire(lock) | Step::Renew(lock) => self.write(lock).await,
        }
    }

    /// Stops leading and says so, so that another candidate takes over at once.
    pub async fn release(&mut self) -> Result<(), StoreError> {
        let Some(lead) = self.lead.take() else { return Ok(()) };
        lead.end();
        self.read().await?;
        let Some((lock, etag)) = self.seen.as_ref().and_then(|seen| seen.lock.clone()) else { return Ok(()) };
        if lock.holder != self.holder {
            return Ok(());
        }
        let released = Lock { released: true, sequence: lock.sequence + 1, ..lock };
        let put = self.store.put(&self.key, encode(&released), Expect::Content(etag));
        match self.bounded(put).await {
            Err(error) if error.is_conflict() => Ok(()),
            other => other.map(|_| ()),
        }
    }

    fn step(&self) -> Step {
        let me = Candidate { holder: &self.holder, address: &self.address, leads: self.lead.is_some() };
        let lock = self.seen.as_ref().and_then(|seen| seen.lock.as_ref()).map(|(lock, _)| lock);
        let unchanged = self.seen.as_ref().map_or(Duration::ZERO, |seen| seen.since.elapsed());
        step(me, lock, unchanged, self.timing)
    }

    async fn write(&mut self, lock: Lock) -> Result<Role, StoreError> {
        let seen = self.seen.take();
        let expect = match seen.as_ref().and_then(|seen| seen.lock.as_ref()) {
            Some((_, etag)) => Expect::Content(etag.clone()),
            None => Expect::Absent,
        };
        let begun = Instant::now();
        let put = self.store.put(&self.key, encode(&lock), expect);
        match self.bounded(put).await {
            Ok(etag) => {
                self.seen = Some(Seen { lock: Some((lock.clone(), etag)), since: begun });
                Ok(Role::Leader(self.leading(lock.epoch, begun + self.timing.valid())))
            }
            // Another candidate was first, or an earlier write of ours arrived late: the next look reads.
            Err(error) if error.is_conflict() => {
                self.read().await?;
                let seen = self.seen.as_ref().and_then(|seen| seen.lock.as_ref());
                let ours = seen.is_some_and(|(seen, _)| seen.holder == self.holder);
                if !ours {
                    self.lose();
                }
                let leader = seen_address(self.seen.as_ref());
                match &self.lead {
                    Some(lead) => Ok(Role::Leader(lead.clone())),
                    None => Ok(Role::Standby { leader, look_in: Duration::ZERO }),
                }
            }
            // Unknown whether it arrived: `seen` is empty, so the next look of a leader reads. The lead lasts as long as it
            // lasts. A candidate reads in any case; if it finds the same content, its patience with that is over already.
            Err(error) => {
                self.seen = seen.filter(|_| self.lead.is_none());
                Err(error)
            }
        }
    }

    fn leading(&mut self, epoch: u64, until: Instant) -> Lead {
        let fresh = || Lead {
            epoch,
            holder: self.holder.clone(),
            key: self.key.clone(),
            store: Arc::clone(&self.store),
            patience: self.timing.renew,
            valid_until: Arc::default(),
        };
        let lead = self.lead.take().filter(|lead| lead.epoch == epoch).unwrap_or_else(fresh);
        lead.prolong(until);
        self.lead = Some(lead.clone());
        lead
    }

    fn lose(&mut self) {
        if let Some(lead) = self.lead.take() {
            lead.end();
        }
    }

    /// Reads the lock. The time of a content is that of its first sight.
    async fn read(&mut self) -> Result<(), StoreError> {
        let object = self.bounded(self.store.get(&self.key)).await?;
        let lock = object.map(|object| read(&self.key, object)).transpose()?;
        let same = self.seen.as_ref().is_some_and(|seen| {
            seen.lock.as_ref().map(|(_, etag)| etag) == lock.as_ref().map(|(_, etag)| etag) && lock.is_some()
        });
        if !same {
            self.seen = Some(Seen { lock, since: Instant::now() });
        }
        Ok(())
    }

    async fn bounded<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        bounded(&self.key, self.timing.renew, call).await
    }
}

/// A hanging store is a failed look: the next one may find it well.
async fn bounded<T>(
    key: &str,
    patience: Duration,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let late = || StoreError::unavailable(key, "no answer in time");
    tokio::time::timeout(patience, call).await.unwrap_or_else(|_| Err(late()))
}

fn seen_address(seen: Option<&Seen>) -> Option<String> {
    let (lock, _) = seen?.lock.as_ref()?;
    (!lock.released).then(|| lock.address.clone())
}

/// A content that is no lock is not replaced: its epoch is unknown, and epochs must not repeat.
fn read(key: &str, object: Object) -> Result<(Lock, Etag), StoreError> {
    let lock = serde_json::from_slice(&object.body);
    let why = "not a lock; restore it, or stop every server of this scope and remove it";
    lock.map(|lock| (lock, object.etag)).map_err(|_| StoreError::Invalid { key: key.to_owned(), why })
}

fn encode(lock: &Lock) -> Vec<u8> {
    serde_json::to_vec(lock).expect("a lock is plain data")
}

#[cfg(test)]
mod tests;
