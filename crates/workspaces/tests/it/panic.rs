//! A panic in a round (W15). Nothing in the layers panics by itself; here the log does, in the middle of their rounds.

use std::{
    collections::BTreeSet,
    io,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Result;
use serde_json::{Value, json};

use crate::{
    workspace,
    world::{Running, Vacant},
};

/// Panics at the end of the first round of each kind that is about an object of the name `shaky`.
#[derive(Clone, Default)]
struct Shaking(Arc<Mutex<BTreeSet<&'static str>>>);

impl io::Write for Shaking {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let line: Value = serde_json::from_slice(bytes)?;
        let is_shaky = |kind: &&str| line["span"][kind].as_str().is_some_and(|key| key.ends_with("/shaky"));
        let kind = ["workspace", "user", "helmrelease"].into_iter().find(is_shaky);
        if let Some(kind) = kind.filter(|_| line["message"] == "reconciled") {
            let is_first = self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(kind);
            assert!(!is_first, "shaken");
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn w15_a_panic_in_a_round_of_each_kind_ends_that_round_alone() -> Result<()> {
    let place = Vacant::take().await?;
    let shaking = Shaking::default();
    let subscriber = tracing_subscriber::fmt().json().flatten_event(true).with_writer(move || shaking.clone()).finish();
    let _logs = tracing::subscriber::set_default(subscriber);
    let operator = Running::start(place.config().await?, None).await?;
    let (shaken, calm) = (place.space("shaken").await?, place.space("calm").await?);
    let spec = |name: &str| {
        json!({
            "services": { name: { "chart": shaken.chart("four", "1.0.0") } },
            "users": [{ "slug": name, "email": "a@example.com", "permissions": ["code-server"] }],
        })
    };
    let panics = |kind: &str| operator.metric("controller_runtime_reconcile_panics_total", &[kind]);
    for (space, name) in [(&shaken, "shaky"), (&calm, "calm")] {
        let space = workspace::Space { client: space.client.clone(), namespace: space.namespace.clone() };
        space.ready_workspace(name, spec(name)).await?;
    }
    assert_eq!(["workspace", "user", "helmrelease"].map(|kind| format!("{}", panics(kind))), ["1"; 3]);
    shaken.check_history("shaky", "1 deployed").await?;
    operator.stop().await
}
