//! Durations as Kubernetes users write them: `90s`, `5m`, `1h30m`.

use std::{fmt, str::FromStr, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// Longest units first, so that `ms` is not taken for `m`.
const UNITS: [(&str, f64); 4] = [("ms", 0.001), ("h", 3600.0), ("m", 60.0), ("s", 1.0)];

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || format!("{text:?} is not a duration; write it like 90s, 5m or 1h30m");
        let (mut rest, mut seconds) = (text, 0.0);
        if rest.is_empty() {
            return Err(refused());
        }
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(refused)?;
            let number: f64 = rest[..digits].parse().map_err(|_| refused())?;
            let (unit, factor) = UNITS.iter().find(|(unit, _)| rest[digits..].starts_with(unit)).ok_or_else(refused)?;
            seconds += number * factor;
            rest = &rest[digits + unit.len()..];
        }
        Duration::try_from_secs_f64(seconds).map(Self).map_err(|_| refused())
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, millis) = (self.0.as_secs(), self.0.subsec_millis());
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        for (number, unit) in [(hours, "h"), (minutes, "m"), (seconds, "s"), (u64::from(millis), "ms")] {
            if number > 0 {
                write!(f, "{number}{unit}")?;
            }
        }
        if self.0.as_millis() == 0 { f.write_str("0s") } else { Ok(()) }
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(D::Error::custom)
    }
}

impl JsonSchema for Span {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        super::form::Duration::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written_as_people_do() {
        for (text, millis, canonical) in
            [("5m", 300_000, "5m"), ("1h30m", 5_400_000, "1h30m"), ("1.5s", 1500, "1s500ms"), ("0s", 0, "0s")]
        {
            let span: Span = text.parse().unwrap();
            assert_eq!((span.0.as_millis(), span.to_string().as_str()), (millis, canonical));
        }
        for text in ["", "5", "m", "5 m", "-1s", "1d", "9999999999999999999999h"] {
            assert!(text.parse::<Span>().unwrap_err().contains("90s"), "{text}");
        }
    }
}
