//! The vendor's rate limit: a bucket per project that fills at a constant rate.

use std::time::Duration;

use tokio::time::Instant;

/// Requests per hour that a project has unless Hetzner grants more.
pub const REQUESTS_PER_HOUR: u32 = 3600;

#[derive(Debug)]
pub(super) struct Bucket {
    limit: u32,
    left: f64,
    seen: Instant,
}

/// What the headers say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Allowance {
    pub limit: u32,
    pub remaining: u32,
    /// Until the bucket is full.
    pub full_in: Duration,
}

impl Bucket {
    pub fn new(limit: u32) -> Self {
        Self { limit, left: f64::from(limit), seen: Instant::now() }
    }

    fn rate(&self) -> f64 {
        f64::from(self.limit) / 3600.0
    }

    fn refill(&mut self) {
        let now = Instant::now();
        self.left = (self.left + (now - self.seen).as_secs_f64() * self.rate()).min(f64::from(self.limit));
        self.seen = now;
    }

    /// Takes one request; `false` where none is left.
    pub fn take(&mut self) -> bool {
        self.refill();
        let is_free = self.left >= 1.0;
        if is_free {
            self.left -= 1.0;
        }
        is_free
    }

    pub fn spend_all_but(&mut self, left: u32) {
        self.refill();
        self.left = self.left.min(f64::from(left));
    }

    pub fn allowance(&mut self) -> Allowance {
        self.refill();
        let missing = f64::from(self.limit) - self.left;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and a u32")]
        let remaining = self.left as u32;
        Allowance { limit: self.limit, remaining, full_in: Duration::from_secs_f64((missing / self.rate()).ceil()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_spent_bucket_fills_by_the_second() {
        let mut bucket = Bucket::new(3600);
        assert!(bucket.take());
        assert_eq!(bucket.allowance().remaining, 3599);
        bucket.spend_all_but(0);
        assert!(!bucket.take());
        assert_eq!(bucket.allowance().full_in, Duration::from_hours(1));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(bucket.take() && bucket.take() && !bucket.take());
    }
}
