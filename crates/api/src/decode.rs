//! Lenient reading: whatever the API server stored under either published schema decodes.

use std::fmt;

use jiff::Timestamp;
use serde::de::{DeserializeOwned, Error, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// Absent and `null` both mean the default.
pub(crate) fn or_default<'de, D, T>(d: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(d)?.unwrap_or_default())
}

/// An integer of any size or spelling, held to the range of `i32`: a schema's `format` is advice,
/// and a number out of range must be reported by validation, not lost by failing to decode.
pub(crate) fn saturating<'de, D: Deserializer<'de>>(d: D) -> Result<Option<i32>, D::Error> {
    Ok(Option::<Saturated>::deserialize(d)?.map(|s| s.0))
}

/// A field, or its default if it is written in a way we cannot read: that must not cost the fields beside it.
pub(crate) fn readable<'de, D, T>(d: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned + Default,
{
    Ok(serde_json::from_value(Value::deserialize(d)?).unwrap_or_default())
}

/// A time, or nothing if it is written in a way we cannot read.
pub(crate) fn readable_time<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Timestamp>, D::Error> {
    let text: Option<String> = readable(d)?;
    Ok(text.and_then(|t| t.parse().ok()))
}

struct Saturated(i32);

impl<'de> Deserialize<'de> for Saturated {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(SaturatedVisitor)
    }
}

struct SaturatedVisitor;

impl Visitor<'_> for SaturatedVisitor {
    type Value = Saturated;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an integer")
    }

    fn visit_i64<E: Error>(self, v: i64) -> Result<Saturated, E> {
        let held = v.clamp(i64::from(i32::MIN), i64::from(i32::MAX));
        Ok(Saturated(i32::try_from(held).expect("clamped to the range of i32")))
    }

    fn visit_u64<E: Error>(self, v: u64) -> Result<Saturated, E> {
        Ok(Saturated(i32::try_from(v).unwrap_or(i32::MAX)))
    }

    #[allow(clippy::cast_possible_truncation, reason = "`as` on floats saturates, which is what we want")]
    fn visit_f64<E: Error>(self, v: f64) -> Result<Saturated, E> {
        Ok(Saturated(v as i32))
    }
}

/// The schema of a [`jiff::Timestamp`].
pub(crate) fn date_time(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "string", "format": "date-time"})
}
