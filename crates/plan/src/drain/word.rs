//! How a drain stands, in words.

use std::fmt;

use super::{End, Holds, Name, Plan, Standing, Stays};

/// A message names this many pods and counts the rest: it must fit into an event.
const NAMED: usize = 8;

impl fmt::Display for Stays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DaemonSet => f.write_str("belongs to a DaemonSet, which would create it again on this node"),
            Self::Mirror => f.write_str("static pod of the kubelet"),
            Self::Completed => f.write_str("has completed"),
            Self::Labelled => write!(f, "its label {} says skip", super::POD_LABEL),
            Self::Rule(rule) => write!(f, "MachineDrainRule {rule} says Skip"),
            Self::BoundLater => f.write_str("bound to the node after the cordon, which it tolerates"),
            Self::Lost => f.write_str("its grace period has passed, and the node is unreachable"),
        }
    }
}

impl fmt::Display for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Due => f.write_str("to be evicted"),
            Self::Evicting => f.write_str("being evicted"),
            Self::Terminating => f.write_str("terminating"),
            Self::Later => f.write_str("evicted after the pods of earlier tiers are gone"),
            Self::Completes => {
                f.write_str("not evicted, as its label or MachineDrainRule says; waiting until it completes")
            }
            Self::Blocked { message, .. } | Self::Unknown { message } => f.write_str(message),
            Self::SeveralBudgets { budgets } => {
                let names: Vec<String> = budgets.iter().map(ToString::to_string).collect();
                let names = names.join(", ");
                write!(
                    f,
                    "selected by several PodDisruptionBudgets ({names}), and such a pod cannot be evicted: change their selectors so that one is left"
                )
            }
            Self::Failed { message, .. } => write!(f, "eviction failed: {message}"),
        }
    }
}

impl Plan {
    /// The pods that are still waited for.
    pub fn left(&self) -> impl Iterator<Item = (&Name, &Holds)> {
        self.pods.iter().filter_map(|(pod, standing)| match standing {
            Standing::Holds(holds) => Some((pod, holds)),
            Standing::Stays(_) => None,
        })
    }

    /// The first pod whose eviction a budget forbids.
    pub fn blocked(&self) -> Option<(&Name, &Holds)> {
        self.left().find(|(_, holds)| matches!(holds, Holds::Blocked { .. } | Holds::SeveralBudgets { .. }))
    }

    /// For an event: what is left although the time is up.
    pub fn warning(&self) -> Option<String> {
        (self.end == Some(End::Expired))
            .then(|| format!("drain not finished before its deadline; {}", self.leftovers()))
    }

    /// What is still waited for, in one line.
    pub fn leftovers(&self) -> String {
        let count = self.left().count();
        let mut parts = Vec::new();
        if count > 0 {
            let named: Vec<String> = self.left().take(NAMED).map(|(pod, holds)| format!("{pod} ({holds})")).collect();
            let more = if count > NAMED { format!(" and {} more", count - NAMED) } else { String::new() };
            let pods = if count == 1 { "pod" } else { "pods" };
            parts.push(format!("{count} {pods} left: {}{more}", named.join(", ")));
        }
        if !self.volumes.is_empty() {
            parts.push(format!("volumes still attached: {}", self.volumes.join(", ")));
        }
        parts.extend(self.unknown.iter().map(|unknown| format!("not known: {unknown}")));
        if parts.is_empty() { "nothing left".to_owned() } else { parts.join("; ") }
    }
}
