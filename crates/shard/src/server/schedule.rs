//! When the rounds of which group run: as soon as it is due, whatever the rounds of others take or fail with.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::PoisonError,
    time::Duration,
};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use jiff::Timestamp;
use process::explained;
use tokio::time::Instant;

use super::{
    said::Said,
    term::{Term, TermError},
};
use crate::store::Lost;

/// Tenant and key of a group.
type Name = (String, String);

/// The rounds of one group, and when to look again.
type Rounds<'a> = BoxFuture<'a, (Name, Result<Option<Timestamp>, TermError>)>;

/// Groups at once: one whose provider hangs must not hold up the others, and a provider has its own limits.
const ROUNDS_AT_ONCE: usize = 16;

/// Of one tenant: whatever its groups wait for, those of others find a place.
const OF_ONE_TENANT: usize = 12;

/// After a round that was not finished: storage that is away, a damaged object that is repaired.
const PAUSE: Duration = Duration::from_secs(1);

/// Carries rounds out when something changed, and when time is due, until the lead is lost.
pub async fn rounds(term: &Term) -> TermError {
    let mut running: FuturesUnordered<Rounds<'_>> = FuturesUnordered::new();
    let mut busy = BTreeSet::new();
    // Of each group whose rounds fail: storage that is away fails all of them every second.
    let mut failed: BTreeMap<Name, Said> = BTreeMap::new();
    // By the monotonic clock: a wall clock that is set meanwhile delays none.
    let mut looks: BTreeMap<Name, Instant> = BTreeMap::new();
    let mut all_at = Instant::now() + term.until(None);
    loop {
        for name in term.take_due(&busy, ROUNDS_AT_ONCE - running.len()) {
            busy.insert(name.clone());
            looks.remove(&name);
            let round = async move {
                let done = term.settle(&name.0, &name.1).await;
                (name, done)
            };
            running.push(round.boxed());
        }
        let until = looks.values().copied().fold(all_at, Instant::min);
        tokio::select! {
            Some((name, done)) = running.next() => {
                busy.remove(&name);
                let wait = match done {
                    Ok(next) => {
                        if failed.remove(&name).is_some() {
                            tracing::info!(tenant = name.0, group = name.1, "rounds are finished again");
                        }
                        next.map(|next| term.until(Some(next)))
                    }
                    // One that cannot be verified lasts as long as it lasts: the next look may succeed.
                    Err(TermError::Lost(error @ Lost::Ended)) => return error.into(),
                    Err(error) => {
                        let error = explained(&error);
                        if failed.entry(name.clone()).or_default().is_news(&error) {
                            tracing::warn!(tenant = name.0, group = name.1, error, "a round was not finished; it is tried again");
                        }
                        Some(PAUSE)
                    }
                };
                looks.extend(wait.map(|wait| (name, Instant::now() + wait)));
            }
            () = term.wake.notified() => {}
            () = tokio::time::sleep_until(until) => {
                let now = Instant::now();
                if now >= all_at {
                    all_at = now + term.until(None);
                    term.enqueue_all();
                }
                // Taken out: where no round may begin yet they stay due, and the time of none is in the past.
                for (tenant, key) in looks.extract_if(.., |_, at| *at <= now).map(|(name, _)| name) {
                    term.enqueue(&tenant, &key);
                }
            }
        }
    }
}

impl Term {
    /// Takes groups that are due, but for those whose rounds run: they stay due. Tenants take turns: next is one with the
    /// fewest rounds at the time.
    fn take_due(&self, busy: &BTreeSet<Name>, most: usize) -> Vec<Name> {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let mut turns: BTreeMap<&str, usize> = BTreeMap::new();
        for (tenant, _) in busy {
            *turns.entry(tenant).or_default() += 1;
        }
        let mut waiting: Vec<(usize, &Name)> = Vec::new();
        for name in due.iter().filter(|name| !busy.contains(*name)) {
            let turn = turns.entry(&name.0).or_default();
            if *turn < OF_ONE_TENANT {
                waiting.push((*turn, name));
                *turn += 1;
            }
        }
        waiting.sort_by_key(|(turn, _)| *turn);
        let taken: Vec<Name> = waiting.into_iter().take(most).map(|(_, name)| name.clone()).collect();
        for name in &taken {
            due.remove(name);
        }
        taken
    }
}
