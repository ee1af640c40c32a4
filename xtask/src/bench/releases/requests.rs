//! Requests of the operator and of its helm, from the audit log.

use std::collections::BTreeMap;

use serde::Serialize;
use testbed::audit::Entry;

use crate::bench::tally::{by_resource, of_operator};

/// A watch is logged when it ends, so those that still run are not in here.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Requests {
    /// Of the operator itself, by verb and resource; its lease aside.
    pub own: BTreeMap<String, usize>,
    pub own_writes: usize,
    /// Of the helm processes, which act under the same identity and name themselves.
    pub helm: usize,
}

impl Requests {
    pub fn of(entries: &[Entry]) -> Self {
        let (helm, own): (Vec<_>, Vec<_>) =
            of_operator(entries).partition(|entry| entry.user_agent.starts_with("Helm/"));
        // A review stores nothing.
        let is_stored = |entry: &&&Entry| entry.is_write() && entry.resource != "selfsubjectaccessreviews";
        Self { own_writes: own.iter().filter(is_stored).count(), own: by_resource(own), helm: helm.len() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::ground::OPERATOR_USER;

    #[test]
    fn helm_is_distinguished_from_the_operator_by_its_user_agent() {
        let entry = |user_agent: &str, verb: &str, resource: &str, subresource: &str| Entry {
            user: OPERATOR_USER.into(),
            verb: verb.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            group: String::new(),
            namespace: String::new(),
            name: String::new(),
            code: 200,
            user_agent: user_agent.into(),
            uri: String::new(),
            received_at: k8s_openapi::jiff::Timestamp::UNIX_EPOCH,
            answered_at: k8s_openapi::jiff::Timestamp::UNIX_EPOCH,
        };
        let entries = [
            entry("", "patch", "helmreleases", "status"),
            entry("", "get", "secrets", ""),
            entry("", "update", "leases", ""),
            entry("Helm/4.3.1", "create", "secrets", ""),
        ];
        let own = [("patch helmreleases/status".to_owned(), 1), ("get secrets".to_owned(), 1)].into();
        assert_eq!(Requests::of(&entries), Requests { own, own_writes: 1, helm: 1 });
    }
}
