//! `strata release diff`: the chart as the next upgrade would render it, beside what is deployed.

use std::{collections::BTreeMap, ffi::OsString, fmt::Debug, path::PathBuf, process::ExitCode, time::Duration};

use api::{
    condition::{ConditionStatus, ConditionType, Reason},
    workspace::{ChartReference, HelmRelease, HelmReleaseSpec, Repository, SecretReference, ValuesKind},
};
use clap::Args;
use k8s_openapi::{NamespaceResourceScope, api::core::v1::Secret};
use kube::{Api, Client};
use plan::releases::Values;
use serde::{Deserialize, de::DeserializeOwned};
use tokio::signal::unix::{SignalKind, signal};
use workspaces::{
    helm::{ChartRef, archive::file_digest, redact, secrets_in},
    values,
};

use super::{
    difference::{coloured, difference},
    helm::{Helm, on_disk, words},
};
use crate::{
    Failure,
    config::duration,
    connection::ConnectionFlags,
    explained,
    objects::{Objects, decode, full_name},
    output::print,
};

#[derive(Debug, Args)]
pub struct Flags {
    /// Name of the HelmRelease
    name: String,
    /// The helm program [default: helm on the PATH]
    #[arg(long, env = "STRATA_HELM", value_name = "FILE", default_value = "helm", hide_default_value = true)]
    helm: PathBuf,
    /// How long it may take at most
    #[arg(long, value_parser = duration, default_value = "2m", value_name = "DURATION")]
    timeout: Duration,
}

const FETCH_HINT: &str =
    "can this machine reach the repository, and are spec.chart's name, version, secretRef and plainHTTP right?";
const STORAGE_HINT: &str = "a diff needs the right to read the Secrets in which Helm keeps the release";

pub async fn run(
    flags: &Flags,
    connection: &ConnectionFlags,
    client: Client,
    namespace: String,
) -> Result<ExitCode, Failure> {
    let no_signals = |error: std::io::Error| Failure::new(format!("cannot listen for signals: {error}"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signals)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(no_signals)?;
    // Whatever ends it, the private files are removed and helm is ended on the way out.
    let diff = tokio::select! {
        diff = compare(flags, connection, Sources { client, namespace }) => diff?,
        () = tokio::time::sleep(flags.timeout) => {
            let waited = api::workspace::Span(flags.timeout);
            return Err(Failure::new(format!("no answer after {waited}")).hint("wait longer with --timeout"));
        }
        _ = interrupt.recv() => return Err(Failure::new("interrupted")),
        _ = terminate.recv() => return Err(Failure::new("terminated")),
    };
    if diff.is_empty() {
        anstream::eprintln!("nothing would change");
        return Ok(ExitCode::SUCCESS);
    }
    print(&coloured(&diff))?;
    Ok(ExitCode::from(1))
}

async fn compare(flags: &Flags, connection: &ConnectionFlags, sources: Sources) -> Result<String, Failure> {
    let releases = Objects::releases(sources.client.clone(), Some(sources.namespace.clone()));
    let object = releases.get(&flags.name).await?;
    let release: HelmRelease = decode(&object)?;
    refused(&release).map_or(Ok(()), |why| {
        let name = full_name(&object);
        Err(Failure::new(format!("the operator refuses {name}: {why}"))
            .hint("correct it first; until then the operator does not upgrade"))
    })?;
    let spec = release.spec.ok_or_else(|| {
        Failure::new(format!("{} has no spec that can be read", full_name(&object)))
            .hint("compare it with `kubectl explain helmrelease.spec` and correct it")
    })?;
    let mut helm = Helm::new(flags.helm.clone(), connection)?;
    let chart = sources.fetch(&spec.chart, &mut helm).await?;
    let values = sources.values(&spec, &mut helm).await?;
    let name = spec.release_name.as_deref().unwrap_or(&flags.name);
    let target = spec.target_namespace.as_deref().unwrap_or(&sources.namespace);
    let (next, deployed) = tokio::try_join!(next(&helm, name, target, chart, values), deployed(&helm, name, target))?;
    difference(&deployed, &next)
}

/// Why the operator would not even try an upgrade, whatever it would change.
const REFUSALS: [Reason; 4] =
    [Reason::InvalidSpec, Reason::MemoryExceedsBudget, Reason::ValuesInvalid, Reason::ObjectTaken];

/// What the operator has against the present spec.
fn refused(release: &HelmRelease) -> Option<&str> {
    let ready = release.status.as_ref()?.condition(ConditionType::Ready)?;
    let is_refusal = REFUSALS.contains(&ready.reason);
    let is_current = ready.observed_generation == release.metadata.generation;
    (is_refusal && is_current && ready.status == ConditionStatus::False).then_some(ready.message.as_str())
}

#[derive(Deserialize)]
struct Rendered {
    #[serde(default)]
    manifest: String,
}

/// What an upgrade would store as its manifest.
async fn next(
    helm: &Helm<'_>,
    name: &str,
    namespace: &str,
    chart: PathBuf,
    values: Vec<PathBuf>,
) -> Result<String, Failure> {
    let mut line = words(["upgrade", name]);
    line.push(chart.into());
    line.extend(words(["--install", "--reset-values", "--dry-run=server", "-o", "json", "-n", namespace]));
    line.extend(values.into_iter().flat_map(|file| [OsString::from("--values"), file.into()]));
    let hint = "an upgrade by the operator would fail too; correct the values or the chart";
    let answer = helm.run("render the chart", hint, line).await?;
    // serde_json's own message would quote what it read.
    let rendered: Rendered = serde_json::from_str(&answer)
        .map_err(|_| Failure::new("helm's dry run printed no JSON").hint("install helm 3.13 or newer"))?;
    Ok(rendered.manifest)
}

#[derive(Deserialize)]
struct Revision {
    revision: u32,
    status: String,
}

/// The manifest of the deployed revision, else of the newest; none where nothing is installed.
async fn deployed(helm: &Helm<'_>, name: &str, namespace: &str) -> Result<String, Failure> {
    let answer =
        helm.run("read the release", STORAGE_HINT, words(["history", name, "-o", "json", "-n", namespace])).await;
    let history: Vec<Revision> = match answer {
        Ok(answer) => {
            serde_json::from_str(&answer).map_err(|_| Failure::new("helm's history cannot be read as JSON"))?
        }
        Err(failure) if failure.message.contains("release: not found") => return Ok(String::new()),
        Err(failure) => return Err(failure),
    };
    let good = history.iter().rev().find(|one| one.status == "deployed").or(history.last());
    let Some(good) = good else { return Ok(String::new()) };
    let revision = good.revision.to_string();
    let line = words(["get", "manifest", name, "--revision", &revision, "-n", namespace]);
    helm.run("read the manifest", STORAGE_HINT, line).await
}

/// Where charts and values come from, read with the user's own rights.
struct Sources {
    client: Client,
    namespace: String,
}

impl Sources {
    /// The chart on disk, fetched unless it is a local one.
    async fn fetch(&self, chart: &ChartReference, helm: &mut Helm<'_>) -> Result<PathBuf, Failure> {
        let secret = match &chart.secret_ref {
            Some(SecretReference { name }) => {
                let secret: Option<Secret> = self.read("Secret", name).await?;
                let missing = || {
                    Failure::new(format!("there is no Secret {name} in namespace {}", self.namespace))
                        .hint("spec.chart.secretRef names it; create it, or remove the reference")
                };
                secret.ok_or_else(missing)?.data.unwrap_or_default()
            }
            None => BTreeMap::new(),
        };
        let invalid = |why| Failure::new(why).hint("the release waits for it as well; spec.chart.secretRef names it");
        let wanted = ChartRef::new(chart, secret).map_err(invalid)?;
        if let Some(path) = wanted.local() {
            return if path.exists() {
                Ok(path.to_owned())
            } else {
                Err(Failure::new(format!("the chart is on the operator's own disk, at {}", path.display()))
                    .hint("put the same chart there on this machine, or run this where the operator runs"))
            };
        }
        helm.conceal(wanted.secrets());
        for (name, content) in wanted.files(helm.home()) {
            helm.write(name, content.expose())?;
        }
        let repo = redact(&chart.repo, &wanted.secrets());
        if chart.repository() == Some(Repository::Http) {
            let doing = format!("read the chart repository {repo}");
            helm.run(&doing, FETCH_HINT, words(["repo", "update"])).await?;
        }
        let doing = format!("fetch the chart {} from {repo}", chart.name);
        let said = helm.run(&doing, FETCH_HINT, wanted.pull(helm.home(), helm.home().to_owned()).arguments()).await?;
        let archive = helm.archive()?;
        let digest = file_digest(&archive).map_err(|error| on_disk(&error))?;
        wanted.verify(&said, &digest).map_err(|mismatch| {
            Failure::new(format!("{mismatch} in spec.chart.digest"))
                .hint("the operator refuses it as well; pin the new digest if the change is wanted")
        })?;
        Ok(archive)
    }

    /// One private file for each document, in the order in which they win.
    async fn values(&self, spec: &HelmReleaseSpec, helm: &mut Helm<'_>) -> Result<Vec<PathBuf>, Failure> {
        let mut documents = Vec::new();
        for source in &spec.values_from {
            let data = match source.kind {
                ValuesKind::Secret => self.read("Secret", &source.name).await?.map(values::of_secret),
                ValuesKind::ConfigMap => self.read("ConfigMap", &source.name).await?.map(values::of_config_map),
            };
            match values::read(source, data) {
                Ok(document) => documents.push(document),
                Err(fault) => self.check(fault)?,
            }
        }
        self.check(values::values(spec, Vec::new()))?;
        helm.conceal(secrets_in(&values::of_secrets(&documents)).collect());
        let files = values::files(spec, documents).into_iter().enumerate();
        files.map(|(index, content)| helm.write(&format!("values-{index}.yaml"), content.expose())).collect()
    }

    async fn read<K>(&self, kind: &str, name: &str) -> Result<Option<K>, Failure>
    where
        K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        let objects: Api<K> = Api::namespaced(self.client.clone(), &self.namespace);
        objects.get_opt(name).await.map_err(|error| {
            Failure::new(format!("cannot read {kind} {name}: {}", explained(&error)))
                .hint("a diff needs the right to get the Secrets and ConfigMaps that the release names")
        })
    }

    /// What the operator would not give to helm is not compared either.
    fn check(&self, values: Values) -> Result<(), Failure> {
        match values {
            Values::Read { .. } => Ok(()),
            Values::Missing(what) => Err(Failure::new(format!("{what} in namespace {}", self.namespace))
                .hint("create it, or mark the entry optional; the release would wait for it as well")),
            Values::Invalid(why) | Values::Unknown(why) => {
                Err(Failure::new(why).hint("the operator refuses it as well"))
            }
        }
    }
}
