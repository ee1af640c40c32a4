//! The effects of a HelmRelease's plan.

use std::collections::HashSet;

use api::condition::Reason;
use api::workspace::{HelmRelease, OperationKind};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{GroupVersionKind, Patch, PatchParams},
    core::Status,
};
use plan::{
    Why,
    releases::{Action, Answer, Former, Operation},
};
use runtime::{Class, Error, Fence, Key, Turn};
use serde_json::json;

use super::{
    ReleaseController,
    fetch::{Of, ignored},
    identity::Credentials,
    live::{Acting, Target},
    release_key,
    storage::{self, Detail, Unreadable},
};
use crate::{
    LOSS_MARGIN, MANAGER,
    helm::{self, Request},
};

impl ReleaseController {
    pub(super) async fn carry_out(&self, turn: &Turn<'_, Self>, action: &Action) -> Result<(), Error> {
        let (object, release) = (turn.subject.object(), release_key(turn.subject.object()));
        let result = match action {
            Action::AddFinalizer { finalizers } => {
                let patch = json!({ "metadata": { "finalizers": finalizers } });
                turn.subject.patch(&self.releases, turn.key, None, patch).await
            }
            Action::ReleaseFinalizer { finalizers } => {
                turn.subject.release_finalizer(&self.releases, turn.key, finalizers).await
            }
            Action::Start(operation) => self.start(turn, operation),
            Action::Cancel => {
                // What waits and is not wanted any more may have begun since: then it is let end.
                if object.metadata.deletion_timestamp.is_some() {
                    self.runner.cancel(&release);
                } else {
                    self.runner.forget(&release);
                }
                Ok(())
            }
            Action::Unlock { revision, uid, resource_version } => {
                self.unlock(&release, *revision, uid, resource_version, turn.fence).await
            }
            // What it says is in status and an event.
            Action::RefuseRollback { .. } => Ok(()),
            Action::CorrectDrift(drifted) => {
                let (targets, acting) = self.targets(turn.key, object, None, Of::Newest, turn.fence).await?;
                self.discovered.correct(&acting, &targets, drifted, &ignored(object)).await
            }
            Action::Scale(workloads) => {
                let (targets, acting) = self.targets(turn.key, object, None, Of::AllThere, turn.fence).await?;
                self.discovered.scale(&acting, &targets, workloads, MANAGER).await
            }
        };
        if action.needs_identity() { self.explain(object, result).await } else { result }
    }

    /// A refusal in the words of the status. The API server quotes what it refuses, and that may be made of values.
    pub(super) async fn explain(&self, object: &HelmRelease, result: Result<(), Error>) -> Result<(), Error> {
        let Err(error) = result else { return Ok(()) };
        let Some(status) = error.status() else { return Err(error) };
        let message = self.redacted(object, status).await;
        let reason = match status.code {
            403 => Reason::Forbidden,
            400 | 422 => Reason::ObjectRejected,
            // A webhook chooses its own code; whatever it is, its words are not repeated as they are.
            _ => return Err(error.with_message(message)),
        };
        Err(Error::Refused(Why { reason, message }))
    }

    /// What the server said, without what came from Secrets.
    pub(super) async fn redacted(&self, object: &HelmRelease, status: &Status) -> String {
        let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
        match self.preparation.secrets(namespace, object).await {
            Ok(documents) => helm::redact(&status.message, &helm::secrets_in(&documents).collect::<Vec<_>>()),
            Err(_) => status.reason.clone(),
        }
    }

    /// What an operation needs is there: a round checks it before the operation is announced, and keeps nothing of it.
    pub(super) async fn check_start(&self, turn: &Turn<'_, Self>, operation: &Operation) -> Result<(), Error> {
        let object = turn.subject.object();
        let desired = self.preparation.desired(object, operation)?;
        if operation.kind == OperationKind::Uninstall && desired.account.is_some() {
            let credentials = self.preparation.credentials(turn.key, &desired, operation).await?;
            self.check_removal(object, &credentials, turn.fence).await?;
        }
        self.preparation.contents(turn.key, object, operation).await.map(drop)
    }

    /// Puts the operation in line; what helm gets is read again when its turn has come. That it begins is stored already.
    fn start(&self, turn: &Turn<'_, Self>, operation: &Operation) -> Result<(), Error> {
        let object = turn.subject.object();
        tracing::debug!(operation = operation.kind.as_str(), release = %release_key(object), "helm operation begins");
        // Children of a leader that is about to be none are ended, so none is begun any more.
        if turn.fence.check()? <= 2 * LOSS_MARGIN {
            return Err(Error::LeadLost);
        }
        let request = Request {
            key: release_key(object),
            // Of the object: who writes it is who is served.
            namespaces: vec![turn.key.namespace.clone()],
            operation: match operation.kind {
                OperationKind::Install => helm::OperationKind::Install,
                OperationKind::Upgrade | OperationKind::Fetch => helm::OperationKind::Upgrade,
                OperationKind::Rollback => helm::OperationKind::Rollback,
                OperationKind::Uninstall => helm::OperationKind::Uninstall,
                OperationKind::Test => helm::OperationKind::Test,
            },
            label: operation.label().into(),
            timeout: operation.timeout,
            time: (operation.former == Former::Uninstall).then(|| operation.timeout.saturating_mul(2)),
            memory: operation.memory,
            contents: self.preparation.reading(turn.key, operation),
        };
        // Budgets were checked before, so what is refused now is refused because the process ends.
        self.runner.submit(request).map_err(|_| Error::Outdated)
    }

    /// Marks a revision that no process works on as failed. Gone or changed meanwhile is for the next round to see.
    async fn unlock(&self, release: &Key, revision: u32, uid: &str, version: &str, fence: &Fence) -> Result<(), Error> {
        let stored = self.stored_in(release, revision).await?.ok_or(Error::Outdated)?;
        let patch = storage::failed(stored, uid, version).await.map_err(|why| unreadable(release, revision, why))?;
        let secrets: Api<Secret> = Api::namespaced(self.writer.client(), &release.namespace);
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let name = storage::secret_name(&release.name, revision);
        // In the operator's own name.
        let acting = Acting { client: self.writer.client(), fence, timeout: self.writer.timeout };
        match acting.ask(secrets.patch_metadata(&name, &params, &Patch::Merge(patch))).await {
            Err(error) if error.class() == Class::Conflict => Err(Error::Outdated),
            result => result.map(drop),
        }
    }

    pub(super) fn acting<'a>(&self, credentials: &Credentials, fence: &'a Fence) -> Acting<'a> {
        Acting { client: credentials.client.clone(), fence, timeout: self.writer.timeout }
    }

    /// Helm leaves behind what it may not look at, and forgets the release all the same.
    async fn check_removal(&self, object: &HelmRelease, credentials: &Credentials, fence: &Fence) -> Result<(), Error> {
        let release = release_key(object);
        // With its namespace everything goes, no matter who may do what.
        let Answer::NamespaceTerminating(false) = self.is_terminating(&release.namespace).await? else {
            return Ok(());
        };
        let Some(newest) = self.cached_revisions(&release).last().map(|newest| newest.revision) else { return Ok(()) };
        let targets = self.objects_of(&release, newest, Detail::Names).await?;
        let acting = self.acting(credentials, fence);
        let Some(what) = self.discovered.undeletable(&acting, &targets).await? else { return Ok(()) };
        let message = format!(
            "the ServiceAccount that helm acts as may not {what}, so the uninstall would leave it behind; grant it"
        );
        Err(Error::Refused(Why { reason: Reason::Forbidden, message }))
    }

    /// Watches the kinds of these objects, and no longer those that no release needs.
    pub(super) fn follow(&self, key: &Key, targets: &[Target]) {
        let kinds: HashSet<GroupVersionKind> = targets.iter().map(|target| target.kind.clone()).collect();
        let former = self.indexes.kinds.things(key);
        self.indexes.kinds.set(key, kinds.iter().cloned());
        self.indexes.objects.set(key, targets.iter().map(|target| (target.kind.clone(), target.key.clone())));
        for kind in &kinds {
            self.watches.ensure(kind);
        }
        for kind in former.iter().filter(|kind| self.indexes.kinds.keys(kind).is_empty()) {
            self.watches.release(kind);
            self.discovered.forget(kind);
        }
    }
}

pub(super) fn unreadable(release: &Key, revision: u32, why: Unreadable) -> Error {
    let name = storage::secret_name(&release.name, revision);
    let remedy = match why {
        Unreadable::Unknown => "restore the Secret, or delete it if the release may be made anew",
        Unreadable::TooLarge | Unreadable::TooMuch | Unreadable::TooMany => {
            "make the chart smaller, or switch off what has to read it: spec.driftDetection"
        }
    };
    let message = format!("Helm's record of revision {revision} in Secret {name} cannot be read: {why}; {remedy}");
    Error::Refused(Why { reason: Reason::StateUnknown, message })
}
