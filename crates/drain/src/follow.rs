//! What a drain follows, for as long as it needs it.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Namespace;
use plan::{
    drain::{self, Labels, Name},
    fact::{Class, Fact, Failure},
};
use runtime::{Cluster, Following, Key, Kind, Metadata, Selection, View};
use tokio::sync::watch as signal;

use crate::view::{self, Bound, BudgetView, Claimed, NodeView, PersistentVolumeView, PodView, Shown};

/// A cache whose watch ends with it.
pub struct Followed<W: View, T> {
    pub kind: Arc<Kind<W, T>>,
    _following: Following,
}

impl<W: View, T: Send + Sync + 'static> Followed<W, T> {
    pub fn new(
        cluster: &Cluster,
        resource: &'static str,
        selection: Selection,
        project: fn(W) -> Option<T>,
        notify: impl Fn(&T) + Send + Sync + 'static,
    ) -> Self
    where
        W::DynamicType: Default,
    {
        let kind = Kind::new(resource, cluster.writer(drain::FIELD_MANAGER), project);
        let following = cluster.follow(&kind, selection, move |change| {
            if let Some(after) = change.after {
                notify(after);
            }
        });
        Self { kind, _following: following }
    }

    fn fact<V>(&self, value: V) -> Fact<V> {
        self.kind.freshness().fact(value)
    }
}

pub type Budgets = Followed<BudgetView, Shown>;
pub type Namespaces = Followed<Metadata<Namespace>, Labels>;
pub type Volumes = Followed<PersistentVolumeView, Claimed>;

/// A node and what is on it.
pub struct Scene {
    cluster: Cluster,
    pub key: Key,
    pub node: Followed<NodeView, drain::Node>,
    pub pods: Option<Followed<PodView, Bound>>,
    pub budgets: Option<Arc<Budgets>>,
    pub namespaces: Option<Namespaces>,
    pub volumes: Option<Volumes>,
}

/// For what is not followed yet.
fn unknown<T>() -> Fact<T> {
    Fact::Unknown { why: Failure { class: Class::Transient, message: "not listed yet".to_owned() }, last: None }
}

impl Scene {
    pub fn new(cluster: Cluster, node: &str) -> Self {
        let selection = Selection { fields: Some(format!("metadata.name={node}")), ..Selection::default() };
        let nodes = Followed::new(&cluster, "nodes", selection, NodeView::project, |_| {});
        let key = Key::new("", node);
        Self { cluster, key, node: nodes, pods: None, budgets: None, namespaces: None, volumes: None }
    }

    /// Lists the pods of the node from now on. What was bound to it before this call is in the list.
    pub fn follow_pods(&mut self, budgets: impl FnOnce() -> Arc<Budgets>, asks_for_namespaces: bool) {
        if self.pods.is_some() {
            return;
        }
        let fields = Some(format!("spec.nodeName={}", self.key.name));
        let selection = Selection { fields, ..Selection::default() };
        self.pods = Some(Followed::new(&self.cluster, "pods", selection, PodView::project, |_| {}));
        self.budgets = Some(budgets());
        self.namespaces = asks_for_namespaces
            .then(|| Followed::new(&self.cluster, "namespaces", Selection::default(), view::labels, |_| {}));
    }

    /// What is known of the pods is of no more use.
    pub fn leave_pods(&mut self) {
        (self.pods, self.budgets, self.namespaces) = (None, None, None);
    }

    /// Which claim each volume is of.
    pub fn follow_volumes(&mut self) {
        let follow = || {
            let all = Selection::default();
            Followed::new(&self.cluster, "persistentvolumes", all, PersistentVolumeView::project, |_| {})
        };
        if self.volumes.is_none() {
            self.volumes = Some(follow());
        }
    }

    /// Whether everything that is followed was listed once, or why it was not is known.
    pub fn is_settled(&self) -> bool {
        self.node.kind.is_settled() && self.are_pods_settled()
    }

    fn are_pods_settled(&self) -> bool {
        self.pods.as_ref().is_some_and(|pods| pods.kind.is_settled())
            && self.budgets.as_ref().is_some_and(|budgets| budgets.kind.is_settled())
            && self.namespaces.as_ref().is_none_or(|namespaces| namespaces.kind.is_settled())
            && self.volumes.as_ref().is_none_or(|volumes| volumes.kind.is_settled())
    }

    /// Each changes when something is new.
    pub fn news(&self) -> Vec<signal::Receiver<u64>> {
        let pods = self.pods.as_ref().map(|pods| pods.kind.news());
        let budgets = self.budgets.as_ref().map(|budgets| budgets.kind.news());
        let namespaces = self.namespaces.as_ref().map(|namespaces| namespaces.kind.news());
        let volumes = self.volumes.as_ref().map(|volumes| volumes.kind.news());
        [Some(self.node.kind.news()), pods, budgets, namespaces, volumes].into_iter().flatten().collect()
    }

    pub fn observe(&self, has_cordoned: bool) -> drain::Observed {
        let node = self.node.kind.get(&self.key).map(|node| node.value.clone());
        let bound = self.bound();
        let budgets = self.budgets.as_ref().map(|budgets| budgets.fact(budgets_of(&budgets.kind, &bound)));
        // Before the budgets were asked for, an empty list of them says nothing.
        let pods = self.pods.as_ref().filter(|_| self.are_pods_settled());
        let pods = pods.map(|pods| pods.fact(bound));
        let namespaces = self.namespaces.as_ref().map(|namespaces| {
            let mut labels = BTreeMap::new();
            namespaces.kind.store().for_each(|key, value| {
                labels.insert(key.name.to_string(), value.clone());
            });
            namespaces.fact(labels)
        });
        let volumes = self.volumes.as_ref().map(|volumes| {
            let claimed = values(&volumes.kind).into_iter().map(|Claimed { volume, claim }| (volume, claim));
            volumes.fact(claimed.collect::<BTreeMap<String, Name>>())
        });
        drain::Observed {
            node: self.node.fact(node),
            pods: pods.unwrap_or_else(unknown),
            budgets: budgets.unwrap_or_else(unknown),
            namespaces: namespaces.unwrap_or_else(unknown),
            volumes: volumes.unwrap_or_else(unknown),
            server_time: self.cluster.server_clock().now(),
            has_cordoned,
        }
    }

    fn bound(&self) -> Vec<drain::Pod> {
        let bound = self.pods.as_ref().map(|pods| values(&pods.kind)).unwrap_or_default();
        bound.into_iter().filter(|bound| *bound.node == *self.key.name).map(|bound| bound.pod).collect()
    }
}

fn values<W: View, T: Clone + Send + Sync + 'static>(kind: &Kind<W, T>) -> Vec<T> {
    let mut values = Vec::new();
    kind.store().for_each(|_, value| values.push(value.clone()));
    values
}

/// The budgets that may select one of these pods: a cluster may have thousands of others.
fn budgets_of(kind: &Kind<BudgetView, Shown>, pods: &[drain::Pod]) -> Vec<drain::Budget> {
    let namespaces: HashSet<&str> = pods.iter().map(|pod| pod.name.namespace.as_str()).collect();
    let mut budgets = Vec::new();
    kind.store().for_each(|key, shown| {
        if namespaces.contains(&*key.namespace) {
            budgets.push(shown.budget.clone());
        }
    });
    budgets
}
