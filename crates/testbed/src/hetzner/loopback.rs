//! A range of loopback addresses that no other testbed on this machine uses.

use std::{
    net::Ipv4Addr,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener},
    },
};

use super::cidr::Cidr;

/// Second parts of 127.x.0.0/16: below are addresses that distributions and people's own experiments use, 127.255 is for
/// broadcast.
const NUMBERS: std::ops::Range<u8> = 40..255;

/// One 127.x.0.0/16, ours as long as this lives: the kernel frees the claim when its owner ends, however it ends.
#[derive(Debug)]
pub struct Loopback {
    number: u8,
    _owner: UnixListener,
}

impl Loopback {
    /// `None` where all are taken.
    pub fn claim() -> Option<Self> {
        NUMBERS.into_iter().find_map(Self::claim_number)
    }

    /// The first free one from a number on that `seed` chooses: environments with different seeds that run by turns keep
    /// their addresses.
    pub fn claim_for(seed: u64) -> Option<Self> {
        let count = u64::from(NUMBERS.end - NUMBERS.start);
        let from = usize::try_from(seed % count).unwrap_or_default();
        NUMBERS.skip(from).chain(NUMBERS.take(from)).find_map(Self::claim_number)
    }

    /// The one that servers which come back from a file had before; `None` where it is taken.
    pub fn claim_number(number: u8) -> Option<Self> {
        let address = SocketAddr::from_abstract_name(format!("strata-loopback-{number}")).ok()?;
        Some(Self { number, _owner: UnixListener::bind_addr(&address).ok()? })
    }

    pub fn number(&self) -> u8 {
        self.number
    }

    /// A /17 of it: public addresses in the lower half, networks in the upper.
    fn half(&self, third: u8) -> Cidr {
        Cidr::new(Ipv4Addr::new(127, self.number, third, 0), 17).expect("host bits are zero")
    }

    pub fn public(&self) -> Cidr {
        self.half(0)
    }

    pub fn private(&self) -> Cidr {
        self.half(128)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_claims_never_share_an_address() {
        let (one, other) = (Loopback::claim().unwrap(), Loopback::claim().unwrap());
        let ranges = [one.public(), one.private(), other.public(), other.private()];
        for (index, range) in ranges.iter().enumerate() {
            assert!(!ranges[index + 1..].iter().any(|other| range.overlaps(*other)), "{ranges:?}");
        }
        assert!(Loopback::claim_number(one.number()).is_none());
        let (chosen, next) = (Loopback::claim_for(200).unwrap(), Loopback::claim_for(200).unwrap());
        assert_ne!(chosen.number(), next.number());
    }
}
