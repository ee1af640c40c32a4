//! Durations as Go writes them: `5m`, `1h30m`, `0`.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

/// A span of time in the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Span(Duration);

const UNITS: [(&str, f64); 4] = [("ms", 0.001), ("h", 3600.0), ("m", 60.0), ("s", 1.0)];

/// A century: longer spans overflow the clock.
const LONGEST: f64 = 100.0 * 365.0 * 86_400.0;

impl Span {
    pub const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    pub const fn get(self) -> Duration {
        self.0
    }

    fn parse(text: &str) -> Option<Duration> {
        if text == "0" {
            return Some(Duration::ZERO);
        }
        let mut rest = text;
        let mut total = 0.0;
        while !rest.is_empty() {
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
            let number: f64 = rest[..end].parse().ok()?;
            let (unit, seconds) = UNITS.iter().find(|(unit, _)| rest[end..].starts_with(unit))?;
            total += number * seconds;
            rest = &rest[end + unit.len()..];
        }
        (!text.is_empty() && total <= LONGEST).then(|| Duration::from_secs_f64(total))
    }
}

impl TryFrom<String> for Span {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a duration; write for example 30s, 5m or 1h30m");
        Self::parse(&text).map(Self).ok_or_else(wrong)
    }
}

impl From<Duration> for Span {
    fn from(span: Duration) -> Self {
        Self(span)
    }
}

impl From<Span> for String {
    fn from(span: Span) -> Self {
        span.to_string()
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, millis) = (self.0.as_secs(), self.0.subsec_millis());
        let parts = [(seconds / 3600, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s"), (millis.into(), "ms")];
        if parts.iter().all(|(number, _)| *number == 0) {
            return f.write_str("0");
        }
        parts.iter().filter(|(number, _)| *number > 0).try_for_each(|(number, unit)| write!(f, "{number}{unit}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_go_writes_them() {
        for (text, millis) in
            [("0", 0), ("0s", 0), ("30s", 30_000), ("5m", 300_000), ("1h30m", 5_400_000), ("1.5s", 1500), ("20ms", 20)]
        {
            let span = Span::try_from(text.to_owned()).unwrap();
            assert_eq!(span.get(), Duration::from_millis(millis), "{text}");
            assert_eq!(Span::try_from(span.to_string()).unwrap(), span);
        }
        for text in ["", "5", "m", "-5m", "5 m", "5x", "1e9h", "99999999999h", "."] {
            assert!(Span::try_from(text.to_owned()).is_err(), "{text:?}");
        }
    }
}
