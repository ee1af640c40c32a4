//! Endpoints as an administrator writes them: `host:port`, or several separated by commas.

use std::{fmt, str::FromStr};

use rustls::pki_types::ServerName;

/// One `host:port`; an IPv6 address stands in brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    host: String,
    port: u16,
}

/// The places where a shard's leader may be, in the order they are tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses(Vec<Address>);

/// Why a text is no endpoint.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?}: {why}; {REMEDY}")]
pub struct AddressError {
    text: String,
    why: &'static str,
}

const REMEDY: &str = "write host:port, or host:port,host:port";

impl AddressError {
    /// What is wrong, and what to write.
    pub fn parts(&self) -> (String, &'static str) {
        (format!("{:?}: {}", self.text, self.why), REMEDY)
    }
}

impl Address {
    /// The host part names the server in TLS: a DNS name or an IP address.
    pub fn server_name(&self) -> ServerName<'static> {
        ServerName::try_from(self.host.clone()).expect("checked when it was read")
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The same host at another port.
    #[must_use]
    pub fn at(&self, port: u16) -> Self {
        Self { host: self.host.clone(), port }
    }

    /// The same host, `by` ports away: registration is one port below the operator's.
    pub fn neighbour(&self, by: i32) -> Option<Self> {
        let port = u16::try_from(i32::from(self.port) + by).ok().filter(|port| *port > 0)?;
        Some(Self { host: self.host.clone(), port })
    }
}

impl Addresses {
    pub fn as_slice(&self) -> &[Address] {
        &self.0
    }

    /// The same hosts, each `by` ports away.
    pub fn neighbours(&self, by: i32) -> Option<Self> {
        self.0.iter().map(|address| address.neighbour(by)).collect::<Option<_>>().map(Self)
    }
}

impl From<Address> for Addresses {
    fn from(one: Address) -> Self {
        Self(vec![one])
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&all.join(","))
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let refuse = |why| AddressError { text: text.to_owned(), why };
        let (host, port) = text.rsplit_once(':').ok_or_else(|| refuse("the port is missing"))?;
        let port: u16 = port.parse().ok().filter(|port| *port > 0).ok_or_else(|| refuse("not a port"))?;
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        if bracketed.is_none() && host.contains(':') {
            return Err(refuse("an IPv6 address needs brackets"));
        }
        let host = bracketed.unwrap_or(host).to_owned();
        if bracketed.is_some() && host.parse::<std::net::Ipv6Addr>().is_err() {
            return Err(refuse("not an IPv6 address"));
        }
        match ServerName::try_from(host.clone()) {
            Ok(_) => Ok(Self { host, port }),
            Err(_) => Err(refuse("the host is neither a DNS name nor an IP address")),
        }
    }
}

impl FromStr for Addresses {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        text.split(',').map(|part| part.trim().parse()).collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_names_and_both_families_are_read_and_written_alike() {
        for text in ["a.example:8993", "10.0.0.1:1,[::1]:65535", "[fe80::1]:8993", "shard-a:8993,shard-b:8993"] {
            assert_eq!(text.parse::<Addresses>().unwrap().to_string(), text);
        }
        let two = " a:1 , b:2 ".parse::<Addresses>().unwrap();
        assert_eq!(two.to_string(), "a:1,b:2");
        assert_eq!(two.neighbours(1).unwrap().to_string(), "a:2,b:3");
        assert_eq!(two.neighbours(-1), None, "a has no port before it");
    }

    #[test]
    fn what_is_no_endpoint_is_refused_with_the_reason() {
        for (text, why) in [
            ("", "port is missing"),
            ("a", "port is missing"),
            ("a:", "not a port"),
            ("a:0", "not a port"),
            ("a:70000", "not a port"),
            ("::1:8993", "brackets"),
            ("[a]:1", "not an IPv6"),
            ("a b:1", "neither a DNS name"),
            (":8993", "neither a DNS name"),
            ("a:1,", "port is missing"),
        ] {
            let error = text.parse::<Addresses>().unwrap_err().to_string();
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }

    #[test]
    fn registration_is_one_port_below() {
        let address: Address = "[::1]:8993".parse().unwrap();
        assert_eq!(address.neighbour(-1).unwrap().to_string(), "[::1]:8992");
        assert_eq!("a:1".parse::<Address>().unwrap().neighbour(-1), None);
    }
}
