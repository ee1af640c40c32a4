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

use super::term::{Term, TermError};
use crate::store::Lost;

/// Tenant and key of a group.
type Name = (String, String);

/// The rounds of one group, and when to look again.
type Rounds<'a> = BoxFuture<'a, (Name, Result<Option<Timestamp>, TermError>)>;

/// Groups at once: one whose provider hangs must not hold up the others, and a provider has its own limits.
const ROUNDS_AT_ONCE: usize = 16;

/// After a round that was not finished: storage that is away, a damaged object that is repaired.
const PAUSE: Duration = Duration::from_secs(1);

/// Carries rounds out when something changed, and when time is due, until the lead is lost.
pub async fn rounds(term: &Term) -> TermError {
    let mut running: FuturesUnordered<Rounds<'_>> = FuturesUnordered::new();
    let mut busy = BTreeSet::new();
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
                    Ok(next) => next.map(|next| term.until(Some(next))),
                    // One that cannot be verified lasts as long as it lasts: the next look may succeed.
                    Err(TermError::Lost(error @ Lost::Ended)) => return error.into(),
                    Err(error) => {
                        tracing::warn!(tenant = name.0, group = name.1, error = %explained(&error), "a round was not finished");
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
    /// Takes groups that are due, but for those whose rounds run: they stay due.
    fn take_due(&self, busy: &BTreeSet<Name>, most: usize) -> Vec<Name> {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let taken: Vec<Name> = due.iter().filter(|name| !busy.contains(*name)).take(most).cloned().collect();
        for name in &taken {
            due.remove(name);
        }
        taken
    }
}
