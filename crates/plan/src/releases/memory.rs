//! What status remembers of a release, brought up to date by what is observed.

use api::condition::Reason;
use api::workspace::{
    FORCE_ANNOTATION, HelmRelease, HelmReleaseStatus, OperationKind, ROLLBACK_ANNOTATION, ReleaseRevision, TestResult,
};

use crate::object::digest;

use super::desired::settings_digest;
use super::{Ended, Failure, FailureClass, Job, Operation, Stored, StoredStatus, Surroundings};

/// How often attempts at one thing may be ended from outside in a row before the next waits for the interval: a node that
/// keeps killing helm is no accident any more.
pub(super) const MOST_INTERRUPTIONS: u32 = 5;
/// Long histories are Helm's business; status shows the newest.
const SHOWN_REVISIONS: usize = 20;
/// A failure's text in status; the whole of it is in the log.
const MAX_OUTPUT: usize = 4096;

/// Of a handled annotation's value: several times a time stamp, which is what users write. An annotation may have 256 KiB,
/// and status is written and watched with all of it.
const LONGEST_NOTED: usize = 256;

/// Stands for what is tried when an object is deleted, in place of a digest.
pub(super) const REMOVAL: &str = "";

/// The status that decisions are taken on: an ended operation is already part of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    pub status: HelmReleaseStatus,
    /// Stands for the present settings of an attempt.
    pub settings: Option<String>,
    /// A value of the force annotation that was not acted on.
    pub force: Option<String>,
    /// A value of the rollback annotation that was not acted on.
    pub rollback: Option<String>,
}

impl Memory {
    pub fn recall(object: &HelmRelease, observed: &Surroundings) -> Self {
        let mut status = object.status.clone().unwrap_or_default();
        let former = status.history.clone();
        // The end of the records is reported, not how they come about.
        if let Some(stored) = observed.stored().filter(|_| !observed.is_at_work()) {
            status.history = history(&former, stored);
        }
        // What an end means is in Helm's storage; until that is known it is not taken note of.
        if let Some(ended) = observed.ended() {
            end(&mut status, &ended, observed, &former);
        } else if observed.job == Job::Idle {
            settle_interrupted(&mut status, observed, &former);
        }
        let annotation = |name: &str| object.metadata.annotations.as_ref()?.get(name).cloned();
        let force =
            annotation(FORCE_ANNOTATION).filter(|value| !is_handled(value, status.last_handled_force.as_deref()));
        let rollback =
            annotation(ROLLBACK_ANNOTATION).filter(|value| !is_handled(value, status.last_handled_rollback.as_deref()));
        let settings = object.spec.as_ref().map(settings_digest);
        Self { status, settings, force, rollback }
    }

    /// Failed attempts at this very thing, with these settings.
    pub fn failures(&self, digest: &str) -> u32 {
        if self.is_about(digest) && self.has_same_settings() { self.status.failures } else { 0 }
    }

    /// Whether the settings are those of the last attempt. One that noted none, as former operators did, counts as made
    /// with these.
    pub fn has_same_settings(&self) -> bool {
        self.status.last_attempted_settings.is_none() || self.status.last_attempted_settings == self.settings
    }

    /// Attempts at this very thing that something else ended.
    pub fn interruptions(&self, digest: &str) -> u32 {
        if self.is_about(digest) { self.status.interruptions } else { 0 }
    }

    fn is_about(&self, digest: &str) -> bool {
        self.force.is_none() && self.status.last_attempted_digest.as_deref() == Some(digest)
    }

    /// Whether the removal of the release was tried.
    pub fn is_removing(&self) -> bool {
        self.status.last_attempted_digest.as_deref() == Some(REMOVAL)
    }

    /// Whether anything was ever tried with this release.
    pub fn has_acted(&self) -> bool {
        has_acted(&self.status)
    }

    /// The newest revision, if it is one of ours.
    pub fn newest(&self) -> Option<&ReleaseRevision> {
        self.status.history.first()
    }
}

/// What status keeps of the value of an annotation that was acted on: a long one is known by its digest.
pub(super) fn noted(value: &str) -> String {
    if value.len() <= LONGEST_NOTED { value.to_owned() } else { format!("digest:{}", digest(&value.into())) }
}

/// Whether this value was acted on.
pub(super) fn is_handled(value: &str, handled: Option<&str>) -> bool {
    handled.is_some_and(|handled| handled == value || handled == noted(value))
}

/// Whether status shows that anything was ever tried with the release.
pub(super) fn has_acted(status: &HelmReleaseStatus) -> bool {
    status.operation.is_some()
        || status.last_attempted_digest.is_some()
        || status.history.iter().any(|revision| revision.digest.is_some())
}

/// Helm's revisions, newest first, with what we know of each beyond Helm's labels.
fn history(former: &[ReleaseRevision], stored: &[Stored]) -> Vec<ReleaseRevision> {
    // Of the release, and so in all its revisions, as Helm has it. Helm drops the oldest ones.
    let kept = former.iter().find(|known| stored.iter().any(|stored| is_of(known, stored)));
    let oldest = stored.first().and_then(|oldest| oldest.created_at);
    let first_deployed = kept.and_then(|known| known.first_deployed).or(oldest);
    let entry = |stored: &Stored| {
        let known = former.iter().find(|known| is_of(known, stored));
        ReleaseRevision {
            revision: stored.revision,
            status: stored.status.as_str().to_owned(),
            secret_uid: Some(stored.uid.clone()),
            first_deployed,
            last_deployed: stored.created_at,
            ..known.cloned().unwrap_or_default()
        }
    };
    stored.iter().rev().take(SHOWN_REVISIONS).map(entry).collect()
}

fn is_of(known: &ReleaseRevision, stored: &Stored) -> bool {
    known.revision == stored.revision && known.secret_uid.as_deref() == Some(stored.uid.as_str())
}

/// Takes an operation's end into account.
fn end(status: &mut HelmReleaseStatus, ended: &Ended, observed: &Surroundings, former: &[ReleaseRevision]) {
    if ended.is_not_begun() {
        status.operation = None;
        return reopen(status, observed);
    }
    let operation = &ended.operation;
    let left_lock = observed.newest().is_some_and(|newest| {
        let is_begun = newest.status.is_pending() && is_made_by(operation, newest, former);
        (is_begun || is_half_removed(operation, newest)) && !ended.is_in_progress()
    });
    // What shows that a lock is ours stays until it is gone.
    if !left_lock {
        status.operation = None;
    }
    match (&ended.result, operation.kind) {
        (Ok(()), OperationKind::Test) => {
            status.interruptions = 0;
            set_test(status, TestResult::Succeeded);
        }
        (Err(failure), OperationKind::Test) if !failure.class.is_interruption() => {
            set_test(status, TestResult::Failed);
            status.last_output = Some(shorten(&failure.message));
        }
        (Err(failure), OperationKind::Test) => interrupted(status, failure.class),
        (_, OperationKind::Fetch) => {}
        (Ok(()), OperationKind::Install | OperationKind::Upgrade) => {
            take_over(status, operation, observed, former);
        }
        (Ok(()), OperationKind::Rollback) => {
            roll_back(status, operation.to_digest.as_deref(), operation.chart_version.as_deref());
        }
        (Ok(()), OperationKind::Uninstall) => remedied(status),
        (Err(failure), kind) if failure.class.is_interruption() => {
            if !take_over(status, operation, observed, former) {
                interrupted(status, failure.class);
                // What it was to remedy stays the thing to report.
                if kind != OperationKind::Rollback || status.failures == 0 {
                    fail(status, kind, failure);
                }
                reopen(status, observed);
            }
        }
        (Err(failure), kind) => {
            status.failures += 1;
            fail(status, kind, failure);
        }
    }
    note_failed(status, operation, observed, former);
}

/// An attempt was ended from outside. A lead that is lost over and over may be lost for what the attempt costs the API
/// server, so the pauses grow for it, too; but it is no reason to wait for an interval.
fn interrupted(status: &mut HelmReleaseStatus, class: FailureClass) {
    let most = if class == FailureClass::Cancelled { MOST_INTERRUPTIONS } else { u32::MAX };
    status.interruptions = status.interruptions.saturating_add(1).min(most);
}

/// Whether a revision was made since an operation began. Numbers begin anew where the release was uninstalled meanwhile,
/// by hand or by the operation itself.
fn is_made_by(operation: &Operation, newest: &Stored, former: &[ReleaseRevision]) -> bool {
    newest.revision > operation.revision || !former.iter().any(|known| is_of(known, newest))
}

/// Whether an install was cut off while it removed the failed one of before.
fn is_half_removed(operation: &Operation, newest: &Stored) -> bool {
    operation.kind == OperationKind::Install && newest.status == StoredStatus::Uninstalling
}

/// A failed revision is ours as well.
fn note_failed(
    status: &mut HelmReleaseStatus,
    operation: &Operation,
    observed: &Surroundings,
    former: &[ReleaseRevision],
) {
    let is_deployment = matches!(operation.kind, OperationKind::Install | OperationKind::Upgrade);
    let is_ours = observed.newest().is_some_and(|newest| {
        is_deployment && newest.status == StoredStatus::Failed && is_made_by(operation, newest, former)
    });
    if let Some(newest) = status.history.first_mut().filter(|_| is_ours) {
        newest.digest = Some(operation.digest.clone());
        newest.chart_version.clone_from(&operation.chart_version);
    }
}

fn set_test(status: &mut HelmReleaseStatus, result: TestResult) {
    if let Some(newest) = status.history.first_mut() {
        newest.test = Some(result);
    }
}

fn remedied(status: &mut HelmReleaseStatus) {
    if let Some(remedy) = &mut status.remedy {
        remedy.succeeded = true;
    }
}

fn succeed(status: &mut HelmReleaseStatus, digest: &str, chart_version: Option<&str>) {
    status.failures = 0;
    status.interruptions = 0;
    status.last_failure = None;
    status.last_output = None;
    status.remedy = None;
    status.last_applied_revision = chart_version.map(str::to_owned);
    if let Some(newest) = status.history.first_mut() {
        newest.digest = Some(digest.to_owned());
        newest.chart_version = chart_version.map(str::to_owned);
    }
}

/// A rollback makes a new revision of an old content.
fn roll_back(status: &mut HelmReleaseStatus, digest: Option<&str>, chart_version: Option<&str>) {
    remedied(status);
    if let Some(newest) = status.history.first_mut() {
        newest.digest = digest.map(str::to_owned);
        newest.chart_version = chart_version.map(str::to_owned);
        status.last_applied_revision.clone_from(&newest.chart_version);
    }
}

fn fail(status: &mut HelmReleaseStatus, kind: OperationKind, failure: &Failure) {
    status.last_failure = Some(reason_of(kind, failure.class));
    status.last_output = Some(shorten(&failure.message));
}

fn reason_of(kind: OperationKind, class: FailureClass) -> Reason {
    match (class, kind) {
        (FailureClass::Timeout, _) => Reason::TimedOut,
        (FailureClass::OutOfMemory, _) => Reason::OutOfMemory,
        (FailureClass::Forbidden, _) => Reason::Forbidden,
        (_, OperationKind::Install) => Reason::InstallFailed,
        (_, OperationKind::Rollback) => Reason::RollbackFailed,
        (_, OperationKind::Uninstall) => Reason::UninstallFailed,
        (_, OperationKind::Test) => Reason::TestFailed,
        (_, OperationKind::Upgrade | OperationKind::Fetch) => Reason::UpgradeFailed,
    }
}

/// An operation that status names and no process carries out: its operator is gone. What it did is in Helm's storage;
/// what it did not do is tried again and does not count as a failure. A lock that it left stays known as ours.
fn settle_interrupted(status: &mut HelmReleaseStatus, observed: &Surroundings, former: &[ReleaseRevision]) {
    let (Some(begun), Some(_)) = (status.operation.clone(), observed.stored()) else { return };
    let (newest, begun) = (observed.newest(), Operation::from(&begun));
    if !newest.is_some_and(|newest| newest.status.is_pending() || is_half_removed(&begun, newest)) {
        status.operation = None;
    }
    if !take_over(status, &begun, observed, former) {
        reopen(status, observed);
    }
}

/// Whether Helm's storage shows that an operation was carried out, whatever became of its process; then it counts.
fn take_over(
    status: &mut HelmReleaseStatus,
    operation: &Operation,
    observed: &Surroundings,
    former: &[ReleaseRevision],
) -> bool {
    let newest = observed.newest();
    let is_new =
        newest.is_some_and(|newest| newest.status == StoredStatus::Deployed && is_made_by(operation, newest, former));
    let is_gone = observed.stored().is_some() && newest.is_none_or(|newest| newest.status == StoredStatus::Uninstalled);
    match operation.kind {
        OperationKind::Install | OperationKind::Upgrade if is_new => {
            succeed(status, &operation.digest, operation.chart_version.as_deref());
        }
        OperationKind::Rollback if is_new => {
            roll_back(status, operation.to_digest.as_deref(), operation.chart_version.as_deref());
        }
        OperationKind::Uninstall if is_gone => remedied(status),
        _ => return false,
    }
    true
}

/// A remedy that was cut off is due as before, unless its traces alone say how to go on.
fn reopen(status: &mut HelmReleaseStatus, observed: &Surroundings) {
    let is_uninstalling = observed.newest().is_some_and(|newest| newest.status == StoredStatus::Uninstalling);
    if let Some(remedy) = status.remedy.take_if(|remedy| !remedy.succeeded && !is_uninstalling)
        && remedy.requested
    {
        status.last_handled_rollback = None;
    }
}

/// The end of a text: helm says last what went wrong.
fn shorten(text: &str) -> String {
    let mut start = text.len().saturating_sub(MAX_OUTPUT);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    text[start..].to_owned()
}
