//! Values: from which objects, with which digest, and whether Helm would read them as they are written.

use std::{collections::BTreeMap, fmt::Write};

use api::workspace::{ChartValues, HelmReleaseSpec, MOST_VALUES, ReadValues, ValuesKind, ValuesSource};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
pub use plan::releases::values;
use plan::{
    object::digest,
    releases::{Values, check_numbers, too_many_values},
};
use serde_json::{Value, json};
use serde_saphyr::budget::BudgetBreach;

use crate::{helm::Private, yaml};

/// A document of values is small; one of a megabyte is a mistake, and a Secret cannot hold more.
const MAX_DOCUMENT: usize = 1 << 20;

/// One source's document.
#[derive(Clone, Debug)]
pub struct Document {
    pub source: ReadValues,
    /// `None`: optional and not there.
    pub content: Option<Private>,
}

/// The files for helm, in order.
pub fn files(spec: &HelmReleaseSpec, documents: Vec<Document>) -> Vec<Private> {
    let inline = spec.values.as_ref().and_then(ChartValues::read).filter(|values| !values.is_empty());
    let inline = inline.map(|values| Private::new(escaped(&Value::Object(values).to_string())));
    documents.into_iter().filter_map(|document| document.content).chain(inline).collect()
}

/// The documents that are Secrets'.
pub fn of_secrets(documents: &[Document]) -> Vec<Private> {
    let of_secrets = documents.iter().filter(|document| document.source.kind == ValuesKind::Secret);
    of_secrets.filter_map(|document| document.content.clone()).collect()
}

/// JSON that helm's YAML reader takes as it is: of the characters that JSON leaves alone, YAML folds some and refuses
/// others. They occur in texts only, where an escape stands for the same.
fn escaped(json: &str) -> String {
    let is_special =
        |c: char| matches!(c, '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}');
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if is_special(character) {
            let _ = write!(text, "\\u{:04x}", u32::from(character));
        } else {
            text.push(character);
        }
    }
    text
}

/// What a source's object holds, with its version.
pub type Data = (String, BTreeMap<String, Vec<u8>>);

pub fn of_secret(secret: Secret) -> Data {
    let data = secret.data.unwrap_or_default().into_iter().map(|(name, value)| (name, value.0));
    (secret.metadata.resource_version.unwrap_or_default(), data.collect())
}

pub fn of_config_map(map: ConfigMap) -> Data {
    let text = map.data.unwrap_or_default().into_iter().map(|(name, value)| (name, value.into_bytes()));
    (map.metadata.resource_version.unwrap_or_default(), text.collect())
}

/// Reads one source from its object's data.
pub fn read(source: &ValuesSource, object: Option<Data>) -> Result<Document, Values> {
    let what = format!("{} {}", kind_name(source.kind), source.name);
    let is_optional = source.optional.unwrap_or(false);
    let (version, content) = match object {
        None if is_optional => (String::new(), None),
        None => return Err(Values::Missing(format!("{what} of spec.valuesFrom does not exist"))),
        Some((version, mut data)) => match data.remove(source.key()) {
            None if !is_optional => {
                return Err(Values::Missing(format!("{what} of spec.valuesFrom has no key {}", source.key())));
            }
            content => (version, content),
        },
    };
    if let Some(content) = &content {
        check_document(content, &format!("{what}, key {}", source.key())).map_err(Values::Invalid)?;
    }
    let digest = content.as_ref().map(|content| digest(&json!(String::from_utf8_lossy(content)))).unwrap_or_default();
    Ok(Document { source: noted(source, version, digest), content: content.map(Private::new) })
}

pub fn noted(source: &ValuesSource, version: String, digest: String) -> ReadValues {
    ReadValues { kind: source.kind, name: source.name.clone(), key: source.key().to_owned(), version, digest }
}

fn kind_name(kind: ValuesKind) -> &'static str {
    match kind {
        ValuesKind::Secret => "Secret",
        ValuesKind::ConfigMap => "ConfigMap",
    }
}

/// The text of an error never quotes the document: it may be a Secret's.
fn check_document(content: &[u8], place: &str) -> Result<(), String> {
    if content.len() > MAX_DOCUMENT {
        return Err(format!("{place}: more than {MAX_DOCUMENT} bytes; values are configuration, not data"));
    }
    let text = std::str::from_utf8(content).map_err(|_| format!("{place}: not UTF-8 text; store it as UTF-8"))?;
    if text.trim().is_empty() {
        return Ok(());
    }
    let value = yaml::read::<Value>(text, MOST_VALUES, MAX_DOCUMENT).map_err(|error| match cause(&error) {
        serde_saphyr::Error::Budget { breach: BudgetBreach::ScalarBytes { .. }, .. } => {
            format!("{place}: more than {MAX_DOCUMENT} bytes with what its aliases repeat; repeat less")
        }
        serde_saphyr::Error::Budget { .. }
        | serde_saphyr::Error::AliasReplayLimitExceeded { .. }
        | serde_saphyr::Error::AliasExpansionLimitExceeded { .. } => too_many_values(place),
        error => format!("{place}{}", fault(error)),
    })?;
    match value {
        Value::Object(_) => check_numbers(&value, place),
        Value::Null => Ok(()),
        _ => Err(format!("{place}: values must be a map of names to values")),
    }
}

/// What went wrong, wherever in the document it was found.
fn cause(error: &serde_saphyr::Error) -> &serde_saphyr::Error {
    match error.without_snippet() {
        serde_saphyr::Error::AliasError { error, .. } => cause(error),
        error => error,
    }
}

/// What is wrong with a document and in which line, in our words.
fn fault(error: &serde_saphyr::Error) -> String {
    let line = error.location().map(|location| format!(", line {}", location.line())).unwrap_or_default();
    let what = match error {
        serde_saphyr::Error::MultipleDocuments { .. } => {
            "part of a second YAML document, and Helm reads only the first; join them, or give each a key of its own"
        }
        serde_saphyr::Error::DuplicateMappingKey { .. } => "a key appears twice; remove one of them",
        _ => "not a YAML document",
    };
    format!("{line}: {what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(optional: bool) -> ValuesSource {
        ValuesSource { kind: ValuesKind::Secret, name: "s".into(), key: None, optional: Some(optional) }
    }

    #[allow(clippy::unnecessary_wraps, reason = "the form in which objects are read")]
    fn object(text: &str) -> Option<Data> {
        Some(("7".into(), [("values.yaml".to_owned(), text.as_bytes().to_vec())].into()))
    }

    #[test]
    fn w40_large_whole_numbers_are_refused_by_key() {
        for text in [
            "a:\n  b: [1, 9007199254740993]",
            "a:\n  b: [1, -9007199254740993]",
            "a:\n  b: [1, 123456789012345678901234567890]",
        ] {
            let Err(Values::Invalid(why)) = read(&source(false), object(text)) else { panic!("{text} was taken") };
            assert!(why.contains("key values.yaml.a.b[1]") && why.contains("quote it"), "{why}");
            assert!(!why.contains("900719"), "{why}");
        }
        for text in ["a: 9007199254740992", "a: \"9007199254740993\"", "a: 1.5", "a: 1e3", "", "# nothing"] {
            assert!(read(&source(false), object(text)).is_ok(), "{text}");
        }
        let spec: HelmReleaseSpec = serde_json::from_value(json!({
            "chart": { "repo": "http://c", "name": "n" }, "values": { "a.b": { "c": 9_007_199_254_740_993_i64 } }
        }))
        .unwrap();
        let Values::Invalid(why) = values(&spec, vec![]) else { panic!("it was taken") };
        assert!(why.contains(r#"spec.values["a.b"].c"#), "{why}");
    }

    #[test]
    fn values_that_take_much_memory_are_refused_by_their_place() {
        let wide = format!("a: [{}]", "{},".repeat(MOST_VALUES));
        let folded = format!("a: &a [{}]\nb: [{}]", "0,".repeat(1000), "*a,".repeat(1000));
        for text in [&wide, &folded] {
            let Err(Values::Invalid(why)) = read(&source(false), object(text)) else { panic!("it was taken") };
            assert!(why.contains("Secret s, key values.yaml: ") && why.len() < 200, "{why}");
        }
        assert!(wide.len() < MAX_DOCUMENT && folded.len() < MAX_DOCUMENT);
        let anchors = (0..200).map(|number| format!("n{number}: &n{number} x\n")).collect::<Vec<_>>().concat();
        let repeated = |times: usize| format!("a: &a {}\n{anchors}b: [{}]", "x".repeat(10_000), "*a,".repeat(times));
        assert!(read(&source(false), object(&repeated(90))).is_ok());
        let Err(Values::Invalid(why)) = read(&source(false), object(&repeated(1000))) else { panic!("it was taken") };
        assert!(why.contains("more than 1048576 bytes with what its aliases repeat"), "{why}");
        let spec: HelmReleaseSpec = serde_json::from_value(json!({
            "chart": { "repo": "http://c", "name": "n" }, "values": { "a": vec![json!({}); MOST_VALUES] }
        }))
        .unwrap();
        let Values::Invalid(why) = values(&spec, vec![]) else { panic!("it was taken") };
        assert!(why.starts_with("spec.values: more than 20000 values"), "{why}");
        assert!(files(&spec, vec![]).is_empty());
    }

    #[test]
    fn a_missing_source_is_named_unless_it_is_optional() {
        let Err(Values::Missing(what)) = read(&source(false), None) else { panic!() };
        assert!(what.contains("Secret s"));
        let other = Some(("7".into(), [("else".to_owned(), vec![])].into()));
        let Err(Values::Missing(what)) = read(&source(false), other) else { panic!() };
        assert!(what.contains("no key values.yaml"));
        assert!(read(&source(true), None).unwrap().content.is_none());
    }

    #[test]
    fn w40_what_yaml_would_fold_or_refuse_is_escaped() {
        let value = json!({ "a": "a\u{85}b \u{2028} \u{7f}\u{fffe} é 日本 😀" });
        let text = escaped(&value.to_string());
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        assert!(text.contains("\\u0085") && text.contains("\\u2028") && text.contains("日本 😀"), "{text}");
    }

    #[test]
    fn a_broken_document_is_named_and_not_quoted() {
        for (text, expected) in [
            ("a: [hunter2", "not a YAML document"),
            ("just hunter2", "a map of names"),
            ("- hunter2", "a map of names"),
            ("a: 1\n---\nb: hunter2", "key values.yaml, line 3: part of a second YAML document"),
            ("a: 1\nhunter2: 1\nhunter2: 2", "key values.yaml, line 3: a key appears twice"),
        ] {
            let Err(Values::Invalid(why)) = read(&source(false), object(text)) else { panic!("{text} was taken") };
            assert!(why.contains("Secret s") && why.contains(expected) && !why.contains("hunter2"), "{why}");
        }
    }
}
