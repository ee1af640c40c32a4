//! Between what is decided and what is sent.

use jiff::{SignedDuration, Timestamp};
use plan::shard::{event, instance::Record};

use super::InstanceEvent;

/// A time on the wire.
pub fn timestamp(at: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: at.as_second(), nanos: at.subsec_nanosecond() }
}

/// `None` for one that is no time.
pub fn read_timestamp(at: &prost_types::Timestamp) -> Option<Timestamp> {
    Timestamp::new(at.seconds, at.nanos).ok()
}

fn duration(time: SignedDuration) -> prost_types::Duration {
    prost_types::Duration { seconds: time.as_secs(), nanos: time.subsec_nanos() }
}

/// An event of one instance. The time that is left of a drain is apart, because a clock may have been set since.
pub fn instance_event(record: &Record, event: &event::InstanceEvent, left: Option<SignedDuration>) -> InstanceEvent {
    let left = left.filter(|_| event.change == event::Change::PendingDeletion);
    InstanceEvent {
        instance_id: record.id.to_string(),
        tenant: record.tenant.clone(),
        provider_instance_id: record.provider_id().to_owned(),
        group: record.group.clone(),
        status: event.change.as_str().to_owned(),
        reason: event.reason.to_owned(),
        unhealthy_at: event.unhealthy_at.map(timestamp),
        delete_at: event.delete_at.map(timestamp),
        time_left: left.map(|left| duration(left.max(SignedDuration::ZERO))),
    }
}
