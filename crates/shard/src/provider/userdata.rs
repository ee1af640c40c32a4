//! Userdata: what a machine runs when it begins, rendered from a template in Go's language with the original's
//! variables.
//!
//! | variable | what it is |
//! | --- | --- |
//! | `.Cluster.ID`, `.Cluster.CACert` | the cluster, and its CA certificate in PEM |
//! | `.Server.Shard`, `.Server.RegistrationAddr`, `.Server.AgentAddr`, `.Server.OperatorAddr` | the shard and where it listens |
//! | `.Server.ReportInterval` | how often the server expects the agent's report: ours |
//! | `.Provider.Kind`, `.Provider.Region`, `.Provider.Zone` | the provider |
//! | `.Provider.Program`, `.Provider.Kubeconfig`, `.Provider.Lock` | where the machine has them, empty where not set: ours |
//! | `.Instance.ID`, `.Instance.Kind`, `.Instance.Arch`, `.Instance.Type` | the instance |
//! | `.Instance.Tenant`, `.Instance.Group` | whose it is: ours |
//! | `.Instance.ProviderID` | as the instance's Node has it, empty where that is not known before the machine is made: ours |
//! | `.Vars.NAME` | the merged vars; one that is not set is empty |
//! | `.Image.NAME` | always empty: images are not resolved |
//! | `.Nonce` | the token with which the agent registers |
//!
//! `quote` makes one word of a POSIX shell of any text: vars may come from a tenant.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use gotmpl::{MissingKey, Template, Value};
use plan::shard::config::Span;
use serde::Serialize;

use super::{HCLOUD, MachineInfo, Order, Provider, ProviderError, node_provider_id};
use crate::{
    clock::Clock,
    identity::{Claims, Nonces},
};

/// For templates of the configuration that have none: our own agent.
const AGENT: &str = include_str!("userdata/agent.sh.tmpl");

/// The same as a unit of a machine of its own, which must survive a reboot.
const HCLOUD_AGENT: &str = include_str!("userdata/hcloud.sh.tmpl");

/// No userdata iterates over more: vars are at most a few hundred.
const MOST_ITERATIONS: u64 = 100_000;

/// Clouds allow 16 KiB; a process has no limit, but a template that grows beyond this is a mistake.
const LONGEST: usize = 1024 * 1024;

/// Where agents and operators reach the shard: `host:port`, or several separated by commas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoints {
    pub registration: String,
    pub agent: String,
    pub operator: String,
}

/// Says where the shard is reached at the moment.
pub type Reach = Arc<dyn Fn() -> Endpoints + Send + Sync>;

/// What a template may say of the provider.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct ProviderVariables {
    pub kind: String,
    pub region: String,
    pub zone: String,
    pub program: String,
    pub kubeconfig: String,
    pub lock: String,
}

/// What userdata is rendered with, beside the order.
pub struct Preparation {
    pub nonces: Arc<Nonces>,
    pub ca_pem: String,
    pub endpoints: Reach,
    pub provider: ProviderVariables,
    pub clock: Clock,
}

/// A provider whose machines begin with rendered userdata and a nonce of their own.
pub struct Prepared {
    provider: Arc<dyn Provider>,
    preparation: Preparation,
}

/// Why there is no userdata.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    #[error("{name} is no variable; known are {known}")]
    Variable { name: String, known: String },
    #[error("{0}")]
    Template(String),
    #[error("longer than {LONGEST} bytes")]
    Long,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Variables<'a> {
    cluster: Cluster<'a>,
    server: Server<'a>,
    provider: &'a ProviderVariables,
    instance: Instance<'a>,
    vars: BTreeMap<&'a str, &'a str>,
    image: BTreeMap<&'a str, &'a str>,
    nonce: &'a str,
}

#[derive(Serialize)]
struct Cluster<'a> {
    #[serde(rename = "ID")]
    id: &'a str,
    #[serde(rename = "CACert")]
    ca_cert: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Server<'a> {
    shard: &'a str,
    registration_addr: &'a str,
    agent_addr: &'a str,
    operator_addr: &'a str,
    report_interval: String,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Instance<'a> {
    #[serde(rename = "ID")]
    id: &'a str,
    kind: &'a str,
    arch: &'a str,
    #[serde(rename = "Type")]
    machine_type: &'a str,
    tenant: &'a str,
    group: &'a str,
    #[serde(rename = "ProviderID")]
    provider_id: String,
}

impl Prepared {
    pub fn new(provider: Arc<dyn Provider>, preparation: Preparation) -> Self {
        Self { provider, preparation }
    }

    fn prepare(&self, order: &Order) -> Result<Order, ProviderError> {
        let Preparation { nonces, ca_pem, endpoints, provider, clock } = &self.preparation;
        let lifetime = order.registration_timeout;
        let claims = Claims::agent(&order.cluster, &order.tenant, &order.instance_id, clock.now(), lifetime);
        let (shard, group) = (order.shard.clone(), order.group.clone());
        let claims = Claims { shard, group, on_demand: order.on_demand, ..claims };
        let nonce = nonces.issue(&claims);
        let nonce = nonce.map_err(|error| ProviderError::new(format!("no nonce was issued: {error}")))?;
        let endpoints = endpoints();
        let variables = variables(order, ca_pem, &endpoints, provider, &nonce);
        let userdata = render(&order.userdata, variables);
        let userdata = userdata.map_err(|error| ProviderError::new(format!("userdata: {error}")))?;
        Ok(Order { userdata, ..order.clone() })
    }
}

fn variables<'a>(
    order: &'a Order,
    ca_pem: &'a str,
    endpoints: &'a Endpoints,
    provider: &'a ProviderVariables,
    nonce: &'a str,
) -> Variables<'a> {
    Variables {
        cluster: Cluster { id: &order.cluster, ca_cert: ca_pem.trim_end() },
        server: Server {
            shard: &order.shard,
            registration_addr: &endpoints.registration,
            agent_addr: &endpoints.agent,
            operator_addr: &endpoints.operator,
            report_interval: Span::from(order.report_interval).to_string(),
        },
        provider,
        instance: Instance {
            id: &order.instance_id,
            kind: &order.kind,
            arch: &order.arch,
            machine_type: &order.instance_type,
            tenant: &order.tenant,
            group: &order.group,
            provider_id: node_provider_id(&provider.kind, &order.shard, &order.instance_id, ""),
        },
        vars: order.vars.iter().map(|(name, value)| (&**name, &**value)).collect(),
        image: BTreeMap::new(),
        nonce,
    }
}

/// Whether a template can be rendered at all: for those who check a configuration.
pub fn check_template(template: &str) -> Result<(), TemplateError> {
    let order = Order { instance_id: "web00000000000000000000000000".to_owned(), ..Order::default() };
    let (endpoints, provider) = (Endpoints::default(), ProviderVariables::default());
    render(template, variables(&order, "", &endpoints, &provider, "")).map(drop)
}

fn render<'a>(template: &'a str, mut variables: Variables<'a>) -> Result<String, TemplateError> {
    let agent = if variables.provider.kind == HCLOUD { HCLOUD_AGENT } else { AGENT };
    let source = if template.trim().is_empty() { agent } else { template };
    // As in the original, where these two are maps of texts and all else has known fields.
    for (root, map) in [(".Vars.", &mut variables.vars), (".Image.", &mut variables.image)] {
        for name in mentioned(source, root) {
            map.entry(name).or_insert("");
        }
    }
    let data = gotmpl::to_value(&variables).map_err(|error| explained(source, &error))?;
    let parsed = Template::new("userdata")
        .missing_key(MissingKey::Error)
        .max_range_iters(MOST_ITERATIONS)
        .func("quote", quote)
        .parse(source);
    let rendered = parsed.and_then(|parsed| parsed.execute_to_string(&data));
    let rendered = rendered.map_err(|error| explained(source, &error))?;
    if rendered.len() > LONGEST { Err(TemplateError::Long) } else { Ok(rendered) }
}

/// The names after that root, as a template writes them.
fn mentioned<'a>(template: &'a str, root: &'a str) -> impl Iterator<Item = &'a str> {
    template.match_indices(root).filter_map(|(at, _)| {
        let rest = &template[at + root.len()..];
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        Some(&rest[..end]).filter(|name| !name.is_empty())
    })
}

/// The library knows the last part of a missing variable's name: the template has the rest.
fn explained(template: &str, error: &gotmpl::TemplateError) -> TemplateError {
    const KNOWN: &str = ".Cluster, .Server, .Provider, .Instance, .Vars, .Image, .Nonce";
    let gotmpl::TemplateError::MissingKey { key } = error else { return TemplateError::Template(error.to_string()) };
    let is_in_name = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    let mut names = template.split(|c| !is_in_name(c)).filter(|name| name.starts_with('.'));
    let name = names.find(|name| name.split('.').any(|part| part == key));
    TemplateError::Variable { name: name.map_or_else(|| format!(".{key}"), str::to_owned), known: KNOWN.to_owned() }
}

/// One word of a POSIX shell.
fn quote(arguments: &[Value]) -> gotmpl::Result<Value> {
    let [text] = arguments else {
        return Err(gotmpl::TemplateError::Exec("quote takes one text".to_owned()));
    };
    let quoted = format!("'{}'", text.to_string().replace('\'', r"'\''"));
    Ok(Value::String(quoted.into()))
}

#[async_trait]
impl Provider for Prepared {
    async fn claim(&self, known: Option<&str>, expected: bool) -> Result<Option<String>, ProviderError> {
        self.provider.claim(known, expected).await
    }

    async fn create(&self, order: &Order) -> Result<MachineInfo, ProviderError> {
        self.provider.create(&self.prepare(order)?).await
    }

    async fn delete(&self, instance_id: &str) -> Result<(), ProviderError> {
        self.provider.delete(instance_id).await
    }

    async fn status(&self, instance_id: &str) -> Result<Option<MachineInfo>, ProviderError> {
        self.provider.status(instance_id).await
    }

    async fn list(&self, cluster: &str, shard: &str) -> Result<Vec<MachineInfo>, ProviderError> {
        self.provider.list(cluster, shard).await
    }

    async fn free(&self, subnet: &str) -> Result<Option<u32>, ProviderError> {
        self.provider.free(subnet).await
    }

    fn node_provider_id(&self, shard: &str, machine: &MachineInfo) -> String {
        self.provider.node_provider_id(shard, machine)
    }

    fn pid(&self, instance_id: &str) -> Option<u32> {
        self.provider.pid(instance_id)
    }
}

#[cfg(test)]
mod tests;
