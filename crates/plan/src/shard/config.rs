//! A shard's configuration, as an administrator writes it.

mod check;
mod duration;

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use check::{Findings, Problem, check, read};
pub use duration::Span;

use super::{election::Timing, refusal::Refusal};

/// The whole file. Names that are not known are problems, those of features that are cut are warnings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub cluster: Cluster,
    pub shard: Shard,
    pub certificates: Certificates,
    pub defaults: Defaults,
    pub templates: BTreeMap<String, Template>,
    /// By tenant, then by name.
    pub groups: BTreeMap<String, BTreeMap<String, StaticGroup>>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cluster {
    pub id: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shard {
    pub id: String,
    pub provider: Provider,
    pub request_timeout: Span,
    pub health_check_interval: Span,
    pub default_drain_timeout: Span,
    pub shutdown_timeout: Span,
    pub garbage_collection: GarbageCollection,
    pub election: Election,
    pub expiry: Expiry,
    /// Instances per minute; absent for no limit.
    pub create_rate_limit: Option<u32>,
    /// The provider's subnets by pool.
    pub subnet_pools: BTreeMap<String, Vec<String>>,
    /// If not empty, the only pools that dynamic groups may use.
    pub dynamic_subnet_pools: Vec<String>,
}

impl Default for Shard {
    /// The original's defaults.
    fn default() -> Self {
        Self {
            id: String::new(),
            provider: Provider::default(),
            request_timeout: Span::seconds(30),
            health_check_interval: Span::seconds(60),
            default_drain_timeout: Span::seconds(5 * 60),
            shutdown_timeout: Span::seconds(10),
            garbage_collection: GarbageCollection::default(),
            election: Election::default(),
            expiry: Expiry::default(),
            create_rate_limit: None,
            subnet_pools: BTreeMap::new(),
            dynamic_subnet_pools: Vec::new(),
        }
    }
}

/// Which provider owns the machines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Provider {
    pub kind: String,
    /// The architecture of each instance type; if not empty, other types are refused.
    pub instance_types: BTreeMap<String, String>,
    /// The provider's own settings.
    #[serde(flatten)]
    pub settings: Map<String, Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GarbageCollection {
    pub interval: Span,
    /// An instance that did not register within it is deleted.
    pub registration_timeout: Span,
    pub deleted_record_retention: Span,
}

impl Default for GarbageCollection {
    fn default() -> Self {
        Self {
            interval: Span::seconds(2 * 60),
            registration_timeout: Span::seconds(5 * 60),
            deleted_record_retention: Span::seconds(30 * 60),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Election {
    pub frequent: Span,
    /// Accepted for the original's sake: candidates look as often as the leader renews.
    pub infrequent: Span,
    pub leader_timeout: Span,
}

impl Default for Election {
    fn default() -> Self {
        Self { frequent: Span::seconds(5), infrequent: Span::seconds(30), leader_timeout: Span::seconds(15) }
    }
}

impl Election {
    pub fn timing(&self) -> Timing {
        Timing { renew: self.frequent.get(), timeout: self.leader_timeout.get() }
    }
}

/// Ages at which instances are replaced; absent for never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Expiry {
    pub eligible_age: Option<Span>,
    pub forced_age: Option<Span>,
    pub ondemand_age: Option<Span>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Certificates {
    pub operator: Lifetime,
    pub agent: Lifetime,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lifetime {
    /// In hours.
    pub ttl: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Defaults {
    pub vars: BTreeMap<String, String>,
    pub args: Map<String, Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Template {
    /// Three lower-case letters: the beginning of its instances' ids.
    pub kind: String,
    pub arch: String,
    pub userdata: String,
    /// For static groups that state no size of their own.
    pub size: Option<i32>,
    pub instance_type: String,
    /// If not empty, the only instance types it may have.
    pub instance_types: Vec<String>,
    pub subnet_pool: String,
    pub vars: BTreeMap<String, String>,
    pub args: Map<String, Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StaticGroup {
    pub template: String,
    pub size: Option<i32>,
    pub instance_type: String,
    pub subnet_pool: String,
    pub vars: BTreeMap<String, String>,
    pub args: Map<String, Value>,
    pub drain_timeout: Option<Span>,
}

impl Config {
    pub fn static_group(&self, tenant: &str, key: &str) -> Option<&StaticGroup> {
        self.groups.get(tenant)?.get(key)
    }

    pub fn drain_timeout(&self) -> Duration {
        self.shard.default_drain_timeout.get()
    }

    /// Refuses an instance type that the template's list or architecture does not allow. Empty means the provider's
    /// own default and is always allowed.
    pub fn check_instance_type(&self, template: &Template, instance_type: &str) -> Result<(), Refusal> {
        if instance_type.is_empty() {
            return Ok(());
        }
        let refuse = |why: String| Err(Refusal::invalid(format!("instance_type: {instance_type:?} {why}")));
        if !template.instance_types.is_empty() && !template.instance_types.iter().any(|other| other == instance_type) {
            return refuse(format!("is not one of the template's: {}", template.instance_types.join(", ")));
        }
        let known = &self.shard.provider.instance_types;
        match known.get(instance_type) {
            None if known.is_empty() => Ok(()),
            None => refuse("is not an instance type of this shard's provider".to_owned()),
            Some(arch) if template.arch.is_empty() || *arch == template.arch => Ok(()),
            Some(arch) => refuse(format!("is {arch}, the template needs {}", template.arch)),
        }
    }
}

/// Lays `over` over `under`; objects merge recursively.
pub fn merge(under: &Map<String, Value>, over: &Map<String, Value>) -> Map<String, Value> {
    let mut merged = under.clone();
    for (key, value) in over {
        let both = match (merged.get(key), value) {
            (Some(Value::Object(under)), Value::Object(over)) => Value::Object(merge(under, over)),
            _ => value.clone(),
        };
        merged.insert(key.clone(), both);
    }
    merged
}
