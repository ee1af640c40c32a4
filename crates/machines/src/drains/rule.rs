//! Cluster API's MachineDrainRules, and the labels that they select by.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use plan::{
    drain::{Behaviour, Labels, MachineSelector, PodSelector, Rule, rules_for},
    fact::Fact,
};
use runtime::{Key, Kind, Operator, Selection};
use serde::Deserialize;

use crate::{MANAGER, capi::cluster_api_kind};

cluster_api_kind!(RuleView, "MachineDrainRule", "machinedrainrules", RuleSpec);

#[derive(Clone, Debug, Deserialize)]
struct RuleSpec {
    drain: DrainView,
    #[serde(default)]
    machines: Vec<MachinesView>,
    #[serde(default)]
    pods: Vec<PodsView>,
}

#[derive(Clone, Debug, Deserialize)]
struct DrainView {
    behavior: BehaviorView,
    #[serde(default)]
    order: Option<i32>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
enum BehaviorView {
    Drain,
    Skip,
    WaitCompleted,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MachinesView {
    selector: Option<LabelSelector>,
    cluster_selector: Option<LabelSelector>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodsView {
    selector: Option<LabelSelector>,
    namespace_selector: Option<LabelSelector>,
}

/// A rule of a form that is not known here is not applied.
fn rule(view: RuleView) -> Option<Rule> {
    let spec = view.spec?;
    let machine = |view: MachinesView| MachineSelector { selector: view.selector, cluster: view.cluster_selector };
    let pod = |view: PodsView| PodSelector { selector: view.selector, namespace: view.namespace_selector };
    Some(Rule {
        name: view.metadata.name?,
        behaviour: match spec.drain.behavior {
            BehaviorView::Drain => Behaviour::Drain { order: spec.drain.order.unwrap_or_default() },
            BehaviorView::Skip => Behaviour::Skip,
            BehaviorView::WaitCompleted => Behaviour::WaitCompleted,
        },
        machines: spec.machines.into_iter().map(machine).collect(),
        pods: spec.pods.into_iter().map(pod).collect(),
    })
}

cluster_api_kind!(LabelledView, "Cluster", "clusters");

#[expect(clippy::unnecessary_wraps, reason = "the form that every projection has")]
fn labels(view: LabelledView) -> Option<Labels> {
    Some(view.metadata.labels.unwrap_or_default())
}

/// The rules of the layer's namespace.
pub(crate) struct Rules {
    all: Arc<Kind<RuleView, Rule>>,
    clusters: Arc<Kind<LabelledView, Labels>>,
    cluster: Key,
}

impl Rules {
    /// `notify` is called when a rule has changed.
    pub fn watch(operator: &mut Operator, cluster: &Key, notify: impl Fn() + Send + Sync + 'static) -> Self {
        let writer = operator.writer(MANAGER);
        let rules = Kind::new("machinedrainrules", writer.clone(), rule);
        let clusters = Kind::new("clusters", writer, labels);
        let here = || Selection::in_namespace(&cluster.namespace);
        operator.watch_selected(&rules, here(), move |change| {
            if change.before != change.after {
                notify();
            }
        });
        operator.watch_selected(&clusters, here(), |_| {});
        Self { all: rules, clusters, cluster: cluster.clone() }
    }

    /// Those that apply to a Machine with these labels. A cache that is not full has no rules, and says nothing.
    pub fn of(&self, machine: &Labels) -> Fact<Vec<Rule>> {
        let mut all = Vec::new();
        self.all.store().for_each(|_, rule| all.push(rule.clone()));
        let cluster = self.clusters.get(&self.cluster).map_or_else(BTreeMap::new, |found| found.value.clone());
        let freshness =
            if self.clusters.store().is_synced() { self.all.freshness() } else { self.clusters.freshness() };
        freshness.fact(rules_for(all, machine, &cluster))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_rule_of_cluster_api_is_read_with_its_selectors() {
        let view = json!({ "metadata": { "name": "last" }, "spec": {
            "drain": { "behavior": "Drain", "order": 5 },
            "machines": [{ "selector": { "matchLabels": { "a": "b" } }, "clusterSelector": {} }],
            "pods": [{ "selector": { "matchLabels": { "app": "db" } } }],
        }});
        let found = rule(serde_json::from_value(view).unwrap()).unwrap();
        assert_eq!((found.name.as_str(), found.behaviour), ("last", Behaviour::Drain { order: 5 }));
        assert!(found.machines[0].selector.is_some() && found.machines[0].cluster.is_some());
        assert!(found.pods[0].namespace.is_none());
        let skip = json!({ "metadata": { "name": "skip" }, "spec": { "drain": { "behavior": "Skip" } } });
        assert_eq!(rule(serde_json::from_value(skip).unwrap()).unwrap().behaviour, Behaviour::Skip);
        let strange = json!({ "metadata": { "name": "new" }, "spec": { "drain": { "behavior": "Later" } } });
        assert!(rule(serde_json::from_value(strange).unwrap()).is_none());
    }
}
