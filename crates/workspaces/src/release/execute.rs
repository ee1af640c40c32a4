//! The effects of a HelmRelease's plan.

use std::time::Duration;

use api::condition::Reason;
use api::workspace::{CrdPolicy, DriftIgnore, HelmReleaseSpec, OperationKind};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{DynamicObject, GroupVersionKind, Patch, PatchParams},
    core::Status,
};
use plan::{
    Plan, Why,
    releases::{Action, Desired, Drift, Known, Operation, Outcome, Values, last_good, removable, validate},
};
use runtime::{Error, Executed, Key};
use serde_json::{Value, json};

use super::{
    Looked, Observed, ReleaseLayer,
    identity::Credentials,
    live::{self, Acting, Target},
    storage, values,
};
use crate::{
    LOSS_MARGIN, MANAGER,
    helm::{self, Deploy, Found, Request, archive},
};

/// All CRDs of a chart together; what a cluster stores of one is at most a megabyte.
const MAX_CRDS: u64 = 16 << 20;

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
        match self.secrets(key, observed).await {
            Ok(documents) => helm::redact(&status.message, &helm::secrets_in(&documents).collect::<Vec<_>>()),
            Err(_) => status.reason.clone(),
        }
    }

    /// Everything that can fail comes first; then the operation is stored as begun, and then it begins.
    async fn start(&self, key: &Key, observed: &Observed, operation: &Operation) -> Result<(), Trouble> {
        let desired = match operation.kind {
            OperationKind::Uninstall => removable(observed.subject.object()),
            _ => validate(observed.subject.object(), &self.policy).ok(),
        };
        let desired = desired.ok_or(Trouble::Outdated)?;
        let request = self.request(key, observed, &desired, operation).await?;
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
        // Budgets were checked before, so what is refused now is refused because the process ends.
        self.runner.submit(request).map_err(|_| Trouble::Outdated)
    }

    async fn request(
        &self,
        key: &Key,
        observed: &Observed,
        desired: &Desired,
        operation: &Operation,
    ) -> Result<Request, Trouble> {
        let account = desired.account.as_deref();
        let credentials = self.identities.credentials(&key.namespace, account, operation.timeout).await?;
        if operation.kind == OperationKind::Uninstall && account.is_some() {
            self.check_removal(observed, &credentials).await?;
        }
        let is_deployment = matches!(operation.kind, OperationKind::Install | OperationKind::Upgrade);
        let (helm, (values, secret_values)) = if is_deployment {
            let values = self.checked_values(key, observed).await?;
            let deploy = self.deploy(key, desired, operation, &credentials, observed).await?;
            let helm = match operation.kind {
                OperationKind::Install => helm::Operation::Install(deploy),
                _ => helm::Operation::Upgrade(deploy),
            };
            (helm, values)
        } else {
            (other_operation(desired, operation), (Vec::new(), self.secrets(key, observed).await?))
        };
        Ok(Request {
            key: observed.release.clone(),
            operation: helm,
            label: operation.label().into(),
            values,
            start_by: Some(credentials.start_by(operation.timeout)),
            kubeconfig: Some(credentials.kubeconfig),
            files: Vec::new(),
            timeout: operation.timeout,
            memory: desired.memory,
            secrets: Vec::new(),
            secret_values,
        })
    }

    /// The values' files, if they still are what was planned on, and what of them must be said nowhere.
    async fn checked_values(
        &self,
        key: &Key,
        observed: &Observed,
    ) -> Result<(Vec<helm::Private>, Vec<helm::Private>), Trouble> {
        let spec = observed.subject.object().spec.as_ref().ok_or(Trouble::Outdated)?;
        let documents = self.documents(spec, &key.namespace).await?;
        let sources = documents.iter().map(|document| document.source.clone()).collect();
        let digest = |values: &Values| match values {
            Values::Read { digest, .. } => Some(digest.clone()),
            _ => None,
        };
        if digest(&values::values(spec, sources)) != digest(&observed.surroundings.values) {
            return Err(Trouble::Outdated);
        }
        let secrets = values::of_secrets(&documents);
        Ok((values::files(spec, documents), secrets))
    }

    /// What helm must not repeat of values that it was given before. A source that is gone tells nothing any more.
    async fn secrets(&self, key: &Key, observed: &Observed) -> Result<Vec<helm::Private>, Trouble> {
        let mut documents = Documents::default();
        for source in observed.subject.object().spec.iter().flat_map(|spec| &spec.values_from) {
            if let Ok(document) = self.document(source, &key.namespace).await? {
                documents.add(document)?;
            }
        }
        Ok(values::of_secrets(&documents.all))
    }

    /// All sources of the values.
    async fn documents(&self, spec: &HelmReleaseSpec, namespace: &str) -> Result<Vec<values::Document>, Trouble> {
        let mut documents = Documents::default();
        for source in &spec.values_from {
            let document = self.document(source, namespace).await?;
            documents.add(document.map_err(|_| Trouble::Outdated)?)?;
        }
        Ok(documents.all)
    }

    async fn deploy(
        &self,
        key: &Key,
        desired: &Desired,
        operation: &Operation,
        credentials: &Credentials,
        observed: &Observed,
    ) -> Result<Deploy, Trouble> {
        let wanted = self.chart_reference(desired, &key.namespace).await?.map_err(no_chart)?;
        let chart = match self.charts.find(&observed.release, &wanted) {
            Found::Ready(chart) | Found::Aging(chart) if Some(&chart.version) == operation.chart_version.as_ref() => {
                chart
            }
            Found::Ready(_) | Found::Aging(_) | Found::Working => return Err(Trouble::Outdated),
            Found::Failed(failure) => return Err(no_chart(failure.message)),
        };
        if desired.crds == CrdPolicy::CreateReplace {
            let path = chart.path.clone();
            let read = tokio::task::spawn_blocking(move || archive::crds(&path, MAX_CRDS)).await;
            let crds = read.map_err(|_| Trouble::Outdated)?.map_err(|error| no_chart(error.to_string()))?;
            apply_crds(&self.acting(credentials), &crds).await?;
        }
        Ok(Deploy {
            chart,
            wait: operation.wait,
            history_max: desired.max_history,
            skip_crds: desired.crds != CrdPolicy::Create,
            force_conflicts: true,
        })
    }

    /// Marks a revision that nobody works on as failed. Gone or changed meanwhile is for the next round to see.
    async fn unlock(&self, release: &Key, revision: u32, uid: &str, version: &str) -> Result<(), Trouble> {
        let record = self.record(release, revision).await?;
        let secrets: Api<Secret> = Api::namespaced(self.writer.client(), &release.namespace);
        let patch = storage::failed(record, uid, version);
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let name = storage::secret_name(&release.name, revision);
        // In the operator's own name.
        let acting = Acting { client: self.writer.client(), writer: &self.writer };
        match acting.ask(secrets.patch_metadata(&name, &params, &Patch::Merge(patch))).await {
            Err(Trouble::Client(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => {
                Err(Trouble::Outdated)
            }
            Err(trouble) => Err(trouble),
            Ok(_) => Ok(()),
        }
    }

    /// Helm's whole record of a revision.
    async fn record(&self, release: &Key, revision: u32) -> Result<storage::Record, Trouble> {
        let secret = self.stored_in(release, revision).await?.ok_or(Trouble::Outdated)?;
        storage::decode(&secret).ok_or_else(|| {
            let name = storage::secret_name(&release.name, revision);
            let message = format!(
                "Helm's record of revision {revision} cannot be read; restore the Secret {name}, or delete it if the release may be made anew"
            );
            Trouble::Refused(Why { reason: Reason::StateUnknown, message })
        })
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
        let targets = self.objects_of(&observed.release, newest.revision).await?;
        let Some(what) = self.discovered.undeletable(&self.acting(credentials), &targets).await? else { return Ok(()) };
        let message = format!(
            "the ServiceAccount that helm acts as may not {what}, so that the uninstall would leave it behind; grant it"
        );
        Err(Trouble::Refused(Why { reason: Reason::Forbidden, message }))
    }

    async fn objects_of(&self, release: &Key, revision: u32) -> Result<Vec<Target>, Trouble> {
        let record = self.record(release, revision).await?;
        Ok(live::targets(storage::manifest(&record), release))
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
        let mut targets = self.objects_of(&observed.release, newest.revision).await?;
        // What failed may have left in place what was there before.
        let before = last_good(stored).filter(|good| of == Of::AllThere && good.revision != newest.revision);
        if let Some(good) = before {
            let former = self.objects_of(&observed.release, good.revision).await?;
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

/// Which objects of a release.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    /// Those that its newest revision names.
    Newest,
    /// And those of the last good one, where the newest is not.
    AllThere,
}

/// Documents of values, read one after another.
#[derive(Default)]
struct Documents {
    all: Vec<values::Document>,
    bytes: usize,
}

impl Documents {
    /// They wait in memory for as long as their operation does.
    const MAX_BYTES: usize = 2 << 20;

    fn add(&mut self, document: values::Document) -> Result<(), Trouble> {
        self.bytes += document.content.as_ref().map_or(0, |content| content.expose().len());
        if self.bytes > Self::MAX_BYTES {
            let message =
                "the sources of spec.valuesFrom hold more than 2 MiB together; values are configuration, not data";
            return Err(Trouble::Refused(Why { reason: Reason::ValuesInvalid, message: message.to_owned() }));
        }
        self.all.push(document);
        Ok(())
    }
}

/// Replicas of a stopped release are ours, not the chart's.
fn ignored(observed: &Observed) -> Vec<DriftIgnore> {
    let Some(spec) = &observed.subject.object().spec else { return Vec::new() };
    let stopped = spec.stopped.unwrap_or(false);
    let replicas = stopped.then(|| DriftIgnore { paths: vec!["/spec/replicas".to_owned()], target: None });
    spec.drift_ignore.iter().cloned().chain(replicas).collect()
}

fn other_operation(desired: &Desired, operation: &Operation) -> helm::Operation {
    match operation.kind {
        OperationKind::Rollback => helm::Operation::Rollback {
            revision: operation.to_revision.unwrap_or(0),
            wait: operation.wait,
            history_max: desired.max_history,
            force_conflicts: true,
        },
        OperationKind::Uninstall => {
            helm::Operation::Uninstall { keep_history: desired.keep_history, wait: operation.wait }
        }
        _ => helm::Operation::Test,
    }
}

async fn apply_crds(acting: &Acting<'_>, files: &[String]) -> Result<(), Trouble> {
    let crds: Api<DynamicObject> = Api::all_with(
        acting.client.clone(),
        &kube::api::ApiResource::from_gvk(&GroupVersionKind::gvk(
            "apiextensions.k8s.io",
            "v1",
            "CustomResourceDefinition",
        )),
    );
    for file in files {
        let documents = serde_saphyr::from_multiple::<Value>(file)
            .map_err(|_| no_chart("a file in the chart's crds folder is not YAML".to_owned()))?;
        for document in documents.iter().filter(|document| document["kind"] == "CustomResourceDefinition") {
            let name = document["metadata"]["name"].as_str().unwrap_or_default();
            let params = PatchParams::apply("helm").force();
            acting.ask(crds.patch(name, &params, &Patch::Apply(document))).await?;
        }
    }
    Ok(())
}

fn no_chart(message: String) -> Trouble {
    Trouble::Refused(Why { reason: Reason::ChartUnavailable, message })
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
