//! Servers.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    action::Effect,
    catalogue::{LOCATIONS, Location, SERVER_TYPES, ServerType},
    firewall::Firewall,
    image,
    machines::Machine,
    network::Network,
    placement_group::PlacementGroup,
    query::{Page, Query},
    refusal::Refusal,
    selector::Labels,
    server_view,
    state::{Base, Call, IdOrName, Outcome, Project, Record, Reply, World, in_table},
};

/// The vendor's limit for user data.
const MOST_USER_DATA: usize = 32 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Status {
    Initializing,
    Starting,
    Running,
    Stopping,
    Off,
    Deleting,
    Rebuilding,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Server {
    pub base: Base,
    pub status: Status,
    pub kind: String,
    pub image: (i64, String),
    pub location: String,
    /// Number and address.
    pub ipv4: Option<(i64, Ipv4Addr)>,
    pub ipv6: Option<i64>,
    pub private: Vec<PrivateNet>,
    pub placement_group: Option<i64>,
    pub user_data: String,
    pub has_rescue: bool,
    pub backup_window: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PrivateNet {
    pub network: i64,
    pub ip: Ipv4Addr,
    pub alias_ips: Vec<Ipv4Addr>,
    /// Its action has ended; before that the address is only reserved.
    pub is_up: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Input {
    name: Option<String>,
    server_type: Option<IdOrName>,
    image: Option<IdOrName>,
    location: Option<IdOrName>,
    ssh_keys: Vec<IdOrName>,
    labels: Option<Labels>,
    placement_group: Option<i64>,
    user_data: Option<String>,
    start_after_create: Option<bool>,
    public_net: Option<PublicNet>,
    networks: Vec<i64>,
    firewalls: Vec<FirewallRef>,
    volumes: Vec<i64>,
}

#[derive(Deserialize)]
struct PublicNet {
    #[serde(default = "yes")]
    enable_ipv4: bool,
    #[serde(default = "yes")]
    enable_ipv6: bool,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
struct FirewallRef {
    firewall: i64,
}

impl Server {
    pub fn offered(&self) -> &'static ServerType {
        SERVER_TYPES.iter().find(|kind| kind.name == self.kind).unwrap_or(&SERVER_TYPES[0])
    }

    pub fn zone(&self) -> &'static str {
        Location::named(&self.location).map_or("", |location| location.zone)
    }

    pub fn machine(&self) -> Machine {
        let up = self.private.iter().filter(|net| net.is_up);
        Machine {
            id: self.base.id,
            name: self.base.name.clone(),
            labels: self.base.labels.clone(),
            server_type: self.kind.clone(),
            image: self.image.1.clone(),
            location: self.location.clone(),
            user_data: self.user_data.clone(),
            public: self.ipv4.map(|(_, ip)| ip),
            private: up.map(|net| (net.network, net.ip)).collect(),
        }
    }

    /// The vendor's view of its addresses as resources of their own.
    pub fn primary_ips(&self) -> Vec<Value> {
        let view = |id: i64, kind: &str, ip: String| {
            json!({
                "id": id, "name": format!("primary_ip-{id}"), "type": kind, "ip": ip, "labels": {},
                "protection": { "delete": false }, "dns_ptr": [], "assignee_id": self.base.id,
                "assignee_type": "server", "auto_delete": true, "blocked": false,
                "created": super::action::seconds(self.base.created),
                "location": Location::named(&self.location).map(Location::view),
            })
        };
        let ipv4 = self.ipv4.map(|(id, ip)| view(id, "ipv4", ip.to_string()));
        ipv4.into_iter().chain(self.ipv6.map(|id| view(id, "ipv6", ipv6(self.base.id)))).collect()
    }

    /// One that runs already.
    pub fn add(world: &mut World<'_>, name: &str) -> Result<(), Refusal> {
        let body = json!({ "name": name, "server_type": "cx23", "image": "debian-13" });
        let call = Call { method: http::Method::POST, query: Query::default(), body };
        Self::create(world, &call)?;
        let begun = std::mem::take(&mut world.chain);
        world.project.actions.retain(|id, _| !begun.contains(id));
        if let Some(made) = world.project.servers.values_mut().next_back() {
            made.status = Status::Running;
        }
        Ok(())
    }

    /// Everything that names it forgets it.
    pub fn remove(world: &mut World<'_>, id: i64) {
        let Some(server) = world.project.servers.remove(&id) else { return };
        if let Some((_, address)) = server.ipv4 {
            world.pool.release(address);
        }
        for volume in world.project.volumes.values_mut().filter(|volume| volume.server == Some(id)) {
            volume.server = None;
        }
        world.project.firewalls.values_mut().for_each(|firewall| firewall.forget(id));
        world.project.balancers.values_mut().for_each(|balancer| balancer.forget(id));
    }
}

/// From the range for documentation: nothing listens there.
pub(super) fn ipv6(id: i64) -> String {
    format!("2001:db8:{:x}:{:x}::/64", (id >> 16) & 0xffff, id & 0xffff)
}

/// A host name, as RFC 1123 has it.
fn is_host_name(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

/// Everything a request names exists and fits together.
struct Checked {
    kind: &'static ServerType,
    image: (i64, String),
    location: &'static Location,
}

fn check(project: &Project, input: &Input) -> Result<Checked, Refusal> {
    let wanted = input.server_type.as_ref().ok_or_else(|| Refusal::invalid("server_type", "is required"))?;
    let kind = SERVER_TYPES.iter().find(|kind| wanted.is(kind.id, kind.name));
    let kind = kind.ok_or_else(|| Refusal::invalid("server_type", "server type not found"))?;
    let wanted = input.image.as_ref().ok_or_else(|| Refusal::invalid("image", "is required"))?;
    let image = image::find(project, wanted, kind.architecture);
    let image = image.ok_or_else(|| Refusal::invalid("image", "image not found"))?;
    if image.architecture != kind.architecture {
        return Err(Refusal::invalid("image", "image architecture does not match the server type"));
    }
    if !image.is_available {
        return Err(Refusal::new(
            http::StatusCode::PRECONDITION_FAILED,
            "resource_unavailable",
            "image is not available",
        ));
    }
    let location = match &input.location {
        None => &LOCATIONS[0],
        Some(wanted) => LOCATIONS
            .iter()
            .find(|location| wanted.is(location.id, location.name))
            .ok_or_else(|| Refusal::invalid("location", "location not found"))?,
    };
    let has_key = |wanted: &IdOrName| project.ssh_keys.values().any(|key| wanted.is(key.base.id, &key.base.name));
    if !input.ssh_keys.iter().all(has_key) {
        return Err(Refusal::invalid("ssh_keys", "SSH key not found"));
    }
    if input.user_data.as_ref().is_some_and(|data| data.len() > MOST_USER_DATA) {
        return Err(Refusal::invalid("user_data", "is too long: at most 32 KiB"));
    }
    input.placement_group.map_or(Ok(()), |group| PlacementGroup::check(project, group))?;
    if !input.firewalls.iter().all(|of| project.firewalls.contains_key(&of.firewall)) {
        return Err(Refusal::invalid("firewalls", "firewall not found"));
    }
    let is_free = |id: &i64| project.volumes.get(id).is_some_and(|volume| volume.server.is_none());
    if !input.volumes.iter().all(is_free) {
        return Err(Refusal::invalid("volumes", "volume not found or attached"));
    }
    Ok(Checked { kind, image: (image.id, image.name), location })
}

impl Record for Server {
    in_table!("servers", "server", servers);

    fn is_name(name: &str) -> bool {
        is_host_name(name)
    }

    fn is_wanted(&self, query: &Query) -> bool {
        // Most lists do not ask for it, and each of them looks at every server.
        query.first("status").is_none() || query.admits("status", json!(self.status).as_str().unwrap_or_default())
    }

    fn view(&self, project: &Project) -> Value {
        let shown = server_view::Around::of(project).show(self);
        serde_json::to_value(shown).expect("a server's fields have text as keys")
    }

    fn show(project: &Project, page: Page<&Self>) -> Outcome {
        let around = server_view::Around::of(project);
        let items = page.items.into_iter().map(|server| around.show(server)).collect();
        Reply::page(Self::MANY, &Page { items, pagination: page.pagination })
    }

    fn create(world: &mut World<'_>, call: &Call) -> Outcome {
        let input: Input = call.read()?;
        let name = world.name::<Self>(input.name.clone(), None)?;
        let Checked { kind, image, location } = check(world.project, &input)?;
        let mut private = Vec::new();
        for &network in &input.networks {
            if private.iter().any(|net: &PrivateNet| net.network == network) {
                return Err(Refusal::invalid("networks", "network given twice"));
            }
            let ip = Network::address(world.project, network, location.zone, None, None)?;
            private.push(PrivateNet { network, ip, alias_ips: Vec::new(), is_up: true });
        }
        let public = input.public_net.unwrap_or(PublicNet { enable_ipv4: true, enable_ipv6: true });
        let base = world.base(name, input.labels)?;
        let ipv4 = if public.enable_ipv4 { Some((world.id(), world.pool.take()?)) } else { None };
        let ipv6 = public.enable_ipv6.then(|| world.id());
        let id = base.id;
        let server = Self {
            base,
            status: Status::Initializing,
            kind: kind.name.to_owned(),
            image,
            location: location.name.to_owned(),
            ipv4,
            ipv6,
            private,
            placement_group: input.placement_group,
            user_data: input.user_data.unwrap_or_default(),
            has_rescue: false,
            backup_window: None,
        };
        world.project.servers.insert(id, server);
        for of in &input.firewalls {
            Firewall::find_mut(world.project, of.firewall)?.apply_to_server(id);
        }
        for volume in world.project.volumes.values_mut().filter(|of| input.volumes.contains(&of.base().id)) {
            volume.server = Some(id);
        }
        let action = world.begin("create_server", &[("server", id)], Effect::Create(id));
        let starts = input.start_after_create != Some(false);
        let next = starts.then(|| world.begin("start_server", &[("server", id)], Effect::Start(id)));
        let password = input.ssh_keys.is_empty().then(|| format!("simulated-{id}"));
        let view = Self::find(world.project, id)?.view(world.project);
        Ok(Reply::created(json!({
            "server": view, "action": action, "next_actions": Vec::from_iter(next), "root_password": password,
        })))
    }

    fn delete(world: &mut World<'_>, id: i64) -> Outcome {
        if world.project.is_locked("server", id) {
            return Err(Refusal::locked("server"));
        }
        Self::find_mut(world.project, id)?.status = Status::Deleting;
        let action = world.begin("delete_server", &[("server", id)], Effect::Delete(id));
        Ok(Reply::ok(json!({ "action": action })))
    }

    fn act(world: &mut World<'_>, call: &Call, id: i64, command: &str) -> Outcome {
        super::server_action::act(world, call, id, command)
    }
}
