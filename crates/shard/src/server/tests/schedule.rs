//! Rounds of many groups at once, and names that come from requests.

use std::{sync::Arc, time::Duration};

use plan::shard::refusal::Code;

use super::world::{CONFIG, Server, World};
use crate::{
    server::{Term, TermError, schedule::rounds},
    store::{Expect, Fault, Store, layout::ShardLayout},
    wire::{self, Fence},
};

fn upsert(key: &str, size: i32) -> wire::UpsertGroupRequest {
    let config = wire::GroupConfig { template: "web".to_owned(), size, ..wire::GroupConfig::default() };
    wire::UpsertGroupRequest { key: key.to_owned(), config: Some(config), remove_first: vec![] }
}

/// Lets the rounds of a leader run beside that.
async fn beside<T>(server: &mut Server, work: impl Future<Output = T>) -> T {
    let term = Arc::clone(&server.term);
    let renewals = async {
        loop {
            server.renew().await.unwrap();
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    };
    tokio::select! {
        error = rounds(&term) => panic!("{error}"),
        never = renewals => never,
        done = work => done,
    }
}

/// Lets rounds run until it is so, for a minute at most.
async fn until(server: &mut Server, what: &str, is_so: impl Fn() -> bool) {
    let seen = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let done = beside(server, tokio::time::timeout(Duration::from_mins(1), seen)).await;
    done.unwrap_or_else(|_| panic!("{what} did not happen"));
}

fn machines(world: &World, group: &str) -> usize {
    let orders = world.cloud.machines().into_iter().filter_map(|machine| world.cloud.order(&machine.instance_id));
    orders.filter(|order| order.group == group).count()
}

#[tokio::test(start_paused = true)]
async fn a_group_whose_record_is_damaged_holds_up_no_other() {
    let world = World::new().await;
    let mut server = world.start().await;
    server.settle(&world).await.unwrap();
    // Another hand breaks a record; the group's next write is refused, and what it reads then is no record.
    let id = world.records().into_keys().next().unwrap();
    let folder = ShardLayout::new("a").instances();
    let key = world.store.list(&folder).await.unwrap().remove(0);
    let object = world.store.get(&key).await.unwrap().unwrap();
    world.store.put(&key, b"{".to_vec(), Expect::Content(object.etag.clone())).await.unwrap();
    let fence = Fence::default();
    assert!(server.term.delete_instance("default", &id, &fence).await.is_err());
    server.term.upsert_group("default", upsert("web", 3), &fence).await.unwrap();
    server.term.upsert_group("default", upsert("zoo", 3), &fence).await.unwrap();
    until(&mut server, "the groups beside it", || machines(&world, "web") + machines(&world, "zoo") == 6).await;
    let damaged = world.store.get(&key).await.unwrap().unwrap();
    world.store.put(&key, object.body, Expect::Content(damaged.etag)).await.unwrap();
    server.term.delete_instance("default", &id, &fence).await.expect("it is repaired");
    until(&mut server, "the deletion", || world.cloud.order(&id).is_none()).await;
    until(&mut server, "its replacement", || machines(&world, "fixed") == 1).await;
}

/// A zone whose only instance drains for 20 s, and a server that has nothing else to look at for ten minutes.
async fn draining() -> (World, Server, String) {
    let config = CONFIG.replace("\"size\": 1", "\"size\": 1, \"drain_timeout\": \"20s\"");
    let config = config.replace("\"subnet_pools\"", "\"health_check_interval\": \"10m\", \"subnet_pools\"");
    let world = World::with_config(&config).await;
    let server = world.start().await;
    server.settle(&world).await.unwrap();
    let id = world.records().into_keys().next().unwrap();
    let mut smaller = upsert("fixed", 0);
    smaller.config.as_mut().unwrap().template.clear();
    server.term.upsert_group("default", smaller, &Fence::default()).await.unwrap();
    (world, server, id)
}

#[tokio::test(start_paused = true)]
async fn a_look_that_falls_due_while_all_rounds_are_busy_waits_for_one_of_them() {
    let (world, mut server, id) = draining().await;
    let (term, faults) = (Arc::clone(&server.term), server.faults.clone());
    let others = async {
        tokio::time::sleep(Duration::from_secs(18)).await;
        for number in 0..20 {
            term.upsert_group("default", upsert(&format!("g{number}"), 1), &Fence::default()).await.unwrap();
        }
        // Their rounds last beyond the 20 s.
        faults.set(Fault::Slow(Duration::from_secs(1)));
        while world.records()[&id].deleted_at.is_none() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    beside(&mut server, tokio::time::timeout(Duration::from_mins(5), others)).await.expect("its turn comes");
}

#[tokio::test(start_paused = true)]
async fn a_look_that_is_due_is_not_forgotten_when_another_group_is_asked_for() {
    let (world, mut server, id) = draining().await;
    let (since, term) = (tokio::time::Instant::now(), Arc::clone(&server.term));
    let other = async {
        // It drains; a round of another group comes between, whose next look is far.
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(world.records()[&id].leaving.is_some());
        term.enqueue("default", "none");
        while world.records()[&id].deleted_at.is_none() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    beside(&mut server, other).await;
    assert!(since.elapsed() < Duration::from_secs(25), "{:?}", since.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_tenant_with_many_slow_groups_holds_up_no_other() {
    const MANY: usize = 100;
    let world = World::new().await;
    let mut server = world.start().await;
    let (term, faults) = (Arc::clone(&server.term), server.faults.clone());
    let fence = Fence::default();
    for number in 0..MANY {
        term.upsert_group("aaa", upsert(&format!("slow{number}"), 1), &fence).await.unwrap();
    }
    term.upsert_group("zzz", upsert("web", 1), &fence).await.unwrap();
    // A creation takes seconds.
    faults.set(Fault::Slow(Duration::from_secs(1)));
    until(&mut server, "the other tenant's turn", || machines(&world, "web") == 1).await;
    let slow: usize = (0..MANY).map(|number| machines(&world, &format!("slow{number}"))).sum();
    assert!(slow < MANY / 2, "{slow} of the first tenant's groups had their turn before");
}

/// As large as a request may be, and as many as take every turn of one tenant.
async fn ask_for_everything(term: &Term, tenant: &str) {
    for number in 0..20 {
        term.upsert_group(tenant, upsert(&format!("huge{number}"), 100_000), &Fence::default()).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_tenant_that_asks_for_everything_starves_no_other() {
    let world = World::new().await;
    let mut server = world.start().await;
    let (term, faults) = (Arc::clone(&server.term), server.faults.clone());
    ask_for_everything(&term, "aaa").await;
    faults.set(Fault::Slow(Duration::from_millis(500)));
    until(&mut server, "its beginning", || world.cloud.made() > 20).await;
    let before = world.cloud.made();
    term.upsert_group("zzz", upsert("web", 3), &Fence::default()).await.unwrap();
    until(&mut server, "the other tenant's instances", || machines(&world, "web") == 3).await;
    let meanwhile = world.cloud.made() - before;
    assert!(meanwhile < 200, "{meanwhile} were made before them");
}

/// A shard that makes ten instances per minute, of which none are asked for yet.
async fn limited() -> (World, Server) {
    let config = CONFIG.replace("\"size\": 1", "\"size\": 0");
    let config = config.replace("\"subnet_pools\"", "\"create_rate_limit\": 10, \"subnet_pools\"");
    let world = World::with_config(&config).await;
    let server = world.start().await;
    (world, server)
}

#[tokio::test(start_paused = true)]
async fn tenants_share_a_limit_of_creations_which_holds_for_all_groups_together() {
    let (world, mut server) = limited().await;
    let term = Arc::clone(&server.term);
    ask_for_everything(&term, "aaa").await;
    until(&mut server, "its beginning", || world.cloud.made() == 10).await;
    term.upsert_group("zzz", upsert("web", 3), &Fence::default()).await.unwrap();
    let served = async {
        while machines(&world, "web") < 3 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        tokio::time::sleep(Duration::from_mins(2)).await;
    };
    beside(&mut server, tokio::time::timeout(Duration::from_mins(5), served)).await.expect("the other has its share");
    let mut made: Vec<_> = world.cloud.machines().into_iter().map(|machine| machine.created_at).collect();
    made.sort();
    assert!(made.len() >= 25, "{}: what one does not want goes to the other", made.len());
    for window in made.windows(11) {
        assert!(window[10].duration_since(window[0]).as_secs() >= 60, "more than ten in a minute: {window:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn requests_for_single_instances_leave_other_tenants_their_share_of_the_limit() {
    let (world, mut server) = limited().await;
    let (term, fence) = (Arc::clone(&server.term), Fence::default());
    term.upsert_group("aaa", upsert("own", 0), &fence).await.unwrap();
    for _ in 0..50 {
        let config = wire::InstanceConfig { group: "own".to_owned(), ..wire::InstanceConfig::default() };
        let request = wire::CreateInstanceRequest { instance_id: String::new(), config: Some(config) };
        term.create_instance("aaa", request, &fence).await.unwrap();
    }
    term.upsert_group("zzz", upsert("web", 3), &fence).await.unwrap();
    until(&mut server, "the other tenant's instances", || machines(&world, "web") == 3).await;
}

#[tokio::test(start_paused = true)]
async fn a_tenant_with_many_requests_delays_those_of_no_other() {
    let world = World::new().await;
    let mut server = world.start().await;
    let (term, began) = (Arc::clone(&server.term), tokio::time::Instant::now());
    server.faults.set(Fault::Slow(Duration::from_millis(100)));
    let change = async |tenant: &'static str, number: usize| {
        term.upsert_group(tenant, upsert(&format!("g{number}"), 0), &Fence::default()).await.unwrap();
        began.elapsed()
    };
    let flood = futures::future::join_all((0..50).map(|number| change("aaa", number)));
    let (many, one) = beside(&mut server, async { tokio::join!(flood, change("zzz", 0)) }).await;
    let last = many.into_iter().max().unwrap();
    assert!(one < last / 10, "{one:?} of {last:?}");
}

#[tokio::test(start_paused = true)]
async fn names_of_groups_that_never_were_cost_no_memory() {
    let world = World::new().await;
    let server = world.start().await;
    let ask = |group: String| {
        let config = wire::InstanceConfig { group, ..wire::InstanceConfig::default() };
        let request = wire::CreateInstanceRequest { instance_id: String::new(), config: Some(config) };
        let term = &server.term;
        async move {
            match term.create_instance("default", request, &Fence::default()).await {
                Err(TermError::Refused(refusal)) => refusal.code,
                other => panic!("{other:?}"),
            }
        }
    };
    assert_eq!(ask("x".repeat(1 << 20)).await, Code::InvalidArgument);
    for number in 0..5000 {
        assert_eq!(ask(format!("g{number}")).await, Code::NotFound);
    }
    let kept = server.term.gates.lock().unwrap().len();
    assert!(kept <= 4096, "{kept} names are kept");
}
