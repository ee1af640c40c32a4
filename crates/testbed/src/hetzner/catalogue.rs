//! What the vendor offers: locations, types, images, prices. A small part of the real catalogue, with real names.
//! Identifiers are the vendor's where they are public, prices are invented.

use std::{collections::BTreeMap, sync::LazyLock};

use serde_json::{Value, json, value::RawValue};

pub(super) struct ServerType {
    pub id: i64,
    pub name: &'static str,
    pub architecture: &'static str,
    cores: u32,
    memory: u32,
    pub disk: u32,
    cpu: &'static str,
    /// Cents per month.
    cents: u32,
}

const fn shared(id: i64, name: &'static str, cores: u32, memory: u32, disk: u32, cents: u32) -> ServerType {
    ServerType { id, name, architecture: "x86", cores, memory, disk, cpu: "shared", cents }
}

const fn arm(id: i64, name: &'static str, cores: u32, memory: u32, disk: u32, cents: u32) -> ServerType {
    ServerType { architecture: "arm", ..shared(id, name, cores, memory, disk, cents) }
}

pub(super) static SERVER_TYPES: [ServerType; 10] = [
    shared(114, "cx23", 2, 4, 40, 299),
    shared(115, "cx33", 4, 8, 80, 499),
    shared(116, "cx43", 8, 16, 160, 899),
    shared(117, "cx53", 16, 32, 320, 1699),
    shared(108, "cpx22", 2, 4, 80, 599),
    shared(109, "cpx32", 4, 8, 160, 1099),
    arm(45, "cax11", 2, 4, 40, 329),
    arm(93, "cax21", 4, 8, 80, 599),
    arm(94, "cax31", 8, 16, 160, 1199),
    ServerType { cpu: "dedicated", ..shared(96, "ccx13", 2, 8, 80, 1249) },
];

impl ServerType {
    pub fn view(&self) -> Value {
        let locations = LOCATIONS.iter().map(
            |at| json!({ "id": at.id, "name": at.name, "recommended": true, "available": true, "deprecation": null }),
        );
        json!({
            "id": self.id, "name": self.name, "description": self.name.to_uppercase(),
            "category": if self.cpu == "dedicated" { "general_purpose" } else { "cost_optimized" },
            "cores": self.cores, "memory": self.memory, "disk": self.disk, "storage_type": "local",
            "cpu_type": self.cpu, "architecture": self.architecture, "included_traffic": 0,
            "prices": prices(self.cents), "deprecated": false, "deprecation": null,
            "locations": locations.collect::<Vec<_>>(),
        })
    }
}

pub(super) struct Location {
    pub id: i64,
    pub name: &'static str,
    pub zone: &'static str,
    city: &'static str,
    country: &'static str,
    datacenter: (i64, &'static str),
}

pub(super) static LOCATIONS: [Location; 5] = [
    Location { id: 1, name: "fsn1", zone: "eu-central", city: "Falkenstein", country: "DE", datacenter: (4, "dc14") },
    Location { id: 2, name: "nbg1", zone: "eu-central", city: "Nuremberg", country: "DE", datacenter: (2, "dc3") },
    Location { id: 3, name: "hel1", zone: "eu-central", city: "Helsinki", country: "FI", datacenter: (3, "dc2") },
    Location { id: 4, name: "ash", zone: "us-east", city: "Ashburn, VA", country: "US", datacenter: (5, "dc1") },
    Location { id: 5, name: "hil", zone: "us-west", city: "Hillsboro, OR", country: "US", datacenter: (6, "dc1") },
];

impl Location {
    pub fn named(name: &str) -> Option<&'static Self> {
        LOCATIONS.iter().find(|location| location.name == name || location.id.to_string() == name)
    }

    pub fn view(&self) -> Value {
        json!({
            "id": self.id, "name": self.name, "description": format!("{} DC Park 1", self.city),
            "country": self.country, "city": self.city, "latitude": 50.0, "longitude": 12.0, "network_zone": self.zone,
        })
    }

    fn datacenter(&self) -> Value {
        let (id, name) = self.datacenter;
        let types: Vec<i64> = SERVER_TYPES.iter().map(|kind| kind.id).collect();
        json!({
            "id": id, "name": format!("{}-{name}", self.name), "description": format!("{} virtual DC", self.city),
            "location": self.view(),
            "server_types": { "supported": types, "available": types, "available_for_migration": types },
        })
    }
}

pub(super) fn network_zone(name: &str) -> bool {
    LOCATIONS.iter().any(|location| location.zone == name)
}

pub(super) struct BalancerType {
    pub id: i64,
    pub name: &'static str,
    pub services: usize,
    pub targets: usize,
    cents: u32,
}

pub(super) static BALANCER_TYPES: [BalancerType; 3] = [
    BalancerType { id: 1, name: "lb11", services: 5, targets: 25, cents: 539 },
    BalancerType { id: 2, name: "lb21", services: 15, targets: 75, cents: 1640 },
    BalancerType { id: 3, name: "lb31", services: 30, targets: 150, cents: 3290 },
];

impl BalancerType {
    pub fn view(&self) -> Value {
        json!({
            "id": self.id, "name": self.name, "description": self.name.to_uppercase(),
            "max_connections": 10_000 * self.id, "max_services": self.services, "max_targets": self.targets,
            "max_assigned_certificates": 10, "prices": prices(self.cents), "deprecated": null, "deprecation": null,
        })
    }
}

/// Images that every project sees.
pub(super) struct SystemImage {
    pub id: i64,
    pub name: &'static str,
    pub architecture: &'static str,
    flavor: &'static str,
    version: &'static str,
}

pub(super) static IMAGES: [SystemImage; 6] = [
    image(114_690_387, "debian-12", "x86", "debian", "12"),
    image(114_690_389, "debian-12", "arm", "debian", "12"),
    image(310_557_660, "debian-13", "x86", "debian", "13"),
    image(310_557_661, "debian-13", "arm", "debian", "13"),
    image(161_547_269, "ubuntu-24.04", "x86", "ubuntu", "24.04"),
    image(161_547_270, "ubuntu-24.04", "arm", "ubuntu", "24.04"),
];

const fn image(
    id: i64,
    name: &'static str,
    architecture: &'static str,
    flavor: &'static str,
    version: &'static str,
) -> SystemImage {
    SystemImage { id, name, architecture, flavor, version }
}

impl SystemImage {
    pub fn view(&self) -> Value {
        json!({
            "id": self.id, "type": "system", "status": "available", "name": self.name,
            "description": format!("{} {}", self.flavor, self.version), "image_size": null, "disk_size": 5,
            "created": "2025-08-12T08:00:00Z", "created_from": null, "bound_to": null, "os_flavor": self.flavor,
            "os_version": self.version, "architecture": self.architecture, "rapid_deploy": true,
            "protection": { "delete": false }, "deleted": null, "labels": {}, "deprecated": null, "deprecation": null,
        })
    }
}

/// What each server repeats of the catalogue, written once: a page of servers is mostly this.
pub(super) static TEXTS: LazyLock<Texts> = LazyLock::new(|| Texts {
    server_types: texts(SERVER_TYPES.iter().map(|kind| (kind.id, kind.view()))),
    locations: texts(LOCATIONS.iter().map(|location| (location.id, location.view()))),
    images: texts(IMAGES.iter().map(|image| (image.id, image.view()))),
});

/// By identifier.
pub(super) struct Texts {
    pub server_types: BTreeMap<i64, Box<RawValue>>,
    pub locations: BTreeMap<i64, Box<RawValue>>,
    pub images: BTreeMap<i64, Box<RawValue>>,
}

fn texts(views: impl Iterator<Item = (i64, Value)>) -> BTreeMap<i64, Box<RawValue>> {
    let text = |view: Value| RawValue::from_string(view.to_string()).expect("a value's text is JSON");
    views.map(|(id, view)| (id, text(view))).collect()
}

/// Lists that are the same in every project.
pub(super) fn fixed(kind: &str) -> Option<(&'static str, Vec<Value>)> {
    Some(match kind {
        "locations" => ("location", LOCATIONS.iter().map(Location::view).collect()),
        "datacenters" => ("datacenter", LOCATIONS.iter().map(Location::datacenter).collect()),
        "server_types" => ("server_type", SERVER_TYPES.iter().map(ServerType::view).collect()),
        "load_balancer_types" => ("load_balancer_type", BALANCER_TYPES.iter().map(BalancerType::view).collect()),
        // Not simulated: there are none, and clients that list everything must not fail.
        "isos" => ("iso", Vec::new()),
        "floating_ips" => ("floating_ip", Vec::new()),
        "zones" => ("zone", Vec::new()),
        _ => return None,
    })
}

pub(super) fn pricing() -> Value {
    let types =
        SERVER_TYPES.iter().map(|kind| json!({ "id": kind.id, "name": kind.name, "prices": prices(kind.cents) }));
    let balancers =
        BALANCER_TYPES.iter().map(|kind| json!({ "id": kind.id, "name": kind.name, "prices": prices(kind.cents) }));
    json!({ "pricing": {
        "currency": "EUR", "vat_rate": "19.00",
        "image": { "price_per_gb_month": price(1) },
        "floating_ip": { "price_monthly": price(300) },
        // Both types: Hetzner's own library counts on as many of these as of primary addresses.
        "floating_ips": [{ "type": "ipv4", "prices": monthly(300) }, { "type": "ipv6", "prices": monthly(100) }],
        "primary_ips": [{ "type": "ipv4", "prices": prices(50) }, { "type": "ipv6", "prices": prices(0) }],
        "traffic": { "price_per_tb": price(0) },
        "server_backup": { "percentage": "20.00" },
        "server_types": types.collect::<Vec<_>>(),
        "load_balancer_types": balancers.collect::<Vec<_>>(),
        "volume": { "price_per_gb_month": price(4) },
    } })
}

fn monthly(cents: u32) -> Vec<Value> {
    LOCATIONS.iter().map(|location| json!({ "location": location.name, "price_monthly": price(cents) })).collect()
}

fn prices(cents: u32) -> Vec<Value> {
    let by_location = LOCATIONS.iter().map(|location| {
        json!({
            "location": location.name,
            // A month is billed as some 624 hours.
            "price_hourly": decimal(cents, 62_400.0),
            "price_monthly": price(cents),
            "included_traffic": 21_990_232_555_520_u64,
            "price_per_tb_traffic": price(100),
        })
    });
    by_location.collect()
}

fn price(cents: u32) -> Value {
    decimal(cents, 100.0)
}

/// The vendor writes prices as decimal text with ten places; gross adds 19 %.
fn decimal(cents: u32, parts: f64) -> Value {
    let net = f64::from(cents) / parts;
    json!({ "net": format!("{net:.10}"), "gross": format!("{:.10}", net * 1.19) })
}
