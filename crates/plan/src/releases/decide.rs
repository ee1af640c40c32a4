//! The next action for a release.

mod removal;

use std::time::Duration;

use api::condition::Reason;
use api::workspace::{DriftDetection, FINALIZER, HelmRelease, OperationKind, UpgradeRemediation};

use super::ask::{IDENTITY_AGE, UNTIL_BEGUN, identity_ask, look_age};
use super::memory::MOST_INTERRUPTIONS;
use super::{
    Action, Ask, Chart, Desired, Drift, FailureClass, Former, Identity, Job, Known, Memory, ObjectRef, Operation,
    Policy, Replicas, State, Stored, StoredStatus, Surroundings, Values, config_digest, dependency, last_good,
    replicas, state, validate,
};
use crate::Why;
use crate::fact::Want;
use crate::round::{self, Step};

/// A read that failed is tried again soon; what it waits for is usually an API server that comes back.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Accounts and bindings are not watched; who makes one waits no longer than this.
const IDENTITY_LOOK: Duration = Duration::from_secs(30);

/// Without a watch on a kind, drift of its objects is looked for this often, to be corrected within half a minute.
const UNWATCHED_LOOK: Duration = Duration::from_secs(20);

/// Stands for the content of a revision that another client made, once it is rolled back to.
const FOREIGN: &str = "foreign";

/// The next steps, from all that is known. What is missing for them is among the wants.
pub fn decide(object: &HelmRelease, observed: &Surroundings, policy: &Policy) -> Plan {
    let round = Deciding { object, observed, policy, memory: Memory::recall(object, observed) };
    let mut plan = Plan::default();
    if object.metadata.deletion_timestamp.is_some() {
        round.remove(&mut plan);
    } else {
        round.keep(&mut plan);
    }
    round.require_identity(&mut plan);
    plan
}

type Plan = round::Plan<Action, Ask>;

struct Deciding<'a> {
    object: &'a HelmRelease,
    observed: &'a Surroundings,
    policy: &'a Policy,
    memory: Memory,
}

impl Deciding<'_> {
    fn finalizers(&self) -> &[String] {
        self.object.metadata.finalizers.as_deref().unwrap_or_default()
    }

    fn is_held(&self) -> bool {
        self.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
    }

    fn keep(&self, plan: &mut Plan) {
        let desired = match validate(self.object, self.policy) {
            Ok(desired) => desired,
            Err(Why { reason, message }) => return plan.block(reason, message),
        };
        if let Some(rival) = &self.observed.rival {
            let message = format!(
                "the Helm release {} of namespace {} belongs to HelmRelease {rival}; choose another spec.releaseName",
                desired.release, desired.namespace
            );
            return plan.block(Reason::ObjectTaken, message);
        }
        if self.is_busy(plan) {
            if self.is_overtaken(&desired) {
                plan.push(Action::Cancel);
            }
            return;
        }
        if desired.suspend {
            return plan.block(Reason::Suspended, "spec.suspend is true: the operator changes nothing");
        }
        if !self.is_held() {
            let finalizers = self.finalizers().iter().cloned().chain([FINALIZER.to_owned()]).collect();
            plan.push(Action::AddFinalizer { finalizers });
        }
        let stored = match &self.observed.storage {
            Known::Yes(stored) => stored,
            Known::No(why) => return unknown(plan, why),
        };
        self.pursue(&desired, stored, plan);
        // Whatever stands in the way of a change, what is there is stopped and started as the spec says.
        let is_still = |plan: &Plan| !plan.actions().any(Action::changes_release);
        let Some(newest) = stored.last() else { return };
        let is_ours = self.memory.newest().is_some_and(|newest| newest.digest.is_some());
        if is_still(plan) && is_ours && newest.status == StoredStatus::Deployed {
            self.watch_drift(&desired, newest, plan);
        }
        let is_there = !newest.status.is_pending() && newest.status != StoredStatus::Uninstalled;
        if is_still(plan) && is_there {
            self.scale(&desired, newest, plan);
        }
    }

    /// Towards what the spec says, one step.
    fn pursue(&self, desired: &Desired, stored: &[Stored], plan: &mut Plan) {
        let Some((version, values)) = self.sources(desired, plan) else { return };
        // What a range leads to may change by itself, and be better than what failed.
        if desired.chart.exact_version().is_none() {
            plan.look_within(desired.interval);
        }
        let digest = config_digest(&desired.chart, &version, &values);
        if self.rolls_back_by_request(desired, stored, &digest, plan) {
            return;
        }
        match state(desired, self.observed, stored, &self.memory, &digest) {
            // Our own remedy, cut off in the middle: it goes on where it was.
            State::Locked { stored: newest, .. }
                if newest.status == StoredStatus::Uninstalling && self.is_uninstall_due(&digest) =>
            {
                self.start(operation(OperationKind::Uninstall, desired, stored, &digest, ""), plan);
            }
            State::Locked { stored, is_ours } => self.unlock(stored, is_ours, plan),
            State::Absent | State::OutOfSync(_) | State::Failed => {
                self.attempt(desired, stored, &digest, &version, plan);
            }
            State::Untested => {
                let interval = self.rest(desired.interval);
                match interval.filter(|_| self.is_harried(&digest)) {
                    Some(rest) => plan.look_within(rest),
                    None => self.start(operation(OperationKind::Test, desired, stored, &digest, &version), plan),
                }
            }
            State::Drifted | State::InSync => {}
        }
    }

    fn is_uninstall_due(&self, digest: &str) -> bool {
        let remedy = self.memory.status.remedy.as_ref();
        remedy.is_some_and(|r| r.kind == OperationKind::Uninstall && r.digest == digest && !r.succeeded)
    }

    /// While helm is at work there is nothing to decide; when it ended, the report comes first.
    fn is_busy(&self, plan: &mut Plan) -> bool {
        match self.observed.job {
            Job::Idle => return false,
            Job::Waiting(_) | Job::Running(_) | Job::Ending(_) => {}
            // Without a look at Helm's storage it is unknown what an end means.
            Job::Finished(_) if self.observed.stored().is_none() => plan.look_within(LOOK_AGAIN),
            Job::Finished(_) => plan.look_within(Duration::ZERO),
        }
        true
    }

    /// Whether what waits for its turn is not wanted any more. What runs is let end.
    fn is_overtaken(&self, desired: &Desired) -> bool {
        let (Job::Waiting(OperationKind::Install | OperationKind::Upgrade), Some(waiting)) =
            (&self.observed.job, &self.memory.status.operation)
        else {
            return false;
        };
        let wanted = match (&self.observed.values, &self.observed.chart) {
            (Values::Read { digest, .. }, Chart::Resolved { version, .. }) => {
                Some(config_digest(&desired.chart, version, digest))
            }
            _ => None,
        };
        desired.suspend || wanted.is_some_and(|wanted| wanted != waiting.digest)
    }

    /// Version and values digest, once both are known.
    fn sources(&self, desired: &Desired, plan: &mut Plan) -> Option<(String, String)> {
        let values = match &self.observed.values {
            Values::Read { digest, .. } => digest.clone(),
            Values::Missing(what) => {
                let message = format!("{what}; create it, or mark the entry optional");
                plan.block(Reason::ValuesMissing, message);
                return None;
            }
            Values::Invalid(what) => {
                plan.block(Reason::ValuesInvalid, what.clone());
                return None;
            }
            Values::Unknown(why) => {
                unknown(plan, why);
                return None;
            }
        };
        match &self.observed.chart {
            Chart::Resolved { version, .. } => Some((version.clone(), values)),
            Chart::Fetching => None,
            Chart::Failed(failure) => {
                let is_permanent = matches!(failure.class, FailureClass::NotFound | FailureClass::Unauthorised);
                let is_absent = failure.class == FailureClass::NotFound;
                let reason = if is_absent { Reason::ChartNotFound } else { Reason::ChartUnavailable };
                let retry = self.policy.fetch_retry.min(desired.interval);
                let pause = if is_permanent { desired.interval } else { retry };
                plan.look_within(pause);
                plan.block(reason, failure.message.clone());
                None
            }
        }
    }

    /// Installs or upgrades, unless that was tried often enough.
    fn attempt(&self, desired: &Desired, stored: &[Stored], digest: &str, version: &str, plan: &mut Plan) {
        if self.is_hindered(plan) {
            return;
        }
        let is_installed = last_good(stored).is_some();
        let strategy = if is_installed { desired.upgrade } else { desired.install };
        // With other settings it is another attempt, whatever became of those before.
        let is_same = self.memory.has_same_settings();
        let is_harried = is_same && self.is_harried(digest);
        let is_used_up = self.memory.failures(digest) > strategy.retries;
        // What keeps interrupting may be gone by the next interval, and a right that was missing may be given.
        let is_external = is_harried || (is_used_up && self.memory.status.last_failure == Some(Reason::Forbidden));
        let rest = self.rest(desired.interval).filter(|_| is_external);
        if let Some(rest) = rest {
            plan.look_within(rest);
        }
        let is_exhausted = if is_external { rest.is_some() } else { is_used_up };
        let remedy = self.memory.status.remedy.as_ref().filter(|remedy| is_same && remedy.digest == digest);
        if !is_exhausted && (remedy.is_none() || self.memory.force.is_some()) {
            let kind = if is_installed { OperationKind::Upgrade } else { OperationKind::Install };
            let former = if is_installed { Former::Absent } else { Former::of(self.object, self.observed, stored) };
            return self.start(Operation { former, ..operation(kind, desired, stored, digest, version) }, plan);
        }
        // What was only interrupted has not failed.
        if remedy.is_none()
            && !is_harried
            && let Some(remedy) = self.remediation(strategy.remediation, desired, stored, digest)
        {
            return self.start(remedy, plan);
        }
        let status = &self.memory.status;
        let reason = status.last_failure.unwrap_or(Reason::UpgradeFailed);
        plan.block(reason, status.last_output.clone().unwrap_or_else(|| "helm failed".to_owned()));
    }

    /// Whether something else ended it more often than is borne with at a time.
    fn is_harried(&self, digest: &str) -> bool {
        self.memory.interruptions(digest) > MOST_INTERRUPTIONS
    }

    /// With growing delays, so that what keeps interrupting is not kept busy by us.
    fn start(&self, operation: Operation, plan: &mut Plan) {
        let interruptions = self.memory.interruptions(&operation.digest);
        let pause = Duration::from_secs(1 << interruptions.min(8));
        match self.rest(pause).filter(|_| interruptions > 0) {
            Some(left) => plan.look_within(left),
            None => self.begin(operation, plan),
        }
    }

    /// What must hold before anything is installed or changed.
    fn is_hindered(&self, plan: &mut Plan) -> bool {
        if let Some(cycle) = &self.observed.cycle {
            plan.block(Reason::DependencyCycle, format!("cycle: {}", dependency::shown(cycle)));
        }
        let missing = self.observed.missing_dependencies();
        if !missing.is_empty() {
            let absent = self.observed.dependencies.iter().filter(|d| !d.is_there).map(|d| d.name.as_str());
            let absent: Vec<_> = absent.collect();
            let names = missing.into_iter().collect::<Vec<_>>().join(", ");
            let hint = if absent.is_empty() { String::new() } else { format!("; not there: {}", absent.join(", ")) };
            plan.block(Reason::DependencyNotReady, format!("waiting for {names}{hint}"));
        }
        !plan.blocked.is_empty()
    }

    /// Nothing is done or looked at in a release's name unless its account may act, however small it is.
    fn require_identity(&self, plan: &mut Plan) {
        let needs_identity = |step: &Step<Action, Ask>| step.action.needs_identity();
        let is_missing = |want: &Want<Ask>| match want.ask {
            Ask::Drift { .. } => self.observed.drift == Drift::NotLooked,
            _ => self.observed.workloads == Replicas::NotLooked,
        };
        if !plan.steps.iter().any(needs_identity) && !plan.wants.iter().any(is_missing) {
            return;
        }
        plan.wants.push(Want { ask: identity_ask(self.object), max_age: IDENTITY_AGE });
        if self.observed.identity == Identity::Usable {
            for step in plan.steps.iter_mut().filter(|step| needs_identity(step)) {
                step.rests_on.push(Want { ask: identity_ask(self.object), max_age: UNTIL_BEGUN });
            }
            return;
        }
        // Steps that need an account come last, so that none needs one of them.
        plan.steps.retain(|step| !needs_identity(step));
        if let Some((reason, message)) = self.missing_identity() {
            plan.block(reason, message);
            plan.look_within(IDENTITY_LOOK);
        }
    }

    /// Hands an operation to the runner.
    fn begin(&self, operation: Operation, plan: &mut Plan) {
        let spoils = self.looks();
        plan.push_after_all(Step::new(Action::Start(operation)).announced().as_job().spoils(spoils));
    }

    /// The looks at live objects that are known or under way.
    fn looks(&self) -> Vec<Ask> {
        let Some(newest) = self.observed.newest() else { return Vec::new() };
        vec![self.drift_ask(newest), self.replicas_ask(newest)]
    }

    fn drift_ask(&self, newest: &Stored) -> Ask {
        let (object, changes) = (ObjectRef::of(self.object), self.observed.object_changes);
        Ask::Drift { object, secret_uid: newest.uid.clone(), changes }
    }

    fn replicas_ask(&self, newest: &Stored) -> Ask {
        let (object, changes) = (ObjectRef::of(self.object), self.observed.object_changes);
        Ask::Replicas { object, secret_uid: newest.uid.clone(), changes }
    }

    fn missing_identity(&self) -> Option<(Reason, String)> {
        match &self.observed.identity {
            Identity::Usable | Identity::NotChecked => None,
            Identity::AccountRequired => Some((
                Reason::ServiceAccountRequired,
                "helm may act only as a ServiceAccount; set spec.serviceAccountName, or let it act as the operator by helm.bindClusterRole of strata's chart".to_owned(),
            )),
            Identity::AccountMissing(name) => Some((
                Reason::ServiceAccountMissing,
                format!("ServiceAccount {name} does not exist; create it in the HelmRelease's namespace"),
            )),
            Identity::Forbidden(what) => Some((Reason::Forbidden, what.clone())),
            Identity::Unknown(why) => Some((Reason::StateUnknown, why.clone())),
        }
    }

    /// Time left of a pause after the last attempt.
    fn rest(&self, pause: Duration) -> Option<Duration> {
        left(self.observed.ages.of_attempt()?, pause)
    }

    fn unlock(&self, stored: &Stored, is_ours: bool, plan: &mut Plan) {
        let patience = if is_ours { Duration::ZERO } else { self.policy.lock_patience };
        match left(self.observed.ages.of_lock(), patience) {
            Some(left) => {
                let message = format!(
                    "revision {} is {} by a helm process of another client; the operator takes the release over if the revision stops changing",
                    stored.revision,
                    stored.status.as_str()
                );
                plan.block(Reason::Locked, message);
                plan.look_within(left);
            }
            None => plan.push_after_all(Step::new(Action::Unlock {
                revision: stored.revision,
                uid: stored.uid.clone(),
                resource_version: stored.resource_version.clone(),
            })),
        }
    }

    fn rolls_back_by_request(&self, desired: &Desired, stored: &[Stored], digest: &str, plan: &mut Plan) -> bool {
        let Some(request) = &self.memory.rollback else { return false };
        let revision = request.split('@').next().unwrap_or_default().parse::<u32>().ok();
        let is_free = stored.last().is_some_and(|newest| !newest.status.is_pending());
        match stored.iter().find(|s| Some(s.revision) == revision) {
            Some(_) if !is_free => return false,
            Some(target) => {
                self.start(self.rollback(desired, stored, digest, target.revision), plan);
            }
            None => {
                let kept: Vec<_> = stored.iter().map(|s| s.revision.to_string()).collect();
                let message = format!(
                    "The annotation requests a rollback to {request}, which Helm does not have; choose one of {}",
                    kept.join(", ")
                );
                plan.push(Action::RefuseRollback { message });
            }
        }
        true
    }

    fn remediation(
        &self,
        wanted: UpgradeRemediation,
        desired: &Desired,
        stored: &[Stored],
        digest: &str,
    ) -> Option<Operation> {
        match wanted {
            UpgradeRemediation::None => None,
            UpgradeRemediation::Rollback => Some(self.rollback(desired, stored, digest, last_good(stored)?.revision)),
            UpgradeRemediation::Uninstall if stored.is_empty() => None,
            UpgradeRemediation::Uninstall => Some(operation(OperationKind::Uninstall, desired, stored, digest, "")),
        }
    }

    fn rollback(&self, desired: &Desired, stored: &[Stored], digest: &str, to: u32) -> Operation {
        let target = self.memory.status.history.iter().find(|known| known.revision == to);
        let version = target.and_then(|known| known.chart_version.as_deref()).unwrap_or_default();
        Operation {
            to_revision: Some(to),
            to_digest: Some(target.and_then(|known| known.digest.clone()).unwrap_or_else(|| FOREIGN.to_owned())),
            timeout: desired.rollback_timeout,
            wait: desired.rollback_wait && !desired.stopped,
            ..operation(OperationKind::Rollback, desired, stored, digest, version)
        }
    }

    /// Compares what is deployed with what is there.
    fn watch_drift(&self, desired: &Desired, newest: &Stored, plan: &mut Plan) {
        if desired.drift == DriftDetection::Disabled {
            return;
        }
        let (ask, max_age) = (self.drift_ask(newest), look_age(self.observed.is_watched, desired.interval));
        plan.wants.push(Want { ask: ask.clone(), max_age });
        if let (DriftDetection::Enabled, Drift::Found(found)) = (desired.drift, &self.observed.drift) {
            let correction = Step::new(Action::CorrectDrift(found.clone()));
            plan.push_after_all(correction.rests_on(ask.clone(), max_age).spoils([ask]));
            return;
        }
        let pause = if self.observed.is_watched { desired.interval } else { UNWATCHED_LOOK };
        plan.look_within(pause.min(desired.interval));
    }

    fn scale(&self, desired: &Desired, newest: &Stored, plan: &mut Plan) {
        let former = &self.memory.status.stopped;
        if !desired.stopped && former.is_empty() {
            return;
        }
        if !self.observed.is_watched {
            plan.look_within(UNWATCHED_LOOK);
        }
        let max_age = look_age(self.observed.is_watched, desired.interval);
        plan.wants.push(Want { ask: self.replicas_ask(newest), max_age });
        match &self.observed.workloads {
            Replicas::NotLooked => {}
            Replicas::Unknown(why) => unknown(plan, why),
            Replicas::Live(live) => {
                let scaled = replicas::due(desired.stopped, former, live);
                if !scaled.is_empty() {
                    // Former replicas are stored before anything is scaled, so that they are never lost.
                    let (scale, ask) = (Step::new(Action::Scale(scaled)).announced(), self.replicas_ask(newest));
                    plan.push_after_all(scale.rests_on(ask.clone(), max_age.max(UNTIL_BEGUN)).spoils([ask]));
                }
            }
        }
    }
}

/// Time left of a wait that has lasted for `age`.
fn left(age: Duration, wait: Duration) -> Option<Duration> {
    wait.checked_sub(age).filter(|left| !left.is_zero())
}

fn unknown(plan: &mut Plan, why: &str) {
    plan.block(Reason::StateUnknown, why);
    plan.look_within(LOOK_AGAIN);
}

fn operation(kind: OperationKind, desired: &Desired, stored: &[Stored], digest: &str, version: &str) -> Operation {
    Operation {
        kind,
        digest: digest.to_owned(),
        chart_version: (!version.is_empty()).then(|| version.to_owned()),
        revision: stored.last().map_or(0, |newest| newest.revision),
        to_revision: None,
        to_digest: None,
        timeout: desired.timeout,
        memory: desired.memory,
        // Workloads at zero never become ready.
        wait: desired.wait && !desired.stopped,
        former: Former::Absent,
    }
}
