//! The operator's own ports: health, readiness, metrics.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use serde_json::json;
use testbed::{ControlPlane, Options};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    failure::no_more_pods,
    harness::{Running, World, alone, install_account, install_crd, operator_user, spec, spec_with},
    observe::{eventually, number},
    scene::Scene,
};

/// Status code and body.
async fn get(address: Option<SocketAddr>, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(address.context("it listens")?).await?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("a whole answer")?;
    let code = head.split(' ').nth(1).context("a status line")?.parse()?;
    Ok((code, body.to_owned()))
}

#[tokio::test]
async fn p45_metrics_tell_of_a_scripted_run() -> Result<()> {
    let world = World::calm().await;
    let space = world.space("metrics").await;
    let requests = json!({ "requests": { "cpu": "500m", "memory": "1Gi" } });
    for name in ["a", "b"] {
        space.create_ready(name, spec_with(json!({ "resources": requests }))).await?;
    }
    no_more_pods(&space).await?;
    space.create("refused", spec()).await?;
    space.until_condition("refused", "Degraded", "True", "PodRejected").await?;
    // A round is counted when it has ended, just after its status is seen.
    let labels = format!(r#"controller="performer",namespace="{}",class="invalid""#, space.namespace);
    let failures = format!("strata_reconcile_errors_total{{{labels}}}");
    eventually("the refusal is counted", async || Ok(world.operator.metric(&failures) >= 1.0)).await?;

    let (code, text) = get(world.operator.addresses.metrics, "/metrics").await?;
    assert_eq!(code, 200);
    let namespace = &space.namespace;
    let value = |start: String| text.lines().find(|line| line.starts_with(&start)).and_then(number);
    let here = |metric: &str, rest: &str| value(format!("{metric}{{namespace=\"{namespace}\",{rest}}}"));
    assert_eq!(here("strata_performers", "phase=\"Running\""), Some(2.0));
    assert_eq!(here("strata_performers", "phase=\"Pending\""), Some(1.0));
    assert_eq!(here("strata_performer_requests", "resource=\"cpu\""), Some(1.0));
    assert_eq!(here("strata_performer_requests", "resource=\"memory\""), Some(2_147_483_648.0));
    let of = |metric: &str, rest: &str| value(format!("{metric}{{controller=\"performer\"{rest}}}"));
    let rounds = of("strata_reconcile_total", &format!(",namespace=\"{namespace}\",result=\"success\""));
    assert!(rounds >= Some(4.0), "{rounds:?}");
    let failed = of("strata_reconcile_errors_total", &format!(",namespace=\"{namespace}\",class=\"invalid\""));
    assert!(failed >= Some(1.0), "{failed:?}");
    assert!(of("controller_runtime_reconcile_total", ",result=\"success\"") >= rounds);
    assert!(of("controller_runtime_reconcile_errors_total", "") >= failed);
    assert!(of("controller_runtime_reconcile_time_seconds_count", "") >= rounds);
    assert_eq!(of("controller_runtime_max_concurrent_reconciles", ""), Some(10.0));
    assert!(of("controller_runtime_active_workers", "").is_some());
    let queue = |metric: &str| value(format!("{metric}{{name=\"performer\",controller=\"performer\"}}"));
    assert!(queue("workqueue_depth").is_some());
    assert!(queue("workqueue_adds_total") >= rounds);
    assert!(queue("workqueue_retries_total") >= failed);
    assert!(value("workqueue_queue_duration_seconds_count".to_owned()) >= rounds);
    assert!(text.ends_with("# EOF\n"));

    space.delete_and_wait("refused").await?;
    space.delete_and_wait("a").await?;
    // The operator may hear of it after the test does.
    let running = format!("strata_performers{{namespace=\"{namespace}\",phase=\"Running\"}}");
    eventually("one runs", async || Ok((1.0..2.0).contains(&world.operator.metric(&running)))).await?;
    Ok(())
}

#[tokio::test]
async fn p51_ready_only_when_every_cache_is_filled() -> Result<()> {
    let control_plane = ControlPlane::start(Options { fsync: false, ..Options::bare() }).await?;
    install_account(&control_plane).await?;
    let client = runtime::connect(control_plane.config_as(&operator_user()).await?)?;
    let operator = Running::start(client, alone(), performers::Config::default()).await?;
    let address = operator.addresses.health;
    eventually("the missing definition is reported", || async {
        let (code, text) = get(address, "/readyz").await?;
        assert_eq!(code, 503, "{text}");
        Ok(text.contains("[-]cache performers: ") && text.contains("404") && text.contains("[+]cache pods ok"))
    })
    .await?;
    for path in ["/healthz", "/livez"] {
        assert_eq!(get(address, path).await?, (200, "ok\n".to_owned()), "alive, though not ready");
    }
    install_crd(&control_plane.client().await?, &api::performer::crd()).await?;
    eventually("it is ready", || async { Ok(get(address, "/readyz").await?.0 == 200) }).await?;
    let (_, text) = get(address, "/readyz").await?;
    for cache in ["performers", "pods", "services"] {
        assert!(text.contains(&format!("[+]cache {cache} ok\n")), "{text}");
    }
    assert!(text.ends_with("\nready\n"));
    assert_eq!(get(address, "/nowhere").await?.0, 404);
    operator.stop().await?;
    control_plane.stop().await?;
    Ok(())
}

/// A watch that is open is not yet a cache that is filled: each list in turn is longer under way than the others.
#[tokio::test]
async fn p51_not_ready_while_any_list_is_under_way() -> Result<()> {
    const CACHES: [&str; 3] = ["performers", "pods", "services"];
    let scene = Scene::lent().await?;
    let space = scene.space("listing").await?;
    space.create("a", spec()).await?;
    for late in CACHES {
        let before = scene.writes(&space.namespace).len();
        let held = scene.proxy.hold_events(late);
        let operator = scene.operator(alone(), performers::Config::default()).await?;
        let address = operator.addresses.health;
        eventually("all but one are filled", || async {
            let (code, text) = get(address, "/readyz").await?;
            assert_eq!(code, 503, "{late}: {text}");
            let filled = CACHES.iter().filter(|cache| text.contains(&format!("[+]cache {cache} ok"))).count();
            Ok(filled == 2 && text.contains(&format!("[-]cache {late}: ")))
        })
        .await?;
        assert_eq!(scene.writes(&space.namespace).len(), before, "it acts on half a view");
        held.release();
        eventually("it is ready", || async { Ok(get(address, "/readyz").await?.0 == 200) }).await?;
        space.until("a", "reported on", |performer| performer.status.is_some()).await?;
        operator.stop().await?;
    }
    Ok(())
}
