//! Firewalls: recorded, and shown where they apply; no packet is filtered.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    action::Effect,
    refusal::Refusal,
    selector::{Labels, Selector},
    server::Server,
    state::{Base, Call, Outcome, Project, Record, Reply, World, in_table},
};

/// The vendor's limit.
const MOST_RULES: usize = 50;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Firewall {
    pub base: Base,
    rules: Vec<Rule>,
    applied_to: Vec<Resource>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Rule {
    direction: String,
    protocol: String,
    #[serde(default)]
    port: Option<String>,
    #[serde(default)]
    source_ips: Vec<String>,
    #[serde(default)]
    destination_ips: Vec<String>,
    #[serde(default)]
    description: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Resource {
    Server { server: ServerRef },
    LabelSelector { label_selector: SelectorRef },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ServerRef {
    id: i64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SelectorRef {
    selector: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Input {
    name: Option<String>,
    labels: Option<Labels>,
    rules: Vec<Rule>,
    apply_to: Vec<Resource>,
    remove_from: Vec<Resource>,
}

impl Rule {
    fn check(&self) -> Result<(), Refusal> {
        let has_port = ["tcp", "udp"].contains(&self.protocol.as_str());
        let addresses = match self.direction.as_str() {
            "in" => ("rules.source_ips", &self.source_ips),
            "out" => ("rules.destination_ips", &self.destination_ips),
            _ => return Err(Refusal::invalid("rules.direction", "must be in or out")),
        };
        if !has_port && !["icmp", "esp", "gre"].contains(&self.protocol.as_str()) {
            return Err(Refusal::invalid("rules.protocol", "must be tcp, udp, icmp, esp or gre"));
        }
        if has_port != self.port.is_some() || !self.port.as_deref().is_none_or(is_port) {
            return Err(Refusal::invalid("rules.port", "must be a port, a range or any, for tcp and udp alone"));
        }
        if addresses.1.is_empty() || !addresses.1.iter().all(|range| is_range(range)) {
            return Err(Refusal::invalid(addresses.0, "must be ranges in CIDR notation"));
        }
        Ok(())
    }
}

fn is_port(text: &str) -> bool {
    let number = |text: &str| text.parse::<u16>().is_ok_and(|port| port > 0);
    text == "any" || text.split_once('-').map_or_else(|| number(text), |(from, to)| number(from) && number(to))
}

fn is_range(text: &str) -> bool {
    let Some((address, prefix)) = text.split_once('/') else { return false };
    let is_v6 = address.parse::<std::net::Ipv6Addr>().is_ok() && prefix.parse::<u8>().is_ok_and(|prefix| prefix <= 128);
    is_v6 || text.parse::<super::cidr::Cidr>().is_ok()
}

fn check_rules(rules: &[Rule]) -> Result<(), Refusal> {
    if rules.len() > MOST_RULES {
        return Err(Refusal::limit("firewall_rules_limit", format!("at most {MOST_RULES} rules")));
    }
    rules.iter().try_for_each(Rule::check)
}

fn check_resources(project: &Project, resources: &[Resource]) -> Result<(), Refusal> {
    resources.iter().try_for_each(|resource| match resource {
        Resource::Server { server } if project.servers.contains_key(&server.id) => Ok(()),
        Resource::Server { .. } => Err(Refusal::new(
            http::StatusCode::NOT_FOUND,
            "firewall_resource_not_found",
            "server to apply the firewall to not found",
        )),
        Resource::LabelSelector { label_selector } => Selector::parse(&label_selector.selector).map(drop),
    })
}

impl Firewall {
    /// Whether it applies to the server, by number or by label.
    pub fn covers(&self, server: &Server) -> bool {
        self.applied_to.iter().any(|resource| match resource {
            Resource::Server { server: named } => named.id == server.base.id,
            Resource::LabelSelector { label_selector } => {
                Selector::parse(&label_selector.selector).is_ok_and(|selector| selector.matches(&server.base.labels))
            }
        })
    }

    pub fn apply_to_server(&mut self, id: i64) {
        self.applied_to.push(Resource::Server { server: ServerRef { id } });
    }

    pub fn forget(&mut self, server: i64) {
        self.applied_to
            .retain(|resource| !matches!(resource, Resource::Server { server: named } if named.id == server));
    }

    fn view_of(resource: &Resource, project: &Project) -> Value {
        let Resource::LabelSelector { label_selector } = resource else { return json!(resource) };
        let selector = Selector::parse(&label_selector.selector);
        let servers = project
            .servers
            .values()
            .filter(|server| selector.as_ref().is_ok_and(|selector| selector.matches(&server.base.labels)));
        let covered = servers.map(|server| json!({ "type": "server", "server": { "id": server.base.id } }));
        json!({
            "type": "label_selector", "label_selector": label_selector,
            "applied_to_resources": covered.collect::<Vec<_>>(),
        })
    }

    /// One action per change, on all the servers it reaches.
    fn begin(world: &mut World<'_>, command: &str, id: i64) -> Value {
        world.begin(command, &[("firewall", id)], Effect::Nothing)
    }
}

impl Record for Firewall {
    in_table!("firewalls", "firewall", firewalls);

    fn view(&self, project: &Project) -> Value {
        let applied: Vec<Value> = self.applied_to.iter().map(|resource| Self::view_of(resource, project)).collect();
        self.base.view(json!({ "rules": self.rules, "applied_to": applied }))
    }

    fn create(world: &mut World<'_>, call: &Call) -> Outcome {
        let input: Input = call.read()?;
        let name = world.name::<Self>(input.name, None)?;
        check_rules(&input.rules)?;
        check_resources(world.project, &input.apply_to)?;
        let base = world.base(name, input.labels)?;
        let id = base.id;
        let firewall = Self { base, rules: input.rules, applied_to: input.apply_to };
        let mut actions = vec![Self::begin(world, "set_firewall_rules", id)];
        if !firewall.applied_to.is_empty() {
            actions.push(Self::begin(world, "apply_firewall", id));
        }
        let view = firewall.view(world.project);
        world.project.firewalls.insert(id, firewall);
        Ok(Reply::created(json!({ "firewall": view, "actions": actions })))
    }

    fn delete(world: &mut World<'_>, id: i64) -> Outcome {
        if !Self::find(world.project, id)?.applied_to.is_empty() {
            return Err(Refusal::conflict("resource_in_use", "firewall is still in use"));
        }
        world.project.firewalls.remove(&id);
        Ok(Reply::empty())
    }

    fn act(world: &mut World<'_>, call: &Call, id: i64, command: &str) -> Outcome {
        let input: Input = call.read()?;
        check_resources(world.project, &input.apply_to)?;
        let firewall = Self::find_mut(world.project, id)?;
        let command = match command {
            "set_rules" => {
                check_rules(&input.rules)?;
                firewall.rules = input.rules;
                "set_firewall_rules"
            }
            "apply_to_resources" => {
                if input.apply_to.iter().any(|resource| firewall.applied_to.contains(resource)) {
                    let message = "firewall is already applied to a resource";
                    return Err(Refusal::conflict("firewall_already_applied", message));
                }
                firewall.applied_to.extend(input.apply_to);
                "apply_firewall"
            }
            "remove_from_resources" => {
                firewall.applied_to.retain(|resource| !input.remove_from.contains(resource));
                "remove_firewall"
            }
            _ => return Err(Refusal::no_route()),
        };
        let action = Self::begin(world, command, id);
        Ok(Reply::created(json!({ "actions": [action] })))
    }
}
