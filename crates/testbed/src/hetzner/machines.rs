//! What a server is to the machine it stands for.

use std::{collections::BTreeMap, net::Ipv4Addr};

use futures::future::{BoxFuture, FutureExt, ready};

/// A server as its machine sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    pub id: i64,
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub server_type: String,
    pub image: String,
    pub location: String,
    pub user_data: String,
    pub public: Option<Ipv4Addr>,
    /// Network and address of each private interface.
    pub private: Vec<(i64, Ipv4Addr)>,
}

/// Why a machine did not do what its action asks for; the action fails with this message.
pub type Failed = String;

/// The life of the machines behind the servers. An action ends when the future does.
pub trait Machines: Send + Sync {
    /// A disk with an image, and no power.
    fn created<'a>(&'a self, _machine: &'a Machine) -> BoxFuture<'a, Result<(), Failed>> {
        ready(Ok(())).boxed()
    }

    /// Power off and the disk gone.
    fn deleted<'a>(&'a self, _machine: &'a Machine) -> BoxFuture<'a, Result<(), Failed>> {
        ready(Ok(())).boxed()
    }

    fn power_on<'a>(&'a self, _machine: &'a Machine) -> BoxFuture<'a, Result<(), Failed>> {
        ready(Ok(())).boxed()
    }

    fn power_off<'a>(&'a self, _machine: &'a Machine) -> BoxFuture<'a, Result<(), Failed>> {
        ready(Ok(())).boxed()
    }

    fn reboot<'a>(&'a self, _machine: &'a Machine) -> BoxFuture<'a, Result<(), Failed>> {
        ready(Ok(())).boxed()
    }

    /// A new disk from an image, then power.
    fn rebuild<'a>(&'a self, _machine: &'a Machine) -> BoxFuture<'a, Result<(), Failed>> {
        ready(Ok(())).boxed()
    }

    /// A running machine got or lost a private interface.
    fn network_changed<'a>(&'a self, _machine: &'a Machine) -> BoxFuture<'a, Result<(), Failed>> {
        ready(Ok(())).boxed()
    }
}

/// Servers that are entries in a list and nothing more.
#[derive(Debug)]
pub struct NoMachines;

impl Machines for NoMachines {}
