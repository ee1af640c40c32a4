//! `strata agent` as it runs on an instance: a machine of the provider `process`, started by its default userdata.

use std::{fs, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use plan::shard::{config::Config, instance::MachineStatus};
use rustix::fs::{FlockOperation, fcntl_lock};
use serde_json::json;
use shard::{
    identity::Role,
    provider::{self, Endpoints, HcloudEnvironment, Opening, Order, Provider},
};

use crate::zone::{Zone, eventually, reported};

#[tokio::test]
async fn a78_a_machine_registers_is_adopted_and_ends_with_its_environment() -> Result<()> {
    let zone = Zone::new().await;
    let mut server = zone.start("s1");
    let bound = server.leads().await;
    let first = || async { zone.cloud.machines().first().map(|machine| machine.instance_id.clone()) };
    let id = eventually("the static group's instance", first).await;
    let folder = tempfile::tempdir()?;
    let lock = fs::File::create(folder.path().join("lock"))?;
    fcntl_lock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    let settings = json!({ "kind": "process", "lock": folder.path().join("lock") });
    let config: Config = serde_json::from_value(json!({ "shard": { "id": "a", "provider": settings } }))?;
    let open = || -> Result<Arc<dyn Provider>> {
        let opening = Opening {
            nonces: Arc::clone(&zone.nonces),
            ca_pem: zone.authority.certificate_pem().to_owned(),
            endpoints: Arc::new(move || Endpoints {
                registration: bound.registration.to_string(),
                agent: bound.agent.to_string(),
                operator: bound.operator.to_string(),
            }),
            clock: zone.clock.clone(),
            program: env!("CARGO_BIN_EXE_strata").into(),
            directory: folder.path().join("machines"),
            hcloud: HcloudEnvironment::default(),
        };
        Ok(provider::open(&config, opening)?)
    };
    let order = Order {
        instance_id: id.clone(),
        cluster: "dev".to_owned(),
        shard: "a".to_owned(),
        tenant: "default".to_owned(),
        group: "fixed".to_owned(),
        registration_timeout: Duration::from_mins(5),
        report_interval: Duration::from_millis(50),
        ..Order::default()
    };
    let machines = open()?;
    machines.create(&order).await?;
    let client = zone.client(&bound.operator.to_string(), ("dev", "default", Role::Operator));
    let log = folder.path().join("machines").join(&id).join("log");
    let shown = || format!("the agent's log:\n{}", fs::read_to_string(&log).unwrap_or_default());
    let wait = tokio::time::timeout(Duration::from_mins(3), reported(&client, &id));
    wait.await.with_context(shown)?;

    // The server that made it is gone; the next one finds it.
    let pid = machines.pid(&id).context("no process")?;
    drop(machines);
    let next = open()?;
    assert_eq!(next.pid(&id), Some(pid));
    reported(&client, &id).await;

    // Its environment ends, and it with it; what is left of it goes when the server says so.
    drop(lock);
    let ended = || async {
        let machine = next.status(&id).await.ok()??;
        (machine.status == MachineStatus::Stopped).then_some(())
    };
    eventually("its end", ended).await;
    next.delete(&id).await?;
    assert_eq!(next.status(&id).await?, None);
    server.stop().await;
    Ok(())
}
