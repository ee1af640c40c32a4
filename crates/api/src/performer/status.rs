//! What we report.

use std::fmt;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::condition::{Condition, ConditionType, known_conditions};
use crate::decode::{date_time, readable, readable_time};

/// How the performer is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PerformerStatus {
    /// Summary of the performer's state.
    #[serde(default, deserialize_with = "known_phase", skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Whether the performer takes requests now.
    #[serde(default, deserialize_with = "readable", skip_serializing_if = "std::ops::Not::not")]
    pub ready: bool,
    /// Name of the pod, empty while there is none.
    #[serde(default, deserialize_with = "readable", skip_serializing_if = "Option::is_none")]
    pub pod_name: Option<String>,
    /// Name of the Service.
    #[serde(default, deserialize_with = "readable", skip_serializing_if = "Option::is_none")]
    pub service_name: Option<String>,
    /// Where clients reach the performer: DNS name and port.
    #[serde(default, deserialize_with = "readable", skip_serializing_if = "Option::is_none")]
    pub grpc_endpoint: Option<String>,
    /// Details in the order Progressing, Degraded, Available.
    #[serde(default, deserialize_with = "known_conditions", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// When the latest replacement by a new image or version began.
    #[serde(default, deserialize_with = "readable_time", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub last_upgrade: Option<Timestamp>,
    /// When the present pod first became ready.
    #[serde(default, deserialize_with = "readable_time", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub ready_time: Option<Timestamp>,
}

impl PerformerStatus {
    pub fn condition(&self, kind: ConditionType) -> Option<&Condition> {
        self.conditions.iter().find(|c| c.kind == kind)
    }
}

/// Where a performer is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    Pending,
    Running,
    Upgrading,
    Terminating,
    Failed,
    /// The pod exited or its node is not reporting. The original schema lacks this value.
    Unknown,
}

impl Phase {
    pub const ALL: [Self; 6] =
        [Self::Pending, Self::Running, Self::Upgrading, Self::Terminating, Self::Failed, Self::Unknown];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Upgrading => "Upgrading",
            Self::Terminating => "Terminating",
            Self::Failed => "Failed",
            Self::Unknown => "Unknown",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A phase we know, or none: what someone else wrote there is overwritten, not obeyed.
fn known_phase<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Phase>, D::Error> {
    let text: Option<String> = readable(d)?;
    Ok(text.and_then(|t| Phase::ALL.into_iter().find(|p| p.as_str() == t)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_that_cannot_be_read_costs_no_other() {
        let time = "2026-01-01T00:00:00Z";
        let sound = json!({ "readyTime": time, "lastUpgrade": time });
        let sound: PerformerStatus = serde_json::from_value(sound).unwrap();
        assert!(sound.ready_time.is_some() && sound.last_upgrade.is_some());
        let odd = json!({ "some": ["thing", "else"] });
        for field in ["phase", "ready", "podName", "serviceName", "grpcEndpoint", "conditions", "unheardOf"] {
            let mut status = json!({ "readyTime": time, "lastUpgrade": time });
            status[field] = odd.clone();
            assert_eq!(serde_json::from_value::<PerformerStatus>(status).unwrap(), sound, "{field}");
        }
        let status = json!({ "readyTime": 7, "lastUpgrade": time });
        let status: PerformerStatus = serde_json::from_value(status).unwrap();
        assert_eq!((status.ready_time, status.last_upgrade), (None, sound.last_upgrade));
    }
}
