//! The Cluster of the operator, its NstanceCluster and its NstanceControlPlane: made where they are missing, and what the
//! NstanceCluster says.

use api::condition::{Condition, ConditionStatus, ConditionType, Reason};
use api::machine::{
    API_VERSION, ControlPlaneEndpoint, FailureDomain, GROUP, Initialization, MOST_FAILURE_DOMAINS, NstanceCluster,
    NstanceClusterStatus, NstanceControlPlane, WORKLOAD_CLUSTER_ANNOTATION,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::condition::{Conditions, turned};
use super::identity::Standing;
use crate::event::{Event, EventKind};
use crate::round::{Plan, Report, Round};

/// A Cluster as controllers of this layer see it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterFacts {
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    /// By `spec.paused` or the annotation.
    pub is_paused: bool,
    pub is_deleting: bool,
    /// The NstanceCluster that its `infrastructureRef` names.
    pub infrastructure: Option<String>,
    pub has_control_plane: bool,
}

/// What there is of the three objects, all of the same name. `None`: there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trio {
    pub namespace: String,
    pub name: String,
    pub endpoint: ControlPlaneEndpoint,
    pub cluster: Option<ClusterFacts>,
    pub has_infrastructure: bool,
    pub has_control_plane: bool,
}

/// What is made or changed, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Make {
    Infrastructure(Value),
    ControlPlane(Value),
    Cluster(Value),
    /// A Cluster that the original made has no control plane, without which Cluster API neither watches its Nodes nor
    /// drains them.
    Refer {
        uid: String,
        resource_version: String,
        patch: Value,
    },
}

/// What is missing. What exists is the users' own.
pub fn missing(trio: &Trio) -> Vec<Make> {
    let is_left = |cluster: &ClusterFacts| cluster.is_paused || cluster.is_deleting || !is_of(cluster, &trio.name);
    if trio.cluster.as_ref().is_some_and(is_left) {
        return Vec::new();
    }
    let object = |version: &str, kind: &str, spec: Value| {
        let metadata = json!({ "name": trio.name, "namespace": trio.namespace });
        json!({ "apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec })
    };
    let reference = |kind: &str| json!({ "apiGroup": GROUP, "kind": kind, "name": trio.name });
    let mut make = Vec::new();
    if !trio.has_infrastructure {
        let spec = json!({ "controlPlaneEndpoint": trio.endpoint });
        make.push(Make::Infrastructure(object(API_VERSION, NstanceCluster::KIND, spec)));
    }
    if !trio.has_control_plane {
        make.push(Make::ControlPlane(object(API_VERSION, NstanceControlPlane::KIND, json!({}))));
    }
    match &trio.cluster {
        None => {
            let spec = json!({
                "infrastructureRef": reference(NstanceCluster::KIND),
                "controlPlaneRef": reference(NstanceControlPlane::KIND),
            });
            make.push(Make::Cluster(object("cluster.x-k8s.io/v1beta2", "Cluster", spec)));
        }
        Some(cluster) if !cluster.has_control_plane => make.push(Make::Refer {
            uid: cluster.uid.clone(),
            resource_version: cluster.resource_version.clone(),
            patch: json!({ "spec": { "controlPlaneRef": reference(NstanceControlPlane::KIND) } }),
        }),
        Some(_) => {}
    }
    make
}

/// Whether a Cluster is on this layer's infrastructure: another of the same name is left alone.
fn is_of(cluster: &ClusterFacts, name: &str) -> bool {
    cluster.infrastructure.as_deref() == Some(name)
}

/// What is known about one NstanceCluster's surroundings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    /// The Cluster that owns it; Cluster API says so.
    pub owner: Option<ClusterFacts>,
    /// By its own annotation.
    pub is_paused: bool,
    /// The operator's own, by its name: where its API server is, and how the shards know the operator.
    pub own: Option<Own>,
    /// Ids of the configured shards; none until their list was read.
    pub shards: Vec<String>,
}

/// What holds for the operator's own NstanceCluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Own {
    pub endpoint: ControlPlaneEndpoint,
    pub standing: Standing,
    /// The uid of the workload cluster, where that is another one and is known.
    pub workload: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Where the API server is, for Cluster API to copy.
    SetEndpoint(ControlPlaneEndpoint),
    /// By which the workload cluster is known again.
    NoteWorkload { uid: String },
}

pub type RoundOf<'a> = Round<'a, NstanceCluster, Observed, Action>;

impl Observed {
    fn is_held(&self) -> bool {
        self.is_paused || self.owner.as_ref().is_some_and(|owner| owner.is_paused)
    }
}

pub fn plan(cluster: &NstanceCluster, observed: &Observed) -> Plan<Action> {
    let mut plan = Plan::default();
    let Some(own) = &observed.own else { return plan };
    if cluster.metadata.deletion_timestamp.is_some() || observed.is_held() {
        return plan;
    }
    let has_endpoint = cluster.spec.as_ref().is_some_and(|spec| spec.control_plane_endpoint.is_some());
    if observed.owner.is_some() && !has_endpoint {
        plan.push(Action::SetEndpoint(own.endpoint.clone()));
    }
    // What stands there the administrator may have set: another cluster is allowed so.
    let is_noted = noted_workload(cluster).is_some();
    if let Some(uid) = own.workload.clone().filter(|_| !is_noted) {
        plan.push(Action::NoteWorkload { uid });
    }
    plan
}

/// The uid of the workload cluster, as it was noted.
pub fn noted_workload(cluster: &NstanceCluster) -> Option<&str> {
    cluster.metadata.annotations.as_ref()?.get(WORKLOAD_CLUSTER_ANNOTATION).map(String::as_str)
}

pub fn report(round: &RoundOf<'_>, now: Timestamp) -> Report<NstanceClusterStatus> {
    let (object, observed) = (round.object, round.observed);
    let former = object.status.clone().unwrap_or_default();
    let make = Conditions::new(&former.conditions, object.metadata.generation, now);
    let mut status = former.clone();
    if observed.is_held() {
        status.conditions = make.held();
    } else {
        let is_provisioned = observed.owner.is_some() || is_provisioned(&former);
        if is_provisioned {
            status.initialization = Some(Initialization { provisioned: Some(true) });
        }
        if !observed.shards.is_empty() {
            let domain = |shard: &String| FailureDomain { name: shard.clone(), control_plane: false };
            status.failure_domains = observed.shards.iter().take(MOST_FAILURE_DOMAINS).map(domain).collect();
        }
        status.conditions = conditions(observed, is_provisioned, &make);
    }
    let ready = status.conditions.iter().find(|condition| condition.kind == ConditionType::Ready);
    Report {
        fallback: None,
        is_provisional: false,
        done: Vec::new(),
        transitions: transitions(&make, &status.conditions),
        discriminator: String::new(),
        phase: ready.map_or("", |ready| ready.reason.as_str()).to_owned(),
        note: (),
        status,
    }
}

fn is_provisioned(status: &NstanceClusterStatus) -> bool {
    status.initialization.is_some_and(|initialization| initialization.provisioned == Some(true))
}

fn conditions(observed: &Observed, is_provisioned: bool, make: &Conditions<'_, Reason>) -> Vec<Condition> {
    use ConditionStatus::{False, True};
    let ready = if is_provisioned {
        make.make(
            ConditionType::Ready,
            True,
            Reason::Provisioned,
            "a cluster has nothing to provision beside its groups",
        )
    } else {
        let message = "no Cluster refers to it; set spec.infrastructureRef of one";
        make.make(ConditionType::Ready, False, Reason::Reconciling, message)
    };
    let registered = observed.own.as_ref().map(|own| {
        let status = if own.standing.is_registered { True } else { False };
        make.make(ConditionType::Registered, status, own.standing.why.reason, own.standing.why.message.clone())
    });
    [Some(ready), registered, Some(make.paused(false))].into_iter().flatten().collect()
}

/// Of the condition that turns in use. That it is unknown or under way is no news.
fn transitions(make: &Conditions<'_, Reason>, conditions: &[Condition]) -> Vec<Event> {
    let registered = conditions.iter().find(|condition| condition.kind == ConditionType::Registered);
    let Some(registered) = registered.filter(|condition| !condition.reason.is_progress()) else { return Vec::new() };
    let kind = if registered.status == ConditionStatus::True { EventKind::Normal } else { EventKind::Warning };
    turned(make.former(ConditionType::Registered), registered, kind, "Register").into_iter().collect()
}

#[cfg(test)]
mod tests {
    use api::machine::NstanceClusterSpec;

    use super::*;
    use crate::round::{Inputs, Progress};

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn endpoint() -> ControlPlaneEndpoint {
        ControlPlaneEndpoint { host: "10.96.0.1".to_owned(), port: Some(443) }
    }

    fn trio() -> Trio {
        let (namespace, name) = ("n".to_owned(), "c--t".to_owned());
        Trio { namespace, name, endpoint: endpoint(), ..Trio::default() }
    }

    fn facts() -> ClusterFacts {
        ClusterFacts {
            name: "c--t".to_owned(),
            uid: "u".to_owned(),
            resource_version: "7".to_owned(),
            infrastructure: Some("c--t".to_owned()),
            has_control_plane: true,
            ..ClusterFacts::default()
        }
    }

    #[test]
    fn a65_the_three_objects_are_made_in_order_and_then_left_alone() {
        let made = missing(&trio());
        let [Make::Infrastructure(infrastructure), Make::ControlPlane(control_plane), Make::Cluster(cluster)] =
            made.as_slice()
        else {
            panic!("{made:?}")
        };
        assert_eq!(infrastructure["spec"], json!({ "controlPlaneEndpoint": { "host": "10.96.0.1", "port": 443 } }));
        assert_eq!(control_plane["kind"], "NstanceControlPlane");
        let reference = |kind| json!({ "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": kind, "name": "c--t" });
        assert_eq!(cluster["spec"]["infrastructureRef"], reference("NstanceCluster"));
        assert_eq!(cluster["spec"]["controlPlaneRef"], reference("NstanceControlPlane"));
        for object in [infrastructure, control_plane, cluster] {
            assert_eq!(object["metadata"], json!({ "name": "c--t", "namespace": "n" }));
        }
        let all = Trio { cluster: Some(facts()), has_infrastructure: true, has_control_plane: true, ..trio() };
        assert_eq!(missing(&all), []);
    }

    #[test]
    fn a99_a_cluster_of_the_original_gets_a_control_plane_and_a_foreign_one_nothing() {
        let original = ClusterFacts { has_control_plane: false, ..facts() };
        let taken_over = Trio { cluster: Some(original), has_infrastructure: true, ..trio() };
        let made = missing(&taken_over);
        let [Make::ControlPlane(_), Make::Refer { uid, resource_version, patch }] = made.as_slice() else {
            panic!("{made:?}")
        };
        assert_eq!((uid.as_str(), resource_version.as_str()), ("u", "7"));
        assert_eq!(patch["spec"]["controlPlaneRef"]["kind"], "NstanceControlPlane");
        for left in [
            ClusterFacts { infrastructure: Some("other".to_owned()), ..facts() },
            ClusterFacts { infrastructure: None, ..facts() },
            ClusterFacts { is_paused: true, ..facts() },
            ClusterFacts { is_deleting: true, ..facts() },
        ] {
            assert_eq!(missing(&Trio { cluster: Some(left), ..trio() }), []);
        }
    }

    fn observed() -> Observed {
        let standing = Standing {
            is_registered: true,
            not_after: Some(now()),
            why: crate::Why { reason: Reason::Registered, message: "valid".to_owned() },
        };
        Observed {
            owner: Some(facts()),
            is_paused: false,
            own: Some(Own { endpoint: endpoint(), standing, workload: None }),
            shards: vec!["a".to_owned(), "b".to_owned()],
        }
    }

    fn reported(cluster: &NstanceCluster, observed: &Observed) -> Report<NstanceClusterStatus> {
        let (plan, inputs) = (plan(cluster, observed), Inputs::default());
        let progress: Vec<_> = plan.steps.iter().map(|_| Progress::Done(())).collect();
        report(&Round { object: cluster, observed, inputs: &inputs, plan: &plan, progress: &progress }, now())
    }

    fn words(status: &NstanceClusterStatus) -> Vec<String> {
        let word = |one: &Condition| format!("{}={:?}/{}", one.kind, one.status, one.reason.as_str());
        status.conditions.iter().map(word).collect()
    }

    #[test]
    fn a68_an_nstance_cluster_is_provisioned_once_a_cluster_owns_it() {
        let mut cluster = NstanceCluster::default();
        let alone = Observed { owner: None, ..observed() };
        let waiting = reported(&cluster, &alone).status;
        assert_eq!((waiting.initialization, plan(&cluster, &alone).steps.len()), (None, 0));
        assert_eq!(words(&waiting)[0], "Ready=False/Reconciling");
        assert_eq!(plan(&cluster, &observed()).actions().collect::<Vec<_>>(), [&Action::SetEndpoint(endpoint())]);
        cluster.spec = Some(NstanceClusterSpec { control_plane_endpoint: Some(endpoint()) });
        let report = reported(&cluster, &observed());
        assert_eq!(report.status.initialization, Some(Initialization { provisioned: Some(true) }));
        assert_eq!(
            words(&report.status),
            ["Ready=True/Provisioned", "Registered=True/Registered", "Paused=False/NotPaused"]
        );
        let domains: Vec<_> = report.status.failure_domains.iter().map(|domain| domain.name.as_str()).collect();
        assert_eq!(domains, ["a", "b"]);
        assert_eq!(report.transitions.len(), 1);
        cluster.status = Some(report.status.clone());
        assert_eq!(plan(&cluster, &observed()).steps.len(), 0);
        let again = reported(&cluster, &observed());
        assert_eq!((again.status, again.transitions), (report.status, Vec::new()));
        // A list of shards that was not read yet takes no failure domain away.
        let unread = Observed { shards: Vec::new(), ..observed() };
        assert_eq!(reported(&cluster, &unread).status.failure_domains.len(), 2);
        // A Cluster that is gone takes nothing back.
        assert_eq!(words(&reported(&cluster, &alone).status)[0], "Ready=True/Provisioned");
    }

    #[test]
    fn the_workload_cluster_is_noted_once_and_another_word_about_it_is_the_administrators() {
        let spec = Some(NstanceClusterSpec { control_plane_endpoint: Some(endpoint()) });
        let mut cluster = NstanceCluster { spec, ..NstanceCluster::default() };
        let mut reached = observed();
        reached.own.as_mut().unwrap().workload = Some("u".to_owned());
        let note = Action::NoteWorkload { uid: "u".to_owned() };
        assert_eq!(plan(&cluster, &reached).actions().collect::<Vec<_>>(), [&note]);
        for noted in ["u", "v"] {
            let annotations = [(WORKLOAD_CLUSTER_ANNOTATION.to_owned(), noted.to_owned())];
            cluster.metadata.annotations = Some(annotations.into());
            assert_eq!(plan(&cluster, &reached).steps.len(), 0);
        }
    }

    #[test]
    fn a98_a_paused_cluster_changes_nothing_but_the_word_about_it() {
        let held = Observed { owner: Some(ClusterFacts { is_paused: true, ..facts() }), ..observed() };
        let cluster = NstanceCluster::default();
        assert_eq!(plan(&cluster, &held).steps.len(), 0);
        let status = reported(&cluster, &held).status;
        assert_eq!((words(&status), status.initialization), (vec!["Paused=True/Paused".to_owned()], None));
        let annotated = Observed { is_paused: true, ..observed() };
        assert_eq!(words(&reported(&cluster, &annotated).status), ["Paused=True/Paused"]);
    }

    #[test]
    fn a_missing_nonce_is_a_condition_and_a_warning_once() {
        let mut observed = observed();
        let own = observed.own.as_mut().unwrap();
        own.standing.is_registered = false;
        own.standing.why = crate::Why { reason: Reason::NonceMissing, message: "put a new nonce".to_owned() };
        let mut cluster = NstanceCluster::default();
        let report = reported(&cluster, &observed);
        assert_eq!(words(&report.status)[1], "Registered=False/NonceMissing");
        let [event] = report.transitions.as_slice() else { panic!("{:?}", report.transitions) };
        assert_eq!((event.kind, event.reason), (EventKind::Warning, "NonceMissing"));
        cluster.status = Some(report.status);
        assert_eq!(reported(&cluster, &observed).transitions, []);
    }

    #[test]
    fn another_nstance_cluster_is_provisioned_without_a_word_about_the_operator() {
        let other = Observed { own: None, ..observed() };
        let cluster = NstanceCluster::default();
        assert_eq!(plan(&cluster, &other).steps.len(), 0);
        assert_eq!(words(&reported(&cluster, &other).status), ["Ready=True/Provisioned", "Paused=False/NotPaused"]);
    }
}
