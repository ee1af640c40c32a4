//! The provider `hcloud` against the simulator of Hetzner's API.

mod crash;

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use hetzner::{Client, Clients, Labels, Listed, Server, Since, Token, Wanted};
use plan::shard::config::Config;
use serde_json::{Value, json};
use shard::provider::{
    ErrorClass, HCLOUD_TIMES, Hcloud, HcloudEnvironment, Order, Provider, ProviderError, conformance,
};
use tempfile::TempDir;
use testbed::hetzner::{Access, Machine, Options, Simulator, log};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const TOKEN: &str = "token-of-the-tests";

/// A project, and servers of a shard that know nothing of each other.
struct Cloud {
    simulator: Simulator,
    folder: TempDir,
}

impl Cloud {
    async fn start() -> Result<Self> {
        Self::with(|_| {}).await
    }

    async fn with(change: impl FnOnce(&mut Options)) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut options = Options::new(vec![Access::new(TOKEN, "tests")]);
        options.log = Some(folder.path().join("log"));
        options.action_time = Duration::from_millis(1);
        options.requests_per_hour = 3_600_000;
        change(&mut options);
        Ok(Self { simulator: Simulator::start(options).await?, folder })
    }

    fn provider(&self) -> Hcloud {
        self.provider_with(TOKEN, times())
    }

    fn provider_with(&self, token: &str, times: hetzner::Settings) -> Hcloud {
        self.provider_of("a", token, times)
    }

    fn provider_of(&self, shard: &str, token: &str, times: hetzner::Settings) -> Hcloud {
        let config = json!({ "cluster": { "id": "dev" }, "shard": { "id": shard, "provider": { "kind": "hcloud" } } });
        let config: Config = serde_json::from_value(config).expect("a configuration");
        let environment =
            HcloudEnvironment { token: Some(Token::new(token)), endpoint: Some(self.simulator.endpoint()) };
        Hcloud::open(&config, &environment, times).expect("a token and an address")
    }

    /// With the token in a file, which may change.
    fn provider_with_file(&self, token: &Path) -> Result<Hcloud> {
        let provider = json!({ "kind": "hcloud", "token_file": token });
        let config = json!({ "cluster": { "id": "dev" }, "shard": { "id": "a", "provider": provider } });
        let environment = HcloudEnvironment { token: None, endpoint: Some(self.simulator.endpoint()) };
        Ok(Hcloud::open(&serde_json::from_value(config)?, &environment, times())?)
    }

    /// A person with the project's token.
    fn person(&self) -> Result<Client> {
        Ok(Clients::new(times()).get(&self.simulator.endpoint(), &Token::new(TOKEN))?.urgent())
    }

    fn servers(&self) -> Vec<Machine> {
        self.simulator.machines()
    }

    fn names(&self) -> Vec<String> {
        self.servers().into_iter().map(|server| server.name).collect()
    }

    /// Requests with this method and path, and their statuses.
    fn requests(&self, method: &str, path: &str) -> Result<Vec<u16>> {
        let lines = log::read(&self.folder.path().join("log"))?;
        let of = lines.into_iter().filter(|line| line.method == method && line.path == path);
        Ok(of.map(|line| line.status).collect())
    }
}

/// Short times: what is tested is what happens, not how long it takes.
fn times() -> hetzner::Settings {
    hetzner::Settings {
        request_limit: Duration::from_secs(20),
        poll_interval: Duration::from_millis(2),
        first_retry: Duration::from_millis(5),
        attempts: 10,
        ..HCLOUD_TIMES
    }
}

/// The first error is the caller's.
fn hasty() -> hetzner::Settings {
    hetzner::Settings { attempts: 1, budget_patience: Duration::ZERO, ..times() }
}

fn order() -> Order {
    let text = str::to_owned;
    let args = json!({ "image": "debian-13", "location": "fsn1" });
    Order {
        instance_id: text("web00000000000000000000000001"),
        cluster: text("dev"),
        shard: text("a"),
        tenant: text("default"),
        group: text("web"),
        kind: text("web"),
        arch: text("amd64"),
        instance_type: text("cx23"),
        userdata: text("#!/bin/sh\n"),
        args: args.as_object().cloned().unwrap_or_default(),
        ..Order::default()
    }
}

fn order_with(change: impl FnOnce(&mut Value)) -> Order {
    let mut args = Value::Object(order().args);
    change(&mut args);
    Order { args: args.as_object().cloned().unwrap_or_default(), ..order() }
}

#[tokio::test]
async fn a78_machines_at_hetzner_conform() -> Result<()> {
    let cloud = Cloud::start().await?;
    conformance::check(&cloud.provider(), &cloud.provider(), &order(), "web00000000000000000000000002").await?;
    let made = cloud.requests("POST", "/servers")?.into_iter().filter(|status| *status == 201).count();
    ensure!(made == 4, "{made} servers were made: two, one of a race, and one that was interrupted");
    ensure!(cloud.servers().is_empty(), "{:?}", cloud.servers());
    Ok(())
}

#[tokio::test]
async fn a_token_of_another_project_is_refused_for_everything_and_a_new_one_of_the_same_is_used_at_once() -> Result<()>
{
    let cloud = Cloud::with(|options| {
        options.access.push(Access::new("other", "other"));
        options.access.push(Access::new("second", "tests"));
    })
    .await?;
    let file = cloud.folder.path().join("token");
    fs::write(&file, TOKEN)?;
    let provider = cloud.provider_with_file(&file)?;
    let mark = provider.claim(None, false).await?;
    ensure!(mark.is_some(), "the project is marked");
    let made = provider.create(&order()).await?;
    let id = &*made.instance_id;
    fs::write(&file, "other")?;
    let second = Order { instance_id: "web00000000000000000000000002".to_owned(), ..order() };
    let refusals = [
        provider.create(&second).await.err(),
        provider.delete(id).await.err(),
        provider.status(id).await.err(),
        provider.list("dev", "a").await.err(),
        provider.claim(mark.as_deref(), false).await.err(),
    ];
    for refusal in refusals {
        let refusal = refusal.context("it is another project")?;
        ensure!(refusal.class == ErrorClass::Unauthorized && refusal.message.contains("nor its mark"), "{refusal}");
    }
    ensure!(cloud.names() == [id], "{:?}", cloud.names());
    let asked = cloud.requests("GET", &format!("/placement_groups/{}", mark.as_deref().unwrap_or_default()))?;
    ensure!(asked == [404], "it is asked once for a while: {asked:?}");
    fs::write(&file, "second")?;
    ensure!(provider.status(id).await?.is_some());
    provider.delete(id).await?;
    // Without any server the mark says whose the project is, also to a server that has just begun.
    let next = cloud.provider_with_file(&file)?;
    ensure!(next.claim(mark.as_deref(), true).await? == mark && next.claim(None, true).await? == mark);
    Ok(())
}

#[tokio::test]
async fn a_project_that_cannot_be_marked_is_used_and_one_with_neither_mark_nor_servers_is_not() -> Result<()> {
    let cloud = Cloud::with(|options| {
        options.access.push(Access { is_read_only: true, ..Access::new("reader", "tests") });
    })
    .await?;
    let reader = cloud.provider_with("reader", hasty());
    ensure!(reader.claim(None, false).await?.is_none() && reader.list("dev", "a").await?.is_empty());
    ensure!(cloud.provider().claim(None, true).await.is_err(), "the shard has made servers, and they are not here");
    cloud.simulator.faults().add("POST /placement_groups", "503".parse()?, None)?;
    let provider = cloud.provider_with(TOKEN, hasty());
    ensure!(provider.claim(None, false).await?.is_none());
    let made = provider.create(&order()).await?;
    cloud.simulator.faults().clear();
    ensure!(cloud.provider().claim(None, true).await?.is_some(), "its servers say whose it is, and it is marked now");
    provider.delete(&made.instance_id).await?;
    Ok(())
}

#[tokio::test]
async fn a_server_is_made_as_its_template_says() -> Result<()> {
    let cloud = Cloud::start().await?;
    let person = cloud.person()?;
    let wanted = |body: Value| {
        let owner = ("owner".to_owned(), "person".to_owned());
        Wanted { name: "mine".to_owned(), labels: Labels::new(), owner, body }
    };
    let net = person.ensure::<hetzner::Network>(&wanted(json!({ "ip_range": "10.0.0.0/16" }))).await?.resource;
    person.ensure_subnet(net.id, "10.0.1.0/24", "eu-central").await?;
    let group = person.ensure::<hetzner::PlacementGroup>(&wanted(json!({ "type": "spread" }))).await?.resource;
    let wall = person.ensure::<hetzner::Firewall>(&wanted(json!({}))).await?.resource;
    person.ensure::<hetzner::SshKey>(&wanted(json!({ "public_key": hetzner::throwaway_key() }))).await?;
    let order = order_with(|args| {
        for (key, value) in [
            ("networks", json!(["mine"])),
            ("firewalls", json!([wall.id])),
            ("placement_group", json!("mine")),
            ("ssh_keys", json!(["mine"])),
            ("public_net", json!({ "enable_ipv4": false, "enable_ipv6": false })),
            ("labels", json!({ "role": "web" })),
        ] {
            args[key] = value;
        }
    });
    let made = cloud.provider().create(&Order { userdata: "hello".to_owned(), ..order }).await?;
    let servers = cloud.servers();
    let [server] = &servers[..] else { anyhow::bail!("{servers:?}") };
    let said = (&*server.server_type, &*server.image, &*server.location, &*server.user_data, server.public);
    ensure!(said == ("cx23", "debian-13", "fsn1", "hello", None), "{server:?}");
    ensure!(server.private.len() == 1 && server.private[0].0 == net.id, "{server:?}");
    let own = |name: &str| format!("nstance.dev/{name}");
    let labels: BTreeMap<String, String> = [
        ("role".to_owned(), "web"),
        (own("cluster-id"), "dev"),
        (own("shard"), "a"),
        (own("instance-id"), "web00000000000000000000000001"),
        (own("tenant"), "default"),
        (own("group"), "web"),
        (own("instance-kind"), "web"),
        (own("on-demand"), "false"),
    ]
    .map(|(key, value)| (key, value.to_owned()))
    .into();
    ensure!(server.labels == labels, "{:?}", server.labels);
    let found: Server = person.get(server.id).await?.context("the server")?;
    ensure!(found.placement_group.as_ref().map(|of| of.id) == Some(group.id), "{found:?}");
    let wall: hetzner::Firewall = person.get(wall.id).await?.context("the firewall")?;
    let covers = wall.applied_to.iter().any(|of| of.server.as_ref().is_some_and(|of| of.id == server.id));
    ensure!(covers, "{wall:?}");
    ensure!(cloud.provider().node_provider_id("a", &made) == format!("hcloud://{}", server.id), "{made:?}");
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_ordered_says_why_and_makes_nothing() -> Result<()> {
    let cloud = Cloud::start().await?;
    let orders = [
        (order_with(|args| args["networks"] = json!(["none"])), "args.networks: the project has no network \"none\""),
        (order_with(|args| args["imge"] = json!("x")), "args.imge: unknown field"),
        (order_with(|args| args["image"] = json!("debian-0")), "correct what is asked for"),
        (order_with(|args| args["location"] = json!("mars1")), "location"),
        (Order { instance_type: String::new(), ..order() }, "instance_type: Hetzner has no default server type"),
        (Order { instance_type: "cx0".to_owned(), ..order() }, "server_type"),
        (Order { userdata: "x".repeat(32 * 1024 + 1), ..order() }, "userdata: has 32769 bytes"),
    ];
    for (order, says) in orders {
        let error = cloud.provider().create(&order).await.err().context(says)?;
        ensure!(error.class == ErrorClass::Invalid && error.message.contains(says), "{says}: {error:?}");
    }
    ensure!(cloud.servers().is_empty());
    Ok(())
}

/// Each request of a creation and of a removal, with each fault: the caller may learn nothing, and the next server finds
/// one machine or none.
#[tokio::test]
async fn a78_a_fault_at_any_request_leaves_one_machine_or_none() -> Result<()> {
    let faults = ["lost-response", "cut", "409", "423", "429", "500", "502", "503", "504", "vanished-action"];
    let mut cases = 0;
    for operation in ["GET /servers", "POST /servers", "DELETE /servers/*", "GET /actions"] {
        for kind in faults {
            let cloud = Cloud::start().await?;
            let (one, next) = (cloud.provider_with(TOKEN, hasty()), cloud.provider());
            cloud.simulator.faults().add(operation, kind.parse()?, Some(1))?;
            let first = one.create(&order()).await;
            let made = next.create(&order()).await.with_context(|| format!("{operation} {kind}"))?;
            ensure!(first.is_ok_and(|first| first.provider_id == made.provider_id) || cloud.servers().len() == 1);
            let listed = next.list("dev", "a").await?;
            ensure!(listed.len() == 1 && cloud.servers().len() == 1, "{operation} {kind}: {:?}", cloud.servers());
            if cloud.simulator.faults().list().is_empty() {
                cloud.simulator.faults().add(operation, kind.parse()?, Some(1))?;
            }
            // Whether it was carried out is for the next server to see.
            let _ = one.delete(&order().instance_id).await;
            next.delete(&order().instance_id).await.with_context(|| format!("{operation} {kind}"))?;
            ensure!(cloud.servers().is_empty(), "{operation} {kind}: {:?}", cloud.servers());
            cases += 1;
        }
    }
    println!("{cases} cases");
    Ok(())
}

#[tokio::test]
async fn errors_have_their_class_and_delete_nothing() -> Result<()> {
    let cloud = Cloud::with(|options| {
        options.access.push(Access { is_read_only: true, ..Access::new("reader", "tests") });
        // The next request is a second away: longer than a hasty caller waits.
        options.requests_per_hour = 3600;
    })
    .await?;
    let id = order().instance_id;
    cloud.provider().create(&order()).await?;
    let check = |what: &str, error: Option<ProviderError>, class: ErrorClass, says: &str| -> Result<()> {
        let error = error.with_context(|| format!("{what}: no error"))?;
        ensure!(error.class == class && error.message.contains(says), "{what}: {error:?}");
        ensure!(!format!("{error:?}").contains("token-of"), "{what}: {error:?}");
        ensure!(cloud.servers().len() == 1, "{what}");
        Ok(())
    };
    let stranger = cloud.provider_with("wrong", hasty());
    let wrong = (ErrorClass::Unauthorized, "use a token of this project");
    check("list", stranger.list("dev", "a").await.err(), wrong.0, wrong.1)?;
    check("status", stranger.status(&id).await.err(), wrong.0, wrong.1)?;
    check("delete", stranger.delete(&id).await.err(), wrong.0, wrong.1)?;
    let refused = cloud.requests("GET", "/servers")?.into_iter().filter(|status| *status == 401).count();
    ensure!(refused == 1, "a token that was refused is not sent again at once: {refused}");
    let reader = cloud.provider_with("reader", hasty());
    ensure!(reader.list("dev", "a").await?.len() == 1);
    check("read-only", reader.delete(&id).await.err(), wrong.0, wrong.1)?;
    let other = Order { instance_id: "web00000000000000000000000009".to_owned(), ..order() };
    check("read-only", reader.create(&other).await.err(), wrong.0, wrong.1)?;

    cloud.simulator.faults().add("POST /servers", "capacity".parse()?, Some(1))?;
    let full = cloud.provider().create(&other).await.err();
    check("capacity", full, ErrorClass::Capacity, "choose another location")?;
    cloud.simulator.faults().add("DELETE /servers/*", "423".parse()?, Some(1))?;
    let locked = cloud.provider_with(TOKEN, hasty()).delete(&id).await.err();
    check("locked", locked, ErrorClass::Locked, "locked")?;
    cloud.simulator.faults().add("GET /servers", "503".parse()?, None)?;
    let away = cloud.provider_with(TOKEN, hasty()).list("dev", "a").await.err();
    check("a list that failed is no empty one", away, ErrorClass::Transient, "status 503")?;
    cloud.simulator.faults().clear();
    cloud.simulator.faults().add("GET /servers", "rate-limit".parse()?, Some(1))?;
    let waiting = cloud.provider_with(TOKEN, hasty());
    let limited = waiting.list("dev", "a").await.err();
    ensure!(limited.as_ref().is_some_and(|error| error.retry_after.is_some()), "{limited:?}");
    check("rate limit", limited, ErrorClass::RateLimited, "when requests are left")
}

/// One request of a person, as a console sends it.
async fn send(cloud: &Cloud, method: &str, path: &str, body: &Value) -> Result<()> {
    let mut stream = TcpStream::connect(cloud.simulator.address()).await?;
    let body = body.to_string();
    let request = format!(
        "{method} /v1{path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    ensure!(answer.starts_with("HTTP/1.1 2"), "{answer}");
    Ok(())
}

#[tokio::test]
async fn what_a_person_renamed_is_found_and_what_lost_its_labels_is_left_alone() -> Result<()> {
    let cloud = Cloud::start().await?;
    let (provider, id) = (cloud.provider(), order().instance_id);
    let made = provider.create(&order()).await?;
    let path = format!("/servers/{}", made.provider_id);
    send(&cloud, "PUT", &path, &json!({ "name": "renamed" })).await?;
    let found = provider.status(&id).await?.context("found by its labels")?;
    ensure!(found.provider_id == made.provider_id && !found.status.is_down(), "{found:?}");
    ensure!(provider.list("dev", "a").await?.len() == 1);
    send(&cloud, "PUT", &path, &json!({ "name": id, "labels": {} })).await?;
    for error in [
        provider.status(&id).await.err(),
        provider.delete(&id).await.err(),
        provider.create(&order()).await.err(),
        // Another shard of the same project is asked for an instance of the same id.
        cloud.provider_of("b", TOKEN, times()).delete(&id).await.err(),
    ] {
        let error = error.context("nothing is decided on it")?;
        ensure!(error.class == ErrorClass::Invalid && error.message.contains("labels"), "{error:?}");
    }
    ensure!(cloud.names() == [id.clone()], "{:?}", cloud.names());
    let labels = json!({ "nstance.dev/cluster-id": "dev", "nstance.dev/shard": "b", "nstance.dev/instance-id": id });
    send(&cloud, "PUT", &path, &json!({ "labels": labels })).await?;
    ensure!(provider.create(&order()).await.is_err(), "another shard's is not adopted");
    cloud.provider_of("b", TOKEN, times()).delete(&id).await?;
    ensure!(cloud.servers().is_empty());
    Ok(())
}

#[tokio::test]
async fn names_that_appear_later_are_found() -> Result<()> {
    fn listed<R: Listed>(cloud: &Cloud) -> Result<usize> {
        Ok(cloud.requests("GET", &format!("/{}", R::MANY))?.len())
    }
    let cloud = Cloud::start().await?;
    let provider = cloud.provider();
    let order = order_with(|args| args["firewalls"] = json!(["later"]));
    let error = provider.create(&order).await.err().context("there is none")?;
    ensure!(error.message.contains("args.firewalls: the project has no firewall \"later\""), "{error}");
    let owner = ("owner".to_owned(), "person".to_owned());
    let wall = Wanted { name: "later".to_owned(), labels: Labels::new(), owner, body: json!({}) };
    cloud.person()?.ensure::<hetzner::Firewall>(&wall).await?;
    let before = listed::<hetzner::Firewall>(&cloud)?;
    provider.create(&order).await?;
    ensure!(listed::<hetzner::Firewall>(&cloud)? == before + 1, "the older list was not enough, a new one is");
    provider.create(&order).await?;
    ensure!(listed::<hetzner::Firewall>(&cloud)? == before + 1, "a name that is known costs no request");
    let look = cloud.person()?.look::<Server>(Since::Within(Duration::ZERO)).await?;
    ensure!(look.items.len() == 1);
    Ok(())
}
