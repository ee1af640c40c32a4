//! Durations of many calls, summed up.

use serde::Serialize;

/// Milliseconds.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Times {
    pub count: usize,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub slowest_ms: f64,
}

impl Times {
    pub fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        Self {
            count: times.len(),
            p50_ms: percentile(&times, 50),
            p99_ms: percentile(&times, 99),
            slowest_ms: percentile(&times, 100),
        }
    }
}

/// The smallest value that so many per cent of the sorted values do not exceed.
pub fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        let check = |values: &[f64], percent, expected: f64| {
            assert_eq!(percentile(values, percent).total_cmp(&expected), Ordering::Equal, "{percent} %");
        };
        check(&values, 50, 100.0);
        check(&values, 99, 198.0);
        check(&values, 100, 200.0);
        check(&[7.0], 99, 7.0);
    }
}
