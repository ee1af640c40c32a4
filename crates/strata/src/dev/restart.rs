//! How long a program that ended waits before it is started again.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

/// The first for a program that had become ready, however often it ends. One that ends before waits twice as long each
/// time, up to the second: it will not become ready by itself, and its log and the report are to stay readable.
const DELAYS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));
/// A program that ran this long had become ready, where its start does not wait for it. What fails at its start ends
/// within a second or two.
const SETTLED: Duration = Duration::from_secs(5);

/// What is known of earlier starts, by the program's name.
#[derive(Debug, Default)]
pub struct Restarts(BTreeMap<String, Restart>);

#[derive(Debug)]
struct Restart {
    began_at: Instant,
    had_become_ready: bool,
    delay: Duration,
}

impl Restarts {
    /// The delay before the next start of a program that ended now.
    pub fn delay(&self, program: &str, now: Instant) -> Duration {
        match self.0.get(program) {
            Some(last) if !last.had_become_ready && now.duration_since(last.began_at) < SETTLED => {
                (last.delay * 2).min(DELAYS.1)
            }
            _ => DELAYS.0,
        }
    }

    /// A program was started again after `delay`.
    pub fn began(&mut self, program: String, now: Instant, delay: Duration, had_become_ready: bool) {
        self.0.insert(program, Restart { began_at: now, had_become_ready, delay });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_program_that_does_not_become_ready_waits_longer_each_time() {
        let mut restarts = Restarts::default();
        let mut end = |program: &str, ran: Duration, had_become_ready: bool, now: &mut Instant| {
            let delay = restarts.delay(program, *now);
            *now += delay;
            restarts.began(program.to_owned(), *now, delay, had_become_ready);
            *now += ran;
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
}
