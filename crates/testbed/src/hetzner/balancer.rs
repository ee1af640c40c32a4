//! Load balancers.

use std::{collections::BTreeMap, net::Ipv4Addr};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    action::Effect,
    balancer_service::{Service, ServiceInput},
    catalogue::{BALANCER_TYPES, BalancerType, LOCATIONS, Location},
    forward::{Forwarded, Health},
    network::Network,
    refusal::Refusal,
    selector::{Labels, Selector},
    server::Server,
    state::{Base, Call, IdOrName, Outcome, Project, Record, Reply, World, in_table},
};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Balancer {
    pub base: Base,
    kind: String,
    location: String,
    ipv4: (i64, Ipv4Addr),
    is_public: bool,
    /// Network and address.
    pub private: Option<(i64, Ipv4Addr)>,
    algorithm: String,
    services: Vec<Service>,
    targets: Vec<Target>,
    /// By listening port and target, as the forwarding last found it.
    #[serde(skip)]
    pub health: BTreeMap<(u16, Ipv4Addr), Health>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Target {
    #[serde(flatten)]
    to: To,
    #[serde(default)]
    use_private_ip: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum To {
    Server { server: ServerRef },
    LabelSelector { label_selector: SelectorRef },
    Ip { ip: IpRef },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ServerRef {
    id: i64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SelectorRef {
    selector: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct IpRef {
    ip: Ipv4Addr,
}

/// Where connections go.
pub(super) struct Resolved {
    pub server: Option<i64>,
    pub address: Option<Ipv4Addr>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Input {
    name: Option<String>,
    labels: Option<Labels>,
    load_balancer_type: Option<IdOrName>,
    algorithm: Option<Algorithm>,
    location: Option<IdOrName>,
    network_zone: Option<String>,
    services: Vec<ServiceInput>,
    targets: Vec<Target>,
    public_interface: Option<bool>,
    network: Option<i64>,
}

#[derive(Deserialize)]
struct Algorithm {
    r#type: String,
}

impl Balancer {
    fn kind(&self) -> &'static BalancerType {
        BALANCER_TYPES.iter().find(|kind| kind.name == self.kind).unwrap_or(&BALANCER_TYPES[0])
    }

    fn zone(&self) -> &'static str {
        Location::named(&self.location).map_or("", |location| location.zone)
    }

    fn address_of(&self, server: &Server, use_private_ip: bool) -> Option<Ipv4Addr> {
        if !use_private_ip {
            return server.ipv4.map(|(_, ip)| ip);
        }
        let network = self.private?.0;
        server.private.iter().find(|net| net.network == network && net.is_up).map(|net| net.ip)
    }

    fn resolve(&self, target: &Target, project: &Project) -> Vec<Resolved> {
        let by_server = |server: &Server| Resolved {
            server: Some(server.base.id),
            address: self.address_of(server, target.use_private_ip),
        };
        match &target.to {
            To::Server { server } => project.servers.get(&server.id).map(by_server).into_iter().collect(),
            To::LabelSelector { label_selector } => {
                let selector = Selector::parse(&label_selector.selector);
                let is_chosen =
                    |server: &&Server| selector.as_ref().is_ok_and(|selector| selector.matches(&server.base.labels));
                project.servers.values().filter(is_chosen).map(by_server).collect()
            }
            To::Ip { ip } => vec![Resolved { server: None, address: Some(ip.ip) }],
        }
    }

    pub fn targets(&self, project: &Project) -> Vec<Resolved> {
        self.targets.iter().flat_map(|target| self.resolve(target, project)).collect()
    }

    /// What the forwarding needs to know.
    pub fn forwarded(&self, project: &Project) -> Forwarded {
        let public = self.is_public.then_some(self.ipv4.1);
        let mut targets: Vec<Ipv4Addr> = self.targets(project).into_iter().filter_map(|to| to.address).collect();
        targets.sort_unstable();
        targets.dedup();
        Forwarded {
            id: self.base.id,
            addresses: public.into_iter().chain(self.private.map(|(_, ip)| ip)).collect(),
            services: self.services.clone(),
            targets,
        }
    }

    pub fn forget(&mut self, server: i64) {
        self.targets.retain(|target| !matches!(&target.to, To::Server { server: named } if named.id == server));
    }

    fn health_of(&self, address: Option<Ipv4Addr>) -> Vec<Value> {
        let by_service = self.services.iter().map(|service| {
            let known = address.and_then(|address| self.health.get(&(service.listen_port, address)));
            json!({ "listen_port": service.listen_port, "status": known.copied().unwrap_or_default() })
        });
        by_service.collect()
    }

    fn view_target(&self, target: &Target, project: &Project) -> Value {
        let resolved = self.resolve(target, project);
        let mut view = json!(target);
        if let To::LabelSelector { .. } = target.to {
            let servers = resolved.into_iter().map(|to| {
                json!({
                    "type": "server", "server": { "id": to.server }, "use_private_ip": target.use_private_ip,
                    "health_status": self.health_of(to.address),
                })
            });
            view["targets"] = servers.collect();
        } else {
            view["health_status"] = json!(self.health_of(resolved.first().and_then(|to| to.address)));
        }
        view
    }

    fn check_target(&self, target: &Target, project: &Project) -> Result<(), Refusal> {
        if self.targets.iter().any(|known| known.to == target.to) {
            return Err(Refusal::conflict("target_already_defined", "target is already defined"));
        }
        if self.targets.len() >= self.kind().targets {
            return Err(Refusal::limit("load_balancer_targets_limit", "load balancer has no room for more targets"));
        }
        if target.use_private_ip && self.private.is_none() {
            let message = "load balancer is not attached to a network";
            return Err(Refusal::conflict("load_balancer_not_attached_to_network", message));
        }
        match &target.to {
            To::LabelSelector { label_selector } => Selector::parse(&label_selector.selector).map(drop),
            To::Ip { .. } => Err(Refusal::conflict("ip_not_owned", "IP is not owned by the account")),
            To::Server { server } => {
                let refused = || Refusal::invalid("server", "server not found");
                let server = project.servers.get(&server.id).ok_or_else(refused)?;
                if target.use_private_ip && self.address_of(server, true).is_none() {
                    let message = "server is not attached to the network of the load balancer";
                    return Err(Refusal::conflict("server_not_attached_to_network", message));
                }
                Ok(())
            }
        }
    }

    fn add_service(&mut self, input: ServiceInput) -> Result<(), Refusal> {
        let service = input.service()?;
        if self.services.iter().any(|known| known.listen_port == service.listen_port) {
            return Err(Refusal::conflict("source_port_already_used", "source port is already in use"));
        }
        if self.services.len() >= self.kind().services {
            return Err(Refusal::limit("load_balancer_services_limit", "load balancer has no room for more services"));
        }
        self.services.push(service);
        Ok(())
    }

    fn service(&mut self, port: Option<u16>) -> Result<&mut Service, Refusal> {
        let found = self.services.iter_mut().find(|service| Some(service.listen_port) == port);
        found.ok_or_else(|| Refusal::invalid("listen_port", "no service listens on this port"))
    }
}

fn algorithm(input: Option<Algorithm>) -> Result<String, Refusal> {
    let name = input.map_or_else(|| "round_robin".to_owned(), |algorithm| algorithm.r#type);
    let is_known = ["round_robin", "least_connections"].contains(&name.as_str());
    is_known.then_some(name).ok_or_else(|| Refusal::invalid("algorithm.type", "is not an algorithm"))
}

fn kind(input: &Input) -> Result<&'static BalancerType, Refusal> {
    let wanted = input.load_balancer_type.as_ref();
    let found = BALANCER_TYPES.iter().find(|kind| wanted.is_some_and(|wanted| wanted.is(kind.id, kind.name)));
    found.ok_or_else(|| Refusal::invalid("load_balancer_type", "load balancer type not found"))
}

fn location(input: &Input) -> Result<&'static Location, Refusal> {
    let zone = |location: &&Location| Some(location.zone) == input.network_zone.as_deref();
    let found = match &input.location {
        Some(wanted) => LOCATIONS.iter().find(|location| wanted.is(location.id, location.name)),
        None => LOCATIONS.iter().find(zone),
    };
    found.ok_or_else(|| Refusal::invalid("location", "one of location and network_zone is required"))
}

impl Record for Balancer {
    in_table!("load_balancers", "load_balancer", balancers);

    fn view(&self, project: &Project) -> Value {
        let private = self.private.map(|(network, ip)| json!({ "network": network, "ip": ip }));
        let (id, ip) = self.ipv4;
        self.base.view(json!({
            "public_net": {
                "enabled": self.is_public,
                "ipv4": { "id": id, "ip": ip, "dns_ptr": format!("lb.{ip}.example") },
                "ipv6": { "ip": format!("2001:db8:1b:{:x}::1", self.base.id & 0xffff), "dns_ptr": "lb.example" },
            },
            "private_net": Vec::from_iter(private),
            "location": Location::named(&self.location).map(Location::view),
            "load_balancer_type": self.kind().view(), "services": self.services,
            "targets": self.targets.iter().map(|target| self.view_target(target, project)).collect::<Vec<_>>(),
            "algorithm": { "type": self.algorithm }, "outgoing_traffic": 0, "ingoing_traffic": 0,
            "included_traffic": 21_990_232_555_520_u64,
        }))
    }

    fn create(world: &mut World<'_>, call: &Call) -> Outcome {
        let input: Input = call.read()?;
        let name = world.name::<Self>(input.name.clone(), None)?;
        let kind = kind(&input)?;
        let location = location(&input)?;
        let network = |network| Ok((network, Network::address(world.project, network, location.zone, None, None)?));
        let private = input.network.map(network).transpose()?;
        let algorithm = algorithm(input.algorithm)?;
        let base = world.base(name, input.labels)?;
        let id = base.id;
        let mut balancer = Self {
            base,
            kind: kind.name.to_owned(),
            location: location.name.to_owned(),
            // Given below, when nothing can be refused any more.
            ipv4: (0, Ipv4Addr::UNSPECIFIED),
            is_public: input.public_interface != Some(false),
            private,
            algorithm,
            services: Vec::new(),
            targets: Vec::new(),
            health: BTreeMap::new(),
        };
        input.services.into_iter().try_for_each(|service| balancer.add_service(service))?;
        for target in input.targets {
            balancer.check_target(&target, world.project)?;
            balancer.targets.push(target);
        }
        balancer.ipv4 = (world.id(), world.pool.take()?);
        let view = balancer.view(world.project);
        world.project.balancers.insert(id, balancer);
        let action = world.begin("create_load_balancer", &[("load_balancer", id)], Effect::Nothing);
        Ok(Reply::created(json!({ "load_balancer": view, "action": action })))
    }

    fn delete(world: &mut World<'_>, id: i64) -> Outcome {
        if let Some(balancer) = world.project.balancers.remove(&id) {
            world.pool.release(balancer.ipv4.1);
        }
        let action = world.begin("delete_load_balancer", &[("load_balancer", id)], Effect::Nothing);
        Ok(Reply::created(json!({ "action": action })))
    }

    fn act(world: &mut World<'_>, call: &Call, id: i64, command: &str) -> Outcome {
        match command {
            "add_target" | "remove_target" => change_target(world, call, id, command)?,
            "attach_to_network" => attach(world, call, id)?,
            "add_service" => {
                let input = call.read()?;
                Self::find_mut(world.project, id)?.add_service(input)?;
            }
            "update_service" => {
                let input: ServiceInput = call.read()?;
                let service = Self::find_mut(world.project, id)?.service(input.listen_port)?;
                *service = input.over(service)?;
            }
            "delete_service" => {
                let port = call.read::<ServiceInput>()?.listen_port;
                let balancer = Self::find_mut(world.project, id)?;
                let gone = balancer.service(port)?.listen_port;
                balancer.services.retain(|service| service.listen_port != gone);
            }
            "detach_from_network" => Self::find_mut(world.project, id)?.private = None,
            "enable_public_interface" => Self::find_mut(world.project, id)?.is_public = true,
            "disable_public_interface" => Self::find_mut(world.project, id)?.is_public = false,
            // Names are shown nowhere.
            "change_dns_ptr" => {}
            "change_type" => {
                let wanted: Input = call.read()?;
                kind(&wanted)?.name.clone_into(&mut Self::find_mut(world.project, id)?.kind);
            }
            "change_algorithm" => {
                let kind = call.body["type"].as_str().unwrap_or_default().to_owned();
                Self::find_mut(world.project, id)?.algorithm = algorithm(Some(Algorithm { r#type: kind }))?;
            }
            _ => return Err(Refusal::no_route()),
        }
        let action = world.begin(command, &[("load_balancer", id)], Effect::Nothing);
        Ok(Reply::created(json!({ "action": action })))
    }
}

fn change_target(world: &mut World<'_>, call: &Call, id: i64, command: &str) -> Result<(), Refusal> {
    let target = Target::deserialize(&call.body)
        .map_err(|_| Refusal::invalid("type", "must be server, label_selector or ip, with the field of that name"))?;
    if command == "add_target" {
        Balancer::find(world.project, id)?.check_target(&target, world.project)?;
        Balancer::find_mut(world.project, id)?.targets.push(target);
        return Ok(());
    }
    let targets = &mut Balancer::find_mut(world.project, id)?.targets;
    let index = targets.iter().position(|known| known.to == target.to);
    targets.remove(index.ok_or_else(|| Refusal::invalid("target", "target not found"))?);
    Ok(())
}

fn attach(world: &mut World<'_>, call: &Call, id: i64) -> Result<(), Refusal> {
    #[derive(Default, Deserialize)]
    struct Input {
        network: Option<i64>,
        ip: Option<String>,
        ip_range: Option<String>,
    }
    let input: Input = call.read()?;
    let network = input.network.ok_or_else(|| Refusal::invalid("network", "is required"))?;
    let balancer = Balancer::find(world.project, id)?;
    if balancer.private.is_some() {
        let message = "load balancer is already attached to a network";
        return Err(Refusal::conflict("load_balancer_already_attached", message));
    }
    let (ip, range) = (input.ip.as_deref(), input.ip_range.as_deref());
    let ip = Network::address(world.project, network, balancer.zone(), ip, range)?;
    Balancer::find_mut(world.project, id)?.private = Some((network, ip));
    Ok(())
}
