//! Elections on paused time: candidates in one process, each with its own faults.

use super::*;
use crate::store::{Fault, Faults, FaultyStore, MemoryStore};

const KEY: &str = "shard/a/leader.json";

struct Server {
    election: Election,
    faults: Faults,
}

fn server(store: &MemoryStore, name: &str) -> Server {
    let faults = Faults::default();
    let store = Arc::new(FaultyStore::new(Arc::new(store.clone()), faults.clone()));
    let election = Election::new(store, KEY, name, &format!("{name}:8991"), Timing::default());
    Server { election, faults }
}

impl Server {
    async fn lead(&mut self) -> Option<Lead> {
        match self.election.look().await {
            Ok(Role::Leader(lead)) => Some(lead),
            Ok(Role::Standby { .. }) | Err(_) => None,
        }
    }
}

async fn pass(seconds: u64) {
    tokio::time::advance(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn one_leads_and_a_release_hands_over_at_once() {
    let store = MemoryStore::default();
    let (mut a, mut b) = (server(&store, "a"), server(&store, "b"));
    let lead = a.lead().await.expect("the first candidate leads");
    let Ok(Role::Standby { leader, .. }) = b.election.look().await else { panic!("the lock is held") };
    assert_eq!(leader.as_deref(), Some("a:8991"));
    a.election.release().await.unwrap();
    assert!(!lead.is_valid());
    assert_eq!(b.lead().await.expect("released").epoch(), lead.epoch() + 1);
}

#[tokio::test(start_paused = true)]
async fn a_dead_leader_is_replaced_after_its_timeout_and_not_before() {
    let store = MemoryStore::default();
    let (mut a, mut b) = (server(&store, "a"), server(&store, "b"));
    let lead = a.lead().await.unwrap();
    assert!(b.lead().await.is_none());
    pass(14).await;
    assert!(!lead.is_valid(), "the leader stopped by its own clock");
    assert!(b.lead().await.is_none());
    pass(1).await;
    assert_eq!(b.lead().await.unwrap().epoch(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_candidate_that_cannot_write_fails_until_it_can_and_does_not_wait_for_the_dead_leader_again() {
    let store = MemoryStore::default();
    let (mut a, mut b) = (server(&store, "a"), server(&store, "b"));
    a.lead().await.unwrap();
    assert!(b.lead().await.is_none());
    pass(15).await;
    b.faults.set(Fault::Full);
    for _ in 0..20 {
        assert!(b.election.look().await.is_err(), "it is one failure, and not one per timeout of the leader");
        pass(1).await;
    }
    b.faults.set(Fault::None);
    assert_eq!(b.lead().await.expect("at once").epoch(), 2);
    // Another content is a holder that lives, however long the one before it was unchanged.
    a.faults.set(Fault::Full);
    assert!(a.election.look().await.is_ok());
    pass(15).await;
    assert!(a.election.look().await.is_err());
    b.lead().await.expect("its own lock");
    a.faults.set(Fault::None);
    assert!(a.lead().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn renewals_keep_the_epoch_and_one_may_fail() {
    let store = MemoryStore::default();
    let (mut a, mut b) = (server(&store, "a"), server(&store, "b"));
    let lead = a.lead().await.unwrap();
    for round in 0..20 {
        pass(5).await;
        if round % 2 == 0 {
            a.faults.set(Fault::Refusing);
            assert!(a.lead().await.is_none());
            assert!(lead.is_valid(), "one failed renewal is no loss");
            a.faults.set(Fault::None);
        }
        assert_eq!(a.lead().await.unwrap().epoch(), 1);
        assert!(b.lead().await.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_was_stopped_finds_out_before_its_next_effect() {
    let store = MemoryStore::default();
    let (mut a, mut b) = (server(&store, "a"), server(&store, "b"));
    let stale = a.lead().await.unwrap();
    b.lead().await;
    pass(15).await;
    let fresh = b.lead().await.expect("took over");
    // As if its clock had stood still while the process was stopped.
    stale.prolong(Instant::now() + Duration::from_mins(1));
    assert!(stale.is_valid());
    assert!(matches!(stale.verify().await, Err(Lost::Ended)));
    assert!(!stale.is_valid());
    fresh.verify().await.unwrap();
    assert!(a.lead().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_lapsed_lead_begins_anew_with_another_epoch() {
    let store = MemoryStore::default();
    let mut a = server(&store, "a");
    let first = a.lead().await.unwrap();
    a.faults.set(Fault::Partitioned);
    pass(11).await;
    assert!(!first.is_valid());
    a.faults.set(Fault::None);
    assert_eq!(a.lead().await.unwrap().epoch(), 2);
    assert!(!first.is_valid(), "the old lead stays ended");
}

#[tokio::test(start_paused = true)]
async fn what_is_no_lock_is_named_and_not_replaced() {
    let store = MemoryStore::default();
    store.put(KEY, b"{}".to_vec(), Expect::Absent).await.unwrap();
    let error = server(&store, "a").election.look().await.unwrap_err().to_string();
    assert!(error.contains(KEY) && error.contains("not a lock"), "{error}");
}

/// Random outages of three candidates: no two leads are valid at once, epochs grow, and the lock is never without a
/// holder for long once storage is well.
#[tokio::test(start_paused = true)]
async fn never_two_leaders_whatever_storage_does() {
    for seed in 0..40u64 {
        let store = MemoryStore::default();
        let mut servers: Vec<Server> = ["a", "b", "c"].iter().map(|name| server(&store, name)).collect();
        let mut leads: Vec<Lead> = Vec::new();
        let mut random = seed;
        for _ in 0..120 {
            for server in &mut servers {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let fault = match random >> 60 {
                    0..4 => Fault::Refusing,
                    4..6 => Fault::Partitioned,
                    6..8 => Fault::Slow(Duration::from_secs(3)),
                    _ => Fault::None,
                };
                server.faults.set(fault);
                if let Some(lead) = server.lead().await
                    && leads.last().is_none_or(|last| last.epoch() != lead.epoch())
                {
                    assert!(leads.iter().all(|earlier| earlier.epoch() < lead.epoch()), "seed {seed}: epochs grow");
                    leads.push(lead);
                }
                assert!(leads.iter().filter(|lead| lead.is_valid()).count() <= 1, "seed {seed}: two leaders");
            }
            pass(1).await;
        }
        assert!(leads.len() > 1, "seed {seed}: leads changed hands");
        for server in &servers {
            server.faults.set(Fault::None);
        }
        pass(15).await;
        for _ in 0..2 {
            for server in &mut servers {
                server.lead().await;
            }
            pass(15).await;
        }
        let mut any = false;
        for server in &mut servers {
            any |= server.lead().await.is_some();
        }
        assert!(any, "seed {seed}: a leader once storage is well");
    }
}
