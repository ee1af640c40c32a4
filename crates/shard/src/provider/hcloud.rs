//! Machines that are servers of a project at Hetzner.
//!
//! A server has its instance's id as its name, which is unique in a project, so that a repeated order is the same order.
//! Its labels say whose it is: one with the name and without them is never adopted or deleted.
//!
//! | label | what it says |
//! | --- | --- |
//! | `nstance.dev/cluster-id`, `nstance.dev/shard`, `nstance.dev/instance-id` | whose it is |
//! | `nstance.dev/tenant`, `nstance.dev/group`, `nstance.dev/instance-kind`, `nstance.dev/on-demand` | for a record that is lost, and for people |
//!
//! A token says nothing of its project, and that of another one shows no server of ours. So the shard marks its project
//! with a placement group, which costs nothing and holds no server.

mod access;
mod args;
mod verify;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use hetzner::{Class, Client, Labels, Listed, PlacementGroup, Server, ServerStatus, Since, Wanted};
use plan::shard::{
    config::{Config, Findings, Problem},
    instance::MachineStatus,
};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::{ErrorClass, HCLOUD, MachineInfo, Order, Provider, ProviderError, node_provider_id};
use access::Access;
pub use access::{Environment, Settings};
use args::{Args, Named};
pub use verify::verify;

/// A call to the provider ends after half a minute: three lost answers and the pauses between them fit, and so does the
/// wait for a spent budget, which then says so itself.
pub const TIMES: hetzner::Settings = hetzner::Settings {
    request_limit: Duration::from_secs(8),
    budget_patience: Duration::from_secs(10),
    poll_interval: Duration::from_millis(500),
    action_limit: Duration::from_secs(20),
    first_retry: Duration::from_millis(500),
    attempts: 4,
};

/// Networks, firewalls and placement groups come and go rarely; one that is not in an older list is looked for in a new
/// one.
const NAMES_AGE: Duration = Duration::from_mins(5);

/// A list that is older says too little about the machines: the next one may use the reserve of requests, and so may the
/// first, without which no server leads.
const LIST_AGE: Duration = Duration::from_mins(5);

/// A project can be used without its mark.
const MARK_LIMIT: Duration = Duration::from_secs(5);

/// The vendor's limit for user data.
const LONGEST_USERDATA: usize = 32 * 1024;

const CLUSTER: &str = "nstance.dev/cluster-id";
const SHARD: &str = "nstance.dev/shard";
const INSTANCE: &str = "nstance.dev/instance-id";
const TENANT: &str = "nstance.dev/tenant";
const GROUP: &str = "nstance.dev/group";
const KIND: &str = "nstance.dev/instance-kind";
const ON_DEMAND: &str = "nstance.dev/on-demand";

/// The servers of one shard.
pub struct Hcloud {
    cluster: String,
    shard: String,
    access: Access,
    listed_at: Mutex<Option<Instant>>,
    /// The placement group that marks the project.
    mark: Mutex<Option<i64>>,
}

impl Hcloud {
    /// Fails where there is no token, or no address of an API: nothing is asked yet.
    pub fn open(config: &Config, environment: &Environment, times: hetzner::Settings) -> Result<Self, ProviderError> {
        let settings = Settings::read(&config.shard.provider)?;
        let access = Access::open(&settings, environment, times)?;
        let (cluster, shard) = (config.cluster.id.clone(), config.shard.id.clone());
        Ok(Self { cluster, shard, access, listed_at: Mutex::default(), mark: Mutex::default() })
    }

    /// The whole list of the project. It waits for requests that are left as long as the last one is young.
    async fn look(&self, client: &Client) -> Result<Arc<Vec<Server>>, ProviderError> {
        let listed_at = || self.listed_at.lock().unwrap_or_else(PoisonError::into_inner);
        let is_young = listed_at().is_some_and(|at| at.elapsed() < LIST_AGE);
        let client = if is_young { client.clone() } else { client.urgent() };
        let look = client.look::<Server>(Since::Within(Duration::ZERO)).await.map_err(|error| self.failed(&error))?;
        *listed_at() = Some(look.began_at);
        Ok(look.items)
    }

    fn is_ours(&self, server: &Server, instance_id: &str) -> bool {
        is_labelled(&server.labels, &self.cluster, &self.shard)
            && server.labels.get(INSTANCE).is_some_and(|id| id == instance_id)
    }

    /// The instance's server. One of its name that is not ours is an error: who gave it the name, or took the labels
    /// away, has to say whose it is.
    async fn find(&self, client: &Client, instance_id: &str) -> Result<Option<Server>, ProviderError> {
        if let Some(server) = client.by_name::<Server>(instance_id).await.map_err(|error| self.failed(&error))? {
            return if self.is_ours(&server, instance_id) { Ok(Some(server)) } else { Err(foreign(&server)) };
        }
        // It may have been given another name: its labels say whose it is.
        Ok(self.look(client).await?.iter().find(|server| self.is_ours(server, instance_id)).cloned())
    }

    async fn wanted(&self, client: &Client, order: &Order) -> Result<Wanted, ProviderError> {
        let args = Args::read(&order.args).map_err(|problems| {
            let (field, message) = problems.into_iter().next().unwrap_or_default();
            ProviderError::invalid(format!("{field}: {message}"))
        })?;
        if order.instance_type.is_empty() {
            return Err(ProviderError::invalid(format!("instance_type: {NO_TYPE}")));
        }
        if order.userdata.len() > LONGEST_USERDATA {
            let length = order.userdata.len();
            let message = format!("userdata: has {length} bytes, Hetzner takes {LONGEST_USERDATA}; shorten it");
            return Err(ProviderError::invalid(message));
        }
        let mut body = json!({
            "server_type": order.instance_type, "image": args.image, "location": args.location,
            "user_data": order.userdata, "ssh_keys": args.ssh_keys, "public_net": args.public_net,
        });
        let networks = self.ids::<hetzner::Network>(client, "args.networks", &args.networks).await?;
        body["networks"] = json!(networks);
        let firewalls = self.ids::<hetzner::Firewall>(client, "args.firewalls", &args.firewalls).await?;
        body["firewalls"] = firewalls.iter().map(|id| json!({ "firewall": id })).collect::<Value>();
        if let Some(group) = &args.placement_group {
            body["placement_group"] = json!(self.id::<PlacementGroup>(client, "args.placement_group", group).await?);
        }
        let mut labels = args.labels;
        labels.extend(labels_of(order));
        let owner = (INSTANCE.to_owned(), order.instance_id.clone());
        Ok(Wanted { name: order.instance_id.clone(), labels, owner, body })
    }

    async fn ids<R: Listed>(&self, client: &Client, field: &str, all: &[Named]) -> Result<Vec<i64>, ProviderError> {
        let mut ids = Vec::new();
        for named in all {
            ids.push(self.id::<R>(client, field, named).await?);
        }
        Ok(ids)
    }

    /// The API takes names of some kinds and numbers of others; people know the names.
    async fn id<R: Listed>(&self, client: &Client, field: &str, named: &Named) -> Result<i64, ProviderError> {
        let name = match named {
            Named::Id(id) => return Ok(*id),
            Named::Name(name) => name,
        };
        for age in [NAMES_AGE, Duration::ZERO] {
            let look = client.look::<R>(Since::Within(age)).await.map_err(|error| self.failed(&error))?;
            if let Some(found) = look.items.iter().find(|item| item.name() == name) {
                return Ok(found.id());
            }
        }
        Err(ProviderError::invalid(format!(
            "{field}: the project has no {} {name:?}; create it or correct the name",
            R::ONE
        )))
    }

    /// A client of the shard's project: a token that has taken the place of another may be of another one.
    async fn client(&self) -> Result<Client, ProviderError> {
        let client = self.access.client()?;
        if !self.access.is_new() {
            return Ok(client);
        }
        let known = *self.mark();
        Ok(self.claim_project(known, true).await?.0)
    }

    async fn claim_project(&self, known: Option<i64>, expected: bool) -> Result<(Client, Option<i64>), ProviderError> {
        let token = self.access.token()?;
        let client = self.access.client()?;
        let urgent = client.urgent();
        let mark = match self.find_mark(&urgent, known).await.map_err(|error| self.failed(&error))? {
            Some(mark) => Some(mark),
            None if self.has_servers(&urgent).await? || (known.is_none() && !expected) => self.put_mark(&urgent).await,
            None => return Err(self.access.refuse(&token, self.elsewhere())),
        };
        self.access.claim(&token);
        *self.mark() = mark;
        Ok((client, mark))
    }

    fn mark(&self) -> MutexGuard<'_, Option<i64>> {
        self.mark.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The placement group that marks the project: the known one, or one with the shard's labels.
    async fn find_mark(&self, client: &Client, known: Option<i64>) -> Result<Option<i64>, hetzner::Error> {
        if let Some(id) = known {
            return Ok(client.get::<PlacementGroup>(id).await?.map(|group| group.id));
        }
        let look = client.look::<PlacementGroup>(Since::Within(Duration::ZERO)).await?;
        let marks = |group: &&PlacementGroup| is_labelled(&group.labels, &self.cluster, &self.shard);
        Ok(look.items.iter().find(marks).map(|group| group.id))
    }

    async fn has_servers(&self, client: &Client) -> Result<bool, ProviderError> {
        let look = client.look::<Server>(Since::Within(LIST_AGE)).await.map_err(|error| self.failed(&error))?;
        Ok(look.items.iter().any(|server| is_labelled(&server.labels, &self.cluster, &self.shard)))
    }

    /// A project without a mark is used all the same: its token may only read, or it has as many groups as it may have.
    async fn put_mark(&self, client: &Client) -> Option<i64> {
        let wanted = Wanted {
            name: format!("strata-{}.{}", self.cluster, self.shard),
            labels: Labels::from([(CLUSTER.to_owned(), self.cluster.clone())]),
            owner: (SHARD.to_owned(), self.shard.clone()),
            body: json!({ "type": "spread" }),
        };
        let made = timeout(MARK_LIMIT, client.ensure::<PlacementGroup>(&wanted)).await;
        let error = match made {
            Ok(Ok(made)) => return Some(made.resource.id),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {MARK_LIMIT:?}"),
        };
        tracing::warn!(
            error,
            name = wanted.name,
            "the placement group that marks the project was not made; until it is, a token of another project is only \
             recognised while this one has servers of the shard"
        );
        None
    }

    fn elsewhere(&self) -> String {
        let Self { cluster, shard, .. } = self;
        format!(
            "the token's project has neither a server of this shard nor its mark; use a token of the project with the \
             shard's servers. If it is to be this project from now on, give one of its placement groups the labels \
             {CLUSTER}={cluster} and {SHARD}={shard}, and remove shard/{shard}/place.json from the storage"
        )
    }

    fn failed(&self, error: &hetzner::Error) -> ProviderError {
        self.access.note(error);
        failed(error)
    }
}

/// Why an order without a server type cannot be carried out.
const NO_TYPE: &str = "Hetzner has no default server type; name one, such as cx23";

/// Checks what a configuration says to this provider, without asking the API.
pub fn check(config: &Config, findings: &mut Findings) {
    let mut problem = |field: String, message: String| findings.problems.push(Problem { field, message });
    if let Err(error) = Settings::read(&config.shard.provider) {
        let message = error.message.trim_start_matches("shard.provider: ");
        problem("shard.provider".to_owned(), format!("{message}; correct or remove it"));
    }
    for (name, template) in &config.templates {
        if template.instance_type.is_empty() {
            problem(format!("templates.{name}.instance_type"), NO_TYPE.to_owned());
        }
    }
    for part in args::parts(config) {
        for (field, message) in part.args.err().into_iter().flatten() {
            problem(format!("{}.{field}", part.path), message);
        }
    }
}

fn labels_of(order: &Order) -> Labels {
    let on_demand = order.on_demand.to_string();
    let all = [
        (CLUSTER, &order.cluster),
        (SHARD, &order.shard),
        (INSTANCE, &order.instance_id),
        (TENANT, &order.tenant),
        (GROUP, &order.group),
        (KIND, &order.kind),
        (ON_DEMAND, &on_demand),
    ];
    all.map(|(key, value)| (key.to_owned(), value.clone())).into()
}

fn is_labelled(labels: &Labels, cluster: &str, shard: &str) -> bool {
    let is = |label: &str, value: &str| labels.get(label).is_some_and(|of| of == value);
    is(CLUSTER, cluster) && is(SHARD, shard)
}

fn foreign(server: &Server) -> ProviderError {
    let Server { name, id, .. } = server;
    ProviderError::invalid(format!(
        "server {name} (id {id}) has an instance's name and not its labels; delete it, or give it back the labels \
         {CLUSTER}, {SHARD} and {INSTANCE}"
    ))
}

fn machine(server: &Server) -> Option<MachineInfo> {
    let label = |name: &str| server.labels.get(name).cloned();
    Some(MachineInfo {
        instance_id: label(INSTANCE)?,
        provider_id: server.id.to_string(),
        status: status(server),
        created_at: server.created,
        // Hetzner takes no machine away by itself.
        noticed: false,
        group: label(GROUP).unwrap_or_default(),
        on_demand: label(ON_DEMAND).is_some_and(|value| value == "true"),
    })
}

fn status(server: &Server) -> MachineStatus {
    match server.status {
        ServerStatus::Initializing | ServerStatus::Starting => MachineStatus::Pending,
        ServerStatus::Running => MachineStatus::Running,
        // A new server is off before it starts, and so is one that reboots: an action is under way.
        ServerStatus::Stopping | ServerStatus::Off if server.locked => MachineStatus::Pending,
        ServerStatus::Stopping => MachineStatus::Stopping,
        ServerStatus::Off => MachineStatus::Stopped,
        ServerStatus::Deleting => MachineStatus::Deleting,
        ServerStatus::Rebuilding => MachineStatus::Repairing,
        // It comes back by itself from another host; and a state of a later API says nothing to us.
        ServerStatus::Migrating | ServerStatus::Unknown => MachineStatus::Unknown,
    }
}

fn failed(error: &hetzner::Error) -> ProviderError {
    let class = match error.class() {
        Class::Transient => ErrorClass::Transient,
        Class::Conflict => ErrorClass::Locked,
        Class::Capacity => ErrorClass::Capacity,
        Class::RateLimited => ErrorClass::RateLimited,
        Class::Unauthorised => ErrorClass::Unauthorized,
        Class::Invalid | Class::Terminal => ErrorClass::Invalid,
    };
    // Other classes are asked again at the server's own pace.
    let retry_after = error.retry_after().filter(|_| class == ErrorClass::RateLimited);
    ProviderError { class, message: error.to_string(), retry_after }
}

/// Changes may use the reserve of requests: looks wait for them.
#[async_trait]
impl Provider for Hcloud {
    async fn claim(&self, known: Option<&str>, expected: bool) -> Result<Option<String>, ProviderError> {
        let known = known.map(str::parse).transpose();
        let known = known.map_err(|_| ProviderError::invalid("place.json: its mark is no id of a placement group"))?;
        Ok(self.claim_project(known, expected).await?.1.map(|mark| mark.to_string()))
    }

    /// Returns when the API has accepted the server, which then starts: waiting would hold the group's other machines up.
    async fn create(&self, order: &Order) -> Result<MachineInfo, ProviderError> {
        let client = self.client().await?.urgent();
        let wanted = self.wanted(&client, order).await?;
        let server = client.begin::<Server>(&wanted).await.map_err(|error| self.failed(&error))?.resource;
        machine(&server).filter(|_| self.is_ours(&server, &order.instance_id)).ok_or_else(|| foreign(&server))
    }

    async fn delete(&self, instance_id: &str) -> Result<(), ProviderError> {
        let client = self.client().await?.urgent();
        match self.find(&client, instance_id).await? {
            Some(server) => client.delete::<Server>(server.id).await.map_err(|error| self.failed(&error)),
            None => Ok(()),
        }
    }

    async fn status(&self, instance_id: &str) -> Result<Option<MachineInfo>, ProviderError> {
        let client = self.client().await?;
        Ok(self.find(&client, instance_id).await?.as_ref().and_then(machine))
    }

    /// One list of the project, which all who ask at the same time share.
    async fn list(&self, cluster: &str, shard: &str) -> Result<Vec<MachineInfo>, ProviderError> {
        let client = self.client().await?;
        let servers = self.look(&client).await?;
        Ok(servers.iter().filter(|server| is_labelled(&server.labels, cluster, shard)).filter_map(machine).collect())
    }

    /// The API does not say how much room a location has; an order that finds none is refused.
    async fn free(&self, _: &str) -> Result<Option<u32>, ProviderError> {
        Ok(None)
    }

    fn node_provider_id(&self, shard: &str, machine: &MachineInfo) -> String {
        node_provider_id(HCLOUD, shard, &machine.instance_id, &machine.provider_id)
    }
}

#[cfg(test)]
mod tests;
