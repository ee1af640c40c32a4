//! Releases that wait for one another.

use plan::releases::cycle;
use serde_json::json;

use super::world::World;

#[test]
fn w33_a_cycle_is_shown_as_a_way_back() {
    let needs = |name: &str| match name {
        "a" => vec!["x".to_owned(), "b".to_owned()],
        "b" => vec!["a".to_owned()],
        _ => vec![],
    };
    assert_eq!(cycle("a", needs), Some(vec!["a".into(), "b".into(), "a".into()]));
    assert_eq!(cycle("x", needs), None);
}

#[test]
fn w33_a_chain_of_any_length_is_searched_with_little_stack_and_little_work() {
    // Far less than a thread has; a call per link would need many times as much.
    let small = std::thread::Builder::new().stack_size(128 << 10);
    let search = small.spawn(|| {
        let looked = std::cell::Cell::new(0);
        let needs = |name: &str| {
            looked.set(looked.get() + 1);
            let number: u32 = name.parse().unwrap();
            vec![if number == 100_000 { "0".to_owned() } else { (number + 1).to_string() }]
        };
        assert_eq!(cycle("0", needs), None);
        assert!(looked.get() <= 1001, "{} releases were looked at", looked.get());
        cycle("99500", needs)
    });
    let found = search.unwrap().join().expect("the stack suffices");
    assert_eq!(found, None, "too long to be found");
    let ring = |name: &str| vec![((name.parse::<u32>().unwrap() + 1) % 500).to_string()];
    let mut world = World::new(json!({}));
    world.observed.cycle = cycle("0", ring);
    let message = world.rest().blocked.remove(0).message;
    assert!(message.starts_with("cycle: 0 → 1 → ") && message.ends_with(" → 499 → 0"), "{message}");
    assert!(message.contains(" → … 481 more … → ") && message.len() < 300, "{message}");
}
