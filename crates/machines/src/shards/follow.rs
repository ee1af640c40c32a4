//! One shard, from the connection to its loss: three streams, and lists of its groups.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use plan::{
    machines::{
        machine::LATER,
        shard::{Group, Members},
    },
    shard::instance::MachineStatus,
};
use process::Clock;
use runtime::source::{Feed, Lost};
use shard::{
    client::{Client, Watched},
    wire::{self, GroupChange},
};
use tokio::{sync::Notify, time::Instant};

use super::{Pace, Progress, Said, Shards, convert, errors::Errors};

/// Streams say nothing of instances that come up: while a group is not as large as it should be, it is looked at after
/// this long, and then after twice as long each time, until something changes. A machine takes seconds to minutes.
const FIRST_LOOK: Duration = Duration::from_millis(500);

/// Notices beyond this are of a zone that is being emptied, or of a server that never says that a deletion has ended; the
/// oldest IDs go first, and lists show what became of them.
const MOST_NOTICES: usize = 10_000;

/// How long a deletion is remembered at least: an answer from before it, by which the instance lives, counts this long.
const REMEMBERED: Duration = LATER;

/// What it takes to follow one shard, over as many connections as it takes.
#[derive(Clone)]
pub(super) struct Session {
    shard: Arc<str>,
    client: Client,
    pace: Pace,
    polls: Arc<AtomicU64>,
    errors: Arc<Errors>,
    clock: Clock,
}

impl Session {
    pub fn new(shard: &str, client: Client, shards: &Shards) -> Self {
        Self {
            shard: shard.into(),
            client,
            pace: shards.0.pace,
            polls: shards.0.polls.clone(),
            errors: shards.0.errors.clone(),
            clock: shards.0.clock.clone(),
        }
    }

    /// One connection, until it is lost.
    pub async fn run(self, feed: Feed<Said>) -> Result<(), Lost> {
        // What was said before the loss is the beginning: notices come again only while they last.
        let said = feed.last().map(|last| Said::clone(&last)).unwrap_or_default();
        let state = State {
            said,
            touched: BTreeSet::new(),
            is_listing: false,
            numbered_at: None,
            forgot_at: None,
            over: BTreeSet::new(),
            look: FIRST_LOOK,
        };
        let connection = Connection { session: self, feed, state: Mutex::new(state), news: Notify::new() };
        connection.list().await?;
        let seed = connection.seed();
        tokio::select! {
            lost = connection.poll() => Err(lost),
            never = connection.groups(seed) => match never {},
            never = connection.instances(seed + 1) => match never {},
            never = connection.failures(seed + 2) => match never {},
        }
    }
}

struct Connection {
    session: Session,
    feed: Feed<Said>,
    state: Mutex<State>,
    /// A stream said something, or was lost: a list shows the rest.
    news: Notify,
}

struct State {
    said: Said,
    /// Groups of which a stream spoke while a list was on its way: the list may be older.
    touched: BTreeSet<String>,
    is_listing: bool,
    /// When the last numbered list was read.
    numbered_at: Option<Instant>,
    /// When deletions were last forgotten.
    forgot_at: Option<Instant>,
    /// Instances that were announced as deleted before that.
    over: BTreeSet<String>,
    /// The wait before the next look at what is not settled.
    look: Duration,
}

impl State {
    /// Forgets deletions that it has seen once before: whom they concern has seen them too, and lists and answers that are
    /// newer omit the instance. Kept, they would grow with every instance that ever was.
    fn forget_over(&mut self) {
        let over = std::mem::take(&mut self.over);
        self.said.notices.retain(|id, _| !over.contains(id));
        let ended = self.said.notices.iter().filter(|(_, notice)| notice.progress == Progress::Deleted);
        self.over = ended.map(|(id, _)| id.clone()).collect();
    }
}

impl Connection {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Differs between shards and connections, so that clients of a shard that restarts do not return together.
    fn seed(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.session.shard, self.lock().said.poll).hash(&mut hasher);
        hasher.finish()
    }

    fn put(&self, change: impl FnOnce(&mut Said)) {
        let said = {
            let mut state = self.lock();
            change(&mut state.said);
            state.look = FIRST_LOOK;
            state.said.clone()
        };
        self.feed.put(said);
    }

    /// Lists, for as long as the shard answers.
    async fn poll(&self) -> Lost {
        loop {
            let wait = self.wait();
            tokio::select! {
                () = self.feed.rest(wait) => {}
                // Several events come together.
                () = self.news.notified() => tokio::time::sleep(FIRST_LOOK).await,
            }
            if let Err(lost) = self.list().await {
                return lost;
            }
        }
    }

    /// Until the next list.
    fn wait(&self) -> Duration {
        let mut state = self.lock();
        if state.said.groups.values().all(|group| is_settled(group)) {
            state.look = FIRST_LOOK;
            return self.session.pace.poll;
        }
        let look = state.look.min(self.session.pace.poll);
        state.look = look * 2;
        look
    }

    async fn list(&self) -> Result<(), Lost> {
        {
            let mut state = self.lock();
            state.touched.clear();
            state.is_listing = true;
        }
        let listed = self.session.client.list_groups().await?;
        let listed = listed.into_iter().map(|found| (found.key.clone(), Arc::new(convert::group(found))));
        let said = {
            let mut guard = self.lock();
            let state = &mut *guard;
            state.is_listing = false;
            let mut groups: BTreeMap<_, _> = listed.collect();
            for key in &state.touched {
                match state.said.groups.get(key) {
                    Some(newer) => drop(groups.insert(key.clone(), newer.clone())),
                    None => drop(groups.remove(key)),
                }
            }
            let now = self.session.clock.instant();
            let poll = self.session.pace.poll;
            let is_due =
                |last: Option<Instant>, pause| last.is_none_or(|at| now.saturating_duration_since(at) >= pause);
            if is_due(state.numbered_at, poll) {
                state.numbered_at = Some(now);
                state.said.poll = self.session.polls.fetch_add(1, Ordering::Relaxed) + 1;
            }
            if is_due(state.forgot_at, poll.max(REMEMBERED)) {
                state.forgot_at = Some(now);
                state.forget_over();
            }
            if state.said.groups != groups {
                state.look = FIRST_LOOK;
                state.said.groups = groups;
            }
            state.said.clone()
        };
        self.feed.put(said);
        Ok(())
    }

    async fn groups(&self, seed: u64) -> Infallible {
        let mut watch = self.session.client.watch_groups(seed);
        loop {
            match watch.next().await {
                Watched::Connected => {}
                Watched::Event(event) => self.group(event),
                Watched::Lost(error) => {
                    tracing::debug!(shard = %self.session.shard, %error, "the stream of groups was lost");
                    self.news.notify_one();
                }
            }
        }
    }

    fn group(&self, event: wire::GroupEvent) {
        let Some(change) = GroupChange::read(event) else { return };
        let (key, group) = match change {
            GroupChange::Upsert(found) => (found.key.clone(), Some(Arc::new(convert::group(found)))),
            GroupChange::Delete { key, .. } => (key, None),
        };
        let is_known = {
            let mut state = self.lock();
            if state.is_listing {
                state.touched.insert(key.clone());
            }
            state.said.groups.get(&key) == group.as_ref()
        };
        // The snapshot at the beginning of a stream repeats what was listed.
        if is_known {
            return;
        }
        self.put(|said| match group {
            Some(group) => drop(said.groups.insert(key, group)),
            None => drop(said.groups.remove(&key)),
        });
        self.news.notify_one();
    }

    async fn instances(&self, seed: u64) -> Infallible {
        let mut watch = self.session.client.watch_instances(seed);
        loop {
            match watch.next().await {
                Watched::Connected => {}
                Watched::Event(event) => {
                    let now = self.session.clock.instant();
                    let Some((id, notice)) = convert::notice(event, now) else { continue };
                    self.put(|said| {
                        said.notices.insert(id, notice);
                        while said.notices.len() > MOST_NOTICES {
                            said.notices.pop_first();
                        }
                    });
                    self.news.notify_one();
                }
                Watched::Lost(error) => {
                    tracing::debug!(shard = %self.session.shard, %error, "the stream of instances was lost");
                }
            }
        }
    }

    async fn failures(&self, seed: u64) -> Infallible {
        let mut watch = self.session.client.watch_errors(seed);
        loop {
            match watch.next().await {
                Watched::Connected => {}
                Watched::Event(wire::ErrorEvent { group, instance_id, error, .. }) => {
                    let shard = &*self.session.shard;
                    tracing::warn!(shard, group, instance = instance_id, error, "the shard reports a failure");
                    if !group.is_empty() {
                        let message = if instance_id.is_empty() { error } else { format!("{instance_id}: {error}") };
                        let number = self.session.errors.add(shard, &group, message);
                        self.put(|said| said.errors = number);
                    }
                }
                Watched::Lost(error) => {
                    tracing::debug!(shard = %self.session.shard, %error, "the stream of errors was lost");
                }
            }
        }
    }
}

/// Whether nothing is known to come: as many instances as asked for, and all of them run.
fn is_settled(group: &Group) -> bool {
    let count = match &group.members {
        Members::Listed(instances) => {
            if instances.iter().any(|instance| instance.status != MachineStatus::Running) {
                return false;
            }
            instances.len()
        }
        Members::Counted(ids) => ids.len(),
    };
    usize::try_from(group.size).unwrap_or_default() == count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shards::Notice;

    #[test]
    fn a_deletion_is_forgotten_when_it_has_been_seen_before() {
        let notice = |progress| Notice {
            group: "web".to_owned(),
            provider_id: String::new(),
            progress,
            reason: String::new(),
            announced_at: None,
            delete_at: None,
            deadline: None,
        };
        let mut state = State {
            said: Said::default(),
            touched: BTreeSet::new(),
            is_listing: false,
            numbered_at: None,
            forgot_at: None,
            over: BTreeSet::new(),
            look: FIRST_LOOK,
        };
        state.said.notices.insert("gone".to_owned(), notice(Progress::Deleted));
        state.said.notices.insert("going".to_owned(), notice(Progress::Deleting));
        state.forget_over();
        assert_eq!(state.said.notices.len(), 2, "it was not there before");
        state.forget_over();
        assert_eq!(state.said.notices.keys().collect::<Vec<_>>(), ["going"]);
    }
}
