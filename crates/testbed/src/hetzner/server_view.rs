//! Servers as the API shows them: a list has many, so what they share is looked up once.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Value, json, value::RawValue};

use super::{
    action::seconds,
    catalogue::{Location, TEXTS},
    image::Shown,
    selector::Labels,
    server::{Server, Status, ipv6},
    state::{Project, Record},
};

/// What the vendor includes for each server, in bytes.
const INCLUDED_TRAFFIC: u64 = 21_990_232_555_520;

/// The part of a project that servers show of other resources.
pub(super) struct Around<'a> {
    project: &'a Project,
    /// Servers with an action that has not ended.
    locked: BTreeSet<i64>,
    /// Load balancers with the servers they forward to.
    targets: Vec<(i64, BTreeSet<i64>)>,
}

#[derive(Serialize)]
pub(super) struct View<'a> {
    id: i64,
    name: &'a str,
    labels: &'a Labels,
    created: String,
    protection: Protection,
    status: Status,
    locked: bool,
    public_net: Value,
    private_net: Vec<Value>,
    server_type: Option<&'static RawValue>,
    location: Option<&'static RawValue>,
    image: Shown,
    /// Never one, as of those below that are empty.
    iso: (),
    rescue_enabled: bool,
    backup_window: Option<&'a str>,
    outgoing_traffic: u64,
    ingoing_traffic: u64,
    included_traffic: u64,
    primary_disk_size: u32,
    placement_group: Option<Value>,
    volumes: Vec<i64>,
    load_balancers: Vec<i64>,
}

#[derive(Serialize)]
struct Protection {
    delete: bool,
    rebuild: bool,
}

impl<'a> Around<'a> {
    pub fn of(project: &'a Project) -> Self {
        let running = project.actions.values().filter(|action| action.is_running());
        let locked = running.flat_map(|action| action.ids("server")).collect();
        let targets = project.balancers.values().map(|balancer| {
            let servers = balancer.targets(project).into_iter().filter_map(|target| target.server);
            (balancer.base.id, servers.collect())
        });
        Self { project, locked, targets: targets.collect() }
    }

    pub fn show(&self, server: &'a Server) -> View<'a> {
        let (project, base) = (self.project, &server.base);
        let (id, kind) = (base.id, server.offered());
        let volumes = project.volumes.iter().filter(|(_, volume)| volume.server == Some(id)).map(|(id, _)| *id);
        let balancers = self.targets.iter().filter(|(_, servers)| servers.contains(&id)).map(|(id, _)| *id);
        let location = Location::named(&server.location).and_then(|location| TEXTS.locations.get(&location.id));
        let group = server.placement_group.and_then(|id| project.placement_groups.get(&id));
        View {
            id,
            name: &base.name,
            labels: &base.labels,
            created: seconds(base.created),
            protection: Protection { delete: base.is_protected, rebuild: base.is_protected },
            status: server.status,
            locked: self.locked.contains(&id),
            public_net: self.public_net(server),
            private_net: private_net(server),
            server_type: TEXTS.server_types.get(&kind.id).map(AsRef::as_ref),
            location: location.map(AsRef::as_ref),
            image: Shown::of(project, server.image.0),
            iso: (),
            rescue_enabled: server.has_rescue,
            backup_window: server.backup_window.as_deref(),
            outgoing_traffic: 0,
            ingoing_traffic: 0,
            included_traffic: INCLUDED_TRAFFIC,
            primary_disk_size: kind.disk,
            placement_group: group.map(|group| group.view(project)),
            volumes: volumes.collect(),
            load_balancers: balancers.collect(),
        }
    }

    fn public_net(&self, server: &Server) -> Value {
        let firewalls = self.project.firewalls.values().filter(|firewall| firewall.covers(server));
        let ipv4 = server.ipv4.map(|(id, ip)| {
            let dns_ptr = format!("static.{ip}.clients.your-server.de");
            json!({ "id": id, "ip": ip, "blocked": false, "dns_ptr": dns_ptr })
        });
        let ipv6 =
            server.ipv6.map(|id| json!({ "id": id, "ip": ipv6(server.base.id), "blocked": false, "dns_ptr": [] }));
        json!({
            "ipv4": ipv4, "ipv6": ipv6, "floating_ips": [],
            "firewalls": firewalls.map(|of| json!({ "id": of.base.id, "status": "applied" })).collect::<Vec<_>>(),
        })
    }
}

fn private_net(server: &Server) -> Vec<Value> {
    let up = server.private.iter().filter(|net| net.is_up).map(|net| {
        let [a, b, c, d] = net.ip.octets();
        let mac_address = format!("86:00:{a:02x}:{b:02x}:{c:02x}:{d:02x}");
        json!({
            "network": net.network, "ip": net.ip, "alias_ips": net.alias_ips, "mac_address": mac_address,
        })
    });
    up.collect()
}
