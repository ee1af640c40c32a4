//! What helm gets for an operation. A round checks it before it announces the operation and keeps nothing of it; it is
//! read again when the operation's turn has come, so that what waits is small and what begins is not outdated.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    Identities,
    gather::sorted,
    identity::Credentials,
    live::Acting,
    release_key, storage,
    values::{self, Document},
    view,
};
use crate::{
    helm::{self, ChartRef, Charts, Class, Contents, Deploy, Failure, First, Found, Private, Unread, archive},
    workspace::Releases,
};
use api::{
    condition::Reason,
    workspace::{ChartReference, CrdPolicy, HelmRelease, HelmReleaseSpec, OperationKind, ValuesKind, ValuesSource},
};
use futures::FutureExt;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, PartialObjectMeta, Patch, PatchParams},
};
use plan::{
    Why,
    releases::{
        Desired, Former, MOST_REVISIONS, Operation, Policy, Stored, StoredStatus, Values, config_digest, removable,
        too_many_revisions, validate,
    },
};
use runtime::{Error, Fence, Key, Leadership, Writer};

/// Metadata of Secrets in one answer: some 2 KiB each, so that an answer stays below a megabyte.
const PAGE: u32 = 250;

/// All CRDs of a chart together; what a cluster stores of one is at most a megabyte.
const MAX_CRDS: u64 = 16 << 20;

/// Reads what helm gets.
pub(crate) struct Preparation {
    pub releases: Arc<Releases>,
    pub writer: Writer,
    pub charts: Charts,
    pub identities: Arc<Identities>,
    pub policy: Policy,
    pub leadership: Leadership,
}

impl Preparation {
    /// For the runner, to be called when the operation's turn has come.
    pub fn reading(self: &Arc<Self>, key: &Key, operation: &Operation) -> helm::Reading {
        let (preparation, key, operation) = (self.clone(), key.clone(), operation.clone());
        Box::new(move || {
            async move {
                let gone = || Unread::Outdated("the HelmRelease is gone".to_owned());
                let object = preparation.releases.get(&key).ok_or_else(gone)?;
                preparation.contents(&key, &object.value, &operation).await.map_err(unread)
            }
            .boxed()
        })
    }

    /// Everything for one operation, if what it was planned on is still so.
    pub async fn contents(&self, key: &Key, object: &HelmRelease, operation: &Operation) -> Result<Contents, Error> {
        let desired = self.desired(object, operation)?;
        let credentials = self.credentials(key, &desired, operation).await?;
        let mut contents = match operation.kind {
            OperationKind::Install | OperationKind::Upgrade => {
                let (values, secret_values) = self.checked_values(key, object, &desired, operation).await?;
                let (helm, first) = self.deployment(key, object, &desired, operation, &credentials).await?;
                let before = self.removal(object, operation).await?;
                Contents { values, secret_values, first, before, ..Contents::new(helm) }
            }
            _ => {
                let secret_values = self.secrets(&key.namespace, object).await?;
                Contents { secret_values, ..Contents::new(other_operation(&desired, operation)) }
            }
        };
        contents.kubeconfig = Some(credentials.kubeconfig);
        Ok(contents)
    }

    /// Helm's revisions, past the cache.
    pub async fn list_revisions(&self, release: &Key) -> Result<Vec<Stored>, Error> {
        list_revisions(self.writer.client(), release).await
    }

    /// The removal of a failed install, if that is still what is there.
    async fn removal(&self, object: &HelmRelease, operation: &Operation) -> Result<Option<helm::Operation>, Error> {
        if operation.former != Former::Uninstall {
            return Ok(None);
        }
        let stored = self.list_revisions(&release_key(object)).await?;
        let is_it = |newest: &Stored| newest.revision == operation.revision && newest.status == StoredStatus::Failed;
        if !stored.last().is_some_and(is_it) {
            return Err(Error::Outdated);
        }
        // Waited for, since what is still going would be taken over.
        Ok(Some(helm::Operation::Uninstall { keep_history: false, wait: true }))
    }

    pub fn desired(&self, object: &HelmRelease, operation: &Operation) -> Result<Desired, Error> {
        let desired = match operation.kind {
            OperationKind::Uninstall => removable(object, &self.policy),
            _ => validate(object, &self.policy).ok(),
        };
        desired.ok_or(Error::Outdated)
    }

    pub async fn credentials(&self, key: &Key, desired: &Desired, operation: &Operation) -> Result<Credentials, Error> {
        let account = desired.account.as_deref();
        self.identities.credentials(&key.namespace, account, operation.timeout).await
    }

    /// The values' files, if they still are what was planned on, and what of them must not be repeated.
    async fn checked_values(
        &self,
        key: &Key,
        object: &HelmRelease,
        desired: &Desired,
        operation: &Operation,
    ) -> Result<(Vec<Private>, Vec<Private>), Error> {
        let spec = object.spec.as_ref().ok_or(Error::Outdated)?;
        let documents = self.documents(spec, &key.namespace).await?;
        let sources = documents.iter().map(|document| document.source.clone()).collect();
        let Values::Read { digest, .. } = values::values(spec, sources) else { return Err(Error::Outdated) };
        let version = operation.chart_version.as_deref().unwrap_or_default();
        if config_digest(&desired.chart, version, &digest) != operation.digest {
            return Err(Error::Outdated);
        }
        let secrets = values::of_secrets(&documents);
        Ok((values::files(spec, documents), secrets))
    }

    /// What helm must not repeat of values that it was given before. A source that is gone has nothing to repeat.
    pub async fn secrets(&self, namespace: &str, object: &HelmRelease) -> Result<Vec<Private>, Error> {
        let mut documents = Documents::default();
        for source in object.spec.iter().flat_map(|spec| &spec.values_from) {
            if let Ok(document) = self.document(source, namespace).await? {
                documents.add(document)?;
            }
        }
        Ok(values::of_secrets(&documents.all))
    }

    /// All sources of the values.
    async fn documents(&self, spec: &HelmReleaseSpec, namespace: &str) -> Result<Vec<Document>, Error> {
        let mut documents = Documents::default();
        for source in &spec.values_from {
            let document = self.document(source, namespace).await?;
            documents.add(document.map_err(|_| Error::Outdated)?)?;
        }
        Ok(documents.all)
    }

    pub async fn document(&self, source: &ValuesSource, namespace: &str) -> Result<Result<Document, Values>, Error> {
        let key = Key::new(namespace, source.name.as_str());
        let object = match source.kind {
            ValuesKind::Secret => self.writer.read("secrets", &key).await?.map(values::of_secret),
            ValuesKind::ConfigMap => self.writer.read("configmaps", &key).await?.map(values::of_config_map),
        };
        Ok(values::read(source, object))
    }

    /// Where the chart is, with credentials from its Secret. The error says what is missing.
    pub async fn chart_reference(
        &self,
        chart: &ChartReference,
        namespace: &str,
    ) -> Result<Result<ChartRef, String>, Error> {
        let mut data = BTreeMap::new();
        if let Some(reference) = &chart.secret_ref {
            let key = Key::new(namespace, reference.name.as_str());
            let Some(secret) = self.writer.read::<Secret>("secrets", &key).await? else {
                return Ok(Err(format!("Secret {} of spec.chart.secretRef does not exist; create it", reference.name)));
            };
            data = secret.data.unwrap_or_default();
        }
        Ok(ChartRef::new(chart, data))
    }

    /// An install or upgrade, and what must be done before it.
    async fn deployment(
        &self,
        key: &Key,
        object: &HelmRelease,
        desired: &Desired,
        operation: &Operation,
        credentials: &Credentials,
    ) -> Result<(helm::Operation, Option<First>), Error> {
        let wanted = self.chart_reference(&desired.chart, &key.namespace).await?.map_err(no_chart)?;
        let chart = match self.charts.find(&release_key(object), &wanted) {
            Found::Ready(chart) | Found::Aging(chart) if Some(&chart.version) == operation.chart_version.as_ref() => {
                chart
            }
            Found::Ready(_) | Found::Aging(_) | Found::Working => return Err(Error::Outdated),
            Found::Failed(failure) => return Err(no_chart(failure.message)),
        };
        let first = (desired.crds == CrdPolicy::CreateReplace).then(|| {
            let (client, timeout, chart) = (credentials.client.clone(), self.writer.timeout, chart.clone());
            let fence = Fence::of_lead(self.leadership.clone(), operation.timeout);
            let replace = move || {
                let replaced = async move {
                    let acting = Acting { client, fence: &fence, timeout };
                    replace_crds(&acting, &chart).await.map_err(|error| unapplied(&error))
                };
                replaced.boxed()
            };
            Box::new(replace) as First
        });
        let deploy = Deploy {
            chart,
            wait: operation.wait,
            history_max: desired.max_history,
            skip_crds: desired.crds != CrdPolicy::Create,
            force_conflicts: true,
        };
        let helm = match operation.kind {
            OperationKind::Install => helm::Operation::Install(deploy),
            _ => helm::Operation::Upgrade(deploy),
        };
        Ok((helm, first))
    }
}

/// Helm's revisions, in pages. Of too many none are given: which is the newest would be unknown.
async fn list_revisions(client: Client, release: &Key) -> Result<Vec<Stored>, Error> {
    let secrets: Api<Secret> = Api::namespaced(client, &release.namespace);
    let mut params = ListParams::default().labels(&format!("owner=helm,name={}", release.name)).limit(PAGE);
    let revision = |secret: PartialObjectMeta<Secret>| view::revision(&secret.metadata).map(|(_, stored)| stored);
    // Secrets that are labelled as Helm's and hold no revision count as well: listing them costs as much.
    let (mut stored, mut listed) = (Vec::new(), 0);
    loop {
        let list = secrets.list_metadata(&params).await.map_err(|error| Error::of_client("list", "secrets", error))?;
        listed += list.items.len();
        if listed > MOST_REVISIONS {
            return Err(Error::Refused(too_many_revisions(&release.namespace, &release.name)));
        }
        stored.extend(list.items.into_iter().filter_map(revision));
        params.continue_token = list.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            return Ok(sorted(stored));
        }
    }
}

/// What the runner makes of an error while reading. What is refused by now is refused by the next round, with its reason.
fn unread(error: Error) -> Unread {
    match error {
        Error::Outdated => Unread::Outdated("the chart or the values changed while the operation waited".to_owned()),
        Error::Refused(why) => Unread::Outdated(why.message),
        other => Unread::Failed(unapplied(&other)),
    }
}

fn unapplied(error: &Error) -> Failure {
    let class = match (error.status().map(|status| status.code), error) {
        (Some(403), _) => Class::Forbidden,
        (Some(400 | 422), _) | (_, Error::Refused(_)) => Class::Other,
        (_, Error::Outdated | Error::LeadLost) => Class::Cancelled,
        _ => Class::Unreachable,
    };
    let message = error.status().map_or_else(|| error.to_string(), |status| status.message.clone());
    Failure { class, message }
}

/// Documents of values, read one after another.
#[derive(Default)]
struct Documents {
    all: Vec<Document>,
    bytes: usize,
}

impl Documents {
    /// They are in memory, and as files in what may be memory, while their operation runs.
    const MAX_BYTES: usize = 2 << 20;

    fn add(&mut self, document: Document) -> Result<(), Error> {
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

async fn replace_crds(acting: &Acting<'_>, chart: &helm::Chart) -> Result<(), Error> {
    let path = chart.path.clone();
    // Anything may be in these files, megabytes of it.
    let read = tokio::task::spawn_blocking(move || {
        let files = archive::crds(&path, MAX_CRDS).map_err(|error| no_chart(error.to_string()))?;
        files.iter().map(|file| storage::definitions(file).ok_or_else(no_definitions)).collect::<Result<Vec<_>, _>>()
    });
    let definitions = read.await.map_err(|_| Error::Outdated)??;
    let kind = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let crds: Api<DynamicObject> = Api::all_with(acting.client.clone(), &ApiResource::from_gvk(&kind));
    for definition in definitions.concat() {
        let read = storage::with_tree(&definition, |tree| {
            let name = tree["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            (name, storage::request(&tree))
        });
        let (name, text) = read.await.ok_or_else(no_definitions)?;
        let text = text.ok_or_else(no_definitions)?;
        let params = PatchParams::apply("helm").force();
        acting.ask(crds.patch(&name, &params, &Patch::Apply(&text))).await?;
    }
    Ok(())
}

fn no_definitions() -> Error {
    no_chart(format!(
        "a file in the chart's crds folder is not YAML, one definition in it is too large, or it has more than {} objects",
        storage::MAX_OBJECTS
    ))
}

fn no_chart(message: String) -> Error {
    Error::Refused(Why { reason: Reason::ChartUnavailable, message })
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    };

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// A server with so many of Helm's Secrets, and how often it was asked.
    fn server(count: usize) -> (Client, Arc<AtomicUsize>) {
        let (asked, places) = (Arc::<AtomicUsize>::default(), Arc::new(Mutex::new(0)));
        let requests = asked.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            requests.fetch_add(1, Ordering::Relaxed);
            assert!(request.uri().query().is_some_and(|query| query.contains("limit=250")), "{}", request.uri());
            let mut place = places.lock().unwrap();
            let page = *place..count.min(*place + 250);
            *place = page.end;
            let item = |number: usize| {
                let labels =
                    json!({ "owner": "helm", "name": "web", "status": "superseded", "version": number.to_string() });
                json!({ "metadata": { "name": format!("sh.helm.release.v1.web.v{number}"), "labels": labels } })
            };
            let token = if page.end < count { "more" } else { "" };
            let items: Vec<_> = page.map(item).collect();
            let list = json!({
                "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
                "metadata": { "continue": token }, "items": items,
            });
            async move { Ok::<_, kube::Error>(Response::new(Body::from(list.to_string().into_bytes()))) }
        });
        (Client::new(service, "team"), asked)
    }

    #[tokio::test]
    async fn revisions_are_listed_in_pages_and_too_many_are_refused() {
        let release = Key::new("team", "web");
        let (client, asked) = server(600);
        let revisions = list_revisions(client, &release).await.unwrap();
        assert_eq!((revisions.len(), asked.load(Ordering::Relaxed)), (600, 3));
        assert!(revisions.is_sorted_by_key(|stored| stored.revision));
        let (client, asked) = server(100_000);
        let Err(Error::Refused(why)) = list_revisions(client, &release).await else { panic!("it is not refused") };
        assert_eq!((why.reason, asked.load(Ordering::Relaxed)), (Reason::StateUnknown, 5));
    }
}
