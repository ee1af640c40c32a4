//! Facts about a HelmRelease. Nothing here writes; what the caches tell is not asked for.

use std::{sync::Mutex, time::Duration};

use api::{
    condition::{ConditionStatus, ConditionType},
    workspace::{
        HelmRelease, HelmReleaseSpec, LABEL_WORKSPACE, OperationKind, RECONCILE_ANNOTATION, ReadValues, ValuesKind,
        ValuesSource,
    },
};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::{
    Api,
    api::{ListParams, PartialObjectMeta},
};
use plan::releases::{
    self, Chart, Dependency, Desired, Drift, Ended, FailureClass, Identity, Job, Known, Replicas, Stored, StoredStatus,
    Values, last_good, reference_digest, validate,
};
use runtime::{Error, Key, Metadata, Subject};

use super::{
    Looked, Observed, ReleaseLayer, release_key,
    storage::{self, Detail, secret_name},
    values, view,
};
use crate::helm::{self, Class, Found};

/// How long a look at objects that no watch tells of is believed.
const UNHEARD: Duration = Duration::from_secs(15);

/// A read past the cache; the round is repeated without it.
const READ_PATIENCE: Duration = Duration::from_secs(10);

impl ReleaseLayer {
    pub(super) async fn observe(&self, key: &Key) -> Result<Option<Observed>, Error> {
        self.releases.settle(key).await?;
        let Some(object) = self.releases.get(key) else {
            self.forget(key);
            return Ok(None);
        };
        let release = release_key(&object.value);
        let desired = validate(&object.value, &self.policy).ok();
        let rival = self.rival(key, &object.value, &release);
        // What the runner does for a release is the business of the one that keeps it.
        let job = if rival.is_none() { self.job(&object.value, &release) } else { Job::Idle };
        let storage = self.storage(&object.value, &release, &job).await;
        let values = match &object.value.spec {
            Some(spec) => self.values(&object.value, spec, &key.namespace).await?,
            None => Values::Missing("spec".to_owned()),
        };
        let is_deleting = object.value.metadata.deletion_timestamp.is_some();
        let mut surroundings = releases::Observed {
            storage,
            values,
            chart: Chart::Fetching,
            job,
            dependencies: self.dependencies(key, desired.as_ref()),
            cycle: desired.as_ref().and_then(|desired| self.cycle(key, desired)),
            identity: Identity::Usable,
            drift: Drift::NotLooked,
            is_drift_heard: self.indexes.kinds.things(key).iter().all(|kind| self.watches.readiness(kind).is_ok()),
            workloads: Replicas::NotLooked,
            holds_data: None,
            is_namespace_terminating: is_deleting && self.is_terminating(&release.namespace).await?,
            rival,
        };
        self.remembered(key, desired.as_ref(), &mut surroundings);
        if let Some(desired) = desired.as_ref().filter(|_| !is_deleting) {
            surroundings.chart = self.chart(key, &object.value, desired, &surroundings).await?;
        }
        // Asked for only where it will be used: a settled release costs no request.
        let plan = releases::plan(&object.value, &surroundings, self.clock.now(), &self.policy);
        if plan.actions.iter().any(releases::Action::needs_identity)
            && let Some(desired) = &desired
        {
            surroundings.identity = self.identities.check(&key.namespace, desired.account.as_deref()).await;
        }
        surroundings.holds_data = self.holds_data(&object.value, &release, &surroundings).await?;
        Ok(Some(Observed { subject: Subject::new(object), release, surroundings, written: Mutex::default() }))
    }

    fn forget(&self, key: &Key) {
        self.notes.lock().remove(key);
        self.follow(key, &[]);
    }

    /// What the runner does for the release. The operation itself is in status, where it was stored before it began.
    fn job(&self, object: &HelmRelease, release: &Key) -> Job {
        let operation = object.status.as_ref().and_then(|status| status.operation.as_ref());
        let kind = operation.map_or(OperationKind::Upgrade, |operation| operation.kind);
        match (self.runner.state(release), operation) {
            (helm::State::Idle, _) => Job::Idle,
            (helm::State::Waiting, _) => Job::Waiting(kind),
            (helm::State::Running { is_ending: false, .. }, _) => Job::Running(kind),
            (helm::State::Running { is_ending: true, .. }, _) => Job::Ending(kind),
            (helm::State::Finished(finished), Some(operation))
                if *finished.label == *releases::Operation::from(operation).label() =>
            {
                Job::Finished(Ended { operation: operation.into(), result: finished.result.clone().map_err(failure) })
            }
            // Its end was stored already, or it is of an operation that another replica has overtaken.
            (helm::State::Finished(_), _) => {
                self.runner.take(release);
                Job::Idle
            }
        }
    }

    /// Helm's revisions. The cache may lag behind what helm has just written, so after an operation, and where the
    /// cache would make us act, the server is asked.
    async fn storage(&self, object: &HelmRelease, release: &Key, job: &Job) -> Known<Vec<Stored>> {
        let cached = self.cached_revisions(release);
        let newest = cached.last();
        // By its uid: numbers begin anew with an install that uninstalls a failed one first.
        let known = object.status.as_ref().and_then(|status| status.history.first());
        let is_behind = known.is_some_and(|known| {
            let is_it = |stored: &Stored| Some(&stored.uid) == known.secret_uid.as_ref();
            newest.map_or(0, |newest| newest.revision) < known.revision || !cached.iter().any(is_it)
        });
        let is_unfinished =
            newest.is_some_and(|newest| newest.status.is_pending() || newest.status == StoredStatus::Uninstalling);
        let is_leaving = object.metadata.deletion_timestamp.is_some() && matches!(job, Job::Idle);
        if !(matches!(job, Job::Finished(_)) || is_behind || is_leaving || (is_unfinished && matches!(job, Job::Idle)))
        {
            return Known::Yes(cached);
        }
        match tokio::time::timeout(READ_PATIENCE, self.list_revisions(release)).await {
            Ok(Ok(stored)) => Known::Yes(stored),
            Ok(Err(error)) => Known::No(format!("Helm's storage Secrets cannot be listed: {error}")),
            Err(_) => Known::No("Helm's storage Secrets cannot be listed: no answer".to_owned()),
        }
    }

    fn cached_revisions(&self, release: &Key) -> Vec<Stored> {
        let secrets = self.indexes.revisions.keys(release);
        let revision = |key: &Key| self.secrets.get(key)?.value.revision.as_ref().map(|found| found.1.clone());
        sorted(secrets.iter().filter_map(revision).collect())
    }

    async fn list_revisions(&self, release: &Key) -> Result<Vec<Stored>, kube::Error> {
        let secrets: Api<Secret> = Api::namespaced(self.writer.client.clone(), &release.namespace);
        let params = ListParams::default().labels(&format!("owner=helm,name={}", release.name));
        let list = secrets.list_metadata(&params).await?;
        let revision = |secret: PartialObjectMeta<Secret>| view::revision(&secret.metadata).map(|(_, stored)| stored);
        Ok(sorted(list.items.into_iter().filter_map(revision).collect()))
    }

    /// Digests of all sources; a source is read only if it changed since status noted it.
    async fn values(&self, object: &HelmRelease, spec: &HelmReleaseSpec, namespace: &str) -> Result<Values, Error> {
        let mut sources = Vec::new();
        for source in &spec.values_from {
            let noted = object.status.as_ref().and_then(|status| {
                let is_it = |noted: &&ReadValues| {
                    (noted.kind, &noted.name, noted.key.as_str()) == (source.kind, &source.name, source.key())
                };
                status.values_from.iter().find(is_it)
            });
            let version = self.source_version(source, namespace).unwrap_or_default();
            // Whether what was not there may be missing is for the source to say, which may have changed.
            let is_settled = |noted: &&ReadValues| {
                noted.version == version && (!noted.digest.is_empty() || source.optional.unwrap_or(false))
            };
            match noted.filter(is_settled) {
                Some(noted) => sources.push(noted.clone()),
                _ => match self.preparation.document(source, namespace).await? {
                    Ok(document) => sources.push(document.source),
                    Err(why) => return Ok(why),
                },
            }
        }
        Ok(values::values(spec, sources))
    }

    fn source_version(&self, source: &ValuesSource, namespace: &str) -> Option<String> {
        let key = Key::new(namespace, source.name.as_str());
        let version = match source.kind {
            ValuesKind::Secret => self.secrets.store().version(&key),
            ValuesKind::ConfigMap => self.config_maps.store().version(&key),
        };
        version.map(|version| version.to_string())
    }

    fn dependencies(&self, key: &Key, desired: Option<&Desired>) -> Vec<Dependency> {
        let needed = desired.map(|desired| desired.depends_on.as_slice()).unwrap_or_default();
        let dependency = |name: &String| {
            let found = self.releases.get(&Key::new(key.namespace.clone(), name.as_str()));
            let is_ready = found.as_ref().is_some_and(|found| is_ready(&found.value));
            Dependency { name: name.clone(), is_there: found.is_some(), is_ready }
        };
        needed.iter().map(dependency).collect()
    }

    fn cycle(&self, key: &Key, desired: &Desired) -> Option<Vec<String>> {
        if desired.depends_on.is_empty() {
            return None;
        }
        releases::cycle(&key.name, |name| {
            let found = self.releases.get(&Key::new(key.namespace.clone(), name));
            found.and_then(|found| found.value.spec.as_ref().map(|spec| spec.depends_on.clone())).unwrap_or_default()
        })
    }

    /// The object that was first to stand for the same Helm release.
    fn rival(&self, key: &Key, object: &HelmRelease, release: &Key) -> Option<String> {
        // Of two of the same second the one that holds the release already is the first.
        let age = |object: &HelmRelease| {
            let has_acted = object.status.as_ref().is_some_and(|status| status.last_attempted_digest.is_some());
            (object.metadata.creation_timestamp.clone(), !has_acted, object.metadata.uid.clone())
        };
        let others = self.indexes.releases.keys(release).into_iter().filter(|other| other != key);
        let mut older =
            others.filter(|other| self.releases.get(other).is_some_and(|other| age(&other.value) < age(object)));
        older.next().map(|other| other.to_string())
    }

    /// What notes still hold about live objects.
    fn remembered(&self, key: &Key, desired: Option<&Desired>, surroundings: &mut releases::Observed) {
        let Known::Yes(stored) = &surroundings.storage else { return };
        let (Some(newest), Some(desired)) = (stored.last(), desired) else { return };
        let notes = self.notes.lock().get(key).cloned().unwrap_or_default();
        let now = self.clock.instant();
        // Unheard of, it must be looked for; a little sooner than planning asks, so that it is found due then.
        let pause = if surroundings.is_drift_heard { desired.interval } else { UNHEARD };
        let holds = |uid: &str, at| uid == newest.uid && now.saturating_duration_since(at) < pause;
        if let Some(Looked { secret_uid, at, found }) = notes.drift
            && holds(&secret_uid, at)
        {
            surroundings.drift = match found {
                Ok(found) if found.is_empty() => Drift::None,
                Ok(found) => Drift::Found(found),
                Err(why) => Drift::Unknown(why),
            };
        }
        if let Some(Looked { secret_uid, at, found }) = notes.replicas
            && holds(&secret_uid, at)
        {
            surroundings.workloads = match found {
                Ok(found) => Replicas::Live(found),
                Err(why) => Replicas::Unknown(why),
            };
        }
    }

    /// The chart's version. Status is believed for as long as it answers the same question and is not too old; only
    /// what has to be installed must be on disk.
    async fn chart(
        &self,
        key: &Key,
        object: &HelmRelease,
        desired: &Desired,
        surroundings: &releases::Observed,
    ) -> Result<Chart, Error> {
        let resolved = object.status.as_ref().and_then(|status| status.resolved.as_ref());
        let known = resolved.filter(|resolved| resolved.reference == reference_digest(&desired.chart));
        let asked = object.metadata.annotations.as_ref().and_then(|all| all.get(RECONCILE_ANNOTATION));
        let asked = asked
            .filter(|asked| Some(*asked) != object.status.as_ref().and_then(|s| s.last_handled_reconcile.as_ref()));
        if let Some(known) = known
            && (desired.chart.exact_version().is_some() || (asked.is_none() && !self.is_look_due(key, desired)))
        {
            let (version, digest) = (known.version.clone(), known.digest.clone());
            let chart = Chart::Resolved { version, digest, is_checked: true };
            let assumed = releases::Observed { chart: chart.clone(), ..surroundings.clone() };
            let plan = releases::plan(object, &assumed, self.clock.now(), &self.policy);
            let installs = |action: &releases::Action| match action {
                releases::Action::Start(operation) => {
                    matches!(operation.kind, OperationKind::Install | OperationKind::Upgrade)
                }
                _ => false,
            };
            if !plan.actions.iter().any(installs) {
                return Ok(chart);
            }
        }
        let wanted = match self.preparation.chart_reference(desired, &key.namespace).await? {
            Ok(wanted) => wanted,
            Err(message) => {
                return Ok(Chart::Failed(releases::Failure { class: FailureClass::Unauthorised, message }));
            }
        };
        let found = if asked.is_some_and(|asked| self.is_first_asked(key, asked)) {
            self.charts.find_anew(&release_key(object), &wanted)
        } else {
            self.charts.find(&release_key(object), &wanted)
        };
        let resolved = |chart: &helm::Chart, is_checked| {
            let (version, digest) = (chart.version.clone(), Some(chart.digest.clone()));
            Ok(Chart::Resolved { version, digest, is_checked })
        };
        match found {
            Found::Ready(chart) => {
                self.notes.lock().entry(key.clone()).or_default().chart_at = Some(self.clock.instant());
                resolved(&chart, true)
            }
            Found::Aging(chart) => resolved(&chart, false),
            Found::Working => Ok(Chart::Fetching),
            Found::Failed(failed) => Ok(Chart::Failed(failure(failed))),
        }
    }

    /// Whether a range must be looked up again. The first look of a process is due an interval after its start.
    fn is_look_due(&self, key: &Key, desired: &Desired) -> bool {
        let now = self.clock.instant();
        let mut notes = self.notes.lock();
        let looked_at = *notes.entry(key.clone()).or_default().chart_at.get_or_insert(now);
        now.saturating_duration_since(looked_at) >= desired.interval
    }

    /// Whether a value of the reconcile annotation is seen for the first time.
    fn is_first_asked(&self, key: &Key, asked: &str) -> bool {
        let mut notes = self.notes.lock();
        let former = notes.entry(key.clone()).or_default().asked_for.replace(asked.to_owned());
        former.as_deref() != Some(asked)
    }

    async fn is_terminating(&self, namespace: &str) -> Result<bool, Error> {
        let found = self.writer.read::<Metadata<Namespace>>("namespaces", &Key::new("", namespace)).await?;
        Ok(found.is_none_or(|found| found.metadata.deletion_timestamp.is_some()))
    }

    /// Read when a revision was made, by us or by a former operator that did not live to see it, and when it is to go;
    /// and only for services of a Workspace, whose data is protected, and for an install that did not succeed and so may
    /// be done again.
    async fn holds_data(
        &self,
        object: &HelmRelease,
        release: &Key,
        surroundings: &releases::Observed,
    ) -> Result<Option<bool>, Error> {
        let is_service = object.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(LABEL_WORKSPACE));
        let Known::Yes(stored) = &surroundings.storage else { return Ok(None) };
        let Some(newest) = stored.last() else { return Ok(None) };
        let is_undone = last_good(stored).is_none() && newest.status != StoredStatus::Uninstalled;
        if surroundings.is_at_work() || !(is_service || is_undone) {
            return Ok(None);
        }
        let known = object.status.as_ref().filter(|status| status.holds_data.is_some());
        let is_known = known
            .and_then(|status| status.history.first())
            .is_some_and(|shown| shown.secret_uid.as_ref() == Some(&newest.uid));
        if is_known && !surroundings.has_ended() && object.metadata.deletion_timestamp.is_none() {
            return Ok(None);
        }
        let Some(stored) = self.stored_in(release, newest.revision).await? else { return Ok(None) };
        let manifest = storage::manifest(stored, Detail::Names).await;
        Ok(manifest.ok().map(|manifest| storage::holds_data(&manifest)))
    }

    /// The Secret with Helm's whole record of a revision.
    pub(super) async fn stored_in(&self, release: &Key, revision: u32) -> Result<Option<Secret>, Error> {
        let key = Key::new(release.namespace.clone(), secret_name(&release.name, revision));
        self.writer.read::<Secret>("secrets", &key).await
    }
}

fn is_ready(object: &HelmRelease) -> bool {
    let ready = object.status.as_ref().and_then(|status| status.condition(ConditionType::Ready));
    ready.is_some_and(|ready| {
        ready.status == ConditionStatus::True && ready.observed_generation == object.metadata.generation
    })
}

fn sorted(mut stored: Vec<Stored>) -> Vec<Stored> {
    stored.sort_by_key(|stored| stored.revision);
    stored
}

/// helm's failure in the words of planning.
fn failure(failure: helm::Failure) -> releases::Failure {
    let class = match failure.class {
        Class::Timeout => FailureClass::Timeout,
        Class::OutOfMemory => FailureClass::OutOfMemory,
        Class::ChartNotFound | Class::DigestMismatch => FailureClass::NotFound,
        Class::Unauthorised => FailureClass::Unauthorised,
        Class::Forbidden => FailureClass::Forbidden,
        Class::Locked => FailureClass::InProgress,
        Class::ReleaseNotFound => FailureClass::ReleaseNotFound,
        Class::Unreachable | Class::PlainHttp => FailureClass::Unreachable,
        Class::NotBegun => FailureClass::NotBegun,
        Class::Cancelled | Class::Killed => FailureClass::Interrupted,
        Class::TooLarge | Class::CacheFull | Class::Other => FailureClass::Other,
    };
    releases::Failure { class, message: failure.message }
}
