//! After an agent hung up: its machine is looked at, soon and then less often, until the agent is back.

use std::time::Duration;

use futures::{StreamExt, stream};
use jiff::Timestamp;
use plan::shard::{id::InstanceId, instance::Machine, pace};

use super::{entries::FollowUp, round::seed, term::Term};
use crate::provider::ProviderError;

/// For one look: the provider is asked about many machines if a network broke.
const LOOK: Duration = Duration::from_secs(5);

/// Between two looks because an agent hung up and came back: its machine must not use up the requests that the provider
/// allows. The looks at all machines come more often than this.
const QUIET: Duration = Duration::from_mins(5);

/// Looks at once, as many as rounds.
const LOOKS_AT_ONCE: usize = 16;

/// A health stream of an agent; it ends when this is dropped, however the stream ended.
pub struct HealthStream<'a> {
    term: &'a Term,
    id: Option<InstanceId>,
}

impl Drop for HealthStream<'_> {
    fn drop(&mut self) {
        let Some(id) = &self.id else { return };
        let (now, instant) = (self.term.now(), self.term.context.clock.instant());
        {
            let mut memory = self.term.memory();
            let Some(mut entry) = memory.entries.get_mut(id) else { return };
            entry.streams = entry.streams.saturating_sub(1);
            // Another stream of the same agent was opened before this one ended, or it is waited for already.
            if entry.streams > 0 || entry.record.deleted_at.is_some() || entry.follow_up.is_some() {
                return;
            }
            let since = entry.followed_up.map(|last| instant.saturating_duration_since(last));
            let wait = since.map_or(Duration::ZERO, |since| QUIET.saturating_sub(since));
            let at = now.saturating_add(wait).unwrap_or(Timestamp::MAX);
            entry.follow_up = Some(FollowUp { looks: 0, at });
        }
        self.term.hung_up.notify_one();
    }
}

impl Term {
    /// An agent of that tenant opened a stream.
    pub fn health_stream(&self, tenant: &str, id: &str) -> HealthStream<'_> {
        let id = InstanceId::parse(id).ok();
        let id = id.filter(|id| self.owned(tenant, id).is_ok_and(|group| group.is_some()));
        if let Some(id) = &id
            && let Some(mut entry) = self.memory().entries.get_mut(id)
        {
            entry.streams += 1;
        }
        HealthStream { term: self, id }
    }

    /// Looks at the machines that are due for it. Returns when the next one is.
    pub async fn follow_up(&self) -> Option<Timestamp> {
        let now = self.now();
        let due: Vec<InstanceId> = {
            let memory = self.memory();
            let is_due = |at: Option<FollowUp>| at.is_some_and(|follow_up| follow_up.at <= now);
            memory.entries.iter().filter(|entry| is_due(entry.follow_up)).map(|entry| entry.record.id.clone()).collect()
        };
        stream::iter(due).for_each_concurrent(LOOKS_AT_ONCE, |id| async move { self.look_after(&id).await }).await;
        self.memory().entries.iter().filter_map(|entry| entry.follow_up).map(|follow_up| follow_up.at).min()
    }

    async fn look_after(&self, id: &InstanceId) {
        let Some(calls) = self.memory().entries.get(id).map(|entry| entry.calls) else { return };
        let late = |_| Err(ProviderError::new("no answer from the provider in time"));
        let look = tokio::time::timeout(LOOK, self.context.provider.status(id.as_str())).await.unwrap_or_else(late);
        let now = self.now();
        let (record, down) = {
            let mut memory = self.memory();
            let Some(mut entry) = memory.entries.get_mut(id) else { return };
            // Back already, or deleted.
            let Some(follow_up) = entry.follow_up.filter(|_| entry.record.deleted_at.is_none()) else { return };
            entry.followed_up = Some(self.context.clock.instant());
            // A call meanwhile knows better.
            if let (Ok(found), true) = (&look, entry.calls == calls) {
                entry.observe(found.as_ref());
            }
            let down = match &entry.machine {
                Machine::Absent => true,
                Machine::There { status, .. } => status.is_down(),
                Machine::Unknown => false,
            };
            let looks = follow_up.looks;
            let next = pace::follow_up_at(looks, seed(id.as_str(), u32::try_from(looks).unwrap_or(0)), now);
            entry.follow_up = next.filter(|_| !down).map(|at| FollowUp { looks: looks + 1, at });
            (entry.record.clone(), down)
        };
        if let Err(error) = look {
            let of = (&*record.tenant, &*record.group);
            self.report_failure(of, id.as_str(), "Failed to get instance status", &error);
        }
        if down {
            self.enqueue(&record.tenant, &record.group);
        }
    }
}
