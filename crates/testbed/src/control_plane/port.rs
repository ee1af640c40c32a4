//! Free loopback ports.

use std::{
    hash::{BuildHasher, RandomState},
    net::TcpListener,
};

/// Below the range from which Linux and others take the ports of outgoing connections, so that a program
/// that is down for a moment finds its port free when it comes back.
const FIRST: u16 = 12_000;
const LAST: u16 = 32_000;

/// Ports are drawn from twenty thousand; being beaten to one five times in a row is not bad luck.
pub(crate) const PORT_ATTEMPTS: u32 = 5;

/// A port that nobody listens on at this moment. Another process may take it before it is used: callers
/// try again with another when that happens.
pub fn free_port() -> u16 {
    // `RandomState` is seeded by the operating system, so processes that start together differ.
    let random = RandomState::new();
    let range = u64::from(LAST - FIRST);
    let draw = |attempt: u32| FIRST + u16::try_from(random.hash_one(attempt) % range).expect("the range is small");
    // Twice the range: by then a machine with any free port at all has shown one.
    let mut ports = (0..2 * u32::from(LAST - FIRST)).map(draw);
    ports.find(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok()).expect("some loopback port is free")
}
