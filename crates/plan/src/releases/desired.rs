//! A HelmRelease's spec, checked once.

use std::time::Duration;

use api::condition::Reason;
use api::workspace::{
    ChartReference, CrdPolicy, DriftDetection, DriftIgnore, HelmRelease, HelmReleaseSpec, InstallRemediation,
    MAX_RELEASE_NAME, Repository, Span, UpgradeRemediation,
};
use serde_json::json;

use super::memory::has_acted;
use crate::{
    Why,
    object::{bytes, digest},
};

/// What the operator as a whole allows.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// All helm processes together, in bytes.
    pub total_memory: u64,
    /// The most that one release may ask for, in bytes. Less than the total, so that there is room for others beside it.
    pub largest_memory: u64,
    /// The longest time that one release may ask for: for as long it may keep its memory from others.
    pub longest_timeout: Duration,
    /// Whether a release may go to another namespace than its object's.
    pub other_namespaces: bool,
    /// Whether charts may come from the operator's own disk: who may write HelmReleases could read it then.
    pub local_charts: bool,
    /// How long another client's unfinished operation is left alone after its last change.
    pub lock_patience: Duration,
    /// How soon a repository that cannot be reached is asked again.
    pub fetch_retry: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            // Four of the default size for one namespace, and one that it leaves to the others.
            total_memory: 5 << 28,
            largest_memory: 4 << 28,
            // Many times what a large chart takes to become ready.
            longest_timeout: Duration::from_hours(1),
            other_namespaces: false,
            local_charts: false,
            // What the specification gives a helm process that is not ours to show a sign of life.
            lock_patience: Duration::from_secs(30),
            fetch_retry: Duration::from_secs(30),
        }
    }
}

/// How often an operation is tried, and what is done when that did not help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    pub retries: u32,
    pub remediation: UpgradeRemediation,
}

#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a field of the spec that users know by its name")]
pub struct Desired {
    pub release: String,
    pub namespace: String,
    pub chart: ChartReference,
    pub timeout: Duration,
    pub wait: bool,
    pub rollback_timeout: Duration,
    pub rollback_wait: bool,
    pub account: Option<String>,
    pub install: Attempt,
    pub upgrade: Attempt,
    pub keep_history: bool,
    pub depends_on: Vec<String>,
    pub drift: DriftDetection,
    pub drift_ignore: Vec<DriftIgnore>,
    pub test: bool,
    pub ignore_test_failures: bool,
    pub max_history: u32,
    pub crds: CrdPolicy,
    pub memory: Option<u64>,
    pub interval: Duration,
    pub suspend: bool,
    pub stopped: bool,
}

/// Below this helm 4.3.1 cannot install a chart of four objects; at half of it, it does not even start.
pub const LEAST_MEMORY: u64 = 128 << 20;
/// What an operation may take unless the spec says otherwise; Helm's own default.
const TIMEOUT: Duration = Duration::from_mins(5);
/// How often ranges are looked up and drift is looked for unasked: a compromise between news and load.
const INTERVAL: Duration = Duration::from_mins(10);
/// Shorter would ask repositories all the time.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(5);
/// Helm's own default.
const MAX_HISTORY: u32 = 10;

fn invalid(message: impl Into<String>) -> Why {
    Why { reason: Reason::InvalidSpec, message: message.into() }
}

pub fn validate(object: &HelmRelease, policy: &Policy) -> Result<Desired, Why> {
    let spec = object.spec.as_ref().ok_or_else(|| {
        invalid("spec cannot be read; compare it with `kubectl explain helmrelease.spec` and correct it")
    })?;
    let own_namespace = object.metadata.namespace.clone().unwrap_or_default();
    let namespace = spec.target_namespace.clone().unwrap_or_else(|| own_namespace.clone());
    if namespace != own_namespace && !policy.other_namespaces {
        return Err(invalid(format!(
            "spec.targetNamespace is {namespace}, but a release may only be installed into its own namespace; leave it out, or start the operator with --helm-other-namespaces"
        )));
    }
    let release = spec.release_name.clone().or_else(|| object.metadata.name.clone()).unwrap_or_default();
    if release.len() > MAX_RELEASE_NAME {
        return Err(invalid(format!(
            "the release name {release} has {} characters, Helm allows {MAX_RELEASE_NAME}; set spec.releaseName to a shorter one",
            release.len()
        )));
    }
    check_repository(&spec.chart, policy)?;
    let memory = memory(spec, policy)?;
    let (install, upgrade) = (spec.install.clone().unwrap_or_default(), spec.upgrade.clone().unwrap_or_default());
    let (rollback, wait) = (spec.rollback.clone().unwrap_or_default(), spec.wait.unwrap_or(true));
    let timeout = timeout("spec.timeout", spec.timeout, policy)?.unwrap_or(TIMEOUT.min(policy.longest_timeout));
    let rollback_timeout = self::timeout("spec.rollback.timeout", rollback.timeout, policy)?.unwrap_or(timeout);
    Ok(Desired {
        release,
        namespace,
        chart: spec.chart.clone(),
        timeout,
        wait,
        rollback_timeout,
        rollback_wait: rollback.wait.unwrap_or(wait),
        account: spec.service_account_name.clone(),
        install: Attempt {
            retries: install.retries.unwrap_or(0),
            remediation: match install.remediation.unwrap_or_default() {
                InstallRemediation::None => UpgradeRemediation::None,
                InstallRemediation::Uninstall => UpgradeRemediation::Uninstall,
            },
        },
        upgrade: Attempt {
            retries: upgrade.retries.unwrap_or(0),
            remediation: upgrade.remediation.unwrap_or_default(),
        },
        keep_history: spec.uninstall.as_ref().and_then(|uninstall| uninstall.keep_history).unwrap_or(false),
        depends_on: spec.depends_on.clone(),
        drift: spec.drift_detection.unwrap_or_default(),
        drift_ignore: spec.drift_ignore.clone(),
        test: spec.test.as_ref().and_then(|test| test.enable).unwrap_or(false),
        ignore_test_failures: spec.test.as_ref().and_then(|test| test.ignore_failures).unwrap_or(false),
        max_history: spec.max_history.unwrap_or(MAX_HISTORY).max(1),
        crds: spec.crds.unwrap_or_default(),
        memory,
        interval: spec.interval.map_or(INTERVAL, |span| span.0).max(SHORTEST_INTERVAL),
        suspend: spec.suspend.unwrap_or(false),
        stopped: spec.stopped.unwrap_or(false),
    })
}

/// Whether an object may stand for the Helm release that it names: one of its own namespace, or of another one where the
/// operator allows that, or did when the object installed it. Any user can write the name of another namespace. So an
/// object that may not is no rival of those that do, has no say in what helm does there, and learns nothing of it.
pub fn may_claim(object: &HelmRelease, policy: &Policy) -> bool {
    let target = object.spec.as_ref().and_then(|spec| spec.target_namespace.as_deref());
    let is_own = target.is_none_or(|target| object.metadata.namespace.as_deref() == Some(target));
    is_own || policy.other_namespaces || object.status.as_ref().is_some_and(has_acted)
}

/// What is needed to uninstall a release, however its spec was changed since: a release must never be left behind
/// because a limit or a flag of the operator changed. `None` if there is no spec to read.
pub fn removable(object: &HelmRelease, policy: &Policy) -> Option<Desired> {
    let mut object = object.clone();
    let spec = object.spec.as_mut()?;
    spec.memory = None;
    let timeout = spec.timeout.map(|span| Span(span.0.min(policy.longest_timeout)));
    spec.timeout = timeout.filter(|timeout| !timeout.0.is_zero());
    spec.rollback = None;
    // The chart is not looked at.
    "http://unused".clone_into(&mut spec.chart.repo);
    let lenient = Policy { other_namespaces: true, ..policy.clone() };
    validate(&object, &lenient).ok()
}

/// How long an operation may take, where the spec says so.
fn timeout(field: &str, asked: Option<Span>, policy: &Policy) -> Result<Option<Duration>, Why> {
    let Some(Span(asked)) = asked else { return Ok(None) };
    if asked.is_zero() {
        return Err(invalid(format!("{field} must be more than zero; write a duration like 90s")));
    }
    if asked > policy.longest_timeout {
        return Err(invalid(format!(
            "{field} is {}, the limit for one release is {}; lower it, or raise --helm-max-timeout",
            Span(asked),
            Span(policy.longest_timeout)
        )));
    }
    Ok(Some(asked))
}

fn check_repository(chart: &ChartReference, policy: &Policy) -> Result<(), Why> {
    match chart.repository() {
        Some(Repository::Http | Repository::Oci) => Ok(()),
        Some(Repository::File) if policy.local_charts => Ok(()),
        Some(Repository::File) => Err(invalid(
            "spec.chart.repo is a file:// on the operator's own disk, from which it must not read charts; name a repository, or start the operator with --helm-local-charts",
        )),
        None => Err(invalid("spec.chart.repo must begin with http://, https://, oci:// or file://")),
    }
}

fn memory(spec: &HelmReleaseSpec, policy: &Policy) -> Result<Option<u64>, Why> {
    let Some(text) = spec.memory.as_deref() else { return Ok(None) };
    let memory = bytes(text)
        .ok_or_else(|| invalid(format!("spec.memory {text:?} is not an amount of memory; write it like 512Mi")))?;
    if memory < LEAST_MEMORY {
        return Err(invalid(format!(
            "spec.memory is {memory} bytes, helm needs at least {LEAST_MEMORY}; write 128Mi or more"
        )));
    }
    if memory > policy.total_memory {
        return Err(Why {
            reason: Reason::MemoryExceedsBudget,
            message: format!(
                "spec.memory is {memory} bytes, the limit for all helm processes together is {}; lower it, or raise --helm-memory",
                policy.total_memory
            ),
        });
    }
    if memory > policy.largest_memory {
        return Err(invalid(format!(
            "spec.memory is {memory} bytes, the limit for one release is {}, so that others have room; lower it, or raise --helm-max-operation-memory",
            policy.largest_memory
        )));
    }
    Ok(Some(memory))
}

/// Stands for where a chart is to come from, so that a resolved version is known to answer this very question.
pub fn reference_digest(chart: &ChartReference) -> String {
    digest(&json!([place(chart), chart.name, chart.version, chart.digest]))
}

/// Stands for what a release is made of: when it changes, the release is out of sync.
pub fn config_digest(chart: &ChartReference, version: &str, values: &str) -> String {
    digest(&json!([place(chart), chart.name, version, values, chart.digest]))
}

/// Stands for how a release is attempted: when it changes, what failed may succeed.
pub(super) fn settings_digest(spec: &HelmReleaseSpec) -> String {
    digest(&json!([
        spec.timeout,
        spec.wait.unwrap_or(true),
        spec.memory,
        spec.crds.unwrap_or_default(),
        spec.service_account_name,
        spec.install.clone().unwrap_or_default(),
        spec.upgrade.clone().unwrap_or_default(),
    ]))
}

/// A slash at the end makes no other repository.
fn place(chart: &ChartReference) -> &str {
    chart.repo.trim_end_matches('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_of_another_namespace_is_claimed_by_permission_or_by_what_was_done_under_one() {
        let strict = Policy::default();
        let lenient = Policy { other_namespaces: true, ..Policy::default() };
        let object = |target: Option<&str>, status: serde_json::Value| -> HelmRelease {
            let spec = json!({ "chart": { "repo": "http://c", "name": "n" }, "targetNamespace": target });
            let object = json!({ "metadata": { "name": "web", "namespace": "team" }, "spec": spec, "status": status });
            serde_json::from_value(object).unwrap()
        };
        for (target, status, may) in [
            (None, json!({}), true),
            (Some("team"), json!({}), true),
            (Some("other"), json!({}), false),
            (Some("other"), json!({ "history": [{ "revision": 1, "status": "deployed" }] }), false),
            (Some("other"), json!({ "lastAttemptedDigest": "d" }), true),
        ] {
            let object = object(target, status);
            assert_eq!(may_claim(&object, &strict), may, "{:?}", object.spec);
            assert!(may_claim(&object, &lenient));
        }
    }
}
