//! Where machines come from: one narrow trait, and what implements it.

pub mod conformance;
mod fault;
mod hcloud;
mod in_process;
mod process;
mod userdata;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use plan::shard::{
    config::{Config, Findings},
    instance::MachineStatus,
};
use serde_json::{Map, Value};

use crate::{clock::Clock, identity::Nonces};
pub use fault::FaultyProvider;
pub use hcloud::{Environment as HcloudEnvironment, Hcloud, TIMES as HCLOUD_TIMES};
pub use in_process::InProcess;
pub use process::{Process, ProcessSettings};
pub use userdata::{Endpoints, Preparation, Prepared, ProviderVariables, Reach, TemplateError, check_template};

/// What a provider is opened with, beside what the configuration says of it.
pub struct Opening {
    pub nonces: Arc<Nonces>,
    pub ca_pem: String,
    /// Asked whenever a machine is made: ports that are any free ones are known when they are open.
    pub endpoints: Reach,
    pub clock: Clock,
    /// Our own binary.
    pub program: PathBuf,
    /// For machines that are processes, where the configuration names no folder.
    pub directory: PathBuf,
    /// For machines at Hetzner.
    pub hcloud: HcloudEnvironment,
}

/// Opens the provider that a configuration names. Its machines begin with rendered userdata.
pub fn open(config: &Config, opening: Opening) -> Result<Arc<dyn Provider>, ProviderError> {
    let provider = &config.shard.provider;
    let (machines, variables): (Arc<dyn Provider>, _) = if provider.kind == HCLOUD {
        let settings = hcloud::Settings::read(provider)?;
        let machines = Hcloud::open(config, &opening.hcloud, HCLOUD_TIMES)?;
        (Arc::new(machines), settings.variables(&provider.kind))
    } else {
        let settings = ProcessSettings::read(provider)?;
        if settings.in_process {
            return Ok(Arc::new(InProcess::new(opening.clock)));
        }
        let directory = settings.directory.clone().unwrap_or(opening.directory);
        let machines = Process::open(&directory, opening.clock.clone())?;
        (Arc::new(machines), settings.variables(&provider.kind, opening.program))
    };
    let preparation = Preparation {
        nonces: opening.nonces,
        ca_pem: opening.ca_pem,
        endpoints: opening.endpoints,
        provider: variables,
        clock: opening.clock,
    };
    Ok(Arc::new(Prepared::new(machines, preparation)))
}

/// Checks what a configuration says to its provider.
pub fn check(config: &Config, findings: &mut Findings) {
    match &*config.shard.provider.kind {
        PROCESS => process::check(config, findings),
        HCLOUD => hcloud::check(config, findings),
        // Another kind is a problem already, and its settings are its own.
        _ => {}
    }
}

/// Asks the provider's own API about what a configuration names. What cannot be asked is a warning.
pub async fn verify(config: &Config, environment: &HcloudEnvironment, findings: &mut Findings) {
    if config.shard.provider.kind == HCLOUD {
        hcloud::verify(config, environment, findings).await;
    }
}

/// The kinds of providers.
pub const PROCESS: &str = "process";
pub const HCLOUD: &str = "hcloud";

/// How the Node of an instance names its machine: what is known of it without asking the provider. Empty while the
/// machine is not there and its name is not known before. The last part is unique by itself.
pub fn node_provider_id(kind: &str, shard: &str, instance_id: &str, provider_id: &str) -> String {
    match kind {
        HCLOUD if provider_id.is_empty() => String::new(),
        HCLOUD => format!("hcloud://{provider_id}"),
        _ => format!("process:///{shard}/{instance_id}"),
    }
}

/// A machine to be made for one instance. Its name is the instance's id, so that a repeated order is the same order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Order {
    pub instance_id: String,
    pub cluster: String,
    pub shard: String,
    pub tenant: String,
    pub group: String,
    /// The template's three letters.
    pub kind: String,
    pub on_demand: bool,
    pub instance_type: String,
    pub arch: String,
    pub subnet: String,
    /// A template until it is [`Prepared`], then what the machine runs when it begins.
    pub userdata: String,
    pub vars: BTreeMap<String, String>,
    pub args: Map<String, Value>,
    /// How long its agent may take to register.
    pub registration_timeout: Duration,
    /// How often its agent reports.
    pub report_interval: Duration,
}

/// A machine as the provider has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineInfo {
    /// The label it was made with.
    pub instance_id: String,
    pub provider_id: String,
    /// `Unknown` if the provider has a machine of that name and cannot say how it is, or whose: nothing is decided on it.
    pub status: MachineStatus,
    pub created_at: Timestamp,
    /// The provider has said that it takes the machine away.
    pub noticed: bool,
    /// Of its labels, for an instance whose record is lost; empty where the provider cannot say.
    pub group: String,
    pub on_demand: bool,
}

/// The provider did not do it. Whether it had an effect is unknown: the next list says.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ProviderError {
    pub class: ErrorClass,
    pub message: String,
    /// Where the provider says how long it does not want to be asked.
    pub retry_after: Option<Duration>,
}

/// What kept a provider from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// A fault that may pass by itself.
    Transient,
    /// No room for such a machine at this place.
    Capacity,
    RateLimited,
    /// Another change of the same machine has not ended.
    Locked,
    /// The provider does not accept our credentials, or they may not do this.
    Unauthorized,
    /// What is asked for is wrong, or a person has to act first.
    Invalid,
}

impl ErrorClass {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Transient => "transient",
            Self::Capacity => "capacity",
            Self::RateLimited => "rate-limited",
            Self::Locked => "locked",
            Self::Unauthorized => "unauthorized",
            Self::Invalid => "invalid",
        }
    }
}

impl ProviderError {
    pub fn new(message: impl Into<String>) -> Self {
        Self { class: ErrorClass::Transient, message: message.into(), retry_after: None }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self { class: ErrorClass::Invalid, ..Self::new(message) }
    }
}

/// An implementation passes [`conformance::check`].
#[async_trait]
pub trait Provider: Send + Sync + 'static {
    /// Makes sure, before anything else is asked, that the shard's machines are where this looks for them: credentials of
    /// another place show none, and all would seem gone. The place has a mark, which is returned and `known` from then
    /// on; before, `expected` says whether the shard has made machines. `None` where places need or take no mark.
    async fn claim(&self, _known: Option<&str>, _expected: bool) -> Result<Option<String>, ProviderError> {
        Ok(None)
    }

    /// Makes the machine, or returns the one that was made under the same name before.
    async fn create(&self, order: &Order) -> Result<MachineInfo, ProviderError>;

    /// Removes the machine of that instance. One that is not there is no error.
    async fn delete(&self, instance_id: &str) -> Result<(), ProviderError>;

    /// `None` if there is none.
    async fn status(&self, instance_id: &str) -> Result<Option<MachineInfo>, ProviderError>;

    /// All machines of one shard of one cluster.
    async fn list(&self, cluster: &str, shard: &str) -> Result<Vec<MachineInfo>, ProviderError>;

    /// How many more machines a subnet takes; `None` without such a limit.
    async fn free(&self, subnet: &str) -> Result<Option<u32>, ProviderError>;

    /// How the Node of that machine names it.
    fn node_provider_id(&self, shard: &str, machine: &MachineInfo) -> String;

    /// The process that the machine is, where machines are processes of this host and it runs.
    fn pid(&self, _instance_id: &str) -> Option<u32> {
        None
    }
}
