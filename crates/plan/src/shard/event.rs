//! The events that watchers get about instances.

use jiff::Timestamp;

use super::instance::{Leaving, Record};

/// What happens to an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It drains until its time is over.
    PendingDeletion,
    Deleted,
}

impl Change {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PendingDeletion => "pending_deletion",
            Self::Deleted => "deleted",
        }
    }
}

/// One event of one instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceEvent {
    pub change: Change,
    pub reason: &'static str,
    pub unhealthy_at: Option<Timestamp>,
    pub delete_at: Option<Timestamp>,
}

/// The event that a record calls for, if any.
pub fn of(record: &Record) -> Option<InstanceEvent> {
    let leaving = record.leaving.as_ref();
    let reason = leaving.map_or("", |leaving| leaving.reason.as_str());
    let unhealthy_at = leaving.map(|leaving| leaving.since);
    if record.deleted_at.is_some() {
        return Some(InstanceEvent { change: Change::Deleted, reason, unhealthy_at, delete_at: record.deleted_at });
    }
    let leaving = leaving.filter(|leaving| leaving.drains())?;
    let delete_at = Some(leaving.delete_at);
    Some(InstanceEvent { change: Change::PendingDeletion, reason, unhealthy_at, delete_at })
}

/// What a new watcher gets: deletions that are still remembered, because a watcher may have been away, then the drains
/// that are under way; each in order of time.
pub fn snapshot<'a>(records: impl IntoIterator<Item = &'a Record>) -> Vec<(&'a Record, InstanceEvent)> {
    let mut events: Vec<_> = records.into_iter().filter_map(|record| Some((record, of(record)?))).collect();
    let since = |leaving: &Option<Leaving>| leaving.as_ref().map(|leaving| leaving.since);
    events.sort_by_key(|(record, event)| {
        (event.change == Change::PendingDeletion, record.deleted_at, since(&record.leaving), record.id.clone())
    });
    events
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::shard::{
        group::Blueprint,
        id::InstanceId,
        instance::{Leaving, Reason},
    };

    #[test]
    fn a_new_watcher_learns_deletions_first_then_drains_in_order() {
        let now = Timestamp::UNIX_EPOCH;
        let at = |minutes| now + SignedDuration::from_mins(minutes);
        let record = |number: u128, leaving: Option<(i64, i64)>, deleted: Option<i64>| {
            let id = InstanceId::new("web", number);
            let mut record = Record::new(id, ("t", "g", "w"), &Blueprint::default(), "s", now);
            let leave = |(since, end)| Leaving { reason: Reason::ScaleDown, since: at(since), delete_at: at(end) };
            record.leaving = leaving.map(leave);
            record.deleted_at = deleted.map(at);
            record
        };
        let records = [
            record(1, None, None),
            record(2, Some((3, 9)), None),
            record(3, Some((1, 6)), None),
            record(4, Some((4, 4)), None),
            record(5, Some((0, 0)), Some(2)),
            record(6, Some((0, 1)), Some(1)),
        ];
        let seen: Vec<_> = snapshot(&records)
            .iter()
            .map(|(record, event)| (record.id.as_str().chars().next_back().unwrap(), event.change, event.reason))
            .collect();
        let (gone, drains) = (Change::Deleted, Change::PendingDeletion);
        let why = "scale-down";
        assert_eq!(seen, [('6', gone, why), ('5', gone, why), ('3', drains, why), ('2', drains, why)]);
    }
}
