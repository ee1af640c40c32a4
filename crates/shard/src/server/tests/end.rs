//! Every way an instance ends, with a leader that dies at any effect on the way: the next one's watchers learn of it.

use std::{collections::BTreeSet, time::Duration};

use futures::{FutureExt, StreamExt};
use jiff::SignedDuration;
use plan::shard::instance::{MachineStatus, Reason};

use super::world::{CONFIG, Server, World, alive};
use crate::{
    server::TermError,
    store::{Faults, Side},
    wire::{self, Fence},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Silent,
    Stopped,
    Noticed,
    /// Noticed, and gone before anything could be done.
    Preempted,
    Eligible,
    Forced,
    OnDemand,
    Drifted,
    ScaledDown,
    Requested,
}

const ALL: [End; 10] = [
    End::Silent,
    End::Stopped,
    End::Noticed,
    End::Preempted,
    End::Eligible,
    End::Forced,
    End::OnDemand,
    End::Drifted,
    End::ScaledDown,
    End::Requested,
];

impl End {
    fn reason(self) -> Reason {
        match self {
            Self::Silent | Self::Stopped => Reason::Unhealthy,
            Self::Noticed => Reason::SpotTerminating,
            Self::Preempted => Reason::Preemption,
            Self::Eligible => Reason::EligibleExpiry,
            Self::Forced => Reason::ForcedExpiry,
            Self::OnDemand => Reason::OnDemandExpiry,
            Self::Drifted => Reason::ConfigDrift,
            Self::ScaledDown => Reason::ScaleDown,
            Self::Requested => Reason::Request,
        }
    }

    /// Short times: each renewal of the lead on the way is a point to die at, and as good as any other.
    fn config(self) -> String {
        let times = match self {
            Self::Silent => r#""health_check_interval": "10s", "subnet_pools""#,
            Self::Eligible => r#""expiry": {"eligible_age": "1m"}, "subnet_pools""#,
            Self::Forced => r#""expiry": {"eligible_age": "1m", "forced_age": "2m"}, "subnet_pools""#,
            Self::OnDemand => r#""expiry": {"ondemand_age": "1m"}, "subnet_pools""#,
            _ => r#""subnet_pools""#,
        };
        CONFIG.replace("\"subnet_pools\"", times)
    }

    /// What happens to the instance, or what its owners ask. It may happen again to the next leader.
    async fn happens(self, world: &World, server: &mut Server, id: &str) -> Result<(), TermError> {
        let fence = Fence::default();
        let silent = BTreeSet::from([id.to_owned()]);
        match self {
            Self::Silent => {
                for _ in 0..4 {
                    server.pass(world, Duration::from_secs(10), &silent).await?;
                    server.term.observe().await?;
                    server.term.settle_due().await?;
                    server.report(world, &silent);
                    server.term.settle_due().await?;
                }
            }
            Self::Stopped => world.cloud.set_status(id, Some(MachineStatus::Stopped)),
            Self::Noticed => {
                let deadline = world.clock.now() + SignedDuration::from_mins(2);
                // An agent whose instance was deleted meanwhile is refused.
                let _ = server.term.report_health("default", id, Some(Some(deadline)));
            }
            Self::Preempted => {
                if !world.cloud.machines().iter().any(|machine| machine.status == MachineStatus::Stopped) {
                    world.cloud.give_notice(id);
                    let _ = server.term.report_health("default", id, Some(None));
                }
                world.cloud.set_status(id, Some(MachineStatus::Stopped));
            }
            Self::Eligible | Self::OnDemand => {
                server.pass(world, Duration::from_mins(1), &BTreeSet::new()).await?;
            }
            Self::Forced => server.pass(world, Duration::from_mins(2), &BTreeSet::new()).await?,
            Self::Drifted => {
                world
                    .configure(&self.config().replace("\"kind\": \"web\"", "\"userdata\": \"new\", \"kind\": \"web\""))
                    .await;
                server.term.refresh_config("default").await?;
            }
            Self::ScaledDown => {
                let config = wire::GroupConfig { size: 0, ..wire::GroupConfig::default() };
                let key = "fixed".to_owned();
                let request = wire::UpsertGroupRequest { key, config: Some(config), remove_first: vec![] };
                server.term.upsert_group("default", request, &fence).await?;
            }
            Self::Requested => drop(server.term.delete_instance("default", id, &fence).await?),
        }
        Ok(())
    }
}

/// The instance whose end is looked at.
async fn begin(end: End, world: &World, server: &Server) -> Result<String, TermError> {
    server.settle(world).await?;
    if end == End::OnDemand {
        let config = wire::InstanceConfig { group: "fixed".to_owned(), ..wire::InstanceConfig::default() };
        let request = wire::CreateInstanceRequest { instance_id: String::new(), config: Some(config) };
        let fence = Fence { request_id: Some("one".to_owned()), ..Fence::default() };
        return Ok(server.term.create_instance("default", request, &fence).await?.instance_id);
    }
    let records = world.records();
    Ok(records.keys().next().expect("an instance").clone())
}

/// Drains are acknowledged until the instance is deleted.
async fn finish(world: &World, server: &Server, id: &str) -> Result<(), TermError> {
    for _ in 0..6 {
        server.term.observe().await?;
        server.term.settle_due().await?;
        server.report(world, &BTreeSet::from([id.to_owned()]));
        server.term.settle_due().await?;
        let leaves = world.records().get(id).is_some_and(|record| record.leaving.is_some());
        if leaves {
            // What is deleted already is not known any more.
            let _ = server.term.acknowledge_drained("default", id, &Fence::default());
        }
    }
    Ok(())
}

/// What a watcher of this server has been sent about the instance's deletion.
fn deletions(events: &mut crate::server::Watched<wire::InstanceEvent>, id: &str) -> Vec<String> {
    let sent = std::iter::from_fn(|| events.next().now_or_never()?.map(|event| event.expect("an event")));
    sent.filter(|event| event.instance_id == id && event.status == "deleted").map(|event| event.reason).collect()
}

async fn whole(end: End, world: &World, server: &mut Server, id: &str) -> Result<(), TermError> {
    end.happens(world, server, id).await?;
    finish(world, server, id).await
}

/// The leader dies that many effects after the instance was there; `false` if it had fewer to do.
async fn dies(end: End, after: usize, side: Side) -> bool {
    let world = World::with_config(&end.config()).await;
    world.registers.store(true, std::sync::atomic::Ordering::Relaxed);
    // The first server makes the instance and ends; what dies is its successor.
    let first = world.start().await;
    let id = begin(end, &world, &first).await.unwrap();
    drop(first);
    let faults = Faults::default();
    let mut dying = world.start_with(faults.clone()).await.expect("it leads");
    faults.die_at(faults.effects() + after, side);
    if let Some(done) = alive(&faults, whole(end, &world, &mut dying, &id)).await {
        done.unwrap();
        return false;
    }
    drop(dying);
    let stored = world.records()[&id].leaving.as_ref().map(|leaving| leaving.reason);
    let mut next = world.start().await;
    let mut events = next.term.watch_instances("default");
    whole(end, &world, &mut next, &id).await.unwrap();
    let expected = end.reason().as_str().to_owned();
    assert!(stored.is_none_or(|reason| reason == end.reason()), "{end:?} {after} {side:?}: {stored:?}");
    assert_eq!(deletions(&mut events, &id), [expected], "{end:?}, death {side:?} effect {after}");
    world.consistent();
    true
}

#[tokio::test(start_paused = true)]
async fn a82_whichever_effect_a_leader_dies_at_the_next_one_sends_the_deletion_with_its_reason() {
    let mut points = 0;
    for end in ALL {
        for after in 0.. {
            let mut died = false;
            for side in [Side::Before, Side::After] {
                died |= dies(end, after, side).await;
            }
            if !died {
                break;
            }
            points += 2;
        }
    }
    println!("{points} points");
}
