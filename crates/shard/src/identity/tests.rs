//! Handshakes and registration, without a network.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use rustls::pki_types::ServerName;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tonic::Code;

use super::*;
use crate::{
    clock::Clock,
    store::{
        Expect, Fault, Faults, FaultyStore, MemoryStore, Store,
        layout::{ShardLayout, operator_nonce},
    },
};

const DAY: Duration = Duration::from_hours(24);

struct World {
    clock: Clock,
    authority: Arc<Authority>,
    server: ServerTls,
}

fn world() -> World {
    let clock = Clock::stepped("2026-01-01T00:00:00Z".parse().unwrap());
    let (authority, _) = Authority::create("dev", clock.now()).unwrap();
    let hosts = ["127.0.0.1".to_owned(), "::1".to_owned(), "shard.example".to_owned()];
    let identity = authority.issue_server(&hosts, clock.now(), DAY).unwrap();
    let server = ServerTls::new(authority.certificate_pem(), &identity, Arc::new(clock.clone())).unwrap();
    World { clock, authority: Arc::new(authority), server }
}

/// Certificate and key of a client.
fn client(authority: &Authority, subject: (&str, &str, Role), now: Timestamp) -> (String, String) {
    let key = key_pair();
    let (pem, _) = authority.issue_client(subject, key.public_key_pem().as_bytes(), now, DAY).unwrap();
    (pem, key.serialize_pem())
}

impl World {
    /// The certificate that the server sees, or why there is no connection.
    async fn handshake(&self, identity: Option<&(String, String)>, host: &str) -> std::io::Result<Option<Vec<u8>>> {
        let identity = identity.map(|(certificate, key)| (&**certificate, &**key));
        let tls = client_tls(self.authority.certificate_pem(), identity, Arc::new(self.clock.clone())).unwrap();
        let (near, far) = tokio::io::duplex(64 * 1024);
        let name = ServerName::try_from(host.to_owned()).unwrap();
        let (client, server) = tokio::join!(
            TlsConnector::from(tls).connect(name, near),
            TlsAcceptor::from(self.server.mutual().unwrap()).accept(far),
        );
        client?;
        let server = server?;
        let (_, session) = server.get_ref();
        assert_eq!(session.alpn_protocol(), Some(&b"h2"[..]));
        assert_eq!(session.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
        Ok(session.peer_certificates().and_then(|chain| chain.first()).map(|certificate| certificate.to_vec()))
    }

    async fn peer(&self, identity: &(String, String)) -> Result<Peer, PeerError> {
        let der = self.handshake(Some(identity), "127.0.0.1").await.expect("a chain of the cluster");
        Peer::read(der.as_deref(), self.clock.now())
    }
}

#[tokio::test]
async fn a10_an_ed25519_chain_is_verified_for_names_and_both_ip_families() {
    let world = world();
    let operator = client(&world.authority, ("dev", "default", Role::Operator), world.clock.now());
    for host in ["127.0.0.1", "::1", "shard.example"] {
        assert!(world.handshake(Some(&operator), host).await.unwrap().is_some(), "{host}");
    }
    for host in ["127.0.0.2", "::2", "other.example"] {
        assert!(world.handshake(Some(&operator), host).await.is_err(), "{host}");
    }
}

/// As a client would that speaks TLS 1.2 alone, against each of the server's ports.
#[tokio::test]
async fn a10_a_client_that_speaks_no_more_than_tls_1_2_is_refused_on_every_port() {
    let world = world();
    let (roots, time) = (tls::roots(world.authority.certificate_pem()).unwrap(), Arc::new(world.clock.clone()));
    let with = |version| {
        let builder = rustls::ClientConfig::builder_with_details(tls::provider(), time.clone());
        let builder = builder.with_protocol_versions(&[version]).unwrap();
        Arc::new(builder.with_root_certificates(roots.clone()).with_no_client_auth())
    };
    let (mutual, open, web) = (world.server.mutual(), world.server.open(), world.server.web());
    for server in [mutual.unwrap(), open.unwrap(), web.unwrap()] {
        let shake = async |client| {
            let (near, far) = tokio::io::duplex(64 * 1024);
            let name = ServerName::try_from("127.0.0.1").unwrap();
            tokio::join!(
                TlsConnector::from(client).connect(name, near),
                TlsAcceptor::from(Arc::clone(&server)).accept(far)
            )
        };
        let (client, accepted) = shake(with(&rustls::version::TLS12)).await;
        assert!(client.is_err());
        let error = accepted.unwrap_err().to_string();
        assert!(error.contains("peer is incompatible"), "refused for its version: {error}");
        let (client, accepted) = shake(with(&rustls::version::TLS13)).await;
        assert!(client.is_ok() && accepted.is_ok());
    }
}

#[tokio::test]
async fn the_certificate_says_who_the_client_is() {
    let world = world();
    for role in [Role::Operator, Role::Agent] {
        let identity = client(&world.authority, ("web01", "acme", role), world.clock.now());
        let expected = Peer { id: "web01".to_owned(), tenant: "acme".to_owned(), role };
        assert_eq!(world.peer(&identity).await.unwrap(), expected);
    }
}

#[tokio::test]
async fn no_certificate_is_a_code_and_a_foreign_chain_no_connection() {
    let world = world();
    let none = world.handshake(None, "127.0.0.1").await.expect("TLS does not require one");
    assert_eq!(Peer::read(none.as_deref(), world.clock.now()), Err(PeerError::Missing));
    assert_eq!(tonic::Status::from(PeerError::Missing).code(), Code::Unauthenticated);
    let (foreign, _) = Authority::create("dev", world.clock.now()).unwrap();
    let stranger = client(&foreign, ("dev", "default", Role::Operator), world.clock.now());
    assert!(world.handshake(Some(&stranger), "127.0.0.1").await.is_err());
}

#[tokio::test]
async fn an_expired_certificate_ends_at_the_handshake_and_on_open_connections() {
    let world = world();
    let identity = client(&world.authority, ("dev", "default", Role::Operator), world.clock.now());
    let der = world.handshake(Some(&identity), "127.0.0.1").await.unwrap();
    let later = world.clock.now() + SignedDuration::from_hours(25);
    assert_eq!(Peer::read(der.as_deref(), later), Err(PeerError::Expired));
    world.clock.step(SignedDuration::from_hours(25));
    let fresh = world.authority.issue_server(&["127.0.0.1".to_owned()], world.clock.now(), DAY).unwrap();
    world.server.replace(&fresh).unwrap();
    assert!(world.handshake(Some(&identity), "127.0.0.1").await.is_err());
    let renewed = client(&world.authority, ("dev", "default", Role::Operator), world.clock.now());
    assert!(world.peer(&renewed).await.is_ok(), "the exchanged server certificate serves new connections");
}

fn registrar(world: &World, store: Arc<dyn Store>) -> Registrar {
    Registrar {
        store,
        authority: Arc::clone(&world.authority),
        nonces: Arc::new(Nonces::load(&key_pair().serialize_pem()).unwrap()),
        cluster: "dev".to_owned(),
        shard: "a".to_owned(),
        layout: ShardLayout::new("a"),
        lifetimes: Box::new(Lifetimes::default),
    }
}

#[tokio::test]
async fn a_nonce_registers_one_key_as_often_as_it_takes() {
    let (world, store) = (world(), MemoryStore::default());
    let registrar = registrar(&world, Arc::new(store.clone()));
    let now = world.clock.now();
    let token = registrar.nonces.issue(&Claims::operator("dev", "acme", now, DAY)).unwrap();
    let (key, other) = (key_pair(), key_pair());
    let register = |key: &rcgen::KeyPair, at: Timestamp| {
        let (registrar, token, pem) = (&registrar, &token, key.public_key_pem());
        async move { registrar.register(Kind::Operator, token, pem.as_bytes(), at).await }
    };
    let first = register(&key, now).await.unwrap();
    assert_eq!(first.expires_at, now + SignedDuration::from_hours(24));
    let pem = String::from_utf8(first.certificate_pem).unwrap();
    let peer = world.peer(&(pem, key.serialize_pem())).await.unwrap();
    assert_eq!(peer, Peer { id: "dev".into(), tenant: "acme".into(), role: Role::Operator });
    let used = operator_nonce(&nonce::digest(&token));
    let object = store.get(&used).await.unwrap().unwrap();
    let end = nonce_end(&object.body).map(Timestamp::as_second);
    assert_eq!(end, Some((now + DAY).as_second()), "what is stored goes some time after it");
    register(&key, now + SignedDuration::from_secs(1)).await.expect("a retry with the same key");
    assert_eq!(register(&other, now).await.unwrap_err().code(), Code::Unauthenticated);
    // What a server before this one stored has no such line.
    store.put(&used, key.public_key_pem().into_bytes(), Expect::Content(object.etag)).await.unwrap();
    register(&key, now).await.expect("a retry with the same key");
    assert_eq!(register(&other, now).await.unwrap_err().code(), Code::Unauthenticated);
    assert_eq!(register(&key, now + SignedDuration::from_hours(24)).await.unwrap_err().code(), Code::Unauthenticated);
    let renewed = registrar.renew(&peer, other.public_key_pem().as_bytes(), now).await.unwrap();
    let pem = String::from_utf8(renewed.certificate_pem).unwrap();
    assert_eq!(world.peer(&(pem, other.serialize_pem())).await.unwrap(), peer);
}

#[test]
fn the_configuration_says_how_long_certificates_last() {
    let json = serde_json::json!({"operator": {"ttl": 2}});
    let lifetimes = Lifetimes::default().configured(&serde_json::from_value(json).unwrap());
    assert_eq!((lifetimes.operator, lifetimes.agent), (2 * DAY / 24, 365 * DAY));
}

#[tokio::test]
async fn a_bad_key_is_named_and_does_not_use_the_nonce_up() {
    let world = world();
    let store = MemoryStore::default();
    let registrar = registrar(&world, Arc::new(store.clone()));
    let now = world.clock.now();
    let token = registrar.nonces.issue(&Claims::operator("dev", "acme", now, DAY)).unwrap();
    let p256 = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap().public_key_pem();
    for bad in [&b""[..], b"junk", &[0xff, 0xfe], p256.as_bytes()] {
        let status = registrar.register(Kind::Operator, &token, bad, now).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains("public_key_pem"), "{status}");
    }
    assert!(store.snapshot().is_empty(), "nothing was stored");
    registrar.register(Kind::Operator, &token, key_pair().public_key_pem().as_bytes(), now).await.unwrap();
}

#[tokio::test]
async fn an_agents_nonce_counts_for_its_instance_and_shard_only() {
    let world = world();
    let registrar = registrar(&world, Arc::new(MemoryStore::default()));
    let now = world.clock.now();
    let agent = Claims { shard: "a".to_owned(), ..Claims::agent("dev", "acme", "web01", now, DAY) };
    let key = key_pair();
    let pem = key.public_key_pem();
    let register = |claims: Claims, kind| {
        let token = registrar.nonces.issue(&claims).unwrap();
        let (registrar, pem) = (&registrar, &pem);
        async move { registrar.register(kind, &token, pem.as_bytes(), now).await }
    };
    let issued = register(agent.clone(), Kind::Agent).await.unwrap();
    let identity = (String::from_utf8(issued.certificate_pem).unwrap(), key.serialize_pem());
    assert_eq!(world.peer(&identity).await.unwrap().id, "web01");
    let elsewhere = Claims { shard: "b".to_owned(), ..agent.clone() };
    assert_eq!(register(elsewhere, Kind::Agent).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(register(agent, Kind::Operator).await.unwrap_err().code(), Code::Unauthenticated);
}

/// A truncated file is no other client's key: to say so would send people after a nonce that was stolen.
#[tokio::test]
async fn a_damaged_key_of_a_used_nonce_issues_nothing_and_is_not_taken_for_another_clients() {
    let (world, store) = (world(), MemoryStore::default());
    let registrar = registrar(&world, Arc::new(store.clone()));
    let now = world.clock.now();
    let agent = Claims { shard: "a".to_owned(), ..Claims::agent("dev", "acme", "web01", now, DAY) };
    let key = key_pair().public_key_pem();
    let of_agent = (Kind::Agent, agent, ShardLayout::new("a").agent_key("web01"));
    let operator = Claims::operator("dev", "acme", now, DAY);
    let used = operator_nonce(&nonce::digest(&registrar.nonces.issue(&operator).unwrap()));
    for (kind, claims, used) in [of_agent, (Kind::Operator, operator, used)] {
        let token = registrar.nonces.issue(&claims).unwrap();
        registrar.register(kind, &token, key.as_bytes(), now).await.unwrap();
        let object = store.get(&used).await.unwrap().unwrap();
        let half = object.body[..object.body.len() / 2].to_vec();
        store.put(&used, half.clone(), Expect::Content(object.etag)).await.unwrap();
        let status = registrar.register(kind, &token, key.as_bytes(), now).await.unwrap_err();
        assert_eq!(status.code(), Code::Internal, "{kind:?}: {status}");
        assert_eq!(store.get(&used).await.unwrap().unwrap().body, half, "its bytes are kept");
        store.delete(&used).await.unwrap();
        registrar.register(kind, &token, key.as_bytes(), now).await.expect("the remedy");
    }
}

#[tokio::test(start_paused = true)]
async fn a_storage_outage_issues_nothing_and_says_so() {
    let world = world();
    let faults = Faults::default();
    let store = Arc::new(FaultyStore::new(Arc::new(MemoryStore::default()), faults.clone()));
    let registrar = registrar(&world, store);
    let now = world.clock.now();
    let token = registrar.nonces.issue(&Claims::operator("dev", "acme", now, DAY)).unwrap();
    faults.set(Fault::Refusing);
    let key = key_pair().public_key_pem();
    let status = registrar.register(Kind::Operator, &token, key.as_bytes(), now).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    faults.set(Fault::None);
    registrar.register(Kind::Operator, &token, key.as_bytes(), now).await.expect("a later attempt");
}
