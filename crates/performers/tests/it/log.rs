//! What the operator writes to its log.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::EnvFilter;

use crate::{
    harness::{World, spec_with},
    observe::eventually,
};

/// Lines of one operator, as the product formats them for machines.
#[derive(Clone, Default)]
pub struct Logs(Arc<Mutex<Vec<u8>>>);

impl io::Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Logs {
    /// Takes in what this thread logs, in the form that `runtime::init_logs` gives it, and more of it than by default.
    pub fn capture(&self) -> DefaultGuard {
        let logs = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new("debug"))
            .with_writer(move || logs.clone())
            .json()
            .flatten_event(true)
            .with_current_span(true)
            .with_span_list(false)
            .finish();
        tracing::subscriber::set_default(subscriber)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    /// The lines of the rounds in one namespace.
    pub fn of_namespace(&self, namespace: &str) -> Vec<Value> {
        let lines = self.text();
        let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("every line is JSON"));
        lines.filter(|line| line["span"]["namespace"] == namespace).collect()
    }
}

const CANARY: &str = "canary-7f3a9c-do-not-tell";

#[tokio::test]
async fn p46_lines_are_structured_and_hold_no_environment_value() -> Result<()> {
    let world = World::calm().await;
    let space = world.space("log").await;
    let config = json!({ "environment": { "TOKEN": CANARY }, "args": ["--token", CANARY] });
    space.create_ready("a", spec_with(json!({ "config": config }))).await?;
    let former = space.pod("a").await?;
    space.patch("a", json!({ "spec": { "config": { "environment": { "MORE": CANARY } } } })).await?;
    space.until_replaced("a", &former).await?;
    space.until_settled("a").await?;
    let refused = json!({ "config": { "environment": { "TOKEN": CANARY }, "serviceAccountName": "missing" } });
    space.create("refused", spec_with(refused)).await?;
    space.until_condition("refused", "Degraded", "True", "PodRejected").await?;
    space.delete_and_wait("a").await?;
    // The line of a failed round follows its status.
    let is_failure = |line: &Value| line["message"] == "round failed" && line["level"] == "ERROR";
    let is_logged = async || Ok(world.logs.of_namespace(&space.namespace).iter().any(is_failure));
    eventually("the refusal is logged", is_logged).await?;

    let lines = world.logs.of_namespace(&space.namespace);
    for line in &lines {
        let performer = line["span"]["performer"].as_str().unwrap_or_default();
        let expected = ["a", "refused"].map(|name| format!("{}/{name}", space.namespace));
        assert!(expected.iter().any(|name| name == performer), "{line}");
    }
    let messages = |message: &str| lines.iter().filter(|line| line["message"] == message).collect::<Vec<_>>();
    assert!(messages("reconciled").iter().any(|line| line["level"] == "INFO" && line["phase"] == "Running"));
    assert_eq!(messages("creating pod")[0]["podName"], "performer-a");
    assert_eq!(messages("creating pod")[0]["image"], "registry.test/performer:v1");
    assert_eq!(messages("creating service")[0]["serviceName"], "performer-a");
    assert_eq!(messages("creating service")[0]["port"], 9090);
    let failure = lines.iter().find(|line| is_failure(line)).context("the refusal is logged")?;
    assert!(failure["recovery"].as_str().is_some_and(|recovery| !recovery.is_empty()), "{failure}");
    assert_eq!(failure["span"]["performer"], format!("{}/refused", space.namespace));
    assert!(!world.logs.text().contains(CANARY), "the log tells an environment value");
    Ok(())
}
