//! PodDisruptionBudgets, judged as the API server judges them when a pod is evicted.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::{Deserialize, Serialize};

use super::{Holds, Name, Phase, Pod, selector::matches};

/// A PodDisruptionBudget and what it allows now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Budget {
    pub name: Name,
    pub version: u64,
    /// Without one it selects nothing.
    pub selector: Option<LabelSelector>,
    /// `disruptionsAllowed`.
    pub allowed: i32,
    /// Accepted or unanswered evictions that `allowed` does not show yet.
    pub spent: u32,
    pub healthy: i32,
    pub desired: i32,
    /// Whether pods that are not ready go at any time.
    pub releases_unready: bool,
    /// Whether its status speaks of its present spec.
    pub is_current: bool,
}

/// What an eviction draws from, as it was when it was decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spends {
    pub budget: Name,
    pub version: u64,
}

/// What the budgets say about the eviction of a pod.
pub(super) enum Verdict {
    Free,
    Spends(Spends),
    Not(Holds),
}

/// Hands out what the budgets allow, to one pod after the other.
pub(super) struct Purse<'a> {
    budgets: &'a [Budget],
    spent: BTreeMap<Name, u32>,
}

impl<'a> Purse<'a> {
    pub(super) fn new(budgets: &'a [Budget]) -> Self {
        Self { budgets, spent: budgets.iter().map(|budget| (budget.name.clone(), budget.spent)).collect() }
    }

    /// What the eviction takes is not there for the next pod.
    pub(super) fn spend(&mut self, spends: &Spends) {
        *self.spent.entry(spends.budget.clone()).or_default() += 1;
    }

    /// Whether the pod may be evicted now.
    pub(super) fn ask(&self, pod: &Pod) -> Verdict {
        // A pod that does not run is nothing that a budget counts on.
        if pod.phase != Phase::Running {
            return Verdict::Free;
        }
        let selects = |budget: &&Budget| {
            budget.name.namespace == pod.name.namespace
                && budget.selector.as_ref().is_some_and(|selector| matches(selector, &pod.labels))
        };
        let found: Vec<&Budget> = self.budgets.iter().filter(selects).collect();
        let [budget] = found.as_slice() else {
            let budgets: Vec<Name> = found.iter().map(|budget| budget.name.clone()).collect();
            return if budgets.is_empty() { Verdict::Free } else { Verdict::Not(Holds::SeveralBudgets { budgets }) };
        };
        let is_met = budget.healthy >= budget.desired && budget.desired > 0;
        if !pod.is_ready && (budget.releases_unready || is_met) {
            return Verdict::Free;
        }
        let spent = self.spent.get(&budget.name).copied().unwrap_or_default();
        if budget.is_current && i64::from(budget.allowed) > i64::from(spent) {
            return Verdict::Spends(Spends { budget: budget.name.clone(), version: budget.version });
        }
        Verdict::Not(Holds::Blocked { budget: Some(budget.name.clone()), message: blocked(budget) })
    }
}

fn blocked(budget: &Budget) -> String {
    let Budget { name, healthy, desired, is_current, .. } = budget;
    if !is_current {
        return format!("PodDisruptionBudget {name} was changed, and its status does not show it yet");
    }
    format!("PodDisruptionBudget {name} allows no eviction now: {desired} healthy pods needed, {healthy} there")
}
