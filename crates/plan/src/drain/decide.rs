//! What a drain does next.

use std::{collections::BTreeMap, time::Duration};

use super::{
    Attempt, Budget, Cordon, End, Eviction, Holds, Name, Node, Observed, Order, Outcome, Owner, Plan, Pod, Standing,
    Stays,
    budget::{Purse, Verdict},
    sort::{Fate, Tier, claims, fate},
};
use crate::fact::{Fact, latest};

/// Every change is an event; this only bounds what a lost one costs.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// What an eviction takes beside the pod's own grace: when no more is left before the deadline, a pod is evicted even if
/// its tier's turn has not come, so that it can still end by itself.
const LAST_CALL: Duration = Duration::from_secs(5);
/// A watch that was interrupted is back within seconds; after this long the server is asked by evictions.
const BELIEVED: Duration = Duration::from_secs(30);

/// `attempts` are by the uid of their pod; `time_left` is what is left until the deadline, if there is one.
pub fn plan(
    order: &Order,
    observed: &Observed,
    attempts: &BTreeMap<String, Attempt>,
    time_left: Option<Duration>,
) -> Plan {
    let mut plan = Plan { unknown: unknown(order, observed), ..Plan::default() };
    let is_over = time_left == Some(Duration::ZERO);
    match latest(&observed.node) {
        Some(Some(node)) => {
            // Once it was, the mark of another drain is as good: that of a person's `strata drain`, beside the operator's,
            // would be replaced, and replace ours, without end.
            let is_marked =
                if observed.has_cordoned { node.drain.is_some() } else { node.drain.as_ref() == Some(&order.id) };
            let is_begun = node.is_cordoned && is_marked;
            if !is_begun && !is_over {
                let Node { uid, version, .. } = node.clone();
                plan.cordon = Some(Cordon { uid, version, drain: order.id.clone() });
            }
            let cordoned = is_begun.then_some(node);
            Round { order, observed, attempts, time_left, cordoned, plan: &mut plan }.decide();
        }
        Some(None) if observed.node.known().is_ok() => plan.end = Some(End::NodeGone),
        Some(None) | None => {}
    }
    if plan.end.is_none() && is_over {
        plan.end = Some(End::Expired);
    }
    if plan.end.is_none() {
        plan.look_within(time_left.unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN));
    }
    plan
}

impl Plan {
    fn look_within(&mut self, wait: Duration) {
        self.next_look = Some(self.next_look.map_or(wait, |earlier| earlier.min(wait)));
    }

    fn add(&mut self, pod: &Pod, standing: Standing) {
        self.pods.push((pod.name.clone(), standing));
    }
}

/// Without these a drain does not end. Budgets are not among them: where they are not known, the server judges each
/// eviction.
fn unknown(order: &Order, observed: &Observed) -> Vec<String> {
    let node = observed.node.known().err().map(|why| format!("the node: {}", why.message));
    let pods = observed.pods.known().err().map(|why| format!("the pods of the node: {}", why.message));
    let namespaces = observed.namespaces.known().err().filter(|_| order.asks_for_namespaces());
    let namespaces = namespaces.map(|why| format!("the namespaces: {}", why.message));
    node.into_iter().chain(pods).chain(namespaces).collect()
}

/// The budgets as far as they may decide: what was known a moment ago spares attempts in vain, and what is older might
/// hold a pod for ever.
fn believed(budgets: &Fact<Vec<Budget>>) -> &[Budget] {
    match budgets {
        Fact::Known { value, .. } => value,
        Fact::Unknown { last: Some((value, age)), .. } if *age <= BELIEVED => value,
        Fact::Unknown { .. } => &[],
    }
}

struct Round<'a> {
    order: &'a Order,
    observed: &'a Observed,
    attempts: &'a BTreeMap<String, Attempt>,
    time_left: Option<Duration>,
    /// The node, once this drain has cordoned it.
    cordoned: Option<&'a Node>,
    plan: &'a mut Plan,
}

impl Round<'_> {
    fn decide(&mut self) {
        let (order, observed, cordoned) = (self.order, self.observed, self.cordoned);
        let pods = latest(&observed.pods).map(Vec::as_slice).unwrap_or_default();
        let mut going: Vec<(Tier, bool, &Pod)> = Vec::new();
        let mut staying: Vec<(&Pod, Stays)> = Vec::new();
        for pod in pods {
            match fate(pod, order, cordoned, observed) {
                Fate::Evicted(tier) => going.push((tier, true, pod)),
                Fate::Completes(tier) => going.push((tier, false, pod)),
                Fate::Stays(stays) => staying.push((pod, stays)),
                Fate::Open(holds) => self.plan.add(pod, Standing::Holds(holds)),
            }
        }
        going.sort_by(|(tier, _, pod), (other_tier, _, other)| (tier, &pod.name).cmp(&(other_tier, &other.name)));
        staying.sort_by(|(pod, _), (other, _)| pod.name.cmp(&other.name));
        let mut purse = Purse::new(believed(&observed.budgets));
        let turn = going.first().map(|(tier, ..)| *tier);
        for (tier, is_evicted, pod) in going {
            if is_evicted && pod.owner == Owner::Nothing {
                self.plan.unmanaged.push(pod.name.clone());
            }
            let holds = if is_evicted { self.eviction(pod, Some(tier) == turn, &mut purse) } else { Holds::Completes };
            self.plan.add(pod, Standing::Holds(holds));
        }
        for (pod, stays) in &staying {
            self.plan.add(pod, Standing::Stays(stays.clone()));
        }
        self.finish(staying.iter().map(|(pod, _)| *pod));
    }

    /// Evicts the pod if it may go now; how it stands then.
    fn eviction(&mut self, pod: &Pod, is_turn: bool, purse: &mut Purse<'_>) -> Holds {
        if let Some(end) = pod.ends_at {
            let left = self.observed.server_time.map(|now| end.duration_since(now));
            if let Some(left) = left.and_then(|left| Duration::try_from(left).ok()) {
                // An end that a lost node does not confirm is no event. Times are whole seconds.
                self.plan.look_within(left + Duration::from_secs(1));
            }
            return Holds::Terminating;
        }
        let attempt = self.attempts.get(&pod.uid);
        if let Some(Attempt { outcome: Outcome::Sent | Outcome::Accepted, wait, .. }) = attempt
            && !wait.is_zero()
        {
            self.plan.look_within(*wait);
            return Holds::Evicting;
        }
        let last_call = pod.grace + LAST_CALL;
        if !is_turn && self.time_left.is_none_or(|left| left > last_call) {
            if let Some(left) = self.time_left {
                self.plan.look_within(left.saturating_sub(last_call));
            }
            return Holds::Later;
        }
        let spends = match purse.ask(pod) {
            Verdict::Not(holds) => return holds,
            Verdict::Free => None,
            Verdict::Spends(spends) => Some(spends),
        };
        if let Some(holds) = attempt.and_then(|attempt| waits(attempt, spends.as_ref().map(|now| now.version))) {
            self.plan.look_within(attempt.map_or(LOOK_AGAIN, |attempt| attempt.wait));
            return holds;
        }
        if let Some(spends) = &spends {
            purse.spend(spends);
        }
        if self.plan.cordon.is_some() || self.time_left == Some(Duration::ZERO) {
            return Holds::Due;
        }
        self.plan.evictions.push(Eviction { pod: pod.name.clone(), uid: pod.uid.clone(), spends });
        Holds::Evicting
    }

    /// Whether all is done.
    fn finish<'p>(&mut self, staying: impl Iterator<Item = &'p Pod>) {
        let is_held = self.plan.pods.iter().any(|(_, standing)| matches!(standing, Standing::Holds(_)));
        let Some(node) = self.cordoned.filter(|_| !is_held && self.plan.unknown.is_empty()) else { return };
        // Nothing detaches a volume from a node that cannot be reached.
        if self.order.waits_for_volumes && !node.is_unreachable {
            self.volumes(node, staying);
        }
        if self.plan.volumes.is_empty() {
            self.plan.end = Some(End::Drained);
        }
    }

    fn volumes<'p>(&mut self, node: &Node, staying: impl Iterator<Item = &'p Pod>) {
        let staying = claims(staying);
        let volumes = latest(&self.observed.volumes);
        let is_staying = |volume: &&String| {
            let claim: Option<&Name> = volumes.and_then(|volumes| volumes.get(*volume));
            claim.is_some_and(|claim| staying.contains(claim))
        };
        self.plan.volumes = node.volumes_attached.iter().filter(|volume| !is_staying(volume)).cloned().collect();
        self.plan.asks_for_volumes = !self.plan.volumes.is_empty() && !staying.is_empty();
        if self.plan.asks_for_volumes
            && let Err(why) = self.observed.volumes.known()
        {
            self.plan.unknown.push(format!("the volumes of pods that stay: {}", why.message));
        }
    }
}

/// Why no other attempt is made yet. What a budget refused may go when that budget has changed.
fn waits(attempt: &Attempt, budget: Option<u64>) -> Option<Holds> {
    if attempt.wait.is_zero() {
        return None;
    }
    match &attempt.outcome {
        Outcome::Sent | Outcome::Accepted => Some(Holds::Evicting),
        Outcome::Refused(message) => {
            let spent = attempt.spends.as_ref();
            let has_changed = spent.zip(budget).is_some_and(|(then, now)| then.version != now);
            let budget = spent.map(|spent| spent.budget.clone());
            (!has_changed).then(|| Holds::Blocked { budget, message: message.clone() })
        }
        Outcome::Failed { message, is_forbidden } => {
            Some(Holds::Failed { message: message.clone(), is_forbidden: *is_forbidden })
        }
    }
}
