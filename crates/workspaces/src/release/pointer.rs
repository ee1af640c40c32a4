//! What a JSON pointer of `spec.driftIgnore` leads to.

use serde_json::Value;

/// Makes what a JSON pointer leads to, where it leads to anything, what it is in `live`. Another client may have put its
/// own, such as a container, before the one that an index means: where it has a name, that one is looked for. If it is
/// gone, it comes back as the chart has it.
pub fn set_from_live(desired: &mut Value, live: &Value, pointer: &str) {
    let (mut wanted, mut found) = (&*desired, Some(live));
    for token in pointer.split('/').skip(1) {
        let step = format!("/{token}");
        let Some(next) = wanted.pointer(&step) else { return };
        found = match (found, next.get("name")) {
            (Some(Value::Array(items)), Some(name)) => {
                let Some(same) = items.iter().find(|item| item.get("name") == Some(name)) else { return };
                Some(same)
            }
            (found, _) => found.and_then(|found| found.pointer(&step)),
        };
        wanted = next;
    }
    let Some(found) = found else { return remove(desired, pointer) };
    if let Some(wanted) = desired.pointer_mut(pointer) {
        overlay(wanted, found);
    }
}

/// Fields that the chart does not set are left out: they would become Helm's, and go with its next upgrade.
fn overlay(wanted: &mut Value, found: &Value) {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => {
            wanted.retain(|name, _| found.contains_key(name));
            for (name, wanted) in wanted {
                overlay(wanted, &found[name]);
            }
        }
        (wanted, found) => wanted.clone_from(found),
    }
}

/// Removes what a JSON pointer leads to.
pub fn remove(value: &mut Value, pointer: &str) {
    let Some((parent, last)) = pointer.rsplit_once('/') else { return };
    let last = last.replace("~1", "/").replace("~0", "~");
    match value.pointer_mut(parent) {
        Some(Value::Object(fields)) => drop(fields.remove(&last)),
        Some(Value::Array(elements)) => {
            if let Ok(index) = last.parse::<usize>()
                && index < elements.len()
            {
                elements.remove(index);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pointer_removes_what_it_names_and_all_below() {
        let mut value = json!({ "spec": { "replicas": 3, "a/b": { "c": 1 } }, "list": [1, 2] });
        for pointer in ["/spec/replicas", "/spec/a~1b", "/list/0", "/nothing/here", "bad"] {
            remove(&mut value, pointer);
        }
        assert_eq!(value, json!({ "spec": {}, "list": [2] }));
    }
}
