//! The effects of a HelmRelease's plan.

use api::condition::Reason;
use api::workspace::{CrdPolicy, HelmRelease, HelmReleaseSpec, OperationKind};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{DynamicObject, GroupVersionKind, Patch, PatchParams},
    core::Status,
};
use plan::{
    Why,
    releases::{Action, Answer, Desired, Operation, Values, config_digest, removable, validate},
};
use runtime::{Class, Error, Fence, Key, Turn};
use serde_json::{Value, json};

use super::{
    ReleaseController,
    fetch::{Of, ignored},
    identity::Credentials,
    live::{Acting, Target},
    release_key, storage, values,
};
use crate::{
    LOSS_MARGIN, MANAGER,
    helm::{self, Deploy, Found, Request, archive},
};

/// All CRDs of a chart together; what a cluster stores of one is at most a megabyte.
const MAX_CRDS: u64 = 16 << 20;

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
            Action::Start(operation) => self.start(turn, operation).await,
            Action::Cancel => {
                self.runner.cancel(&release);
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
        match result {
            Err(error) if action.needs_identity() => Err(self.explained(object, error).await),
            result => result,
        }
    }

    /// A refusal in the words of the status. The API server quotes what it refuses, and that may be made of values.
    async fn explained(&self, object: &HelmRelease, error: Error) -> Error {
        let Some(status) = error.status() else { return error };
        let reason = match status.code {
            403 => Reason::Forbidden,
            400 | 422 => Reason::ObjectRejected,
            _ => return error,
        };
        Error::Refused(Why { reason, message: self.redacted(object, status).await })
    }

    /// What the server said, without what came from Secrets.
    pub(super) async fn redacted(&self, object: &HelmRelease, status: &Status) -> String {
        match self.secrets(object).await {
            Ok(documents) => helm::redact(&status.message, &helm::secrets_in(&documents).collect::<Vec<_>>()),
            Err(_) => status.reason.clone(),
        }
    }

    /// Hands the operation to the runner. That it begins is stored already.
    async fn start(&self, turn: &Turn<'_, Self>, operation: &Operation) -> Result<(), Error> {
        let object = turn.subject.object();
        let desired = match operation.kind {
            OperationKind::Uninstall => removable(object),
            _ => validate(object, &self.policy).ok(),
        };
        let desired = desired.ok_or(Error::Outdated)?;
        let request = self.request(turn, &desired, operation).await?;
        tracing::debug!(operation = operation.kind.as_str(), release = %request.key, "helm operation begins");
        // Children of a leader that is about to be none are ended, so none is begun any more.
        if turn.fence.check()? <= 2 * LOSS_MARGIN {
            return Err(Error::LeadLost);
        }
        // Budgets were checked before, so what is refused now is refused because the process ends.
        self.runner.submit(request).map_err(|_| Error::Outdated)
    }

    async fn request(&self, turn: &Turn<'_, Self>, desired: &Desired, operation: &Operation) -> Result<Request, Error> {
        let (object, namespace) = (turn.subject.object(), &turn.key.namespace);
        let account = desired.account.as_deref();
        let credentials = self.identities.credentials(namespace, account, operation.timeout).await?;
        if operation.kind == OperationKind::Uninstall && account.is_some() {
            self.check_removal(object, &credentials, turn.fence).await?;
        }
        let is_deployment = matches!(operation.kind, OperationKind::Install | OperationKind::Upgrade);
        let (helm, (values, secret_values)) = if is_deployment {
            let values = self.checked_values(object, desired, operation).await?;
            let deploy = self.deploy(object, desired, operation, &credentials, turn.fence).await?;
            let helm = match operation.kind {
                OperationKind::Install => helm::Operation::Install(deploy),
                _ => helm::Operation::Upgrade(deploy),
            };
            (helm, values)
        } else {
            (other_operation(desired, operation), (Vec::new(), self.secrets(object).await?))
        };
        Ok(Request {
            key: release_key(object),
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
        object: &HelmRelease,
        desired: &Desired,
        operation: &Operation,
    ) -> Result<(Vec<helm::Private>, Vec<helm::Private>), Error> {
        let spec = object.spec.as_ref().ok_or(Error::Outdated)?;
        let documents = self.documents(spec, namespace_of(object)).await?;
        let sources = documents.iter().map(|document| document.source.clone()).collect();
        let Values::Read { digest, .. } = values::values(spec, sources) else { return Err(Error::Outdated) };
        let version = operation.chart_version.as_deref().unwrap_or_default();
        if config_digest(&desired.chart, version, &digest) != operation.digest {
            return Err(Error::Outdated);
        }
        let secrets = values::of_secrets(&documents);
        Ok((values::files(spec, documents), secrets))
    }

    /// What helm must not repeat of values that it was given before. A source that is gone tells nothing any more.
    async fn secrets(&self, object: &HelmRelease) -> Result<Vec<helm::Private>, Error> {
        let mut documents = Documents::default();
        for source in object.spec.iter().flat_map(|spec| &spec.values_from) {
            if let Ok(document) = self.document(source, namespace_of(object)).await? {
                documents.add(document)?;
            }
        }
        Ok(values::of_secrets(&documents.all))
    }

    /// All sources of the values.
    async fn documents(&self, spec: &HelmReleaseSpec, namespace: &str) -> Result<Vec<values::Document>, Error> {
        let mut documents = Documents::default();
        for source in &spec.values_from {
            let document = self.document(source, namespace).await?;
            documents.add(document.map_err(|_| Error::Outdated)?)?;
        }
        Ok(documents.all)
    }

    async fn deploy(
        &self,
        object: &HelmRelease,
        desired: &Desired,
        operation: &Operation,
        credentials: &Credentials,
        fence: &Fence,
    ) -> Result<Deploy, Error> {
        let wanted = self.chart_reference(&desired.chart, namespace_of(object)).await?.map_err(no_chart)?;
        let chart = match self.charts.find(&release_key(object), &wanted) {
            Found::Ready(chart) | Found::Aging(chart) if Some(&chart.version) == operation.chart_version.as_ref() => {
                chart
            }
            Found::Ready(_) | Found::Aging(_) | Found::Working => return Err(Error::Outdated),
            Found::Failed(failure) => return Err(no_chart(failure.message)),
        };
        if desired.crds == CrdPolicy::CreateReplace {
            let path = chart.path.clone();
            let read = tokio::task::spawn_blocking(move || archive::crds(&path, MAX_CRDS)).await;
            let crds = read.map_err(|_| Error::Outdated)?.map_err(|error| no_chart(error.to_string()))?;
            apply_crds(&self.acting(credentials, fence), &crds).await?;
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
    async fn unlock(&self, release: &Key, revision: u32, uid: &str, version: &str, fence: &Fence) -> Result<(), Error> {
        let record = self.record(release, revision).await?;
        let secrets: Api<Secret> = Api::namespaced(self.writer.client(), &release.namespace);
        let patch = storage::failed(record, uid, version);
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let name = storage::secret_name(&release.name, revision);
        // In the operator's own name.
        let acting = Acting { client: self.writer.client(), fence, timeout: self.writer.timeout };
        match acting.ask(secrets.patch_metadata(&name, &params, &Patch::Merge(patch))).await {
            Err(error) if error.class() == Class::Conflict => Err(Error::Outdated),
            result => result.map(drop),
        }
    }

    /// Helm's whole record of a revision.
    pub(super) async fn record(&self, release: &Key, revision: u32) -> Result<storage::Record, Error> {
        let secret = self.stored_in(release, revision).await?.ok_or(Error::Outdated)?;
        storage::decode(&secret).ok_or_else(|| {
            let name = storage::secret_name(&release.name, revision);
            let message = format!(
                "Helm's record of revision {revision} cannot be read; restore the Secret {name}, or delete it if the release may be made anew"
            );
            Error::Refused(Why { reason: Reason::StateUnknown, message })
        })
    }

    pub(super) fn acting<'a>(&self, credentials: &Credentials, fence: &'a Fence) -> Acting<'a> {
        Acting { client: credentials.client.clone(), fence, timeout: self.writer.timeout }
    }

    /// Helm leaves behind what it may not look at, and forgets the release all the same.
    async fn check_removal(&self, object: &HelmRelease, credentials: &Credentials, fence: &Fence) -> Result<(), Error> {
        let release = release_key(object);
        // With its namespace everything goes, whoever may do what.
        let Answer::NamespaceTerminating(false) = self.is_terminating(&release.namespace).await? else {
            return Ok(());
        };
        let Some(newest) = self.cached_revisions(&release).last().map(|newest| newest.revision) else { return Ok(()) };
        let targets = self.objects_of(&release, newest).await?;
        let acting = self.acting(credentials, fence);
        let Some(what) = self.discovered.undeletable(&acting, &targets).await? else { return Ok(()) };
        let message = format!(
            "the ServiceAccount that helm acts as may not {what}, so that the uninstall would leave it behind; grant it"
        );
        Err(Error::Refused(Why { reason: Reason::Forbidden, message }))
    }

    /// Watches the kinds of these objects, and no longer those that no release needs.
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

fn namespace_of(object: &HelmRelease) -> &str {
    object.metadata.namespace.as_deref().unwrap_or_default()
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

    fn add(&mut self, document: values::Document) -> Result<(), Error> {
        self.bytes += document.content.as_ref().map_or(0, |content| content.expose().len());
        if self.bytes > Self::MAX_BYTES {
            let message =
                "the sources of spec.valuesFrom hold more than 2 MiB together; values are configuration, not data";
            return Err(Error::Refused(Why { reason: Reason::ValuesInvalid, message: message.to_owned() }));
        }
        self.all.push(document);
        Ok(())
    }
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

async fn apply_crds(acting: &Acting<'_>, files: &[String]) -> Result<(), Error> {
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

fn no_chart(message: String) -> Error {
    Error::Refused(Why { reason: Reason::ChartUnavailable, message })
}
