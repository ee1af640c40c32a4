//! `strata release diff` with the real helm.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use anyhow::Result;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use testbed::{
    charts::{Access, ChartRepository, PASSWORD, Registry, USERNAME, sample},
    helm::Helm,
    tools,
};

use super::place::{Place, Said, ready, run};

const CANARY: &str = "planted-secret-value";

struct Diff {
    place: Place,
    helm: Helm,
    /// The command's directory for temporary files, which must be empty after it.
    temporary: TempDir,
}

impl Diff {
    async fn new() -> Result<Self> {
        Ok(Self { place: Place::new().await?, helm: Helm::current().await?, temporary: tempfile::tempdir()? })
    }

    async fn run(&self, name: &str) -> Result<Said> {
        self.run_with(&tools::path("helm").await?, &["release", "diff", name]).await
    }

    async fn run_with(&self, helm: &Path, args: &[&str]) -> Result<Said> {
        let mut command = self.place.command(args);
        command.env("TMPDIR", self.temporary.path()).env("STRATA_HELM", helm);
        let said = run(command).await?;
        assert_eq!(fs::read_dir(self.temporary.path())?.count(), 0, "private files were left");
        assert!(!said.out.contains(CANARY) && !said.err.contains(CANARY), "{said:?}");
        Ok(said)
    }

    async fn secret(&self, name: &str, data: Value) -> Result<()> {
        let secrets: Api<Secret> = Api::namespaced(self.place.control_plane.client().await?, &self.place.namespace);
        let secret = json!({ "metadata": { "name": name }, "stringData": data });
        secrets.create(&PostParams::default(), &serde_json::from_value(secret)?).await?;
        Ok(())
    }

    async fn release(&self, name: &str, spec: Value) -> Result<()> {
        self.place.release(name, spec, json!({ "observedGeneration": 0 })).await
    }

    /// What the operator would do.
    async fn install(&self, name: &str, chart: &Path, settings: &[&str]) -> Result<()> {
        let kubeconfig = self.place.kubeconfig.display().to_string();
        let chart = chart.display().to_string();
        let line = ["upgrade", "--install", name, &chart, "--namespace", &self.place.namespace];
        let settings = settings.iter().flat_map(|setting| ["--set", setting]);
        self.helm.run(line.into_iter().chain(settings).chain(["--kubeconfig", &kubeconfig])).await?;
        Ok(())
    }
}

#[tokio::test]
async fn a_diff_tells_by_its_exit_code_whether_the_next_upgrade_changes_anything() -> Result<()> {
    let diff = Diff::new().await?;
    let repository = ChartRepository::start(Access::Login).await?;
    diff.secret("login", json!({ "username": USERNAME, "password": PASSWORD })).await?;
    diff.secret("web-values", json!({ "values.yaml": "note: from-the-secret\nreplicas: 0\n" })).await?;
    let chart = json!({
        "repo": repository.url(), "name": "four", "version": "~1.0", "secretRef": { "name": "login" },
    });
    let spec = json!({ "chart": chart, "valuesFrom": [{ "kind": "Secret", "name": "web-values" }] });
    diff.release("web", spec).await?;

    let absent = diff.run("web").await?;
    assert_eq!(absent.code, 1, "{absent:?}");
    assert!(absent.out.contains("+kind: Deployment\n") && !absent.out.contains("\n-kind"), "{absent:?}");

    diff.install("web", &sample("four", "1.0.0").await?.path, &["note=from-the-secret"]).await?;
    let same = diff.run("web").await?;
    assert_eq!((same.code, same.out.as_str()), (0, ""), "{same:?}");

    let patch = Patch::Merge(json!({ "spec": { "values": { "note": "a new note" } } }));
    diff.place.releases.patch("web", &PatchParams::default(), &patch).await?;
    let changed = diff.run("web").await?;
    assert_eq!(changed.code, 1, "{changed:?}");
    assert!(
        changed.out.contains("--- Deployment.apps web (deployed)\n+++ Deployment.apps web (next)\n"),
        "{changed:?}"
    );
    assert!(changed.out.contains("from-the-secret\n") && changed.out.contains("a new note\n"), "{changed:?}");
    Ok(())
}

#[tokio::test]
async fn charts_of_a_registry_are_compared_and_their_digest_is_checked() -> Result<()> {
    let diff = Diff::new().await?;
    let registry = Registry::start(Access::Login).await?;
    let archive = sample("four", "1.0.0").await?;
    let manifest = registry.push(archive).await?;
    diff.secret("login", json!({ "username": USERNAME, "password": PASSWORD })).await?;
    let chart = json!({
        "repo": registry.url(), "name": "four", "version": "1.0.0", "plainHTTP": true, "digest": archive.digest,
        "secretRef": { "name": "login" },
    });
    diff.release("web", json!({ "chart": chart })).await?;
    diff.install("web", &archive.path, &[]).await?;
    let same = diff.run("web").await?;
    assert_eq!((same.code, same.out.as_str()), (0, ""), "{same:?}");

    let pin = async |digest: &str| {
        let patch = Patch::Merge(json!({ "spec": { "chart": { "digest": digest } } }));
        diff.place.releases.patch("web", &PatchParams::default(), &patch).await
    };
    pin(&manifest).await?;
    let same = diff.run("web").await?;
    assert_eq!((same.code, same.out.as_str()), (0, ""), "{same:?}");
    pin(&"0".repeat(64)).await?;
    let refusal = diff.run("web").await?.refusal(2)?;
    assert!(
        refusal.contains("not the pinned sha256:000") && refusal.contains("in spec.chart.digest\nhint:"),
        "{refusal}"
    );
    Ok(())
}

#[tokio::test]
async fn what_is_secret_is_shown_by_no_diff_and_no_error() -> Result<()> {
    let diff = Diff::new().await?;
    let source = tempfile::tempdir()?;
    fs::create_dir(source.path().join("templates"))?;
    fs::write(source.path().join("Chart.yaml"), "apiVersion: v2\nname: keys\nversion: 1.0.0\n")?;
    let template = "apiVersion: v1\nkind: Secret\nmetadata: {name: keys}\nstringData: {token: {{ .Values.token }}}\n\
                    {{ if .Values.fails }}{{ fail .Values.token }}{{ end }}";
    fs::write(source.path().join("templates/secret.yaml"), template)?;
    diff.secret("values", json!({ "values.yaml": format!("token: {CANARY}") })).await?;
    let chart = json!({ "repo": format!("file://{}", source.path().display()), "name": "keys" });
    let spec = json!({ "chart": chart, "valuesFrom": [{ "kind": "Secret", "name": "values" }] });
    diff.release("keys", spec).await?;
    diff.install("keys", source.path(), &["token=old-value"]).await?;

    let changed = diff.run("keys").await?;
    assert_eq!(changed.code, 1, "{changed:?}");
    assert!(changed.out.contains("*** (deployed)") && changed.out.contains("*** (next)"), "{changed:?}");
    assert!(!changed.out.contains("old-value"), "{changed:?}");

    let patch = async |spec: Value| {
        let patch = Patch::Merge(json!({ "spec": spec }));
        diff.place.releases.patch("keys", &PatchParams::default(), &patch).await
    };
    patch(json!({ "values": { "fails": true } })).await?;
    let refusal = diff.run("keys").await?.refusal(2)?;
    assert!(refusal.contains("cannot render the chart; helm said:") && refusal.contains("[redacted]"), "{refusal}");

    patch(json!({ "valuesFrom": [{ "kind": "Secret", "name": "gone" }] })).await?;
    let refusal = diff.run("keys").await?.refusal(2)?;
    assert!(
        refusal.contains("Secret gone of spec.valuesFrom does not exist in namespace")
            && refusal.contains("hint: create it"),
        "{refusal}"
    );
    patch(json!({ "values": { "large": 9_007_199_254_740_993_i64 }, "valuesFrom": null })).await?;
    let refusal = diff.run("keys").await?.refusal(2)?;
    assert!(
        refusal.contains("spec.values.large: ") && refusal.contains("hint: the operator refuses it as well"),
        "{refusal}"
    );
    patch(json!({ "chart": { "repo": "file:///not/there" } })).await?;
    let refusal = diff.run("keys").await?.refusal(2)?;
    assert!(refusal.contains("the operator's own disk, at /not/there\nhint:"), "{refusal}");
    Ok(())
}

#[tokio::test]
async fn what_the_operator_refuses_is_told_in_its_words() -> Result<()> {
    let diff = Diff::new().await?;
    let why = "spec.memory is 9 bytes, the limit for all helm processes together is 8; lower it";
    let spec = json!({ "chart": { "repo": "file:///not/there", "name": "root" } });
    diff.place.release("web", spec, ready("False", "MemoryExceedsBudget", why)).await?;
    let refusal = diff.run("web").await?.refusal(2)?;
    assert!(
        refusal.contains("the operator refuses") && refusal.contains(&format!("{why}\nhint: correct it first")),
        "{refusal}"
    );
    // What was said of an earlier spec is over.
    let patch = Patch::Merge(json!({ "spec": { "memory": "256Mi" } }));
    diff.place.releases.patch("web", &PatchParams::default(), &patch).await?;
    let refusal = diff.run("web").await?.refusal(2)?;
    assert!(refusal.contains("the operator's own disk"), "{refusal}");
    Ok(())
}

#[tokio::test]
async fn a_helm_that_is_missing_or_hangs_is_told_and_nothing_is_left() -> Result<()> {
    let diff = Diff::new().await?;
    let spec = json!({ "chart": { "repo": "file:///", "name": "root" }, "values": { "token": CANARY } });
    diff.release("web", spec).await?;
    let refusal = diff.run_with(Path::new("/not/there"), &["release", "diff", "web"]).await?.refusal(2)?;
    assert!(refusal.contains("cannot start /not/there") && refusal.contains("hint: install helm"), "{refusal}");

    let programs = tempfile::tempdir()?;
    let hangs = programs.path().join("helm");
    fs::write(&hangs, "#!/bin/sh\nexec sleep 600\n")?;
    fs::set_permissions(&hangs, fs::Permissions::from_mode(0o755))?;
    let refusal = diff.run_with(&hangs, &["release", "diff", "web", "--timeout", "1s"]).await?.refusal(2)?;
    assert!(refusal.contains("no answer after 1s\nhint: wait longer"), "{refusal}");
    Ok(())
}
