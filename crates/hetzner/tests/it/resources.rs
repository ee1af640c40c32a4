//! The simulator's answers to bad input, and what lasts longer than a request.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use futures::future::BoxFuture;
use hetzner::{
    Class, Command, Health, Image, LoadBalancer, Location, Network, Server, ServerStatus, ServerType, ServiceWanted,
    Since, Wanted,
};
use serde_json::{Value, json};
use testbed::hetzner::{Access, Failed, Forwarder, Loopback, Machine, Machines, Options, Simulator};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::Instant,
};

use crate::{TOKEN, World, network, server, wanted};

/// A request that the API refuses with this code.
async fn refused(world: &World, wanted: Wanted, code: &str, class: Class) {
    let case = format!("{wanted:?} {}", wanted.body);
    let error = world.client.ensure::<Server>(&wanted).await.expect_err(&case);
    assert_eq!((error.code(), error.class()), (Some(code), class), "{case}: {error}");
}

fn with(field: &str, value: Value) -> Wanted {
    let mut wanted = server("bad");
    wanted.body[field] = value;
    wanted
}

#[tokio::test]
async fn bad_servers_are_refused_with_the_vendors_codes() -> Result<()> {
    let world = World::start().await?;
    refused(&world, wanted("bad", json!({})), "invalid_input", Class::Invalid).await;
    refused(&world, wanted("no_host_name", server("x").body), "invalid_input", Class::Invalid).await;
    let cases = [
        with("server_type", json!("cx9999")),
        with("image", json!("plan-9")),
        // An image of another architecture.
        with("image", json!(114_690_389)),
        with("location", json!("moon1")),
        with("ssh_keys", json!([4711])),
        with("networks", json!([4711])),
        with("placement_group", json!(4711)),
        with("user_data", json!("x".repeat(40_000))),
        with("server_type", json!({})),
    ];
    for wanted in cases {
        refused(&world, wanted, "invalid_input", Class::Invalid).await;
    }
    let mut labels = server("bad");
    labels.labels.insert("-x".to_owned(), String::new());
    refused(&world, labels, "invalid_input", Class::Invalid).await;
    Ok(())
}

#[tokio::test]
async fn an_eleventh_server_does_not_fit_a_placement_group() -> Result<()> {
    let world = World::start().await?;
    let group: hetzner::PlacementGroup = world.client.ensure(&wanted("g", json!({ "type": "spread" }))).await?.resource;
    let mut member = server("s");
    member.body["placement_group"] = json!(group.id);
    for number in 0..10 {
        member.name = format!("s-{number}");
        world.client.ensure::<Server>(&member).await?;
    }
    member.name = "s-10".to_owned();
    refused(&world, member, "placement_error", Class::Capacity).await;
    Ok(())
}

#[tokio::test]
async fn addresses_that_are_used_or_foreign_are_refused() -> Result<()> {
    let world = World::start().await?;
    let net: Network = world.client.ensure(&network("n")).await?.resource;
    let at = |ip: Option<[u8; 4]>| hetzner::NetworkAddress { network: net.id, ip: ip.map(Into::into), ip_range: None };
    let one = world.client.ensure::<Server>(&server("one")).await?.resource.id;
    let none = world.client.attach_server(one, &at(None)).await.unwrap_err();
    assert_eq!(none.code(), Some("no_subnet_available"));
    world.client.ensure_subnet(net.id, "10.0.0.0/25", "eu-central").await?;
    assert_eq!(world.client.attach_server(one, &at(None)).await?.octets(), [10, 0, 0, 2]);
    let two = world.client.ensure::<Server>(&server("two")).await?.resource.id;
    // Used, the gateway's, outside of every subnet, outside of the network.
    for ip in [[10, 0, 0, 2], [10, 0, 0, 1], [10, 0, 1, 2], [192, 168, 0, 2]] {
        let error = world.client.attach_server(two, &at(Some(ip))).await.unwrap_err();
        assert_eq!(error.code(), Some("ip_not_available"), "{ip:?}");
    }
    let overlap = world.client.ensure_subnet(net.id, "10.0.0.0/24", "eu-central").await.unwrap_err();
    assert_eq!(overlap.code(), Some("invalid_input"));
    Ok(())
}

#[tokio::test]
async fn servers_come_back_with_their_file() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let options = || {
        let mut options = Options::new(vec![Access::new(TOKEN, "tests")]);
        options.file = Some(folder.path().join("state.json"));
        options.action_time = Duration::from_millis(1);
        options
    };
    let first = Simulator::start(options()).await?;
    let client = |simulator: &Simulator| {
        hetzner::Clients::new(crate::settings()).get(&simulator.endpoint(), &hetzner::Token::new(TOKEN))
    };
    let made = client(&first)?.ensure::<Server>(&server("one")).await?.resource;
    first.stop().await;
    let second = Simulator::start(options()).await?;
    let found: Server = client(&second)?.get(made.id).await?.context("it came back")?;
    assert_eq!(found, made);
    let other = client(&second)?.ensure::<Server>(&server("two")).await?.resource;
    assert!(other.id > made.id, "numbers are not used twice");
    Ok(())
}

/// Writes down what happens to the machines; none of them starts while `is_broken`.
#[derive(Default)]
struct Recorder {
    seen: Mutex<Vec<String>>,
    is_broken: AtomicBool,
}

impl Recorder {
    fn note<'a>(&'a self, what: &str, machine: &'a Machine) -> BoxFuture<'a, Result<(), Failed>> {
        self.seen.lock().unwrap().push(format!("{what} {} {:?}", machine.name, machine.private.len()));
        let is_broken = what == "power_on" && self.is_broken.load(Relaxed);
        Box::pin(async move { if is_broken { Err("no power".to_owned()) } else { Ok(()) } })
    }
}

impl Machines for Recorder {
    fn created<'a>(&'a self, machine: &'a Machine) -> BoxFuture<'a, Result<(), Failed>> {
        self.note("created", machine)
    }

    fn deleted<'a>(&'a self, machine: &'a Machine) -> BoxFuture<'a, Result<(), Failed>> {
        self.note("deleted", machine)
    }

    fn power_on<'a>(&'a self, machine: &'a Machine) -> BoxFuture<'a, Result<(), Failed>> {
        self.note("power_on", machine)
    }

    fn power_off<'a>(&'a self, machine: &'a Machine) -> BoxFuture<'a, Result<(), Failed>> {
        self.note("power_off", machine)
    }

    fn reboot<'a>(&'a self, machine: &'a Machine) -> BoxFuture<'a, Result<(), Failed>> {
        self.note("reboot", machine)
    }

    fn network_changed<'a>(&'a self, machine: &'a Machine) -> BoxFuture<'a, Result<(), Failed>> {
        self.note("network_changed", machine)
    }
}

#[tokio::test]
async fn machines_live_as_their_servers_do() -> Result<()> {
    let recorder = Arc::new(Recorder::default());
    let machines = Arc::clone(&recorder);
    let world = World::with(|options| options.machines = machines).await?;
    let mut wanted = server("one");
    wanted.body["start_after_create"] = json!(false);
    let made = world.client.ensure::<Server>(&wanted).await?.resource;
    assert_eq!(made.status, ServerStatus::Off);
    let net: Network = world.client.ensure(&network("n")).await?.resource;
    world.client.ensure_subnet(net.id, "10.0.0.0/25", "eu-central").await?;
    let to = hetzner::NetworkAddress { network: net.id, ..Default::default() };
    world.client.attach_server(made.id, &to).await?;
    recorder.is_broken.store(true, Relaxed);
    let error = world.client.command(made.id, Command::PowerOn).await.unwrap_err();
    assert!(error.to_string().contains("no power"), "{error}");
    recorder.is_broken.store(false, Relaxed);
    for command in [Command::PowerOn, Command::Reboot, Command::PowerOff] {
        world.client.command(made.id, command).await?;
    }
    world.simulator.power_changed(made.id, true);
    let found: Server = world.client.get(made.id).await?.context("it is there")?;
    assert_eq!(found.status, ServerStatus::Running, "it turned itself on");
    world.client.delete::<Server>(made.id).await?;
    let expected = [
        "created one 0",
        "network_changed one 1",
        "power_on one 1",
        "power_on one 1",
        "reboot one 1",
        "power_off one 1",
        "deleted one 1",
    ];
    assert_eq!(*recorder.seen.lock().unwrap(), expected);
    Ok(())
}

#[tokio::test]
async fn what_had_not_ended_ends_with_the_next_simulator() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let recorder = Arc::new(Recorder::default());
    let options = |action_time| {
        let mut options = Options::new(vec![Access::new(TOKEN, "tests")]);
        options.file = Some(folder.path().join("state.json"));
        options.action_time = action_time;
        options.machines = Arc::clone(&recorder) as Arc<dyn Machines>;
        options
    };
    let client = |simulator: &Simulator, action_limit| {
        let settings = hetzner::Settings { action_limit, ..crate::settings() };
        hetzner::Clients::new(settings).get(&simulator.endpoint(), &hetzner::Token::new(TOKEN))
    };
    let first = Simulator::start(options(Duration::from_hours(1))).await?;
    let hasty = client(&first, Duration::from_millis(50))?;
    let error = hasty.ensure::<Server>(&server("one")).await.unwrap_err();
    assert!(matches!(error.cause, hetzner::Cause::ActionOverdue { .. }), "{error}");
    first.stop().await;
    let second = Simulator::start(options(Duration::from_millis(1))).await?;
    let patient = client(&second, Duration::from_mins(1))?;
    let adopted = patient.ensure::<Server>(&server("one")).await?;
    assert_eq!((adopted.was_created, adopted.resource.status), (false, ServerStatus::Running));
    second.stop().await;
    // A machine that ran is powered on again.
    let third = Simulator::start(options(Duration::from_millis(1))).await?;
    let back = async {
        while recorder.seen.lock().unwrap().len() < 3 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), back).await?;
    third.stop().await;
    assert_eq!(*recorder.seen.lock().unwrap(), ["created one 0", "power_on one 0", "power_on one 0"]);
    Ok(())
}

#[tokio::test]
async fn the_log_has_one_whole_line_per_request() -> Result<()> {
    let world = World::start().await?;
    world.simulator.faults().add("POST /servers", "lost-response".parse()?, Some(1))?;
    world.client.ensure::<Server>(&server("one")).await?;
    let text = std::fs::read_to_string(world.log_path())?;
    assert!(text.ends_with('\n'));
    let log = world.log()?;
    let line = log.iter().find(|line| line.method == "POST").context("a server was created")?;
    assert_eq!((line.path.as_str(), line.status), ("/servers", 201), "the answer was produced and then lost");
    assert!(line.time.parse::<jiff::Timestamp>().is_ok(), "{}", line.time);
    assert!(line.time.len() == "2026-01-02T03:04:05.123456Z".len() && line.time.ends_with('Z'), "{}", line.time);
    assert!(log.iter().all(|line| !line.path.contains('?') && !line.path.starts_with("/v1")), "{log:?}");
    assert!(!text.contains(TOKEN));
    Ok(())
}

/// Answers every connection with its own address.
async fn greet(listener: TcpListener) {
    let own = listener.local_addr().unwrap().ip().to_string();
    while let Ok((mut stream, _)) = listener.accept().await {
        // A health check leaves without reading.
        let _ = stream.write_all(own.as_bytes()).await;
    }
}

#[tokio::test]
async fn a_load_balancer_forwards_to_healthy_targets_only() -> Result<()> {
    let range = Loopback::claim().context("a free range of loopback addresses")?;
    let (public, private) = (range.public(), range.private());
    let world = World::with(|options| {
        options.public_range = public;
        options.forwarding = Arc::new(Forwarder::new(300));
    })
    .await?;
    let net: Network = world.client.ensure(&wanted("n", json!({ "ip_range": private.to_string() }))).await?.resource;
    world.client.ensure_subnet(net.id, &private.to_string(), "eu-central").await?;
    let mut targets = Vec::new();
    for name in ["one", "two"] {
        let id = world.client.ensure::<Server>(&server(name)).await?.resource.id;
        let to = hetzner::NetworkAddress { network: net.id, ..Default::default() };
        targets.push(world.client.attach_server(id, &to).await?);
    }
    let balancer: LoadBalancer = world
        .client
        .ensure(&wanted("lb", json!({ "load_balancer_type": "lb11", "location": "fsn1", "network": net.id })))
        .await?
        .resource;
    let check = json!({ "protocol": "tcp", "port": 6443, "interval": 3, "timeout": 2, "retries": 1 });
    let body = json!({ "protocol": "tcp", "destination_port": 6443, "health_check": check });
    world.client.ensure_service(balancer.id, &ServiceWanted { listen_port: 6443, body }).await?;
    world.client.ensure_target(balancer.id, "k8zner.io/cluster=c").await?;
    let first = tokio::spawn(greet(TcpListener::bind((targets[0], 6443)).await?));
    let second = tokio::spawn(greet(TcpListener::bind((targets[1], 6443)).await?));
    let address = balancer.public_net.ipv4.and_then(|of| of.ip).context("a public address")?;
    until(&world, balancer.id, &[Health::Healthy, Health::Healthy]).await?;
    let mut met = [ask(address).await?, ask(address).await?];
    met.sort();
    assert_eq!(met, [targets[0].to_string(), targets[1].to_string()], "by turns");
    second.abort();
    until(&world, balancer.id, &[Health::Healthy, Health::Unhealthy]).await?;
    for _ in 0..3 {
        assert_eq!(ask(address).await?, targets[0].to_string());
    }
    first.abort();
    Ok(())
}

async fn ask(address: std::net::Ipv4Addr) -> Result<String> {
    let mut text = String::new();
    TcpStream::connect((address, 6443)).await?.read_to_string(&mut text).await?;
    Ok(text)
}

/// Asks until the targets are as expected.
async fn until(world: &World, balancer: i64, expected: &[Health]) -> Result<()> {
    let wait = async {
        loop {
            let found: LoadBalancer = world.client.urgent().get(balancer).await?.context("it is there")?;
            let servers = found.targets.iter().flat_map(|target| &target.targets);
            let health: Vec<Health> = servers.flat_map(|of| of.health_status.iter().map(|of| of.status)).collect();
            if health == expected {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), wait).await?
}

#[tokio::test]
async fn a_snapshot_is_made_once() -> Result<()> {
    let world = World::start().await?;
    let made = world.client.ensure::<Server>(&server("build")).await?.resource;
    let labels =
        hetzner::Labels::from([("os".to_owned(), "talos".to_owned()), ("arch".to_owned(), "amd64".to_owned())]);
    let operation = "POST /servers/*/actions/create_image";
    for kind in ["lost-response", "vanished-action", "504"] {
        world.simulator.faults().add(operation, kind.parse()?, Some(1))?;
        let image = world.client.ensure_snapshot(made.id, "talos", &labels).await.context(kind)?;
        assert_eq!(image.description, "talos", "{kind}");
        let all = world.client.look::<Image>(Since::At(Instant::now())).await?;
        let snapshots = all.items.iter().filter(|image| image.r#type == "snapshot");
        assert_eq!(snapshots.count(), 1, "{kind}");
        world.simulator.faults().clear();
        world.client.delete::<Image>(image.id).await?;
        assert_eq!(world.client.snapshot(&labels).await?, None, "{kind}");
    }
    Ok(())
}

/// As with the vendor: nothing that is attached keeps a network from being deleted.
#[tokio::test]
async fn a_deleted_network_takes_the_interfaces_of_its_servers_along() -> Result<()> {
    let world = World::start().await?;
    let net = world.client.ensure::<Network>(&network("n")).await?.resource.id;
    world.client.ensure_subnet(net, "10.0.0.0/25", "eu-central").await?;
    let one = world.client.ensure::<Server>(&server("one")).await?.resource.id;
    world.client.attach_server(one, &hetzner::NetworkAddress { network: net, ..Default::default() }).await?;
    world.client.delete::<Network>(net).await?;
    assert_eq!(world.names::<Network>().await?, [""; 0]);
    let left = || async { anyhow::Ok(world.client.get::<Server>(one).await?.context("it is there")?.private_net) };
    while !left().await?.is_empty() {
        tokio::task::yield_now().await;
    }
    Ok(())
}

#[tokio::test]
async fn a_snapshot_whose_making_failed_is_made_again() -> Result<()> {
    let world = World::start().await?;
    let made = world.client.ensure::<Server>(&server("build")).await?.resource;
    let labels = hetzner::Labels::from([("os".to_owned(), "talos".to_owned())]);
    let operation = "POST /servers/*/actions/create_image";
    world.simulator.faults().add(operation, "failed-action".parse()?, Some(1))?;
    let error = world.client.ensure_snapshot(made.id, "talos", &labels).await.unwrap_err();
    assert!(matches!(error.cause, hetzner::Cause::ActionFailed { .. }), "{error}");
    let left = world.client.snapshot(&labels).await?.map(|image| image.status);
    assert_eq!(left, Some(hetzner::ImageStatus::Creating), "as the vendor leaves it");
    let image = world.client.ensure_snapshot(made.id, "talos", &labels).await?;
    assert_eq!(image.status, hetzner::ImageStatus::Available);
    let all = world.client.look::<Image>(Since::At(Instant::now())).await?;
    assert_eq!(all.items.iter().filter(|image| image.r#type == "snapshot").count(), 1);
    Ok(())
}

#[tokio::test]
async fn every_kind_is_read() -> Result<()> {
    let world = World::start().await?;
    assert!(world.names::<ServerType>().await?.contains(&"cx23".to_owned()));
    assert!(world.names::<Location>().await?.contains(&"fsn1".to_owned()));
    assert!(world.names::<hetzner::LoadBalancerType>().await?.contains(&"lb11".to_owned()));
    assert!(world.names::<Image>().await?.contains(&"debian-12".to_owned()));
    for names in [world.names::<hetzner::Certificate>().await?, world.names::<hetzner::Volume>().await?] {
        assert_eq!(names, [""; 0]);
    }
    assert_eq!(world.client.pricing().await?["currency"], "EUR");
    let made = world.client.ensure::<Server>(&server("one")).await?.resource;
    let labels = hetzner::Labels::from([("a".to_owned(), "b".to_owned())]);
    world.simulator.faults().add("PUT /servers/*", "lost-response".parse()?, Some(1))?;
    assert_eq!(world.client.set_labels::<Server>(made.id, &labels).await?.labels, labels);
    Ok(())
}

#[tokio::test]
async fn a_lost_server_is_gone_without_a_request() -> Result<()> {
    let world = World::start().await?;
    let made = world.client.ensure::<Server>(&server("one")).await?.resource;
    assert_eq!(made.status, ServerStatus::Running);
    assert!(world.simulator.lose("one").await);
    assert!(!world.simulator.lose("one").await);
    assert_eq!(world.client.get::<Server>(made.id).await?, None);
    Ok(())
}
