mod property;

use serde_json::{Value, json};

use super::*;
use crate::fact::{Class, Failure};

const SECOND: Duration = Duration::from_secs(1);

fn known<T>(value: T) -> Fact<T> {
    Fact::Known { value, age: Duration::ZERO }
}

fn unknown<T>(last: Option<T>) -> Fact<T> {
    let why = Failure { class: Class::Transient, message: "no answer".into() };
    Fact::Unknown { why, last: last.map(|last| (last, SECOND)) }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn order() -> Order {
    Order { id: "this".into(), ..Order::default() }
}

/// Cordoned by this drain at second 0.
fn node() -> Node {
    Node { is_cordoned: true, drain: Some("this".into()), drained_since: Some(at(0)), ..Node::default() }
}

fn pod(name: &str) -> Pod {
    Pod {
        name: Name::new("n", name),
        uid: format!("uid-{name}"),
        labels: [("app".to_owned(), "web".to_owned())].into(),
        phase: Phase::Running,
        is_ready: true,
        owner: Owner::Other,
        grace: SECOND,
        bound_at: Some(at(-10)),
        ..Pod::default()
    }
}

fn budget(name: &str, allowed: i32) -> Budget {
    Budget {
        name: Name::new("n", name),
        version: 1,
        selector: serde_json::from_value(json!({"matchLabels": {"app": "web"}})).unwrap(),
        allowed,
        spent: 0,
        healthy: 2 + allowed,
        desired: 2,
        releases_unready: false,
        is_current: true,
    }
}

fn observed(pods: impl IntoIterator<Item = Pod>, budgets: impl IntoIterator<Item = Budget>) -> Observed {
    Observed {
        node: known(Some(node())),
        pods: known(pods.into_iter().collect()),
        budgets: known(budgets.into_iter().collect()),
        namespaces: unknown(None),
        volumes: unknown(None),
        server_time: Some(at(5)),
        has_cordoned: false,
    }
}

fn planned(observed: &Observed) -> Plan {
    plan(&order(), observed, &BTreeMap::new(), None)
}

fn evicted(plan: &Plan) -> Vec<&str> {
    plan.evictions.iter().map(|eviction| eviction.pod.name.as_str()).collect()
}

fn standing<'a>(plan: &'a Plan, name: &str) -> &'a Standing {
    &plan.pods.iter().find(|(pod, _)| pod.name == name).unwrap().1
}

fn attempt(outcome: Outcome, wait: Duration, spends: Option<(&str, u64)>) -> Attempt {
    let spends = spends.map(|(budget, version)| Spends { budget: Name::new("n", budget), version });
    Attempt { outcome, wait, spends }
}

fn attempts(of: impl IntoIterator<Item = (&'static str, Attempt)>) -> BTreeMap<String, Attempt> {
    of.into_iter().map(|(pod, attempt)| (format!("uid-{pod}"), attempt)).collect()
}

#[test]
fn a_node_is_cordoned_before_anything_is_evicted() {
    let free = || Node { uid: "u".into(), version: 7, ..Node::default() };
    let others = Node { drain: Some("another".into()), is_cordoned: true, ..free() };
    let uncordoned = Node { drain: Some("this".into()), ..free() };
    for node in [free(), others, uncordoned] {
        let mut observed = observed([pod("a")], []);
        observed.node = known(Some(node));
        let plan = planned(&observed);
        assert_eq!(plan.cordon, Some(Cordon { uid: "u".into(), version: 7, drain: "this".into() }));
        assert!(plan.evictions.is_empty() && plan.end.is_none());
        assert_eq!(*standing(&plan, "a"), Standing::Holds(Holds::Due));
    }
    let plan = planned(&observed([pod("a")], []));
    assert_eq!((plan.cordon.is_none(), evicted(&plan)), (true, vec!["a"]));
}

#[test]
fn two_drains_of_a_node_do_not_replace_each_others_mark_for_ever() {
    let free = || Node { uid: "u".into(), version: 7, ..node() };
    let others = Node { drain: Some("another".into()), ..free() };
    let uncordoned = Node { is_cordoned: false, ..others.clone() };
    let unmarked = Node { drain: None, ..free() };
    for (node, is_cordon) in [(free(), false), (others, false), (uncordoned, true), (unmarked, true)] {
        let what = format!("{node:?}");
        let observed = Observed { node: known(Some(node)), has_cordoned: true, ..observed([pod("a")], []) };
        let plan = planned(&observed);
        assert_eq!((plan.cordon.is_some(), evicted(&plan).is_empty()), (is_cordon, is_cordon), "{what}");
    }
}

#[test]
fn a45_what_an_eviction_would_not_help_stays() {
    let labelled = |value: &str| Pod { labels: [(POD_LABEL.to_owned(), value.to_owned())].into(), ..pod("a") };
    let stays = |stays| Standing::Stays(stays);
    let goes = || Standing::Holds(Holds::Evicting);
    for (pod, expected) in [
        (Pod { phase: Phase::Completed, ..pod("a") }, stays(Stays::Completed)),
        (Pod { is_mirror: true, ..pod("a") }, stays(Stays::Mirror)),
        (Pod { owner: Owner::DaemonSet, ..pod("a") }, stays(Stays::DaemonSet)),
        (Pod { owner: Owner::Nothing, ..pod("a") }, goes()),
        (Pod { phase: Phase::Pending, ..pod("a") }, goes()),
        (labelled("skip"), stays(Stays::Labelled)),
        (labelled("Skip"), stays(Stays::Labelled)),
        (labelled("wait-completed"), Standing::Holds(Holds::Completes)),
        (labelled("WaitCompleted"), Standing::Holds(Holds::Completes)),
        (labelled("other"), goes()),
        // Clocks of two API servers differ a little.
        (Pod { bound_at: Some(at(2)), ..pod("a") }, goes()),
        (Pod { bound_at: Some(at(3)), ..pod("a") }, stays(Stays::BoundLater)),
        (Pod { bound_at: None, ..pod("a") }, goes()),
        (Pod { ends_at: Some(at(1)), ..pod("a") }, Standing::Holds(Holds::Terminating)),
    ] {
        let plan = planned(&observed([pod.clone()], []));
        assert_eq!(*standing(&plan, "a"), expected, "{pod:?}");
        assert_eq!(plan.end.is_some(), matches!(expected, Standing::Stays(_)), "{pod:?}");
    }
}

#[test]
fn pods_that_nothing_creates_again_are_named() {
    let alone = |name: &str| Pod { owner: Owner::Nothing, ..pod(name) };
    let plan = planned(&observed([pod("a"), alone("b"), Pod { is_mirror: true, ..alone("c") }], []));
    assert_eq!(plan.unmanaged, [Name::new("n", "b")]);
}

#[test]
fn a_cordon_of_unknown_time_leaves_no_pod_out() {
    let mut observed = observed([Pod { bound_at: Some(at(100)), ..pod("a") }], []);
    observed.node = known(Some(Node { drained_since: None, ..node() }));
    assert_eq!(evicted(&planned(&observed)), ["a"]);
}

#[test]
fn tiers_go_one_after_the_other() {
    let critical = |name: &str, priority| Pod { priority, ..pod(name) };
    let rule = |name: &str, behaviour, selector: Value| Rule {
        name: name.into(),
        behaviour,
        machines: vec![],
        pods: vec![PodSelector { selector: serde_json::from_value(selector).unwrap(), namespace: None }],
    };
    let labelled = |name: &str, app: &str| Pod { labels: [("app".to_owned(), app.to_owned())].into(), ..pod(name) };
    let first = rule("first", Behaviour::Drain { order: -3 }, json!({"matchLabels": {"app": "first"}}));
    let last = rule("last", Behaviour::Drain { order: 9 }, json!({"matchLabels": {"app": "last"}}));
    let order = Order { rules: vec![first, last], ..order() };
    let mut pods = vec![
        labelled("last", "last"),
        critical("node", 2_000_001_000),
        critical("cluster", 2_000_000_000),
        critical("high", 1_999_999_999),
        pod("plain"),
        labelled("first", "first"),
    ];
    let mut turns = Vec::new();
    while !pods.is_empty() {
        let plan = plan(&order, &observed(pods.clone(), []), &BTreeMap::new(), None);
        turns.push(evicted(&plan).join(" "));
        // Nothing of the next tier goes while one of this tier is only on its way.
        let on_way = |pod: &Pod| Pod {
            ends_at: plan.evictions.iter().any(|eviction| eviction.uid == pod.uid).then(|| at(9)),
            ..pod.clone()
        };
        let waiting = super::plan(&order, &observed(pods.iter().map(on_way), []), &BTreeMap::new(), None);
        assert!(waiting.evictions.is_empty());
        pods.retain(|pod| plan.evictions.iter().all(|eviction| eviction.uid != pod.uid));
    }
    assert_eq!(turns, ["first", "high plain", "cluster", "node", "last"]);
}

#[test]
fn rules_apply_by_machine_and_cluster_and_the_first_by_name_decides() {
    let labels = |key: &str| Labels::from([(key.to_owned(), "yes".to_owned())]);
    let selector = |key: &str| serde_json::from_value(json!({"matchLabels": {key: "yes"}})).unwrap();
    let rule = |name: &str, machines: Vec<MachineSelector>| Rule {
        name: name.into(),
        behaviour: Behaviour::Skip,
        machines,
        pods: vec![],
    };
    let rules = vec![
        rule("d-other-cluster", vec![MachineSelector { selector: None, cluster: selector("staging") }]),
        rule("c-both", vec![MachineSelector { selector: selector("linux"), cluster: selector("production") }]),
        rule("b-half", vec![MachineSelector { selector: selector("windows"), cluster: selector("production") }]),
        rule("a-all", vec![]),
    ];
    let found = rules_for(rules, &labels("linux"), &labels("production"));
    assert_eq!(found.iter().map(|rule| rule.name.as_str()).collect::<Vec<_>>(), ["a-all", "c-both"]);
}

#[test]
fn a_rule_about_namespaces_waits_until_they_are_known() {
    let pods = vec![PodSelector {
        selector: None,
        namespace: serde_json::from_value(json!({"matchLabels": {"a": "b"}})).unwrap(),
    }];
    let rules = vec![Rule { name: "r".into(), behaviour: Behaviour::Skip, machines: vec![], pods }];
    let order = Order { rules, ..order() };
    assert!(order.asks_for_namespaces());
    let mut observed = observed([pod("a")], []);
    let now = plan(&order, &observed, &BTreeMap::new(), None);
    assert!(now.evictions.is_empty() && matches!(standing(&now, "a"), Standing::Holds(Holds::Unknown { .. })));
    observed.namespaces = known([("n".to_owned(), Labels::from([("a".to_owned(), "b".to_owned())]))].into());
    let now = plan(&order, &observed, &BTreeMap::new(), None);
    assert_eq!(*standing(&now, "a"), Standing::Stays(Stays::Rule("r".into())));
    assert_eq!(now.end, Some(End::Drained));
    observed.namespaces = known([("n".to_owned(), Labels::new())].into());
    assert_eq!(evicted(&plan(&order, &observed, &BTreeMap::new(), None)), ["a"]);
}

#[test]
fn a46_budgets_are_judged_as_the_server_does() {
    let unready = || Pod { is_ready: false, ..pod("a") };
    let short = || Budget { healthy: 1, ..budget("b", 0) };
    for (pod, budget, goes) in [
        (pod("a"), budget("b", 1), true),
        (pod("a"), budget("b", 0), false),
        (pod("a"), Budget { spent: 1, ..budget("b", 1) }, false),
        (pod("a"), Budget { spent: 1, ..budget("b", 2) }, true),
        (pod("a"), Budget { is_current: false, ..budget("b", 1) }, false),
        (pod("a"), Budget { selector: None, ..budget("b", 0) }, true),
        (pod("a"), Budget { name: Name::new("other", "b"), ..budget("b", 0) }, true),
        (Pod { phase: Phase::Pending, ..pod("a") }, budget("b", 0), true),
        (unready(), budget("b", 0), true),
        (unready(), short(), false),
        (unready(), Budget { releases_unready: true, ..short() }, true),
        (unready(), Budget { desired: 0, healthy: 0, ..budget("b", 0) }, false),
    ] {
        let plan = planned(&observed([pod.clone()], [budget.clone()]));
        assert_eq!(evicted(&plan).len(), usize::from(goes), "{pod:?} {budget:?}");
        let is_named = plan.blocked().is_some_and(|(pod, holds)| {
            pod.name == "a" && matches!(holds, Holds::Blocked { budget: Some(name), message } if message.contains(&name.to_string()))
        });
        assert_eq!(is_named, !goes, "{plan:?}");
    }
    let several = planned(&observed([pod("a")], [budget("b", 1), budget("c", 1)]));
    assert!(several.evictions.is_empty());
    assert!(several.leftovers().contains("n/b, n/c"), "{}", several.leftovers());
    let shared = planned(&observed([pod("a"), pod("b"), pod("c")], [budget("b", 2)]));
    assert_eq!(evicted(&shared), ["a", "b"]);
    let mut unreadable = observed([pod("a")], []);
    unreadable.budgets = unknown(Some(vec![budget("b", 0)]));
    assert!(planned(&unreadable).evictions.is_empty(), "known a second ago");
    let Fact::Unknown { last: Some((_, age)), .. } = &mut unreadable.budgets else { unreachable!() };
    *age = 31 * SECOND;
    assert_eq!(evicted(&planned(&unreadable)), ["a"], "the server judges");
    unreadable.budgets = unknown(None);
    assert_eq!(evicted(&planned(&unreadable)), ["a"], "the server judges");
}

#[test]
fn an_eviction_is_not_sent_twice_while_it_may_have_worked() {
    let world = observed([pod("a")], [budget("b", 1)]);
    let refused = || Outcome::Refused("no".into());
    let failed = || Outcome::Failed { message: "no".into(), is_forbidden: false };
    for (attempt, again) in [
        (attempt(Outcome::Sent, Duration::MAX, None), false),
        (attempt(Outcome::Accepted, SECOND, None), false),
        (attempt(Outcome::Accepted, Duration::ZERO, None), true),
        (attempt(failed(), SECOND, None), false),
        (attempt(failed(), Duration::ZERO, None), true),
        (attempt(refused(), SECOND, Some(("b", 1))), false),
        (attempt(refused(), Duration::ZERO, Some(("b", 1))), true),
        // The budget has changed since.
        (attempt(refused(), SECOND, Some(("b", 0))), true),
        (attempt(refused(), SECOND, None), false),
    ] {
        let plan = plan(&order(), &world, &attempts([("a", attempt.clone())]), None);
        assert_eq!(evicted(&plan).len(), usize::from(again), "{attempt:?}");
        assert!(plan.next_look.is_some_and(|look| again || look <= Duration::from_secs(30)));
    }
}

#[test]
fn a_pod_that_only_fails_keeps_no_share_of_a_budget_from_others() {
    let failing = Outcome::Failed { message: "webhook".into(), is_forbidden: true };
    let attempts = attempts([("a", attempt(failing, SECOND, Some(("b", 1))))]);
    let plan = plan(&order(), &observed([pod("a"), pod("b")], [budget("b", 1)]), &attempts, None);
    assert_eq!(evicted(&plan), ["b"]);
}

#[test]
fn a49_a98_past_the_deadline_nothing_is_evicted_and_what_is_left_is_named() {
    let pods = [pod("a"), Pod { ends_at: Some(at(9)), ..pod("b") }];
    let world = observed(pods, [budget("web", 0)]);
    let plan = plan(&order(), &world, &BTreeMap::new(), Some(Duration::ZERO));
    assert_eq!((plan.end, plan.evictions.len()), (Some(End::Expired), 0));
    let warning = plan.warning().unwrap();
    for part in ["2 pods left", "n/a", "PodDisruptionBudget n/web", "n/b (terminating)"] {
        assert!(warning.contains(part), "{warning}");
    }
    let empty = super::plan(&order(), &observed([], []), &BTreeMap::new(), Some(Duration::ZERO));
    assert_eq!((empty.end, empty.warning()), (Some(End::Drained), None));
    let many: Vec<Pod> = (0..20).map(|number| pod(&format!("pod-{number:02}"))).collect();
    let many = super::plan(&order(), &observed(many, [budget("web", 0)]), &BTreeMap::new(), Some(Duration::ZERO));
    assert!(many.leftovers().contains("20 pods left") && many.leftovers().ends_with("and 12 more"));
}

#[test]
fn before_the_deadline_a_later_tier_gets_its_chance_within_its_budget() {
    let held = Pod { ends_at: Some(at(60)), ..pod("held") };
    let critical = Pod { priority: 2_000_000_000, grace: 10 * SECOND, ..pod("critical") };
    let world = |budgets: &[Budget]| observed([held.clone(), critical.clone()], budgets.to_vec());
    let at = |left: u32, budgets: &[Budget]| plan(&order(), &world(budgets), &BTreeMap::new(), Some(left * SECOND));
    let early = at(20, &[]);
    assert!(early.evictions.is_empty());
    assert_eq!(early.next_look, Some(5 * SECOND), "just before its last call");
    assert_eq!(evicted(&at(15, &[])), ["critical"]);
    assert!(at(15, &[budget("b", 0)]).evictions.is_empty());
}

#[test]
fn nothing_ends_on_what_is_not_known() {
    let mut world = observed([], []);
    world.pods = unknown(None);
    let plan = planned(&world);
    assert_eq!((plan.end, plan.unknown.len()), (None, 1));
    world.pods = unknown(Some(vec![pod("a")]));
    assert_eq!(evicted(&planned(&world)), ["a"], "what was there may be asked to go");
    world.pods = known(vec![]);
    world.node = unknown(Some(Some(node())));
    assert_eq!(planned(&world).end, None);
    world.node = unknown(Some(None));
    assert_eq!(planned(&world).end, None);
    let expired = super::plan(&order(), &world, &BTreeMap::new(), Some(Duration::ZERO));
    assert_eq!(expired.end, Some(End::Expired));
    assert!(expired.warning().unwrap().contains("not known: the node: no answer"));
    world.node = known(None);
    assert_eq!(planned(&world).end, Some(End::NodeGone), "also while its pods are not known");
}

#[test]
fn a_node_out_of_reach_confirms_no_end() {
    let mut world = observed([Pod { ends_at: Some(at(7)), ..pod("a") }], []);
    world.node = known(Some(Node { is_unreachable: true, volumes_attached: ["v".to_owned()].into(), ..node() }));
    let waiting = plan(&Order { waits_for_volumes: true, ..order() }, &world, &BTreeMap::new(), None);
    assert_eq!((waiting.end, waiting.next_look), (None, Some(3 * SECOND)), "its grace has not passed");
    world.server_time = Some(at(8));
    let over = plan(&Order { waits_for_volumes: true, ..order() }, &world, &BTreeMap::new(), None);
    assert_eq!(*standing(&over, "a"), Standing::Stays(Stays::Lost));
    assert_eq!(over.end, Some(End::Drained), "and nothing detaches its volumes");
    world.server_time = None;
    assert_eq!(planned(&world).end, None);
}

#[test]
fn volumes_of_evicted_pods_are_waited_for_and_those_of_pods_that_stay_are_not() {
    let order = Order { waits_for_volumes: true, ..order() };
    let planned = |world: &Observed| plan(&order, world, &BTreeMap::new(), None);
    let mut world = observed([], []);
    world.node = known(Some(Node { volumes_attached: ["v1".to_owned(), "v2".to_owned()].into(), ..node() }));
    let waiting = planned(&world);
    assert_eq!((waiting.volumes.len(), waiting.end, waiting.asks_for_volumes), (2, None, false));
    assert!(waiting.leftovers().contains("volumes still attached: v1, v2"));
    assert_eq!(plan(&super::tests::order(), &world, &BTreeMap::new(), None).end, Some(End::Drained));

    let daemon = Pod { owner: Owner::DaemonSet, claims: ["data".to_owned()].into(), ..pod("daemon") };
    world.pods = known(vec![daemon]);
    let asking = planned(&world);
    assert!(asking.asks_for_volumes && asking.end.is_none());
    world.volumes = known([("v1".to_owned(), Name::new("n", "data")), ("v2".to_owned(), Name::new("n", "x"))].into());
    assert_eq!(planned(&world).volumes, ["v2"]);
    world.node = known(Some(Node { volumes_attached: ["v1".to_owned()].into(), ..node() }));
    assert_eq!(planned(&world).end, Some(End::Drained));
}

#[test]
fn what_is_observed_survives_being_written_down() {
    let world = observed([pod("a"), Pod { ends_at: Some(at(1)), ..pod("b") }], [budget("b", 1)]);
    let text = serde_json::to_string(&world).unwrap();
    let read: Observed = serde_json::from_str(&text).unwrap();
    assert_eq!(planned(&read), planned(&world));
}

#[test]
fn waits_grow_and_are_bounded() {
    let failed = Outcome::Failed { message: String::new(), is_forbidden: false };
    let waits: Vec<u64> = (0..8).map(|failures| retry_after(&failed, failures).as_secs()).collect();
    assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30, 30]);
    assert_eq!(retry_after(&Outcome::Refused(String::new()), 3).as_secs(), 10);
}
