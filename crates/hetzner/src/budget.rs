//! How many requests may be sent: learned from the answers, with a part kept for what cannot wait.
//!
//! The API fills a bucket per project at a constant rate and says with every answer how much is in it. We keep an
//! estimate that is never above the truth: it falls with every request we begin and rises at the API's rate. Until the
//! first answer one request at a time is sent, because a restarted process knows nothing of what it spent before.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::{HeaderMap, StatusCode, header::DATE};
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};

/// One in ten is kept: replacing a server takes some ten requests, and at 3600 an hour the reserve carries thirty-six
/// such replacements.
const RESERVE: f64 = 0.1;
/// The API counts whole requests on its own clock: by this much our estimate may be early.
const MARGIN: f64 = 1.0;
/// A bucket that is full later than this, in seconds, is a clock's fault: the API fills it within an hour.
const LATEST: f64 = 7200.0;
/// After a 429 that does not say how fast the bucket fills: what the API documents.
const PAUSE: Duration = Duration::from_secs(1);

/// Who may use the reserve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Urgency {
    /// Looks, and whatever comes again by itself.
    #[default]
    Routine,
    /// Changes that have begun, replacements, removals.
    Urgent,
}

#[derive(Debug, Default)]
pub(crate) struct Budget {
    known: Mutex<Known>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Known {
    /// Nothing before the first answer.
    bucket: Option<Bucket>,
    in_flight: u32,
    /// Counts the requests begun: one that neither met nor was met by another knows the truth.
    begun: u64,
    paused_until: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    limit: f64,
    left: f64,
    /// Per second.
    rate: f64,
    at: Instant,
}

impl Bucket {
    fn now(&mut self, now: Instant) -> f64 {
        self.left = (self.left + (now - self.at).as_secs_f64() * self.rate).min(self.limit);
        self.at = now;
        self.left
    }
}

/// A request that may be sent, and is on its way until this is dropped.
#[derive(Debug)]
pub(crate) struct Permit<'a> {
    budget: &'a Budget,
    number: u64,
    was_alone: bool,
}

/// What the headers of one answer say.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Said {
    limit: f64,
    remaining: f64,
    /// Seconds, by the API's own clock, so that ours may step.
    full_in: Option<f64>,
}

fn said(headers: &HeaderMap) -> Option<Said> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<u32>().ok().map(f64::from);
    let (limit, remaining) = (number("ratelimit-limit")?, number("ratelimit-remaining")?);
    let date = headers.get(DATE).and_then(|date| date.to_str().ok());
    let date = date.and_then(|date| jiff::fmt::rfc2822::parse(date).ok()).map(|date| date.timestamp().as_second());
    let reset = headers.get("ratelimit-reset").and_then(|reset| reset.to_str().ok()?.trim().parse::<i64>().ok());
    let full_in = date.zip(reset).and_then(|(date, reset)| u32::try_from(reset.checked_sub(date)?).ok()).map(f64::from);
    (limit >= 1.0).then_some(Said { limit, remaining, full_in })
}

impl Said {
    /// A bucket that is full in T seconds and lacks N fills at N/T; one that is full at the documented rate.
    fn rate(&self) -> f64 {
        let documented = self.limit / 3600.0;
        let missing = self.limit - self.remaining;
        match self.full_in {
            Some(seconds) if seconds >= 1.0 && missing >= 1.0 => (missing / seconds.min(LATEST)).min(documented),
            _ => documented,
        }
    }
}

impl Budget {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a request may be sent; `Err` says when it might, where that is later than `patience`.
    pub async fn permit(&self, urgency: Urgency, patience: Duration) -> Result<Permit<'_>, Duration> {
        let deadline = Instant::now() + patience;
        loop {
            let changed = self.changed.notified();
            let wait = match self.try_permit(urgency) {
                Ok(permit) => return Ok(permit),
                Err(wait) => wait,
            };
            let now = Instant::now();
            match wait {
                // A whole request of the API's takes a second to come back at the least.
                Some(wait) if now + wait > deadline => return Err(wait),
                Some(wait) => sleep(wait).await,
                None => tokio::select! {
                    () = changed => {}
                    () = sleep(deadline.saturating_duration_since(now)) => return Err(PAUSE),
                },
            }
        }
    }

    /// `Err(None)`: when an answer has arrived.
    fn try_permit(&self, urgency: Urgency) -> Result<Permit<'_>, Option<Duration>> {
        let now = Instant::now();
        let mut known = self.known();
        if let Some(until) = known.paused_until.filter(|until| *until > now) {
            return Err(Some(until - now));
        }
        let in_flight = known.in_flight;
        match &mut known.bucket {
            None if in_flight > 0 => return Err(None),
            None => {}
            Some(bucket) => {
                let reserve = if urgency == Urgency::Urgent { 0.0 } else { bucket.limit * RESERVE };
                let missing = 1.0 + MARGIN + reserve - bucket.now(now);
                if missing > 0.0 {
                    return Err(Some(Duration::from_secs_f64(missing / bucket.rate)));
                }
                bucket.left -= 1.0;
            }
        }
        known.in_flight += 1;
        known.begun += 1;
        Ok(Permit { budget: self, number: known.begun, was_alone: in_flight == 0 })
    }
}

impl Permit<'_> {
    /// Learns from an answer. The pause after a 429 is returned.
    pub fn answered(&self, status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
        let now = Instant::now();
        let mut known = self.budget.known();
        let others = known.in_flight.saturating_sub(1);
        let is_alone = self.was_alone && known.begun == self.number;
        let said = said(headers);
        if let Some(said) = said {
            let left = (said.remaining - f64::from(others)).max(0.0);
            let estimate = known.bucket.as_mut().filter(|_| !is_alone).map(|bucket| bucket.now(now));
            // Answers overtake each other: only one that was alone may raise the estimate.
            let left = estimate.map_or(left, |estimate| estimate.min(left));
            known.bucket = Some(Bucket { limit: said.limit, left, rate: said.rate(), at: now });
        }
        if status != StatusCode::TOO_MANY_REQUESTS {
            return None;
        }
        if let Some(bucket) = &mut known.bucket {
            bucket.left = 0.0;
        }
        // Until what one request needs has come back.
        let pause = known.bucket.map_or(PAUSE, |bucket| Duration::from_secs_f64((1.0 + MARGIN) / bucket.rate));
        known.paused_until = Some(now + pause);
        Some(pause)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.budget.known().in_flight -= 1;
        self.budget.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_PATIENCE: Duration = Duration::ZERO;

    fn headers(limit: u32, remaining: u32, full_in: i64) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("ratelimit-limit", limit.into());
        headers.insert("ratelimit-remaining", remaining.into());
        headers.insert("ratelimit-reset", (1_700_000_000 + full_in).into());
        headers.insert(DATE, "Tue, 14 Nov 2023 22:13:20 GMT".parse().unwrap());
        headers
    }

    async fn ask(budget: &Budget, urgency: Urgency, said: &HeaderMap) {
        budget.permit(urgency, NO_PATIENCE).await.unwrap().answered(StatusCode::OK, said);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_request_goes_alone() {
        let budget = Budget::default();
        let first = budget.permit(Urgency::Urgent, NO_PATIENCE).await.unwrap();
        assert!(budget.permit(Urgency::Urgent, NO_PATIENCE).await.is_err());
        first.answered(StatusCode::OK, &headers(3600, 3599, 1));
        drop(first);
        assert!(budget.permit(Urgency::Urgent, NO_PATIENCE).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn the_reserve_is_for_urgent_requests() {
        let budget = Budget::default();
        ask(&budget, Urgency::Routine, &headers(3600, 361, 3239)).await;
        let wait = budget.permit(Urgency::Routine, NO_PATIENCE).await.unwrap_err();
        assert_eq!(wait, Duration::from_secs(1));
        ask(&budget, Urgency::Urgent, &headers(3600, 360, 3240)).await;
        // With patience it waits, and the bucket fills meanwhile.
        let before = Instant::now();
        budget.permit(Urgency::Routine, Duration::from_mins(1)).await.unwrap();
        assert_eq!(before.elapsed(), Duration::from_secs(2));
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_overtake_each_other_never_raise_the_estimate() {
        let budget = Budget::default();
        ask(&budget, Urgency::Urgent, &headers(3600, 5, 3595)).await;
        let late = budget.permit(Urgency::Urgent, NO_PATIENCE).await.unwrap();
        let early = budget.permit(Urgency::Urgent, NO_PATIENCE).await.unwrap();
        early.answered(StatusCode::OK, &headers(3600, 3, 3597));
        drop(early);
        // Written before the other request was counted.
        late.answered(StatusCode::OK, &headers(3600, 4, 3596));
        drop(late);
        assert!(budget.permit(Urgency::Urgent, NO_PATIENCE).await.is_ok());
        assert!(budget.permit(Urgency::Urgent, NO_PATIENCE).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_429_nothing_is_sent_until_the_bucket_fills() {
        let budget = Budget::default();
        let permit = budget.permit(Urgency::Urgent, NO_PATIENCE).await.unwrap();
        let pause = permit.answered(StatusCode::TOO_MANY_REQUESTS, &headers(3600, 0, 3600));
        assert_eq!(pause, Some(Duration::from_secs(2)));
        drop(permit);
        assert!(budget.permit(Urgency::Urgent, Duration::from_secs(1)).await.is_err());
        assert!(budget.permit(Urgency::Urgent, Duration::from_secs(3)).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_bucket_that_is_said_to_be_full_in_years_is_asked_again_within_a_minute() {
        let budget = Budget::default();
        let permit = budget.permit(Urgency::Urgent, NO_PATIENCE).await.unwrap();
        permit.answered(StatusCode::TOO_MANY_REQUESTS, &headers(3600, 0, 2_000_000_000));
        drop(permit);
        assert!(budget.permit(Urgency::Urgent, Duration::from_mins(1)).await.is_ok());
    }

    #[test]
    fn headers_that_say_nothing_are_ignored() {
        assert_eq!(said(&HeaderMap::new()), None);
        for (name, value) in [("ratelimit-limit", "x"), ("ratelimit-limit", "0"), ("ratelimit-remaining", "-1")] {
            let mut headers = headers(3600, 1, 1);
            headers.insert(name, value.parse().unwrap());
            assert_eq!(said(&headers), None, "{name}: {value}");
        }
        let mut headers = headers(3600, 0, 7200);
        assert!((said(&headers).unwrap().rate() - 0.5).abs() < 1e-9, "a bucket that fills slower than documented");
        headers.insert(DATE, "yesterday".parse().unwrap());
        assert!((said(&headers).unwrap().rate() - 1.0).abs() < 1e-9);
    }
}
