//! Group events of both generations of servers.

use super::{GroupEvent, GroupStatus};

/// What a group event says.
#[derive(Clone, Debug, PartialEq)]
pub enum GroupChange {
    Upsert(GroupStatus),
    /// Servers of the first generation leave the tenant empty.
    Delete {
        key: String,
        tenant: String,
    },
}

impl GroupChange {
    /// Reads an event. The first generation numbered `UPSERT=0, DELETE=1`, the second `UPSERT=1, DELETE=2`: a `1` is
    /// a deletion if the group says nothing but its key, because every living group has an etag and a template.
    /// `None` for an event without a group, which names nothing.
    pub fn read(event: GroupEvent) -> Option<Self> {
        let group = event.group.filter(|group| !group.key.is_empty())?;
        let empty = group.etag.is_empty() && group.template.is_empty();
        let delete = match event.r#type {
            0 => false,
            1 => empty,
            2 => true,
            // A generation that does not exist yet: the next list says what happened.
            _ => return None,
        };
        Some(if delete { Self::Delete { key: group.key, tenant: group.tenant } } else { Self::Upsert(group) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: i32, key: &str, etag: &str, template: &str) -> GroupEvent {
        let group = GroupStatus {
            key: key.to_owned(),
            tenant: "default".to_owned(),
            etag: etag.to_owned(),
            template: template.to_owned(),
            ..GroupStatus::default()
        };
        GroupEvent { r#type: kind, group: Some(group) }
    }

    fn check(kind: i32, etag: &str, template: &str, deletes: bool) {
        let change = GroupChange::read(event(kind, "web", etag, template)).expect("names a group");
        assert_eq!(matches!(change, GroupChange::Delete { .. }), deletes, "type {kind}, {etag:?}, {template:?}");
    }

    #[test]
    fn a02_both_generations_of_group_events_are_read() {
        check(0, "e", "t", false);
        check(1, "", "", true);
        check(1, "e", "t", false);
        check(1, "e", "", false);
        check(1, "", "t", false);
        check(2, "", "", true);
    }

    #[test]
    fn an_event_that_names_no_group_changes_nothing() {
        assert_eq!(GroupChange::read(GroupEvent { r#type: 1, group: None }), None);
        assert_eq!(GroupChange::read(event(2, "", "", "")), None);
        assert_eq!(GroupChange::read(event(3, "web", "e", "t")), None);
    }
}
