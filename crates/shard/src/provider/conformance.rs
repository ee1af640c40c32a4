//! What every provider must do.

use super::{Order, Provider, ProviderError};

/// Why a provider does not conform.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    #[error("the provider failed {what}")]
    Failed { what: &'static str, source: ProviderError },
    #[error("the provider broke a promise: {0}")]
    Broke(&'static str),
}

/// Runs the suite with two instances, `order` and another of the same shard. Leaves nothing.
pub async fn check(provider: &dyn Provider, order: &Order, other_id: &str) -> Result<(), Unfit> {
    let id = &*order.instance_id;
    let failed = |what| move |source| Unfit::Failed { what, source };
    let missing = provider.status(id).await.map_err(failed("to look for nothing"))?;
    require(missing.is_none(), "what was never made is not there")?;
    provider.delete(id).await.map_err(failed("to delete nothing"))?;

    let made = provider.create(order).await.map_err(failed("to create"))?;
    require(made.instance_id == id && !made.provider_id.is_empty(), "a machine has its label and an id")?;
    let again = provider.create(order).await.map_err(failed("to create again"))?;
    require(again.provider_id == made.provider_id, "the same name is the same machine")?;
    let other = Order { instance_id: other_id.to_owned(), ..order.clone() };
    let second = provider.create(&other).await.map_err(failed("to create another"))?;
    require(second.provider_id != made.provider_id, "another name is another machine")?;

    let found = provider.status(id).await.map_err(failed("to look"))?;
    require(found.is_some_and(|found| found.provider_id == made.provider_id), "what was made is there")?;
    let list = provider.list(&order.cluster, &order.shard).await.map_err(failed("to list"))?;
    let mut labels: Vec<_> = list.iter().map(|machine| &*machine.instance_id).collect();
    labels.sort_unstable();
    let mut expected = [id, other_id];
    expected.sort_unstable();
    require(labels == expected, "a list has every machine of the shard, once, with its label")?;
    let foreign = provider.list(&order.cluster, "another").await.map_err(failed("to list another shard"))?;
    require(foreign.is_empty(), "a list has no other shard's machines")?;
    let node = provider.node_provider_id(&order.shard, &made);
    let last = node.rsplit('/').next().unwrap_or_default();
    require(node.contains("://") && (last == id || last == made.provider_id), "a node's id ends in the machine's")?;

    for gone in [id, other_id] {
        provider.delete(gone).await.map_err(failed("to delete"))?;
        provider.delete(gone).await.map_err(failed("to delete again"))?;
        let status = provider.status(gone).await.map_err(failed("to look"))?;
        require(status.is_none_or(|machine| machine.status.is_down()), "what was deleted does not run")?;
    }
    let list = provider.list(&order.cluster, &order.shard).await.map_err(failed("to list"))?;
    require(list.iter().all(|machine| machine.status.is_down()), "no deleted machine is listed as running")
}

fn require(holds: bool, promise: &'static str) -> Result<(), Unfit> {
    if holds { Ok(()) } else { Err(Unfit::Broke(promise)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock::Clock, provider::InProcess};

    #[tokio::test]
    async fn the_in_process_provider_conforms() {
        let text = str::to_owned;
        let order = Order {
            instance_id: text("web01"),
            cluster: text("dev"),
            shard: text("dev-1"),
            tenant: text("default"),
            group: text("web"),
            instance_type: String::new(),
            arch: text("amd64"),
            subnet: text("s1"),
            userdata: String::new(),
            vars: std::collections::BTreeMap::default(),
            args: serde_json::Map::default(),
        };
        let provider = InProcess::new(Clock::stepped("2026-01-01T00:00:00Z".parse().unwrap()));
        check(&provider, &order, "web02").await.unwrap();
        assert_eq!(provider.made(), 2);
    }
}
