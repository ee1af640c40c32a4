//! Requests counted from the audit log.

use std::collections::BTreeMap;

use serde::Serialize;
use testbed::audit::Entry;

use super::ground::{OPERATOR_USER, is_heartbeat};

/// Writes of all clients, per performer; heartbeats left out.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AllWrites {
    pub objects: f64,
    pub events: f64,
}

impl AllWrites {
    pub fn of(entries: &[Entry], count: usize) -> Self {
        let writes = || entries.iter().filter(|entry| entry.is_write() && !is_heartbeat(entry));
        let events = writes().filter(|entry| entry.resource == "events").count();
        Self { objects: each(writes().count() - events, count), events: each(events, count) }
    }
}

/// Requests under the operator's identity. A watch is logged when it ends, so those that still run are not in here.
#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tally {
    pub finalizer: usize,
    pub pod: usize,
    pub service: usize,
    pub status: usize,
    pub other_writes: usize,
    pub events: usize,
    pub leases: usize,
    pub gets: usize,
    pub lists: usize,
    pub watches_ended: usize,
    /// Answered with an error, among all of the above.
    pub refused: usize,
}

impl Tally {
    pub fn of(entries: &[Entry]) -> Self {
        let mut tally = Self::default();
        for entry in entries.iter().filter(|entry| entry.user == OPERATOR_USER) {
            *tally.place(entry) += 1;
            tally.refused += usize::from(entry.code >= 400);
        }
        tally
    }

    /// Leases come first: their reads are no reads of performers.
    fn place(&mut self, entry: &Entry) -> &mut usize {
        let resource = (entry.resource.as_str(), entry.subresource.as_str());
        match (entry.verb.as_str(), resource) {
            ("watch", _) => &mut self.watches_ended,
            (_, ("leases", _)) => &mut self.leases,
            ("get", _) => &mut self.gets,
            ("list", _) => &mut self.lists,
            (_, ("events", _)) => &mut self.events,
            (_, ("performers", "")) => &mut self.finalizer,
            (_, ("performers", "status")) => &mut self.status,
            (_, ("pods", _)) => &mut self.pod,
            (_, ("services", _)) => &mut self.service,
            _ => &mut self.other_writes,
        }
    }

    /// Events and leases are counted apart.
    pub fn writes(&self) -> usize {
        self.finalizer + self.pod + self.service + self.status + self.other_writes
    }
}

/// All requests of the operator, heartbeats left out.
pub fn of_operator(entries: &[Entry]) -> impl Iterator<Item = &Entry> {
    entries.iter().filter(|entry| entry.user == OPERATOR_USER && !is_heartbeat(entry))
}

/// How many there are by verb and resource.
pub fn by_resource<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for entry in entries {
        let part = if entry.subresource.is_empty() { "" } else { "/" };
        let what = format!("{} {}{part}{}", entry.verb, entry.resource, entry.subresource);
        *counts.entry(what).or_default() += 1;
    }
    counts
}

/// A total as so much per performer.
#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
pub fn each(total: usize, count: usize) -> f64 {
    total as f64 / count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(user: &str, verb: &str, resource: &str, subresource: &str, code: u16) -> Entry {
        Entry {
            user: user.into(),
            verb: verb.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            group: String::new(),
            namespace: String::new(),
            name: String::new(),
            code,
            user_agent: String::new(),
            uri: String::new(),
            received_at: k8s_openapi::jiff::Timestamp::UNIX_EPOCH,
            answered_at: k8s_openapi::jiff::Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn own_requests_are_sorted_by_purpose() {
        let entries = [
            ("patch", "performers", "", 200),
            ("create", "pods", "", 201),
            ("create", "services", "", 409),
            ("get", "services", "", 200),
            ("patch", "performers", "status", 200),
            ("create", "events", "", 201),
            ("update", "leases", "", 200),
            ("get", "leases", "", 200),
            ("watch", "pods", "", 200),
        ];
        let mut entries =
            entries.map(|(verb, resource, sub, code)| entry(OPERATOR_USER, verb, resource, sub, code)).to_vec();
        entries.push(entry("another", "create", "pods", "", 201));
        let tally = Tally::of(&entries);
        let expected = Tally {
            finalizer: 1,
            pod: 1,
            service: 1,
            status: 1,
            events: 1,
            leases: 2,
            gets: 1,
            watches_ended: 1,
            refused: 1,
            ..Tally::default()
        };
        assert_eq!(tally, expected);
        assert_eq!(tally.writes(), 4);
        assert_eq!(AllWrites::of(&entries, 2), AllWrites { objects: 2.5, events: 0.5 });
    }
}
