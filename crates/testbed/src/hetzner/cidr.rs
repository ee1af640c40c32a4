//! Ranges of addresses.

use std::{fmt, net::Ipv4Addr, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A range of IPv4 addresses whose host bits are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    first: Ipv4Addr,
    prefix: u8,
}

impl Cidr {
    /// `None` where host bits are set or the prefix is too long.
    pub fn new(first: Ipv4Addr, prefix: u8) -> Option<Self> {
        let range = Self { first, prefix };
        (prefix <= 32 && u32::from(first) & !range.mask() == 0).then_some(range)
    }

    fn mask(self) -> u32 {
        u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or_default()
    }

    pub fn prefix(self) -> u8 {
        self.prefix
    }

    pub fn contains(self, address: Ipv4Addr) -> bool {
        u32::from(address) & self.mask() == u32::from(self.first)
    }

    pub fn covers(self, other: Self) -> bool {
        other.prefix >= self.prefix && self.contains(other.first)
    }

    pub fn overlaps(self, other: Self) -> bool {
        self.covers(other) || other.covers(self)
    }

    /// The first address after the network's own: the vendor's gateway.
    pub fn gateway(self) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.first).saturating_add(1))
    }

    fn last(self) -> u32 {
        u32::from(self.first) | !self.mask()
    }

    /// Those a machine may have: neither the network's, the gateway's nor the broadcast address.
    pub fn hosts(self) -> impl Iterator<Item = Ipv4Addr> {
        (u32::from(self.first).saturating_add(2)..self.last()).map(Ipv4Addr::from)
    }

    pub fn is_host(self, address: Ipv4Addr) -> bool {
        let number = u32::from(address);
        self.contains(address) && number > u32::from(self.gateway()) && number < self.last()
    }

    /// Networks are private ones; loopback stands in for them where servers run on one machine.
    pub fn is_private(self) -> bool {
        let ranges = [([10, 0, 0, 0], 8), ([172, 16, 0, 0], 12), ([192, 168, 0, 0], 16), ([127, 0, 0, 0], 8)];
        ranges.into_iter().any(|(first, prefix)| Self { first: first.into(), prefix }.covers(self))
    }
}

impl FromStr for Cidr {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (first, prefix) = text.split_once('/').ok_or(())?;
        Self::new(first.parse().map_err(|_| ())?, prefix.parse().map_err(|_| ())?).ok_or(())
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}

impl Serialize for Cidr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cidr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|()| serde::de::Error::custom(format!("{text} is not a range of addresses")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    #[test]
    fn ranges_know_their_hosts_and_each_other() {
        let small = range("10.0.0.0/30");
        assert_eq!(small.hosts().collect::<Vec<_>>(), [Ipv4Addr::new(10, 0, 0, 2)]);
        assert_eq!(small.gateway(), Ipv4Addr::new(10, 0, 0, 1));
        assert!(range("10.0.0.0/16").covers(small) && !small.covers(range("10.0.0.0/16")));
        assert!(small.overlaps(range("10.0.0.0/8")) && !small.overlaps(range("10.0.1.0/24")));
        assert!(range("0.0.0.0/0").contains(Ipv4Addr::new(1, 2, 3, 4)));
        assert!(range("127.50.0.0/16").is_private() && !range("8.8.8.0/24").is_private());
        assert!(!small.is_host(small.gateway()) && !small.is_host(Ipv4Addr::new(10, 0, 0, 3)));
        for bad in ["10.0.0.1/30", "10.0.0.0/33", "10.0.0.0", "x/8"] {
            assert!(bad.parse::<Cidr>().is_err(), "{bad}");
        }
    }
}
