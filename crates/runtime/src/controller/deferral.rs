//! A provisional status gives way to the work for other objects.

use std::time::Duration;

use tokio::time::Instant;

/// How long a provisional status may wait: most pods whose image is there have started by then, and a user who looks
/// that soon sees the pod itself.
const LONGEST: Duration = Duration::from_secs(1);

/// Of one object.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Deferral {
    since: Option<Instant>,
}

impl Deferral {
    /// How long the status of this round may still wait; `None`: it is to be stored now, and until it is, no round puts
    /// it off again.
    pub fn rest(&mut self, is_provisional: bool, has_backlog: bool, now: Instant) -> Option<Duration> {
        // What began to wait does so whether or not others are still at work.
        let waits = is_provisional && (self.since.is_some() || has_backlog);
        let waited = waits.then(|| now.saturating_duration_since(*self.since.get_or_insert(now)));
        waited.and_then(|waited| LONGEST.checked_sub(waited)).filter(|rest| !rest.is_zero())
    }

    /// The status is stored: the next one is another.
    pub fn stored(&mut self) {
        self.since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_provisional_status_waits_while_others_are_at_work_but_not_for_long() {
        let (mut deferral, now) = (Deferral::default(), Instant::now());
        let later = |millis| now + Duration::from_millis(millis);
        assert_eq!(deferral.rest(true, false, now), None, "nothing else is to be done");
        assert_eq!(deferral.rest(true, true, now), Some(LONGEST));
        assert_eq!(deferral.rest(true, false, later(400)), Some(Duration::from_millis(600)));
        assert_eq!(deferral.rest(true, true, later(1000)), None);
        assert_eq!(deferral.rest(true, true, later(1200)), None, "it could not be stored");
        deferral.stored();
        assert_eq!(deferral.rest(true, true, later(1300)), Some(LONGEST), "the next one is another");
        assert_eq!(deferral.rest(false, true, later(1400)), None, "what is more than provisional never waits");
    }
}
