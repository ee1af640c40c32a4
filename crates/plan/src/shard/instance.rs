//! An instance: what is stored about it, and what is observed of it.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{config::Config, group::Blueprint, id::InstanceId};

/// So many intervals without a report make an instance unhealthy.
const MISSED_REPORTS: u32 = 3;

/// What is stored of an instance, from before its machine is made until its purge.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub id: InstanceId,
    pub tenant: String,
    pub group: String,
    pub template: String,
    #[serde(default)]
    pub on_demand: bool,
    /// Of the request that asked for it: repeated to another leader, the same request has the same answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Made to take the place of another: the next leader goes on where this one was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<Replaces>,
    pub created_at: Timestamp,
    #[serde(default)]
    pub instance_type: String,
    #[serde(default)]
    pub subnet: String,
    #[serde(default)]
    pub vars: BTreeMap<String, String>,
    /// The blueprint's hash it was made with.
    #[serde(default)]
    pub hash: String,
    /// Absent until the provider answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaving: Option<Leaving>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<Timestamp>,
}

/// Whose place an instance takes, and why that one goes once the place is taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replaces {
    pub id: InstanceId,
    pub reason: Reason,
}

/// The provider's machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineRef {
    pub provider_id: String,
    pub launched_at: Timestamp,
}

/// An instance that goes, and why. There is no way back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaving {
    pub reason: Reason,
    pub since: Timestamp,
    /// Deleted then at the latest; until then it drains. At `since` itself it does not drain.
    pub delete_at: Timestamp,
}

/// Why an instance goes: the words of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    Unhealthy,
    SpotTerminating,
    EligibleExpiry,
    ForcedExpiry,
    #[serde(rename = "ondemand-expiry")]
    OnDemandExpiry,
    ConfigDrift,
    ScaleDown,
    Preemption,
    Request,
}

impl Reason {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unhealthy => "unhealthy",
            Self::SpotTerminating => "spot-terminating",
            Self::EligibleExpiry => "eligible-expiry",
            Self::ForcedExpiry => "forced-expiry",
            Self::OnDemandExpiry => "ondemand-expiry",
            Self::ConfigDrift => "config-drift",
            Self::ScaleDown => "scale-down",
            Self::Preemption => "preemption",
            Self::Request => "request",
        }
    }
}

/// What the provider says of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MachineStatus {
    Pending,
    Running,
    Stopping,
    Stopped,
    Suspending,
    Suspended,
    Deleting,
    Deleted,
    Repairing,
    Failed,
    Unknown,
}

impl MachineStatus {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Suspending => "suspending",
            Self::Suspended => "suspended",
            Self::Deleting => "deleting",
            Self::Deleted => "deleted",
            Self::Repairing => "repairing",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }

    /// The machine runs no more, and will not by itself.
    pub fn is_down(self) -> bool {
        match self {
            Self::Pending | Self::Running | Self::Unknown => false,
            Self::Stopping
            | Self::Stopped
            | Self::Suspending
            | Self::Suspended
            | Self::Deleting
            | Self::Deleted
            | Self::Repairing
            | Self::Failed => true,
        }
    }
}

/// What is known of a machine. Unknown is not absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Machine {
    #[default]
    Unknown,
    /// The provider answered, and has none under this instance's name.
    Absent,
    There {
        provider_id: String,
        status: MachineStatus,
    },
}

/// What is known from the instance's agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agent {
    pub registered: bool,
    /// Of the last report, or since when this server has listened.
    pub last_seen: Timestamp,
    /// Whether it has reported to this server.
    pub reported: bool,
    /// The machine's end is near, and when if the notice says so.
    pub notice: Option<Option<Timestamp>>,
}

/// One instance with its facts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Member {
    pub record: Record,
    pub machine: Machine,
    pub agent: Agent,
    /// The operator drained it.
    pub acknowledged: bool,
    /// A provider call for it failed; not again before that time.
    pub retry_at: Option<Timestamp>,
    /// For how long this server has known it, by the clock that cannot be set.
    pub known_for: Duration,
}

/// Times and limits that decisions depend on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    pub health_check_interval: Duration,
    pub registration_timeout: Duration,
    pub retention: Duration,
    pub drain_timeout: Duration,
    pub eligible_age: Option<Duration>,
    pub forced_age: Option<Duration>,
    pub ondemand_age: Option<Duration>,
}

impl From<&Config> for Settings {
    fn from(config: &Config) -> Self {
        let (shard, age) = (&config.shard, |span: Option<super::config::Span>| span.map(super::config::Span::get));
        Self {
            health_check_interval: shard.health_check_interval.get(),
            registration_timeout: shard.garbage_collection.registration_timeout.get(),
            retention: shard.garbage_collection.deleted_record_retention.get(),
            drain_timeout: config.drain_timeout(),
            eligible_age: age(shard.expiry.eligible_age),
            forced_age: age(shard.expiry.forced_age),
            ondemand_age: age(shard.expiry.ondemand_age),
        }
    }
}

/// How an instance is. Derived each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    /// No machine, or one that does not run: nothing to drain.
    Gone,
    /// Runs, but its agent is silent.
    Silent,
    /// On its way: not launched, or not registered yet.
    Starting,
    Healthy,
}

impl Record {
    /// A new instance of a group.
    pub fn new(
        id: InstanceId,
        (tenant, group, template): (&str, &str, &str),
        blueprint: &Blueprint,
        subnet: &str,
        now: Timestamp,
    ) -> Self {
        Self {
            id,
            tenant: tenant.to_owned(),
            group: group.to_owned(),
            template: template.to_owned(),
            on_demand: false,
            request_id: None,
            replaces: None,
            created_at: now,
            instance_type: blueprint.instance_type.clone(),
            subnet: subnet.to_owned(),
            vars: blueprint.vars.clone(),
            hash: blueprint.hash.clone(),
            machine: None,
            leaving: None,
            deleted_at: None,
        }
    }

    pub fn replaces_id(&self) -> Option<&InstanceId> {
        self.replaces.as_ref().map(|replaces| &replaces.id)
    }

    pub fn provider_id(&self) -> &str {
        self.machine.as_ref().map_or("", |machine| &machine.provider_id)
    }
}

impl Leaving {
    pub fn drains(&self) -> bool {
        self.delete_at > self.since
    }
}

impl Member {
    /// Whether it was decided, here or by the operator, that it goes.
    pub fn is_leaving(&self) -> bool {
        self.acknowledged || self.record.leaving.is_some() || self.record.deleted_at.is_some()
    }

    /// Until when the instance may stay as it is, and its health now.
    pub fn health(&self, settings: &Settings, now: Timestamp) -> (Health, Option<Timestamp>) {
        let after = |from: Timestamp, time: Duration| from.saturating_add(time).unwrap_or(Timestamp::MAX);
        let Some(machine) = &self.record.machine else {
            let end = after(self.record.created_at, settings.registration_timeout);
            // Never made: gone once the provider says that it has none and the time for another attempt is over.
            let gone = match &self.machine {
                Machine::Absent => now >= end,
                Machine::There { status, .. } => status.is_down(),
                Machine::Unknown => false,
            };
            return (if gone { Health::Gone } else { Health::Starting }, Some(end));
        };
        match &self.machine {
            Machine::Absent => return (Health::Gone, None),
            Machine::There { status, .. } if status.is_down() => return (Health::Gone, None),
            Machine::There { .. } | Machine::Unknown => {}
        }
        if !self.agent.registered {
            // This server may have begun to listen after the agent's last report, or by a wall clock that is wrong.
            let unknown = settings.registration_timeout.saturating_sub(self.known_for);
            let end = after(machine.launched_at, settings.registration_timeout).max(after(now, unknown));
            return (if now >= end { Health::Gone } else { Health::Starting }, Some(end));
        }
        let end = after(self.agent.last_seen, settings.health_check_interval * MISSED_REPORTS);
        let runs = matches!(self.machine, Machine::There { .. });
        // A silent agent on a machine of which nothing is known is not acted upon.
        (if now >= end && runs { Health::Silent } else { Health::Healthy }, Some(end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records outlive the server that wrote them: the fields of the first one suffice, and unknown ones are passed over.
    #[test]
    fn records_of_other_versions_are_read() {
        let text = r#"{"id": "web00000000000000000000000001", "tenant": "t", "group": "g", "template": "w",
            "created_at": "2026-01-01T00:00:00Z", "hash": "h", "a-field-to-come": [1],
            "machine": {"provider_id": "i-1", "launched_at": "2026-01-01T00:00:01Z"}}"#;
        let record: Record = serde_json::from_str(text).unwrap();
        assert_eq!((record.provider_id(), &record.replaces, record.deleted_at), ("i-1", &None, None));
        let replaces = Replaces { id: record.id.clone(), reason: Reason::ConfigDrift };
        let newer = Record { replaces: Some(replaces), ..record };
        let stored = serde_json::to_value(&newer).unwrap();
        assert_eq!(stored["replaces"], serde_json::json!({"id": newer.id.as_str(), "reason": "config-drift"}));
        assert_eq!(serde_json::from_value::<Record>(stored).unwrap(), newer);
    }
}
