//! Facts about a HelmRelease that the caches hold. Nothing here asks or writes.

use api::workspace::{HelmRelease, OperationKind, ValuesKind, ValuesSource};
use plan::releases::{
    self, Dependency, Desired, Ended, FailureClass, Job, MOST_REVISIONS, Observed, Stored, is_ready, may_claim,
    validate,
};
use runtime::Key;

use super::{ReleaseController, release_key};
use crate::helm::{self, Class};

impl ReleaseController {
    pub(super) fn observe(&self, key: &Key, object: &HelmRelease) -> Observed {
        let release = release_key(object);
        let may_claim = may_claim(object, &self.policy);
        let desired = validate(object, &self.policy).ok();
        let rival = if may_claim { self.rival(key, object, &release) } else { None };
        let sources = object.spec.iter().flat_map(|spec| &spec.values_from);
        let (object_changes, is_changing) = self.changes.of(key);
        Observed {
            // Another namespace's release is not even looked at unless the object may stand for it.
            namespace: if may_claim { &release.namespace } else { &key.namespace }.to_string(),
            release: release.name.to_string(),
            revisions: if may_claim { self.cached_revisions(&release) } else { Vec::new() },
            sources: sources.map(|source| self.source_version(source, &key.namespace)).collect(),
            credentials: self.credentials_version(object, &key.namespace),
            // What the runner does for a release is the business of the one that keeps it.
            job: if may_claim && rival.is_none() { self.job(object, &release) } else { Job::Idle },
            dependencies: self.dependencies(key, desired.as_ref()),
            cycle: desired.as_ref().and_then(|desired| self.cycle(key, desired)),
            is_watched: self.indexes.kinds.things(key).iter().all(|kind| self.watches.readiness(kind).is_ok()),
            object_changes,
            is_changing,
            rival,
            clocks: self.server_clock.clocks(),
        }
    }

    /// What the runner does for the release. The operation itself is in status, where it was stored before it began.
    fn job(&self, object: &HelmRelease, release: &Key) -> Job {
        let operation = object.status.as_ref().and_then(|status| status.operation.as_ref());
        let kind = operation.map_or(OperationKind::Upgrade, |operation| operation.kind);
        match (self.runner.state(release), operation) {
            (helm::State::Waiting, _) => Job::Waiting(kind),
            (helm::State::Running { is_ending: false, .. }, _) => Job::Running(kind),
            (helm::State::Running { is_ending: true, .. }, _) => Job::Ending(kind),
            (helm::State::Finished(finished), Some(operation))
                if *finished.label == *releases::Operation::from(operation).label() =>
            {
                Job::Finished(Ended { operation: operation.into(), result: finished.result.clone().map_err(failure) })
            }
            // An end that was stored already, or of an operation that another replica has overtaken.
            (helm::State::Finished(_) | helm::State::Idle, _) => Job::Idle,
        }
    }

    pub(super) fn cached_revisions(&self, release: &Key) -> Vec<Stored> {
        let secrets = self.indexes.revisions.keys(release);
        let revision = |key: &Key| self.secrets.get(key)?.value.revision.as_ref().map(|found| found.1.clone());
        // One too many shows planning that there are too many.
        sorted(secrets.iter().filter_map(revision).take(MOST_REVISIONS + 1).collect())
    }

    fn credentials_version(&self, object: &HelmRelease, namespace: &str) -> Option<String> {
        let reference = object.spec.as_ref()?.chart.secret_ref.as_ref()?;
        self.secrets.store().version(&Key::new(namespace, reference.name.as_str())).map(|version| version.to_string())
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
}

pub(super) fn sorted(mut stored: Vec<Stored>) -> Vec<Stored> {
    stored.sort_by_key(|stored| stored.revision);
    stored
}

/// helm's failure in the words of planning.
pub(super) fn failure(failure: helm::Failure) -> releases::Failure {
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
        Class::Cancelled => FailureClass::Cancelled,
        Class::Killed => FailureClass::Interrupted,
        Class::TooLarge | Class::CacheFull | Class::Other => FailureClass::Other,
    };
    releases::Failure { class, message: failure.message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_operator_ended_is_told_from_what_something_else_ended() {
        let class = |class| failure(helm::Failure { class, message: String::new() }).class;
        assert_eq!(class(Class::Cancelled), FailureClass::Cancelled);
        assert_eq!(class(Class::Killed), FailureClass::Interrupted);
    }
}
