use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::Affinity;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::fact::{Class, Failure};

fn known<T>(value: T) -> Fact<T> {
    Fact::Known { value, age: Duration::ZERO }
}

fn unknown<T>() -> Fact<T> {
    Fact::Unknown { why: Failure { class: Class::Transient, message: "silent".to_owned() }, last: None }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn wish(group: &str) -> Wish {
    Wish { group: group.to_owned(), ..Wish::default() }
}

fn pod(namespace: &str, name: &str) -> Pod {
    let name = PodName { namespace: namespace.into(), name: name.into(), uid: format!("uid-{namespace}-{name}") };
    Pod { name, wish: Some(wish("web")), created_at: Some(at(100)), is_unschedulable: true, ..Pod::default() }
}

fn observed(pods: Vec<Pod>) -> Observed {
    let groups = BTreeSet::from(["web".to_owned(), "db".to_owned()]);
    Observed {
        namespace: "ours".to_owned(),
        cluster: "dev--default".to_owned(),
        is_paused: false,
        pods: known(pods),
        requests: Vec::new(),
        taken: BTreeSet::new(),
        nodes: BTreeMap::new(),
        node_ages: BTreeMap::new(),
        shards: BTreeMap::from([("a".to_owned(), known(groups)), ("b".to_owned(), known(BTreeSet::new()))]),
        refusals: BTreeMap::new(),
        server_time: Some(at(1000)),
    }
}

fn request(pod: &Pod) -> Request {
    Request {
        name: build::name("ours", &pod.name),
        uid: "machine".to_owned(),
        resource_version: "7".to_owned(),
        is_deleting: false,
        is_paused: false,
        pod: pod.name.clone(),
        now: known(Some(pod.clone())),
        infrastructure: Infrastructure::Present { group: "web".to_owned(), refusal: None },
        node: None,
    }
}

fn look(observed: &Observed) -> Plan {
    plan(observed, &Limits::default())
}

/// With one request for one Pod that is as `change` makes it.
fn of(change: impl FnOnce(&mut Request, &mut Pod)) -> Plan {
    plan(&world(change), &Limits::default())
}

fn world(change: impl FnOnce(&mut Request, &mut Pod)) -> Observed {
    let mut pod = pod("theirs", "job");
    let mut request = request(&pod);
    change(&mut request, &mut pod);
    if request.now.known().is_ok_and(Option::is_some) {
        request.now = known(Some(pod.clone()));
    }
    let is_unbound = pod.node.is_none();
    Observed { requests: vec![request], ..observed(if is_unbound { vec![pod] } else { vec![] }) }
}

fn deletes(plan: &Plan) -> bool {
    matches!(&plan.steps[..], [Step { action: Action::DeleteMachine { uid, .. }, .. }] if uid == "machine")
}

fn reasons(plan: &Plan) -> Vec<&str> {
    plan.notices.iter().map(|notice| notice.event.reason).collect()
}

#[test]
fn a62_a_pod_gets_a_machine_and_then_its_infrastructure() {
    let pod = pod("theirs", "job");
    let plan = look(&observed(vec![pod.clone()]));
    let [Step { action: Action::CreateMachine(body), done: Some(notice) }] = &plan.steps[..] else {
        panic!("{plan:?}")
    };
    let name = body["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("on-demand-job-") && name.len() == "on-demand-job-".len() + 8, "{name}");
    assert_eq!(body["metadata"]["namespace"], "ours");
    assert_eq!(body["metadata"]["labels"]["nstance.dev/on-demand-pod-uid"], "uid-theirs-job");
    assert_eq!(body["metadata"]["annotations"]["nstance.dev/on-demand-pod"], "theirs/job");
    assert_eq!(
        body["spec"],
        json!({
            "clusterName": "dev--default",
            "bootstrap": { "dataSecretName": "" },
            "infrastructureRef": {
                "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "NstanceMachine", "name": name,
            },
        })
    );
    assert_eq!(notice.event.reason, "OnDemandRequested");

    let plan = of(|request, pod| {
        request.infrastructure = Infrastructure::Absent;
        pod.wish.as_mut().unwrap().instance_type = Some("large".to_owned());
    });
    let [Step { action: Action::CreateInfrastructure(body), .. }] = &plan.steps[..] else { panic!("{plan:?}") };
    assert_eq!(body["spec"], json!({ "group": "web", "instanceType": "large" }));
    let owner = &body["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["uid"], &owner["controller"]),
        (&json!("Machine"), &json!("machine"), &json!(true))
    );

    let settled = of(|_, _| {});
    assert_eq!(settled, Plan::default(), "a Pod whose machine is under way needs nothing");
}

#[test]
fn a62_names_are_the_originals_where_they_are_unambiguous_and_never_too_long() {
    let of = |namespace: &str, name: &str| build::name("ours", &pod(namespace, name).name);
    assert_eq!(of("ours", "job"), "on-demand-job");
    assert_ne!(of("theirs", "job"), of("others", "job"));
    let long = "a".repeat(253);
    assert_eq!(of("ours", &long).len(), 63);
    assert_ne!(of("ours", &long), of("ours", &format!("{long}b")));
    assert!(
        !of("theirs", &format!("{}.-.-{}", "a".repeat(40), "b".repeat(40))).contains(".-"),
        "a name has to be valid"
    );
}

#[test]
fn a63_both_generations_of_annotations_count_and_the_newer_wins() {
    let read = |annotations: &[(&str, &str)]| {
        let annotations = annotations.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Wish::read(&annotations, None, None)
    };
    let (new, old) = ("on-demand.nstance.dev/group", "nstance.dev/on-demand-group");
    assert_eq!(read(&[]), None);
    assert_eq!(read(&[(new, "")]), None);
    assert_eq!(read(&[(new, "web")]), Some(wish("web")));
    assert_eq!(read(&[(old, "web")]), Some(wish("web")));
    assert_eq!(read(&[(old, "web"), (new, "web")]), Some(wish("web")));
    let both = read(&[(old, "db"), (new, "web"), ("nstance.dev/on-demand-instance-type", "large")]).unwrap();
    assert_eq!(
        (&*both.group, both.ignored.as_deref(), both.instance_type.as_deref()),
        ("web", Some("db"), Some("large"))
    );

    let mut pod = pod("theirs", "job");
    pod.wish = Some(both);
    let plan = look(&observed(vec![pod]));
    assert_eq!((plan.steps.len(), reasons(&plan)), (1, vec!["GroupAmbiguous"]));
    let note = &plan.notices[0].event.note;
    assert!(note.contains("web of on-demand.nstance.dev/group counts, db of nstance.dev/on-demand-group"), "{note}");
}

#[test]
fn only_pods_that_wait_for_a_node_are_served() {
    for change in [
        |pod: &mut Pod| pod.wish = None,
        |pod: &mut Pod| pod.node = Some("n".into()),
        |pod: &mut Pod| pod.is_terminating = true,
        |pod: &mut Pod| pod.is_finished = true,
        |pod: &mut Pod| pod.is_gated = true,
    ] {
        let mut pod = pod("theirs", "job");
        change(&mut pod);
        assert_eq!(look(&observed(vec![pod.clone()])), Plan::default(), "{pod:?}");
    }
    let paused = Observed { is_paused: true, ..observed(vec![pod("theirs", "job")]) };
    assert_eq!(look(&paused), Plan::default());
    assert_eq!(look(&Observed { pods: unknown(), ..paused }), Plan::default());
}

#[test]
fn the_scheduler_has_a_moment_to_find_a_node() {
    let young =
        |unschedulable| Pod { created_at: Some(at(998)), is_unschedulable: unschedulable, ..pod("theirs", "job") };
    let plan = look(&observed(vec![young(false)]));
    assert_eq!((plan.steps.len(), plan.next_look), (0, Some(Duration::from_secs(3))));
    assert_eq!(look(&observed(vec![young(true)])).steps.len(), 1);
    let old = Pod { is_unschedulable: false, ..pod("theirs", "job") };
    assert_eq!(look(&observed(vec![old])).steps.len(), 1, "another scheduler may say nothing");
}

#[test]
fn a97_a_group_that_no_shard_has_is_named_with_those_there_are() {
    let mut lost = pod("theirs", "job");
    lost.wish = Some(wish("none"));
    let mut observed = observed(vec![lost]);
    let plan = look(&observed);
    assert_eq!((plan.steps.len(), reasons(&plan)), (0, vec!["UnknownGroup"]));
    assert_eq!(plan.notices[0].event.kind, crate::event::EventKind::Warning);
    let note = &plan.notices[0].event.note;
    assert!(note.contains("no shard has the group none") && note.ends_with("db, web"), "{note}");
    observed.shards.insert("b".to_owned(), unknown());
    assert_eq!(look(&observed), Plan::default(), "a silent shard may have it");
}

#[test]
fn the_shard_follows_from_the_annotation_or_the_zones() {
    let failure_domain = |change: fn(&mut Wish)| {
        let mut pod = pod("theirs", "job");
        change(pod.wish.as_mut().unwrap());
        let mut observed = observed(vec![pod]);
        observed.shards.insert("c".to_owned(), known(BTreeSet::from(["web".to_owned()])));
        let plan = look(&observed);
        match plan.steps.first() {
            Some(Step { action: Action::CreateMachine(body), .. }) => {
                body["spec"]["failureDomain"].as_str().map(str::to_owned)
            }
            _ => Some(reasons(&plan).join(" ")),
        }
    };
    assert_eq!(failure_domain(|_| {}), None, "the shard that makes it is chosen later");
    assert_eq!(failure_domain(|wish| wish.shard = Some("c".into())).as_deref(), Some("c"));
    assert_eq!(failure_domain(|wish| wish.shard = Some("b".into())).as_deref(), Some("UnknownGroup"));
    assert_eq!(failure_domain(|wish| wish.shard = Some("z".into())).as_deref(), Some("UnknownShard"));
    assert_eq!(failure_domain(|wish| wish.zones = BTreeSet::from(["b".into(), "c".into()])).as_deref(), Some("c"));
    assert_eq!(failure_domain(|wish| wish.zones = BTreeSet::from(["elsewhere".into()])), None, "no name of a shard");
}

#[test]
fn zones_are_read_from_selector_and_affinity() {
    let annotations = BTreeMap::from([("on-demand.nstance.dev/group".to_owned(), "web".to_owned())]);
    let term = |key: &str, values: &[&str]| json!({ "matchExpressions": [{ "key": key, "operator": "In", "values": values }] });
    let read = |selector: Option<&str>, terms: Vec<serde_json::Value>| {
        let selector =
            selector.map(|zone| BTreeMap::from([("topology.kubernetes.io/zone".to_owned(), zone.to_owned())]));
        let affinity: Affinity = serde_json::from_value(json!({ "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms },
        }}))
        .unwrap();
        Wish::read(&annotations, selector.as_ref(), Some(&affinity)).unwrap().zones.into_iter().collect::<Vec<_>>()
    };
    let zone = "topology.kubernetes.io/zone";
    assert_eq!(read(Some("a"), vec![]), ["a"]);
    assert_eq!(read(None, vec![term(zone, &["a", "b"]), term(zone, &["c"])]), ["a", "b", "c"]);
    assert_eq!(read(None, vec![term(zone, &["a"]), term("other", &["x"])]), [""; 0], "one term leaves the zone open");
}

#[test]
fn a64_a_machine_goes_when_its_pod_is_gone_or_has_ended() {
    assert!(deletes(&of(|request, _| request.now = known(None))));
    let namesake = of(|_, pod| {
        (pod.name.uid, pod.node) = ("another".to_owned(), Some("n".to_owned()));
    });
    assert!(deletes(&namesake), "a namesake is another Pod");
    let ended = of(|_, pod| {
        (pod.is_finished, pod.node) = (true, Some("n".to_owned()));
    });
    assert!(deletes(&ended));
    assert_eq!(ended.steps[0].done.as_ref().unwrap().event.reason, "OnDemandReleased");
    assert!(deletes(&of(|_, pod| pod.wish = None)), "the annotation was removed");
    assert!(deletes(&of(|_, pod| pod.wish = Some(wish("db")))), "the annotation was changed");
    assert_eq!(of(|request, _| request.now = unknown()), Plan::default(), "unknown is not gone");
    let leaving = of(|_, pod| pod.is_terminating = true);
    assert!(deletes(&leaving), "it is never bound, and a finalizer may keep it for ever");
    let running = of(|request, pod| {
        request.node = Some("own".to_owned());
        (pod.is_terminating, pod.node) = (true, Some("own".to_owned()));
    });
    assert_eq!(running, Plan::default(), "it may need its node to end");
    let deleting = of(|request, _| {
        request.now = known(None);
        request.is_deleting = true;
    });
    assert_eq!(deleting.steps, []);
    let paused = of(|request, _| {
        request.now = known(None);
        request.is_paused = true;
    });
    assert_eq!(paused.steps, [], "Cluster API does nothing to it either");
}

#[test]
fn a64_a_machine_goes_some_time_after_its_pod_was_bound_elsewhere() {
    let bound = |scheduled: i64, node: Option<&str>| {
        of(|request, pod| {
            (pod.node, pod.scheduled_at) = (Some("n".to_owned()), Some(at(scheduled)));
            request.node = node.map(str::to_owned);
        })
    };
    assert_eq!(bound(0, Some("n")), Plan::default(), "it is the node that was made for it");
    assert!(deletes(&bound(940, Some("m"))));
    let early = bound(990, Some("m"));
    assert_eq!((early.steps.len(), early.next_look), (0, Some(Duration::from_secs(50))));
}

#[test]
fn a_node_that_may_be_the_pods_own_is_not_taken_for_another() {
    let bound = |change: &dyn Fn(&mut Observed)| {
        let mut observed = world(|_, pod| {
            (pod.node, pod.scheduled_at) = (Some("n".to_owned()), Some(at(100)));
        });
        change(&mut observed);
        look(&observed)
    };
    let open = bound(&|_| {});
    assert_eq!((open.steps.len(), open.wanted), (0, BTreeSet::from(["n".to_owned()])));
    let aged = |second: Option<i64>| {
        move |observed: &mut Observed| {
            observed.node_ages.insert("n".to_owned(), second.map(at));
        }
    };
    assert_eq!(bound(&aged(Some(100))).steps, [], "it was made after the Pod");
    assert!(deletes(&bound(&aged(Some(99)))), "it was there before the Pod");
    assert_eq!(bound(&aged(None)).steps, [], "it is not there");
    assert!(deletes(&bound(&|observed| drop(observed.nodes.insert("n".to_owned(), "pool-member".to_owned())))));
    assert!(deletes(&bound(&|observed| observed.requests[0].infrastructure = Infrastructure::Absent)));
}

#[test]
fn what_a_shard_refuses_is_recorded_cleaned_up_and_tried_again_later() {
    let refused = of(|request, _| {
        request.infrastructure =
            Infrastructure::Present { group: "web".into(), refusal: Some("instance_type: no".into()) };
    });
    assert!(deletes(&refused));
    assert_eq!(reasons(&refused), ["OnDemandRefused"]);
    assert_eq!(refused.refused, [("uid-theirs-job".to_owned(), wish("web"))]);

    let again = |age: u64, group: &str| {
        let mut observed = observed(vec![Pod { wish: Some(wish("web")), ..pod("theirs", "job") }]);
        let known = Refused { wish: wish(group), age: Duration::from_secs(age) };
        observed.refusals.insert("uid-theirs-job".to_owned(), known);
        look(&observed)
    };
    assert_eq!((again(60, "web").steps.len(), again(60, "web").next_look), (0, Some(Duration::from_mins(9))));
    assert_eq!(again(600, "web").steps.len(), 1);
    assert_eq!(again(60, "db").steps.len(), 1, "another wish is another request");
}

#[test]
fn names_of_others_are_left_alone() {
    let mut taken = observed(vec![pod("ours", "job")]);
    taken.taken.insert("on-demand-job".to_owned());
    assert_eq!((look(&taken).steps.len(), reasons(&look(&taken))), (0, vec!["ObjectTaken"]));
    let foreign = of(|request, _| request.infrastructure = Infrastructure::Foreign);
    assert_eq!((foreign.steps.len(), reasons(&foreign)), (0, vec!["ObjectTaken"]));
    let former = Pod { name: PodName { uid: "former".to_owned(), ..pod("ours", "job").name }, ..pod("ours", "job") };
    let mut again = observed(vec![pod("ours", "job")]);
    again.requests = vec![Request { now: known(None), ..request(&former) }];
    assert!(deletes(&look(&again)), "the Machine of the former Pod goes first");
}

#[test]
fn one_namespace_leaves_room_for_another() {
    let mut pods: Vec<Pod> = (0..1000).map(|index| pod("many", &format!("p{index}"))).collect();
    pods.push(Pod { created_at: Some(at(999)), ..pod("few", "only") });
    let plan = look(&observed(pods));
    let of = |step: &Step| match &step.action {
        Action::CreateMachine(body) => body["metadata"]["annotations"]["nstance.dev/on-demand-pod"].to_string(),
        _ => String::new(),
    };
    let places: Vec<String> = plan.steps.iter().map(of).collect();
    assert_eq!(places.iter().filter(|place| place.contains("many/")).count(), 20);
    assert!(places[..2].iter().any(|place| place.contains("few/only")), "{:?}", &places[..2]);
    assert_eq!(reasons(&plan).len(), 980);
    assert!(reasons(&plan).iter().all(|reason| *reason == "OnDemandWaiting"));
}

#[test]
fn namespaces_take_turns_in_what_is_recorded() {
    let mut pods: Vec<Pod> = (0..100).map(|index| pod("many", &format!("p{index}"))).collect();
    pods.push(Pod { created_at: Some(at(999)), wish: Some(wish("none")), ..pod("few", "only") });
    let plan = look(&observed(pods));
    let first: Vec<_> = plan.notices[..2].iter().map(|notice| notice.pod.namespace.as_str()).collect();
    assert!(first.contains(&"few"), "{first:?}");
}

#[test]
fn one_namespace_has_no_more_machines_than_it_may() {
    let limits = Limits { machines: 3, ..Limits::default() };
    let made: Vec<Pod> = (0..3).map(|index| pod("many", &format!("made{index}"))).collect();
    let mut requests: Vec<Request> = made.iter().map(request).collect();
    requests[0].node = Some("n".to_owned());
    requests[1].is_deleting = true;
    let waiting = vec![pod("many", "next"), pod("few", "only")];
    let full = Observed { requests: requests.clone(), ..observed(waiting.clone()) };
    let plan = plan(&full, &limits);
    let [Step { action: Action::CreateMachine(body), .. }] = &plan.steps[..] else { panic!("{plan:?}") };
    assert_eq!(body["metadata"]["annotations"]["nstance.dev/on-demand-pod"], "few/only");
    assert_eq!(reasons(&plan), ["OnDemandLimited"]);
    let note = &plan.notices[0].event.note;
    assert!(note.contains("may have 3") && note.contains("--machines-on-demand-limit"), "{note}");
    requests.pop();
    let open = Observed { requests, ..observed(waiting) };
    assert_eq!(super::plan(&open, &limits).steps.len(), 2, "one is gone");
}

fn any_pod(index: usize) -> impl Strategy<Value = Pod> {
    let node = prop::option::of(prop::sample::select(vec!["own", "old", "other"]));
    let group = prop::option::of(prop::sample::select(vec!["web", "db", "none"]));
    (0..3_usize, group, node, prop::bool::weighted(0.1), prop::bool::weighted(0.1)).prop_map(
        move |(namespace, group, node, is_finished, is_terminating)| Pod {
            wish: group.map(wish),
            scheduled_at: node.map(|_| at(100)),
            node: node.map(|node| format!("{node}-{index}")),
            is_finished,
            is_terminating,
            ..pod(&format!("n{namespace}"), &format!("p{index}"))
        },
    )
}

/// What an API server, Cluster API and the shards make of a plan.
fn carry_out(observed: &mut Observed, plan: &Plan, pods: &[Pod]) {
    for step in &plan.steps {
        match &step.action {
            Action::CreateMachine(body) => {
                let text = |value: &Value| value.as_str().unwrap().to_owned();
                let uid = text(&body["metadata"]["labels"]["nstance.dev/on-demand-pod-uid"]);
                let pod = pods.iter().find(|pod| pod.name.uid == uid).unwrap();
                let name = text(&body["metadata"]["name"]);
                assert!(observed.requests.iter().all(|request| request.name != name && request.pod.uid != uid));
                let infrastructure = Infrastructure::Absent;
                observed.requests.push(Request { uid: name.clone(), name, infrastructure, ..request(pod) });
            }
            Action::CreateInfrastructure(body) => {
                let is_it = |request: &&mut Request| body["metadata"]["name"] == request.name.as_str();
                let request = observed.requests.iter_mut().find(is_it).unwrap();
                assert_eq!(body["metadata"]["ownerReferences"][0]["uid"], request.uid.as_str());
                let group = body["spec"]["group"].as_str().unwrap().to_owned();
                request.infrastructure = Infrastructure::Present { group, refusal: None };
            }
            Action::DeleteMachine { name, .. } => observed.requests.retain(|request| request.name != *name),
        }
    }
}

proptest! {
    // A case is a whole course.
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// However far an earlier process came, planning ends, with one Machine for each Pod that waits and for no other, and
    /// no Machine goes under a Pod that runs on its node.
    #[test]
    fn plans_end_with_one_machine_for_each_pod_that_waits(
        pods in (0..30_usize).prop_flat_map(|count| (0..count).map(any_pod).collect::<Vec<_>>()),
        begun in prop::collection::vec(0..4_u8, 30),
        steps in 1..5_usize,
    ) {
        let unbound = pods.iter().filter(|pod| pod.node.is_none() && pod.wish.is_some()).cloned().collect();
        let mut observed = observed(unbound);
        for (pod, begun) in pods.iter().zip(&begun).filter(|(_, begun)| **begun > 0) {
            let name = build::name("ours", &pod.name);
            let group = pod.wish.as_ref().map_or("web", |wish| &wish.group).to_owned();
            let present = Infrastructure::Present { group, refusal: None };
            let infrastructure = if *begun > 1 { present } else { Infrastructure::Absent };
            let own = pod.node.as_ref().filter(|node| node.starts_with("own") && *begun > 2).cloned();
            let node = own.or_else(|| (*begun > 2).then(|| format!("linked-{name}")));
            observed.requests.push(Request { uid: name.clone(), name, infrastructure, node, ..request(pod) });
        }
        for node in pods.iter().filter_map(|pod| pod.node.clone()) {
            observed.node_ages.insert(node.clone(), Some(at(if node.starts_with("old") { 1 } else { 500 })));
        }
        let limits = Limits { steps, ..Limits::default() };
        let mut rounds = 0;
        loop {
            let plan = plan(&observed, &limits);
            prop_assert!(plan.steps.len() <= steps);
            let restored: Observed = serde_json::from_str(&serde_json::to_string(&observed).unwrap()).unwrap();
            prop_assert_eq!(&super::plan(&restored, &limits), &plan, "as data");
            for step in &plan.steps {
                let Action::DeleteMachine { name, .. } = &step.action else { continue };
                let request = observed.requests.iter().find(|request| request.name == *name).unwrap();
                let now = request.now.known().unwrap().as_ref().unwrap();
                prop_assert!(now.is_finished || now.node.is_none() || now.node != request.node);
            }
            if plan.steps.is_empty() {
                break;
            }
            carry_out(&mut observed, &plan, &pods);
            rounds += 1;
            prop_assert!(rounds < 200, "it does not end");
        }
        let is_served = |pod: &&Pod| look(&super::tests::observed(vec![(*pod).clone()])).steps.len() == 1;
        for pod in pods.iter().filter(is_served) {
            let made = observed.requests.iter().filter(|request| request.pod == pod.name);
            prop_assert!(made.count() == 1, "{:?}", pod);
        }
    }
}
