//! The client all parts of the operator share.

use http::{HeaderValue, header::USER_AGENT};
use kube::{Client, Config};

/// A client that tries once. Retries are the queue's: it backs off per object, counts them, and asks the lease first,
/// none of which a retry hidden in the client would do.
pub fn connect(mut config: Config) -> kube::Result<Client> {
    config.default_retry = false;
    config.headers.push((USER_AGENT, HeaderValue::from_static(concat!("strata/", env!("CARGO_PKG_VERSION")))));
    Client::try_from(config)
}
