//! A small world of Helm's storage and one runner.

use std::time::Duration;

use api::condition::{ConditionStatus, ConditionType, Reason};
use api::workspace::{HelmRelease, OperationKind, StoppedWorkload};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use plan::Clocks;
use plan::releases::{
    Action, Ages, Ask, Chart, Drift, Ended, Failure, FailureClass, Former, Identity, Job, Known, Operation, Policy,
    Replicas, Round, Stored, StoredStatus, Surroundings, Values, decide, status,
};
use plan::round::Progress;
use serde_json::{Value, json};

pub type Plan = plan::round::Plan<Action, Ask>;

pub const START: Timestamp = Timestamp::constant(1_000_000, 0);

pub struct World {
    pub object: HelmRelease,
    pub observed: Surroundings,
    /// The true time, which the API server's clock shows.
    pub now: Timestamp,
    /// How far our wall clock is ahead of it.
    pub skew: SignedDuration,
    /// Whether answers of the API server carry a date.
    pub is_time_known: bool,
    /// Of the last round.
    ages: Ages,
    started: Timestamp,
    /// How the next operations end; success when there is none.
    pub failures: Vec<FailureClass>,
    /// What helm did, in order.
    pub operations: Vec<Operation>,
    /// The next operation that is cut off in the middle.
    pub cut: Option<Cut>,
    pub is_gone: bool,
}

/// How a SIGKILL that is not ours ends an operation.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    pub kind: OperationKind,
    /// The new revision that it leaves, if any.
    pub left: Option<StoredStatus>,
    /// Whether the operator is killed, too: then the end is not observed.
    pub with_operator: bool,
}

pub fn stored(revision: u32, status: StoredStatus, at: Timestamp) -> Stored {
    Stored {
        revision,
        status,
        uid: format!("uid-{revision}"),
        resource_version: revision.to_string(),
        created_at: Some(at),
    }
}

impl World {
    pub fn new(spec: Value) -> Self {
        let mut full = json!({ "chart": { "repo": "http://charts", "name": "four", "version": "1.0.0" } });
        full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let object = serde_json::from_value(json!({
            "metadata": { "name": "web", "namespace": "team", "uid": "u", "generation": 1 }, "spec": full,
        }));
        Self {
            object: object.unwrap(),
            observed: Surroundings {
                storage: Known::Yes(vec![]),
                values: values("v1"),
                chart: Chart::Resolved { version: "1.0.0".into(), digest: None, is_checked: true },
                job: Job::Idle,
                dependencies: vec![],
                cycle: None,
                identity: Identity::Usable,
                drift: Drift::NotLooked,
                is_watched: true,
                workloads: Replicas::NotLooked,
                object_changes: 0,
                holds_data: None,
                is_namespace_terminating: false,
                rival: None,
                ages: Ages::default(),
            },
            now: START,
            skew: SignedDuration::ZERO,
            is_time_known: true,
            ages: Ages::default(),
            started: START,
            failures: vec![],
            operations: vec![],
            cut: None,
            is_gone: false,
        }
    }

    pub fn storage(&mut self) -> &mut Vec<Stored> {
        let Known::Yes(stored) = &mut self.observed.storage else { panic!("storage is not known") };
        stored
    }

    pub fn plan(&self) -> Plan {
        decide(&self.object, &self.seen(), &Policy::default())
    }

    /// What is known in a round now.
    fn seen(&self) -> Surroundings {
        let uptime = Duration::try_from(self.now.duration_since(self.started)).unwrap();
        let clocks = Clocks { server: self.is_time_known.then_some(self.now), uptime };
        let ages = Ages::of(self.object.status.as_ref(), &self.observed.storage, &self.ages, clocks);
        Surroundings { ages, ..self.observed.clone() }
    }

    /// The operator is started again: what it remembered is lost.
    pub fn restart(&mut self) {
        (self.ages, self.started) = (Ages::default(), self.now);
    }

    /// One round as the runtime runs it.
    pub fn round(&mut self) -> Plan {
        let plan = self.plan();
        let before = self.seen();
        for action in plan.actions() {
            self.execute(action);
        }
        self.look(&plan);
        let progress = vec![Progress::Done(()); plan.steps.len()];
        let policy = Policy::default();
        let round = Round {
            object: &self.object,
            observed: &before,
            plan: &plan,
            progress: &progress,
            announced: None,
            policy: &policy,
        };
        let after = status(&round, self.now + self.skew);
        self.ages = before.ages.after(&after);
        self.object.status = Some(after);
        if matches!(self.observed.job, Job::Finished(_)) && matches!(before.job, Job::Finished(_)) {
            self.observed.job = Job::Idle;
        }
        plan
    }

    pub fn execute(&mut self, action: &Action) {
        match action {
            Action::AddFinalizer { finalizers } => self.object.metadata.finalizers = Some(finalizers.clone()),
            Action::ReleaseFinalizer { .. } => self.is_gone = true,
            Action::Start(operation) => self.helm(operation.clone()),
            Action::Unlock { revision, .. } => {
                let newest = self.storage().last_mut().unwrap();
                assert_eq!(newest.revision, *revision);
                newest.status = StoredStatus::Failed;
            }
            Action::CorrectDrift(_) => self.observed.drift = Drift::None,
            Action::Scale(scaled) => self.observed.workloads = Replicas::Live(scaled.clone()),
            Action::Cancel => self.observed.job = Job::Idle,
            Action::RefuseRollback { .. } => {}
        }
    }

    /// The looks at live objects that a plan asks for.
    fn look(&mut self, plan: &Plan) {
        for want in &plan.wants {
            match want.ask {
                Ask::Drift { .. } if self.observed.drift == Drift::NotLooked => self.observed.drift = Drift::None,
                Ask::Replicas { .. } if self.observed.workloads == Replicas::NotLooked => {
                    self.observed.workloads = Replicas::Live(vec![workload(3)]);
                }
                _ => {}
            }
        }
    }

    pub fn helm(&mut self, operation: Operation) {
        let failure = (!self.failures.is_empty()).then(|| self.failures.remove(0));
        let at = self.now;
        if operation.former == Former::Uninstall {
            self.storage().clear();
        }
        let next = self.storage().last().map_or(1, |newest| newest.revision + 1);
        if let Some(cut) = self.cut.take_if(|cut| cut.kind == operation.kind) {
            if cut.left == Some(StoredStatus::Deployed) {
                self.storage().iter_mut().for_each(|s| s.status = StoredStatus::Superseded);
            }
            self.storage().extend(cut.left.map(|status| stored(next, status, at)));
            let result = Err(Failure { class: FailureClass::Interrupted, message: "killed".into() });
            let ended = Ended { operation, result };
            self.observed.job = if cut.with_operator { Job::Idle } else { Job::Finished(ended) };
            return;
        }
        let ended = if failure.is_some() { StoredStatus::Failed } else { StoredStatus::Deployed };
        match operation.kind {
            OperationKind::Install | OperationKind::Upgrade | OperationKind::Rollback => {
                if failure.is_none() {
                    // As Helm does it, what failed stays so.
                    let others = self.storage().iter_mut().filter(|stored| stored.status != StoredStatus::Failed);
                    others.for_each(|stored| stored.status = StoredStatus::Superseded);
                }
                // Numbers may begin anew, but each record is another object.
                let uid = format!("uid-{next}-{}", self.operations.len());
                self.storage().push(Stored { uid, ..stored(next, ended, at) });
            }
            OperationKind::Uninstall if failure.is_some() => {}
            OperationKind::Uninstall => self.storage().clear(),
            OperationKind::Test | OperationKind::Fetch => {}
        }
        let result = failure.map_or(Ok(()), |class| Err(Failure { class, message: "it broke".into() }));
        self.operations.push(operation.clone());
        self.observed.job = Job::Finished(Ended { operation, result });
    }

    pub fn settle(&mut self) {
        let _ = self.rest();
    }

    /// Rounds until nothing is left to do now; the last plan.
    pub fn rest(&mut self) -> Plan {
        for _ in 0..30 {
            let before = self.observed.clone();
            let plan = self.round();
            let is_idle = plan.steps.is_empty() && plan.next_look != Some(Duration::ZERO) && before == self.observed;
            if is_idle || self.is_gone {
                return plan;
            }
        }
        panic!("it never settles: {:?}", self.operations);
    }

    pub fn kinds(&self) -> Vec<OperationKind> {
        self.operations.iter().map(|operation| operation.kind).collect()
    }

    pub fn condition(&self, kind: ConditionType) -> (ConditionStatus, Reason) {
        let condition = self.object.status.as_ref().unwrap().condition(kind).unwrap();
        (condition.status, condition.reason)
    }

    pub fn change(&mut self, values: &str) {
        self.observed.values = self::values(values);
        self.object.metadata.generation = self.object.metadata.generation.map(|generation| generation + 1);
    }

    pub fn annotate(&mut self, name: &str, value: &str) {
        self.object.metadata.annotations.get_or_insert_default().insert(name.into(), value.into());
    }

    pub fn delete(&mut self) {
        self.object.metadata.deletion_timestamp = Some(Time(self.now));
    }
}

pub fn values(digest: &str) -> Values {
    Values::Read { digest: digest.into(), sources: vec![] }
}

pub fn workload(replicas: i32) -> StoppedWorkload {
    StoppedWorkload { kind: "Deployment".into(), name: "web".into(), replicas, revision: None }
}

/// As it is remembered of the first revision.
pub fn former(replicas: i32) -> StoppedWorkload {
    StoppedWorkload { revision: Some(1), ..workload(replicas) }
}
