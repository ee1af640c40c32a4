//! What the operator writes to its log.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::{
    harness::{World, spec_with},
    observe::eventually,
};

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
