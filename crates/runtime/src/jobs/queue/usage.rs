//! What each namespace used lately.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::Instant;

/// After this long, time that was used counts half: what a namespace took an hour ago says little about the present.
const HALF_LIFE: Duration = Duration::from_mins(10);

/// How long the jobs of each namespace ran lately. What runs now counts by what it draws.
#[derive(Debug, Default)]
pub(super) struct Usage(HashMap<Arc<str>, (Duration, Instant)>);

impl Usage {
    pub fn of(&self, namespace: &str, now: Instant) -> Duration {
        self.0.get(namespace).map_or(Duration::ZERO, |used| Self::decayed(*used, now))
    }

    /// Also forgets what has become less than a second: no ordinary job takes less.
    pub fn add(&mut self, namespace: &Arc<str>, used: Duration, now: Instant) {
        let used = used + self.of(namespace, now);
        self.0.insert(namespace.clone(), (used, now));
        self.0.retain(|_, used| Self::decayed(*used, now) >= Duration::from_secs(1));
    }

    fn decayed((used, at): (Duration, Instant), now: Instant) -> Duration {
        used.mul_f64(0.5f64.powf(now.saturating_duration_since(at).div_duration_f64(HALF_LIFE)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_used_lately_is_remembered() {
        let (mut usage, begin) = (Usage::default(), Instant::now());
        usage.add(&"busy".into(), Duration::from_mins(5), begin);
        usage.add(&"idle".into(), Duration::ZERO, begin);
        assert_eq!(usage.of("busy", begin + HALF_LIFE), Duration::from_secs(150));
        assert_eq!(usage.0.len(), 1, "who used nothing is not remembered");
        usage.add(&"other".into(), Duration::from_secs(1), begin + HALF_LIFE * 20);
        assert_eq!(usage.0.len(), 1, "what is long ago is forgotten");
    }
}
