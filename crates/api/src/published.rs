//! For tests: our schemas beside published ones.

use std::collections::BTreeSet;

use serde_json::{Value, json};

/// Where a definition has the schema of its first version.
pub const SCHEMA: &str = "/spec/versions/0/schema/openAPIV3Schema";

/// A kind's own word on a keyword of ours and the published one at a path; `None` leaves it to the comparison.
pub type Judge = fn(path: &str, keyword: &str, ours: &Value, theirs: &Value) -> Option<bool>;

/// Where `ours` lacks, refuses or fills in something that `theirs` does not.
pub fn faults(path: &str, ours: &Value, theirs: &Value, judge: Judge) -> Vec<String> {
    let mut faults = Vec::new();
    compare(path, ours, theirs, judge, &mut faults);
    faults
}

fn compare(path: &str, ours: &Value, theirs: &Value, judge: Judge, faults: &mut Vec<String>) {
    let either: BTreeSet<&str> = keywords(ours).chain(keywords(theirs)).collect();
    for keyword in either {
        let (a, b) = (&ours[keyword], &theirs[keyword]);
        let is_fine = judge(path, keyword, a, b).unwrap_or_else(|| match keyword {
            "description" => true,
            "properties" => b.as_object().into_iter().flatten().all(|(name, schema)| {
                let found = a.get(name);
                if let Some(found) = found {
                    compare(&format!("{path}.{name}"), found, schema, judge, faults);
                }
                found.is_some()
            }),
            "items" | "additionalProperties" if a.is_object() && b.is_object() => {
                compare(&format!("{path}.{keyword}"), a, b, judge, faults);
                true
            }
            "required" => is_subset(a, b),
            "enum" => is_subset(b, a),
            "minimum" | "maximum" => a.as_f64() == b.as_f64(),
            _ => a == b,
        });
        if !is_fine {
            faults.push(format!("{path}: {keyword} is {a}, published is {b}"));
        }
    }
}

fn keywords(schema: &Value) -> impl Iterator<Item = &str> {
    schema.as_object().into_iter().flat_map(|object| object.keys()).map(String::as_str)
}

pub fn is_subset(some: &Value, all: &Value) -> bool {
    let none = Vec::new();
    let all = all.as_array().unwrap_or(&none);
    some.as_array().unwrap_or(&none).iter().all(|value| all.contains(value))
}

/// That the comparison can fail.
#[track_caller]
pub fn notices_what_it_should(judge: Judge) {
    let theirs = json!({ "type": "object", "properties": { "a": { "type": "string", "enum": ["x"] } } });
    for ours in [
        json!({ "type": "object", "properties": {} }),
        json!({ "type": "object", "properties": { "a": { "type": "integer", "enum": ["x"] } } }),
        json!({ "type": "object", "properties": { "a": { "type": "string", "enum": ["y"] } } }),
        json!({ "type": "object", "properties": { "a": { "type": "string", "enum": ["x"], "minLength": 1 } } }),
        json!({ "type": "object", "required": ["a"], "properties": { "a": { "type": "string", "enum": ["x"] } } }),
    ] {
        let faults = faults("", &ours, &theirs, judge);
        assert_eq!(faults.len(), 1, "{ours}: {faults:?}");
    }
}
