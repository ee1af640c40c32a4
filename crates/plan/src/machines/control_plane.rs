//! The NstanceControlPlane: a control plane that is made elsewhere, and the kubeconfig by which Cluster API reaches it.

use std::time::Duration;

use api::condition::{Condition, ConditionStatus, ConditionType, Reason};
use api::machine::{ControlPlaneInitialization, NstanceControlPlane, NstanceControlPlaneStatus};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::cluster::ClusterFacts;
use super::condition::{Conditions, turned};
use crate::event::{Event, EventKind};
use crate::round::{Plan, Progress, Refusal, Report, Round};

/// A token is renewed so long before its end: a quarter of an hour's outage, less the time between two looks.
const REFRESH_BEFORE: Duration = Duration::from_mins(10);
/// How often it is looked at: the cache is, so this costs no request.
const LOOK: Duration = Duration::from_mins(5);

/// What is known about one NstanceControlPlane's surroundings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    pub owner: Option<ClusterFacts>,
    /// By its own annotation.
    pub is_paused: bool,
    /// Of the operator's own control plane, by its name.
    pub kubeconfig: Option<Kubeconfig>,
}

/// The Secret with the kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kubeconfig {
    /// `namespace/name`.
    pub secret: String,
    pub found: Found,
    /// Whose it is: tokens of a ServiceAccount are put into our own, an administrator keeps that of another cluster.
    pub account: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Found {
    Absent,
    /// The administrator's cannot be used.
    Unusable(String),
    /// The administrator's, and the cluster does not answer.
    Silent(String),
    /// It does not belong to the Cluster, by its label.
    Foreign,
    /// Ours, and the API server is reached otherwise by now.
    Outdated,
    Present {
        /// Until its token expires; `None` where it does not say when.
        left: Option<Duration>,
    },
}

/// A new token in the Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreKubeconfig;

pub type RoundOf<'a> = Round<'a, NstanceControlPlane, Observed, StoreKubeconfig>;

impl Observed {
    fn is_held(&self) -> bool {
        self.is_paused || self.owner.as_ref().is_some_and(|owner| owner.is_paused)
    }
}

pub fn plan(control_plane: &NstanceControlPlane, observed: &Observed) -> Plan<StoreKubeconfig> {
    let mut plan = Plan::default();
    let is_leaving = control_plane.metadata.deletion_timestamp.is_some()
        || observed.owner.as_ref().is_none_or(|owner| owner.is_deleting);
    let Some(kubeconfig) = observed.kubeconfig.as_ref().filter(|kubeconfig| kubeconfig.account.is_some()) else {
        return plan;
    };
    if is_leaving || observed.is_held() {
        return plan;
    }
    match kubeconfig.found {
        Found::Absent | Found::Outdated | Found::Present { left: None } => _ = plan.push(StoreKubeconfig),
        Found::Present { left: Some(left) } if left <= REFRESH_BEFORE => _ = plan.push(StoreKubeconfig),
        Found::Present { left: Some(left) } => plan.look_within(left.saturating_sub(REFRESH_BEFORE).min(LOOK)),
        Found::Foreign | Found::Unusable(_) | Found::Silent(_) => {}
    }
    plan
}

pub fn report(round: &RoundOf<'_>, now: Timestamp) -> Report<NstanceControlPlaneStatus> {
    let (object, observed) = (round.object, round.observed);
    let former = object.status.clone().unwrap_or_default();
    let make = Conditions::new(&former.conditions, object.metadata.generation, now);
    let mut status = former.clone();
    if observed.is_held() {
        status.conditions = make.held();
    } else {
        status.external_managed_control_plane = true;
        let initialized = ControlPlaneInitialization { control_plane_initialized: Some(true) };
        status.initialization = Some(initialized);
        let ready = make.make(
            ConditionType::Ready,
            ConditionStatus::True,
            Reason::Provisioned,
            "the control plane is made and kept elsewhere",
        );
        let kubeconfig = observed.kubeconfig.as_ref().map(|kubeconfig| condition(kubeconfig, round, &make));
        status.conditions = [Some(ready), kubeconfig, Some(make.paused(false))].into_iter().flatten().collect();
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

/// Whether Cluster API can reach the workload cluster.
fn condition(kubeconfig: &Kubeconfig, round: &RoundOf<'_>, make: &Conditions<'_, Reason>) -> Condition {
    use ConditionStatus::{False, True};
    let Kubeconfig { secret, found, account } = kubeconfig;
    let say = |status, reason, message: String| make.make(ConditionType::KubeconfigReady, status, reason, message);
    if *found == Found::Foreign {
        let message = format!(
            "Secret {secret} does not have the label cluster.x-k8s.io/cluster-name of the Cluster; set it, or delete the Secret"
        );
        return say(False, Reason::ObjectTaken, message);
    }
    let Some(account) = account else {
        if let Found::Unusable(why) = found {
            let message =
                format!("Secret {secret}: {why}; put a kubeconfig of the workload cluster under its key value");
            return say(False, Reason::KubeconfigUnusable, message);
        }
        if let Found::Silent(why) = found {
            let message = format!(
                "the workload cluster does not answer: {why}; check its API server and the kubeconfig in Secret {secret}"
            );
            return say(False, Reason::WorkloadUnreachable, message);
        }
        if *found != Found::Absent {
            return say(True, Reason::KubeconfigStored, format!("Secret {secret} is the administrator's"));
        }
        let message =
            format!("Secret {secret} is missing; put a kubeconfig of the workload cluster under its key value");
        return say(False, Reason::KubeconfigMissing, message);
    };
    let failure = round.progress.iter().find_map(failed);
    let is_done = round.progress.iter().any(Progress::is_done);
    let is_good = is_done || matches!(found, Found::Present { left: Some(left) } if !left.is_zero());
    match failure {
        Some(why) if is_good => say(
            True,
            Reason::KubeconfigStored,
            format!("Secret {secret} has a token of {account}; a new one is refused: {why}"),
        ),
        Some(why) if *found == Found::Outdated => say(
            False,
            Reason::KubeconfigUnusable,
            format!("Secret {secret} has an address that the API server had before; a new one is refused: {why}"),
        ),
        Some(why) => say(
            False,
            Reason::TokenRefused,
            format!(
                "no token of ServiceAccount {account} for Secret {secret}: {why}; create the ServiceAccount, or grant create on its token"
            ),
        ),
        None if is_good => say(True, Reason::KubeconfigStored, format!("Secret {secret} has a token of {account}")),
        None if *found == Found::Outdated => {
            say(False, Reason::Reconciling, format!("Secret {secret} does not have the API server's new address yet"))
        }
        None => say(False, Reason::Reconciling, format!("Secret {secret} has no valid token yet")),
    }
}

fn failed(progress: &Progress) -> Option<&str> {
    match progress {
        Progress::Failed { message, .. } | Progress::Refused(Refusal::Rejected(message)) => Some(message),
        Progress::Refused(Refusal::Because(why)) => Some(&why.message),
        Progress::Refused(Refusal::NamespaceTerminating) => Some("the namespace is being deleted"),
        _ => None,
    }
}

/// Of the condition that turns in use.
fn transitions(make: &Conditions<'_, Reason>, conditions: &[Condition]) -> Vec<Event> {
    let found = conditions.iter().find(|condition| condition.kind == ConditionType::KubeconfigReady);
    let Some(found) = found.filter(|condition| condition.reason != Reason::Reconciling) else { return Vec::new() };
    let kind = if found.status == ConditionStatus::True { EventKind::Normal } else { EventKind::Warning };
    turned(make.former(ConditionType::KubeconfigReady), found, kind, "StoreKubeconfig").into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fact::Class;
    use crate::round::Inputs;

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn mins(mins: u64) -> Found {
        Found::Present { left: Some(Duration::from_mins(mins)) }
    }

    fn observed(found: Found) -> Observed {
        let kubeconfig = Kubeconfig { secret: "n/c-kubeconfig".to_owned(), found, account: Some("sa".to_owned()) };
        let owner = ClusterFacts { name: "c".to_owned(), ..ClusterFacts::default() };
        Observed { owner: Some(owner), is_paused: false, kubeconfig: Some(kubeconfig) }
    }

    fn external(found: Found) -> Observed {
        let mut observed = observed(found);
        observed.kubeconfig.as_mut().unwrap().account = None;
        observed
    }

    fn reported(
        object: &NstanceControlPlane,
        observed: &Observed,
        progress: Progress,
    ) -> Report<NstanceControlPlaneStatus> {
        let (plan, inputs) = (plan(object, observed), Inputs::default());
        let progress = vec![progress; plan.steps.len()];
        report(&Round { object, observed, inputs: &inputs, plan: &plan, progress: &progress }, now())
    }

    fn kubeconfig(status: &NstanceControlPlaneStatus) -> (ConditionStatus, Reason) {
        let found = status.conditions.iter().find(|one| one.kind == ConditionType::KubeconfigReady).unwrap();
        (found.status, found.reason)
    }

    #[test]
    fn a66_a_token_is_renewed_ten_minutes_before_its_end() {
        let object = NstanceControlPlane::default();
        for (found, stores, look) in [
            (Found::Absent, true, None),
            (Found::Present { left: None }, true, None),
            (Found::Outdated, true, None),
            (mins(10), true, None),
            (mins(0), true, None),
            (mins(11), false, Some(Duration::from_mins(1))),
            (mins(60), false, Some(LOOK)),
            (Found::Foreign, false, None),
        ] {
            let plan = plan(&object, &observed(found.clone()));
            assert_eq!((plan.steps.len() == 1, plan.next_look), (stores, look), "{found:?}");
        }
    }

    #[test]
    fn a67_the_secret_of_an_external_cluster_is_the_administrators() {
        let object = NstanceControlPlane::default();
        for (found, status, reason) in [
            (Found::Absent, ConditionStatus::False, Reason::KubeconfigMissing),
            (Found::Present { left: None }, ConditionStatus::True, Reason::KubeconfigStored),
            (Found::Foreign, ConditionStatus::False, Reason::ObjectTaken),
            (Found::Unusable("junk".to_owned()), ConditionStatus::False, Reason::KubeconfigUnusable),
            (Found::Silent("refused".to_owned()), ConditionStatus::False, Reason::WorkloadUnreachable),
        ] {
            let observed = external(found);
            assert_eq!(plan(&object, &observed).steps.len(), 0);
            assert_eq!(kubeconfig(&reported(&object, &observed, Progress::NotBegun).status), (status, reason));
        }
    }

    #[test]
    fn r4_the_control_plane_is_external_and_initialized() {
        let mut object = NstanceControlPlane::default();
        let report = reported(&object, &observed(Found::Absent), Progress::Done(()));
        let status = report.status.clone();
        assert!(status.external_managed_control_plane);
        assert_eq!(status.initialization.unwrap().control_plane_initialized, Some(true));
        assert_eq!(kubeconfig(&status), (ConditionStatus::True, Reason::KubeconfigStored));
        assert_eq!(report.transitions.len(), 1);
        object.status = Some(status.clone());
        let again = reported(&object, &observed(mins(60)), Progress::NotBegun);
        assert_eq!((again.status, again.transitions), (status, Vec::new()));
    }

    #[test]
    fn a_refused_token_is_a_warning_unless_the_last_one_still_serves() {
        let failed =
            || Progress::Failed { class: Class::Transient, retry: None, message: "no such account".to_owned() };
        let object = NstanceControlPlane::default();
        let report = reported(&object, &observed(Found::Absent), failed());
        assert_eq!(kubeconfig(&report.status), (ConditionStatus::False, Reason::TokenRefused));
        assert_eq!(report.transitions[0].kind, EventKind::Warning);
        assert!(report.transitions[0].note.contains("no such account; create the ServiceAccount"));
        let moved = reported(&object, &observed(Found::Outdated), failed());
        assert_eq!(kubeconfig(&moved.status), (ConditionStatus::False, Reason::KubeconfigUnusable));
        assert!(moved.transitions[0].note.contains("an address that the API server had before"));
        let serves = reported(&object, &observed(mins(9)), failed());
        assert_eq!(kubeconfig(&serves.status), (ConditionStatus::True, Reason::KubeconfigStored));
    }

    #[test]
    fn a98_nothing_is_stored_for_a_cluster_that_is_paused_or_goes() {
        let object = NstanceControlPlane::default();
        let mut paused = observed(Found::Absent);
        paused.owner.as_mut().unwrap().is_paused = true;
        let mut deleting = observed(Found::Absent);
        deleting.owner.as_mut().unwrap().is_deleting = true;
        let alone = Observed { owner: None, ..observed(Found::Absent) };
        for observed in [&paused, &deleting, &alone] {
            assert_eq!(plan(&object, observed).steps.len(), 0, "{observed:?}");
        }
        let status = reported(&object, &paused, Progress::NotBegun).status;
        assert_eq!((status.initialization, status.conditions.len()), (None, 1));
    }
}
