//! How long a program that ended waits before it is started again.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

/// The first for a program that had become ready, however often it ends. One that ends before waits twice as long each
/// time, up to the second: it will not become ready by itself, and its log and the report are to stay readable.
const DELAYS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));
/// A program that ran this long had become ready, where its start does not wait for it. What fails at its start ends
/// within a second or two.
const SETTLED: Duration = Duration::from_secs(5);

/// The programs that have ended at least once, by name.
#[derive(Debug, Default)]
pub struct Restarts(BTreeMap<String, Restart>);

#[derive(Debug)]
struct Restart {
    state: State,
    /// Before its last start, or its next.
    delay: Duration,
}

#[derive(Debug)]
enum State {
    /// Ended, and due then.
    Due(Instant),
    Starting,
    Running {
        since: Instant,
        had_become_ready: bool,
    },
}

impl Restarts {
    /// A program has ended; it is due after a while.
    pub fn ended(&mut self, program: &str, now: Instant) {
        let delay = match self.0.get(program) {
            Some(Restart { state: State::Running { since, had_become_ready: false }, delay })
                if now.duration_since(*since) < SETTLED =>
            {
                (*delay * 2).min(DELAYS.1)
            }
            _ => DELAYS.0,
        };
        self.0.insert(program.to_owned(), Restart { state: State::Due(now + delay), delay });
    }

    /// Whether the program has ended and was not started again yet.
    pub fn is_down(&self, program: &str) -> bool {
        self.0.get(program).is_some_and(|restart| !matches!(restart.state, State::Running { .. }))
    }

    /// The program that is due next, and when.
    pub fn next(&self) -> Option<(&str, Instant)> {
        let due = self.0.iter().filter_map(|(program, restart)| match restart.state {
            State::Due(at) => Some((program.as_str(), at)),
            State::Starting | State::Running { .. } => None,
        });
        due.min_by_key(|(_, at)| *at)
    }

    /// The program is being started, which may take a while.
    pub fn begins(&mut self, program: &str) {
        if let Some(restart) = self.0.get_mut(program) {
            restart.state = State::Starting;
        }
    }

    /// It was started, or that was tried.
    pub fn began(&mut self, program: &str, now: Instant, had_become_ready: bool) {
        if let Some(restart) = self.0.get_mut(program) {
            restart.state = State::Running { since: now, had_become_ready };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_program_that_does_not_become_ready_waits_longer_each_time() {
        let mut restarts = Restarts::default();
        let mut end = |program: &str, ran: Duration, had_become_ready: bool, now: &mut Instant| {
            restarts.ended(program, *now);
            assert!(restarts.is_down(program));
            let (next, at) = restarts.next().unwrap();
            assert_eq!(next, program);
            let delay = at - *now;
            restarts.begins(program);
            assert!(restarts.is_down(program) && restarts.next().is_none());
            restarts.began(program, at, had_become_ready);
            assert!(!restarts.is_down(program));
            *now = at + ran;
            delay.as_secs()
        };
        let (mut now, quick) = (Instant::now(), Duration::from_millis(10));
        let delays = |end: &mut dyn FnMut() -> u64| -> Vec<u64> { (0..8).map(|_| end()).collect() };
        let broken = delays(&mut || end("broken", quick, false, &mut now));
        assert_eq!(broken, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(delays(&mut || end("killed", quick, true, &mut now)), [1; 8]);
        assert_eq!(delays(&mut || end("settled", SETTLED, false, &mut now)), [1; 8]);
        // One program's failures delay no other, and it begins anew once it has run.
        assert_eq!(end("broken", SETTLED, false, &mut now), 1);
        assert_eq!(end("broken", quick, false, &mut now), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_that_waits_or_is_being_started_delays_no_other() {
        let (mut restarts, now) = (Restarts::default(), Instant::now());
        for _ in 0..3 {
            restarts.ended("broken", now);
            restarts.began("broken", now, false);
        }
        restarts.ended("broken", now);
        restarts.ended("operator", now);
        restarts.begins("operator");
        restarts.ended("etcd", now);
        assert_eq!(restarts.next(), Some(("etcd", now + DELAYS.0)));
        restarts.began("etcd", now, false);
        assert_eq!(restarts.next(), Some(("broken", now + DELAYS.0 * 8)));
    }
}
