//! Networks, their subnets and the addresses in them.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    action::Effect,
    catalogue::network_zone,
    cidr::Cidr,
    refusal::Refusal,
    selector::Labels,
    state::{Base, Call, Outcome, Project, Record, Reply, World, in_table},
};

/// A smaller subnet has no room for a gateway and a host.
const LONGEST_PREFIX: u8 = 30;
/// Smaller networks are refused.
const LONGEST_NETWORK_PREFIX: u8 = 29;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Network {
    base: Base,
    ip_range: Cidr,
    subnets: Vec<Subnet>,
    routes: Vec<Route>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Subnet {
    r#type: String,
    ip_range: Cidr,
    network_zone: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Route {
    destination: String,
    gateway: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Input {
    name: Option<String>,
    ip_range: Option<String>,
    subnets: Vec<SubnetInput>,
    labels: Option<Labels>,
}

#[derive(Default, Deserialize)]
struct SubnetInput {
    r#type: Option<String>,
    ip_range: Option<String>,
    network_zone: Option<String>,
}

fn range(field: &str, text: Option<&str>) -> Result<Cidr, Refusal> {
    let text = text.ok_or_else(|| Refusal::invalid(field, "is required"))?;
    text.parse().map_err(|()| Refusal::invalid(field, "must be in CIDR notation with host bits zero"))
}

impl Network {
    fn subnet(&self, input: &SubnetInput) -> Result<Subnet, Refusal> {
        if !input.r#type.as_deref().is_some_and(|kind| ["cloud", "server"].contains(&kind)) {
            return Err(Refusal::invalid("type", "must be cloud or server"));
        }
        let network_zone = input.network_zone.clone().filter(|zone| network_zone(zone));
        let network_zone = network_zone.ok_or_else(|| Refusal::invalid("network_zone", "is not a network zone"))?;
        let free = || {
            let taken = |range: &Cidr| self.subnets.iter().any(|subnet| subnet.ip_range.overlaps(*range));
            let candidates = self.ip_range.hosts().filter_map(|host| Cidr::new(host, 24));
            candidates.into_iter().find(|range| self.ip_range.covers(*range) && !taken(range))
        };
        let ip_range = match &input.ip_range {
            None => free().ok_or_else(|| Refusal::conflict("no_subnet_available", "no range is left"))?,
            Some(text) => range("ip_range", Some(text))?,
        };
        if !self.ip_range.covers(ip_range) || ip_range.prefix() > LONGEST_PREFIX {
            return Err(Refusal::invalid("ip_range", "must be a part of the network's range, at most /30"));
        }
        if self.subnets.iter().any(|subnet| subnet.ip_range.overlaps(ip_range)) {
            return Err(Refusal::invalid("ip_range", "overlaps with another subnet"));
        }
        Ok(Subnet { r#type: input.r#type.clone().unwrap_or_default(), ip_range, network_zone })
    }

    /// Servers and load balancers in it, with their addresses.
    pub fn members(project: &Project, call: &Call, id: &str) -> Outcome {
        let network =
            id.parse().map_err(|_| Refusal::not_found("network", id)).and_then(|id| Self::find(project, id))?;
        let id = network.base.id;
        let view = |kind: &str, of: i64, ip: Ipv4Addr, aliases: &[Ipv4Addr]| {
            let subnet = network.subnets.iter().find(|subnet| subnet.ip_range.contains(ip));
            json!({
                "type": kind, "id": of, "ip": ip, "status": "ready", "alias_ips": aliases,
                "subnet": subnet.map(|subnet| subnet.ip_range),
            })
        };
        let servers = project.servers.values().flat_map(|server| {
            let nets = server.private.iter().filter(|net| net.network == id && net.is_up);
            nets.map(|net| view("server", server.base.id, net.ip, &net.alias_ips)).collect::<Vec<_>>()
        });
        let balancers = project.balancers.values().filter_map(|balancer| {
            let (_, ip) = balancer.private.filter(|(network, _)| *network == id)?;
            Some(view("load_balancer", balancer.base.id, ip, &[]))
        });
        let members = servers
            .chain(balancers)
            .filter(|member| call.query.admits("type", member["type"].as_str().unwrap_or_default()));
        Reply::page("members", &call.query.page(members.collect(), &["id", "ip"])?)
    }

    /// A wider range that still holds every subnet.
    fn widened(&self, input: &SubnetInput) -> Result<Cidr, Refusal> {
        let wider = range("ip_range", input.ip_range.as_deref())?;
        let fits = wider.is_private() && self.subnets.iter().all(|subnet| wider.covers(subnet.ip_range));
        fits.then_some(wider).ok_or_else(|| Refusal::invalid("ip_range", "must be private and hold all subnets"))
    }

    /// An address for a new interface: the wanted one, or a free one of the wanted or any subnet.
    pub fn address(
        project: &Project,
        id: i64,
        zone: &str,
        wanted: Option<&str>,
        subnet: Option<&str>,
    ) -> Result<Ipv4Addr, Refusal> {
        let network = Self::find(project, id).map_err(|_| Refusal::invalid("network", "network not found"))?;
        let used = used(project, id);
        let subnet = subnet.map(|text| range("ip_range", Some(text))).transpose()?;
        let fitting = network.subnets.iter().filter(|of| of.network_zone == zone);
        let mut fitting = fitting.map(|of| of.ip_range).filter(|range| subnet.is_none_or(|subnet| subnet == *range));
        if let Some(wanted) = wanted {
            let address: Ipv4Addr =
                wanted.parse().map_err(|_| Refusal::invalid("ip", "is not a valid IPv4 address"))?;
            let is_fine = fitting.any(|range| range.is_host(address)) && !used.contains(&address);
            let refused = || Refusal::conflict("ip_not_available", "IP is not available");
            return is_fine.then_some(address).ok_or_else(refused);
        }
        let free = fitting.flat_map(Cidr::hosts).find(|address| !used.contains(address));
        free.ok_or_else(|| Refusal::conflict("no_subnet_available", "no subnet or IP is available"))
    }
}

fn used(project: &Project, id: i64) -> Vec<Ipv4Addr> {
    let of_servers = project.servers.values().flat_map(|server| &server.private);
    let of_servers = of_servers.filter(|net| net.network == id).map(|net| net.ip);
    let of_balancers = project.balancers.values().filter_map(|balancer| balancer.private);
    of_servers.chain(of_balancers.filter(|(network, _)| *network == id).map(|(_, ip)| ip)).collect()
}

impl Record for Network {
    in_table!("networks", "network", networks);

    fn view(&self, project: &Project) -> Value {
        let id = self.base.id;
        let subnets = self.subnets.iter().map(|subnet| {
            json!({
                "type": subnet.r#type, "ip_range": subnet.ip_range, "network_zone": subnet.network_zone,
                // One gateway for all subnets.
                "gateway": self.ip_range.gateway(), "vswitch_id": null,
            })
        });
        let has = |server: &&super::server::Server| server.private.iter().any(|net| net.network == id);
        let servers = project.servers.values().filter(has).map(|server| server.base.id);
        let balancers = project.balancers.values().filter(|balancer| balancer.private.is_some_and(|net| net.0 == id));
        self.base.view(json!({
            "ip_range": self.ip_range, "subnets": subnets.collect::<Vec<_>>(), "routes": self.routes,
            "servers": servers.collect::<Vec<_>>(), "expose_routes_to_vswitch": false,
            "load_balancers": balancers.map(|balancer| balancer.base.id).collect::<Vec<_>>(),
        }))
    }

    fn create(world: &mut World<'_>, call: &Call) -> Outcome {
        let input: Input = call.read()?;
        let name = world.name::<Self>(input.name, None)?;
        let ip_range = range("ip_range", input.ip_range.as_deref())?;
        if !ip_range.is_private() || ip_range.prefix() > LONGEST_NETWORK_PREFIX {
            return Err(Refusal::invalid("ip_range", "must be a private range, at most /29"));
        }
        let mut network = Self { base: world.base(name, input.labels)?, ip_range, subnets: vec![], routes: vec![] };
        for subnet in &input.subnets {
            let subnet = network.subnet(subnet)?;
            network.subnets.push(subnet);
        }
        let view = network.view(world.project);
        world.project.networks.insert(network.base.id, network);
        Ok(Reply::created(json!({ "network": view })))
    }

    fn delete(world: &mut World<'_>, id: i64) -> Outcome {
        // What is attached does not keep it: it is detached afterwards.
        let is_attached = |server: &&super::server::Server| server.private.iter().any(|net| net.network == id);
        let servers: Vec<i64> =
            world.project.servers.values().filter(is_attached).map(|server| server.base.id).collect();
        for server in servers {
            let effect = Effect::Detach { server, network: id };
            world.begin("detach_from_network", &[("server", server), ("network", id)], effect);
        }
        for balancer in world.project.balancers.values_mut() {
            balancer.private.take_if(|(network, _)| *network == id);
        }
        world.project.networks.remove(&id);
        Ok(Reply::empty())
    }

    fn act(world: &mut World<'_>, call: &Call, id: i64, command: &str) -> Outcome {
        match command {
            "add_subnet" => {
                let subnet = Self::find(world.project, id)?.subnet(&call.read()?)?;
                Self::find_mut(world.project, id)?.subnets.push(subnet);
            }
            "change_ip_range" => {
                let wider = Self::find(world.project, id)?.widened(&call.read()?)?;
                Self::find_mut(world.project, id)?.ip_range = wider;
            }
            "delete_subnet" => {
                let input: SubnetInput = call.read()?;
                let range = range("ip_range", input.ip_range.as_deref())?;
                if used(world.project, id).into_iter().any(|address| range.contains(address)) {
                    return Err(Refusal::conflict("resource_in_use", "subnet still has attached resources"));
                }
                let subnets = &mut Self::find_mut(world.project, id)?.subnets;
                let index = subnets.iter().position(|subnet| subnet.ip_range == range);
                subnets.remove(index.ok_or_else(|| Refusal::invalid("ip_range", "is not a subnet"))?);
            }
            "add_route" | "delete_route" => change_route(world, call, id, command)?,
            _ => return Err(Refusal::no_route()),
        }
        let action = world.begin(command, &[("network", id)], Effect::Nothing);
        Ok(Reply::created(json!({ "action": action })))
    }
}

fn change_route(world: &mut World<'_>, call: &Call, id: i64, command: &str) -> Result<(), Refusal> {
    #[derive(Default, Deserialize)]
    struct Input {
        destination: Option<String>,
        gateway: Option<String>,
    }
    let input: Input = call.read()?;
    let destination = range("destination", input.destination.as_deref())?.to_string();
    let gateway = input.gateway.filter(|gateway| gateway.parse::<Ipv4Addr>().is_ok());
    let gateway = gateway.ok_or_else(|| Refusal::invalid("gateway", "is not a valid IPv4 address"))?;
    let route = Route { destination, gateway };
    let routes = &mut Network::find_mut(world.project, id)?.routes;
    let index = routes.iter().position(|known| *known == route);
    match (command, index) {
        ("add_route", None) => routes.push(route),
        ("add_route", Some(_)) => return Err(Refusal::invalid("destination", "route already exists")),
        (_, Some(index)) => {
            routes.remove(index);
        }
        (_, None) => return Err(Refusal::invalid("destination", "route not found")),
    }
    Ok(())
}
