//! A panic in a round.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use runtime::Key;

use crate::{
    plain::{self, Plain},
    world::{World, run, until},
};

#[tokio::test]
async fn a_panic_ends_its_round_only_and_is_counted_and_retried() -> Result<()> {
    let world = World::new("panic").await?;
    let mut operator = world.operator();
    // The resync brings no rounds meanwhile.
    let queue = operator.queue(Duration::from_hours(1));
    let (performers, metrics) = (plain::kind(&operator, ["shaky", "calm"]), operator.metrics.clone());
    let rounds = Arc::<AtomicU32>::default();
    let shaken = rounds.clone();
    let gather = move |key: Key| {
        let is_well = &*key.name != "shaky" || shaken.fetch_add(1, Ordering::SeqCst) >= 2;
        async move { assert!(is_well, "shaken") }
    };
    for key in performers.store().keys() {
        queue.changed(&key);
    }
    operator.control(Plain::new(performers, gather), queue, 1);
    run(operator).await?;
    let expected = [
        r#"controller_runtime_reconcile_panics_total{controller="plain"} 2"#,
        r#"controller_runtime_reconcile_errors_total{controller="plain"} 2"#,
        r#"controller_runtime_reconcile_total{controller="plain",result="success"} 2"#,
    ];
    let are_counted = || expected.iter().all(|line| metrics.encode().unwrap().contains(line));
    until("both objects had a good round", are_counted).await?;
    assert_eq!(rounds.load(Ordering::SeqCst), 3);
    Ok(())
}
