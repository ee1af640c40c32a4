//! Which objects of a kind are watched, and when one selection is a part of another.

use std::collections::{BTreeMap, BTreeSet};

use kube::core::{Expression, SelectorExt};

use crate::key::Key;

/// Which objects of a kind are watched. What a layer keeps must not depend on more than this and the object itself:
/// an object that is read after a conflict is not asked for its selectors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Those of one namespace: asked for there, so that a right in that namespace suffices. `None`: of all.
    pub namespace: Option<String>,
    pub labels: Option<String>,
    pub fields: Option<String>,
}

/// A selection taken apart into requirements that must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Requirements {
    labels: BTreeSet<Expression>,
    fields: BTreeSet<Field>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Field {
    path: String,
    value: String,
    is_equal: bool,
}

impl Selection {
    /// `None` for a text that is no selector: such a selection is shared with nothing but its equal.
    pub(crate) fn requirements(&self) -> Option<Requirements> {
        let namespace = self.namespace.iter().map(|namespace| Some(Field::namespace(namespace)));
        Some(Requirements {
            labels: parts(self.labels.as_deref()).map(expression).collect::<Option<_>>()?,
            fields: parts(self.fields.as_deref()).map(field).chain(namespace).collect::<Option<_>>()?,
        })
    }

    /// The objects of one namespace.
    pub fn in_namespace(namespace: &str) -> Self {
        Self { namespace: Some(namespace.to_owned()), ..Self::default() }
    }

    /// The one object of a key.
    pub fn of(key: &Key) -> Self {
        let fields = Some(format!("metadata.name={}", key.name));
        Self { namespace: Some(key.namespace.to_string()), labels: None, fields }
    }

    /// Whether every object of this selection is in `wider`, and can be distinguished there from the others without the
    /// server.
    pub(crate) fn is_within(&self, wider: &Self) -> bool {
        if self == wider {
            return true;
        }
        let (Some(narrow), Some(wide)) = (self.requirements(), wider.requirements()) else { return false };
        narrow.labels.is_superset(&wide.labels)
            && narrow.fields.is_superset(&wide.fields)
            && narrow.fields.difference(&wide.fields).all(Field::is_local)
    }
}

impl Requirements {
    /// Whether an object is selected; `None` if only the server can say so.
    pub(crate) fn select(&self, key: &Key, labels: impl FnOnce() -> BTreeMap<String, String>) -> Option<bool> {
        for field in &self.fields {
            if !field.holds(key)? {
                return Some(false);
            }
        }
        if self.labels.is_empty() {
            return Some(true);
        }
        let labels = labels();
        Some(self.labels.iter().all(|expression| expression.matches(&labels)))
    }
}

impl Field {
    fn namespace(namespace: &str) -> Self {
        Self { path: "metadata.namespace".to_owned(), value: namespace.to_owned(), is_equal: true }
    }

    fn is_local(&self) -> bool {
        matches!(self.path.as_str(), "metadata.name" | "metadata.namespace")
    }

    fn holds(&self, key: &Key) -> Option<bool> {
        let found = match self.path.as_str() {
            "metadata.name" => &key.name,
            "metadata.namespace" => &key.namespace,
            _ => return None,
        };
        Some((**found == *self.value) == self.is_equal)
    }
}

/// The requirements of a selector, which commas separate, but not those in parentheses.
fn parts(selector: Option<&str>) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    let split = move |letter: char| {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    };
    selector.unwrap_or_default().split(split).map(str::trim).filter(|part| !part.is_empty())
}

fn expression(text: &str) -> Option<Expression> {
    if let Some((head, values)) = text.strip_suffix(')').and_then(|text| text.split_once('(')) {
        let values = values.split(',').map(|value| value.trim().to_owned()).collect();
        let head = head.trim_end();
        return match (head.strip_suffix(" notin"), head.strip_suffix(" in")) {
            (Some(key), _) => Some(Expression::NotIn(label(key)?, values)),
            (None, Some(key)) => Some(Expression::In(label(key)?, values)),
            (None, None) => None,
        };
    }
    if let Some((key, value)) = text.split_once("!=") {
        return Some(Expression::NotEqual(label(key)?, value.trim().to_owned()));
    }
    if let Some((key, value)) = text.split_once('=') {
        return Some(Expression::Equal(label(key)?, value.trim_start_matches('=').trim().to_owned()));
    }
    match text.strip_prefix('!') {
        Some(key) => Some(Expression::DoesNotExist(label(key)?)),
        None => Some(Expression::Exists(label(text)?)),
    }
}

fn label(key: &str) -> Option<String> {
    let key = key.trim();
    let is_label = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte));
    is_label.then(|| key.to_owned())
}

fn field(text: &str) -> Option<Field> {
    let (path, value, is_equal) = match text.split_once("!=") {
        Some((path, value)) => (path, value, false),
        None => text.split_once('=').map(|(path, value)| (path, value.trim_start_matches('='), true))?,
    };
    Some(Field { path: path.trim().to_owned(), value: value.trim().to_owned(), is_equal })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(labels: &str, fields: &str) -> Selection {
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Selection { namespace: None, labels: text(labels), fields: text(fields) }
    }

    #[test]
    fn a_selection_with_more_requirements_is_within_one_with_fewer() {
        for (narrow, wide, expected) in [
            (("", ""), ("", ""), true),
            (("a=b", ""), ("", ""), true),
            (("", ""), ("a=b", ""), false),
            (("a=b,c", ""), ("c,a==b", ""), true),
            (("a=b,c", ""), ("a=b", ""), true),
            (("a=b", ""), ("a=c", ""), false),
            (("x in (a, b),y", ""), ("x in (b,a)", ""), true),
            (("x notin (a)", ""), ("x in (a)", ""), false),
            (("!x,y", ""), ("!x", ""), true),
            (("", "metadata.name=a"), ("", ""), true),
            (("l", "metadata.namespace=n,metadata.name!=a"), ("l", "metadata.namespace=n"), true),
            // Only the server knows which objects these are.
            (("", "spec.nodeName=a"), ("", ""), false),
            (("l", "spec.nodeName=a"), ("", "spec.nodeName=a"), true),
            (("spec???", ""), ("spec???", ""), true),
            (("spec???", ""), ("", ""), false),
        ] {
            let within = selection(narrow.0, narrow.1).is_within(&selection(wide.0, wide.1));
            assert_eq!(within, expected, "{narrow:?} within {wide:?}");
        }
    }

    #[test]
    fn one_namespace_is_within_all_and_within_itself_alone() {
        let (all, ours, theirs) =
            (Selection::default(), Selection::in_namespace("ours"), Selection::in_namespace("theirs"));
        let one = Selection::of(&Key::new("ours", "a"));
        for (narrow, wide, expected) in [
            (&ours, &all, true),
            (&all, &ours, false),
            (&ours, &theirs, false),
            (&one, &ours, true),
            (&one, &theirs, false),
            (&ours, &selection("", "metadata.namespace=ours"), true),
        ] {
            assert_eq!(narrow.is_within(wide), expected, "{narrow:?} within {wide:?}");
        }
        let select = |key: &Key| one.requirements().unwrap().select(key, BTreeMap::new);
        assert_eq!(select(&Key::new("ours", "a")), Some(true));
        assert_eq!(select(&Key::new("theirs", "a")), Some(false));
    }

    #[test]
    fn an_object_is_selected_by_labels_and_by_name() {
        let labels: BTreeMap<String, String> =
            [("app", "web"), ("tier", "front")].map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let key = Key::new("n", "a");
        for (selector, expected) in [
            (("", ""), Some(true)),
            (("app=web,tier in (front,back)", "metadata.namespace=n"), Some(true)),
            (("app=web,!other,other!=x", ""), Some(true)),
            (("app!=web", ""), Some(false)),
            (("missing", ""), Some(false)),
            (("tier notin (front)", ""), Some(false)),
            (("app=web", "metadata.name!=a"), Some(false)),
            (("app=web", "spec.nodeName=x"), None),
        ] {
            let requirements = selection(selector.0, selector.1).requirements().unwrap();
            assert_eq!(requirements.select(&key, || labels.clone()), expected, "{selector:?}");
        }
    }
}
