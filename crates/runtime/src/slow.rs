//! Rounds that take too long. Readiness does not depend on them: another replica would fare no better. The log and
//! `/readyz` name them, because the slot of such a round is lost to all other objects until it ends.

use std::{sync::Arc, time::Duration};

use process::Health;

use crate::queue::Queue;

/// A round makes a handful of requests, each bounded by the request timeout, and stops at the first without an answer.
/// One that takes as long as three of them hangs somewhere else, or goes on though it should have stopped.
const REQUEST_TIMEOUTS: u32 = 3;
/// `/readyz` names this many rounds of a controller; a hanging peer may have stopped all of them.
const NAMED: usize = 3;
/// Short beside the limit, as it usually is; each look wakes a process that is at rest otherwise.
const LOOK: Duration = Duration::from_secs(5);

/// The queues of all controllers.
#[derive(Debug)]
pub(crate) struct SlowRounds {
    limit: Duration,
    queues: Vec<(&'static str, Arc<Queue>)>,
}

impl SlowRounds {
    pub(crate) fn new(request_timeout: Duration) -> Self {
        Self { limit: request_timeout * REQUEST_TIMEOUTS, queues: Vec::new() }
    }

    /// Looks at one more controller, and lets readiness name its slow rounds.
    pub(crate) fn of(&mut self, controller: &'static str, queue: &Arc<Queue>, health: &Health) {
        self.queues.push((controller, queue.clone()));
        let (queue, limit) = (queue.clone(), self.limit);
        health.inform(format!("rounds {controller}"), move || note(&queue, limit));
    }

    /// Logs each slow round once.
    pub(crate) async fn watch(self) {
        loop {
            tokio::time::sleep(LOOK).await;
            for (controller, queue) in &self.queues {
                for (key, running) in queue.newly_slow(self.limit) {
                    tracing::warn!(
                        controller,
                        namespace = %key.namespace,
                        name = %key.name,
                        running = ?running,
                        limit = ?self.limit,
                        "a round does not end; it holds its object and its slot"
                    );
                }
            }
        }
    }
}

fn note(queue: &Queue, limit: Duration) -> Option<String> {
    let slow = queue.slow(limit);
    let named: Vec<String> =
        slow.iter().take(NAMED).map(|(key, running)| format!("{key} runs for {}s", running.as_secs())).collect();
    let more = if slow.len() > NAMED { format!(" and {} more", slow.len() - NAMED) } else { String::new() };
    (!slow.is_empty()).then(|| format!("{}{more}", named.join(", ")))
}

#[cfg(test)]
mod tests {
    use process::Clock;

    use super::*;
    use crate::{key::Key, queue::Next};

    #[tokio::test(start_paused = true)]
    async fn a_round_that_does_not_end_is_named_once_in_the_log_and_as_long_as_it_lasts_in_readiness() {
        let queue = Arc::new(Queue::new(Clock::default(), Duration::from_mins(2)));
        let health = Health::default();
        let mut slow = SlowRounds::new(Duration::from_secs(10));
        slow.of("performer", &queue, &health);
        for name in ["a", "b", "c", "d"] {
            queue.changed(&Key::new("n", name));
            queue.next().await;
        }
        tokio::time::advance(slow.limit).await;
        assert!(health.notes().is_empty() && queue.newly_slow(slow.limit).is_empty());
        tokio::time::advance(Duration::from_secs(1)).await;
        let note = &health.notes()["rounds performer"];
        assert!(note.contains("n/a runs for 31s") && note.ends_with(" and 1 more"), "{note}");
        assert!(health.readiness().values().all(Result::is_ok));
        assert_eq!((queue.newly_slow(slow.limit).len(), queue.newly_slow(slow.limit).len()), (4, 0));
        for name in ["a", "b", "c", "d"] {
            queue.done(&Key::new("n", name), Next::Settled, false);
        }
        assert!(health.notes().is_empty());
        queue.changed(&Key::new("n", "a"));
        queue.next().await;
        tokio::time::advance(slow.limit * 2).await;
        assert_eq!(queue.newly_slow(slow.limit).len(), 1, "the next round is another one");
    }
}
