//! The next writes for Pods that ask for machines.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::machine::{OLD_ON_DEMAND_GROUP_ANNOTATION, ON_DEMAND_GROUP_ANNOTATION, ON_DEMAND_SHARD_ANNOTATION};
use jiff::Timestamp;

use super::build;
use super::{Action, Infrastructure, Limits, Notice, Observed, Plan, Pod, PodName, Request, Step, Wish};
use crate::event::{Event, EventKind};
use crate::object::digest;

/// Names that a note has room for: it holds 1024 characters, and a name has at most 32.
const NAMES: usize = 20;

/// The next writes for all Pods and all Machines made for them.
pub fn plan(observed: &Observed, limits: &Limits) -> Plan {
    let mut plan = Plan::default();
    if observed.is_paused {
        return plan;
    }
    let mut steps = Vec::new();
    for request in observed.requests.iter().filter(|request| !request.is_deleting && !request.is_paused) {
        serve(&mut plan, &mut steps, observed, limits, request);
    }
    ask(&mut plan, &mut steps, observed, limits);
    plan.steps = in_turns(steps);
    plan.notices = in_turns(plan.notices.into_iter().map(|notice| (notice.pod.namespace.clone(), notice)).collect());
    if plan.steps.len() > limits.steps {
        plan.steps.truncate(limits.steps);
        plan.look_within(Duration::ZERO);
    }
    plan
}

/// A step with the namespace of its Pod.
type Steps<'a> = Vec<(&'a str, Step)>;

/// Namespaces take turns, each in its own order: a thousand steps of one, and steps that fail again and again, leave
/// room for those of another.
fn in_turns<N: Ord, T>(all: Vec<(N, T)>) -> Vec<T> {
    let mut counts: BTreeMap<N, usize> = BTreeMap::new();
    let mut ranked: Vec<(usize, T)> = all
        .into_iter()
        .map(|(namespace, one)| {
            let count = counts.entry(namespace).or_default();
            *count += 1;
            (*count, one)
        })
        .collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, one)| one).collect()
}

fn event(pod: &PodName, kind: EventKind, reason: &'static str, about: &str, note: String) -> Notice {
    Notice { pod: pod.clone(), event: Event { kind, reason, action: "OnDemand", note }, about: about.to_owned() }
}

fn warning(pod: &PodName, reason: &'static str, about: &str, note: String) -> Notice {
    event(pod, EventKind::Warning, reason, about, note)
}

/// What becomes of a Machine that was made for a Pod.
enum Fate {
    Keep,
    /// It may have to go, but not before this.
    Wait(Duration),
    /// Nothing needs it; why, for the Pod that is still there.
    Go(Option<String>),
}

fn serve<'a>(plan: &mut Plan, steps: &mut Steps<'a>, observed: &'a Observed, limits: &Limits, request: &'a Request) {
    let pod = &request.pod;
    match fate(plan, observed, limits, request) {
        Fate::Wait(rest) => plan.look_within(rest),
        Fate::Go(why) => {
            let note = |why| format!("{why}; Machine {} is deleted", request.name);
            let done = why.map(|why| event(pod, EventKind::Normal, "OnDemandReleased", &request.uid, note(why)));
            steps.push((&pod.namespace, Step { action: delete(request), done }));
        }
        Fate::Keep => keep(plan, steps, observed, request),
    }
}

/// A Pod that waits for its Machine: it needs the NstanceMachine, and a shard that makes the instance.
fn keep<'a>(plan: &mut Plan, steps: &mut Steps<'a>, observed: &'a Observed, request: &'a Request) {
    let waiting = request.now.known().ok().and_then(Option::as_ref).filter(|now| is_waiting(now));
    let Some((now, wish)) = waiting.and_then(|now| Some((now, now.wish.as_ref()?))) else { return };
    match &request.infrastructure {
        Infrastructure::Absent => {
            let body = build::infrastructure(observed, request, wish);
            let step = Step { action: Action::CreateInfrastructure(body), done: None };
            steps.push((&request.pod.namespace, step));
        }
        Infrastructure::Present { refusal: Some(refusal), .. } => {
            let note =
                format!("the shard refuses a machine for this Pod: {refusal}; correct the annotations or the group");
            plan.notices.push(warning(&now.name, "OnDemandRefused", refusal, note));
            plan.refused.push((now.name.uid.clone(), wish.clone()));
            steps.push((&request.pod.namespace, Step { action: delete(request), done: None }));
        }
        Infrastructure::Foreign => plan.notices.push(taken(&now.name, &request.name)),
        Infrastructure::Unknown | Infrastructure::Present { refusal: None, .. } => {}
    }
}

fn delete(request: &Request) -> Action {
    let (name, uid) = (request.name.clone(), request.uid.clone());
    Action::DeleteMachine { name, uid, resource_version: request.resource_version.clone() }
}

fn taken(pod: &PodName, name: &str) -> Notice {
    let note = format!(
        "the name {name} is taken by a Machine or NstanceMachine that was not made for this Pod; delete or rename it"
    );
    warning(pod, "ObjectTaken", name, note)
}

fn fate(plan: &mut Plan, observed: &Observed, limits: &Limits, request: &Request) -> Fate {
    // What is not known has not changed.
    let Ok(now) = request.now.known() else { return Fate::Keep };
    // A namesake is another Pod.
    let Some(pod) = now.as_ref().filter(|pod| pod.name.uid == request.pod.uid) else { return Fate::Go(None) };
    if pod.is_finished {
        return Fate::Go(Some("the Pod has ended".to_owned()));
    }
    let Some(node) = &pod.node else {
        let is_other = |wish: &Wish| match &request.infrastructure {
            Infrastructure::Present { group, .. } => *group != wish.group,
            Infrastructure::Unknown | Infrastructure::Absent | Infrastructure::Foreign => false,
        };
        return match &pod.wish {
            // It is never bound, however long a finalizer keeps it.
            _ if pod.is_terminating => Fate::Go(Some("the Pod is being deleted".to_owned())),
            None => Fate::Go(Some("the Pod asks for no machine any more".to_owned())),
            Some(wish) if is_other(wish) => Fate::Go(Some(format!("the Pod asks for group {} now", wish.group))),
            Some(_) => Fate::Keep,
        };
    };
    if request.node.as_ref() == Some(node) || !is_elsewhere(plan, observed, request, pod, node) {
        return Fate::Keep;
    }
    match since(observed.server_time, pod.scheduled_at) {
        Some(elapsed) if elapsed >= limits.grace => Fate::Go(Some(format!("the Pod was scheduled to node {node}"))),
        elapsed => Fate::Wait(limits.grace.saturating_sub(elapsed.unwrap_or_default())),
    }
}

/// Whether a node is certainly not the one that was made for the Pod: to delete the Machine of the Pod's own node would
/// evict the Pod. Cluster API links a Machine to its Node only after the kubelet has joined, and the scheduler may be
/// quicker.
fn is_elsewhere(plan: &mut Plan, observed: &Observed, request: &Request, pod: &Pod, node: &str) -> bool {
    let is_known = request.node.is_some() || request.infrastructure == Infrastructure::Absent;
    if is_known || observed.nodes.get(node).is_some_and(|machine| *machine != request.name) {
        return true;
    }
    // By the clock of one API server: the node was there before the Pod.
    plan.wanted.insert(node.to_owned());
    let made_at = observed.node_ages.get(node).copied().flatten();
    made_at.zip(pod.created_at).is_some_and(|(made, created)| made < created)
}

fn since(now: Option<Timestamp>, then: Option<Timestamp>) -> Option<Duration> {
    let (now, then) = now.zip(then)?;
    // Clocks of two programs: what seems to be in the future is now.
    Some(Duration::try_from(now.duration_since(then)).unwrap_or_default())
}

fn is_waiting(pod: &Pod) -> bool {
    pod.node.is_none() && !pod.is_terminating && !pod.is_finished && !pod.is_gated
}

/// Machines for Pods that have none.
fn ask<'a>(plan: &mut Plan, steps: &mut Steps<'a>, observed: &'a Observed, limits: &Limits) {
    let Ok(pods) = observed.pods.known() else { return };
    let served: BTreeSet<&str> = observed.requests.iter().map(|request| request.pod.uid.as_str()).collect();
    let mut rooms = Rooms::new(observed);
    let mut waiting: Vec<&Pod> =
        pods.iter().filter(|pod| is_waiting(pod) && !served.contains(&*pod.name.uid)).collect();
    waiting.sort_by_key(|pod| (pod.created_at, &pod.name));
    for pod in waiting {
        let Some(wish) = pod.wish.as_ref().filter(|wish| is_due(plan, observed, limits, pod, wish)) else { continue };
        let shard = match place(plan, observed, &pod.name, wish) {
            Place::Nowhere => continue,
            Place::Anywhere => None,
            Place::On(shard) => Some(shard),
        };
        let name = build::name(&observed.namespace, &pod.name);
        // A Machine of an earlier Pod of this name goes first.
        if observed.requests.iter().any(|request| request.name == name) {
            continue;
        }
        if observed.taken.contains(&name) {
            plan.notices.push(taken(&pod.name, &name));
            continue;
        }
        if let Some(notice) = rooms.take(&pod.name, limits) {
            plan.notices.push(notice);
            continue;
        }
        let note = format!("Machine {name} of group {} is made for this Pod", wish.group);
        let done = Some(event(&pod.name, EventKind::Normal, "OnDemandRequested", &name, note));
        let action = Action::CreateMachine(build::machine(observed, &pod.name, shard.as_deref()));
        steps.push((&pod.name.namespace, Step { action, done }));
    }
}

/// How many Machines the Pods of each namespace have: all of them, and those that are no Node yet.
struct Rooms<'a>(BTreeMap<&'a str, (usize, usize)>);

impl<'a> Rooms<'a> {
    fn new(observed: &'a Observed) -> Self {
        let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for request in &observed.requests {
            let (all, starting) = counts.entry(&request.pod.namespace).or_default();
            // One that is being deleted has its instance until it is drained.
            *all += 1;
            *starting += usize::from(!request.is_deleting && request.node.is_none());
        }
        Self(counts)
    }

    /// Takes the room for one more; where there is none, why.
    fn take(&mut self, pod: &'a PodName, limits: &Limits) -> Option<Notice> {
        let (all, starting) = self.0.entry(&pod.namespace).or_default();
        let namespace = &pod.namespace;
        if *all >= limits.machines {
            let note = format!(
                "namespace {namespace} has {all} machines for its Pods, and may have {}; delete Pods that have one, or raise --machines-on-demand-limit of the operator",
                limits.machines
            );
            return Some(warning(pod, "OnDemandLimited", "", note));
        }
        if *starting >= limits.starting {
            let note = format!(
                "{starting} machines for Pods of namespace {namespace} are being made; this Pod's comes when one of them has become a Node"
            );
            return Some(event(pod, EventKind::Normal, "OnDemandWaiting", "", note));
        }
        (*all, *starting) = (*all + 1, *starting + 1);
        None
    }
}

/// Whether the scheduler has had its time, and no shard has refused the same a moment ago.
fn is_due(plan: &mut Plan, observed: &Observed, limits: &Limits, pod: &Pod, wish: &Wish) -> bool {
    if let Some(refused) = observed.refusals.get(&pod.name.uid).filter(|refused| refused.wish == *wish)
        && refused.age < limits.retry
    {
        plan.look_within(limits.retry.saturating_sub(refused.age));
        return false;
    }
    let age = since(observed.server_time, pod.created_at).unwrap_or_default();
    if !pod.is_unschedulable && age < limits.verdict {
        plan.look_within(limits.verdict.saturating_sub(age));
        return false;
    }
    true
}

/// Where a machine can be made.
enum Place {
    /// Nowhere now.
    Nowhere,
    /// On any shard that has the group.
    Anywhere,
    /// The Pod leaves no choice but this shard.
    On(String),
}

fn place(plan: &mut Plan, observed: &Observed, pod: &PodName, wish: &Wish) -> Place {
    if let Some(ignored) = &wish.ignored {
        let note = format!(
            "the annotations name two groups: {} of {ON_DEMAND_GROUP_ANNOTATION} counts, {ignored} of {OLD_ON_DEMAND_GROUP_ANNOTATION} does not; remove one",
            wish.group
        );
        plan.notices.push(warning(pod, "GroupAmbiguous", ignored, note));
    }
    if let Some(named) = &wish.shard
        && !observed.shards.contains_key(named)
    {
        let names = names(observed.shards.keys());
        let note =
            format!("annotation {ON_DEMAND_SHARD_ANNOTATION}: there is no shard {named}; the shards are: {names}");
        plan.notices.push(warning(pod, "UnknownShard", named, note));
        return Place::Nowhere;
    }
    let allowed: BTreeSet<&String> = match &wish.shard {
        Some(named) => [named].into(),
        None => observed.shards.keys().filter(|shard| wish.zones.contains(*shard)).collect(),
    };
    let may = |shard: &&String| allowed.is_empty() || allowed.contains(*shard);
    let has = |shard: &&String| observed.shards[*shard].known().is_ok_and(|groups| groups.contains(&wish.group));
    let open: Vec<&String> = observed.shards.keys().filter(may).filter(has).collect();
    if open.is_empty() {
        let is_unknown = observed.shards.iter().any(|(shard, groups)| may(&shard) && groups.known().is_err());
        if !is_unknown {
            plan.notices.push(unknown_group(observed, pod, wish, &allowed));
        }
        return Place::Nowhere;
    }
    // Among several each Pod has its own.
    let number = u64::from_str_radix(&digest(&pod.uid.as_str().into()), 16).unwrap_or_default();
    let index = usize::try_from(number % open.len() as u64).unwrap_or_default();
    if allowed.is_empty() { Place::Anywhere } else { Place::On(open[index].clone()) }
}

fn unknown_group(observed: &Observed, pod: &PodName, wish: &Wish, allowed: &BTreeSet<&String>) -> Notice {
    let mut known: BTreeSet<&String> = BTreeSet::new();
    for (_, groups) in observed.shards.iter().filter(|(shard, _)| allowed.is_empty() || allowed.contains(shard)) {
        known.extend(groups.known().into_iter().flatten());
    }
    let place = if allowed.is_empty() { String::new() } else { format!(" on {}", names(allowed.iter().copied())) };
    let note = format!(
        "annotation {ON_DEMAND_GROUP_ANNOTATION}: no shard has the group {}{place}; the groups there are: {}",
        wish.group,
        names(known.into_iter())
    );
    warning(pod, "UnknownGroup", &wish.group, note)
}

fn names<'a>(names: impl ExactSizeIterator<Item = &'a String>) -> String {
    let more = names.len().saturating_sub(NAMES);
    let mut shown: Vec<String> = names.take(NAMES).cloned().collect();
    if shown.is_empty() {
        return "none".to_owned();
    }
    if more > 0 {
        shown.push(format!("and {more} more"));
    }
    shown.join(", ")
}
