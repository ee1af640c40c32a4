//! What may go: machines at the provider that no record owns, and entries of the certificate log.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::instance::Record;

/// Who asks which certificates were good asks within a week of their end; a clock that was wrong for an hour removes
/// nothing that is.
const LOG_RETENTION: Duration = Duration::from_hours(7 * 24);

/// Whether the log may forget a certificate that ends then.
pub fn is_forgettable(expires_at: Timestamp, now: Timestamp) -> bool {
    expires_at.checked_add(LOG_RETENTION).is_ok_and(|end| now >= end)
}

/// A machine as the provider lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The label: the instance it was made for.
    pub instance_id: String,
    pub provider_id: String,
    pub created_at: Timestamp,
}

/// What storage says of a machine's instance.
#[derive(Clone, Copy, Debug)]
pub enum Owner<'a> {
    Record(&'a Record),
    /// Something that cannot be read, which may be its record.
    Unknown,
    None,
}

/// Which machines to delete: those whose instance was deleted, and those that have no record and are older than
/// `guard`. A record is stored before its machine is made, so that a young machine without one belongs to a server that
/// knows more than we do. `owner` finds the record by the instance's id. `unowned_for` says for how long this server has
/// found the machine without one, by the clock that cannot be set: a wall clock that is wrong makes no machine old.
/// Providers delete by the instance's id, so that no machine of a living instance is one, not even a [stranger](strangers).
pub fn orphans<'a, 'r>(
    found: &'a [Found],
    owner: impl Fn(&str) -> Owner<'r>,
    mut unowned_for: impl FnMut(&Found) -> Duration,
    guard: Duration,
    now: Timestamp,
) -> Vec<&'a Found> {
    let mut old = |found: &Found| {
        let is_seen = unowned_for(found) >= guard;
        is_seen && found.created_at.checked_add(guard).is_ok_and(|end| now >= end)
    };
    let orphan = |found: &&Found| match owner(&found.instance_id) {
        Owner::Unknown => false,
        Owner::None => old(found),
        Owner::Record(record) => record.deleted_at.is_some(),
    };
    found.iter().filter(orphan).collect()
}

/// Machines with the label of a living instance whose machine is another one: a person's copy of it, for example.
pub fn strangers<'a, 'r>(found: &'a [Found], owner: impl Fn(&str) -> Owner<'r>) -> Vec<&'a Found> {
    let is_strange = |found: &&Found| match owner(&found.instance_id) {
        Owner::Unknown | Owner::None => false,
        Owner::Record(record) => {
            let is_other = record.machine.as_ref().is_some_and(|machine| machine.provider_id != found.provider_id);
            record.deleted_at.is_none() && is_other
        }
    };
    found.iter().filter(is_strange).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::SignedDuration;

    use super::*;
    use crate::shard::{group::Blueprint, id::InstanceId, instance::MachineRef};

    #[test]
    fn the_log_keeps_a_certificate_for_a_week_after_its_end() {
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24 * 30);
        let ended = |hours| now - SignedDuration::from_hours(hours);
        assert_eq!([-1, 0, 167, 168].map(|hours| is_forgettable(ended(hours), now)), [false, false, false, true]);
        assert!(!is_forgettable(Timestamp::MAX, now));
    }

    #[test]
    fn only_machines_that_no_server_can_want_are_orphans() {
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(9);
        let guard = Duration::from_mins(10);
        let found = |number: u128, provider_id: &str, age: i64| Found {
            instance_id: InstanceId::new("web", number).to_string(),
            provider_id: provider_id.to_owned(),
            created_at: now - SignedDuration::from_mins(age),
        };
        let record = |number: u128, provider_id: Option<&str>, deleted: bool| {
            let id = InstanceId::new("web", number);
            let mut record = Record::new(id.clone(), ("t", "g", "w"), &Blueprint::default(), "s", now);
            let machine = |id: &str| MachineRef { provider_id: id.to_owned(), launched_at: now };
            record.machine = provider_id.map(machine);
            record.deleted_at = deleted.then_some(now);
            (id.to_string(), record)
        };
        let records = BTreeMap::from([
            record(1, Some("i-1"), false),
            record(2, None, false),
            record(3, Some("i-3"), true),
            record(4, Some("i-4"), false),
        ]);
        let all = [
            found(1, "i-1", 99),
            found(2, "i-2", 99),
            found(3, "i-3", 0),
            found(3, "i-3b", 0),
            found(4, "i-4b", 11),
            found(5, "i-5", 9),
            found(6, "i-6", 10),
        ];
        let owner = |id: &str| records.get(id).map_or(Owner::None, Owner::Record);
        let names =
            |orphans: Vec<&Found>| -> Vec<String> { orphans.iter().map(|found| found.provider_id.clone()).collect() };
        assert_eq!(names(orphans(&all, owner, |_| guard, guard, now)), ["i-3", "i-3b", "i-6"]);
        assert_eq!(names(strangers(&all, owner)), ["i-4b"], "to delete it would delete i-4");
        let barely = guard.saturating_sub(Duration::from_secs(1));
        let young = orphans(&all, owner, |_| barely, guard, now);
        assert_eq!(names(young), ["i-3", "i-3b"], "the wall clock alone makes none old");
        let unknown = orphans(&all, |_| Owner::Unknown, |_| guard, guard, now);
        assert_eq!(unknown, [] as [&Found; 0], "what cannot be read may be its record");
        assert_eq!(strangers(&all, |_| Owner::Unknown), [] as [&Found; 0]);
    }
}
