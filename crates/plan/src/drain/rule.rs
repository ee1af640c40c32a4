//! Cluster API's MachineDrainRules: which pods of a machine are evicted, in which order, and which are not.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::{Deserialize, Serialize};

use super::selector::{Labels, matches};

/// One MachineDrainRule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rule {
    pub name: String,
    pub behaviour: Behaviour,
    /// All machines if empty.
    pub machines: Vec<MachineSelector>,
    /// All pods if empty.
    pub pods: Vec<PodSelector>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Behaviour {
    /// Evicted; a lower order goes first.
    Drain {
        order: i32,
    },
    Skip,
    WaitCompleted,
}

/// Both must select; what is absent selects all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineSelector {
    pub selector: Option<LabelSelector>,
    pub cluster: Option<LabelSelector>,
}

/// Both must select; what is absent selects all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PodSelector {
    pub selector: Option<LabelSelector>,
    pub namespace: Option<LabelSelector>,
}

fn selects(selector: Option<&LabelSelector>, labels: &Labels) -> bool {
    selector.is_none_or(|selector| matches(selector, labels))
}

/// Of the rules in the namespace of a machine those that apply to it, in the order in which they are tried for a pod.
pub fn rules_for(rules: impl IntoIterator<Item = Rule>, machine: &Labels, cluster: &Labels) -> Vec<Rule> {
    let applies = |rule: &Rule| {
        let one =
            |one: &MachineSelector| selects(one.selector.as_ref(), machine) && selects(one.cluster.as_ref(), cluster);
        rule.machines.is_empty() || rule.machines.iter().any(one)
    };
    let mut rules: Vec<Rule> = rules.into_iter().filter(applies).collect();
    rules.sort_by(|one, other| one.name.cmp(&other.name));
    rules
}

/// What decides about a pod whose namespace has these labels, `None` while they are not known.
pub(super) fn first<'a>(
    rules: &'a [Rule],
    pod: &Labels,
    namespace: Option<&Labels>,
) -> Result<Option<&'a Rule>, NamespaceUnknown> {
    for rule in rules {
        if applies(rule, pod, namespace)? {
            return Ok(Some(rule));
        }
    }
    Ok(None)
}

/// The labels of the pod's namespace decide, and are not known.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NamespaceUnknown;

fn applies(rule: &Rule, pod: &Labels, namespace: Option<&Labels>) -> Result<bool, NamespaceUnknown> {
    let mut is_open = false;
    for one in rule.pods.iter().filter(|one| selects(one.selector.as_ref(), pod)) {
        match (&one.namespace, namespace) {
            (None, _) => return Ok(true),
            (Some(selector), Some(labels)) if matches(selector, labels) => return Ok(true),
            (Some(_), Some(_)) => {}
            (Some(_), None) => is_open = true,
        }
    }
    if is_open { Err(NamespaceUnknown) } else { Ok(rule.pods.is_empty()) }
}
