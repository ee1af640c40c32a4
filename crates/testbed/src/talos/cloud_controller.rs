//! A stand-in for the part of a cloud controller manager that deletes the Nodes of servers that are gone. As the
//! original it looks only at Nodes that are not ready, and leaves those whose server is merely off.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Preconditions},
};

use super::world::Shared;
use crate::kwok::is_node_ready;

/// What the provider IDs of Hetzner's servers begin with.
const PROVIDER: &str = "hcloud://";

/// Looks at the Nodes every `period`, until the testbed ends.
pub(super) async fn run(client: Client, world: Shared, period: Duration) {
    loop {
        tokio::time::sleep(period).await;
        match delete_lost(&client, &world).await {
            Ok(is_over) if is_over => return,
            Ok(_) => {}
            // Unknown is not absent: the next look decides.
            Err(error) => tracing::debug!(%error, "the stand-in cloud controller cannot look at the Nodes"),
        }
    }
}

/// Whether the testbed has ended.
async fn delete_lost(client: &Client, world: &Shared) -> kube::Result<bool> {
    let nodes = Api::<Node>::all(client.clone());
    for node in nodes.list(&ListParams::default()).await? {
        let Some(world) = world.upgrade() else { return Ok(true) };
        let is_lost = server_of(&node).is_some_and(|server| !world.has_server(server));
        drop(world);
        if is_lost && !is_node_ready(Some(&node)) {
            let preconditions = Some(Preconditions { uid: node.uid(), resource_version: None });
            let name = node.name_any();
            match nodes.delete(&name, &DeleteParams { preconditions, ..DeleteParams::default() }).await {
                // Another client was quicker.
                Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => {}
                deleted => drop(deleted?),
            }
        }
    }
    Ok(false)
}

/// The number of the server that a Node says it is; `None` for a Node of another provider.
fn server_of(node: &Node) -> Option<u64> {
    node.spec.as_ref()?.provider_id.as_deref()?.strip_prefix(PROVIDER)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::NodeSpec;

    use super::*;

    #[test]
    fn only_nodes_of_the_provider_have_a_server() {
        let node = |provider_id: Option<&str>| {
            let spec = NodeSpec { provider_id: provider_id.map(str::to_owned), ..NodeSpec::default() };
            Node { spec: Some(spec), ..Node::default() }
        };
        assert_eq!(server_of(&node(Some("hcloud://1001"))), Some(1001));
        for foreign in [None, Some("kwok://1001"), Some("hcloud://bm-7"), Some("hcloud://")] {
            assert_eq!(server_of(&node(foreign)), None, "{foreign:?}");
        }
    }
}
