//! Loopback addresses of simulated servers. Linux routes all of 127/8 locally, so every server has addresses of its
//! own and its programs have their usual ports.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
};

use crate::hetzner::Loopback;

/// Where a server is reached. One that has a single address has it twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    pub public: Ipv4Addr,
    pub private: Ipv4Addr,
}

/// 127.x/16 of one testbed, and the addresses of it that were given out.
#[derive(Debug)]
pub struct Block {
    loopback: Arc<Loopback>,
    next: AtomicU16,
}

impl Block {
    pub(super) fn new(loopback: Arc<Loopback>) -> Self {
        Self { loopback, next: AtomicU16::new(1) }
    }

    /// The first free one.
    pub(super) fn claim() -> Option<Self> {
        Loopback::claim().map(|loopback| Self::new(Arc::new(loopback)))
    }

    /// Addresses that no other server of the block has.
    pub(super) fn next(&self) -> Addresses {
        let [high, low] = self.next.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        // Hosts 0 and 255 mean a network and its broadcast to some programs.
        let (high, low) = if low == 0 || low == 255 { return self.next() } else { (high, low) };
        let number = self.number();
        let public = Ipv4Addr::new(127, number, high, low);
        Addresses { public, private: Ipv4Addr::new(127, number, 128 + high, low) }
    }

    pub(super) fn number(&self) -> u8 {
        self.loopback.number()
    }

    /// Where private addresses are.
    pub fn private(&self) -> String {
        self.loopback.private().to_string()
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
        let mut all: Vec<_> = addresses.iter().flat_map(|of| [of.public, of.private]).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 1200);
        assert!(addresses.iter().all(|of| a.loopback.private().contains(of.private)));
    }
}
