//! The API's resources: the fields that are used, and no word about the rest. Values that a later version of the API
//! adds become `Unknown`.

use std::{collections::BTreeMap, net::Ipv4Addr};

use jiff::Timestamp;
use serde::{Deserialize, de::DeserializeOwned};

pub type Labels = BTreeMap<String, String>;

/// A kind of resource that has a name and labels.
pub trait Resource: DeserializeOwned + Send + Sync + 'static {
    /// In paths and lists: `servers`.
    const MANY: &'static str;
    /// In answers about one: `server`.
    const ONE: &'static str;
    /// Changes of it run on after their answer.
    const HAS_ACTIONS: bool;

    fn id(&self) -> i64;
    fn name(&self) -> &str;
    fn labels(&self) -> &Labels;
}

macro_rules! resource {
    ($type:ty, $many:literal, $one:literal, $has_actions:literal) => {
        impl Resource for $type {
            const MANY: &'static str = $many;
            const ONE: &'static str = $one;
            const HAS_ACTIONS: bool = $has_actions;

            fn id(&self) -> i64 {
                self.id
            }

            fn name(&self) -> &str {
                &self.name
            }

            fn labels(&self) -> &Labels {
                &self.labels
            }
        }
    };
}

resource!(Server, "servers", "server", true);
resource!(Network, "networks", "network", true);
resource!(LoadBalancer, "load_balancers", "load_balancer", true);
resource!(Firewall, "firewalls", "firewall", true);
resource!(PlacementGroup, "placement_groups", "placement_group", false);
resource!(SshKey, "ssh_keys", "ssh_key", false);
resource!(Certificate, "certificates", "certificate", true);
resource!(Volume, "volumes", "volume", true);
resource!(Image, "images", "image", true);
resource!(ServerType, "server_types", "server_type", false);
resource!(LoadBalancerType, "load_balancer_types", "load_balancer_type", false);
resource!(Location, "locations", "location", false);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerStatus {
    Initializing,
    Starting,
    Running,
    Stopping,
    Off,
    Deleting,
    Rebuilding,
    Migrating,
    #[serde(other)]
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Server {
    pub id: i64,
    pub name: String,
    pub status: ServerStatus,
    pub created: Timestamp,
    #[serde(default)]
    pub labels: Labels,
    /// An action on it has not ended.
    #[serde(default)]
    pub locked: bool,
    #[serde(default)]
    pub public_net: PublicNet,
    #[serde(default)]
    pub private_net: Vec<PrivateNet>,
    pub server_type: Named,
    pub location: Option<Named>,
    pub image: Option<ImageRef>,
    pub placement_group: Option<IdRef>,
}

/// Of something that is named inside another resource.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Named {
    pub id: i64,
    pub name: String,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct IdRef {
    pub id: i64,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ImageRef {
    pub id: i64,
    pub name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct PublicNet {
    pub ipv4: Option<PublicIpv4>,
    pub ipv6: Option<PublicIpv6>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct PublicIpv4 {
    pub ip: Ipv4Addr,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct PublicIpv6 {
    /// A range: `2001:db8::/64`.
    pub ip: String,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct PrivateNet {
    pub network: i64,
    pub ip: Ipv4Addr,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Network {
    pub id: i64,
    pub name: String,
    pub ip_range: String,
    #[serde(default)]
    pub subnets: Vec<Subnet>,
    #[serde(default)]
    pub labels: Labels,
    #[serde(default)]
    pub servers: Vec<i64>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Subnet {
    pub ip_range: Option<String>,
    pub network_zone: String,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct LoadBalancer {
    pub id: i64,
    pub name: String,
    #[serde(default)]
    pub labels: Labels,
    #[serde(default)]
    pub public_net: BalancerPublicNet,
    #[serde(default)]
    pub private_net: Vec<BalancerPrivateNet>,
    #[serde(default)]
    pub services: Vec<LoadBalancerService>,
    #[serde(default)]
    pub targets: Vec<LoadBalancerTarget>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct BalancerPublicNet {
    #[serde(default)]
    pub enabled: bool,
    pub ipv4: Option<BalancerIpv4>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct BalancerIpv4 {
    pub ip: Option<Ipv4Addr>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct BalancerPrivateNet {
    pub network: i64,
    pub ip: Option<Ipv4Addr>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct LoadBalancerService {
    pub protocol: String,
    pub listen_port: u16,
    pub destination_port: u16,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct LoadBalancerTarget {
    pub r#type: String,
    pub server: Option<IdRef>,
    pub label_selector: Option<SelectorRef>,
    #[serde(default)]
    pub use_private_ip: bool,
    #[serde(default)]
    pub health_status: Vec<HealthStatus>,
    /// The servers that a selector chooses.
    #[serde(default)]
    pub targets: Vec<LoadBalancerTarget>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct SelectorRef {
    pub selector: String,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct HealthStatus {
    pub listen_port: u16,
    pub status: Health,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    Healthy,
    Unhealthy,
    #[serde(other)]
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Firewall {
    pub id: i64,
    pub name: String,
    #[serde(default)]
    pub labels: Labels,
    #[serde(default)]
    pub rules: Vec<FirewallRule>,
    #[serde(default)]
    pub applied_to: Vec<FirewallTarget>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
pub struct FirewallRule {
    pub direction: String,
    pub protocol: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    #[serde(default)]
    pub source_ips: Vec<String>,
    #[serde(default)]
    pub destination_ips: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct FirewallTarget {
    pub r#type: String,
    pub server: Option<IdRef>,
    pub label_selector: Option<SelectorRef>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct PlacementGroup {
    pub id: i64,
    pub name: String,
    #[serde(default)]
    pub labels: Labels,
    #[serde(default)]
    pub servers: Vec<i64>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct SshKey {
    pub id: i64,
    pub name: String,
    #[serde(default)]
    pub labels: Labels,
    pub public_key: String,
    pub created: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Certificate {
    pub id: i64,
    pub name: String,
    #[serde(default)]
    pub labels: Labels,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Volume {
    pub id: i64,
    pub name: String,
    #[serde(default)]
    pub labels: Labels,
    pub server: Option<i64>,
    pub size: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageStatus {
    Available,
    Creating,
    Unavailable,
    #[serde(other)]
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Architecture {
    X86,
    Arm,
    #[serde(other)]
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Image {
    pub id: i64,
    /// Snapshots have none: the API says `null`.
    #[serde(default, deserialize_with = "or_empty")]
    pub name: String,
    pub r#type: String,
    pub status: ImageStatus,
    pub architecture: Architecture,
    #[serde(default, deserialize_with = "or_empty")]
    pub description: String,
    pub created: Option<Timestamp>,
    /// Of a snapshot: the server whose disk it is.
    pub created_from: Option<CreatedFrom>,
    #[serde(default)]
    pub labels: Labels,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct CreatedFrom {
    pub id: i64,
}

fn or_empty<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Option::<String>::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ServerType {
    pub id: i64,
    pub name: String,
    pub architecture: Architecture,
    pub cores: u32,
    pub memory: f64,
    pub disk: u32,
    /// The API has none on types.
    #[serde(default)]
    pub labels: Labels,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct LoadBalancerType {
    pub id: i64,
    pub name: String,
    #[serde(default)]
    pub labels: Labels,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Location {
    pub id: i64,
    pub name: String,
    pub network_zone: String,
    #[serde(default)]
    pub labels: Labels,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActionStatus {
    Running,
    Success,
    Error,
    #[serde(other)]
    Unknown,
}

/// What a change does after its answer.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Action {
    pub id: i64,
    pub status: ActionStatus,
    #[serde(default)]
    pub command: String,
    pub started: Option<Timestamp>,
    pub error: Option<ActionError>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ActionError {
    pub code: String,
    pub message: String,
}
