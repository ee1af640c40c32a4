//! Waiting for what gives no event.

use std::time::Duration;

/// What comes at once is seen at once.
const FIRST: Duration = Duration::from_millis(20);
/// After many seconds a part of one counts little, and a look may be a list of objects or a process.
const LONGEST: Duration = Duration::from_millis(400);

/// The pauses between looks, each a quarter longer than the one before it, so that a wait lasts at most a quarter longer
/// than it has to, and a long one leaves the processor to what it waits for.
#[derive(Debug)]
pub struct Looks {
    pause: Duration,
}

impl Default for Looks {
    fn default() -> Self {
        Self { pause: FIRST }
    }
}

impl Looks {
    /// Returns when the next look is due.
    pub async fn next(&mut self) {
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 5 / 4).min(LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn looks_are_frequent_at_first_and_never_rare() {
        let (mut looks, start) = (Looks::default(), Instant::now());
        let mut times = Vec::new();
        for _ in 0..40 {
            looks.next().await;
            times.push(start.elapsed());
        }
        assert_eq!(times[0], FIRST);
        assert!(times.iter().filter(|time| **time < Duration::from_millis(200)).count() >= 5, "{times:?}");
        assert!(times.windows(2).all(|pair| pair[1] <= pair[0] + LONGEST), "{times:?}");
    }
}
