//! Objects as the API server sends them, read no further than needed.

use std::{borrow::Cow, collections::BTreeMap};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, DeserializeSeed, Error as _, IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::key::Key;

/// One version of an object: which it is, and its text.
pub(crate) struct Raw<'a> {
    pub key: Key,
    pub version: u64,
    labels: Option<&'a RawValue>,
    text: &'a str,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    namespace: Cow<'a, str>,
    #[serde(borrow, default)]
    resource_version: Cow<'a, str>,
    #[serde(borrow)]
    labels: Option<&'a RawValue>,
}

impl<'a> Raw<'a> {
    /// Reads the metadata and leaves the rest alone. `None` for what has no name or no version that is a number:
    /// Kubernetes guarantees that resource versions of one kind compare as numbers.
    pub(crate) fn read(text: &'a str) -> Option<Self> {
        let mut head = None;
        // An error after the metadata says only that reading stopped there; what follows is judged when it is decoded.
        let _ = Metadata(&mut head).deserialize(&mut serde_json::Deserializer::from_str(text));
        let Head { name, namespace, resource_version, labels } = head?;
        let version = resource_version.parse().ok()?;
        (!name.is_empty()).then(|| Self { key: Key::new(&*namespace, &*name), version, labels, text })
    }

    pub(crate) fn labels(&self) -> BTreeMap<String, String> {
        self.labels.and_then(|labels| serde_json::from_str(labels.get()).ok()).unwrap_or_default()
    }

    pub(crate) fn decode<W: DeserializeOwned>(&self) -> serde_json::Result<W> {
        serde_json::from_str(self.text)
    }
}

/// The name of a field, without a copy.
#[derive(Deserialize)]
struct Field<'a>(#[serde(borrow)] Cow<'a, str>);

/// Takes the field `metadata` of an object. The server puts it before spec and status, so most of an object is not
/// even looked at.
struct Metadata<'o, 'a>(&'o mut Option<Head<'a>>);

impl<'a> DeserializeSeed<'a> for Metadata<'_, 'a> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'a> Visitor<'a> for Metadata<'_, 'a> {
    type Value = ();

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut fields: A) -> Result<(), A::Error> {
        while let Some(Field(field)) = fields.next_key()? {
            if field == "metadata" {
                *self.0 = Some(fields.next_value()?);
                return Err(A::Error::custom("the rest is not needed"));
            }
            fields.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }
}

/// One line of a watch.
#[derive(Deserialize)]
pub(crate) struct Line<'a> {
    #[serde(rename = "type", borrow)]
    pub kind: Cow<'a, str>,
    #[serde(borrow)]
    pub object: &'a RawValue,
}

/// A sign of life with the version that the watch has reached.
#[derive(Deserialize)]
pub(crate) struct Bookmark {
    metadata: BookmarkMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BookmarkMetadata {
    resource_version: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl Bookmark {
    pub(crate) fn version(&self) -> &str {
        &self.metadata.resource_version
    }

    /// Whether it ends the list that a watch began with.
    pub(crate) fn ends_list(&self) -> bool {
        self.metadata.annotations.get("k8s.io/initial-events-end").is_some_and(|value| value == "true")
    }
}

/// One page of a list.
#[derive(Deserialize)]
pub(crate) struct Page<'a> {
    #[serde(default)]
    pub metadata: PageMetadata,
    #[serde(borrow)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PageMetadata {
    #[serde(default)]
    pub resource_version: String,
    #[serde(default, rename = "continue")]
    pub next: String,
}

impl<'a> Page<'a> {
    pub(crate) fn objects(&self) -> impl Iterator<Item = Raw<'a>> {
        self.items.iter().flatten().filter_map(|item| Raw::read(item.get()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn metadata_is_read_wherever_it_stands_and_the_rest_is_not() {
        let first = r#"{"kind":"Pod","metadata":{"name":"a","namespace":"n","resourceVersion":"12","labels":{"x":"y"}},"spec":oops"#;
        let last = r#"{"spec":{"a":[1,{"b":"}"}]},"metadata":{"managedFields":[{"f":1}],"name":"a","namespace":"n","resourceVersion":"12"}}"#;
        for (text, labels) in [(first, json!({"x": "y"})), (last, json!({}))] {
            let raw = Raw::read(text).unwrap();
            assert_eq!((raw.key.clone(), raw.version), (Key::new("n", "a"), 12));
            assert_eq!(json!(raw.labels()), labels);
        }
        assert!(Raw::read(first).unwrap().decode::<Value>().is_err());
        for text in
            ["", "[]", "{}", r#"{"metadata":{"name":"a"}}"#, r#"{"metadata":{"name":"a","resourceVersion":"x"}}"#]
        {
            assert!(Raw::read(text).is_none(), "{text}");
        }
    }

    #[test]
    fn names_with_escapes_are_read_too() {
        let raw = Raw::read(r#"{"metadata":{"name":"\u0061","resourceVersion":"1"}}"#).unwrap();
        assert_eq!(raw.key, Key::new("", "a"));
    }

    #[test]
    fn a_page_may_be_empty_and_lack_its_items() {
        let page: Page<'_> = serde_json::from_str(r#"{"metadata":{"resourceVersion":"5"},"items":null}"#).unwrap();
        assert_eq!((page.objects().count(), page.metadata.resource_version.as_str()), (0, "5"));
        let text = r#"{"metadata":{"continue":"x"},"items":[{"metadata":{"name":"a","resourceVersion":"2"}}]}"#;
        let page: Page<'_> = serde_json::from_str(text).unwrap();
        assert_eq!((page.objects().count(), page.metadata.next.as_str()), (1, "x"));
    }
}
