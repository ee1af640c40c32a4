//! A node that stays after all.

use anyhow::Result;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use plan::drain::{DRAIN_ANNOTATION, End};
use serde_json::json;

use crate::{
    engine::{Engine, ended, order},
    place::Place,
};

/// Whether the node is cordoned, and by which drain.
fn cordon(node: &Node) -> (bool, Option<&String>) {
    let is_cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or_default();
    (is_cordoned, node.metadata.annotations.as_ref().and_then(|all| all.get(DRAIN_ANNOTATION)))
}

#[tokio::test]
async fn a_drain_that_is_undone_takes_back_its_own_cordon_and_no_other() -> Result<()> {
    let place = Place::new().await?;
    let nodes = &place.nodes;
    let engine = Engine::start(&place.proxy).await?;
    for is_users in [false, true] {
        let node = place.node().await?;
        if is_users {
            let params = PatchParams { field_manager: Some("kubectl-cordon".into()), ..PatchParams::default() };
            nodes.patch(&node, &params, &Patch::Merge(json!({ "spec": { "unschedulable": true } }))).await?;
        }
        let mut drain = engine.begin(&node, order("this"), None);
        assert_eq!(ended(&mut drain).await?.end, Some(End::Drained));
        engine.drains.undo(&node, "another").await?;
        assert_eq!(cordon(&nodes.get(&node).await?), (true, Some(&"this".to_owned())), "another drain's is not ours");
        engine.drains.undo(&node, "this").await?;
        assert_eq!(cordon(&nodes.get(&node).await?), (is_users, None));
        assert!(engine.drains.progress(&node).is_none());
        // Twice is once.
        engine.drains.undo(&node, "this").await?;
        assert_eq!(cordon(&nodes.get(&node).await?), (is_users, None));
    }
    engine.drains.undo("gone", "this").await?;
    Ok(())
}
