//! Registration, reports, notices and renewal.

use std::{
    fs,
    net::{Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use rustix::fs::{FlockOperation, fcntl_lock};
use shard::{client::Watched, identity::key_pair, server::Ports};
use tonic::Code;

use crate::{
    DAY, Instance, exists, operator, reported, run,
    zone::{QUICK, STEADY, Zone, eventually, free},
};

#[tokio::test]
async fn a10_an_agent_registers_by_its_nonce_and_reports() {
    let zone = Zone::new().await;
    let mut server = zone.start("s1");
    let bound = server.leads().await;
    let client = operator(&zone, bound.operator);
    let instance = Instance::new(&zone).await;
    let agent = instance.start(&zone, &bound, None);
    reported(&client, &instance.id).await;
    let (key, certificate) = (fs::read(instance.path("identity.key")), fs::read(instance.path("identity.crt")));
    agent.kill();

    // The next one has a certificate and needs no nonce.
    instance.write_nonce("spent");
    let agent = instance.start(&zone, &bound, None);
    reported(&client, &instance.id).await;
    assert_eq!(fs::read(instance.path("identity.key")).unwrap(), key.unwrap());
    assert_eq!(fs::read(instance.path("identity.crt")).unwrap(), certificate.unwrap());
    agent.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn a_registration_that_was_cut_short_is_repeated_with_the_same_key() {
    let zone = Zone::new().await;
    let mut server = zone.start("s1");
    let bound = server.leads().await;
    let instance = Instance::new(&zone).await;
    let agent = instance.start(&zone, &bound, None);
    eventually("a certificate", || async { exists(&instance.path("identity.crt")).then_some(()) }).await;
    agent.kill();
    // Killed after the server spent the nonce and before the certificate was stored.
    fs::remove_file(instance.path("identity.crt")).unwrap();
    let agent = instance.start(&zone, &bound, None);
    reported(&operator(&zone, bound.operator), &instance.id).await;
    agent.stop().await;

    // Somebody else's key is refused; the agent waits for its end, and says so once.
    fs::remove_file(instance.path("identity.crt")).unwrap();
    fs::write(instance.path("identity.key"), key_pair().serialize_pem()).unwrap();
    let mut agent = instance.start(&zone, &bound, None);
    assert!(tokio::time::timeout(Duration::from_millis(500), &mut agent.task).await.is_err(), "it waits");
    assert!(!exists(&instance.path("identity.crt")));
    agent.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn a43_an_agent_follows_the_leader_to_another_address() {
    let zone = Zone::new().await;
    let ports = |ip: std::net::IpAddr| {
        let [registration, operator, agent] = free(ip);
        Ports { election: (ip, 0).into(), registration, operator, agent }
    };
    let (first, second) = (ports(Ipv4Addr::LOCALHOST.into()), ports(Ipv6Addr::LOCALHOST.into()));
    let mut server = zone.start_with("s1", first, STEADY);
    server.leads().await;
    let instance = Instance::new(&zone).await;
    let registration = format!("{},{}", first.registration, second.registration);
    let agent = run(&zone, instance.options(&registration, &format!("{},{}", first.agent, second.agent), None));
    reported(&operator(&zone, first.operator), &instance.id).await;
    server.kill();
    let mut next = zone.start_with("s2", second, QUICK);
    next.leads().await;
    reported(&operator(&zone, second.operator), &instance.id).await;
    agent.stop().await;
    next.stop().await;
}

#[tokio::test]
async fn a76_a_notice_reaches_the_operator_with_its_deadline() {
    let zone = Zone::new().await;
    let mut server = zone.start("s1");
    let bound = server.leads().await;
    let client = operator(&zone, bound.operator);
    let mut events = client.watch_instances(1);
    assert!(matches!(events.next().await, Watched::Connected));
    let instance = Instance::new(&zone).await;
    let agent = instance.start(&zone, &bound, None);
    reported(&client, &instance.id).await;
    let deadline = zone.clock.now() + Duration::from_secs(90);
    fs::write(instance.path("notice"), format!(r#"{{"action": "terminate", "time": "{deadline}"}}"#)).unwrap();
    let Watched::Event(event) = events.next().await else { panic!("an event") };
    let said = (&*event.instance_id, &*event.status, &*event.reason);
    assert_eq!(said, (&*instance.id, "pending_deletion", "spot-terminating"));
    assert_eq!(event.delete_at.map(|time| time.seconds), Some(deadline.as_second()));
    agent.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn a_certificate_past_half_of_its_life_is_renewed_while_reports_go_on() {
    use shard::identity::Role;
    let zone = Zone::new().await;
    let mut server = zone.start("s1");
    let bound = server.leads().await;
    let instance = Instance::new(&zone).await;
    let key = key_pair();
    fs::write(instance.path("identity.key"), key.serialize_pem()).unwrap();
    let issued_at = zone.clock.now() - Duration::from_hours(13);
    let subject = (&*instance.id, "default", Role::Agent);
    let (old, _) = zone.authority.issue_client(subject, key.public_key_pem().as_bytes(), issued_at, DAY).unwrap();
    fs::write(instance.path("identity.crt"), &old).unwrap();

    // Without a good nonce the old one serves on.
    let nonce = instance.nonce(&zone);
    let client = operator(&zone, bound.operator);
    fs::remove_file(instance.path("nonce.jwt")).unwrap();
    for text in [None, Some("expired")] {
        if let Some(text) = text {
            instance.write_nonce(text);
        }
        let agent = instance.start(&zone, &bound, None);
        reported(&client, &instance.id).await;
        assert_eq!(fs::read_to_string(instance.path("identity.crt")).unwrap(), old);
        agent.kill();
    }

    instance.write_nonce(&nonce);
    let agent = instance.start(&zone, &bound, None);
    let renewed = || async { (fs::read_to_string(instance.path("identity.crt")).unwrap() != old).then_some(()) };
    eventually("a new certificate", renewed).await;
    reported(&client, &instance.id).await;
    agent.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn an_agent_that_misses_its_files_ends_and_names_them() {
    let zone = Zone::new().await;
    let mut server = zone.start("s1");
    let bound = server.leads().await;
    let instance = Instance::new(&zone).await;
    for name in ["nonce.jwt", "ca.crt"] {
        fs::remove_file(instance.path(name)).unwrap();
        let error = instance.start(&zone, &bound, None).task.await.unwrap().unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
    let stranger = operator(&zone, bound.operator).instance_status("web00000000000000000000000000").await;
    assert_eq!(stranger.unwrap_err().code(), Code::NotFound);
    server.stop().await;
}

/// The lock is this process' own, which cannot see it held: an agent in another process can, see `strata`'s tests.
#[tokio::test]
async fn an_agent_without_its_environment_ends_at_once() {
    let zone = Zone::new().await;
    let mut server = zone.start("s1");
    let bound = server.leads().await;
    let instance = Instance::new(&zone).await;
    let lock = fs::File::create(instance.path("lock")).unwrap();
    fcntl_lock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    let options = instance.options(&bound.registration.to_string(), &bound.agent.to_string(), None);
    let options = agent::Options { end_with_lock: Some(instance.path("lock")), ..options };
    run(&zone, options).task.await.unwrap().unwrap();
    server.stop().await;
}
