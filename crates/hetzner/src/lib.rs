//! A client of Hetzner's Cloud API that can be left alone with a project.
//!
//! - One paged list per look, shared by all who ask with the same token ([`Clients`], [`Client::look`]).
//! - A budget of requests learned from the answers, with a reserve for urgent ones: it makes no 429 of its own.
//! - A change is observed, made, and observed again ([`Client::ensure`] and its like): a lost answer, a repeated call
//!   and a crash in between all end with one resource.
//! - Actions are awaited, many with one request.
//! - Every [`Error`] has a class and, where trying again can help, a time; the token is in none of them.

mod budget;
mod client;
mod decode;
mod ensure;
mod error;
mod look;
mod operations;
mod resource;
mod settle;
mod ssh;
mod token;
mod transport;
mod wait;

pub use budget::Urgency;
pub use client::{Client, Clients, ENDPOINT, Settings};
pub use decode::{Page, decode_error, decode_one, decode_page};
pub use ensure::{Ensured, Wanted};
pub use error::{Cause, Class, Error};
pub use look::{Listed, Look, Since};
pub use operations::{Command, NetworkAddress, ServiceWanted};
pub use resource::{
    Action, ActionError, ActionStatus, Architecture, Certificate, CreatedFrom, Firewall, FirewallRule, Health,
    HealthStatus, Image, ImageStatus, Labels, LoadBalancer, LoadBalancerService, LoadBalancerTarget, LoadBalancerType,
    Location, Network, PlacementGroup, PrivateNet, PublicNet, Resource, Server, ServerStatus, ServerType, SshKey,
    Subnet, Volume,
};
pub use ssh::throwaway_key;
pub use token::Token;
