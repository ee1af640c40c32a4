//! The operator's identity, against a shard's server with a clock that the test steps.

use std::sync::Arc;

use anyhow::{Context, Result};
use api::condition::Reason;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use machines::{config::ShardSource, identity::Credentials};
use plan::machines::identity::Standing;
use process::Clock;
use serde_json::json;
use shard::{
    client::Client,
    identity::{ClientCertificate, ClientKey, client_tls},
};

use crate::{
    space::{Running, Space, minutes, until},
    zone::Zone,
};

const NONCE: &str = "nstance-operator-nonce";
const KEY: &str = "nstance-operator-key";
const CERTIFICATE: &str = "nstance-operator-cert";

/// Waits for a standing, and returns it.
async fn standing(running: &Running, what: &str, is_it: impl Fn(&Standing) -> bool) -> Result<Standing> {
    let mut receiver = running.ground.identity.standing.clone();
    until(what, async || Ok(is_it(&receiver.borrow_and_update())))
        .await
        .with_context(|| format!("{:?}", running.ground.identity.standing.borrow()))?;
    let found = running.ground.identity.standing.borrow().clone();
    Ok(found)
}

async fn registered(running: &Running) -> Result<Arc<Credentials>> {
    standing(running, "the operator is registered", |standing| standing.is_registered).await?;
    running.ground.identity.credentials.borrow().clone().context("no credentials")
}

/// Whether the shard serves who has these.
async fn is_served(zone: &Zone, credentials: &Credentials) -> Result<()> {
    let identity = Some((credentials.certificate.as_str(), credentials.key.as_str()));
    let tls = client_tls(&credentials.authority, identity, Arc::new(zone.clock.clone()))?;
    let groups = Client::new(zone.address().operator, tls).list_groups().await?;
    assert_eq!(groups.len(), 1);
    Ok(())
}

fn read(zone: &Zone, credentials: &Credentials) -> ClientCertificate {
    let Credentials { certificate, key, authority } = credentials;
    ClientCertificate::check(certificate, key, authority, zone.clock.now()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a03_a05_a06_a_nonce_becomes_a_stored_certificate_and_goes() -> Result<()> {
    let (space, zone) = (Space::new("identity").await?, Zone::start(Clock::default()).await);
    // At first the one shard that it knows is silent.
    let mut silent = zone.shards();
    silent.remove("a");
    let running = space.run(&space.settings(silent)?, zone.clock.clone()).await?;
    let missing = standing(&running, "the CA is missed", |one| one.why.reason == Reason::AuthorityMissing).await?;
    assert!(missing.why.message.contains("nstance-cluster-ca is missing; put"), "{missing:?}");
    space.put_ca(&zone.ca()).await?;
    let missing = standing(&running, "the nonce is missed", |one| one.why.reason == Reason::NonceMissing).await?;
    assert!(missing.why.message.contains("strata shard nonce"), "{missing:?}");
    assert!(running.health.notes()["machines identity"].contains("nonce"), "{:?}", running.health.notes());
    space.put_secret(NONCE, &[("nonce.jwt", &zone.nonce())]).await?;
    let key = async || space.secret_entry(KEY, "private.key").await;
    until("the key is stored before a shard has answered", async || Ok(key().await?.is_some())).await?;
    let (first, certificate) = (key().await?, space.secret_entry(CERTIFICATE, "tls.crt").await?);
    assert_eq!(certificate, None);
    assert!(space.secrets().get_opt(NONCE).await?.is_some(), "the nonce stays until there is a certificate");
    // The other one leads the cluster.
    space.configure(&zone.shards())?;
    let credentials = registered(&running).await?;
    assert_eq!(Some(&credentials.key), first.as_ref());
    is_served(&zone, &credentials).await?;
    assert_eq!(space.secret_entry(CERTIFICATE, "tls.crt").await?.as_deref(), Some(credentials.certificate.as_str()));
    assert_eq!(space.secret_entry(CERTIFICATE, "tls.key").await?, space.secret_entry(KEY, "private.key").await?);
    let public = space.secret_entry(KEY, "public.key").await?.context("no public key")?;
    assert_eq!(ClientKey::read(&credentials.key).unwrap().public_pem, public);
    until("the nonce is gone", async || Ok(space.secrets().get_opt(NONCE).await?.is_none())).await?;
    let metrics = running.metrics.encode()?;
    for line in [
        "strata_machines_registered 1",
        "strata_machines_identity_attempts_total{action=\"register\",result=\"success\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    assert!(metrics.contains("strata_machines_certificate_expiry_timestamp_seconds "), "{metrics}");
    running.stop().await?;
    space.stayed_within_its_rights().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a04_a07_a_registration_that_was_cut_off_is_repeated_with_the_same_key() -> Result<()> {
    let (space, zone) = (Space::new("identity-crash").await?, Zone::start(Clock::default()).await);
    // As if the operator had been killed after the shard's answer and before the certificate was stored.
    let (key, nonce) = (ClientKey::make(), zone.nonce());
    space.put_ca(&zone.ca()).await?;
    space.put_secret(KEY, &[("private.key", &key.private_pem), ("public.key", &key.public_pem)]).await?;
    space.put_secret(NONCE, &[("nonce.jwt", &nonce)]).await?;
    zone.spend(&nonce, &key).await;
    let settings = space.settings(zone.shards())?;
    let running = space.run(&settings, zone.clock.clone()).await?;
    let credentials = registered(&running).await?;
    assert_eq!(credentials.key, key.private_pem);
    is_served(&zone, &credentials).await?;
    until("the nonce is gone", async || Ok(space.secrets().get_opt(NONCE).await?.is_none())).await?;
    running.stop().await?;
    // The next process finds all it needs.
    let again = space.run(&settings, zone.clock.clone()).await?;
    assert_eq!(registered(&again).await?, credentials);
    assert!(!again.metrics.encode()?.contains("action=\"register\""), "it did not register again");
    again.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nonce_that_was_used_with_another_key_is_said_so_and_a_new_one_recovers() -> Result<()> {
    let (space, zone) = (Space::new("identity-replay").await?, Zone::start(Clock::default()).await);
    let nonce = zone.nonce();
    zone.spend(&nonce, &ClientKey::make()).await;
    space.put_ca(&zone.ca()).await?;
    space.put_secret(NONCE, &[("nonce.jwt", &nonce)]).await?;
    let running = space.run(&space.settings(zone.shards())?, zone.clock.clone()).await?;
    let refused = standing(&running, "the nonce is refused", |one| one.why.reason == Reason::NonceRefused).await?;
    assert!(refused.why.message.contains("put a new one in Secret"), "{refused:?}");
    assert!(running.ground.identity.credentials.borrow().is_none());
    space.condition("NstanceCluster", "Registered", "False", "NonceRefused").await?;
    space.secrets().delete(NONCE, &DeleteParams::default()).await?;
    space.put_secret(NONCE, &[("nonce.jwt", &zone.nonce())]).await?;
    is_served(&zone, &*registered(&running).await?).await?;
    space.condition("NstanceCluster", "Registered", "True", "Registered").await?;
    running.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a08_a09_a_certificate_is_renewed_at_half_its_life_and_an_expired_one_recovers() -> Result<()> {
    let (space, zone) = (Space::new("identity-renewal").await?, Zone::start(Clock::default()).await);
    space.put_ca(&zone.ca()).await?;
    space.put_secret(NONCE, &[("nonce.jwt", &zone.nonce())]).await?;
    let running = space.run(&space.settings(zone.shards())?, zone.clock.clone()).await?;
    let first = registered(&running).await?;
    until("the nonce is gone", async || Ok(space.secrets().get_opt(NONCE).await?.is_none())).await?;
    zone.clock.step(minutes(40));
    space.touch(CERTIFICATE).await?;
    let mut credentials = running.ground.identity.credentials.clone();
    until("it is renewed", async || Ok(credentials.borrow_and_update().as_ref() != Some(&first))).await?;
    let second = registered(&running).await?;
    assert!(read(&zone, &second).not_after > read(&zone, &first).not_after);
    assert_eq!(second.key, first.key, "the same key");
    is_served(&zone, &second).await?;
    until("it is stored", async || {
        Ok(space.secret_entry(CERTIFICATE, "tls.crt").await?.as_deref() == Some(second.certificate.as_str()))
    })
    .await?;

    zone.clock.step(minutes(65));
    space.touch(CERTIFICATE).await?;
    let expired = standing(&running, "it expired", |one| !one.is_registered).await?;
    assert_eq!(expired.why.reason, Reason::NonceMissing, "{expired:?}");
    assert!(expired.why.message.starts_with("the certificate expired at"), "{expired:?}");
    assert!(running.ground.identity.credentials.borrow().is_none());
    space.put_secret(NONCE, &[("nonce.jwt", &zone.nonce())]).await?;
    is_served(&zone, &*registered(&running).await?).await?;
    running.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_authority_and_other_shards_need_a_new_nonce_and_no_restart() -> Result<()> {
    let space = Space::new("identity-authority").await?;
    let (old, new) = (Zone::start(Clock::default()).await, Zone::start(Clock::default()).await);
    space.put_ca(&old.ca()).await?;
    space.put_secret(NONCE, &[("nonce.jwt", &old.nonce())]).await?;
    let running = space.run(&space.settings(old.shards())?, old.clock.clone()).await?;
    is_served(&old, &*registered(&running).await?).await?;
    until("the nonce is gone", async || Ok(space.secrets().get_opt(NONCE).await?.is_none())).await?;
    space.configure(&new.shards())?;
    space.put_ca(&new.ca()).await?;
    let lost = standing(&running, "the certificate is of no use", |one| !one.is_registered).await?;
    assert!(lost.why.message.starts_with("the certificate is not of the cluster's authority"), "{lost:?}");
    space.put_secret(NONCE, &[("nonce.jwt", &new.nonce())]).await?;
    is_served(&new, &*registered(&running).await?).await?;
    running.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a14_shards_of_a_config_map_come_and_go_without_a_restart() -> Result<()> {
    let space = Space::new("shards").await?;
    let mut settings = space.settings([].into())?;
    settings.source = ShardSource::ConfigMap("shards".to_owned());
    let running = space.run(&settings, Clock::default()).await?;
    let maps: Api<ConfigMap> = Api::namespaced(space.client.clone(), &space.namespace);
    let edit = async |data: serde_json::Value| {
        let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "shards" }, "data": data });
        maps.patch("shards", &PatchParams::apply("test").force(), &Patch::Apply(map)).await
    };
    let are = async |expected: &[&str]| {
        let mut shards = running.ground.shards.clone();
        until("the shards are as configured", async || Ok(shards.borrow_and_update().keys().eq(expected))).await
    };
    edit(json!({ "a": "127.0.0.1:8993" })).await?;
    are(&["a"]).await?;
    edit(json!({ "a": "127.0.0.1:8993", "b": "127.0.0.2:8993,127.0.0.3:8993" })).await?;
    are(&["a", "b"]).await?;
    edit(json!({ "a": "127.0.0.1" })).await?;
    let is_noted = |words: &str| {
        let note = running.health.notes().remove("machines configuration");
        note.is_some_and(|note| note.contains(words))
    };
    until("a bad edit is noted", async || Ok(is_noted("shards.a: \"127.0.0.1\": the port is missing"))).await?;
    are(&["a", "b"]).await?;
    maps.delete("shards", &DeleteParams::default()).await?;
    until("the deletion is noted", async || Ok(is_noted("is gone"))).await?;
    are(&["a", "b"]).await?;
    edit(json!({ "config.yaml": "cluster_id: dev\ntenant: default\nshards: {c: '127.0.0.1:8993'}" })).await?;
    are(&["c"]).await?;
    assert!(!is_noted(""));
    running.stop().await
}
