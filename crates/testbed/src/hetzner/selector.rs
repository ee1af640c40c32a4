//! Labels and the language that selects by them.

use std::collections::BTreeMap;

use super::refusal::Refusal;

pub(super) type Labels = BTreeMap<String, String>;

/// All terms must hold.
#[derive(Debug)]
pub(super) struct Selector(Vec<Term>);

#[derive(Debug, PartialEq)]
enum Term {
    Present(String),
    Absent(String),
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
}

impl Selector {
    /// The empty text selects everything.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let refused = || Refusal::invalid("label_selector", "label selector is not correctly formatted");
        if text.trim().is_empty() {
            return Ok(Self(Vec::new()));
        }
        let terms: Option<Vec<Term>> = split(text).into_iter().map(term).collect();
        terms.map(Self).ok_or_else(refused)
    }

    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|term| match term {
            Term::Present(key) => labels.contains_key(key),
            Term::Absent(key) => !labels.contains_key(key),
            Term::In(key, values) => labels.get(key).is_some_and(|value| values.contains(value)),
            Term::NotIn(key, values) => !labels.get(key).is_some_and(|value| values.contains(value)),
        })
    }
}

/// At the commas outside parentheses.
fn split(text: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    let parts = text.split(|c| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    });
    parts.map(str::trim).collect()
}

fn term(text: &str) -> Option<Term> {
    if let Some(key) = text.strip_prefix('!') {
        return Some(Term::Absent(key_of(key)?));
    }
    for (word, make) in [(" notin ", Term::NotIn as fn(_, _) -> _), (" in ", Term::In as fn(_, _) -> _)] {
        if let Some((key, set)) = text.split_once(word) {
            let set = set.trim().strip_prefix('(')?.strip_suffix(')')?;
            let values: Option<Vec<String>> = set.split(',').map(value_of).collect();
            return Some(make(key_of(key)?, values?));
        }
    }
    if let Some((key, value)) = text.split_once("!=") {
        return Some(Term::NotIn(key_of(key)?, vec![value_of(value)?]));
    }
    if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return Some(Term::In(key_of(key)?, vec![value_of(value)?]));
    }
    Some(Term::Present(key_of(text)?))
}

fn key_of(text: &str) -> Option<String> {
    let text = text.trim();
    is_key(text).then(|| text.to_owned())
}

fn value_of(text: &str) -> Option<String> {
    let text = text.trim();
    is_value(text).then(|| text.to_owned())
}

/// `[prefix/]name`: the prefix a DNS subdomain, the name up to 63 characters.
fn is_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => prefix.len() <= 253 && is_word(prefix, 253) && is_word(name, 63),
        None => is_word(key, 63),
    }
}

fn is_value(value: &str) -> bool {
    value.is_empty() || is_word(value, 63)
}

fn is_word(text: &str, longest: usize) -> bool {
    let ends_well = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= longest
        && ends_well(text.chars().next())
        && ends_well(text.chars().next_back())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// Labels that a request gives; the vendor keeps `hetzner.cloud/` for itself.
pub(super) fn check_labels(labels: &Labels) -> Result<(), Refusal> {
    for (key, value) in labels {
        if !is_key(key) || key.starts_with("hetzner.cloud/") {
            return Err(Refusal::invalid("labels", format!("label key '{key}' is not correctly formatted")));
        }
        if !is_value(value) {
            let message = format!("label value '{value}' (key: {key}) is not correctly formatted");
            return Err(Refusal::invalid("labels", message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(selector: &str, matching: &[&str], other: &[&str]) {
        let selector = Selector::parse(selector).unwrap();
        let labels = |text: &str| -> Labels {
            let pairs = text.split(' ').filter_map(|pair| pair.split_once('='));
            pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
        };
        for text in matching {
            assert!(selector.matches(&labels(text)), "{selector:?} on {text}");
        }
        for text in other {
            assert!(!selector.matches(&labels(text)), "{selector:?} on {text}");
        }
    }

    #[test]
    fn every_form_selects_as_documented() {
        check("", &["", "a=1"], &[]);
        check("a", &["a=", "a=1"], &["b=1", ""]);
        check("!a", &["b=1", ""], &["a=1"]);
        check("a=1", &["a=1 b=2"], &["a=2", ""]);
        check("a==1", &["a=1"], &["a=2"]);
        check("a!=1", &["a=2", ""], &["a=1"]);
        check("a in (1, 2)", &["a=1", "a=2"], &["a=3", ""]);
        check("a notin (1,2)", &["a=3", ""], &["a=1"]);
        check("k8zner.io/cluster=x, role in (cp,w),!old", &["k8zner.io/cluster=x role=w"], &["role=w", "old= role=w"]);
    }

    #[test]
    fn bad_selectors_are_refused() {
        for selector in ["a=(", "=1", "a in 1", "a in (1", "a,,b", "-a", "a=b c", "a in ()=", "a//b"] {
            assert_eq!(
                Selector::parse(selector).map_err(|refusal| refusal.code).err(),
                Some("invalid_input"),
                "{selector}"
            );
        }
    }
}
