//! One round of one group: which instances are made, drained and deleted now.
//!
//! A plan holds everything that is due at once; carried out, planning again yields nothing. Instances that leave do not
//! count. A replacement is made before the instance it replaces drains, one at a time, so that a group has at most one
//! instance more than its size; only a machine that is gone, or about to go, leaves before its replacement is there.
//! What a replacement replaces is stored with it: a leader that did not see why it was begun finishes it.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    group::Group,
    id::InstanceId,
    instance::{Health, Leaving, Machine, MachineRef, Member, Reason, Record, Replaces, Settings},
};

/// A drain that a notice shortens by less goes on as it is: each change is stored and sent, and an agent may name
/// another deadline in every report.
const SHORTER: Duration = Duration::from_secs(5);

/// A step of a plan. Each is safe to repeat.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Store the record, make the machine under the instance's name, store its provider id.
    Create(Box<Record>),
    /// The same without the first write: an earlier attempt failed, or its server died.
    Launch(InstanceId),
    /// Store the provider id of a machine that was found under the instance's name.
    Link(InstanceId, MachineRef),
    /// Store that it leaves, and send the notice.
    Drain(InstanceId, Leaving),
    /// Store that it leaves (unless that is stored), delete the machine, store that it is deleted, send the event.
    Delete(InstanceId, Leaving),
    /// Remove the record of an instance that was deleted long ago.
    Forget(InstanceId),
}

/// What one round intends.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use = "a plan does nothing until it is executed"]
pub struct Round {
    pub actions: Vec<Action>,
    /// Why instances are missing although they should be made now.
    pub blocked: Option<&'static str>,
    /// Instances are missing that may not be made yet.
    pub is_short: bool,
    pub next_look: Option<Timestamp>,
}

/// A subnet of the group's pool and how many addresses it has left; `None` where the provider has no such limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subnet {
    pub id: String,
    pub free: Option<u32>,
}

/// What a round is decided on.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// `None` for a group that is no more: its instances leave.
    pub group: Option<&'a Group>,
    /// Deleted ones included until they are forgotten.
    pub members: &'a [Member],
    pub subnets: &'a [Subnet],
    /// New instances get these, in order; there are no more than may be made now.
    pub ids: &'a [u128],
    /// A creation failed; not again before that time.
    pub create_after: Option<Timestamp>,
    /// Instances of the group whose records cannot be read: each may be a good one, so that none is made in its place,
    /// and may be none, so that no other goes for it.
    pub unreadable: usize,
}

struct Planner<'a> {
    observed: Observed<'a>,
    settings: &'a Settings,
    now: Timestamp,
    round: Round,
    /// Members that leave, by an action of this round or an earlier one.
    leaving: BTreeSet<InstanceId>,
    /// Of those, the ones that drain after this round.
    draining: BTreeSet<InstanceId>,
    /// Members without a machine.
    unmade: Vec<&'a Member>,
    /// Members whose replacement was begun, and why.
    replaced: BTreeMap<&'a InstanceId, Reason>,
}

/// Plans one round.
pub fn plan(observed: Observed<'_>, settings: &Settings, now: Timestamp) -> Round {
    let round = Round::default();
    let (leaving, draining) = (BTreeSet::new(), BTreeSet::new());
    let staying = |member: &&Member| member.record.deleted_at.is_none() && member.record.leaving.is_none();
    let replacements = observed.members.iter().filter(staying).filter_map(|member| member.record.replaces.as_ref());
    let replaced = replacements.map(|replaces| (&replaces.id, replaces.reason)).collect();
    let mut planner = Planner { observed, settings, now, round, leaving, draining, unmade: Vec::new(), replaced };
    for member in observed.members {
        planner.settle(member);
    }
    planner.scale();
    for member in std::mem::take(&mut planner.unmade) {
        planner.launch(member);
    }
    planner.round
}

impl<'a> Planner<'a> {
    fn drain_timeout(&self) -> Duration {
        self.observed.group.map_or(self.settings.drain_timeout, |group| group.drain_timeout)
    }

    fn look_at(&mut self, at: Timestamp) {
        if at > self.now {
            self.round.next_look = Some(self.round.next_look.map_or(at, |earlier| earlier.min(at)));
        }
    }

    /// What must be done about one instance whatever the group's size is.
    fn settle(&mut self, member: &'a Member) {
        let record = &member.record;
        if let Some(deleted_at) = record.deleted_at {
            let end = deleted_at.saturating_add(self.settings.retention).unwrap_or(Timestamp::MAX);
            self.look_at(end);
            if self.now >= end {
                self.round.actions.push(Action::Forget(record.id.clone()));
            }
            return;
        }
        let (health, until) = member.health(self.settings, self.now);
        if let Some(leaving) = &record.leaving {
            return self.leave(member, leaving, health);
        }
        self.wait(member, until);
        if member.acknowledged {
            // The operator drained it without a notice of ours: it has said what it wants.
            return self.delete(member, Reason::Request);
        }
        if health == Health::Gone {
            let announced = member.agent.notice.is_some();
            return self.delete(member, if announced { Reason::Preemption } else { Reason::Unhealthy });
        }
        if record.machine.is_none() {
            return self.settle_unmade(member);
        }
        if let Some(deadline) = member.agent.notice {
            return self.drain(member, Reason::SpotTerminating, deadline);
        }
        if record.on_demand {
            self.settle_on_demand(member, health);
        }
    }

    /// What was never made and would be made in an outdated way is given up; so is what was asked for beside a group that
    /// is no more, which says nothing of how to make it.
    fn settle_unmade(&mut self, member: &'a Member) {
        let is_outdated = match self.observed.group {
            Some(group) => !member.record.on_demand && group.blueprint.hash != member.record.hash,
            None => member.record.on_demand,
        };
        if member.machine == Machine::Absent && is_outdated {
            return self.delete(member, Reason::ConfigDrift);
        }
        self.unmade.push(member);
    }

    /// On-demand instances are never replaced.
    fn settle_on_demand(&mut self, member: &'a Member, health: Health) {
        let end = self.expiry(member, self.settings.ondemand_age);
        if let Some(end) = end {
            self.look_at(end);
        }
        if end.is_some_and(|end| self.now >= end) {
            self.drain(member, Reason::OnDemandExpiry, None);
        } else if health == Health::Silent {
            self.drain(member, Reason::Unhealthy, None);
        }
    }

    /// Looks again when the instance's state can change by time alone.
    fn wait(&mut self, member: &Member, until: Option<Timestamp>) {
        if let Some(until) = until {
            self.look_at(until);
        }
        let record = &member.record;
        if record.on_demand || record.machine.is_none() {
            return;
        }
        for age in [self.settings.eligible_age, self.settings.forced_age].into_iter().flatten() {
            if let Some(end) = self.expiry(member, Some(age)) {
                self.look_at(end);
            }
        }
    }

    /// When the instance has that age. Its creation was stored by a wall clock, and this server's may be wrong by years
    /// until it is set: whatever it says, an instance is not old before this server has known it for as long as an agent
    /// has to register, or for that age if it is shorter.
    fn expiry(&self, member: &Member, age: Option<Duration>) -> Option<Timestamp> {
        let age = age?;
        let end = member.record.created_at.checked_add(age).ok()?;
        let unknown = age.min(self.settings.registration_timeout).saturating_sub(member.known_for);
        Some(end.max(self.now.checked_add(unknown).ok()?))
    }

    fn launch(&mut self, member: &Member) {
        let id = member.record.id.clone();
        if self.leaving.contains(&id) {
            return;
        }
        match &member.machine {
            Machine::There { provider_id, .. } => {
                let machine = MachineRef { provider_id: provider_id.clone(), launched_at: self.now };
                self.round.actions.push(Action::Link(id, machine));
            }
            Machine::Absent if member.retry_at.is_none_or(|at| self.now >= at) => {
                self.round.actions.push(Action::Launch(id));
            }
            // Not known: it may be there.
            Machine::Absent | Machine::Unknown => {
                if let Some(at) = member.retry_at {
                    self.look_at(at);
                }
            }
        }
    }

    /// An instance that leaves goes when it is drained, when its time is over, or when its machine is gone.
    fn leave(&mut self, member: &'a Member, leaving: &Leaving, health: Health) {
        self.leaving.insert(member.record.id.clone());
        let earliest = leaving.delete_at.saturating_sub(SHORTER).unwrap_or(Timestamp::MIN);
        let notice = member.agent.notice.flatten().filter(|deadline| *deadline <= earliest);
        let delete_at = notice.unwrap_or(leaving.delete_at);
        let due = member.acknowledged || self.now >= delete_at || health == Health::Gone;
        if !due {
            self.draining.insert(member.record.id.clone());
            self.look_at(delete_at);
            if notice.is_some() {
                // The notice shortens the drain: the operator must know.
                let leaving = Leaving { delete_at, ..leaving.clone() };
                self.round.actions.push(Action::Drain(member.record.id.clone(), leaving));
            }
            return;
        }
        match member.retry_at.filter(|at| self.now < *at) {
            Some(at) => self.look_at(at),
            None => self.round.actions.push(Action::Delete(member.record.id.clone(), leaving.clone())),
        }
    }

    fn delete(&mut self, member: &Member, reason: Reason) {
        let id = member.record.id.clone();
        self.leaving.insert(id.clone());
        let leaving = Leaving { reason, since: self.now, delete_at: self.now };
        self.round.actions.push(Action::Delete(id, leaving));
    }

    /// Drains, if the group gives time for it and the machine has not less.
    fn drain(&mut self, member: &Member, reason: Reason, deadline: Option<Timestamp>) {
        let end = self.now.saturating_add(self.drain_timeout()).unwrap_or(Timestamp::MAX);
        let delete_at = deadline.map_or(end, |deadline| end.min(deadline));
        if delete_at <= self.now {
            return self.delete(member, reason);
        }
        let id = member.record.id.clone();
        self.leaving.insert(id.clone());
        self.draining.insert(id.clone());
        self.look_at(delete_at);
        self.round.actions.push(Action::Drain(id, Leaving { reason, since: self.now, delete_at }));
    }

    /// Those that count: of the group, not on demand, not leaving.
    fn counted(&self) -> Vec<&'a Member> {
        let counts = |member: &&Member| {
            !member.record.on_demand && member.record.deleted_at.is_none() && !self.leaving.contains(&member.record.id)
        };
        self.observed.members.iter().filter(counts).collect()
    }

    fn scale(&mut self) {
        let size = usize::try_from(self.observed.group.map_or(0, |group| group.size)).unwrap_or(0);
        let counted = self.counted();
        let candidate = if size == 0 { None } else { self.candidate(&counted) };
        let needed = size.saturating_sub(self.observed.unreadable) + usize::from(candidate.is_some());
        if counted.len() < needed {
            let replaces = candidate.map(|(member, reason)| Replaces { id: member.record.id.clone(), reason });
            let begun =
                |replaces: &Replaces| counted.iter().any(|member| member.record.replaces_id() == Some(&replaces.id));
            return self.create(needed - counted.len(), replaces.filter(|replaces| !begun(replaces)));
        }
        let Some((candidate, reason)) = candidate else {
            for victim in self.victims(&counted, None).into_iter().take(counted.len().saturating_sub(size)) {
                self.dismiss(victim, Reason::ScaleDown);
            }
            return;
        };
        let most = size + 1;
        if counted.len() > most {
            let victims = self.victims(&counted, Some(&candidate.record.id));
            for victim in victims.into_iter().take(counted.len() - most) {
                self.dismiss(victim, Reason::ScaleDown);
            }
        } else {
            // One too many: the replacement is under way, which costs no other. Once it is there the candidate goes,
            // and the next one's replacement may begin.
            let mut others = counted.iter().filter(|member| member.record.id != candidate.record.id);
            if others.any(|member| self.health(member) == Health::Starting) {
                return;
            }
            self.dismiss(candidate, reason);
        }
        self.scale();
    }

    /// An instance that another leader found silent is silent until it reports to this one.
    fn health(&self, member: &Member) -> Health {
        let (health, _) = member.health(self.settings, self.now);
        let found_silent = self.replaced.get(&member.record.id) == Some(&Reason::Unhealthy);
        let runs = matches!(member.machine, Machine::There { .. });
        if health == Health::Healthy && found_silent && runs && !member.agent.reported {
            return Health::Silent;
        }
        health
    }

    /// Drains what runs; what never ran has nothing to drain.
    fn dismiss(&mut self, member: &Member, reason: Reason) {
        if member.record.machine.is_none() {
            self.delete(member, reason);
        } else {
            self.drain(member, reason, None);
        }
    }

    /// Who goes first: marked by the operator, then unhealthy, then on the way, then about to be replaced, then the
    /// oldest.
    fn victims(&self, counted: &[&'a Member], replaced: Option<&InstanceId>) -> Vec<&'a Member> {
        let marks = self.observed.group.map_or(&[][..], |group| &group.remove_first);
        let rank = |member: &Member| marks.iter().position(|id| *id == member.record.id).unwrap_or(usize::MAX);
        let mut victims = counted.to_vec();
        victims.sort_by_key(|member| {
            let stays = Some(&member.record.id) != replaced;
            (rank(member), self.health(member), stays, member.record.created_at, member.record.id.clone())
        });
        victims
    }

    /// The one instance that should be replaced next, by urgency; of several for the same reason the one whose
    /// replacement was begun, then the oldest.
    fn candidate(&self, counted: &[&'a Member]) -> Option<(&'a Member, Reason)> {
        let group = self.observed.group?;
        let drains = |member: &Member| !member.record.on_demand && self.draining.contains(&member.record.id);
        let quiet = !self.observed.members.iter().any(drains);
        let urgent = [Reason::Unhealthy, Reason::Request, Reason::ForcedExpiry].map(|reason| (reason, true));
        // What is not urgent begins only while nothing drains, and goes on in any case.
        let patient = [Reason::EligibleExpiry, Reason::ConfigDrift].map(|reason| (reason, quiet));
        urgent.into_iter().chain(patient).find_map(|(reason, may_begin)| {
            let is_begun = |member: &Member| self.replaced.get(&member.record.id) == Some(&reason);
            let launched = counted.iter().copied().filter(|member| member.record.machine.is_some());
            let due = launched.filter(|member| self.is_due(group, member, reason));
            let due = due.filter(|member| may_begin || is_begun(member));
            let first = due
                .min_by_key(|member| (!is_begun(member), member.record.created_at, Reverse(member.record.id.clone())));
            first.map(|member| (member, reason))
        })
    }

    /// Whether an instance should be replaced for that reason.
    fn is_due(&self, group: &Group, member: &Member, reason: Reason) -> bool {
        let older = |age| self.expiry(member, age).is_some_and(|end| self.now >= end);
        match reason {
            Reason::Unhealthy => self.health(member) == Health::Silent,
            Reason::Request => group.replace.contains(&member.record.id),
            Reason::ForcedExpiry => older(self.settings.forced_age),
            Reason::EligibleExpiry => older(self.settings.eligible_age),
            Reason::ConfigDrift => member.record.hash != group.blueprint.hash,
            // These go without a replacement of their own.
            Reason::SpotTerminating | Reason::OnDemandExpiry | Reason::ScaleDown | Reason::Preemption => false,
        }
    }

    /// The last of those that are missing is the replacement, if one is to begin: what the size asks for comes first.
    fn create(&mut self, missing: usize, mut replaces: Option<Replaces>) {
        let Some(group) = self.observed.group else { return };
        if let Some(at) = self.observed.create_after.filter(|at| self.now < *at) {
            return self.look_at(at);
        }
        self.round.is_short = self.observed.ids.len() < missing;
        let mut free: Vec<Subnet> = self.observed.subnets.to_vec();
        for (number, uuid) in self.observed.ids.iter().take(missing).enumerate() {
            // The first with room, as the pool lists them.
            let Some(subnet) = free.iter_mut().find(|subnet| subnet.free != Some(0)) else {
                self.round.blocked = Some("every subnet of the pool is full");
                return;
            };
            subnet.free = subnet.free.map(|free| free - 1);
            let id = InstanceId::new(&group.kind, *uuid);
            let names = (&*group.tenant, &*group.key, &*group.template);
            let mut record = Record::new(id, names, &group.blueprint, &subnet.id, self.now);
            if number + 1 == missing {
                record.replaces = replaces.take();
            }
            self.round.actions.push(Action::Create(Box::new(record)));
        }
    }
}

#[cfg(test)]
mod tests;
