//! Helm's own records: Secrets that hold each revision as JSON, compressed and encoded twice.
//!
//! Anyone who may write Secrets may write one. So records are read as a stream, one at a time, and of their manifest only
//! what is asked for is kept: values in memory can take a hundred times their text. All that is read has its limit.

use std::{
    borrow::Cow,
    collections::HashMap,
    fmt,
    io::{self, BufReader, Read, Write},
};

use api::workspace::count_values;
use base64::{Engine, engine::general_purpose::STANDARD};
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use k8s_openapi::api::core::v1::Secret;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, IgnoredAny, MapAccess, Visitor},
};
use serde_json::{
    Value, json,
    value::{RawValue, to_raw_value},
};
use tokio::sync::{Semaphore, SemaphorePermit};

/// A Secret holds 1 MiB, which is 768 KiB packed; charts and manifests unpack to some ten times that.
const MAX_UNPACKED: u64 = 16 << 20;
/// Of all objects of a manifest together, where they are kept as text: several times the largest charts there are, and
/// little enough for each round that runs at once.
const MAX_KEPT: usize = 4 << 20;
/// Of a manifest or of a file of definitions: ten times the largest charts there are. Each is read, kept in mind and asked
/// for by itself.
pub const MAX_OBJECTS: usize = 5000;
/// Helm's record and its `info` have about ten.
const MAX_FIELDS: usize = 100;
/// Of one object: three times the largest definitions there are; some 20 MB in memory.
const MAX_NODES: usize = 50_000;
/// An object with more text than this may take megabytes in memory, so that there is one of them at a time.
pub const LARGE_OBJECT: usize = 64 << 10;
/// An API server takes no longer request.
const MAX_REQUEST: usize = 3 << 20;

/// The record that is being read.
static READING: Semaphore = Semaphore::const_new(1);
/// The large object that is in memory as a tree. All releases share it, so it is never held while a server is asked.
static LARGE: Semaphore = Semaphore::const_new(1);

/// Why a record cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    #[error("it is not of the form that Helm writes")]
    Unknown,
    #[error("it is larger than {MAX_UNPACKED} bytes unpacked")]
    TooLarge,
    #[error("its manifest is larger than {MAX_KEPT} bytes")]
    TooMuch,
    #[error("its manifest has more than {MAX_OBJECTS} objects")]
    TooMany,
}

/// Name of the Secret of a revision.
pub fn secret_name(release: &str, revision: u32) -> String {
    format!("sh.helm.release.v1.{release}.v{revision}")
}

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

/// The record in a storage Secret, unpacked as it is read.
fn unpack(secret: &Secret) -> Result<impl Read, Unreadable> {
    let encoded = secret.data.as_ref().and_then(|data| data.get("release")).ok_or(Unreadable::Unknown)?;
    let packed = STANDARD.decode(&encoded.0).map_err(|_| Unreadable::Unknown)?;
    Ok(GzDecoder::new(io::Cursor::new(packed)))
}

/// Reads a record's JSON, as much of it as `T` takes.
fn parse<T: for<'de> Deserialize<'de>>(secret: &Secret) -> Result<T, Unreadable> {
    // What is cut off is no JSON any more.
    let mut text = BufReader::new(unpack(secret)?.take(MAX_UNPACKED));
    serde_json::from_reader(&mut text)
        .map_err(|_| if text.get_ref().limit() == 0 { Unreadable::TooLarge } else { Unreadable::Unknown })
}

/// In its turn, and off the threads that everything else runs on.
async fn in_turn<T: Send + 'static>(read: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let _turn = READING.acquire().await.ok()?;
    tokio::task::spawn_blocking(read).await.ok()
}

fn encode(record: &impl Serialize) -> String {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    serde_json::to_writer(&mut encoder, record).expect("it is written to memory");
    encoder.flush().expect("it is written to memory");
    STANDARD.encode(STANDARD.encode(encoder.finish().expect("it is written to memory")))
}

/// What marks an unfinished revision as failed, so that Helm lets the next operation begin. Helm labels its Secrets with
/// the same word. Only the Secret that was looked at is changed.
pub async fn failed(secret: Secret, uid: &str, resource_version: &str) -> Result<Value, Unreadable> {
    let packed = in_turn(move || parse(&secret).map(marked)).await.ok_or(Unreadable::Unknown)??;
    Ok(json!({
        "metadata": { "uid": uid, "resourceVersion": resource_version, "labels": { "status": "failed" } },
        "data": { "release": packed },
    }))
}

fn marked(mut record: Fields) -> String {
    let mut info: Fields = record.get("info").unwrap_or_default();
    info.set("status", &"failed");
    info.set("description", &"Left unfinished by a process that has ended; strata marked it as failed");
    record.set("info", &info);
    encode(&record)
}

/// How much of a manifest's objects is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// What they are called by.
    Names,
    /// And their text.
    Whole,
}

/// What of a record's manifest could be read. Hooks are not in it.
#[derive(Debug, Default)]
pub struct Manifest {
    pub objects: Vec<Object>,
    /// Documents that are no YAML, too large, or lists of lists.
    pub unreadable: usize,
}

/// One object of a manifest.
#[derive(Debug)]
pub struct Object {
    pub api_version: String,
    pub kind: String,
    pub namespace: Option<String>,
    pub name: String,
    /// Empty where only its name was asked for. That of a CronJob, which may be suspended in it, is there always.
    text: Box<str>,
}

/// What an object is called by, and what it lists; nothing else of it is held.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    #[serde(default)]
    api_version: Option<String>,
    #[serde(default)]
    kind: Option<String>,
    #[serde(default)]
    metadata: Option<HeadMetadata>,
    #[serde(default)]
    items: Option<Value>,
}

impl Head {
    fn object(self, text: Box<str>) -> Option<Object> {
        let HeadMetadata { name, namespace } = self.metadata.unwrap_or_default();
        let (api_version, name) = (self.api_version.unwrap_or_default(), name.unwrap_or_default());
        Some(Object { api_version, kind: self.kind?, namespace, name, text })
    }
}

#[derive(Default, Deserialize)]
struct HeadMetadata {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    namespace: Option<String>,
}

impl Object {
    /// Calls `make` with all of it; see [`with_tree`].
    pub async fn with_tree<T>(&self, make: impl FnOnce(Value) -> T) -> Option<T> {
        with_tree(&self.text, make).await
    }
}

/// What `make` returns for a document as a tree; `None` if it is no YAML or too large. There is one large tree at a time,
/// and `make` cannot wait: a request that is sent under the permit would delay the large objects of all other releases.
pub async fn with_tree<T>(document: &str, make: impl FnOnce(Value) -> T) -> Option<T> {
    let (tree, _permit) = whole(document).await?;
    Some(make(tree))
}

/// What `make` returns for two JSON texts as trees; `None` if one is too large. As with [`with_tree`], there are two large
/// ones at a time.
pub async fn with_trees<T>(texts: [&str; 2], make: impl FnOnce([Value; 2]) -> T) -> Option<T> {
    let is_large = texts.iter().any(|text| text.len() > LARGE_OBJECT);
    let _permit = if is_large { Some(LARGE.acquire().await.ok()?) } else { None };
    let [one, other] = texts.map(tree);
    Some(make([one?, other?]))
}

/// An object of the server's as a tree, without the fields that it notes the managers of, which are more than the object
/// itself has.
fn tree(text: &str) -> Option<Value> {
    let fields = |text: &str| serde_json::from_str::<HashMap<String, Box<RawValue>>>(text).ok();
    let mut object = fields(text)?;
    if let Some(metadata) = object.get_mut("metadata") {
        let mut without = fields(metadata.get())?;
        without.remove("managedFields");
        *metadata = to_raw_value(&without).ok()?;
    }
    let is_small = object.values().map(|value| count_values(value.get())).sum::<usize>() <= MAX_NODES;
    let values = object.into_iter().map(|(name, value)| Some((name, serde_json::from_str(value.get()).ok()?)));
    is_small.then(|| values.collect::<Option<_>>().map(Value::Object)).flatten()
}

/// A tree as the text of a request; `None` if no server would take it, so that it need not be kept either.
pub fn request(tree: &Value) -> Option<Box<RawValue>> {
    let text = to_raw_value(tree).expect("it has a JSON form");
    (text.get().len() <= MAX_REQUEST).then_some(text)
}

/// A document as a tree, and the permit to hold for as long as a large one is in memory.
async fn whole(document: &str) -> Option<(Value, Option<SemaphorePermit<'static>>)> {
    let is_large = document.len() > LARGE_OBJECT;
    let permit = if is_large { Some(LARGE.acquire().await.ok()?) } else { None };
    Some((yaml(document).ok()?, permit))
}

/// The one field of a record that is read; the others are passed over.
#[derive(Default)]
struct OfRecord {
    manifest: Option<String>,
}

impl<'de> Deserialize<'de> for OfRecord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = OfRecord;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<OfRecord, A::Error> {
                let mut record = OfRecord::default();
                while let Some(field) = map.next_key::<Cow<'_, str>>()? {
                    if field == "manifest" {
                        record.manifest = map.next_value()?;
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(record)
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

/// The objects of the manifest of the record in a storage Secret.
pub async fn manifest(secret: Secret, detail: Detail) -> Result<Manifest, Unreadable> {
    let read = in_turn(move || {
        let OfRecord { manifest } = parse(&secret)?;
        manifest.map_or(Ok(Manifest { unreadable: 1, ..Manifest::default() }), |text| objects(&text, detail))
    });
    read.await.ok_or(Unreadable::Unknown)?
}

fn objects(text: &str, detail: Detail) -> Result<Manifest, Unreadable> {
    if detail == Detail::Whole && text.len() > MAX_KEPT {
        return Err(Unreadable::TooMuch);
    }
    let (mut manifest, mut kept) = (Manifest::default(), 0);
    for (number, document) in documents(text).enumerate() {
        if number == MAX_OBJECTS {
            return Err(Unreadable::TooMany);
        }
        let Some(found) = objects_in(document, detail) else {
            manifest.unreadable += 1;
            continue;
        };
        manifest.objects.extend(found.into_iter().inspect(|object| kept += object.text.len()));
        if manifest.objects.len() > MAX_OBJECTS {
            return Err(Unreadable::TooMany);
        }
        // As JSON, items of lists may be longer than they were.
        if kept > MAX_KEPT {
            return Err(Unreadable::TooMuch);
        }
    }
    Ok(manifest)
}

/// The object of a document, or the items of a list: Helm applies and deletes each by itself. `None` if they cannot be
/// read, or if one is a list again.
fn objects_in(document: &str, detail: Detail) -> Option<Vec<Object>> {
    let mut head = yaml::<Head>(document).ok()?;
    let is_kept = |head: &Head| detail == Detail::Whole || head.kind.as_deref() == Some("CronJob");
    let Some(Value::Array(items)) = head.items.take() else {
        let text = if is_kept(&head) { document.into() } else { Box::default() };
        return Some(head.object(text).into_iter().collect());
    };
    let kind = head.kind.as_deref().map(|kind| kind.strip_suffix("List").unwrap_or(kind));
    let mut objects = Vec::with_capacity(items.len());
    for mut item in items {
        let fields = item.as_object_mut()?;
        if fields.get("items").is_some_and(Value::is_array) {
            return None;
        }
        // The kind of a list says that of items without one.
        let is_given = |field| fields.get(field).is_some_and(|value| *value != Value::Null && *value != json!(""));
        if !is_given("apiVersion") && !is_given("kind") {
            fields.insert("apiVersion".to_owned(), json!(head.api_version));
            fields.insert("kind".to_owned(), json!(kind));
        }
        let head = Head::deserialize(&item).ok()?;
        let text = if is_kept(&head) { item.to_string().into_boxed_str() } else { Box::default() };
        objects.push(head.object(text)?);
    }
    Some(objects)
}

/// What refers to an anchor is in the tree once more, so the tree may be larger than its text by that of a small object.
fn yaml<T: for<'de> Deserialize<'de>>(document: &str) -> Result<T, serde_saphyr::Error> {
    crate::yaml::read(document, MAX_NODES, document.len() + LARGE_OBJECT)
}

/// The CustomResourceDefinitions of a file, each as its text; `None` if it has something that is no YAML or too large, or
/// too much of it.
pub fn definitions(text: &str) -> Option<Vec<String>> {
    let mut definitions = Vec::new();
    for (number, document) in documents(text).enumerate() {
        if number == MAX_OBJECTS {
            return None;
        }
        match yaml::<Head>(document) {
            Ok(Head { kind: Some(kind), .. }) if kind == "CustomResourceDefinition" => {
                definitions.push(document.to_owned());
            }
            Ok(_) => {}
            // A text or a list is no definition.
            Err(_) => drop(yaml::<IgnoredAny>(document).ok()?),
        }
    }
    Some(definitions)
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

/// Whether removing the release would remove data. What cannot be read might be data.
pub fn holds_data(manifest: &Manifest) -> bool {
    manifest.unreadable > 0 || manifest.objects.iter().any(|object| object.kind == "PersistentVolumeClaim")
}

#[cfg(test)]
pub(super) mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    fn secret(encoded: &str) -> Secret {
        let data = STANDARD.decode(encoded).unwrap();
        Secret { data: Some([("release".to_owned(), ByteString(data))].into()), ..Secret::default() }
    }

    pub fn record(manifest: &str) -> Secret {
        secret(&encode(&json!({ "manifest": manifest })))
    }

    #[tokio::test]
    async fn a_record_is_read_and_written_as_helm_does() {
        // A number that no float holds, and an order that no map has.
        let text = r#"{"version":12345678901234567890123,"name":"web","info":{"status":"pending-upgrade","notes":"n"},"chart":{"z":1,"a":[]}}"#;
        let record = secret(&encode(&RawValue::from_string(text.to_owned()).unwrap()));
        let patch = failed(record, "u", "7").await.unwrap();
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        let record: Fields = parse(&secret(patch["data"]["release"].as_str().unwrap())).unwrap();
        let info: Value = record.get("info").unwrap();
        assert_eq!((&info["status"], &info["notes"]), (&json!("failed"), &json!("n")));
        let written = serde_json::to_string(&record).unwrap();
        assert!(
            written.starts_with(r#"{"version":12345678901234567890123,"name":"web","chart":{"z":1,"a":[]},"#),
            "{written}"
        );
    }

    #[tokio::test]
    async fn what_is_not_a_record_is_refused_and_says_why() {
        let fields = (0..=MAX_FIELDS).map(|number| (number.to_string(), json!(0))).collect::<serde_json::Map<_, _>>();
        let large = "x".repeat(usize::try_from(MAX_UNPACKED).unwrap());
        for (other, why) in [
            (encode(&json!([])), Unreadable::Unknown),
            (encode(&json!({ "manifest": large })), Unreadable::TooLarge),
            ("eA==".to_owned(), Unreadable::Unknown),
        ] {
            assert_eq!(manifest(secret(&other), Detail::Names).await.unwrap_err(), why);
            assert_eq!(failed(secret(&other), "", "").await.unwrap_err(), why);
        }
        assert_eq!(failed(secret(&encode(&json!(fields))), "", "").await.unwrap_err(), Unreadable::Unknown);
        assert_eq!(manifest(Secret::default(), Detail::Names).await.unwrap_err(), Unreadable::Unknown);
    }

    #[tokio::test]
    async fn an_unreadable_document_hides_no_other_and_may_be_data() {
        let sound = "---\n# Source: a\nkind: A\ntext: \"a\n\n  ---b\"\n---\n\n--- # nothing\n---\r\nkind: B\n";
        let of = async |text: &str| manifest(record(text), Detail::Whole).await.unwrap();
        let kinds = |manifest: &Manifest| {
            let kinds: Vec<_> = manifest.objects.iter().map(|object| object.kind.clone()).collect();
            (kinds.concat(), manifest.unreadable)
        };
        assert_eq!(kinds(&of(sound).await), ("AB".to_owned(), 0));
        assert_eq!(kinds(&of(&format!("{sound}---\n{{ broken\n---\nkind: C\n")).await), ("ABC".to_owned(), 1));
        let large = format!("---\nkind: D\nlist: [{}]\n", "0,".repeat(MAX_NODES));
        assert_eq!(kinds(&of(&format!("{sound}{large}---\nkind: C\n")).await), ("ABC".to_owned(), 1));
        assert!(!holds_data(&of(sound).await));
        assert!(holds_data(&of(&format!("{sound}---\nkind: PersistentVolumeClaim\n")).await));
        assert!(holds_data(&of("{ broken").await));
        for list in [
            "kind: List\nitems: [{kind: A}, {kind: PersistentVolumeClaim}]\n",
            "apiVersion: v1\nkind: PersistentVolumeClaimList\nitems: [{metadata: {name: a}}]\n",
            "apiVersion: v1\nkind: PersistentVolumeClaimList\nitems: [{apiVersion: '', kind: null}]\n",
            "kind: List\nitems: [{kind: List, items: [{kind: PersistentVolumeClaim}]}]\n",
        ] {
            assert!(holds_data(&of(list).await), "{list}");
        }
        assert!(!holds_data(&of("kind: List\nitems: [{kind: A}]\n").await));
        assert!(!holds_data(&of("kind: Menu\nitems: {soup: 1}\n").await), "no list");
    }

    #[tokio::test]
    async fn each_item_of_a_list_is_an_object() {
        let items = "- metadata: {name: a, namespace: t}\n  data: {k: \"1\"}\n- {kind: Secret, metadata: {name: b}}\n";
        let list = format!("apiVersion: v1\nkind: ConfigMapList\nitems:\n{items}");
        let found = manifest(record(&list), Detail::Whole).await.unwrap();
        let [first, second] = &found.objects[..] else { panic!("two objects") };
        let names = (first.kind.as_str(), first.api_version.as_str(), first.name.as_str(), first.namespace.as_deref());
        assert_eq!(names, ("ConfigMap", "v1", "a", Some("t")));
        let fields = first.with_tree(|tree| (tree["kind"].clone(), tree["data"]["k"].clone())).await.unwrap();
        assert_eq!(fields, (json!("ConfigMap"), json!("1")));
        assert_eq!((second.kind.as_str(), second.name.as_str()), ("Secret", "b"));

        let many = format!("kind: List\nitems: [{}]\n", "{kind: A},".repeat(MAX_OBJECTS));
        assert_eq!(manifest(record(&many), Detail::Names).await.unwrap().objects.len(), MAX_OBJECTS);
        let more = [&many, "---\nkind: A\n"].concat();
        assert_eq!(manifest(record(&more), Detail::Names).await.unwrap_err(), Unreadable::TooMany);
        // Six bytes each in JSON.
        let long = format!("kind: List\nitems: [{{kind: A, text: \"{}\"}}]\n", "\\a".repeat(MAX_KEPT / 5));
        assert!(long.len() < MAX_KEPT);
        assert_eq!(manifest(record(&long), Detail::Whole).await.unwrap_err(), Unreadable::TooMuch);
    }

    #[test]
    fn of_a_file_only_definitions_are_kept() {
        let definition = "---\nkind: CustomResourceDefinition\nmetadata: {name: a}\n";
        let file = |others: &str| definitions(&format!("---\nkind: ConfigMap\n{definition}{others}"));
        assert_eq!(file("").unwrap(), [definition]);
        assert_eq!(file("---\n0\n---\n[1]\n").unwrap(), [definition], "nothing else is one");
        assert_eq!(file("---\n{ broken\n"), None);
        assert_eq!(file(&"---\nkind: A\n".repeat(MAX_OBJECTS - 2)).unwrap().len(), 1);
        assert_eq!(file(&"---\nkind: A\n".repeat(MAX_OBJECTS - 1)), None);
    }

    #[tokio::test]
    async fn a_large_manifest_is_read_for_names_and_refused_as_a_whole() {
        let document = |number: usize| {
            let head = format!("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: n{number}, namespace: t}}\n");
            [head, format!("data: {{k: {}}}\n", "x".repeat(4096))].concat()
        };
        let objects = (0..1200).map(document).collect::<Vec<_>>().concat();
        assert!(objects.len() > MAX_KEPT);
        let names = manifest(record(&objects), Detail::Names).await.unwrap();
        assert_eq!((names.objects.len(), names.unreadable), (1200, 0));
        let last = &names.objects[1199];
        assert_eq!((last.name.as_str(), last.namespace.as_deref(), last.text.len()), ("n1199", Some("t"), 0));
        assert_eq!(manifest(record(&objects), Detail::Whole).await.unwrap_err(), Unreadable::TooMuch);
        let many = "---\nkind: A\n".repeat(MAX_OBJECTS);
        assert_eq!(manifest(record(&many), Detail::Names).await.unwrap().objects.len(), MAX_OBJECTS);
        let more = [&many, "---\n0\n"].concat();
        assert_eq!(manifest(record(&more), Detail::Names).await.unwrap_err(), Unreadable::TooMany);
        let whole = manifest(record("kind: A\ndata: {k: v}\n"), Detail::Whole).await.unwrap();
        assert_eq!(whole.objects[0].with_tree(|tree| tree["data"]["k"].clone()).await.unwrap(), "v");
    }

    #[tokio::test]
    async fn a_small_text_makes_no_large_tree_and_no_request_that_a_server_refuses() {
        // As many other anchors as the parser wants for so many aliases.
        let anchors = (0..200).map(|number| format!("  n{number}: &n{number} x\n")).collect::<Vec<_>>().concat();
        let repeated = |times: usize| {
            let aliases = (0..times).map(|number| format!("  a{number}: *a\n")).collect::<Vec<_>>().concat();
            format!("kind: ConfigMap\ndata:\n  a: &a {}\n{anchors}{aliases}", "x".repeat(1000))
        };
        let tree = async |text: &str| with_tree(text, |tree| tree.to_string().len()).await;
        assert!(tree(&repeated(50)).await.is_some_and(|length| length > 50_000));
        assert!(repeated(1000).len() < LARGE_OBJECT);
        assert_eq!(tree(&repeated(1000)).await, None);
        // Six bytes each in JSON.
        let control = |count: usize| format!("kind: ConfigMap\ndata: {{ a: \"{}\" }}\n", "\\a".repeat(count));
        let length =
            async |text: &str| with_tree(text, |tree| request(&tree)).await.unwrap().map(|text| text.get().len());
        assert!(length(&control(500_000)).await.is_some_and(|length| length > 3_000_000));
        assert_eq!(length(&control(530_000)).await, None);
    }

    #[tokio::test]
    async fn one_large_object_is_in_memory_at_a_time() {
        let large = format!("kind: A\ntext: {}\n", "x".repeat(LARGE_OBJECT));
        let manifest = manifest(record(&format!("{large}---\n{large}---\nkind: B\n")), Detail::Whole).await.unwrap();
        let [first, second, small] = &manifest.objects[..] else { panic!("three objects") };
        let held = whole(&first.text).await.unwrap();
        let mut waiting = Box::pin(whole(&second.text));
        assert!(futures::poll!(&mut waiting).is_pending());
        assert!(whole(&small.text).await.unwrap().1.is_none(), "what is small waits for nothing");
        drop(held);
        assert!(waiting.await.unwrap().1.is_some());
    }
}
