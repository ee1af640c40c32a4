//! A planted secret appears nowhere but where it belongs.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Result;
use api::workspace::ROLLBACK_ANNOTATION;
use kube::api::ListParams;
use serde_json::json;
use testbed::charts::{self, Access, ChartRepository, PASSWORD, USERNAME};

use crate::{
    space::{condition, eventually, message},
    world::World,
};

/// In values, and such that no test of anything else holds it.
const CANARY: &str = "canary-7d1f0e-in-values";
/// A part of more than one line.
const LINES: &str = "canary-1st-line\ncanary-2nd-line";
const NUMBER: &str = "424242424242";

fn all() -> Vec<&'static str> {
    LINES.lines().chain([CANARY, NUMBER, PASSWORD]).collect()
}

fn check(place: &str, text: &str) {
    for secret in all() {
        let at = text.find(secret);
        assert!(at.is_none(), "{secret} is in {place}: {:?}", at.map(|at| &text[at.saturating_sub(300)..at]));
    }
}

/// Arguments and environments of helm processes and their guards, for as long as it is polled.
async fn watch_processes(seen: &mut BTreeSet<String>) {
    loop {
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            for file in ["cmdline", "environ"] {
                let text = fs::read(entry.path().join(file)).unwrap_or_default();
                let text = String::from_utf8_lossy(&text).into_owned();
                if text.contains("helm") {
                    seen.insert(text);
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The files below that hold a secret. Those of an operation that runs do, whosesoever it is.
fn with_secrets(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(with_secrets(&path));
        } else if let Ok(content) = fs::read(&path) {
            let text = String::from_utf8_lossy(&content);
            found.extend(all().iter().any(|secret| text.contains(secret)).then_some(path));
        }
    }
    found
}

/// None is left behind: whatever holds a secret now goes with its operation.
async fn check_files(directory: &Path) -> Result<()> {
    let found = with_secrets(directory);
    let what = format!("no secret is left in {found:?}");
    eventually(&what, async || Ok(!found.iter().any(|path| path.exists()))).await
}

#[tokio::test]
async fn w24_a_planted_secret_is_in_no_log_event_status_metric_argument_or_file() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("canary").await?;
    let repository = ChartRepository::start(Access::Login).await?;
    // A chart that shouts its values.
    let directory = tempfile::tempdir()?;
    let source = charts::write_source("broken", directory.path())?;
    let shout = r#"{{ if .Values.shout }}{{ fail (printf "it is %s and %s and %v" .Values.password .Values.lines .Values.number) }}{{ end }}"#;
    fs::write(source.join("templates/shout.yaml"), shout)?;
    repository.publish(&charts::package(&source, "1.0.1", directory.path()).await?)?;
    space.secret("login", json!({ "username": USERNAME, "password": PASSWORD })).await?;
    let lines = LINES.replace('\n', "\n  ");
    let document = format!("password: {CANARY}\nnumber: {NUMBER}\nlines: |-\n  {lines}\n");
    space.secret("values", json!({ "values.yaml": document })).await?;
    let spec = |name: &str, version: &str, shout: bool| {
        json!({
            "chart": { "repo": repository.url(), "name": name, "version": version, "secretRef": { "name": "login" } },
            "valuesFrom": [{ "kind": "Secret", "name": "values" }],
            "values": { "shout": shout },
        })
    };
    let mut seen = BTreeSet::new();
    let work = async {
        space.install("web", spec("web", "1.0.0", false)).await?;
        assert_eq!(space.values("web").await?["password"], CANARY, "the chart got it");
        space.create("shouts", spec("broken", "1.0.1", true)).await?;
        let shouts = space.condition("shouts", "Ready", "False", "InstallFailed").await?;
        assert!(message(&shouts).contains("it is [redacted]"), "{}", message(&shouts));
        space.until_recorded("shouts", "InstallFailed").await?;
        space.create("unknown", spec("four", "7.7.7", false)).await?;
        space.condition("unknown", "Ready", "False", "ChartNotFound").await?;
        space.delete("web").await?;
        space.gone("web").await
    };
    tokio::select! {
        result = work => result?,
        () = watch_processes(&mut seen) => {}
    }
    assert!(seen.iter().any(|text| text.contains("--hide-notes")), "no helm was seen at work");
    for text in &seen {
        check("a process", text);
    }
    check("the log", &world.logs.text());
    check("the metrics", &world.operator.metrics.encode()?);
    check("the events", &json!(space.events.list(&ListParams::default()).await?.items).to_string());
    check("the objects", &json!(space.releases.list(&ListParams::default()).await?.items).to_string());
    check_files(world.directory.path()).await
}

/// Jobs that fail, and whose names helm then repeats.
const HOOKS: &str = r#"
{{- range list "test" "pre-rollback" "pre-delete" }}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ . }}-{{ $.Values.password }}
  annotations:
    helm.sh/hook: {{ . }}
    helm.sh/hook-delete-policy: before-hook-creation
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      containers:
        - name: main
          image: registry.test/failed:1
{{- end }}
"#;

#[tokio::test]
async fn w24_what_helm_says_about_tests_rollbacks_and_uninstalls_is_redacted_too() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("words").await?;
    let repository = ChartRepository::start(Access::Anyone).await?;
    let directory = tempfile::tempdir()?;
    let source = charts::write_source("four", directory.path())?;
    fs::write(source.join("templates/hooks.yaml"), HOOKS)?;
    repository.publish(&charts::package(&source, "1.0.1", directory.path()).await?)?;
    space.secret("values", json!({ "values.yaml": format!("password: {CANARY}") })).await?;
    let spec = json!({
        "chart": { "repo": repository.url(), "name": "four", "version": "1.0.1" },
        "valuesFrom": [{ "kind": "Secret", "name": "values" }],
        "test": { "enable": true, "ignoreFailures": true },
    });
    let is_redacted = async |kind: &str, reason: &str| {
        let release = space.condition("web", kind, "False", reason).await?;
        let said = condition(&release, kind)["message"].as_str().unwrap_or_default().to_owned();
        assert!(said.contains("-[redacted]"), "{said}");
        space.until_recorded("web", reason).await
    };
    space.create("web", spec).await?;
    is_redacted("TestSuccess", "TestFailed").await?;
    space.change("web", json!({ "values": { "note": "b" } })).await?;
    space.until("web", "upgraded", |release| condition(release, "Ready")["reason"] == "UpgradeSucceeded").await?;
    space.annotate("web", ROLLBACK_ANNOTATION, "1").await?;
    is_redacted("Remediated", "RollbackFailed").await?;
    space.delete("web").await?;
    is_redacted("Ready", "UninstallFailed").await?;
    check("the log", &world.logs.text());
    // Others' events name the objects, which bear it; that is the chart's fault.
    check("our events", &space.recorded("web").await?.join("\n"));
    check("the objects", &json!(space.releases.list(&ListParams::default()).await?.items).to_string());
    // Suspended, it goes without helm.
    space.change("web", json!({ "suspend": true })).await?;
    space.gone("web").await
}
