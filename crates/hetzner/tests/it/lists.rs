//! Looks: how many requests they cost, and who shares them.

use std::time::Duration;

use anyhow::Result;
use futures::future::join_all;
use hetzner::{Class, Clients, Server, Since, Token};
use testbed::hetzner::{Access, Kind};
use tokio::time::Instant;

use crate::{TOKEN, World, server, settings};

fn reads(world: &World) -> Result<usize> {
    Ok(world.log()?.iter().filter(|line| line.method == "GET" && line.path == "/servers").count())
}

#[tokio::test]
async fn a_thousand_servers_are_listed_in_twenty_requests_for_all_who_ask() -> Result<()> {
    let world = World::with(|options| options.requests_per_hour = 36_000).await?;
    let endpoint = world.simulator.endpoint();
    assert!(world.simulator.add_servers(TOKEN, "s", 1000));
    // Different holders of the same token.
    let clients = Clients::new(settings());
    let holders: Vec<_> = (0..10).map(|_| clients.get(&endpoint, &Token::new(TOKEN)).unwrap()).collect();
    let since = Since::At(Instant::now());
    let looks = join_all(holders.iter().map(|client| client.look::<Server>(since))).await;
    for look in looks {
        assert_eq!(look?.items.len(), 1000);
    }
    assert_eq!(reads(&world)?, 20);
    // Young enough costs nothing, and too old is read again.
    holders[0].look::<Server>(Since::Within(Duration::from_mins(1))).await?;
    assert_eq!(reads(&world)?, 20);
    holders[0].look::<Server>(Since::At(Instant::now())).await?;
    assert_eq!(reads(&world)?, 40);
    Ok(())
}

#[tokio::test]
async fn a_server_that_moves_across_a_page_is_not_missed() -> Result<()> {
    let world = World::start().await?;
    assert!(world.simulator.add_servers(TOKEN, "s", 60));
    // The second page is late, and a server of the first is gone meanwhile: one of the second is on the first now.
    for seconds in ["slow=0", "slow=0.5"] {
        world.simulator.faults().add("GET /servers", seconds.parse()?, Some(1))?;
    }
    let change = async {
        while reads(&world)? < 1 {
            tokio::task::yield_now().await;
        }
        assert!(world.simulator.lose("s-0").await);
        anyhow::Ok(())
    };
    let (names, changed) = tokio::join!(world.names::<Server>(), change);
    changed?;
    let expected: Vec<String> = (1..60).map(|number| format!("s-{number}")).collect();
    assert_eq!(names?, expected);
    Ok(())
}

#[tokio::test]
async fn a_failed_look_is_unknown_and_not_empty() -> Result<()> {
    let world = World::start().await?;
    world.client.ensure::<Server>(&server("one")).await?;
    world.simulator.faults().add("GET /servers", "503".parse()?, None)?;
    let error = world.client.look::<Server>(Since::At(Instant::now())).await.unwrap_err();
    assert_eq!(error.class(), Class::Transient, "{error}");
    world.simulator.faults().clear();
    assert_eq!(world.names::<Server>().await?, ["one"]);
    Ok(())
}

#[tokio::test]
async fn a_look_survives_faults_that_pass() -> Result<()> {
    let world = World::start().await?;
    world.client.ensure::<Server>(&server("one")).await?;
    for kind in ["cut", "lost-response", "409", "500", "502", "504"] {
        world.simulator.faults().add("GET /servers", kind.parse()?, Some(2))?;
        assert_eq!(world.names::<Server>().await?, ["one"], "{kind}");
        assert_eq!(world.simulator.faults().list(), [], "{kind}");
    }
    Ok(())
}

#[tokio::test]
async fn tokens_of_other_projects_see_nothing_and_wrong_or_read_only_ones_are_refused() -> Result<()> {
    let world = World::with(|options| {
        options.access.push(Access::new("other", "other"));
        options.access.push(Access { is_read_only: true, ..Access::new("reader", "tests") });
    })
    .await?;
    world.client.ensure::<Server>(&server("one")).await?;
    let clients = Clients::new(settings());
    let client = |token: &str| clients.get(&world.simulator.endpoint(), &Token::new(token)).unwrap();
    let since = || Since::At(Instant::now());
    assert_eq!(client("other").look::<Server>(since()).await?.items.len(), 0);
    assert_eq!(client("reader").look::<Server>(since()).await?.items.len(), 1);
    let refused = client("reader").ensure::<Server>(&server("two")).await.unwrap_err();
    assert_eq!((refused.class(), refused.code()), (Class::Unauthorised, Some("token_readonly")));
    let refused = client("wrong").look::<Server>(since()).await.unwrap_err();
    assert_eq!((refused.class(), refused.code()), (Class::Unauthorised, Some("unauthorized")));
    let text = format!("{refused} {refused:?}");
    assert!(text.contains("use a token of this project") && !text.contains("wrong"), "{text}");
    Ok(())
}

#[tokio::test]
async fn k42_a_spent_rate_limit_is_waited_for_and_never_met_twice() -> Result<()> {
    // Ten a second, so that the test need not wait for an hour.
    let world = World::with(|options| options.requests_per_hour = 36_000).await?;
    world.client.ensure::<Server>(&server("one")).await?;
    world.simulator.faults().add("GET /servers", Kind::RateLimit, Some(1))?;
    let urgent = world.client.urgent();
    let looks = (0..5).map(|_| urgent.look::<Server>(Since::At(Instant::now())));
    for look in join_all(looks).await {
        assert_eq!(look?.items.len(), 1);
    }
    for name in ["two", "three"] {
        urgent.ensure::<Server>(&server(name)).await?;
    }
    let refused = world.log()?.iter().filter(|line| line.status == 429).count();
    assert_eq!(refused, 1, "only the one that another user of the project caused");
    Ok(())
}

#[tokio::test]
async fn an_urgent_look_does_not_wait_for_one_that_waits_for_requests() -> Result<()> {
    let world = World::with(|options| options.requests_per_hour = 36_000).await?;
    world.simulator.spend_all_but(TOKEN, 2000);
    let client = Clients::new(hetzner::Settings { budget_patience: Duration::from_hours(1), ..settings() });
    let client = client.get(&world.simulator.endpoint(), &Token::new(TOKEN))?;
    client.get::<Server>(1).await?;
    // It has to wait for a reserve of 3600.
    let routine = tokio::spawn({
        let client = client.clone();
        async move { client.look::<Server>(Since::At(Instant::now())).await }
    });
    // Now it has begun.
    tokio::task::yield_now().await;
    client.urgent().look::<Server>(Since::At(Instant::now())).await?;
    assert!(!routine.is_finished(), "it waits on");
    routine.abort();
    Ok(())
}

#[tokio::test]
async fn k42_many_requests_at_once_cause_no_429() -> Result<()> {
    let world = World::with(|options| options.requests_per_hour = 36_000).await?;
    world.simulator.spend_all_but(TOKEN, 12);
    let urgent = world.client.urgent();
    let asked = (0..20).map(|id| urgent.get::<Server>(id));
    for found in join_all(asked).await {
        assert!(found?.is_none());
    }
    assert_eq!(world.log()?.iter().filter(|line| line.status == 429).count(), 0);
    // The reserve is not for looks.
    let settings = hetzner::Settings { budget_patience: Duration::ZERO, ..settings() };
    let client = Clients::new(settings).get(&world.simulator.endpoint(), &Token::new(TOKEN))?;
    client.get::<Server>(1).await?;
    let refused = client.get::<Server>(1).await.unwrap_err();
    assert_eq!(refused.class(), Class::RateLimited);
    assert!(refused.retry_after().is_some());
    Ok(())
}
