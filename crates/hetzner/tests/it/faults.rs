//! Every change, with every fault at each of its requests: no duplicate, no orphan, no stray key.

use std::time::Duration;

use anyhow::{Context, Result};
use hetzner::{
    Cause, Class, Client, Clients, Command, Firewall, FirewallRule, LoadBalancer, Network, NetworkAddress,
    PlacementGroup, Server, ServerStatus, ServiceWanted, SshKey, Token,
};
use serde_json::json;
use testbed::hetzner::Kind;

use crate::{TOKEN, World, network, server, settings, ssh_key, wanted};

/// The mutating requests of `build`, in its order.
const CHANGES: [&str; 15] = [
    "POST /networks",
    "POST /networks/*/actions/add_subnet",
    "POST /placement_groups",
    "POST /firewalls",
    "POST /firewalls/*/actions/set_rules",
    "POST /firewalls/*/actions/apply_to_resources",
    "POST /load_balancers",
    "POST /load_balancers/*/actions/attach_to_network",
    "POST /load_balancers/*/actions/add_service",
    "POST /load_balancers/*/actions/add_target",
    "POST /ssh_keys",
    "POST /servers",
    "DELETE /ssh_keys/*",
    "POST /servers/*/actions/attach_to_network",
    "POST /servers/*/actions/poweron",
];

const FAULTS: [&str; 10] = ["lost-response", "cut", "409", "423", "429", "500", "502", "503", "504", "vanished-action"];

/// Everything one control plane needs; as it is repeated, nothing is made twice.
async fn build(client: &Client) -> Result<Server> {
    let client = client.urgent();
    let net: Network = client.ensure(&network("c")).await?.resource;
    client.ensure_subnet(net.id, "10.0.0.0/25", "eu-central").await?;
    let group: PlacementGroup = client.ensure(&wanted("c-cp-pg", json!({ "type": "spread" }))).await?.resource;
    let wall: Firewall = client.ensure(&wanted("c", json!({}))).await?.resource;
    client.ensure_rules(wall.id, &[rule()], "k8zner.io/cluster=c").await?;
    let balancer = wanted("c-kube", json!({ "load_balancer_type": "lb11", "location": "fsn1" }));
    let balancer: LoadBalancer = client.ensure(&balancer).await?.resource;
    let at = |ip| NetworkAddress { network: net.id, ip, ip_range: None };
    client.attach_load_balancer(balancer.id, &at(Some([10, 0, 0, 100].into()))).await?;
    let service = json!({ "protocol": "tcp", "destination_port": 6443 });
    client.ensure_service(balancer.id, &ServiceWanted { listen_port: 6443, body: service }).await?;
    client.ensure_target(balancer.id, "k8zner.io/cluster=c").await?;
    let mut machine = server("c-cp-1");
    machine.body["placement_group"] = json!(group.id);
    machine.body["start_after_create"] = json!(false);
    let made = client.ensure_server_with_key(&machine, &ssh_key("ephemeral-c")).await?.resource;
    client.attach_server(made.id, &at(None)).await?;
    client.command(made.id, Command::PowerOn).await?;
    client.get(made.id).await?.context("the server is there")
}

fn rule() -> FirewallRule {
    FirewallRule {
        direction: "in".to_owned(),
        protocol: "tcp".to_owned(),
        port: Some("6443".to_owned()),
        source_ips: vec!["192.0.2.0/24".to_owned()],
        destination_ips: Vec::new(),
        description: None,
    }
}

async fn check(world: &World, built: &Server, case: &str) -> Result<()> {
    assert_eq!(built.status, ServerStatus::Running, "{case}");
    assert_eq!(built.private_net.len(), 1, "{case}");
    assert!(built.placement_group.is_some(), "{case}");
    assert_eq!(world.names::<Server>().await?, ["c-cp-1"], "{case}");
    assert_eq!(world.names::<SshKey>().await?, [""; 0], "{case}: a stray key");
    assert_eq!(world.names::<Network>().await?, ["c"], "{case}");
    assert_eq!(world.names::<LoadBalancer>().await?, ["c-kube"], "{case}");
    let balancer: LoadBalancer = world.client.by_name("c-kube").await?.context("the load balancer is there")?;
    assert_eq!((balancer.services.len(), balancer.targets.len(), balancer.private_net.len()), (1, 1, 1), "{case}");
    let wall: Firewall = world.client.by_name("c").await?.context("the firewall is there")?;
    assert_eq!((wall.rules.len(), wall.applied_to.len()), (1, 1), "{case}");
    let net: Network = world.client.by_name("c").await?.context("the network is there")?;
    assert_eq!(net.subnets.len(), 1, "{case}");
    Ok(())
}

#[tokio::test]
async fn k39_every_change_survives_every_fault_at_each_of_its_requests() -> Result<()> {
    for kind in FAULTS {
        let world = quick().await?;
        for change in CHANGES {
            world.simulator.faults().add(change, kind.parse()?, Some(1))?;
        }
        let built = build(&world.client).await.with_context(|| format!("{kind} at every change"))?;
        assert_eq!(world.simulator.faults().list(), [], "{kind}: these were never met");
        check(&world, &built, kind).await?;
        check_refusals(&world, kind, CHANGES.len())?;
    }
    Ok(())
}

/// Each request is answered too late, and carried out after the client has asked again.
#[tokio::test]
async fn k39_every_change_survives_an_answer_that_is_late() -> Result<()> {
    let world = quick().await?;
    let settings = hetzner::Settings { request_limit: Duration::from_millis(500), ..settings() };
    let client = Clients::new(settings).get(&world.simulator.endpoint(), &Token::new(TOKEN))?;
    // Learned first: until the API has answered once, one request at a time is sent.
    client.get::<Server>(1).await?;
    for change in CHANGES {
        world.simulator.faults().add(change, Kind::Slow(Duration::from_secs(1)), Some(1))?;
    }
    let built = build(&client).await?;
    assert_eq!(world.simulator.faults().list(), [], "these were never met");
    check(&world, &built, "late").await?;
    check_refusals(&world, "late", 0)
}

/// A hundred requests a second: a 429 that the simulator was asked for costs the test little time.
async fn quick() -> Result<World> {
    World::with(|options| options.requests_per_hour = 360_000).await
}

/// No 429 but the injected ones.
fn check_refusals(world: &World, kind: &str, asked: usize) -> Result<()> {
    let met = world.log()?.iter().filter(|line| line.status == 429).count();
    assert_eq!(met, if kind == "429" { asked } else { 0 }, "{kind}");
    Ok(())
}

/// In the order in which nothing is in use any more.
async fn tear_down(world: &World) -> Result<()> {
    let client = world.client.urgent();
    let id = |found: Option<i64>| found.context("it is there");
    client.delete::<Server>(id(client.by_name::<Server>("c-cp-1").await?.map(|of| of.id))?).await?;
    client.delete::<LoadBalancer>(id(client.by_name::<LoadBalancer>("c-kube").await?.map(|of| of.id))?).await?;
    let wall: Firewall = client.by_name("c").await?.context("the firewall is there")?;
    client.remove_selectors(&wall).await?;
    client.delete::<Firewall>(wall.id).await?;
    client.delete::<PlacementGroup>(id(client.by_name::<PlacementGroup>("c-cp-pg").await?.map(|of| of.id))?).await?;
    client.delete::<Network>(id(client.by_name::<Network>("c").await?.map(|of| of.id))?).await?;
    for names in [world.names::<Server>().await?, world.names::<Network>().await?, world.names::<Firewall>().await?] {
        assert_eq!(names, [""; 0]);
    }
    Ok(())
}

#[tokio::test]
async fn k43_every_removal_survives_every_fault_and_what_is_gone_is_removed() -> Result<()> {
    let removals = [
        "DELETE /servers/*",
        "DELETE /load_balancers/*",
        "POST /firewalls/*/actions/remove_from_resources",
        "DELETE /firewalls/*",
        "DELETE /placement_groups/*",
        "DELETE /networks/*",
    ];
    for kind in FAULTS {
        let world = quick().await?;
        build(&world.client).await?;
        for removal in removals {
            world.simulator.faults().add(removal, kind.parse()?, Some(1))?;
        }
        tear_down(&world).await.with_context(|| format!("{kind} at every removal"))?;
        assert_eq!(world.simulator.faults().list(), [], "{kind}: these were never met");
        check_refusals(&world, kind, removals.len())?;
        world.client.delete::<Server>(1).await.context("what is gone is removed")?;
    }
    Ok(())
}

#[tokio::test]
async fn a_late_answer_is_an_unknown_one() -> Result<()> {
    let world = World::start().await?;
    let settings = hetzner::Settings { request_limit: Duration::from_millis(500), ..settings() };
    let client = Clients::new(settings).get(&world.simulator.endpoint(), &Token::new(TOKEN))?.urgent();
    // Learned first: until the API has answered once, one request at a time is sent.
    client.get::<Server>(1).await?;
    world.simulator.faults().add("POST /servers", Kind::Slow(Duration::from_secs(1)), Some(1))?;
    let made = client.ensure::<Server>(&server("one")).await?;
    assert!(made.was_created);
    assert_eq!(world.names::<Server>().await?, ["one"]);
    Ok(())
}

#[tokio::test]
async fn k41_actions_that_fail_hang_or_vanish_have_errors_of_their_own() -> Result<()> {
    let world = World::start().await?;
    world.simulator.faults().add("POST /servers", Kind::FailedAction, Some(1))?;
    let error = world.client.ensure::<Server>(&server("zero")).await.unwrap_err();
    assert!(matches!(error.cause, Cause::ActionFailed { .. }), "a creation that failed is no success: {error}");
    let made = world.client.ensure::<Server>(&server("one")).await?.resource;
    let off = "POST /servers/*/actions/poweroff";
    world.simulator.faults().add(off, Kind::FailedAction, None)?;
    let error = world.client.command(made.id, Command::PowerOff).await.unwrap_err();
    assert!(matches!(error.cause, Cause::ActionFailed { .. }), "{error}");
    world.simulator.faults().clear();

    let limited = |action_limit: Duration| {
        let settings = hetzner::Settings { action_limit, attempts: 1, ..settings() };
        Clients::new(settings).get(&world.simulator.endpoint(), &Token::new(TOKEN))
    };
    let hasty = limited(Duration::from_millis(100))?;
    world.simulator.faults().add(off, Kind::StuckAction, Some(1))?;
    let error = hasty.command(made.id, Command::PowerOff).await.unwrap_err();
    assert!(matches!(error.cause, Cause::ActionOverdue { .. }), "{error}");
    assert_eq!(error.class(), Class::Conflict);
    let error = hasty.command(made.id, Command::Reboot).await.unwrap_err();
    assert_eq!(error.code(), Some("locked"), "while the other hangs");
    world.simulator.faults().clear();
    world.client.command(made.id, Command::PowerOff).await?;

    world.simulator.faults().add("POST /servers/*/actions/poweron", Kind::VanishedAction, Some(1))?;
    // On a busy machine a tenth of a second may be over before anybody asks for the action.
    let error = limited(Duration::from_secs(20))?.command(made.id, Command::PowerOn).await.unwrap_err();
    assert!(matches!(error.cause, Cause::ActionVanished { .. }), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_reboot_is_repeated_only_where_it_was_not_done() -> Result<()> {
    let world = World::start().await?;
    let made = world.client.ensure::<Server>(&server("one")).await?.resource;
    let reboot = "POST /servers/*/actions/reboot";
    let asked = || anyhow::Ok(world.log()?.iter().filter(|line| line.path.ends_with("/reboot")).count());
    for kind in ["lost-response", "500", "504"] {
        let before = asked()?;
        world.simulator.faults().add(reboot, kind.parse()?, Some(1))?;
        assert!(world.client.command(made.id, Command::Reboot).await.is_err(), "{kind}");
        assert_eq!(asked()? - before, 1, "{kind}");
    }
    for kind in ["409", "423"] {
        let before = asked()?;
        world.simulator.faults().add(reboot, kind.parse()?, Some(1))?;
        world.client.command(made.id, Command::Reboot).await.context(kind)?;
        assert!(asked()? - before >= 2, "{kind}");
    }
    Ok(())
}

#[tokio::test]
async fn capacity_and_limits_are_returned_at_once() -> Result<()> {
    let world = World::start().await?;
    let kind = Kind::Capacity { location: Some("fsn1".to_owned()), server_type: None };
    world.simulator.faults().add("POST /servers", kind, None)?;
    let error = world.client.ensure_server_with_key(&server("one"), &ssh_key("k")).await.unwrap_err();
    assert_eq!(error.class(), Class::Capacity, "{error}");
    assert!(error.to_string().contains("choose another location"), "{error}");
    assert_eq!(world.log()?.iter().filter(|line| line.method == "POST" && line.path == "/servers").count(), 1);
    assert_eq!(world.names::<SshKey>().await?, [""; 0], "a stray key");
    let mut elsewhere = server("one");
    elsewhere.body["location"] = json!("nbg1");
    world.client.ensure::<Server>(&elsewhere).await?;
    Ok(())
}

#[tokio::test]
async fn k46_the_key_goes_whatever_becomes_of_the_server() -> Result<()> {
    let world = quick().await?;
    let settings = hetzner::Settings { action_limit: Duration::from_millis(100), attempts: 2, ..settings() };
    let client = Clients::new(settings).get(&world.simulator.endpoint(), &Token::new(TOKEN))?.urgent();
    let make = async |machine: &hetzner::Wanted| client.ensure_server_with_key(machine, &ssh_key("ephemeral")).await;
    for kind in ["capacity", "failed-action", "stuck-action", "cut", "409", "423", "429", "500"] {
        world.simulator.faults().add("POST /servers", kind.parse()?, None)?;
        let made = make(&server(&format!("s-{kind}"))).await;
        assert!(made.is_err(), "{kind}: {made:?}");
        assert_eq!(world.names::<SshKey>().await?, [""; 0], "{kind}: a stray key");
        world.simulator.faults().clear();
    }
    let mut foreign = server("theirs");
    foreign.owner.1 = "other-cluster".to_owned();
    client.begin::<Server>(&foreign).await?;
    let mut unknown = server("unknown");
    unknown.body["image"] = json!("plan-9");
    for (machine, class) in [(server("theirs"), Class::Terminal), (unknown, Class::Invalid)] {
        let error = make(&machine).await.unwrap_err();
        assert_eq!(error.class(), class, "{error}");
        assert_eq!(world.names::<SshKey>().await?, [""; 0], "{error}: a stray key");
    }
    Ok(())
}

#[tokio::test]
async fn k46_the_key_of_a_creation_that_was_given_up_is_swept() -> Result<()> {
    let world = World::start().await?;
    world.simulator.faults().add("POST /servers", Kind::StuckAction, None)?;
    let (machine, key) = (server("s"), ssh_key("ephemeral-s"));
    let has_begun = async {
        let is_asked = || anyhow::Ok(world.log()?.iter().any(|line| line.method == "POST" && line.path == "/servers"));
        while !is_asked()? {
            tokio::task::yield_now().await;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        made = world.client.ensure_server_with_key(&machine, &key) => anyhow::bail!("it is stuck: {made:?}"),
        begun = has_begun => begun?,
    }
    let left: SshKey = world.client.by_name("ephemeral-s").await?.context("it was left")?;
    let later = left.created.checked_add(jiff::SignedDuration::from_secs(1))?;
    assert_eq!(world.client.sweep_keys(("k8zner.io/cluster", "c"), later).await?, 1);
    assert_eq!(world.names::<SshKey>().await?, [""; 0]);
    Ok(())
}

#[tokio::test]
async fn foreign_resources_are_never_adopted() -> Result<()> {
    let world = World::start().await?;
    let mut foreign = server("one");
    foreign.owner.1 = "other-cluster".to_owned();
    let theirs = world.client.ensure::<Server>(&foreign).await?.resource;
    let error = world.client.ensure::<Server>(&server("one")).await.unwrap_err();
    assert_eq!(error.class(), Class::Terminal);
    assert_eq!(error.cause, Cause::Foreign { kind: "server", name: "one".to_owned(), id: theirs.id });
    // The same key under another name: no look by name can find what is in the way.
    let (one, mut same) = (ssh_key("k1"), ssh_key("k2"));
    same.body = one.body.clone();
    world.client.ensure::<SshKey>(&one).await?;
    let error = world.client.ensure::<SshKey>(&same).await.unwrap_err();
    assert_eq!(error.code(), Some("uniqueness_error"));
    Ok(())
}

#[tokio::test]
async fn k46_keys_that_an_ended_process_left_are_swept() -> Result<()> {
    let world = World::start().await?;
    let key: SshKey = world.client.ensure(&ssh_key("ephemeral-left")).await?.resource;
    let mut foreign = ssh_key("theirs");
    foreign.owner.1 = "other-cluster".to_owned();
    world.client.ensure::<SshKey>(&foreign).await?;
    let owner = ("k8zner.io/cluster", "c");
    assert_eq!(world.client.sweep_keys(owner, key.created).await?, 0, "not older than that");
    let later = key.created.checked_add(jiff::SignedDuration::from_secs(1))?;
    assert_eq!(world.client.sweep_keys(owner, later).await?, 1);
    assert_eq!(world.names::<SshKey>().await?, ["theirs"]);
    Ok(())
}
