//! Pods that ask for machines.
//!
//! An annotation cannot be selected, but a Pod that needs a machine has no node, and that can: what is watched is the few
//! Pods of a cluster that are not scheduled, of which those with the annotation are kept. A Pod that has a Machine is
//! followed by its name, for as long as the Machine lives: such a watch costs the API server no look at other Pods. So a
//! cluster at rest, however many Pods it has, costs one silent watch.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Affinity, Node, Pod as CorePod, PodCondition},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use plan::{
    fact::{Class, Fact, Failure},
    machines::on_demand::{Pod, PodName, Wish},
};
use runtime::{Cluster, Error, Following, Key, Kind, Metadata, Selection, lean_metadata, readable, view_of};
use serde::{Deserialize, de::IgnoredAny};
use tokio::sync::watch as signal;

use crate::MANAGER;

/// Pods that the scheduler has not bound.
const UNBOUND: &str = "spec.nodeName=";

#[derive(Clone, Debug, Deserialize)]
pub(super) struct PodView {
    #[serde(deserialize_with = "lean_metadata")]
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "readable")]
    spec: Option<Spec>,
    #[serde(default, deserialize_with = "readable")]
    status: Option<Status>,
}

view_of!(PodView, CorePod);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    node_name: Option<String>,
    scheduling_gates: Option<Vec<IgnoredAny>>,
    node_selector: Option<BTreeMap<String, String>>,
    affinity: Option<Affinity>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    phase: Option<String>,
    conditions: Option<Vec<PodCondition>>,
}

/// Of a Pod that asks for a machine.
fn asking(view: PodView) -> Option<Pod> {
    let is_asking = view.metadata.annotations.as_ref().is_some_and(Wish::is_in);
    if is_asking { any(view) } else { None }
}

#[expect(clippy::unnecessary_wraps, reason = "the form that every projection has")]
fn any(view: PodView) -> Option<Pod> {
    let PodView { metadata, spec, status } = view;
    let (spec, status) = (spec.unwrap_or_default(), status.unwrap_or_default());
    let conditions = status.conditions.unwrap_or_default();
    let scheduled = conditions.into_iter().find(|condition| condition.type_ == "PodScheduled");
    let is = |status: &str| scheduled.as_ref().is_some_and(|condition| condition.status == status);
    Some(Pod {
        wish: Wish::read(
            &metadata.annotations.unwrap_or_default(),
            spec.node_selector.as_ref(),
            spec.affinity.as_ref(),
        ),
        created_at: metadata.creation_timestamp.map(|time| time.0),
        is_unschedulable: is("False"),
        scheduled_at: scheduled
            .as_ref()
            .filter(|_| is("True"))
            .and_then(|condition| condition.last_transition_time.as_ref())
            .map(|time| time.0),
        is_gated: spec.scheduling_gates.is_some_and(|gates| !gates.is_empty()),
        is_terminating: metadata.deletion_timestamp.is_some(),
        is_finished: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
        node: spec.node_name.filter(|node| !node.is_empty()),
        name: PodName {
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
        },
    })
}

/// A cache whose watch ends with it.
struct Followed {
    kind: Arc<Kind<PodView, Pod>>,
    news: signal::Receiver<u64>,
    _following: Following,
}

impl Followed {
    fn new(cluster: &Cluster, selection: Selection, project: fn(PodView) -> Option<Pod>) -> Self {
        let kind = Kind::new("pods", cluster.writer(MANAGER), project);
        let news = kind.news();
        let following = cluster.follow(&kind, selection, |_| {});
        Self { kind, news, _following: following }
    }
}

/// The Pods of one cluster, as far as they are followed.
pub(super) struct Pods {
    pub cluster: Cluster,
    unbound: Followed,
    one: HashMap<Key, Followed>,
}

impl Pods {
    pub fn new(cluster: Cluster) -> Self {
        let selection = Selection { fields: Some(UNBOUND.to_owned()), ..Selection::default() };
        let unbound = Followed::new(&cluster, selection, asking);
        Self { cluster, unbound, one: HashMap::new() }
    }

    /// From now on these Pods are followed by their names, and no others.
    pub fn follow(&mut self, keys: &HashSet<Key>) {
        self.one.retain(|key, _| keys.contains(key));
        for key in keys {
            if !self.one.contains_key(key) {
                let followed = Followed::new(&self.cluster, Selection::of(key), any);
                self.one.insert(key.clone(), followed);
            }
        }
    }

    /// Whether none is of interest.
    pub fn is_idle(&self) -> bool {
        self.one.is_empty() && self.unbound.kind.store().keys().is_empty()
    }

    /// What was new so far is known.
    pub fn looked(&mut self) {
        self.unbound.news.mark_unchanged();
        self.one.values_mut().for_each(|one| one.news.mark_unchanged());
    }

    /// Ends when something is new.
    pub async fn changed(&mut self) {
        let all = self.one.values_mut().chain([&mut self.unbound]);
        let changed = all.map(|followed| Box::pin(followed.news.changed()));
        futures::future::select_all(changed).await.0.unwrap_or_default();
    }

    /// Those that ask for a machine and have no node.
    pub fn unbound(&self) -> Fact<Vec<Pod>> {
        let mut pods = Vec::new();
        self.unbound.kind.store().for_each(|_, pod| pods.push(pod.clone()));
        self.unbound.kind.freshness().fact(pods)
    }

    /// One that is followed by its name.
    pub fn one(&self, key: &Key) -> Fact<Option<Pod>> {
        match self.one.get(key) {
            Some(one) => one.kind.freshness().fact(one.kind.get(key).map(|found| found.value.clone())),
            None => unknown("not followed yet"),
        }
    }

    /// When a Node was made; `None` if there is none.
    pub async fn node_age(&self, name: &str) -> Result<Option<Timestamp>, Error> {
        let node: Option<Metadata<Node>> = self.cluster.writer(MANAGER).read("nodes", &Key::new("", name)).await?;
        Ok(node.and_then(|node| node.metadata.creation_timestamp).map(|time| time.0))
    }
}

/// For what is not known.
pub(super) fn unknown<T>(why: &str) -> Fact<T> {
    Fact::Unknown { why: Failure { class: Class::Transient, message: why.to_owned() }, last: None }
}
