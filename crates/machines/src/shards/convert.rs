//! From the wire to the words of `plan`.

use std::time::Duration;

use jiff::Timestamp;
use plan::{
    machines::shard::{Group, Instance, Members},
    shard::instance::MachineStatus,
};
use shard::wire;
use tokio::time::Instant;

/// Of a name or a reason in a notice, in bytes: thousands of notices are kept, and no real one is longer.
const LONGEST: usize = 1024;

/// The deletion of an instance, as its shard announces it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub group: String,
    /// The provider's own; may be empty.
    pub provider_id: String,
    pub progress: Progress,
    /// In the shard's words, for example `spot-terminating`.
    pub reason: String,
    /// When the shard began to count the time for the drain.
    pub announced_at: Option<Timestamp>,
    /// When the shard deletes it whether or not it is drained; by the same clock.
    pub delete_at: Option<Timestamp>,
    /// The same by our own clock, of a shard that says how much of the time is left.
    pub deadline: Option<Instant>,
}

/// How far the deletion is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The shard waits for the drain of its Node.
    Pending,
    Deleting,
    Deleted,
}

/// What an event says that came now; `None` if it names no instance that can be, or says nothing that is known here.
pub(super) fn notice(event: wire::InstanceEvent, now: Instant) -> Option<(String, Notice)> {
    let names = [&event.instance_id, &event.group, &event.provider_instance_id];
    if event.instance_id.is_empty() || names.iter().any(|name| name.len() > LONGEST) {
        return None;
    }
    let progress = match event.status.as_str() {
        "pending_deletion" => Progress::Pending,
        "deleting" => Progress::Deleting,
        "deleted" => Progress::Deleted,
        _ => return None,
    };
    let notice = Notice {
        group: event.group,
        provider_id: event.provider_instance_id,
        progress,
        reason: event.reason[..event.reason.floor_char_boundary(LONGEST)].to_owned(),
        announced_at: event.unhealthy_at.as_ref().and_then(wire::read_timestamp),
        delete_at: event.delete_at.as_ref().and_then(wire::read_timestamp),
        deadline: event.time_left.and_then(|left| now.checked_add(Duration::try_from(left).ok()?)),
    };
    Some((event.instance_id, notice))
}

pub(super) fn group(found: wire::GroupStatus) -> Group {
    // A server of the original names no instances, also where it has some.
    let members = if found.instances.is_empty() && !found.provider_ids.is_empty() {
        Members::Counted(found.provider_ids)
    } else {
        Members::Listed(found.instances.into_iter().map(instance).collect())
    };
    Group {
        template: found.template,
        instance_type: found.instance_type,
        subnet_pool: found.subnet_pool,
        vars: found.vars,
        size: found.size,
        is_static: found.is_static,
        members,
    }
}

fn instance(listed: wire::group_status::Instance) -> Instance {
    Instance {
        id: listed.instance_id,
        provider_id: listed.provider_id,
        node_provider_id: listed.node_provider_id,
        status: status(&listed.status),
        created_at: listed.created_at.as_ref().and_then(wire::read_timestamp),
        is_leaving: false,
    }
}

/// A word that is not known here says nothing.
fn status(word: &str) -> MachineStatus {
    serde_json::from_value(word.into()).unwrap_or(MachineStatus::Unknown)
}

/// Of an instance that was asked for by its ID.
pub(super) fn asked_instance(answer: wire::InstanceStatusResponse, is_leaving: bool) -> Instance {
    Instance {
        id: answer.instance_id,
        provider_id: answer.provider_instance_id,
        node_provider_id: answer.node_provider_id,
        status: status(&answer.status),
        created_at: answer.created_at.as_ref().and_then(wire::read_timestamp),
        is_leaving,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_names_no_instances_is_known_by_its_provider_ids() {
        let stock = wire::GroupStatus { provider_ids: vec!["i-1".to_owned()], ..wire::GroupStatus::default() };
        assert_eq!(group(stock).members, Members::Counted(vec!["i-1".to_owned()]));
        assert_eq!(group(wire::GroupStatus::default()).members, Members::Listed(Vec::new()));
        let listed = wire::group_status::Instance {
            instance_id: "web1".to_owned(),
            status: "from a later version".to_owned(),
            ..wire::group_status::Instance::default()
        };
        let own = wire::GroupStatus {
            provider_ids: vec![String::new()],
            instances: vec![listed],
            ..wire::GroupStatus::default()
        };
        assert_eq!(group(own).instances()[0].status, MachineStatus::Unknown);
    }

    #[test]
    fn events_that_say_nothing_known_are_left_out() {
        let read = |event| notice(event, Instant::now());
        let event = |id: &str, status: &str| wire::InstanceEvent {
            instance_id: id.to_owned(),
            status: status.to_owned(),
            ..wire::InstanceEvent::default()
        };
        assert_eq!(read(event("web1", "pending_deletion")).unwrap().1.progress, Progress::Pending);
        assert_eq!(read(event("web1", "deleted")).unwrap().1.progress, Progress::Deleted);
        assert_eq!(read(event("web1", "resting")), None);
        assert_eq!(read(event("", "deleted")), None);
        assert_eq!(read(event(&"x".repeat(1025), "deleted")), None, "no instance has such a name");
        let wordy = wire::InstanceEvent { reason: "é".repeat(1000), ..event("web1", "deleted") };
        assert_eq!(read(wordy).unwrap().1.reason, "é".repeat(512));
    }
}
