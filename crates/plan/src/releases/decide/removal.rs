//! The way of a release out: uninstall, unless data or another process is in the way.

use std::time::Duration;

use api::condition::Reason;
use api::workspace::{DELETE_DATA_ANNOTATION, FINALIZER, LABEL_WORKSPACE, OperationKind};

use super::{Deciding, LOOK_AGAIN, Plan, left, operation, unknown};
use crate::releases::{Action, Job, Known, StoredStatus, memory::REMOVAL, removable};
use crate::round::Step;

impl Deciding<'_> {
    pub(super) fn remove(&self, plan: &mut Plan) {
        if !self.is_held() {
            return;
        }
        match &self.observed.job {
            Job::Waiting(kind) | Job::Running(kind) if *kind != OperationKind::Uninstall => {
                plan.push(Action::Cancel);
                return;
            }
            _ if self.is_busy(plan) => return,
            _ => {}
        }
        let finalizers = self.finalizers().iter().filter(|finalizer| *finalizer != FINALIZER).cloned().collect();
        let release = Action::ReleaseFinalizer { finalizers };
        let is_suspended = self.object.spec.as_ref().and_then(|spec| spec.suspend).unwrap_or(false);
        // Another's release is not ours to remove, nor one that we never did anything to.
        if self.observed.rival.is_some() || is_suspended || !self.memory.has_acted() {
            return plan.push_after_all(Step::new(release));
        }
        let Some(desired) = removable(self.object, self.policy) else {
            let message = "spec cannot be read, so the operator does not know what to uninstall; correct it, or run helm uninstall and remove the finalizer";
            return plan.block(Reason::InvalidSpec, message);
        };
        let stored = match &self.observed.storage {
            Known::Yes(stored) => stored,
            Known::No(why) => return unknown(plan, why),
        };
        let Some(newest) = stored.last().filter(|newest| newest.status != StoredStatus::Uninstalled) else {
            return plan.push_after_all(Step::new(release));
        };
        if self.is_protected() {
            let message = format!(
                "the release holds PersistentVolumeClaims; the operator removes nothing until the service sets deleteData: true, or this object has the annotation {DELETE_DATA_ANNOTATION}: \"true\""
            );
            return plan.block(Reason::DataProtected, message);
        }
        if let Some((reason, message)) = self.missing_identity() {
            // What the namespace holds goes with it, and the identity will not come back.
            if self.observed.is_namespace_terminating {
                return plan.push_after_all(Step::new(release));
            }
            plan.look_within(LOOK_AGAIN);
            return plan.block(reason, message);
        }
        let is_ours = self.memory.status.operation.is_some();
        let patience = if newest.status.is_pending() && !is_ours { self.policy.lock_patience } else { Duration::ZERO };
        if let Some(left) = left(self.observed.ages.of_lock(), patience) {
            plan.look_within(left);
            return plan.block(Reason::Locked, "a helm process of another client is working on the release");
        }
        let status = &self.memory.status;
        if let Some(reason) = status.last_failure.filter(|_| self.memory.is_removing()) {
            if status.failures > 0 && self.observed.is_namespace_terminating {
                return plan.push_after_all(Step::new(release));
            }
            let pause = Duration::from_secs(1 << (status.failures + status.interruptions).min(8));
            if let Some(left) = self.rest(pause) {
                plan.block(reason, status.last_output.clone().unwrap_or_default());
                return plan.look_within(left);
            }
        }
        let version = self.memory.newest().and_then(|newest| newest.chart_version.clone()).unwrap_or_default();
        self.begin(operation(OperationKind::Uninstall, &desired, stored, REMOVAL, &version), plan);
    }

    /// Whether data of a workspace's service stands in the way of its removal.
    fn is_protected(&self) -> bool {
        let metadata = &self.object.metadata;
        let is_service = metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(LABEL_WORKSPACE));
        let is_allowed = metadata
            .annotations
            .as_ref()
            .is_some_and(|all| all.get(DELETE_DATA_ANNOTATION).is_some_and(|value| value == "true"));
        // What could not be read may hold anything.
        let holds_data = self.observed.holds_data.unwrap_or(true);
        is_service && holds_data && !is_allowed && !self.observed.is_namespace_terminating
    }
}
