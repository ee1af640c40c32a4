//! A shard is about to delete an instance by itself: its Node is drained until the shard's deadline, and the shard gets an
//! acknowledgement, whatever came of the drain.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::machine::Drain;
use super::node::{Found, NodeRef, find};
use crate::fact::Fact;

/// How long a drain may last where the shard names no deadline: the protocol's default.
const PATIENCE: Duration = Duration::from_mins(5);
/// The acknowledgement arrives this long before the deadline, or a tenth of the time that there was: what is on its way
/// when the deadline passes is of no use.
const MARGIN: Duration = Duration::from_secs(5);
/// A shard that has the instance after this long did not keep the acknowledgement: its server was replaced. Once per
/// list of the shard.
const REPEAT: Duration = Duration::from_secs(30);
/// An acknowledgement that failed is sent again: few seconds are left at the end of most drains.
const RETRY: Duration = Duration::from_secs(2);

/// What is known of one deletion that a shard announced.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    /// The instance's own.
    pub id: String,
    /// Every provider ID that is known of the instance.
    pub ids: Vec<String>,
    /// The shard has deleted it, or lists it no more.
    pub is_over: bool,
    pub delete_at: Option<Timestamp>,
    /// How long it is known here.
    pub age: Duration,
    /// Nodes of the workload cluster whose provider ID ends like the instance's.
    pub nodes: Fact<Vec<NodeRef>>,
    pub drain: Drain,
    pub acknowledgement: Acknowledgement,
    pub is_paused: bool,
}

/// How far the acknowledgement is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Acknowledgement {
    #[default]
    None,
    Running,
    /// For so long.
    Accepted(Duration),
    Failed(Duration),
}

/// What to do now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a decision does nothing until it is executed"]
pub struct Next {
    pub action: Option<Action>,
    /// When to decide again even if nothing happens.
    pub look: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Empty the Node within this time.
    Drain {
        node: String,
        time: Duration,
    },
    Acknowledge,
}

/// Decides about one of them.
pub fn next(observed: &Observed, now: Timestamp) -> Next {
    if observed.is_over || observed.is_paused {
        return Next::default();
    }
    let left = time_left(observed, now);
    let wait = |time: Duration| Next { action: None, look: Some(time) };
    let acknowledge = Next { action: Some(Action::Acknowledge), look: None };
    match observed.acknowledgement {
        Acknowledgement::Running => return Next::default(),
        Acknowledgement::Accepted(age) if age < REPEAT => return wait(REPEAT.saturating_sub(age)),
        Acknowledgement::Failed(age) if age < RETRY => return wait(RETRY.saturating_sub(age)),
        Acknowledgement::Accepted(_) | Acknowledgement::Failed(_) => return acknowledge,
        Acknowledgement::None => {}
    }
    if left.is_zero() {
        return acknowledge;
    }
    match &observed.drain {
        Drain::Done | Drain::Expired { .. } => return acknowledge,
        Drain::Running { .. } => return wait(left),
        Drain::None => {}
    }
    let Fact::Known { value: nodes, .. } = &observed.nodes else { return wait(left) };
    let mut ids: Vec<&str> = observed.ids.iter().map(String::as_str).filter(|id| !id.is_empty()).collect();
    let is_named = !ids.is_empty();
    ids.push(&observed.id);
    match find(&ids, nodes) {
        Found::Nothing if is_named => acknowledge,
        // Which Node it is, is not known.
        Found::Nothing | Found::Ambiguous(_) => wait(left),
        Found::Node(node) => {
            Next { action: Some(Action::Drain { node: node.name.clone(), time: left }), look: Some(left) }
        }
    }
}

/// Until the acknowledgement is due.
fn time_left(observed: &Observed, now: Timestamp) -> Duration {
    let left = match observed.delete_at {
        Some(at) => Duration::try_from(at.duration_since(now)).unwrap_or_default(),
        None => PATIENCE.saturating_sub(observed.age),
    };
    let whole = left.saturating_add(observed.age);
    left.saturating_sub(MARGIN.min(whole / 10))
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, to_value};

    use super::*;
    use crate::fact::{Class, Failure};

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn known(nodes: &[&str]) -> Fact<Vec<NodeRef>> {
        let node = |name: &&str| NodeRef { name: (*name).to_owned(), provider_id: format!("aws:///{name}/i-1") };
        Fact::Known { value: nodes.iter().map(node).collect(), age: Duration::ZERO }
    }

    fn away() -> Fact<Vec<NodeRef>> {
        let why = Failure { class: Class::Transient, message: "away".to_owned() };
        Fact::Unknown { why, last: None }
    }

    /// Announced just now, to be deleted in a minute.
    fn observed() -> Observed {
        Observed {
            id: "web1".to_owned(),
            ids: vec!["i-1".to_owned(), String::new()],
            is_over: false,
            delete_at: Some(NOW + Duration::from_mins(1)),
            age: Duration::ZERO,
            nodes: known(&["a"]),
            drain: Drain::None,
            acknowledgement: Acknowledgement::None,
            is_paused: false,
        }
    }

    fn check(observed: &Observed, action: Option<Action>, look: Option<u64>) {
        let read: Observed = from_value(to_value(observed).unwrap()).unwrap();
        assert_eq!(&read, observed, "written to a file and read back");
        assert_eq!(next(observed, NOW), Next { action, look: look.map(Duration::from_secs) }, "{observed:?}");
    }

    fn drain(seconds: u64) -> Action {
        Action::Drain { node: "a".to_owned(), time: Duration::from_secs(seconds) }
    }

    const ACKNOWLEDGE: Option<Action> = Some(Action::Acknowledge);

    #[test]
    fn a44_the_node_is_drained_and_the_shard_gets_the_acknowledgement() {
        check(&observed(), Some(drain(55)), Some(55));
        let running = Drain::Running { blocked: None, left: String::new() };
        check(&Observed { drain: running, ..observed() }, None, Some(55));
        check(&Observed { drain: Drain::Done, ..observed() }, ACKNOWLEDGE, None);
        let acknowledgement = Acknowledgement::Running;
        check(&Observed { drain: Drain::Done, acknowledgement, ..observed() }, None, None);
        check(&Observed { is_over: true, ..observed() }, None, None);
    }

    #[test]
    fn a47_an_instance_without_a_node_is_acknowledged_at_once() {
        check(&Observed { nodes: known(&[]), ..observed() }, ACKNOWLEDGE, None);
        check(&Observed { nodes: away(), ..observed() }, None, Some(55));
        check(&Observed { nodes: known(&["a", "b"]), ..observed() }, None, Some(55));
        check(&Observed { ids: vec![String::new()], ..observed() }, None, Some(55));
    }

    #[test]
    fn a48_what_is_drained_is_acknowledged_again_while_the_shard_has_it() {
        let after = |seconds| Acknowledgement::Accepted(Duration::from_secs(seconds));
        check(&Observed { acknowledgement: after(10), ..observed() }, None, Some(20));
        check(&Observed { acknowledgement: after(30), ..observed() }, ACKNOWLEDGE, None);
        let failed = |seconds| Acknowledgement::Failed(Duration::from_secs(seconds));
        check(&Observed { acknowledgement: failed(0), ..observed() }, None, Some(2));
        check(&Observed { acknowledgement: failed(2), ..observed() }, ACKNOWLEDGE, None);
    }

    #[test]
    fn a49_whatever_came_of_the_drain_it_is_acknowledged_before_the_deadline() {
        let late =
            Observed { delete_at: Some(NOW + Duration::from_secs(5)), age: Duration::from_mins(1), ..observed() };
        let running = Drain::Running { blocked: Some("pod a of budget b".to_owned()), left: String::new() };
        for nodes in [known(&["a"]), known(&["a", "b"]), away()] {
            check(&Observed { nodes, drain: running.clone(), ..late.clone() }, ACKNOWLEDGE, None);
        }
        let expired = Drain::Expired { left: "1 pod left".to_owned() };
        check(&Observed { drain: expired, ..observed() }, ACKNOWLEDGE, None);
        check(&Observed { delete_at: Some(NOW - Duration::from_mins(1)), ..observed() }, ACKNOWLEDGE, None);
        let short = Observed { delete_at: Some(NOW + Duration::from_secs(10)), ..observed() };
        check(&short, Some(drain(9)), Some(9));
    }

    #[test]
    fn a50_without_a_deadline_a_drain_has_five_minutes() {
        check(&Observed { delete_at: None, ..observed() }, Some(drain(295)), Some(295));
        let half = Observed { delete_at: None, age: Duration::from_mins(2), ..observed() };
        check(&half, Some(drain(175)), Some(175));
        check(&Observed { delete_at: None, age: Duration::from_mins(5), ..observed() }, ACKNOWLEDGE, None);
    }

    #[test]
    fn a98_nothing_is_done_while_the_cluster_is_paused() {
        check(&Observed { is_paused: true, drain: Drain::Done, ..observed() }, None, None);
    }
}
