//! Vars that become labels of the Node.

use std::collections::BTreeMap;

/// Of a label's name and value alike.
const LONGEST: usize = 63;

/// Of the domain before a label's name.
const LONGEST_DOMAIN: usize = 253;

/// The labels, and the vars that cannot be one: vars may hold any text, labels may not, and a var does not decide what
/// Kubernetes or the shard say of a Node.
pub fn labels(vars: impl IntoIterator<Item = (String, String)>) -> (BTreeMap<String, String>, Vec<String>) {
    let mut refused = Vec::new();
    let mut labels = BTreeMap::new();
    for (name, value) in vars {
        if is_key(&name) && is_value(&value) && !is_reserved(&name) {
            labels.insert(name, value);
        } else {
            refused.push(name);
        }
    }
    (labels, refused)
}

/// Kubernetes' own labels, and the shard's. Those below `node.kubernetes.io` are for whoever runs the node.
fn is_reserved(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let below = |parent: &str| domain == parent || domain.strip_suffix(parent).is_some_and(|rest| rest.ends_with('.'));
    !below("node.kubernetes.io") && ["kubernetes.io", "k8s.io", "nstance.dev"].into_iter().any(below)
}

fn is_key(key: &str) -> bool {
    let (domain, name) = key.split_once('/').map_or((None, key), |(domain, name)| (Some(domain), name));
    let part = |part: &str| {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        part.bytes().all(|byte| plain(byte) || byte == b'-')
            && part.bytes().next().is_some_and(plain)
            && part.bytes().next_back().is_some_and(plain)
    };
    !name.is_empty()
        && is_value(name)
        && domain.is_none_or(|domain| domain.len() <= LONGEST_DOMAIN && domain.split('.').all(part))
}

fn is_value(value: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric();
    let ends = [value.bytes().next(), value.bytes().next_back()];
    value.len() <= LONGEST
        && value.bytes().all(|byte| plain(byte) || b"-_.".contains(&byte))
        && ends.into_iter().flatten().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a83_vars_become_labels_where_they_can() {
        let check = |name: &str, value: &str, fits: bool| {
            let (labels, refused) = labels([(name.to_owned(), value.to_owned())]);
            assert_eq!((labels.len(), refused.len()), (usize::from(fits), usize::from(!fits)), "{name}={value}");
        };
        for (name, value) in [
            ("TIER", "gold"),
            ("tier", ""),
            ("a.b_c-d", "1.2_3-4"),
            ("example.com/tier", "x"),
            ("node.kubernetes.io/pool", "x"),
            ("mykubernetes.io/x", "x"),
            (&"n".repeat(63), &"v".repeat(63)),
        ] {
            check(name, value, true);
        }
        for (name, value) in [
            ("", "x"),
            ("a b", "x"),
            ("-a", "x"),
            ("A", "two words"),
            ("A", "-x"),
            ("A", "ü"),
            ("Example.com/a", "x"),
            ("/a", "x"),
            ("a/", "x"),
            ("a/b/c", "x"),
            ("kubernetes.io/hostname", "x"),
            ("topology.kubernetes.io/zone", "x"),
            ("node-role.kubernetes.io/control-plane", ""),
            ("x.k8s.io/y", "x"),
            ("nstance.dev/group", "x"),
            (&"n".repeat(64), "x"),
            ("A", &"v".repeat(64)),
        ] {
            check(name, value, false);
        }
    }
}
