//! Budgets that jobs draw from, and what is drawn now. Pure: time is an argument.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use crate::key::Key;

/// The limits of one budget. A budget that is drawn per peer or per account has these limits for each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The most that is drawn at any moment.
    pub total: u64,
    /// The most that the jobs of one namespace draw together, and so the largest draw there is. What is left of the
    /// total goes on serving other namespaces while a large draw waits until enough is free. It is also the most that
    /// long jobs of all namespaces draw together, so that what is left is free again soon, however many
    /// namespaces ask for as much and as long as they may.
    pub share: u64,
    pub refill: Refill,
}

/// A job that may take longer than this is a long one. Helm waits five minutes by default, and an install that removes a
/// failed one before waits twice: with a little for the load of the machine, ordinary work is not long.
pub(super) const LONG: Duration = Duration::from_mins(15);

/// When a budget gets back what a job has drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refill {
    /// When the job has ended: bytes, calls under way.
    AtEnd,
    /// This long after the draw, however long the job takes: a rate.
    After(Duration),
}

impl Budget {
    /// An amount that running jobs use together. One namespace leaves an ordinary draw to the others, unless the total
    /// holds only one.
    pub fn of(total: u64, ordinary: u64) -> Self {
        let ordinary = ordinary.min(total);
        let share = total.saturating_sub(ordinary).max(ordinary);
        Self { total, share, refill: Refill::AtEnd }
    }

    /// What may start past a job that waits for a large draw.
    fn passing(self) -> u64 {
        self.total - self.share
    }

    /// A number of calls at once.
    pub fn calls(total: u64) -> Self {
        Self::of(total, 1)
    }

    /// A number of calls within each `period`.
    pub fn rate(total: u64, period: Duration) -> Self {
        Self { refill: Refill::After(period), ..Self::of(total, 1) }
    }
}

/// What one job takes from one budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draw {
    pub budget: &'static str,
    /// The peer or account whose budget it is; empty for one that the whole process has.
    pub of: Arc<str>,
    pub amount: u64,
    /// Of a job that may take [`LONG`] and more.
    is_long: bool,
}

impl Draw {
    /// From a budget of the whole process.
    pub fn new(budget: &'static str, amount: u64) -> Self {
        Self::on(budget, "", amount)
    }

    /// From the budget of one peer or account.
    pub fn on(budget: &'static str, of: impl Into<Arc<str>>, amount: u64) -> Self {
        Self { budget, of: of.into(), amount, is_long: false }
    }

    /// Of a job that may take this long.
    #[must_use]
    pub(super) fn lasting(self, time: Duration) -> Self {
        Self { is_long: time > LONG, ..self }
    }

    pub(super) fn is_long(&self) -> bool {
        self.is_long
    }

    pub(super) fn pot(&self) -> PotName {
        PotName { budget: self.budget, of: self.of.clone() }
    }
}

/// One budget of one peer, account or the process.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct PotName {
    pub budget: &'static str,
    pub of: Arc<str>,
}

/// A job that waits until its draw fits. Others may draw past it what no namespace's share holds, so it starts at the
/// latest when all that was drawn before it came has returned.
#[derive(Clone, Debug)]
struct Hold {
    /// Of this hold alone: a job may come to be first in line more than once.
    id: u64,
    key: Key,
    namespace: Arc<str>,
    /// The lower, the earlier.
    ticket: u64,
    is_long: bool,
    /// Drawn past it since.
    overtaking: u64,
}

/// What is drawn from one budget now.
#[derive(Debug, Default)]
struct Pot {
    in_use: u64,
    /// Of this, by long jobs.
    long: u64,
    by_namespace: HashMap<Arc<str>, u64>,
    returning: VecDeque<(Instant, Drawn)>,
    hold: Option<Hold>,
}

/// A draw that was made.
#[derive(Clone, Debug)]
pub(super) struct Drawn {
    pub pot: PotName,
    pub namespace: Arc<str>,
    pub amount: u64,
    is_long: bool,
    /// The hold that it went past.
    overtook: Option<u64>,
}

impl Pot {
    fn used_by(&self, namespace: &str) -> u64 {
        self.by_namespace.get(namespace).copied().unwrap_or(0)
    }

    fn give_back(&mut self, drawn: &Drawn) {
        self.in_use -= drawn.amount;
        self.long -= if drawn.is_long { drawn.amount } else { 0 };
        if let Some(used) = self.by_namespace.get_mut(&drawn.namespace) {
            *used -= drawn.amount;
        }
        self.by_namespace.retain(|_, used| *used > 0);
        if let Some(hold) = self.hold.as_mut().filter(|hold| Some(hold.id) == drawn.overtook) {
            hold.overtaking -= drawn.amount;
        }
    }

    fn is_idle(&self) -> bool {
        self.in_use == 0 && self.hold.is_none()
    }
}

/// Whether a job could start now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fit {
    Now,
    /// These hold too little at the moment.
    Short(Vec<PotName>),
    /// Its namespace uses all that one namespace may.
    OverShare,
    /// Another job is first in line for what it needs.
    Behind,
}

/// All budgets, each with what is drawn from it.
#[derive(Debug)]
pub(super) struct Budgets {
    limits: BTreeMap<&'static str, Budget>,
    pots: HashMap<PotName, Pot>,
    holds: u64,
}

impl Budgets {
    pub fn new(limits: impl IntoIterator<Item = (&'static str, Budget)>) -> Self {
        Self { limits: limits.into_iter().collect(), pots: HashMap::new(), holds: 0 }
    }

    pub fn limits(&self, name: &str) -> Budget {
        *self.limits.get(name).expect("a job draws from budgets that were set up")
    }

    pub fn names(&self) -> impl Iterator<Item = (&'static str, Budget)> {
        self.limits.iter().map(|(name, budget)| (*name, *budget))
    }

    /// Drawn from a budget, of all peers and accounts together.
    pub fn in_use(&self, name: &str) -> u64 {
        self.pots.iter().filter(|(pot, _)| pot.budget == name).map(|(_, pot)| pot.in_use).sum()
    }

    /// How much of what it wants a namespace uses already, in parts of 2^32 of a whole budget: of several, the largest
    /// part, which is what its jobs keep from others.
    pub fn used_part(&self, namespace: &str, draws: &[Draw]) -> u64 {
        let part = |draw: &Draw| {
            let used = self.pots.get(&draw.pot()).map_or(0, |pot| pot.used_by(namespace));
            let part = (u128::from(used) << 32) / u128::from(self.limits(draw.budget).total.max(1));
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        draws.iter().map(part).max().unwrap_or(0)
    }

    /// Whether `key` could start in the turn of `namespace`. A job that is first in line gives way only to one that was
    /// so earlier.
    pub fn fit(&self, key: &Key, namespace: &str, ticket: Option<u64>, draws: &[Draw]) -> Fit {
        let empty = Pot::default();
        let mut short = Vec::new();
        let mut is_behind = false;
        for draw in draws {
            let (name, limits) = (draw.pot(), self.limits(draw.budget));
            let pot = self.pots.get(&name).unwrap_or(&empty);
            if pot.used_by(namespace) + draw.amount > limits.share {
                return Fit::OverShare;
            }
            let is_short = pot.in_use + draw.amount > limits.total
                || (draw.is_long && limits.refill == Refill::AtEnd && pot.long + draw.amount > limits.share);
            let first = pot.hold.as_ref().filter(|hold| hold.key != *key);
            is_behind |= first.is_some_and(|hold| {
                let is_earlier = ticket.is_some_and(|ticket| ticket < hold.ticket);
                // Of long jobs one waits for the others: a stream of small ones would keep it waiting for ever.
                let is_past = *hold.namespace != *namespace
                    && !(hold.is_long && draw.is_long)
                    && hold.overtaking + draw.amount <= limits.passing();
                !is_earlier && (is_short || !is_past)
            });
            if is_short {
                short.push(name);
            }
        }
        match (is_behind, short.is_empty()) {
            (true, _) => Fit::Behind,
            (false, true) => Fit::Now,
            (false, false) => Fit::Short(short),
        }
    }

    /// Makes a job the first in line at these budgets.
    pub fn hold(&mut self, pots: Vec<PotName>, key: &Key, namespace: &Arc<str>, ticket: u64, is_long: bool) {
        for name in pots {
            let hold = &mut self.pots.entry(name).or_default().hold;
            if hold.as_ref().is_none_or(|hold| hold.key != *key) {
                self.holds += 1;
                let (id, key, namespace) = (self.holds, key.clone(), namespace.clone());
                *hold = Some(Hold { id, key, namespace, ticket, is_long, overtaking: 0 });
            }
        }
    }

    /// The job is no longer first in line anywhere.
    pub fn release_hold(&mut self, key: &Key) {
        self.pots.retain(|_, pot| {
            pot.hold.take_if(|hold| hold.key == *key);
            !pot.is_idle()
        });
    }

    /// Takes what [`Self::fit`] found to fit. What comes back is to be returned when the job ends.
    pub fn draw(&mut self, namespace: &Arc<str>, draws: &[Draw], now: Instant) -> Vec<Drawn> {
        let mut until_end = Vec::new();
        for draw in draws.iter().filter(|draw| draw.amount > 0) {
            let refill = self.limits(draw.budget).refill;
            let pot = self.pots.entry(draw.pot()).or_default();
            pot.in_use += draw.amount;
            pot.long += if draw.is_long { draw.amount } else { 0 };
            *pot.by_namespace.entry(namespace.clone()).or_default() += draw.amount;
            let overtook = pot.hold.as_mut().map(|hold| {
                hold.overtaking += draw.amount;
                hold.id
            });
            let (namespace, amount) = (namespace.clone(), draw.amount);
            let drawn = Drawn { pot: draw.pot(), namespace, amount, is_long: draw.is_long, overtook };
            match refill {
                Refill::AtEnd => until_end.push(drawn),
                Refill::After(period) => pot.returning.push_back((now + period, drawn)),
            }
        }
        until_end
    }

    pub fn give_back(&mut self, drawn: &[Drawn]) {
        for drawn in drawn {
            if let Some(pot) = self.pots.get_mut(&drawn.pot) {
                pot.give_back(drawn);
            }
        }
        self.pots.retain(|_, pot| !pot.is_idle());
    }

    /// Refills the rates whose time has come.
    pub fn refill(&mut self, now: Instant) {
        for pot in self.pots.values_mut().filter(|pot| !pot.returning.is_empty()) {
            while let Some((_, drawn)) = pot.returning.pop_front_if(|(at, _)| *at <= now) {
                pot.give_back(&drawn);
            }
        }
        self.pots.retain(|_, pot| !pot.is_idle());
    }

    /// When a rate is refilled next.
    pub fn next_refill(&self) -> Option<Instant> {
        self.pots.values().filter_map(|pot| pot.returning.front()).map(|(at, _)| *at).min()
    }
}
