//! Waiting for actions: one poll for all that are awaited.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout},
};

use crate::{
    client::{Client, Inner},
    decode,
    error::{Cause, Error},
    resource::{Action, ActionStatus},
};

/// The vendor's own client asks for so many at once.
const IDS_PER_REQUEST: usize = 25;
/// Old actions are asked about no less often than this.
const LONGEST_INTERVAL: Duration = Duration::from_secs(5);

type Ending = oneshot::Sender<Result<Action, Error>>;

#[derive(Debug, Default)]
pub(crate) struct Waiter {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    by_id: HashMap<i64, (Instant, Vec<Ending>)>,
    is_polled: bool,
}

impl Waiter {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Client {
    /// Until all have ended well. The first that failed, vanished or is overdue is the error.
    pub async fn wait(&self, actions: Vec<Action>) -> Result<(), Error> {
        for action in actions {
            self.wait_for(action).await?;
        }
        Ok(())
    }

    async fn wait_for(&self, action: Action) -> Result<(), Error> {
        let limit = self.settings().action_limit;
        let (id, command) = (action.id, action.command.clone());
        let ended = if is_running(&action) {
            let (sender, ending) = oneshot::channel();
            self.register(id, sender);
            match timeout(limit, ending).await {
                Ok(Ok(ended)) => ended?,
                // The poll ended with its runtime.
                Ok(Err(_)) => return Err(failed(Cause::ActionVanished { id })),
                Err(_) => return Err(failed(Cause::ActionOverdue { id, command, limit })),
            }
        } else {
            action
        };
        match (ended.status, ended.error) {
            (ActionStatus::Error, error) => {
                let (code, message) = error.map_or_else(Default::default, |error| (error.code, error.message));
                Err(failed(Cause::ActionFailed { command, code, message }))
            }
            _ => Ok(()),
        }
    }

    fn register(&self, id: i64, ending: Ending) {
        let mut waiting = self.inner.waiter.waiting();
        waiting.by_id.entry(id).or_insert_with(|| (Instant::now(), Vec::new())).1.push(ending);
        if !std::mem::replace(&mut waiting.is_polled, true) {
            tokio::spawn(poll(Arc::downgrade(&self.inner)));
        }
    }
}

fn failed(cause: Cause) -> Error {
    Error::new("wait for action", cause)
}

/// An unknown status is one that a later API adds: the action has not ended in a way we know.
fn is_running(action: &Action) -> bool {
    matches!(action.status, ActionStatus::Running | ActionStatus::Unknown)
}

/// Runs while anything is awaited.
async fn poll(inner: Weak<Inner>) {
    loop {
        let Some(interval) = inner.upgrade().and_then(|inner| next_interval(&inner)) else { return };
        sleep(interval).await;
        let Some(inner) = inner.upgrade() else { return };
        ask(Client::on(inner)).await;
    }
}

/// A quarter of the youngest action's age; `None` when nothing is awaited any more.
fn next_interval(inner: &Inner) -> Option<Duration> {
    let mut waiting = inner.waiter.waiting();
    waiting.by_id.retain(|_, (_, endings)| {
        endings.retain(|ending| !ending.is_closed());
        !endings.is_empty()
    });
    let youngest = waiting.by_id.values().map(|(since, _)| since.elapsed()).min();
    waiting.is_polled = youngest.is_some();
    let first = inner.settings.poll_interval;
    Some((youngest? / 4).clamp(first, LONGEST_INTERVAL.max(first)))
}

async fn ask(client: Client) {
    let mut ids: Vec<i64> = client.inner.waiter.waiting().by_id.keys().copied().collect();
    ids.sort_unstable();
    for ids in ids.chunks(IDS_PER_REQUEST) {
        let query: Vec<String> = ids.iter().map(|id| format!("id={id}")).collect();
        let path = format!("/actions?{}&sort=status&sort=id&per_page=50", query.join("&"));
        let answer = client.read(&path, |body| decode::page::<Action>(body, "actions")).await;
        let mut waiting = client.inner.waiter.waiting();
        for id in ids {
            let ended = match &answer {
                Err(error) => Err(error.clone()),
                Ok(page) => match page.items.iter().find(|action| action.id == *id) {
                    Some(action) if is_running(action) => continue,
                    Some(action) => Ok(action.clone()),
                    None => Err(failed(Cause::ActionVanished { id: *id })),
                },
            };
            let endings = waiting.by_id.remove(id).map(|(_, endings)| endings).unwrap_or_default();
            // One that no longer waits is no loss.
            for ending in endings {
                let _ = ending.send(ended.clone());
            }
        }
    }
}
