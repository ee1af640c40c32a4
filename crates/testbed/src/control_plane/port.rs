//! Free loopback ports.

use std::{
    collections::BTreeSet,
    fs,
    hash::{BuildHasher, RandomState},
    net::TcpListener,
    path::Path,
    sync::{Mutex, PoisonError},
};

use crate::pki::{self, write_private};

/// Below the range from which Linux and others take the ports of outgoing connections, so that a program
/// that is down for a moment finds its port free when it comes back.
const FIRST: u16 = 12_000;
const LAST: u16 = 32_000;

/// Ports are drawn from twenty thousand; being beaten to one five times in a row is not bad luck.
pub(crate) const PORT_ATTEMPTS: u32 = 5;

/// What this process has drawn: a server that is down for a moment must find its port free.
static DRAWN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A port that nobody listens on at this moment and that this process has not drawn before. Another process may take it
/// before it is used: callers try again with another when that happens.
pub fn free_port() -> u16 {
    // `RandomState` is seeded by the operating system, so processes that start together differ.
    let random = RandomState::new();
    let range = u64::from(LAST - FIRST);
    let draw = |attempt: u32| FIRST + u16::try_from(random.hash_one(attempt) % range).expect("the range is small");
    // Twice the range: by then a machine with any free port at all has shown one.
    let mut ports = (0..2 * u32::from(LAST - FIRST)).map(draw);
    let mut drawn = DRAWN.lock().unwrap_or_else(PoisonError::into_inner);
    ports.find(|&port| is_free(port) && drawn.insert(port)).expect("some loopback port is free")
}

/// One beside those that are `taken`, which then has it too.
pub fn free_port_beside(taken: &mut BTreeSet<u16>) -> u16 {
    std::iter::repeat_with(free_port).find(|port| taken.insert(*port)).expect("endless")
}

/// So many of them, each another.
pub fn free_ports<const N: usize>() -> [u16; N] {
    [(); N].map(|()| free_port())
}

fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

/// The port in this file if it is free, so that a server that starts again is found where it was; else another one, which
/// the file has then.
pub(super) fn kept_port(file: &Path) -> Result<u16, pki::Error> {
    let former = fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok());
    let port = former.filter(|&port| is_free(port)).unwrap_or_else(free_port);
    DRAWN.lock().unwrap_or_else(PoisonError::into_inner).insert(port);
    write_private(file, &port.to_string())?;
    Ok(port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_kept_until_somebody_else_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("port");
        let port = kept_port(&file).unwrap();
        assert_eq!(kept_port(&file).unwrap(), port);
        let _taken = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let other = kept_port(&file).unwrap();
        assert_ne!(other, port);
        assert_eq!(kept_port(&file).unwrap(), other);
        fs::write(&file, "junk").unwrap();
        assert!(kept_port(&file).is_ok());
    }
}
