use std::collections::VecDeque;

use super::*;

const RESYNC: Duration = Duration::from_mins(2);

fn queue() -> Queue {
    Queue::new(Clock::default(), RESYNC)
}

fn key(namespace: &str, name: &str) -> Key {
    Key::new(namespace, name)
}

/// What is ready right now, in order, each taken as running.
async fn ready(queue: &Queue) -> Vec<String> {
    let mut keys = Vec::new();
    while let Ok(turn) = tokio::time::timeout(Duration::ZERO, queue.next()).await {
        keys.push(turn.key.to_string());
    }
    keys
}

#[tokio::test(start_paused = true)]
async fn a_key_runs_once_at_a_time_and_once_more_after_a_change() {
    let queue = queue();
    let a = key("n", "a");
    queue.changed(&a);
    queue.changed(&a);
    assert_eq!(ready(&queue).await, ["n/a"]);
    queue.changed(&a);
    queue.changed(&a);
    assert_eq!(ready(&queue).await, [""; 0]);
    queue.done(&a, Next::Settled, false);
    assert_eq!(ready(&queue).await, ["n/a"]);
}

#[tokio::test(start_paused = true)]
async fn namespaces_take_turns() {
    let queue = queue();
    for name in ["1", "2", "3", "4"] {
        queue.changed(&key("big", name));
    }
    queue.changed(&key("small", "x"));
    assert_eq!(ready(&queue).await, ["big/1", "small/x", "big/2", "big/3", "big/4"]);
}

#[tokio::test(start_paused = true)]
async fn changes_go_before_resyncs_and_a_resync_can_turn_urgent() {
    let queue = queue();
    for name in ["1", "2", "3"] {
        queue.changed(&key("n", name));
    }
    ready(&queue).await;
    for name in ["1", "2", "3"] {
        queue.done(&key("n", name), Next::Settled, false);
    }
    tokio::time::advance(RESYNC * 2).await;
    queue.lock().fire_timers(Instant::now());
    queue.changed(&key("n", "9"));
    queue.changed(&key("n", "3"));
    assert_eq!(ready(&queue).await[..2], ["n/9", "n/3"]);
}

#[tokio::test(start_paused = true)]
async fn a_due_look_has_the_urgency_of_a_change_and_a_resync_has_not() {
    let queue = queue();
    let (look, resync, change) = (key("looks", "a"), key("resyncs", "a"), key("changes", "a"));
    for key in [&look, &resync] {
        queue.changed(key);
        queue.next().await;
    }
    queue.done(&resync, Next::Settled, false);
    queue.done(&look, Next::Look(RESYNC), false);
    tokio::time::advance(RESYNC * 2).await;
    queue.lock().fire_timers(Instant::now());
    queue.changed(&change);
    // Later than both changes, though it was due as early as the look.
    assert_eq!(ready(&queue).await.last().unwrap(), "resyncs/a");
    queue.done(&look, Next::Look(RESYNC * 2), false);
    tokio::time::advance(RESYNC * 2).await;
    queue.lock().fire_timers(Instant::now());
    queue.changed(&key("changes", "b"));
    assert_eq!(ready(&queue).await, ["changes/b", "looks/a"], "the resync came before the look was due");
}

#[tokio::test(start_paused = true)]
async fn a_namespace_whose_rounds_hang_leaves_a_slot_for_the_looks_of_another() {
    let queue = queue();
    queue.slots(10);
    let other = key("other", "ended");
    queue.changed(&other);
    queue.next().await;
    queue.done(&other, Next::Look(Duration::from_secs(10)), false);
    for number in 0..150 {
        queue.changed(&key("hanging", &number.to_string()));
    }
    let hang = async || {
        let keys = ready(&queue).await;
        assert!(keys.len() == 8 && keys.iter().all(|key| key.starts_with("hanging/")), "{keys:?}");
        keys
    };
    // Each round takes the whole request timeout and fails; the look is due while the second lot hangs.
    let first = hang().await;
    tokio::time::advance(Duration::from_millis(9_950)).await;
    for key in first {
        let name = key.split_once('/').unwrap().1;
        queue.done(&self::key("hanging", name), Next::Failed(Class::Transient, None), false);
    }
    hang().await;
    tokio::time::advance(Duration::from_millis(100)).await;
    assert_eq!(ready(&queue).await, ["other/ended"]);
}

/// Lets a key fail until it stands behind all changes.
async fn keep_failing(queue: &Queue, key: &Key) {
    queue.changed(key);
    for _ in 0..KEEPS_FAILING {
        queue.next().await;
        queue.done(key, Next::Failed(Class::Transient, None), false);
    }
}

#[tokio::test(start_paused = true)]
async fn the_reserve_is_one_slot_per_idle_namespace_and_never_for_keys_that_keep_failing() {
    let queue = queue();
    queue.slots(8);
    let failing = key("failing", "a");
    keep_failing(&queue, &failing).await;
    for namespace in ["a", "b", "c"] {
        for number in 0..9 {
            queue.changed(&key(namespace, &number.to_string()));
        }
    }
    queue.changed(&key("d", "0"));
    queue.changed(&key("e", "0"));
    // Six slots by turns, then the reserve of two: for the namespaces that run nothing.
    let keys = ["a/0", "b/0", "c/0", "d/0", "e/0", "a/1"];
    assert_eq!(ready(&queue).await, keys);
    queue.changed(&key("f", "0"));
    tokio::time::advance(RESYNC).await;
    assert_eq!(ready(&queue).await, ["f/0"], "one slot is left, and not for the key that keeps failing");
    for key in ["a/0", "a/1"] {
        let (namespace, name) = key.split_once('/').unwrap();
        queue.done(&self::key(namespace, name), Next::Settled, false);
    }
    // One beyond the reserve, by turns, and one of the reserve for the namespace that runs nothing now.
    assert_eq!(ready(&queue).await, ["b/1", "a/2"], "changes go before the key that keeps failing");
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_changes_delays_what_keeps_failing_elsewhere_but_does_not_stop_it() {
    let queue = queue();
    queue.slots(4);
    let failing = key("small", "failing");
    keep_failing(&queue, &failing).await;
    for number in 0..100 {
        queue.changed(&key("big", &number.to_string()));
    }
    tokio::time::advance(RESYNC).await;
    let mut before = 0;
    loop {
        let next = queue.next().await.key;
        if next == failing {
            break;
        }
        before += 1;
        queue.done(&next, Next::Again, false);
    }
    assert_eq!(before, 16);
}

#[tokio::test(start_paused = true)]
async fn changes_in_more_namespaces_than_there_are_slots_do_not_stop_what_keeps_failing() {
    let queue = queue();
    queue.slots(10);
    let failing = key("small", "failing");
    keep_failing(&queue, &failing).await;
    for number in 0..12 {
        queue.changed(&key(&number.to_string(), "a"));
    }
    tokio::time::advance(RESYNC).await;
    let mut running = VecDeque::from(ready(&queue).await);
    assert_eq!(running.len(), 10);
    let mut ended = 0;
    while !running.contains(&failing.to_string()) {
        let first = running.pop_front().unwrap();
        queue.done(&key(first.split_once('/').unwrap().0, "a"), Next::Again, false);
        ended += 1;
        running.extend(ready(&queue).await);
    }
    // Ten began before and six then.
    assert_eq!(ended, 7);
}

#[tokio::test(start_paused = true)]
async fn rounds_that_hang_of_what_keeps_failing_take_one_slot_from_changes() {
    let queue = queue();
    let failing: Vec<Key> = (0..20).map(|number| key("sick", &number.to_string())).collect();
    for key in &failing {
        queue.changed(key);
    }
    for _ in 0..KEEPS_FAILING {
        for _ in &failing {
            queue.next().await;
        }
        for key in &failing {
            queue.done(key, Next::Failed(Class::Transient, None), false);
        }
    }
    queue.slots(10);
    for number in 0..100 {
        queue.changed(&key("big", &number.to_string()));
    }
    tokio::time::advance(RESYNC).await;
    // All of the big namespace end at once, those of the sick one never.
    let rounds = async |count: usize| {
        let mut hanging = Vec::new();
        for _ in 0..count {
            for began in ready(&queue).await {
                match began.split_once('/').unwrap() {
                    ("big", name) => {
                        queue.done(&key("big", name), Next::Again, false);
                    }
                    (_, name) => hanging.push(key("sick", name)),
                }
            }
        }
        hanging
    };
    let first = rounds(100).await;
    assert_eq!(first.len(), 1);
    queue.done(&first[0], Next::Failed(Class::Transient, None), false);
    let second = rounds(100).await;
    assert!(second.len() == 1 && second != first, "{second:?}");
}

#[tokio::test(start_paused = true)]
async fn what_keeps_failing_takes_no_slot_beyond_those_of_its_namespace() {
    let queue = queue();
    keep_failing(&queue, &key("hanging", "failing")).await;
    queue.slots(10);
    for number in 0..20 {
        queue.changed(&key("hanging", &number.to_string()));
    }
    assert_eq!(ready(&queue).await.len(), 8);
    let calm = key("calm", "a");
    queue.changed(&calm);
    tokio::time::advance(RESYNC).await;
    for _ in 0..100 {
        assert_eq!(ready(&queue).await, ["calm/a"]);
        queue.done(&calm, Next::Again, false);
    }
}

#[tokio::test(start_paused = true)]
async fn one_namespace_uses_all_slots_but_a_quarter() {
    for (slots, taken) in [(1, 1), (2, 1), (3, 2), (4, 3), (10, 8)] {
        let queue = queue();
        queue.slots(slots);
        for number in 0..20 {
            queue.changed(&key("n", &number.to_string()));
        }
        assert_eq!(ready(&queue).await.len(), taken, "of {slots} slots");
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_keeps_failing_stands_behind_changes_and_before_resyncs() {
    let queue = queue();
    let (failing, settled) = (key("n", "failing"), key("n", "settled"));
    for key in [&failing, &settled] {
        queue.changed(key);
        queue.next().await;
    }
    queue.done(&settled, Next::Settled, false);
    for _ in 1..KEEPS_FAILING {
        queue.done(&failing, Next::Failed(Class::Transient, None), false);
        queue.next().await;
    }
    queue.done(&failing, Next::Failed(Class::Transient, None), false);
    tokio::time::advance(RESYNC * 2).await;
    queue.lock().fire_timers(Instant::now());
    queue.changed(&key("n", "change"));
    assert_eq!(ready(&queue).await, ["n/change", "n/failing", "n/settled"]);
}

#[tokio::test(start_paused = true)]
async fn settled_keys_come_back_after_the_resync_period() {
    let queue = queue();
    let a = key("n", "a");
    queue.changed(&a);
    ready(&queue).await;
    queue.done(&a, Next::Settled, false);
    tokio::time::advance(RESYNC * 8 / 10).await;
    assert_eq!(ready(&queue).await, [""; 0]);
    tokio::time::advance(RESYNC * 4 / 10).await;
    assert_eq!(ready(&queue).await, ["n/a"]);
}

#[tokio::test(start_paused = true)]
async fn retries_grow_up_to_the_resync_period_and_success_resets_them() {
    let queue = queue();
    let a = key("n", "a");
    queue.changed(&a);
    let mut delays = Vec::new();
    for _ in 0..16 {
        let before = Instant::now();
        queue.next().await;
        delays.push(before.elapsed());
        queue.done(&a, Next::Failed(Class::Transient, None), false);
    }
    assert!(delays[1] < Duration::from_millis(120));
    assert!(delays[1..10].windows(2).all(|pair| pair[1] > pair[0]));
    assert!(delays.iter().all(|delay| *delay <= RESYNC * 11 / 10));
    queue.next().await;
    queue.done(&a, Next::Again, false);
    queue.next().await;
    queue.done(&a, Next::Failed(Class::Transient, None), false);
    let before = Instant::now();
    queue.next().await;
    assert!(before.elapsed() < Duration::from_millis(120));
}

#[tokio::test(start_paused = true)]
async fn the_server_may_ask_for_more_patience() {
    let queue = queue();
    let a = key("n", "a");
    queue.changed(&a);
    queue.next().await;
    queue.done(&a, Next::Failed(Class::Transient, Some(Duration::from_secs(7))), false);
    let before = Instant::now();
    queue.next().await;
    assert!(before.elapsed() >= Duration::from_secs(7));
}

#[tokio::test(start_paused = true)]
async fn a_change_cuts_a_delay_short() {
    let queue = queue();
    let a = key("n", "a");
    queue.changed(&a);
    queue.next().await;
    queue.done(&a, Next::Failed(Class::Terminal, None), false);
    assert_eq!(ready(&queue).await, [""; 0]);
    queue.changed(&a);
    assert_eq!(ready(&queue).await, ["n/a"]);
}

#[tokio::test(start_paused = true)]
async fn no_change_shortens_what_the_server_asked_for() {
    let queue = queue();
    let a = key("n", "a");
    queue.changed(&a);
    queue.next().await;
    let asked = Duration::from_secs(30);
    queue.done(&a, Next::Failed(Class::Transient, Some(asked)), false);
    let before = Instant::now();
    for _ in 0..3 {
        tokio::time::advance(Duration::from_secs(5)).await;
        queue.changed(&a);
        assert_eq!(ready(&queue).await, [""; 0]);
    }
    queue.next().await;
    assert_eq!(before.elapsed(), asked);
}

/// How long each of thirty rounds waits after its failure while a change comes every `period`.
async fn delays_with_changes_every(queue: &Queue, key: &Key, period: Duration) -> Vec<Duration> {
    queue.changed(key);
    let mut delays = Vec::new();
    for _ in 0..30 {
        let before = Instant::now();
        while tokio::time::timeout(period, queue.next()).await.is_err() {
            queue.changed(key);
        }
        delays.push(before.elapsed());
        queue.done(key, Next::Failed(Class::Transient, None), false);
    }
    delays.split_off(1)
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_changes_does_not_defeat_the_growing_delay() {
    let queue = queue();
    let a = key("n", "a");
    let delays = delays_with_changes_every(&queue, &a, Duration::from_millis(50)).await;
    assert!(delays[..11].windows(2).all(|pair| pair[1] > pair[0]), "{delays:?}");
    assert!(delays[12..].iter().all(|delay| *delay >= RESYNC * 4 / 5), "{delays:?}");
}

#[tokio::test(start_paused = true)]
async fn an_edit_of_a_key_that_has_failed_for_long_is_tried_at_once() {
    let queue = queue();
    let a = key("n", "a");
    queue.changed(&a);
    for _ in 0..20 {
        // A retry by itself, and an edit that does not help either.
        for is_edit in [false, true] {
            queue.next().await;
            queue.done(&a, Next::Failed(Class::Transient, None), false);
            if is_edit {
                tokio::time::advance(Duration::from_millis(1)).await;
                queue.changed(&a);
                assert_eq!(ready(&queue).await, ["n/a"]);
                queue.done(&a, Next::Failed(Class::Transient, None), false);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_others_keep_undoing_cools_down_and_recovers() {
    let queue = queue();
    let a = key("n", "a");
    let started = Instant::now();
    for _ in 0..BURST + 10 {
        queue.changed(&a);
        queue.next().await;
        queue.done(&a, Next::Again, true);
    }
    let spent = started.elapsed();
    assert!(spent >= COOL_DOWN * 9 && spent <= COOL_DOWN * 11, "{spent:?}");
    tokio::time::advance(COOL_DOWN * BURST).await;
    let started = Instant::now();
    queue.changed(&a);
    queue.next().await;
    assert_eq!(started.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn forgotten_keys_leave_nothing_behind() {
    let queue = queue();
    let a = key("n", "a");
    queue.changed(&a);
    queue.next().await;
    queue.done(&a, Next::Forget, false);
    assert_eq!(queue.depth().known, 0);
    assert!(queue.lock().timers.is_empty());
    queue.changed(&a);
    queue.next().await;
    queue.changed(&a);
    queue.done(&a, Next::Forget, false);
    assert_eq!(ready(&queue).await, ["n/a"]);
}

#[tokio::test(start_paused = true)]
async fn a_round_that_only_reports_counts_against_the_burst_too() {
    let queue = queue();
    let a = key("n", "a");
    let started = Instant::now();
    for _ in 0..BURST + 10 {
        queue.changed(&a);
        queue.next().await;
        queue.done(&a, Next::Settled, true);
    }
    assert!(started.elapsed() >= COOL_DOWN * 9, "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_standby_remembers_nothing_and_looks_at_everything_on_taking_the_lead() {
    let queue = queue();
    queue.changed(&key("n", "a"));
    queue.changed(&key("n", "b"));
    let running = queue.next().await.key;
    queue.pause();
    queue.changed(&key("n", "c"));
    assert_eq!(queue.depth().known, 1);
    assert!(queue.done(&running, Next::Settled, false), "it was the last of its namespace");
    assert_eq!((queue.depth().known, queue.depth().queued), (0, 0));
    queue.resume([key("n", "d")]);
    assert_eq!(ready(&queue).await, ["n/d"]);
}

#[tokio::test(start_paused = true)]
async fn a_change_during_a_failed_run_does_not_shorten_what_the_server_asked_for() {
    let queue = queue();
    let a = key("n", "a");
    queue.changed(&a);
    queue.next().await;
    queue.changed(&a);
    queue.done(&a, Next::Failed(Class::Transient, Some(Duration::from_hours(24))), false);
    let before = Instant::now();
    queue.next().await;
    assert_eq!(before.elapsed(), RESYNC);
}

#[tokio::test(start_paused = true)]
async fn a_status_that_was_put_off_is_not_put_off_behind_all_others() {
    let queue = queue();
    let (put_off, second) = (key("big", "new"), Duration::from_secs(1));
    queue.changed(&put_off);
    queue.next().await;
    queue.put_off(&put_off, second);
    for name in ["1", "2", "3"] {
        queue.changed(&key("big", name));
    }
    queue.changed(&key("small", "x"));
    queue.done(&put_off, Next::Again, true);
    // Its pod was seen: no reason to forget when its time is over.
    queue.changed(&put_off);
    assert_eq!(queue.next().await.key, key("big", "1"), "the others go first");
    tokio::time::advance(second).await;
    assert_eq!(ready(&queue).await, ["small/x", "big/new", "big/2", "big/3"], "and other namespaces keep their turn");
    queue.done(&put_off, Next::Settled, true);
    tokio::time::advance(second).await;
    assert_eq!(ready(&queue).await, [""; 0], "once is enough");
}

#[tokio::test(start_paused = true)]
async fn a_namespace_keeps_its_turn_when_its_only_key_is_overdue() {
    let queue = queue();
    let (put_off, second) = (key("a", "new"), Duration::from_secs(1));
    queue.changed(&put_off);
    queue.next().await;
    queue.put_off(&put_off, second);
    queue.done(&put_off, Next::Again, true);
    for namespace in ["b", "c", "d"] {
        queue.changed(&key(namespace, "other"));
    }
    tokio::time::advance(second).await;
    assert_eq!(ready(&queue).await, ["a/new", "b/other", "c/other", "d/other"]);
}

#[tokio::test(start_paused = true)]
async fn a_status_that_was_put_off_waits_no_longer_than_that_without_a_change() {
    let queue = queue();
    let (put_off, second) = (key("n", "new"), Duration::from_secs(1));
    queue.changed(&put_off);
    queue.next().await;
    queue.put_off(&put_off, second);
    queue.done(&put_off, Next::Settled, true);
    assert_eq!(ready(&queue).await, [""; 0]);
    tokio::time::advance(second).await;
    assert_eq!(ready(&queue).await, ["n/new"]);
}
