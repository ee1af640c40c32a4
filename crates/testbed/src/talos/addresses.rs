//! Loopback addresses of simulated servers. Linux routes all of 127/8 locally, so every server has addresses of its
//! own and its programs have their usual ports.

use std::{
    net::Ipv4Addr,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener},
    },
    sync::atomic::{AtomicU16, Ordering},
};

/// Below the blocks that people use for their own experiments (127.0, 127.1) and enough for any machine: a testbed
/// with three control planes takes some 2 GiB.
const BLOCKS: std::ops::Range<u8> = 40..120;

/// 127.x/16 that is ours as long as this lives: the kernel frees the abstract socket when its owner ends.
#[derive(Debug)]
pub struct Block {
    number: u8,
    next: AtomicU16,
    _owner: UnixListener,
}

impl Block {
    /// The first free one.
    pub(super) fn claim() -> Option<Self> {
        BLOCKS.into_iter().find_map(|number| {
            let address = SocketAddr::from_abstract_name(format!("strata-loopback-{number}")).ok()?;
            let owner = UnixListener::bind_addr(&address).ok()?;
            Some(Self { number, next: AtomicU16::new(1), _owner: owner })
        })
    }

    /// A public and a private address that no other server of the block has. Private ones are in the lower half, as
    /// nodes are in the plan of addresses.
    pub(super) fn next(&self) -> (Ipv4Addr, Ipv4Addr) {
        let [high, low] = self.next.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        // Hosts 0 and 255 mean a network and its broadcast to some programs.
        let (high, low) = if low == 0 || low == 255 { return self.next() } else { (high, low) };
        (Ipv4Addr::new(127, self.number, 128 + high, low), Ipv4Addr::new(127, self.number, high, low))
    }

    /// Where private addresses are.
    pub fn private(&self) -> String {
        format!("127.{}.0.0/17", self.number)
    }

    /// Where pods of server `index` have their addresses. Never loopback: Endpoints refuse those.
    pub(super) fn pods(&self, index: u8) -> [u8; 3] {
        [10, self.number, index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_exclusive_and_addresses_unique() {
        let (a, b) = (Block::claim().unwrap(), Block::claim().unwrap());
        assert_ne!(a.private(), b.private());
        let addresses: Vec<_> = (0..600).map(|_| a.next()).collect();
        let mut all: Vec<_> = addresses.iter().flat_map(|&(public, private)| [public, private]).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 1200);
        assert!(addresses.iter().all(|(_, private)| private.octets()[2] < 128));
    }
}
