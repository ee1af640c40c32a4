//! Facts about a HelmRelease that cost a request.

use std::{collections::HashSet, time::Duration};

use api::workspace::{ChartReference, DriftIgnore, DriftTarget, HelmRelease, ValuesSource};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use plan::{
    fact::{Class, Failure},
    releases::{self, Answer, Ask, FailureClass, ObjectRef, Resolved, last_good, validate},
};
use runtime::{Error, Fence, Key, Metadata};

use super::{
    ReleaseController,
    execute::unreadable,
    gather::failure,
    live::{self, Acting, Target},
    release_key,
    storage::{self, Detail, secret_name},
};

impl ReleaseController {
    pub(super) async fn answer(&self, ask: &Ask, fence: &Fence) -> Result<Answer, Failure> {
        match ask {
            Ask::Revisions { namespace, release, .. } => {
                let stored = self.preparation.list_revisions(&Key::new(namespace.as_str(), release.as_str())).await;
                stored.map(Answer::Revisions).map_err(|error| unknown(&error))
            }
            Ask::Source { namespace, kind, name, key, optional, version } => {
                let source =
                    ValuesSource { kind: *kind, name: name.clone(), key: Some(key.clone()), optional: Some(*optional) };
                let read = self.preparation.document(&source, namespace).await.map_err(|error| unknown(&error))?;
                let read = read.map(|document| document.source);
                // Asked for in one version and found in another: the cache will show it, and ask again.
                let is_other = read.as_ref().is_ok_and(|read| read.version != *version);
                if is_other { Err(moved()) } else { Ok(Answer::Source(read)) }
            }
            Ask::Chart { namespace, release, chart, request, .. } => {
                let asker = Key::new(namespace.as_str(), release.as_str());
                self.find_chart(&asker, chart, request.is_some()).await.map(Answer::Chart)
            }
            Ask::Identity { namespace, account } => {
                Ok(Answer::Identity(self.identities.check(namespace, account.as_deref()).await))
            }
            Ask::Drift { object, secret_uid, .. } => self.find_drift(object, secret_uid, fence).await,
            Ask::Replicas { object, secret_uid, .. } => self.find_replicas(object, secret_uid, fence).await,
            Ask::HoldsData { namespace, release, revision, secret_uid } => {
                let release = Key::new(namespace.as_str(), release.as_str());
                let secret = self.stored_in(&release, *revision).await.map_err(|error| unknown(&error))?;
                let secret =
                    secret.filter(|secret| secret.metadata.uid.as_ref() == Some(secret_uid)).ok_or_else(moved)?;
                let manifest = storage::manifest(secret, Detail::Names).await;
                Ok(Answer::HoldsData(manifest.ok().map(|manifest| storage::holds_data(&manifest))))
            }
            Ask::NamespaceTerminating { namespace } => {
                self.is_terminating(namespace).await.map_err(|error| unknown(&error))
            }
        }
    }

    pub(super) async fn is_terminating(&self, namespace: &str) -> Result<Answer, Error> {
        let found = self.writer.read::<Metadata<Namespace>>("namespaces", &Key::new("", namespace)).await?;
        let is_going = found.is_none_or(|found| found.metadata.deletion_timestamp.is_some());
        Ok(Answer::NamespaceTerminating(is_going))
    }

    /// The Secret with Helm's whole record of a revision.
    pub(super) async fn stored_in(&self, release: &Key, revision: u32) -> Result<Option<Secret>, Error> {
        let key = Key::new(release.namespace.clone(), secret_name(&release.name, revision));
        self.writer.read::<Secret>("secrets", &key).await
    }

    async fn find_chart(
        &self,
        asker: &Key,
        chart: &ChartReference,
        is_new: bool,
    ) -> Result<Result<Resolved, releases::Failure>, Failure> {
        let wanted =
            self.preparation.chart_reference(chart, &asker.namespace).await.map_err(|error| unknown(&error))?;
        let wanted = match wanted {
            Ok(wanted) => wanted,
            Err(message) => return Ok(Err(releases::Failure { class: FailureClass::Unauthorised, message })),
        };
        let found = self.charts.get(asker, &wanted, is_new).await;
        Ok(found
            .map(|chart| Resolved { version: chart.version.clone(), digest: chart.digest.clone() })
            .map_err(failure))
    }

    async fn find_drift(&self, object: &ObjectRef, secret_uid: &str, fence: &Fence) -> Result<Answer, Failure> {
        let (key, found) = self.asked_about(object)?;
        let looked = async {
            let (targets, acting) = self.targets(&key, &found, Some(secret_uid), Of::Newest, fence).await?;
            // Before the look, so that a watch shows what changes during it.
            self.follow(&key, &targets);
            self.discovered.drift(&acting, &targets, &ignored(&found)).await
        };
        let result = looked.await;
        self.spoken(&found, result).await.map(Answer::Drift)
    }

    async fn find_replicas(&self, object: &ObjectRef, secret_uid: &str, fence: &Fence) -> Result<Answer, Failure> {
        let (key, found) = self.asked_about(object)?;
        let looked = async {
            let (targets, acting) = self.targets(&key, &found, Some(secret_uid), Of::AllThere, fence).await?;
            self.follow(&key, &targets);
            self.discovered.replicas(&acting, &targets).await
        };
        let result = looked.await;
        self.spoken(&found, result).await.map(Answer::Replicas)
    }

    /// The object in the generation that was asked about.
    fn asked_about(&self, object: &ObjectRef) -> Result<(Key, HelmRelease), Failure> {
        let key = Key::new(object.namespace.as_str(), object.name.as_str());
        let found = self.releases.get(&key).map(|found| found.value.clone());
        let found = found.filter(|found| found.metadata.generation.unwrap_or_default() == object.generation);
        found.map(|found| (key, found)).ok_or_else(moved)
    }

    /// What the server said against a look is an answer; silence is none.
    async fn spoken<T>(&self, object: &HelmRelease, result: Result<T, Error>) -> Result<Result<T, String>, Failure> {
        match result {
            Ok(found) => Ok(Ok(found)),
            Err(error) => match error.status() {
                Some(status) if error.class() != Class::Transient => Ok(Err(self.redacted(object, status).await)),
                _ => Err(unknown(&error)),
            },
        }
    }

    /// The live objects of a release, and who may touch them.
    pub(super) async fn targets<'a>(
        &self,
        key: &Key,
        object: &HelmRelease,
        secret_uid: Option<&str>,
        of: Of,
        fence: &'a Fence,
    ) -> Result<(Vec<Target>, Acting<'a>), Error> {
        let release = release_key(object);
        let stored = self.preparation.list_revisions(&release).await?;
        let newest = stored.last().ok_or(Error::Outdated)?;
        if secret_uid.is_some_and(|uid| uid != newest.uid) {
            return Err(Error::Outdated);
        }
        let desired = validate(object, &self.policy).map_err(Error::Refused)?;
        // Workloads are only scaled.
        let detail = if of == Of::Newest { Detail::Whole } else { Detail::Names };
        let mut targets = self.objects_of(&release, newest.revision, detail).await?;
        // What failed may have left in place what was there before.
        let before = last_good(&stored).filter(|good| of == Of::AllThere && good.revision != newest.revision);
        if let Some(good) = before {
            let former = self.objects_of(&release, good.revision, detail).await?;
            let known: HashSet<_> = targets.iter().map(|target| (target.kind.clone(), target.key.clone())).collect();
            let id = |former: &Target| (former.kind.clone(), former.key.clone());
            targets.extend(former.into_iter().filter(|former| !known.contains(&id(former))));
        }
        let credentials =
            self.identities.credentials(&key.namespace, desired.account.as_deref(), Duration::ZERO).await?;
        let acting = self.acting(&credentials, fence);
        let targets = self.discovered.located(&acting, targets).await?;
        Ok((targets, acting))
    }

    pub(super) async fn objects_of(&self, release: &Key, revision: u32, detail: Detail) -> Result<Vec<Target>, Error> {
        let stored = self.stored_in(release, revision).await?.ok_or(Error::Outdated)?;
        let manifest = storage::manifest(stored, detail).await.map_err(|why| unreadable(release, revision, why))?;
        Ok(live::targets(manifest, release))
    }
}

/// Which objects of a release.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// Those that its newest revision names.
    Newest,
    /// And those of the last good one, where the newest is not.
    AllThere,
}

/// Replicas of a stopped release are ours, not the chart's, and so is the rest of its CronJobs.
pub(super) fn ignored(object: &HelmRelease) -> Vec<DriftIgnore> {
    let Some(spec) = &object.spec else { return Vec::new() };
    let stopped = spec.stopped.unwrap_or(false);
    let of_schedules = DriftTarget { kind: Some("CronJob".to_owned()), name: None };
    let ours = [("/spec/replicas", None), ("/spec/suspend", Some(of_schedules))];
    let ours = ours.map(|(path, target)| DriftIgnore { paths: vec![path.to_owned()], target });
    spec.drift_ignore.iter().cloned().chain(ours.into_iter().filter(|_| stopped)).collect()
}

fn unknown(error: &Error) -> Failure {
    Failure { class: error.class(), message: error.to_string() }
}

/// What was asked about has changed: the cache will show it, and there will be another question.
fn moved() -> Failure {
    Failure { class: Class::Conflict, message: "the release changed while it was read".to_owned() }
}
