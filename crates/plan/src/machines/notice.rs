//! A shard is about to delete an instance by itself: its Node is drained until the shard's deadline, and the shard gets an
//! acknowledgement, whatever came of the drain.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::machine::{Asked, Drain, ambiguous, is_as_asked};
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
    /// The shard lists it with its group, or has done so. One that was made by a request of its own no list ever names.
    pub is_member: bool,
    pub listing: Listing,
    /// Another shard that has the instance, or whose instance has its Node: this one has no say.
    pub elsewhere: Option<String>,
    /// When the shard began to count, by its own clock; by ours where it does not say.
    pub announced_at: Timestamp,
    /// When it deletes the instance, by the same clock.
    pub delete_at: Option<Timestamp>,
    /// How long it is known here.
    pub age: Duration,
    /// Until the shard deletes it, of a shard that says so.
    pub left: Option<Duration>,
    /// Nodes of the workload cluster whose provider ID ends like the instance's.
    pub nodes: Fact<Vec<NodeRef>>,
    pub drain: Drain,
    /// What was asked of that drain for the shard.
    pub asked: Option<Asked>,
    pub acknowledgement: Acknowledgement,
    pub is_paused: bool,
}

/// What the last list of the instance's group says of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Listing {
    /// There is no list, or one that names no instances.
    #[default]
    Unknown,
    Named,
    Omitted,
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
    /// The shard does not have the instance any more.
    Gone,
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
    Drain { node: String, time: Duration },
    /// The shard wants no drain any more, or none is to go on now.
    Release,
    /// With what is to be recorded where the time was up and nothing else says so.
    Acknowledge { warning: Option<String> },
}

/// Decides about one of them.
pub fn next(observed: &Observed) -> Next {
    if observed.elsewhere.is_some() {
        return Next { action: Some(Action::Release), look: Some(REPEAT) };
    }
    if observed.is_paused || is_over(observed) {
        return Next { action: Some(Action::Release), look: None };
    }
    let left = time_left(observed);
    let wait = |time: Duration| Next { action: None, look: Some(time) };
    let acknowledge = |warning| Next { action: Some(Action::Acknowledge { warning }), look: None };
    match observed.acknowledgement {
        Acknowledgement::Running | Acknowledgement::Gone => return Next::default(),
        Acknowledgement::Accepted(age) if age < REPEAT => return wait(REPEAT.saturating_sub(age)),
        Acknowledgement::Failed(age) if age < RETRY => return wait(RETRY.saturating_sub(age)),
        Acknowledgement::Accepted(_) | Acknowledgement::Failed(_) => return acknowledge(None),
        Acknowledgement::None => {}
    }
    let is_running = match &observed.drain {
        // What was left at its deadline the drain itself has recorded.
        Drain::Done | Drain::Expired { .. } => return acknowledge(None),
        Drain::Running { .. } => true,
        Drain::None => false,
    };
    if left.is_zero() {
        return acknowledge(warning(observed));
    }
    if is_running && is_as_asked(observed.asked, Some(left)) {
        return wait(left);
    }
    match place(observed) {
        Place::Nowhere if !is_running => acknowledge(None),
        Place::Nowhere | Place::Unknown(_) => wait(left),
        Place::Node(node) => {
            Next { action: Some(Action::Drain { node: node.to_owned(), time: left }), look: Some(left) }
        }
    }
}

/// Whether the shard has deleted the instance, as far as that shows without its word.
fn is_over(observed: &Observed) -> bool {
    let is_omitted = observed.is_member && observed.listing == Listing::Omitted;
    is_omitted || observed.acknowledgement == Acknowledgement::Gone
}

/// The Node of the instance.
enum Place<'a> {
    Nowhere,
    Node(&'a str),
    /// Why it is not known.
    Unknown(String),
}

fn place(observed: &Observed) -> Place<'_> {
    let nodes = match &observed.nodes {
        Fact::Known { value, .. } => value,
        Fact::Unknown { why, .. } => return Place::Unknown(format!("the Nodes are not known: {}", why.message)),
    };
    let mut ids: Vec<&str> = observed.ids.iter().map(String::as_str).filter(|id| !id.is_empty()).collect();
    let is_named = !ids.is_empty();
    ids.push(&observed.id);
    match find(&ids, nodes) {
        Found::Nothing if is_named => Place::Nowhere,
        Found::Nothing => {
            Place::Unknown("the shard does not name its provider ID, and no Node has its name".to_owned())
        }
        Found::Ambiguous(nodes) => Place::Unknown(ambiguous(&nodes)),
        Found::Node(node) => Place::Node(&node.name),
    }
}

/// For people: the instance goes, and its Node was not emptied. One without a Node loses nothing.
fn warning(observed: &Observed) -> Option<String> {
    let why = match &observed.drain {
        Drain::Running { blocked: Some(blocked), .. } => blocked.clone(),
        Drain::Running { blocked: None, left } => left.clone(),
        Drain::None | Drain::Done | Drain::Expired { .. } => match place(observed) {
            Place::Nowhere => return None,
            // Another operator may have seen to it: the shard's deletion may take longer than its drain.
            Place::Node(node) if observed.left == Some(Duration::ZERO) => {
                let id = &observed.id;
                let text =
                    "is past the time that the shard allows for its drain, and whether that was done is not known";
                return Some(format!("instance {id} of Node {node} {text}"));
            }
            Place::Node(node) => format!("the drain of Node {node} had no time to begin"),
            Place::Unknown(why) => why,
        },
    };
    Some(format!("the shard deletes instance {} before its Node was drained: {why}", observed.id))
}

/// Until the acknowledgement is due. The shard's own times say how much time there is, and it runs from the moment that
/// the announcement came: neither a step of our clock nor its distance from the shard's shortens a drain. A shard that
/// says how much is left has counted since it began, also for an operator that was not there then; a step of its clock
/// may make that more than it ever allowed, which it never is.
fn time_left(observed: &Observed) -> Duration {
    let allowed = observed.delete_at.map(|at| at.duration_since(observed.announced_at));
    let allowed = allowed.map_or(PATIENCE, |allowed| Duration::try_from(allowed).unwrap_or_default());
    let known = allowed.saturating_sub(observed.age);
    let left = observed.left.map_or(known, |left| left.min(known));
    left.saturating_sub(MARGIN.min(allowed / 10))
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
            is_member: true,
            listing: Listing::Named,
            elsewhere: None,
            announced_at: NOW,
            delete_at: Some(NOW + Duration::from_mins(1)),
            age: Duration::ZERO,
            left: None,
            nodes: known(&["a"]),
            drain: Drain::None,
            asked: None,
            acknowledgement: Acknowledgement::None,
            is_paused: false,
        }
    }

    fn check(observed: &Observed, action: Option<Action>, look: Option<u64>) {
        let read: Observed = from_value(to_value(observed).unwrap()).unwrap();
        assert_eq!(&read, observed, "written to a file and read back");
        assert_eq!(next(observed), Next { action, look: look.map(Duration::from_secs) }, "{observed:?}");
    }

    fn drain(seconds: u64) -> Action {
        Action::Drain { node: "a".to_owned(), time: Duration::from_secs(seconds) }
    }

    const ACKNOWLEDGE: Option<Action> = Some(Action::Acknowledge { warning: None });

    const RELEASE: Option<Action> = Some(Action::Release);

    fn acknowledge(words: &str) -> Action {
        let warning = Some(format!("the shard deletes instance web1 before its Node was drained: {words}"));
        Action::Acknowledge { warning }
    }

    fn running() -> Drain {
        Drain::Running { blocked: None, left: "1 pod left".to_owned() }
    }

    fn asked(seconds: u64) -> Asked {
        Asked { left: Some(Duration::from_secs(seconds)) }
    }

    #[test]
    fn a44_the_node_is_drained_and_the_shard_gets_the_acknowledgement() {
        check(&observed(), Some(drain(55)), Some(55));
        check(&Observed { drain: running(), asked: Some(asked(55)), ..observed() }, None, Some(55));
        check(&Observed { drain: Drain::Done, ..observed() }, ACKNOWLEDGE, None);
        let acknowledgement = Acknowledgement::Running;
        check(&Observed { drain: Drain::Done, acknowledgement, ..observed() }, None, None);
    }

    #[test]
    fn a_drain_that_a_machine_began_gets_the_deadline_of_the_shard() {
        check(&Observed { drain: running(), ..observed() }, Some(drain(55)), Some(55));
        // The shard's deadline came nearer.
        check(&Observed { drain: running(), asked: Some(asked(300)), ..observed() }, Some(drain(55)), Some(55));
        // Its Node is gone, or not known now: the drain ends by itself.
        for nodes in [known(&[]), away()] {
            check(&Observed { drain: running(), nodes, ..observed() }, None, Some(55));
        }
    }

    #[test]
    fn only_of_a_member_a_list_that_omits_it_says_that_it_is_gone() {
        let omitted = Observed { listing: Listing::Omitted, ..observed() };
        check(&omitted, RELEASE, None);
        let own = Observed { is_member: false, ..omitted };
        check(&own, Some(drain(55)), Some(55));
        check(&Observed { drain: Drain::Done, ..own.clone() }, ACKNOWLEDGE, None);
        check(&Observed { acknowledgement: Acknowledgement::Gone, ..own }, RELEASE, None);
        check(&Observed { listing: Listing::Unknown, ..observed() }, Some(drain(55)), Some(55));
    }

    #[test]
    fn a_shard_has_no_say_over_the_nodes_of_another() {
        let elsewhere = Some("dev-2".to_owned());
        for drain in [Drain::None, running(), Drain::Done] {
            check(&Observed { elsewhere: elsewhere.clone(), drain, ..observed() }, RELEASE, Some(30));
        }
        let late = Observed { elsewhere, age: Duration::from_mins(10), ..observed() };
        check(&late, RELEASE, Some(30));
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
    fn a49_whatever_came_of_the_drain_it_is_acknowledged_before_the_deadline_with_a_warning() {
        let late = Observed { age: Duration::from_secs(55), ..observed() };
        let blocked = Drain::Running { blocked: Some("pod a of budget b".to_owned()), left: String::new() };
        for nodes in [known(&["a"]), known(&["a", "b"]), away()] {
            check(
                &Observed { nodes, drain: blocked.clone(), ..late.clone() },
                Some(acknowledge("pod a of budget b")),
                None,
            );
        }
        check(&Observed { drain: running(), ..late.clone() }, Some(acknowledge("1 pod left")), None);
        check(&late, Some(acknowledge("the drain of Node a had no time to begin")), None);
        let unknown = "the Nodes are not known: away";
        check(&Observed { nodes: away(), ..late.clone() }, Some(acknowledge(unknown)), None);
        let two = "the Nodes a, b all have the provider ID of this instance; delete those that are not this instance";
        check(&Observed { nodes: known(&["a", "b"]), ..late.clone() }, Some(acknowledge(two)), None);
        // There was nothing to drain, or the drain itself named what was left.
        check(&Observed { nodes: known(&[]), ..late.clone() }, ACKNOWLEDGE, None);
        let expired = Drain::Expired { left: "1 pod left".to_owned() };
        check(&Observed { drain: expired, ..late }, ACKNOWLEDGE, None);
        let short = Observed { delete_at: Some(NOW + Duration::from_secs(10)), ..observed() };
        check(&short, Some(drain(9)), Some(9));
    }

    #[test]
    fn a50_without_a_deadline_a_drain_has_five_minutes() {
        check(&Observed { delete_at: None, ..observed() }, Some(drain(295)), Some(295));
        let half = Observed { delete_at: None, age: Duration::from_mins(2), ..observed() };
        check(&half, Some(drain(175)), Some(175));
        let late = Observed { delete_at: None, age: Duration::from_mins(5), ..observed() };
        check(&late, Some(acknowledge("the drain of Node a had no time to begin")), None);
    }

    #[test]
    fn a49_an_operator_that_comes_late_has_what_is_left_of_the_time() {
        let left = |seconds| Observed { left: Some(Duration::from_secs(seconds)), ..observed() };
        check(&left(20), Some(drain(15)), Some(15));
        check(&left(5), Some(acknowledge("the drain of Node a had no time to begin")), None);
        // The shard's clock was set back since: it never allowed more than a minute.
        check(&left(3600), Some(drain(55)), Some(55));
        let late = Observed { age: Duration::from_secs(30), ..left(3600) };
        check(&late, Some(drain(25)), Some(25));
        // What came before is not known.
        let Some(Action::Acknowledge { warning: Some(warning) }) = next(&left(0)).action else {
            panic!("acknowledged")
        };
        assert!(warning.ends_with("whether that was done is not known"), "{warning}");
    }

    #[test]
    fn the_time_of_a_drain_is_counted_on_one_clock() {
        // The shard's clock is an hour behind or ahead: what it allows is the same.
        for skew in [-60, 60] {
            let announced_at = NOW + jiff::SignedDuration::from_mins(skew);
            let skewed =
                Observed { announced_at, delete_at: Some(announced_at + Duration::from_mins(1)), ..observed() };
            check(&skewed, Some(drain(55)), Some(55));
            let later = Observed { age: Duration::from_secs(30), ..skewed };
            check(&later, Some(drain(25)), Some(25));
        }
    }

    #[test]
    fn a98_while_the_cluster_is_paused_no_drain_goes_on() {
        for drain in [Drain::None, running(), Drain::Done] {
            check(&Observed { is_paused: true, drain, ..observed() }, RELEASE, None);
        }
    }
}
