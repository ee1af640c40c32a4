//! Helm's own records: Secrets that hold each revision as JSON, compressed and encoded twice.
//!
//! Any user who may write Secrets may write one. So a record is kept as text, since values in memory can take a hundred
//! times their text, and all that is read of it has its limit.

use std::{
    fmt,
    io::{Read, Write},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use k8s_openapi::api::core::v1::Secret;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, MapAccess, Visitor},
};
use serde_json::{
    Value, json,
    value::{RawValue, to_raw_value},
};

/// A Secret holds 1 MiB, which is 768 KiB packed; charts and manifests unpack to some ten times that.
const MAX_UNPACKED: u64 = 16 << 20;
/// Helm's record and its `info` have about ten.
const MAX_FIELDS: usize = 100;
/// Of all objects of a manifest together: the parser's own limit for one text, some 100 MB in memory.
const MAX_NODES: usize = 250_000;

/// Name of the Secret of a revision.
pub fn secret_name(release: &str, revision: u32) -> String {
    format!("sh.helm.release.v1.{release}.v{revision}")
}

/// Helm's record of one revision. It holds values, so it is never shown.
pub struct Record(Fields);

/// The fields of an object, as they are written.
#[derive(Default)]
struct Fields(Vec<(String, Box<RawValue>)>);

impl Fields {
    fn get<'a, T: Deserialize<'a>>(&'a self, name: &str) -> Option<T> {
        let (_, value) = self.0.iter().find(|(field, _)| field == name)?;
        serde_json::from_str(value.get()).ok()
    }

    fn set(&mut self, name: &str, value: &impl Serialize) {
        self.0.retain(|(field, _)| field != name);
        self.0.push((name.to_owned(), to_raw_value(value).expect("it has a JSON form")));
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    if fields.len() == MAX_FIELDS {
                        return Err(A::Error::custom("too many fields"));
                    }
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Each)
    }
}

/// The record in a storage Secret. `None` if it is not of the form that Helm writes.
pub fn decode(secret: &Secret) -> Option<Record> {
    let encoded = &secret.data.as_ref()?.get("release")?.0;
    let packed = STANDARD.decode(encoded).ok()?;
    let mut text = Vec::new();
    // What is cut off is no JSON any more.
    GzDecoder::new(packed.as_slice()).take(MAX_UNPACKED).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok().map(Record)
}

/// The other way round, in the form of a Secret's `data`.
fn encode(record: &impl Serialize) -> String {
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    let text = serde_json::to_vec(record).expect("it has a JSON form");
    packed.write_all(&text).expect("memory takes it");
    // Once by Helm, once because it is a Secret.
    STANDARD.encode(STANDARD.encode(packed.finish().expect("memory takes it")))
}

/// The patch that turns an unfinished revision into a failed one, which the next upgrade starts from. All else of the
/// record stays as it is written.
pub fn failed(Record(mut record): Record, uid: &str, resource_version: &str) -> Value {
    let mut info: Fields = record.get("info").unwrap_or_default();
    info.set("status", &"failed");
    info.set("description", &"Left unfinished by a process that has ended; strata marked it as failed");
    record.set("info", &info);
    json!({
        "metadata": { "uid": uid, "resourceVersion": resource_version, "labels": { "status": "failed" } },
        "data": { "release": encode(&record) },
    })
}

/// What of a record's manifest could be read. Hooks are not in it.
#[derive(Default)]
pub struct Manifest {
    pub objects: Vec<Value>,
    /// Documents that are no YAML, or too large.
    pub unreadable: usize,
}

/// The objects of a record's manifest.
pub fn manifest(Record(record): &Record) -> Manifest {
    let mut manifest = Manifest::default();
    let Some(text) = record.get::<String>("manifest") else { return Manifest { unreadable: 1, ..manifest } };
    let mut left = MAX_NODES;
    for document in documents(&text) {
        let options = serde_saphyr::options! { budget: serde_saphyr::budget! { max_nodes: left } };
        match serde_saphyr::from_str_with_options::<Value>(document, options) {
            Ok(object) => {
                left = left.saturating_sub(nodes(&object));
                manifest.objects.extend(Some(object).filter(|object| object["kind"].is_string()));
            }
            Err(_) => manifest.unreadable += 1,
        }
    }
    manifest
}

/// A line that begins with the marker ends a document wherever it stands, so a broken one spoils no other.
fn documents(text: &str) -> impl Iterator<Item = &str> {
    let is_mark = |at: &usize| text[at + "---".len()..].chars().next().is_none_or(char::is_whitespace);
    let marks = text.match_indices("\n---").map(|(at, _)| at + 1).filter(is_mark);
    let bounds: Vec<_> = std::iter::once(0).chain(marks).chain([text.len()]).collect();
    let has_content = |line: &str| {
        let content = line.strip_prefix("---").unwrap_or(line).trim_start();
        !content.is_empty() && !content.starts_with('#')
    };
    let documents = (1..bounds.len()).map(move |end| &text[bounds[end - 1]..bounds[end]]);
    documents.filter(move |document| document.lines().any(has_content))
}

fn nodes(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(nodes).sum(),
        Value::Object(fields) => fields.values().map(|value| 1 + nodes(value)).sum(),
        _ => 0,
    }
}

/// Whether removing the release would remove data. What cannot be read might be data.
pub fn holds_data(manifest: &Manifest) -> bool {
    manifest.unreadable > 0 || manifest.objects.iter().any(|object| object["kind"] == "PersistentVolumeClaim")
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    fn secret(encoded: &str) -> Secret {
        let data = STANDARD.decode(encoded).unwrap();
        Secret { data: Some([("release".to_owned(), ByteString(data))].into()), ..Secret::default() }
    }

    fn record(manifest: &str) -> Record {
        decode(&secret(&encode(&json!({ "manifest": manifest })))).unwrap()
    }

    #[test]
    fn a_record_is_read_and_written_as_helm_does() {
        // A number that no float holds, and an order that no map has.
        let text = r#"{"version":12345678901234567890123,"name":"web","info":{"status":"pending-upgrade","notes":"n"},"chart":{"z":1,"a":[]}}"#;
        let record = decode(&secret(&encode(&RawValue::from_string(text.to_owned()).unwrap()))).unwrap();
        let patch = failed(record, "u", "7");
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        let Record(record) = decode(&secret(patch["data"]["release"].as_str().unwrap())).unwrap();
        let info: Value = record.get("info").unwrap();
        assert_eq!((&info["status"], &info["notes"]), (&json!("failed"), &json!("n")));
        let written = serde_json::to_string(&record).unwrap();
        assert!(
            written.starts_with(r#"{"version":12345678901234567890123,"name":"web","chart":{"z":1,"a":[]},"#),
            "{written}"
        );
    }

    #[test]
    fn what_is_not_a_record_is_none() {
        let fields = (0..=MAX_FIELDS).map(|number| (number.to_string(), json!(0))).collect::<serde_json::Map<_, _>>();
        let large = "x".repeat(usize::try_from(MAX_UNPACKED).unwrap());
        for other in [json!([]), json!(fields), json!({ "manifest": large })] {
            assert!(decode(&secret(&encode(&other))).is_none());
        }
        assert!(decode(&secret("eA==")).is_none());
        assert!(decode(&Secret::default()).is_none());
    }

    #[test]
    fn an_unreadable_document_hides_no_other_and_may_be_data() {
        let sound = "---\n# Source: a\nkind: A\ntext: \"a\n\n  ---b\"\n---\n\n--- # nothing\n---\r\nkind: B\n";
        let manifest_of = |text: &str| {
            let Manifest { objects, unreadable } = manifest(&record(text));
            let kinds: Vec<_> = objects.iter().map(|object| object["kind"].as_str().unwrap().to_owned()).collect();
            (kinds.concat(), unreadable)
        };
        assert_eq!(manifest_of(sound), ("AB".to_owned(), 0));
        assert_eq!(manifest_of(&format!("{sound}---\n{{ broken\n---\nkind: C\n")), ("ABC".to_owned(), 1));
        let large = format!("---\nkind: D\nlist: [{}]\n", "0,".repeat(MAX_NODES));
        assert_eq!(manifest_of(&format!("{sound}{large}---\nkind: C\n")), ("ABC".to_owned(), 1));
        assert!(!holds_data(&manifest(&record(sound))));
        assert!(holds_data(&manifest(&record(&format!("{sound}---\nkind: PersistentVolumeClaim\n")))));
        assert!(holds_data(&manifest(&record("{ broken"))));
    }
}
