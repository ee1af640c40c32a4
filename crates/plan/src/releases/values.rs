//! Values as a whole: their digest, and whether Helm would read them as they are written.

use api::workspace::{ChartValues, HelmReleaseSpec, MOST_VALUES, ReadValues};
use serde_json::{Map, Value, json};

use super::Values;
use crate::object::digest;

/// Helm reads every number as a 64 bit float: whole numbers beyond this are not kept exactly.
const EXACT: u64 = 1 << 53;
/// What all sources together give: the inline values win, so they come last.
pub fn values(spec: &HelmReleaseSpec, sources: Vec<ReadValues>) -> Values {
    let inline = match spec.values.as_ref().map(ChartValues::read) {
        None => Map::new(),
        Some(Some(values)) => values,
        Some(None) => return Values::Invalid(too_many_values("spec.values")),
    };
    let inline = Value::Object(inline);
    if let Err(why) = check_numbers(&inline, "spec.values") {
        return Values::Invalid(why);
    }
    let digests: Vec<_> = sources.iter().map(|source| source.digest.as_str()).collect();
    Values::Read { digest: digest(&Value::Array(vec![json!(digests), inline])), sources }
}

/// Why values at this place are refused, where there are too many.
pub fn too_many_values(place: &str) -> String {
    format!(
        "{place}: more than {MOST_VALUES} values; values are configuration, not data: remove some, or write them as one text"
    )
}

/// Finds numbers that Helm would not keep as they are written.
pub fn check_numbers(value: &Value, place: &str) -> Result<(), String> {
    match value {
        Value::Object(fields) => check_fields(fields, place),
        Value::Array(elements) => elements
            .iter()
            .enumerate()
            .try_for_each(|(index, element)| check_numbers(element, &format!("{place}[{index}]"))),
        Value::Number(number) => {
            let is_exact = number.as_i64().is_some_and(|whole| whole.unsigned_abs() <= EXACT)
                || number.as_u64().is_some_and(|whole| whole <= EXACT)
                || number.as_f64().is_some_and(|float| number.is_f64() && !is_large_whole(float));
            if is_exact {
                Ok(())
            } else {
                Err(format!("{place}: a whole number beyond ±2^53, which Helm would change; quote it: \"…\""))
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => Ok(()),
    }
}

/// A number so large that it became a float on the way here.
#[allow(clippy::cast_precision_loss, reason = "2^53 is exact")]
fn is_large_whole(float: f64) -> bool {
    float.fract() == 0.0 && float.abs() > EXACT as f64
}

fn check_fields(fields: &Map<String, Value>, place: &str) -> Result<(), String> {
    fields.iter().try_for_each(|(name, value)| {
        let name = if name.contains('.') { format!("[{name:?}]") } else { format!(".{name}") };
        check_numbers(value, &format!("{place}{name}"))
    })
}
