//! The machines behind Hetzner's servers: whatever the image, Talos is on the disk.

use std::{net::Ipv4Addr, sync::Arc};

use futures::future::{BoxFuture, FutureExt};

use crate::{
    hetzner::{self, Failed, Machines},
    talos::{self, Addresses, Machine, MachineOptions, World},
};

pub(super) struct Servers {
    world: Arc<World>,
}

impl Servers {
    pub(super) fn new(world: Arc<World>) -> Self {
        Self { world }
    }

    /// Registers the disk of a server of an earlier run. One without an address has none yet.
    pub(super) fn know(&self, server: &hetzner::Machine) {
        if let Err(error) = self.machine(server) {
            tracing::debug!(server = server.name, error, "a server has no machine yet");
        }
    }

    /// The machine of a server, with the addresses that the server has now. After a restart it is known by its disk
    /// alone.
    fn machine(&self, server: &hetzner::Machine) -> Result<Arc<Machine>, Failed> {
        let addresses = addresses(server)?;
        if let Some(machine) = self.world.machine(&server.name) {
            machine.set_addresses(addresses);
            return Ok(machine);
        }
        let number = u64::try_from(server.id).unwrap_or_default();
        match self.world.add(&server.name, number, addresses, MachineOptions::default()) {
            // Another request for the same server was quicker.
            Err(talos::Error::NameTaken(name)) => self.world.machine(&name).ok_or_else(|| format!("{name} is gone")),
            added => added.map_err(|error| error.to_string()),
        }
    }
}

/// A server that has no address of one sort uses the other. Networks outside of loopback lead nowhere on this machine: a
/// server in one is reached at its public address alone.
fn addresses(server: &hetzner::Machine) -> Result<Addresses, Failed> {
    let mut private = server.private.iter().map(|(_, address)| *address);
    let private: Option<Ipv4Addr> = private.find(Ipv4Addr::is_loopback);
    let any = private.or(server.public).ok_or("a simulated server needs an address: attach it to a network")?;
    Ok(Addresses { public: server.public.unwrap_or(any), private: private.unwrap_or(any) })
}

fn done<E: std::fmt::Display>(result: Result<(), E>) -> Result<(), Failed> {
    result.map_err(|error| error.to_string())
}

impl Machines for Servers {
    fn created<'a>(&'a self, server: &'a hetzner::Machine) -> BoxFuture<'a, Result<(), Failed>> {
        // One without an address yet gets its disk when it is turned on.
        let made = if addresses(server).is_ok() { self.machine(server).map(drop) } else { Ok(()) };
        std::future::ready(made).boxed()
    }

    fn deleted<'a>(&'a self, server: &'a hetzner::Machine) -> BoxFuture<'a, Result<(), Failed>> {
        async {
            // Only so that a disk of an earlier run is known.
            let _ = self.machine(server);
            self.world.delete(&server.name).await;
            Ok(())
        }
        .boxed()
    }

    fn power_on<'a>(&'a self, server: &'a hetzner::Machine) -> BoxFuture<'a, Result<(), Failed>> {
        async { done(self.machine(server)?.power_on().await) }.boxed()
    }

    fn power_off<'a>(&'a self, server: &'a hetzner::Machine) -> BoxFuture<'a, Result<(), Failed>> {
        async {
            self.machine(server)?.power_off().await;
            Ok(())
        }
        .boxed()
    }

    fn reboot<'a>(&'a self, server: &'a hetzner::Machine) -> BoxFuture<'a, Result<(), Failed>> {
        async { done(self.machine(server)?.reboot().await) }.boxed()
    }

    fn rebuild<'a>(&'a self, server: &'a hetzner::Machine) -> BoxFuture<'a, Result<(), Failed>> {
        async {
            let machine = self.machine(server)?;
            machine.power_off().await;
            done(machine.wipe_disk())?;
            done(machine.power_on().await)
        }
        .boxed()
    }

    /// Its programs listen on the addresses of their start.
    fn network_changed<'a>(&'a self, server: &'a hetzner::Machine) -> BoxFuture<'a, Result<(), Failed>> {
        async {
            let is_on = self.world.machine(&server.name).is_some_and(|machine| machine.is_on());
            if is_on { self.reboot(server).await } else { Ok(()) }
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_listen_only_where_this_machine_has_addresses() {
        let at = |address: &str| address.parse::<Ipv4Addr>().unwrap();
        let addresses_of = |public: Option<&str>, private: &[&str]| {
            let machine = hetzner::Machine {
                id: 1,
                name: "one".to_owned(),
                public: public.map(at),
                private: private.iter().map(|address| (1, at(address))).collect(),
                labels: std::collections::BTreeMap::new(),
                server_type: "cx23".to_owned(),
                image: "debian-13".to_owned(),
                location: "fsn1".to_owned(),
                user_data: String::new(),
            };
            addresses(&machine)
        };
        let both = |public, private| Ok(Addresses { public: at(public), private: at(private) });
        assert_eq!(addresses_of(Some("127.9.0.1"), &["127.9.128.2"]), both("127.9.0.1", "127.9.128.2"));
        assert_eq!(addresses_of(Some("127.9.0.1"), &["10.0.0.2"]), both("127.9.0.1", "127.9.0.1"));
        assert_eq!(addresses_of(Some("127.9.0.1"), &["10.0.0.2", "127.9.128.2"]), both("127.9.0.1", "127.9.128.2"));
        assert_eq!(addresses_of(None, &["127.9.128.2"]), both("127.9.128.2", "127.9.128.2"));
        assert!(addresses_of(None, &["10.0.0.2"]).is_err());
    }
}
