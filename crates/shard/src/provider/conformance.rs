//! What every provider must do.

use super::{MachineInfo, Order, Provider, ProviderError};

/// Why a provider does not conform.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    #[error("the provider failed {what}")]
    Failed { what: &'static str, source: ProviderError },
    #[error("the provider broke a promise: {0}")]
    Broke(&'static str),
}

/// Runs the suite with two instances, `order` and another of the same shard. `next` is the same cloud as another server
/// sees it, which has no memory of what `provider` did. Leaves nothing but the mark of the place.
pub async fn check(provider: &dyn Provider, next: &dyn Provider, order: &Order, other_id: &str) -> Result<(), Unfit> {
    let mark = provider.claim(None, false).await.map_err(failed("to claim its place"))?;
    for known in [mark.as_deref(), None] {
        let again = next.claim(known, false).await.map_err(failed("to find its place again"))?;
        require(again == mark, "a place has one mark")?;
    }
    absent(provider, order).await?;
    made_once(provider, next, order, other_id).await?;
    listed(provider, order, other_id).await?;
    listed(next, order, other_id).await?;
    deleted(provider, next, order, other_id).await?;
    raced(provider, next, order).await?;
    interrupted(provider, next, order).await
}

fn failed(what: &'static str) -> impl FnOnce(ProviderError) -> Unfit {
    move |source| Unfit::Failed { what, source }
}

fn require(holds: bool, promise: &'static str) -> Result<(), Unfit> {
    if holds { Ok(()) } else { Err(Unfit::Broke(promise)) }
}

async fn absent(provider: &dyn Provider, order: &Order) -> Result<(), Unfit> {
    let missing = provider.status(&order.instance_id).await.map_err(failed("to look for nothing"))?;
    require(missing.is_none(), "what was never made is not there")?;
    provider.delete(&order.instance_id).await.map_err(failed("to delete nothing"))?;
    require(provider.pid(&order.instance_id).is_none(), "what was never made has no process")
}

/// A repeated order is the same order, whichever server repeats it.
async fn made_once(provider: &dyn Provider, next: &dyn Provider, order: &Order, other_id: &str) -> Result<(), Unfit> {
    let id = &*order.instance_id;
    let made = provider.create(order).await.map_err(failed("to create"))?;
    require(made.instance_id == id && !made.provider_id.is_empty(), "a machine has its label and an id")?;
    require(!made.status.is_down(), "what was just made runs, or is about to")?;
    let again = provider.create(order).await.map_err(failed("to create again"))?;
    require(same(&again, &made), "the same name is the same machine")?;
    let other = Order { instance_id: other_id.to_owned(), ..order.clone() };
    let second = provider.create(&other).await.map_err(failed("to create another"))?;
    require(second.provider_id != made.provider_id, "another name is another machine")?;

    let adopted = next.status(id).await.map_err(failed("to look for another server's machine"))?;
    require(adopted.is_some_and(|found| same(&found, &made)), "the next server finds a machine by its label")?;
    // What the first server's order said is what runs: a later template is for later machines.
    let changed = Order { userdata: format!("{}\n", order.userdata), ..order.clone() };
    let adopted = next.create(&changed).await.map_err(failed("to create another server's machine again"))?;
    require(same(&adopted, &made), "the next server's order of the same name is the same machine")?;
    let node = provider.node_provider_id(&order.shard, &made);
    let last = node.rsplit('/').next().unwrap_or_default();
    require(node.contains("://") && (last == id || last == made.provider_id), "a node's id ends in the machine's")?;
    require(next.node_provider_id(&order.shard, &adopted) == node, "all servers name a node alike")
}

fn same(one: &MachineInfo, other: &MachineInfo) -> bool {
    // The age decides what is an orphan: it is the machine's, not that of a look at it.
    (&one.instance_id, &one.provider_id, one.created_at) == (&other.instance_id, &other.provider_id, other.created_at)
}

async fn listed(provider: &dyn Provider, order: &Order, other_id: &str) -> Result<(), Unfit> {
    let list = provider.list(&order.cluster, &order.shard).await.map_err(failed("to list"))?;
    let mut labels: Vec<_> = list.iter().map(|machine| &*machine.instance_id).collect();
    labels.sort_unstable();
    let mut expected = [&*order.instance_id, other_id];
    expected.sort_unstable();
    require(labels == expected, "a list has every machine of the shard, once, with its label")?;
    let is_labelled = |machine: &MachineInfo| machine.group == order.group && machine.on_demand == order.on_demand;
    require(list.iter().all(is_labelled), "a list says of which group a machine is, and whether it is on demand")?;
    for (cluster, shard) in [(&*order.cluster, "another"), ("another", &*order.shard)] {
        let foreign = provider.list(cluster, shard).await.map_err(failed("to list another shard"))?;
        require(foreign.is_empty(), "a list has no other shard's or cluster's machines")?;
    }
    Ok(())
}

/// Any server deletes, and as often as it likes.
async fn deleted(provider: &dyn Provider, next: &dyn Provider, order: &Order, other_id: &str) -> Result<(), Unfit> {
    let id = &*order.instance_id;
    for (gone, by) in [(id, next), (other_id, provider)] {
        by.delete(gone).await.map_err(failed("to delete"))?;
        provider.delete(gone).await.map_err(failed("to delete again"))?;
        let status = provider.status(gone).await.map_err(failed("to look"))?;
        require(status.is_none_or(|machine| machine.status.is_down()), "what was deleted does not run")?;
        require(provider.pid(gone).is_none(), "what was deleted has no process")?;
    }
    let list = provider.list(&order.cluster, &order.shard).await.map_err(failed("to list"))?;
    require(list.iter().all(|machine| machine.status.is_down()), "no deleted machine is listed as running")
}

/// A leader and its successor may send the same order at the same moment.
async fn raced(provider: &dyn Provider, next: &dyn Provider, order: &Order) -> Result<(), Unfit> {
    let (one, other) = tokio::join!(provider.create(order), next.create(order));
    let (one, other) = (one.map_err(failed("to create"))?, other.map_err(failed("to create at the same time"))?);
    require(same(&one, &other), "two servers that create the same name make one machine")?;
    let list = next.list(&order.cluster, &order.shard).await.map_err(failed("to list"))?;
    let running = list.iter().filter(|machine| !machine.status.is_down()).count();
    require(running == 1, "two servers that create the same name make one machine")?;
    let (one, other) = tokio::join!(provider.delete(&order.instance_id), next.delete(&order.instance_id));
    one.and(other).map_err(failed("to delete at the same time"))
}

/// The server dies in the middle of a call: its successor finds all of the machine or nothing, and either can be
/// ordered again and deleted.
async fn interrupted(provider: &dyn Provider, next: &dyn Provider, order: &Order) -> Result<(), Unfit> {
    let id = &*order.instance_id;
    drop(futures::poll!(Box::pin(provider.create(order))));
    let made = next.create(order).await.map_err(failed("to create what was interrupted"))?;
    let list = next.list(&order.cluster, &order.shard).await.map_err(failed("to list"))?;
    let of_it: Vec<_> = list.iter().filter(|machine| machine.instance_id == id).collect();
    require(of_it.len() == 1 && same(of_it[0], &made), "an interrupted creation leaves one machine or none")?;
    drop(futures::poll!(Box::pin(provider.delete(id))));
    next.delete(id).await.map_err(failed("to delete what was interrupted"))?;
    let found = next.status(id).await.map_err(failed("to look"))?;
    require(found.is_none_or(|machine| machine.status.is_down()), "an interrupted deletion can be repeated")
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
            arch: text("amd64"),
            subnet: text("s1"),
            ..Order::default()
        };
        let provider = InProcess::new(Clock::stepped("2026-01-01T00:00:00Z".parse().unwrap()));
        check(&provider, &provider.clone(), &order, "web02").await.unwrap();
        assert_eq!(provider.made(), 4);
    }
}
