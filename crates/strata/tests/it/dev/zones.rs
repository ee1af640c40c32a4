//! The zones of `strata dev`: what is scaled is there, what is killed comes back, and every instance is accounted for.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::SocketAddr,
    path::PathBuf,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, TypeMeta},
};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{
    environment::{Environment, eventually, signal},
    pid_of,
};
use crate::cli::place::{Said, run, strata};

/// Instances by their ids, each with its process.
pub type Pids = BTreeMap<String, u32>;

/// The zones of an environment that is up.
pub struct Zones<'a> {
    dev: &'a Environment,
    client: Client,
    /// Instances that were killed leave their Nodes behind.
    killed: BTreeSet<String>,
}

impl<'a> Zones<'a> {
    pub async fn of(dev: &'a Environment) -> Result<Self> {
        Ok(Self { client: dev.client().await?, dev, killed: BTreeSet::new() })
    }

    /// Runs `strata shard …` without a word about the storage.
    pub async fn shard(&self, args: &[&str]) -> Result<Said> {
        let mut command = strata(&["shard"]);
        command.args(args).env("STRATA_DEV_DIR", self.dev.directory()).env_remove("STRATA_SHARD_STORAGE");
        run(command).await
    }

    pub async fn scale(&self, zone: &str, size: usize) -> Result<()> {
        self.shard(&["scale", zone, "web", &size.to_string()]).await?.data().map(drop)
    }

    /// The example's instances are there, one in each zone; from now on the operator leaves every group as it is.
    pub async fn without_operator(&self) -> Result<Pids> {
        let pids = self.settled([1, 1]).await?;
        let pause = json!({ "spec": { "paused": true } });
        self.object("cluster.x-k8s.io/v1beta2", "Cluster")
            .patch("dev--default", &PatchParams::default(), &Patch::Merge(pause))
            .await?;
        let pools = self.object("infrastructure.cluster.x-k8s.io/v1beta1", "NstanceMachinePool");
        eventually("the pool to be paused", async || {
            let pool = pools.get("web").await?;
            let conditions = pool.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
            Ok(conditions.iter().any(|one| one["type"] == "Paused" && one["status"] == "True"))
        })
        .await?;
        Ok(pids)
    }

    fn object(&self, api_version: &str, kind: &str) -> Api<DynamicObject> {
        let types = TypeMeta { api_version: api_version.to_owned(), kind: kind.to_owned() };
        let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(types).expect("a group and a version"));
        Api::namespaced_with(self.client.clone(), "strata-system", &resource)
    }

    /// What requests made of the groups.
    pub async fn groups(&self) -> Result<Value> {
        let status: Value = serde_json::from_str(&self.shard(&["status", "-o", "json"]).await?.data()?)?;
        Ok(json!([status[0]["groups"], status[1]["groups"]]))
    }

    async fn instances(&self) -> Result<Vec<Value>> {
        Ok(serde_json::from_str(&self.shard(&["instances", "-o", "json"]).await?.data()?)?)
    }

    /// Waits until the zones have these many instances, and accounts for each: by its process and by its Node, and no
    /// agent is left that is none.
    pub async fn settled(&self, sizes: [usize; 2]) -> Result<Pids> {
        let last = tokio::sync::Mutex::new(Err(anyhow::anyhow!("not looked yet")));
        let is_so = async || {
            let mut last = last.lock().await;
            *last = self.accounted(sizes).await;
            Ok(last.is_ok())
        };
        let waited = eventually("the zones to settle", is_so).await;
        let found = last.into_inner();
        waited.with_context(|| format!("{found:?}\n{}", self.logs().unwrap_or_default()))?;
        found
    }

    async fn accounted(&self, sizes: [usize; 2]) -> Result<Pids> {
        let instances = self.instances().await?;
        for (zone, size) in ["dev-1", "dev-2"].into_iter().zip(sizes) {
            let of_zone: Vec<_> = instances.iter().filter(|one| one["shard"] == zone).collect();
            ensure!(of_zone.len() == size, "{zone} has {of_zone:?} instead of {size}");
        }
        let mut pids = Pids::new();
        for one in &instances {
            let id = one["instanceID"].as_str().context("no id")?;
            // Its process may be seen for a moment after the signal.
            ensure!(!self.killed.contains(id), "{id} was killed");
            let pid = u32::try_from(one["pid"].as_u64().with_context(|| format!("no process: {one}"))?)?;
            let expected = json!({
                "instanceID": id, "providerID": format!("process:///{}/{id}", one["shard"].as_str().context("no shard")?),
                "group": "web", "shard": one["shard"], "status": "running", "onDemand": false, "pid": pid,
            });
            ensure!(*one == expected, "{one}");
            pids.insert(id.to_owned(), pid);
        }
        ensure!(self.agents()? == pids, "agents {:?}, instances {pids:?}", self.agents()?);
        self.nodes_are_of(&instances).await?;
        Ok(pids)
    }

    /// The agents that really run, by the id in their command lines.
    fn agents(&self) -> Result<Pids> {
        let agents = self.dev.named()?.into_iter().filter_map(|(pid, line)| {
            let (_, rest) = line.split_once(" agent --instance-id ")?;
            Some((rest.split_once(' ')?.0.to_owned(), pid))
        });
        Ok(agents.collect())
    }

    /// Each instance has a Node that is ready, and no other has one.
    async fn nodes_are_of(&self, instances: &[Value]) -> Result<()> {
        let nodes =
            Api::<Node>::all(self.client.clone()).list(&ListParams::default().labels("nstance.dev/shard")).await?;
        let mut nodes: BTreeMap<String, Node> = nodes.into_iter().map(|node| (node.name_any(), node)).collect();
        for one in instances {
            let id = one["instanceID"].as_str().context("no id")?;
            let node = nodes.remove(id).with_context(|| format!("no node {id}"))?;
            let provider_id = node.spec.as_ref().and_then(|spec| spec.provider_id.clone());
            ensure!(one["providerID"] == json!(provider_id), "{provider_id:?}");
            let zone = node.labels().get("topology.kubernetes.io/zone");
            ensure!(one["shard"] == json!(zone), "{zone:?}");
            let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
            let is_ready =
                conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"));
            ensure!(is_ready, "node {id} is not ready");
        }
        nodes.retain(|name, _| !self.killed.contains(name));
        ensure!(nodes.is_empty(), "nodes of no instance: {:?}", nodes.keys());
        Ok(())
    }

    /// Kills an instance's process.
    fn kill(&mut self, pids: &Pids, id: &str) -> Result<()> {
        self.killed.insert(id.to_owned());
        signal(pids[id], Signal::KILL)
    }

    /// Kills a zone's server.
    async fn kill_server(&self, zone: &str) -> Result<()> {
        signal(pid_of(&format!("shard-{zone}"), &self.dev.status().await?)?, Signal::KILL)
    }

    async fn first_of(&self, zone: &str) -> Result<String> {
        let instances = self.instances().await?;
        let first = instances.iter().find(|one| one["shard"] == zone).context("no instance")?;
        Ok(first["instanceID"].as_str().context("no id")?.to_owned())
    }

    fn logs(&self) -> Result<String> {
        let log = |zone: &str| fs::read_to_string(self.dev.directory().join(format!("shard-{zone}.log")));
        Ok([log("dev-1")?, log("dev-2")?].join("\n"))
    }
}

#[tokio::test]
async fn a74_a78_two_zones_account_for_every_instance_whatever_is_killed() -> Result<()> {
    let dev = Environment::new().await?;
    dev.dev(&["up", "--detach"]).await?;
    let mut zones = Zones::of(&dev).await?;
    assert_status_names_the_zones(&zones.dev.status().await?).await?;
    zones.without_operator().await?;
    zones.scale("dev-1", 3).await?;
    zones.scale("dev-2", 2).await?;
    let before = zones.settled([3, 2]).await?;

    // A killed instance is replaced, the others stay.
    let victim = zones.first_of("dev-1").await?;
    zones.kill(&before, &victim)?;
    let after = zones.settled([3, 2]).await?;
    let kept: Vec<_> = before.iter().filter(|(id, _)| **id != victim).collect();
    assert!(!after.contains_key(&victim) && kept.iter().all(|(id, pid)| after.get(*id) == Some(pid)), "{after:?}");

    // The instances of a server that is killed live on, and are listed meanwhile; its successor adopts them, and a
    // command waits for it.
    zones.kill_server("dev-1").await?;
    assert_eq!(zones.accounted([3, 2]).await?, after);
    zones.scale("dev-1", 3).await?;
    assert_eq!(zones.settled([3, 2]).await?, after);

    // Both at once, in both zones.
    for zone in ["dev-1", "dev-2"] {
        zones.kill_server(zone).await?;
        let victim = zones.first_of(zone).await?;
        zones.kill(&after, &victim)?;
    }
    let last = zones.settled([3, 2]).await?;
    assert_eq!(last.iter().filter(|(id, pid)| after.get(*id) == Some(pid)).count(), 3, "{last:?}");

    // Nothing drains them here, so that they go when their time is over.
    drain_at_once(&zones, "dev-1").await?;
    zones.scale("dev-1", 1).await?;
    zones.settled([1, 2]).await?;
    Ok(())
}

async fn assert_status_names_the_zones(status: &Value) -> Result<()> {
    let path = |key: &str| Ok::<_, anyhow::Error>(PathBuf::from(status[key].as_str().context("no path")?));
    for zone in ["dev-1", "dev-2"] {
        assert!(path("storage")?.join(format!("shard/{zone}/config.jsonc")).is_file());
        let endpoints = status["endpoints"][zone].as_object().context("no endpoints")?;
        assert_eq!(endpoints.keys().collect::<Vec<_>>(), ["agent", "election", "health", "operator", "registration"]);
        for address in endpoints.values() {
            let address: SocketAddr = address.as_str().context("no address")?.parse()?;
            // A server that a busy machine kept from its lock for five seconds serves again when it has it back.
            let is_served = async || Ok(tokio::net::TcpStream::connect(address).await.is_ok());
            eventually(&format!("{zone} serves {address}"), is_served).await?;
        }
    }
    assert!(fs::read_to_string(path("ca")?)?.starts_with("-----BEGIN CERTIFICATE-----"));
    Ok(())
}

/// Gives instances of that zone no time to drain.
async fn drain_at_once(zones: &Zones<'_>, zone: &str) -> Result<()> {
    let status = zones.dev.status().await?;
    let storage = PathBuf::from(status["storage"].as_str().context("no storage")?);
    let file = storage.join(format!("shard/{zone}/config.jsonc"));
    let config = fs::read_to_string(&file)?;
    let quick = config.replace(r#""default_drain_timeout": "30s""#, r#""default_drain_timeout": "0s""#);
    ensure!(quick != config, "{config}");
    fs::write(file, quick)?;
    zones.shard(&["validate"]).await?.data()?;
    zones.shard(&["refresh", zone]).await?.data().map(drop)
}
