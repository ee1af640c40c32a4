//! The effects of a HelmRelease's plan.

use std::time::Duration;

use api::condition::Reason;
use api::workspace::{DriftIgnore, OperationKind};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{GroupVersionKind, Patch, PatchParams},
    core::Status,
};
use plan::{
    Plan, Why,
    releases::{Action, Drift, Former, Known, Operation, Outcome, last_good, validate},
};
use runtime::{Error, Executed, Key};
use serde_json::json;

use super::{
    Looked, Observed, ReleaseLayer,
    identity::Credentials,
    live::{self, Acting, Target},
    storage::{self, Detail, Unreadable},
};
use crate::{
    LOSS_MARGIN, MANAGER,
    helm::{self, Request},
};

/// Why an action was not carried out.
pub enum Trouble {
    /// By a request of the runtime.
    Runtime(Error),
    /// In the release's own name.
    Client(kube::Error),
    /// What was planned on is not so any more; the next round sees.
    Outdated,
    /// It helps nobody to try at once.
    Refused(Why),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Runtime(error)
    }
}

impl From<kube::Error> for Trouble {
    fn from(error: kube::Error) -> Self {
        Self::Client(error)
    }
}

impl ReleaseLayer {
    pub(super) async fn carry_out(&self, key: &Key, observed: &Observed, action: &Action) -> Executed<Outcome> {
        let result = match action {
            Action::AddFinalizer { finalizers } | Action::ReleaseFinalizer { finalizers } => {
                let patch = json!({ "metadata": { "finalizers": finalizers } });
                match observed.subject.patch(&self.releases, key, None, patch).await {
                    // The object itself is gone; so there is nothing left to hold, and nothing more to be begun.
                    Err(error) if error.is_not_found() && matches!(action, Action::ReleaseFinalizer { .. }) => Ok(()),
                    result => result.map_err(Trouble::from),
                }
            }
            Action::Start(operation) => self.start(key, observed, operation).await,
            Action::Cancel => {
                self.runner.cancel(&observed.release);
                Ok(())
            }
            Action::Unlock { revision, uid, resource_version } => {
                self.unlock(&observed.release, *revision, uid, resource_version).await
            }
            // What it says is in status and an event.
            Action::RefuseRollback { .. } => Ok(()),
            Action::LookForDrift => self.look_for_drift(key, observed).await,
            Action::CorrectDrift => self.correct_drift(key, observed).await,
            Action::LookAtReplicas => self.look_at_replicas(key, observed).await,
            Action::Scale(workloads) => self.scale(key, observed, workloads).await,
        };
        match result {
            Err(Trouble::Client(kube::Error::Api(mut status))) => {
                status.message = self.redacted(key, observed, &status).await;
                executed(Err(kube::Error::Api(status).into()))
            }
            other => executed(other),
        }
    }

    /// The API server quotes what it refuses, and that may be made of values.
    async fn redacted(&self, key: &Key, observed: &Observed, status: &Status) -> String {
        match self.preparation.secrets(key, observed.subject.object()).await {
            Ok(documents) => helm::redact(&status.message, &helm::secrets_in(&documents).collect::<Vec<_>>()),
            Err(_) => status.reason.clone(),
        }
    }

    /// Everything that can fail comes first; then the operation is stored as begun, and then it is put in line. What helm
    /// gets is only checked here, and read again when its turn has come.
    async fn start(&self, key: &Key, observed: &Observed, operation: &Operation) -> Result<(), Trouble> {
        let object = observed.subject.object();
        let desired = self.preparation.desired(object, operation)?;
        if operation.kind == OperationKind::Uninstall && desired.account.is_some() {
            let credentials = self.preparation.credentials(key, &desired, operation).await?;
            self.check_removal(observed, &credentials).await?;
        }
        self.preparation.contents(key, object, operation).await?;
        let plan = Plan { actions: vec![Action::Start(operation.clone())], ..Plan::default() };
        let begun = self.status(observed, &plan, &[Outcome::Done]);
        self.write_status(key, observed, &begun).await?;
        tracing::debug!(operation = operation.kind.as_str(), release = %observed.release, "helm operation begins");
        {
            let mut notes = self.notes.lock();
            let notes = notes.entry(key.clone()).or_default();
            (notes.drift, notes.replicas) = (None, None);
        }
        // Children of a leader that is about to be none are ended, so none is begun any more.
        if self.writer.leadership.time_left().is_none_or(|left| left <= 2 * LOSS_MARGIN) {
            return Err(Trouble::Outdated);
        }
        let request = Request {
            key: observed.release.clone(),
            // Of the object: who writes it is who is served.
            namespaces: vec![key.namespace.clone()],
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
            memory: desired.memory,
            contents: self.preparation.reading(key, operation),
        };
        // Budgets were checked before, so what is refused now is refused because the process ends.
        self.runner.submit(request).map_err(|_| Trouble::Outdated)
    }

    /// Marks a revision that nobody works on as failed. Gone or changed meanwhile is for the next round to see.
    async fn unlock(&self, release: &Key, revision: u32, uid: &str, version: &str) -> Result<(), Trouble> {
        let stored = self.stored_in(release, revision).await?.ok_or(Trouble::Outdated)?;
        let patch = storage::failed(stored, uid, version).await.map_err(|why| unreadable(release, revision, why))?;
        let secrets: Api<Secret> = Api::namespaced(self.writer.client.clone(), &release.namespace);
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let name = storage::secret_name(&release.name, revision);
        // In the operator's own name.
        let acting = Acting { client: self.writer.client.clone(), writer: &self.writer };
        match acting.ask(secrets.patch_metadata(&name, &params, &Patch::Merge(patch))).await {
            Err(Trouble::Client(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => {
                Err(Trouble::Outdated)
            }
            Err(trouble) => Err(trouble),
            Ok(_) => Ok(()),
        }
    }

    fn acting(&self, credentials: &Credentials) -> Acting<'_> {
        Acting { client: credentials.client.clone(), writer: &self.writer }
    }

    /// Helm leaves behind what it may not look at, and forgets the release all the same.
    async fn check_removal(&self, observed: &Observed, credentials: &Credentials) -> Result<(), Trouble> {
        let Known::Yes(stored) = &observed.surroundings.storage else { return Err(Trouble::Outdated) };
        // With its namespace everything goes, whoever may do what.
        let Some(newest) = stored.last().filter(|_| !observed.surroundings.is_namespace_terminating) else {
            return Ok(());
        };
        let targets = self.objects_of(&observed.release, newest.revision, Detail::Names).await?;
        let Some(what) = self.discovered.undeletable(&self.acting(credentials), &targets).await? else { return Ok(()) };
        let message = format!(
            "the ServiceAccount that helm acts as may not {what}, so that the uninstall would leave it behind; grant it"
        );
        Err(Trouble::Refused(Why { reason: Reason::Forbidden, message }))
    }

    async fn objects_of(&self, release: &Key, revision: u32, detail: Detail) -> Result<Vec<Target>, Trouble> {
        let stored = self.stored_in(release, revision).await?.ok_or(Trouble::Outdated)?;
        let manifest = storage::manifest(stored, detail).await.map_err(|why| unreadable(release, revision, why))?;
        Ok(live::targets(manifest, release))
    }

    /// The live objects of a release, and who may touch them.
    async fn targets(
        &self,
        key: &Key,
        observed: &Observed,
        of: Of,
    ) -> Result<(Vec<Target>, Acting<'_>, String), Trouble> {
        let Known::Yes(stored) = &observed.surroundings.storage else { return Err(Trouble::Outdated) };
        let newest = stored.last().ok_or(Trouble::Outdated)?;
        let desired = validate(observed.subject.object(), &self.policy).map_err(|_| Trouble::Outdated)?;
        // Workloads are only scaled.
        let detail = if of == Of::Newest { Detail::Whole } else { Detail::Names };
        let mut targets = self.objects_of(&observed.release, newest.revision, detail).await?;
        // What failed may have left in place what was there before.
        let before = last_good(stored).filter(|good| of == Of::AllThere && good.revision != newest.revision);
        if let Some(good) = before {
            let former = self.objects_of(&observed.release, good.revision, detail).await?;
            let is_new = |former: &Target| !targets.iter().any(|t| (&t.kind, &t.key) == (&former.kind, &former.key));
            let former: Vec<_> = former.into_iter().filter(is_new).collect();
            targets.extend(former);
        }
        let account = desired.account.as_deref();
        let credentials = self.identities.credentials(&key.namespace, account, Duration::ZERO).await?;
        let acting = self.acting(&credentials);
        let targets = self.discovered.located(&acting, targets).await?;
        Ok((targets, acting, newest.uid.clone()))
    }

    async fn look_for_drift(&self, key: &Key, observed: &Observed) -> Result<(), Trouble> {
        let (targets, acting, secret_uid) = self.targets(key, observed, Of::Newest).await?;
        // Before the look, so that what changes during it is heard of.
        self.follow(key, &targets);
        let changes = self.notes.changes(key);
        let found = self.discovered.drift(&acting, &targets, &ignored(observed)).await;
        let found = self.told(key, observed, found).await?;
        let looked = Looked { secret_uid, at: self.clock.instant(), found };
        self.notes.note(key, changes, |notes| notes.drift = Some(looked));
        Ok(())
    }

    async fn correct_drift(&self, key: &Key, observed: &Observed) -> Result<(), Trouble> {
        let Drift::Found(drifted) = &observed.surroundings.drift else { return Ok(()) };
        let (targets, acting, _) = self.targets(key, observed, Of::Newest).await?;
        self.discovered.correct(&acting, &targets, drifted, &ignored(observed)).await?;
        self.notes.objects_changed(key);
        Ok(())
    }

    async fn look_at_replicas(&self, key: &Key, observed: &Observed) -> Result<(), Trouble> {
        let (targets, acting, secret_uid) = self.targets(key, observed, Of::AllThere).await?;
        self.follow(key, &targets);
        let changes = self.notes.changes(key);
        let found = self.discovered.replicas(&acting, &targets).await;
        let found = self.told(key, observed, found).await?;
        let looked = Looked { secret_uid, at: self.clock.instant(), found };
        self.notes.note(key, changes, |notes| notes.replicas = Some(looked));
        Ok(())
    }

    /// Former replicas are stored before anything is scaled, so that they are never lost.
    async fn scale(
        &self,
        key: &Key,
        observed: &Observed,
        workloads: &[api::workspace::StoppedWorkload],
    ) -> Result<(), Trouble> {
        let plan = Plan { actions: vec![Action::Scale(workloads.to_vec())], ..Plan::default() };
        self.write_status(key, observed, &self.status(observed, &plan, &[Outcome::Failed])).await?;
        let (targets, acting, _) = self.targets(key, observed, Of::AllThere).await?;
        self.discovered.scale(&acting, &targets, workloads, MANAGER).await?;
        self.notes.lock().entry(key.clone()).or_default().replicas = None;
        Ok(())
    }

    /// What the server said against a look is worth remembering; that nobody answered is not.
    async fn told<T>(
        &self,
        key: &Key,
        observed: &Observed,
        result: Result<T, Trouble>,
    ) -> Result<Result<T, String>, Trouble> {
        match result {
            Ok(found) => Ok(Ok(found)),
            Err(Trouble::Client(kube::Error::Api(status))) => Ok(Err(self.redacted(key, observed, &status).await)),
            Err(trouble) => Err(trouble),
        }
    }

    /// Watches the kinds of these objects, and no longer those that nobody needs.
    pub(super) fn follow(&self, key: &Key, targets: &[Target]) {
        let kinds: Vec<GroupVersionKind> = targets.iter().map(|target| target.kind.clone()).collect();
        let former = self.indexes.kinds.things(key);
        self.indexes.kinds.set(key, kinds.iter().cloned());
        self.indexes.objects.set(key, targets.iter().map(|target| (target.kind.clone(), target.key.clone())));
        for kind in &kinds {
            self.watches.ensure(kind);
        }
        for kind in former.iter().filter(|kind| self.indexes.kinds.keys(kind).is_empty()) {
            self.watches.release(kind);
        }
    }
}

fn unreadable(release: &Key, revision: u32, why: Unreadable) -> Trouble {
    let name = storage::secret_name(&release.name, revision);
    let remedy = match why {
        Unreadable::Unknown => "restore the Secret, or delete it if the release may be made anew",
        Unreadable::TooLarge | Unreadable::TooMuch => {
            "make the chart smaller, or switch off what has to read it: spec.driftDetection"
        }
    };
    let message = format!("Helm's record of revision {revision} in Secret {name} cannot be read: {why}; {remedy}");
    Trouble::Refused(Why { reason: Reason::StateUnknown, message })
}

/// Which objects of a release.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    /// Those that its newest revision names.
    Newest,
    /// And those of the last good one, where the newest is not.
    AllThere,
}

/// Replicas of a stopped release are ours, not the chart's.
fn ignored(observed: &Observed) -> Vec<DriftIgnore> {
    let Some(spec) = &observed.subject.object().spec else { return Vec::new() };
    let stopped = spec.stopped.unwrap_or(false);
    let replicas = stopped.then(|| DriftIgnore { paths: vec!["/spec/replicas".to_owned()], target: None });
    spec.drift_ignore.iter().cloned().chain(replicas).collect()
}

/// Sorts a result into what the report must know and what ends the round.
fn executed(result: Result<(), Trouble>) -> Executed<Outcome> {
    let failed = |error| Executed { outcome: Outcome::Failed, error: Some(error) };
    match result {
        Ok(()) => Executed { outcome: Outcome::Done, error: None },
        Err(Trouble::Runtime(error)) => failed(error),
        Err(Trouble::Client(error)) => client_error(error),
        Err(Trouble::Outdated) => failed(Error::Outdated),
        Err(Trouble::Refused(why)) => Executed { outcome: Outcome::Rejected(why), error: Some(Error::Outdated) },
    }
}

fn client_error(error: kube::Error) -> Executed<Outcome> {
    let rejected = |reason, message: &str| Outcome::Rejected(Why { reason, message: message.to_owned() });
    let outcome = match &error {
        kube::Error::Api(status) if status.code == 403 => rejected(Reason::Forbidden, &status.message),
        kube::Error::Api(status) if matches!(status.code, 400 | 422) => {
            rejected(Reason::ObjectRejected, &status.message)
        }
        _ => Outcome::Failed,
    };
    Executed { outcome, error: Some(Error::of_client("act on", "release", error)) }
}
