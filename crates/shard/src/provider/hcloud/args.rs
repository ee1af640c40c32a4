//! What templates and groups say of their servers, in `args`.

use std::collections::BTreeMap;

use plan::shard::config::{Config, merge};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Labels under it are the shard's own.
const OWN: &str = "nstance.dev/";

/// A field below a template or a group, and what is wrong with it.
pub type Wrong = (String, String);

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Args {
    pub image: Option<Named>,
    pub location: String,
    pub networks: Vec<Named>,
    pub firewalls: Vec<Named>,
    pub placement_group: Option<Named>,
    pub ssh_keys: Vec<Named>,
    pub public_net: PublicNet,
    /// For firewalls and load balancers that choose servers by labels.
    pub labels: BTreeMap<String, String>,
}

/// Something of the project.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "must be a name or a number")]
pub enum Named {
    Id(i64),
    Name(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PublicNet {
    pub enable_ipv4: bool,
    pub enable_ipv6: bool,
}

impl Default for PublicNet {
    fn default() -> Self {
        Self { enable_ipv4: true, enable_ipv6: true }
    }
}

impl Args {
    pub fn read(args: &Map<String, Value>) -> Result<Self, Vec<Wrong>> {
        let Ok(read) = serde_json::from_value::<Self>(Value::Object(args.clone())) else {
            // Every key has a default, so that each is read alone.
            let alone = |(key, value): (&String, &Value)| {
                let alone = Map::from_iter([(key.clone(), value.clone())]);
                let error = serde_json::from_value::<Self>(Value::Object(alone)).err()?;
                Some((format!("args.{key}"), format!("{error}; correct or remove it")))
            };
            return Err(args.iter().filter_map(alone).collect());
        };
        let wrong = read.wrong();
        if wrong.is_empty() { Ok(read) } else { Err(wrong) }
    }

    /// What the types do not say.
    fn wrong(&self) -> Vec<Wrong> {
        let mut wrong = Vec::new();
        let mut problem = |field: &str, message: &str| wrong.push((format!("args.{field}"), message.to_owned()));
        if self.image.is_none() {
            problem("image", "is required: the name of an image, such as \"debian-13\", or the number of a snapshot");
        }
        if self.location.is_empty() {
            problem("location", "is required: where servers are made, such as \"fsn1\"");
        }
        let has_public = self.public_net.enable_ipv4 || self.public_net.enable_ipv6;
        if !has_public && self.networks.is_empty() {
            problem("public_net", "without a public address a server needs one of args.networks");
        }
        for key in self.labels.keys().filter(|key| key.starts_with(OWN)) {
            problem(&format!("labels.{key}"), "labels of this domain are the shard's own; choose another key");
        }
        wrong
    }
}

/// The args of a template, or of a static group that has its own.
pub struct Part<'a> {
    pub path: String,
    pub arch: &'a str,
    pub instance_type: &'a str,
    pub args: Result<Args, Vec<Wrong>>,
}

/// Every part of a configuration that describes servers. A group is not named again for what its template says wrong.
pub fn parts(config: &Config) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let of_template = |template: &plan::shard::config::Template| merge(&config.defaults.args, &template.args);
    for (name, template) in &config.templates {
        parts.push(Part {
            path: format!("templates.{name}"),
            arch: &template.arch,
            instance_type: &template.instance_type,
            args: Args::read(&of_template(template)),
        });
    }
    for (tenant, groups) in &config.groups {
        for (name, group) in groups {
            let Some(template) = config.templates.get(&group.template) else { continue };
            let under = of_template(template);
            if Args::read(&under).is_err() || group.args.is_empty() && group.instance_type.is_empty() {
                continue;
            }
            let own = Some(&*group.instance_type).filter(|own| !own.is_empty());
            parts.push(Part {
                path: format!("groups.{tenant}.{name}"),
                arch: &template.arch,
                instance_type: own.unwrap_or(&template.instance_type),
                args: Args::read(&merge(&under, &group.args)),
            });
        }
    }
    parts
}
