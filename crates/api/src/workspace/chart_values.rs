//! Values for a chart: any keys, as in a values.yaml.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use serde_json::{Map, Value, value::RawValue};

/// The most values that a chart is given at once, counting maps and lists too: ten times what the largest charts have.
/// As a tree in memory one takes up to 650 bytes, so a full object of the API server, with values of eight bytes, would
/// take a hundred megabytes.
pub const MOST_VALUES: usize = 20_000;

/// Values for a chart, kept as text: every HelmRelease and Workspace of the cluster is in memory, and a tree takes many
/// times what its text does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChartValues {
    /// A JSON object.
    Text(Box<str>),
    /// There are more than [`MOST_VALUES`], and nothing of them is kept.
    TooMany,
}

impl ChartValues {
    /// The tree, to be held no longer than it is needed; `None` if there are too many.
    pub fn read(&self) -> Option<Map<String, Value>> {
        match self {
            Self::Text(text) => Some(serde_json::from_str(text).expect("it was checked when it was taken")),
            Self::TooMany => None,
        }
    }

    /// About how many there are.
    pub fn count(&self) -> usize {
        match self {
            Self::Text(text) => count_values(text),
            Self::TooMany => MOST_VALUES + 1,
        }
    }
}

impl<'de> Deserialize<'de> for ChartValues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        if count_values(text.get()) > MOST_VALUES {
            return Ok(Self::TooMany);
        }
        // Also refuses what is nested too deeply to be read.
        serde_json::from_str::<Map<String, Value>>(text.get())
            .map_err(|_| D::Error::custom("values must be a map of names to values"))?;
        Ok(Self::Text(text.get().into()))
    }
}

impl Serialize for ChartValues {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => {
                serde_json::from_str::<&RawValue>(text).map_err(serde::ser::Error::custom)?.serialize(serializer)
            }
            Self::TooMany => serializer.serialize_unit(),
        }
    }
}

/// About how many values a JSON text has: each follows the beginning of a map or list, or a comma.
pub fn count_values(json: &str) -> usize {
    let (mut count, mut is_text, mut is_escaped) = (1, false, false);
    for byte in json.bytes() {
        match (byte, is_text) {
            _ if is_escaped => is_escaped = false,
            (b'\\', true) => is_escaped = true,
            (b'"', _) => is_text = !is_text,
            (b'{' | b'[' | b',', false) => count += 1,
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(values: &Value) -> Result<ChartValues, serde_json::Error> {
        let read = serde_json::from_str(&values.to_string());
        assert_eq!(
            read.as_ref().ok(),
            serde_json::from_value(values.clone()).ok().as_ref(),
            "from text and from a tree"
        );
        read
    }

    #[test]
    fn values_are_kept_as_they_are_and_written_back() {
        let values = json!({ "a": { "b": [1, 2.5, "}],{\"x\""] }, "none": null });
        let kept = read(&values).unwrap();
        assert_eq!(Value::Object(kept.read().unwrap()), values);
        assert_eq!(json!({ "values": kept }), json!({ "values": values }));
        assert_eq!(serde_json::to_string(&kept).unwrap(), values.to_string());
        for other in [json!([1]), json!("a"), json!(1)] {
            assert!(read(&other).is_err(), "{other}");
        }
    }

    #[test]
    fn too_many_values_are_not_even_read() {
        let list = |length: usize| json!({ "list": vec![json!({}); length] });
        assert!(matches!(read(&list(MOST_VALUES / 2 - 2)), Ok(ChartValues::Text(_))));
        assert_eq!(read(&list(MOST_VALUES)).unwrap(), ChartValues::TooMany);
        let text = json!({ "text": "{[,".repeat(MOST_VALUES) });
        assert!(matches!(read(&text), Ok(ChartValues::Text(_))), "a long text is one value");
    }
}
