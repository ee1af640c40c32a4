//! Which pods stay, which go, and in which order.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::{
    Behaviour, Holds, Name, Node, Observed, Order, Owner, POD_LABEL, Phase, Pod, Stays,
    rule::{self, NamespaceUnknown},
};

/// Pods of a lower tier are gone before one of a higher tier is evicted: first by the order that a rule gives, then
/// ordinary pods before those that the cluster and the node rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Tier {
    order: i32,
    criticality: Criticality,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Criticality {
    Ordinary,
    Cluster,
    Node,
}

/// The values of `system-cluster-critical` and `system-node-critical`; users' classes are below.
const CLUSTER_CRITICAL: i32 = 2_000_000_000;
const NODE_CRITICAL: i32 = 2_000_001_000;

/// API servers of one cluster may stamp times that differ a little. What was bound this soon after the cordon may have
/// been bound before it, and is evicted.
const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_secs(2);

/// What is to become of a pod.
pub(super) enum Fate {
    Stays(Stays),
    Evicted(Tier),
    /// Waited for until it completes.
    Completes(Tier),
    /// Nothing may be done about it before more is known.
    Open(Holds),
}

/// `node` is the node as this drain cordoned it, or `None` before it did.
pub(super) fn fate(pod: &Pod, order: &Order, node: Option<&Node>, observed: &Observed) -> Fate {
    if let Some(stays) = stays(pod, node, observed) {
        return Fate::Stays(stays);
    }
    if let Some(value) = pod.labels.get(POD_LABEL) {
        // Cluster API understands every spelling; a value that it does not know is as no label.
        match value.replacen('-', "", 1).to_ascii_lowercase().as_str() {
            "skip" => return Fate::Stays(Stays::Labelled),
            "waitcompleted" => return Fate::Completes(tier(pod, 0)),
            _ => {}
        }
    }
    let namespaces = observed.namespaces.known();
    // A namespace that is not there yet is one whose labels are not known.
    let labels = namespaces.ok().and_then(|namespaces| namespaces.get(&pod.name.namespace));
    match rule::first(&order.rules, &pod.labels, labels) {
        Ok(None) => Fate::Evicted(tier(pod, 0)),
        Ok(Some(rule)) => match rule.behaviour {
            Behaviour::Drain { order } => Fate::Evicted(tier(pod, order)),
            Behaviour::Skip => Fate::Stays(Stays::Rule(rule.name.clone())),
            Behaviour::WaitCompleted => Fate::Completes(tier(pod, 0)),
        },
        Err(NamespaceUnknown) => {
            let why = namespaces.err().map_or("not listed", |failure| &failure.message);
            let message =
                format!("a MachineDrainRule asks for the labels of its namespace, which are not known: {why}");
            Fate::Open(Holds::Unknown { message })
        }
    }
}

fn stays(pod: &Pod, node: Option<&Node>, observed: &Observed) -> Option<Stays> {
    if pod.phase == Phase::Completed {
        return Some(Stays::Completed);
    }
    if pod.is_mirror {
        return Some(Stays::Mirror);
    }
    if pod.owner == Owner::DaemonSet {
        return Some(Stays::DaemonSet);
    }
    let node = node?;
    let is_later = |(bound, cordoned): (Timestamp, Timestamp)| bound.duration_since(cordoned) > CLOCKS_DIFFER;
    if pod.bound_at.zip(node.drained_since).is_some_and(is_later) {
        return Some(Stays::BoundLater);
    }
    let is_past = pod.ends_at.zip(observed.server_time).is_some_and(|(end, now)| now > end);
    (node.is_unreachable && is_past).then_some(Stays::Lost)
}

fn tier(pod: &Pod, order: i32) -> Tier {
    let criticality = match pod.priority {
        NODE_CRITICAL.. => Criticality::Node,
        CLUSTER_CRITICAL.. => Criticality::Cluster,
        _ => Criticality::Ordinary,
    };
    Tier { order, criticality }
}

impl Order {
    /// Whether a rule asks for the labels of namespaces.
    pub fn asks_for_namespaces(&self) -> bool {
        self.rules.iter().flat_map(|rule| &rule.pods).any(|pods| pods.namespace.is_some())
    }
}

/// The claims of pods that stay: their volumes stay as well.
pub(super) fn claims<'a>(stays: impl Iterator<Item = &'a Pod>) -> BTreeSet<Name> {
    stays.flat_map(|pod| pod.claims.iter().map(|claim| Name::new(&pod.name.namespace, claim))).collect()
}
