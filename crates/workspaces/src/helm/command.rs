//! What helm is asked to do, as arguments and environment. Pure, and the only place that knows helm's flags.
//!
//! Nothing secret is ever an argument: values, kubeconfig and credentials are files of the operation's own directory,
//! which is also helm's working directory.
//!
//! What helm 4.3.1 does on SIGTERM was tried: `install` and `upgrade --install` store their revision as `failed` and end;
//! `rollback` has no handler and leaves `pending-rollback`; `uninstall` has none either and
//! leaves `uninstalling`, which a second uninstall finishes; `test` and `pull` leave nothing in the release.

use std::{ffi::OsString, path::PathBuf, sync::Arc, time::Duration};

use runtime::Key;

use super::Chart;

/// What helm's own files are called in the directory of an operation.
pub(super) const KUBECONFIG: &str = "kubeconfig";
pub const REPOSITORIES: &str = "repositories.yaml";
pub const REGISTRY: &str = "registry.json";
pub(super) const CA: &str = "ca.pem";

/// The largest archive of a chart. Helm keeps a chart in the record of each release, which has room for 1 MiB, so a much
/// larger one could not be installed.
pub(super) const ARCHIVE_BYTES: u64 = 10 << 20;

/// One helm operation.
#[derive(Clone, Debug)]
pub enum Operation {
    /// `helm install --replace`: an install with its hooks and `.Release.IsInstall`, also over an install that failed or a
    /// history that was kept. helm refuses it where there is anything else.
    Install(Deploy),
    /// `helm upgrade --install`, so that it is safe where the release was uninstalled by hand meanwhile.
    Upgrade(Deploy),
    Rollback {
        revision: u32,
        wait: bool,
        history_max: u32,
        force_conflicts: bool,
    },
    /// A release that is not there is a success.
    Uninstall {
        keep_history: bool,
        wait: bool,
    },
    Test,
    /// Resolves a version and fetches its archive; asked for by [`super::Charts`].
    Pull(Pull),
}

/// What an install or an upgrade needs beside the values.
#[derive(Clone, Debug)]
pub struct Deploy {
    /// Held until the operation has ended, so that the cache does not drop it.
    pub chart: Arc<Chart>,
    /// Whether to wait until the objects are ready; hooks are always waited for.
    pub wait: bool,
    pub history_max: u32,
    /// helm creates missing CRDs at install only. For `createReplace` the layer applies those of
    /// [`super::archive::crds`] before every operation and skips them here.
    pub skip_crds: bool,
    /// Take fields back from other field managers instead of failing: for correcting drift.
    pub force_conflicts: bool,
}

/// Which chart to fetch, and to where.
#[derive(Clone, Debug)]
pub struct Pull {
    /// `oci://…/name`, or `repository/name` of the operation's repository file.
    pub reference: String,
    pub version: String,
    pub destination: PathBuf,
    pub plain_http: bool,
    /// The file with the registry's authority; a repository file names its own.
    pub ca: Option<PathBuf>,
}

impl Pull {
    pub fn arguments(&self) -> Vec<OsString> {
        let mut line = Arguments::default();
        line.words(["pull", &self.reference, "--version", &self.version, "--destination"]);
        line.0.push(self.destination.clone().into());
        line.flag(self.plain_http, "--plain-http");
        if let Some(ca) = &self.ca {
            line.words(["--ca-file"]);
            line.0.push(ca.into());
        }
        line.0
    }
}

/// An operation without its details, for status and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OperationKind {
    Install,
    Upgrade,
    Rollback,
    Uninstall,
    Test,
    Pull,
}

impl OperationKind {
    const ALL: [Self; 6] = [Self::Install, Self::Upgrade, Self::Rollback, Self::Uninstall, Self::Test, Self::Pull];

    /// The kind that is called so.
    pub(super) fn of(name: &str) -> Self {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name).expect("only these are ever submitted")
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Install => "install",
            Self::Upgrade => "upgrade",
            Self::Rollback => "rollback",
            Self::Uninstall => "uninstall",
            Self::Test => "test",
            Self::Pull => "pull",
        }
    }

    /// The largest file that helm may write. Of a pull that is the archive; others write what they learn of the API
    /// server, and nothing near it.
    pub(super) fn file_bytes(self) -> u64 {
        if self == Self::Pull { ARCHIVE_BYTES } else { 64 << 20 }
    }

    /// Whether SIGTERM makes helm put the release in order before it ends. To a rollback it would do what SIGKILL
    /// does, so that one gets the grace to end by itself.
    pub(super) fn ends_gently(self) -> bool {
        self != Self::Rollback
    }
}

impl Operation {
    pub fn kind(&self) -> OperationKind {
        match self {
            Self::Install(_) => OperationKind::Install,
            Self::Upgrade(_) => OperationKind::Upgrade,
            Self::Rollback { .. } => OperationKind::Rollback,
            Self::Uninstall { .. } => OperationKind::Uninstall,
            Self::Test => OperationKind::Test,
            Self::Pull(_) => OperationKind::Pull,
        }
    }

    /// helm's arguments. `timeout` is helm's own, for one wait; `values` counts the files.
    pub(super) fn arguments(&self, key: &Key, timeout: Duration, values: usize) -> Vec<OsString> {
        let mut line = Arguments::default();
        match self {
            Self::Install(deploy) => {
                line.words(["install", &key.name]);
                line.0.push(deploy.chart.path.clone().into());
                line.words(["--replace"]);
                line.deploy(deploy, values);
            }
            Self::Upgrade(deploy) => {
                line.words(["upgrade", &key.name]);
                line.0.push(deploy.chart.path.clone().into());
                // Without values helm would take those of the last revision.
                line.words(["--install", "--reset-values", "--history-max", &deploy.history_max.to_string()]);
                line.deploy(deploy, values);
            }
            Self::Rollback { revision, wait, history_max, force_conflicts } => {
                line.words(["rollback", &key.name, &revision.to_string()]);
                line.words(["--history-max", &history_max.to_string()]);
                line.take_back(*force_conflicts);
                line.flag(*wait, "--wait=watcher");
            }
            Self::Uninstall { keep_history, wait } => {
                line.words(["uninstall", &key.name, "--ignore-not-found"]);
                line.flag(*keep_history, "--keep-history");
                line.flag(*wait, "--wait=watcher");
            }
            Self::Test => line.words(["test", &key.name]),
            Self::Pull(pull) => return pull.arguments(),
        }
        line.words(["--namespace", &key.namespace, "--timeout", &format!("{}s", timeout.as_secs().max(1))]);
        line.0
    }
}

#[derive(Default)]
struct Arguments(Vec<OsString>);

impl Arguments {
    fn words<const N: usize>(&mut self, words: [&str; N]) {
        self.0.extend(words.map(OsString::from));
    }

    /// What installs and upgrades have in common.
    fn deploy(&mut self, deploy: &Deploy, values: usize) {
        // Notes may quote values.
        self.words(["--hide-notes"]);
        for index in 0..values {
            self.words(["--values", &values_file(index)]);
        }
        self.flag(deploy.skip_crds, "--skip-crds");
        self.take_back(deploy.force_conflicts);
        self.flag(deploy.wait, "--wait=watcher");
    }

    /// The server finds conflicts in a server-side apply, and helm applies on its own side where the last revision did: those
    /// of helm 3 did.
    fn take_back(&mut self, is_set: bool) {
        self.flag(is_set, "--force-conflicts");
        self.flag(is_set, "--server-side=true");
    }

    fn flag(&mut self, is_set: bool, flag: &str) {
        if is_set {
            self.0.push(flag.into());
        }
    }
}

/// Relative to helm's working directory: an absolute path could hold a comma, which helm takes for a separator.
pub(super) fn values_file(index: usize) -> String {
    format!("values-{index}.yaml")
}

/// The whole environment of helm, beside what the configuration passes on (proxies).
///
/// `GOMEMLIMIT` at 80 % of the hard limit leaves room for what is not Go's heap: with it the four-object chart works
/// from 128 MiB on and needs 103 MiB at most. `GOGC` at 400 lets the heap grow further between collections, which
/// took 0.20 s of CPU instead of 0.26 s for an install and 0.33 s instead of 0.45 s for an upgrade of that chart, for
/// 103 MiB resident instead of 75; `off` saved no more and took 164 MiB. Stack traces of a helm that ran out of memory
/// would only push its message out of the tail.
pub(super) fn environment(
    operation: &std::path::Path,
    cache: &std::path::Path,
    memory: u64,
) -> Vec<(OsString, OsString)> {
    let home = cache.join("home");
    [
        ("HOME", home.clone().into()),
        ("TMPDIR", operation.into()),
        ("KUBECONFIG", operation.join(KUBECONFIG).into()),
        ("HELM_CACHE_HOME", home.join("helm-cache").into()),
        ("HELM_CONFIG_HOME", home.join("helm-config").into()),
        ("HELM_DATA_HOME", home.join("helm-data").into()),
        // helm's own store of pulled archives has no bound and does not ask who may read them.
        ("HELM_CONTENT_CACHE", operation.join("content").into()),
        ("HELM_REPOSITORY_CONFIG", operation.join(REPOSITORIES).into()),
        ("HELM_REPOSITORY_CACHE", index_directory(cache).into()),
        ("HELM_REGISTRY_CONFIG", operation.join(REGISTRY).into()),
        ("GOMEMLIMIT", (memory / 5 * 4).to_string().into()),
        ("GOGC", "400".into()),
        ("GOTRACEBACK", "none".into()),
    ]
    .map(|(name, value): (&str, OsString)| (name.into(), value))
    .into()
}

/// Where the indexes of repositories lie, in the form in which helm looks for them.
pub(super) fn index_directory(cache: &std::path::Path) -> PathBuf {
    cache.join("index")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(operation: &Operation, values: usize, expected: &str) {
        let arguments = operation.arguments(&Key::new("team-a", "web"), Duration::from_mins(5), values);
        let line: Vec<_> = arguments.iter().map(|word| word.to_string_lossy()).collect();
        assert_eq!(line.join(" "), expected);
    }

    fn deploy(wait: bool) -> Deploy {
        let chart =
            Chart { path: "/cache/a.tgz".into(), name: "a".into(), version: "1.0.0".into(), digest: "d".into() };
        Deploy { chart: Arc::new(chart), wait, history_max: 5, skip_crds: false, force_conflicts: false }
    }

    #[test]
    fn every_operation_has_its_line() {
        check(
            &Operation::Install(deploy(true)),
            2,
            "install web /cache/a.tgz --replace --hide-notes --values values-0.yaml --values values-1.yaml --wait=watcher \
             --namespace team-a --timeout 300s",
        );
        let quick = Deploy { skip_crds: true, force_conflicts: true, ..deploy(false) };
        check(
            &Operation::Upgrade(quick),
            0,
            "upgrade web /cache/a.tgz --install --reset-values --history-max 5 --hide-notes --skip-crds \
             --force-conflicts --server-side=true --namespace team-a --timeout 300s",
        );
        check(
            &Operation::Rollback { revision: 3, wait: true, history_max: 5, force_conflicts: false },
            0,
            "rollback web 3 --history-max 5 --wait=watcher --namespace team-a --timeout 300s",
        );
        check(
            &Operation::Uninstall { keep_history: true, wait: false },
            0,
            "uninstall web --ignore-not-found --keep-history --namespace team-a --timeout 300s",
        );
        check(&Operation::Test, 0, "test web --namespace team-a --timeout 300s");
        let pull = Pull {
            reference: "oci://r/web".into(),
            version: "^1".into(),
            destination: "/in".into(),
            plain_http: true,
            ca: Some(CA.into()),
        };
        check(
            &Operation::Pull(pull),
            0,
            "pull oci://r/web --version ^1 --destination /in --plain-http --ca-file ca.pem",
        );
    }
}
