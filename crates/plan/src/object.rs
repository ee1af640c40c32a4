//! Objects as data: whether what is there has all that is desired, and a name for what is desired.

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// Fields that hold quantities, and maps whose values are quantities.
const QUANTITIES: &[&str] = &[
    "capacity",
    "cpu",
    "default",
    "defaultRequest",
    "divisor",
    "hard",
    "limits",
    "max",
    "memory",
    "min",
    "requests",
    "sizeLimit",
    "storage",
];

/// Where `live` lacks something of `desired`, if anywhere: the path of the first such place, without what stands there.
///
/// What `live` has beyond it, others or the server's defaults have put there. A list has an order and a length, so its
/// elements are compared one by one. Nothing, null, an empty map and an empty list are the same; an empty list against
/// one with elements is not.
pub fn differs(desired: &Value, live: &Value) -> Option<String> {
    let mut path = Vec::new();
    has_all(desired, live, &mut path).err().map(|Differs| path.concat())
}

struct Differs;

fn has_all(desired: &Value, live: &Value, path: &mut Vec<String>) -> Result<(), Differs> {
    match (desired, live) {
        (Value::Null, _) => Ok(()),
        (Value::Object(desired), Value::Object(live)) => has_fields(desired, live, path),
        (Value::Object(desired), Value::Null) => has_fields(desired, &Map::new(), path),
        _ if is_empty(desired) && is_empty(live) => Ok(()),
        (Value::Array(desired), Value::Array(live)) if desired.len() == live.len() => {
            for (index, (desired, live)) in desired.iter().zip(live).enumerate() {
                path.push(format!("[{index}]"));
                has_all(desired, live, path)?;
                path.pop();
            }
            Ok(())
        }
        _ if desired == live => Ok(()),
        // Two whole numbers were compared exactly.
        (Value::Number(one), Value::Number(other))
            if one.is_f64() != other.is_f64() && one.as_f64() == other.as_f64() =>
        {
            Ok(())
        }
        _ if is_same_quantity(desired, live, path) => Ok(()),
        _ => Err(Differs),
    }
}

fn has_fields(desired: &Map<String, Value>, live: &Map<String, Value>, path: &mut Vec<String>) -> Result<(), Differs> {
    for (name, desired) in desired {
        path.push(match (path.is_empty(), name.contains(['.', '/'])) {
            (_, true) => format!("[{name:?}]"),
            (true, false) => name.clone(),
            (false, false) => format!(".{name}"),
        });
        has_all(desired, live.get(name).unwrap_or(&Value::Null), path)?;
        path.pop();
    }
    Ok(())
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(elements) => elements.is_empty(),
        _ => false,
    }
}

/// Text that happens to read like a quantity (an environment value, a label) is compared as text.
fn is_same_quantity(desired: &Value, live: &Value, path: &[String]) -> bool {
    let holds_quantity = |part: &String| QUANTITIES.contains(&part.trim_start_matches('.'));
    let is_place = path.iter().rev().take(2).any(holds_quantity);
    is_place && quantity(desired).is_some_and(|desired| quantity(live) == Some(desired))
}

/// A Kubernetes quantity in its one exact form: sign, digits without trailing zeros, power of ten.
fn quantity(value: &Value) -> Option<(bool, u128, i32)> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    let (is_negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(&text)),
    };
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let (factor, power) = scale(suffix)?;
    let mut digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    digits = digits.checked_mul(factor)?;
    let mut power = power - i32::try_from(fraction.len()).ok()?;
    if digits == 0 {
        return Some((false, 0, 0));
    }
    while digits.is_multiple_of(10) {
        digits /= 10;
        power += 1;
    }
    Some((is_negative, digits, power))
}

/// What a suffix multiplies by: a factor and a power of ten.
fn scale(suffix: &str) -> Option<(u128, i32)> {
    const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    const DECIMAL: [(&str, i32); 10] =
        [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
    if let Some(index) = BINARY.iter().position(|known| *known == suffix) {
        return Some((1 << (10 * (index + 1)), 0));
    }
    if let Some((_, power)) = DECIMAL.iter().find(|(known, _)| *known == suffix) {
        return Some((1, *power));
    }
    // Kubernetes' own limit is far lower; this one keeps sums of powers within their type.
    let power: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    (-1000..=1000).contains(&power).then_some((1, power))
}

/// An amount of memory as Kubernetes writes it: `512Mi`, `1G`, `100000000`.
pub fn bytes(text: &str) -> Option<u64> {
    const FACTORS: [(&str, f64); 7] =
        [("Ki", 1024.0), ("Mi", 1_048_576.0), ("Gi", 1_073_741_824.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("", 1.0)];
    let (number, factor) = FACTORS.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
    let is_plain = number.starts_with(|c: char| c.is_ascii_digit()) && !number.contains(['e', 'E']);
    let amount = number.parse::<f64>().ok().filter(|_| is_plain)? * factor;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive, and `as` saturates")]
    (amount >= 1.0).then_some(amount as u64)
}

/// The JSON merge patch that turns one object into the other; what vanished becomes null.
pub fn merge_patch(before: &Value, after: &Value) -> Value {
    let (Value::Object(before), Value::Object(after)) = (before, after) else { return after.clone() };
    let gone = before.keys().filter(|name| !after.contains_key(*name)).map(|name| (name.clone(), Value::Null));
    let changed = after.iter().filter(|(name, value)| before.get(*name) != Some(value)).map(|(name, value)| {
        (name.clone(), before.get(name).map_or_else(|| value.clone(), |before| merge_patch(before, value)))
    });
    gone.chain(changed).collect()
}

/// A short name for a value: the same for equal values, whatever the order of their fields.
pub fn digest(value: &Value) -> String {
    let mut hasher = Sha256::new();
    feed(value, &mut hasher);
    // 64 bits: versions of one object must differ, nothing more.
    let digest = hasher.finalize();
    let short = digest.first_chunk().expect("sha256 gives 32 bytes");
    format!("{:016x}", u64::from_be_bytes(*short))
}

/// Canonical JSON. Not by serde: the order of its maps depends on features that any dependency may switch on.
fn feed(value: &Value, hasher: &mut Sha256) {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_unstable_by_key(|(name, _)| *name);
            hasher.update("{");
            for (name, value) in fields {
                hasher.update(Value::from(name.as_str()).to_string());
                hasher.update(":");
                feed(value, hasher);
                hasher.update(",");
            }
            hasher.update("}");
        }
        Value::Array(elements) => {
            hasher.update("[");
            for element in elements {
                feed(element, hasher);
                hasher.update(",");
            }
            hasher.update("]");
        }
        scalar => hasher.update(scalar.to_string()),
    }
}
