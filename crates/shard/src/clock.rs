//! The process' clock, and ids by it.

pub use process::Clock;

/// A UUID of version 7: ids sort by creation.
pub fn uuid(clock: &Clock) -> u128 {
    let mut random = [0; 10];
    aws_lc_rs::rand::fill(&mut random).expect("the system has randomness");
    let millis = u64::try_from(clock.now().as_millisecond()).unwrap_or(0);
    uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid().as_u128()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ids_are_of_version_seven_and_sort_by_time() {
        let clock = Clock::stepped("2026-01-01T00:00:00Z".parse().unwrap());
        let first = uuid(&clock);
        assert_eq!((first >> 76) & 0xf, 7);
        assert_eq!(i64::try_from(first >> 80).unwrap(), clock.now().as_millisecond());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(uuid(&clock) > first);
    }
}
