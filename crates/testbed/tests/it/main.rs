//! The testbed's own tests, on the real programs.
#![expect(clippy::unwrap_used, reason = "all of this is tests; clippy takes only the marked functions for such")]

mod charts;
mod cloud;
mod cluster_api;
mod control_plane;
mod fault_proxy;
mod lifetime;
mod machines;
mod pods;
mod real_node;
mod restarts;
mod skip;
mod tool_cache;

use std::{fmt::Debug, time::Duration};

use anyhow::{Context, Result};
use kube::{
    Api,
    runtime::wait::{Condition, await_condition},
};

/// Nothing here takes more than a few seconds on an idle machine; a loaded one is many times slower.
const PATIENCE: Duration = Duration::from_mins(3);

/// Waits until the object fulfils the condition.
async fn eventually<K>(api: &Api<K>, name: &str, condition: impl Condition<K>) -> Result<Option<K>>
where
    K: kube::Resource + Clone + Debug + Send + serde::de::DeserializeOwned + 'static,
{
    // Boxed: a watch's state is large and every caller would carry it.
    let settled = Box::pin(await_condition(api.clone(), name, condition));
    if let Ok(settled) = tokio::time::timeout(PATIENCE, settled).await {
        return Ok(settled?);
    }
    let present = api.get_opt(name).await?;
    Err(anyhow::anyhow!("{present:#?}")).with_context(|| format!("{name} did not become as expected"))
}
