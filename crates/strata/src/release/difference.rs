//! What differs between two manifests, object by object, without the data of Secrets. Pure.

use std::collections::{BTreeMap, BTreeSet};

use clap::builder::styling::{AnsiColor, Style};
use serde_json::{Map, Value};
use similar::TextDiff;

use crate::{
    Failure,
    output::{lines, styled},
};

/// Lines around a change, as diff and kubectl have it.
const CONTEXT: usize = 3;
/// What stands for data of a Secret.
const CONCEALED: &str = "***";

/// A unified diff; empty when nothing differs.
pub fn difference(old: &str, new: &str) -> Result<String, Failure> {
    let (mut old, mut new) = (objects(old)?, objects(new)?);
    let ids: BTreeSet<_> = old.keys().chain(new.keys()).cloned().collect();
    let mut text = String::new();
    for id in ids {
        let (mut before, mut after) = (old.remove(&id), new.remove(&id));
        if before == after {
            continue;
        }
        conceal(&mut before, &mut after);
        let (before, after) = (yaml(before.as_ref())?, yaml(after.as_ref())?);
        let diff = TextDiff::from_lines(&before, &after);
        let header = (format!("{id} (deployed)"), format!("{id} (next)"));
        text.push_str(&diff.unified_diff().context_radius(CONTEXT).header(&header.0, &header.1).to_string());
    }
    Ok(text)
}

/// The diff with the colours that git has.
pub fn coloured(diff: &str) -> String {
    lines(diff.lines().map(|line| {
        let style = match line.as_bytes().first() {
            Some(b'+') => AnsiColor::Green.on_default(),
            Some(b'-') => AnsiColor::Red.on_default(),
            Some(b'@') => AnsiColor::Cyan.on_default(),
            _ => Style::new(),
        };
        styled(&line.replace(char::is_control, " "), style)
    }))
}

/// Objects by kind and name. Errors say nothing of the content, which may be secret.
fn objects(manifest: &str) -> Result<BTreeMap<String, Value>, Failure> {
    let mut objects = BTreeMap::new();
    // As helm itself splits it; its templates are text, so no parser of whole streams is asked.
    let mut documents = vec![String::new()];
    for line in manifest.lines() {
        if line.trim_end() == "---" {
            documents.push(String::new());
        } else if let Some(document) = documents.last_mut() {
            document.push_str(line);
            document.push('\n');
        }
    }
    for (number, document) in documents.iter().enumerate() {
        let value: Value = serde_saphyr::from_str(document)
            .map_err(|_| Failure::new(format!("document {number} of a manifest that helm rendered is not YAML")))?;
        add(value, &mut objects);
    }
    Ok(objects)
}

fn add(mut value: Value, objects: &mut BTreeMap<String, Value>) {
    let word = |value: &Value, pointer: &str| value.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let kind = word(&value, "/kind").unwrap_or_default();
    if kind.ends_with("List")
        && let Some(Value::Array(items)) = value.get_mut("items").map(Value::take)
    {
        for item in items {
            add(item, objects);
        }
        return;
    }
    let group = word(&value, "/apiVersion").unwrap_or_default();
    let group = group.split_once('/').map(|(group, _)| format!(".{group}")).unwrap_or_default();
    let namespace = word(&value, "/metadata/namespace").map(|namespace| format!("{namespace}/")).unwrap_or_default();
    let name = word(&value, "/metadata/name").unwrap_or_default();
    if !value.is_null() {
        objects.insert(format!("{kind}{group} {namespace}{name}"), value);
    }
}

/// Puts stars in the place of a Secret's data; that they differ can still be seen.
fn conceal(before: &mut Option<Value>, after: &mut Option<Value>) {
    let is_secret = |value: &Option<Value>| value.as_ref().is_some_and(|value| value["kind"] == "Secret");
    if !is_secret(before) && !is_secret(after) {
        return;
    }
    for field in ["data", "stringData"] {
        let (old, new) = (data(before.as_ref(), field), data(after.as_ref(), field));
        let stars = |own: &Map<String, Value>, other: &Map<String, Value>, mark: &str| {
            let star = |(key, value): (&String, &Value)| {
                let is_changed = other.get(key).is_some_and(|other| other != value);
                let text = if is_changed { format!("{CONCEALED} ({mark})") } else { CONCEALED.to_owned() };
                (key.clone(), Value::String(text))
            };
            Value::Object(own.iter().map(star).collect())
        };
        for (side, stars) in [(&mut *before, stars(&old, &new, "deployed")), (&mut *after, stars(&new, &old, "next"))] {
            if let Some(place) = side.as_mut().and_then(|value| value.get_mut(field)) {
                *place = stars;
            }
        }
    }
}

fn data(secret: Option<&Value>, field: &str) -> Map<String, Value> {
    secret.and_then(|secret| secret[field].as_object()).cloned().unwrap_or_default()
}

fn yaml(value: Option<&Value>) -> Result<String, Failure> {
    let Some(value) = value else { return Ok(String::new()) };
    let text = serde_saphyr::to_string(value).map_err(|_| Failure::new("an object has no YAML form"))?;
    Ok(format!("{}\n", text.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str =
        "---\n# Source: a\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {a: OLD, b: same}\n";

    #[test]
    fn only_what_differs_is_shown() {
        let old =
            "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {replicas: 1}\n---\n# nothing\n";
        let same = "kind: Deployment\nspec:\n  replicas: 1\nmetadata:\n  name: web\napiVersion: apps/v1\n";
        assert_eq!(difference(old, same).unwrap(), "", "order and comments say nothing");
        let diff = difference(old, &same.replace("replicas: 1", "replicas: 2")).unwrap();
        assert!(diff.starts_with("--- Deployment.apps web (deployed)\n+++ Deployment.apps web (next)\n@@"), "{diff}");
        assert!(diff.contains("-  replicas: 1\n+  replicas: 2\n"), "{diff}");
        let gone = difference(old, "").unwrap();
        assert!(gone.contains("-kind: Deployment\n") && !gone.contains("\n+k"), "{gone}");
    }

    #[test]
    fn data_of_secrets_stay_hidden_and_their_change_does_not() {
        let diff = difference(SECRET, &SECRET.replace("OLD", "NEW")).unwrap();
        assert!(diff.contains("-  a: '*** (deployed)'") || diff.contains("-  a: \"*** (deployed)\""), "{diff}");
        for text in [diff, difference("", SECRET).unwrap(), difference(SECRET, "").unwrap()] {
            assert!(text.contains("***"), "{text}");
            assert!(!text.contains("OLD") && !text.contains("NEW") && !text.contains("same"), "{text}");
        }
        let list = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Secret, metadata: {name: s}, data: {a: OLD}}\n";
        assert!(!difference(list, "").unwrap().contains("OLD"));
        let failure = difference("kind: Secret\ndata: {a: OLD", "").unwrap_err();
        assert!(!failure.message.contains("OLD"), "{failure}");
    }
}
