use super::*;
use crate::shard::config::Span;

fn config() -> Config {
    let template = |kind: &str, pool: &str| Template {
        kind: kind.to_owned(),
        arch: "amd64".to_owned(),
        subnet_pool: pool.to_owned(),
        instance_type: "small".to_owned(),
        vars: BTreeMap::from([("a".to_owned(), "template".to_owned()), ("b".to_owned(), "template".to_owned())]),
        ..Template::default()
    };
    let mut config = Config::default();
    config.defaults.vars = BTreeMap::from([("a".to_owned(), "default".to_owned()), ("z".to_owned(), "default".into())]);
    config.shard.subnet_pools =
        BTreeMap::from([("one".to_owned(), vec!["s1".to_owned()]), ("two".to_owned(), vec!["s2".to_owned()])]);
    config.templates = BTreeMap::from([
        ("web".to_owned(), template("web", "one")),
        ("bare".to_owned(), template("bar", "")),
        ("listed".to_owned(), Template { instance_types: vec!["big".to_owned()], ..template("lis", "one") }),
    ]);
    let fixed = StaticGroup {
        template: "web".to_owned(),
        size: Some(2),
        vars: BTreeMap::from([("b".to_owned(), "static".to_owned())]),
        drain_timeout: Some(Span::seconds(0)),
        ..StaticGroup::default()
    };
    config.groups = BTreeMap::from([("default".to_owned(), BTreeMap::from([("fixed".to_owned(), fixed)]))]);
    config
}

fn request(change: impl FnOnce(&mut Upsert)) -> Upsert {
    let mut request = Upsert { template: "web".to_owned(), size: 3, ..Upsert::default() };
    change(&mut request);
    request
}

fn id(number: u128) -> InstanceId {
    InstanceId::new("web", number)
}

/// Applies the request to a shard without dynamic groups.
fn apply(key: &str, request: &Upsert) -> Result<Group, Refusal> {
    let (config, mut dynamic) = (config(), Dynamic::default());
    let entry = upsert(&config, &dynamic, ("default", key), request, &BTreeSet::new())?;
    dynamic.set("default", key, Some(entry));
    Ok(effective(&config, &dynamic, "default", key).expect("the group that was just stored"))
}

#[track_caller]
fn refused(key: &str, change: impl FnOnce(&mut Upsert), code: Code, text: &str) {
    let refusal = apply(key, &request(change)).unwrap_err();
    assert_eq!(refusal.code, code, "{refusal}");
    assert!(refusal.message.contains(text), "{refusal}");
}

#[test]
fn a70_a_static_group_keeps_its_place_and_takes_size_type_and_vars() {
    let before = effective(&config(), &Dynamic::default(), "default", "fixed").unwrap();
    assert_eq!((before.size, before.is_static, &*before.subnet_pool), (2, true, "one"));
    assert_eq!(before.drain_timeout, Duration::ZERO, "0 means 0");
    let group = apply(
        "fixed",
        &request(|request| {
            request.instance_type = "large".to_owned();
            request.vars = BTreeMap::from([("c".to_owned(), "dynamic".to_owned())]);
        }),
    )
    .unwrap();
    assert_eq!((group.size, &*group.template, &*group.instance_type), (3, "web", "large"));
    assert_eq!(group.vars, BTreeMap::from([("b".into(), "static".into()), ("c".into(), "dynamic".into())]));
    let all: Vec<_> = group.blueprint.vars.iter().map(|(key, value)| format!("{key}={value}")).collect();
    assert_eq!(all, ["a=template", "b=static", "c=dynamic", "z=default"]);
}

#[test]
fn a31_what_the_configuration_says_of_a_static_group_stays() {
    refused("fixed", |request| request.template = "bare".into(), Code::FailedPrecondition, "config.template");
    refused("fixed", |request| request.subnet_pool = "one".into(), Code::FailedPrecondition, "config.subnet_pool");
    let args = |request: &mut Upsert| request.args = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
    refused("fixed", args, Code::FailedPrecondition, "config.args");
    refused("dynamic", args, Code::InvalidArgument, "config.args");
    apply("fixed", &request(|request| request.template.clear())).unwrap();
}

#[test]
fn a86_bad_groups_have_their_code_and_name_the_field() {
    refused("dynamic", |request| request.size = -1, Code::InvalidArgument, "config.size");
    refused("dynamic", |request| request.size = i32::MAX, Code::InvalidArgument, "config.size");
    refused("dynamic", |request| request.template.clear(), Code::InvalidArgument, "config.template");
    refused("dynamic", |request| request.template = "none".into(), Code::NotFound, "config.template");
    refused("dynamic", |request| request.subnet_pool = "none".into(), Code::InvalidArgument, "config.subnet_pool");
    refused("dynamic", |request| request.template = "bare".into(), Code::InvalidArgument, "config.subnet_pool");
    refused("Bad", |_| {}, Code::InvalidArgument, "key: ");
    refused("", |_| {}, Code::InvalidArgument, "key: ");
    refused("dynamic", |request| request.remove_first = vec!["x".into()], Code::InvalidArgument, "remove_first");
    let long = |request: &mut Upsert| request.vars = BTreeMap::from([("v".to_owned(), "x".repeat(5000))]);
    refused("dynamic", long, Code::InvalidArgument, "config.vars");
    let many = |request: &mut Upsert| {
        request.vars = (0..200).map(|n| (n.to_string(), String::new())).collect();
    };
    refused("dynamic", many, Code::InvalidArgument, "config.vars");
}

#[test]
fn a83_an_instance_type_must_be_allowed_by_the_template() {
    let listed = |name: &str| {
        let name = name.to_owned();
        request(move |request| {
            request.template = "listed".to_owned();
            request.instance_type = name;
        })
    };
    apply("dynamic", &listed("big")).unwrap();
    let refusal = apply("dynamic", &listed("small")).unwrap_err();
    assert_eq!(refusal.code, Code::InvalidArgument);
    let mut config = config();
    config.shard.provider.instance_types =
        BTreeMap::from([("x".to_owned(), "amd64".to_owned()), ("y".to_owned(), "arm64".to_owned())]);
    for (name, fine) in [("x", true), ("y", false), ("unknown", false), ("", true)] {
        for key in ["fixed", "dynamic"] {
            let request = request(|request| request.instance_type = name.to_owned());
            let outcome = upsert(&config, &Dynamic::default(), ("default", key), &request, &BTreeSet::new());
            assert_eq!(outcome.is_ok(), fine, "{name} {key}: {outcome:?}");
        }
    }
}

#[test]
fn empty_fields_never_clear_and_pools_may_be_closed() {
    let (mut config, mut dynamic) = (config(), Dynamic::default());
    let none = BTreeSet::new();
    let full = request(|request| {
        request.instance_type = "large".to_owned();
        request.subnet_pool = "two".to_owned();
        request.vars = BTreeMap::from([("v".to_owned(), "1".to_owned())]);
    });
    dynamic.set("default", "d", Some(upsert(&config, &dynamic, ("default", "d"), &full, &none).unwrap()));
    let bare = Upsert { size: 0, ..Upsert::default() };
    let entry = upsert(&config, &dynamic, ("default", "d"), &bare, &none).unwrap();
    assert_eq!((&*entry.template, &*entry.instance_type, &*entry.subnet_pool), ("web", "large", "two"));
    assert_eq!((entry.size, entry.vars.len()), (0, 1));
    config.shard.dynamic_subnet_pools = vec!["one".to_owned()];
    assert!(upsert(&config, &dynamic, ("default", "d"), &full, &none).unwrap_err().message.contains("not open"));
}

#[test]
fn marks_go_first_when_the_size_changes_and_are_replaced_when_it_stays() {
    let (config, mut dynamic) = (config(), Dynamic::default());
    let living = BTreeSet::from([id(1), id(2)]);
    let marked = |size, ids: &[u128]| {
        request(|request| {
            request.size = size;
            request.remove_first = ids.iter().map(|number| id(*number).to_string()).collect();
        })
    };
    let mut put = |request: &Upsert, living: &BTreeSet<InstanceId>| {
        let entry = upsert(&config, &dynamic, ("default", "d"), request, living).unwrap();
        dynamic.set("default", "d", Some(entry.clone()));
        (entry.remove_first, entry.replace)
    };
    assert_eq!(put(&marked(3, &[]), &living), (vec![], BTreeSet::new()));
    assert_eq!(put(&marked(3, &[2, 9]), &living), (vec![], BTreeSet::from([id(2)])), "id 9 is gone already");
    assert_eq!(put(&marked(3, &[]), &living), (vec![], BTreeSet::from([id(2)])), "accepted, so it goes on");
    assert_eq!(put(&marked(2, &[2]), &living), (vec![id(2)], BTreeSet::new()));
    assert_eq!(put(&marked(2, &[1]), &living), (vec![], BTreeSet::from([id(1)])));
    assert_eq!(put(&marked(2, &[]), &BTreeSet::new()), (vec![], BTreeSet::new()), "it is replaced");
}

#[test]
fn a81_an_override_of_a_group_that_was_static_keeps_template_and_pool() {
    let (mut old, mut dynamic) = (config(), Dynamic::default());
    old.groups.get_mut("default").unwrap().get_mut("fixed").unwrap().subnet_pool = "two".to_owned();
    let entry = upsert(&old, &dynamic, ("default", "fixed"), &request(|_| {}), &BTreeSet::new()).unwrap();
    dynamic.set("default", "fixed", Some(entry));
    let new = Config { groups: BTreeMap::new(), ..old.clone() };
    let known = effective(&new, &dynamic, "default", "fixed").expect("also if no server saw the change");
    assert_eq!((&*known.template, &*known.subnet_pool), ("web", "two"));
    // An override that an older server stored, without either.
    let bare = DynamicGroup { size: 3, ..DynamicGroup::default() };
    dynamic.set("default", "fixed", Some(bare));
    let dynamic = after_refresh(&old, &new, &dynamic);
    let group = effective(&new, &dynamic, "default", "fixed").unwrap();
    assert_eq!((&*group.template, &*group.subnet_pool, group.is_static), ("web", "two", false));
    assert_eq!(after_refresh(&new, &new, &dynamic), dynamic);
}

#[test]
fn a_deleted_override_leaves_the_static_group_and_no_empty_tenant() {
    let (config, mut dynamic) = (config(), Dynamic::default());
    dynamic.set("default", "fixed", Some(DynamicGroup { size: 7, ..DynamicGroup::default() }));
    assert_eq!(effective(&config, &dynamic, "default", "fixed").unwrap().size, 7);
    dynamic.set("default", "fixed", None);
    assert_eq!(effective(&config, &dynamic, "default", "fixed").unwrap().size, 2);
    assert_eq!(dynamic, Dynamic::default());
    assert_eq!(all(&config, &dynamic), BTreeSet::from([("default".into(), "fixed".into())]));
}

#[test]
fn the_etag_names_the_group_and_not_its_counts() {
    let group = effective(&config(), &Dynamic::default(), "default", "fixed").unwrap();
    // printf '{"instance_type":"","is_static":true,"key":"fixed","size":2,"subnet_pool":"one","template":"web",
    // "tenant":"default","vars":{"b":"static"}}' | md5sum, in one line
    assert_eq!(group.etag(), "d31243fa48692fb91952e77f8d41dc27");
}

#[test]
fn only_what_needs_another_machine_changes_the_hash() {
    let group = |change: &dyn Fn(&mut Config)| {
        let mut config = config();
        change(&mut config);
        effective(&config, &Dynamic::default(), "default", "fixed").unwrap().blueprint.hash
    };
    let same = group(&|_| {});
    let template =
        |config: &mut Config, change: &dyn Fn(&mut Template)| change(config.templates.get_mut("web").unwrap());
    assert_eq!(group(&|config| template(config, &|template| template.vars.clear())), same);
    assert_ne!(group(&|config| template(config, &|template| template.userdata = "x".into())), same);
    assert_ne!(group(&|config| template(config, &|template| template.instance_type = "x".into())), same);
    assert_ne!(group(&|config| template(config, &|template| template.subnet_pool = "two".into())), same);
    assert_ne!(
        group(&|config| {
            config.defaults.args.insert("a".into(), 1.into());
        }),
        same
    );
}

#[test]
fn a86_requests_one_after_the_other_take_no_more_than_the_tenants_share() {
    let (config, mut dynamic) = (config(), Dynamic::default());
    let with_vars = |from: usize, length: usize| {
        let vars = (from..from + 100).map(|number| (format!("v{number}"), "x".repeat(length))).collect();
        request(|request| request.vars = vars)
    };
    let set = |dynamic: &Dynamic, key: &str, request: &Upsert| {
        upsert(&config, dynamic, ("default", key), request, &BTreeSet::new())
    };
    let first = set(&dynamic, "web", &with_vars(0, 1)).unwrap();
    dynamic.set("default", "web", Some(first));
    assert!(set(&dynamic, "web", &with_vars(0, 2)).is_ok(), "the same vars again");
    let refusal = set(&dynamic, "web", &with_vars(100, 1)).unwrap_err();
    assert!(refusal.code == Code::InvalidArgument && refusal.message.starts_with("config.vars"), "{refusal}");
    for key in ["a", "b"] {
        assert!(check_share(&dynamic, "default").is_ok());
        let entry = set(&dynamic, key, &with_vars(0, 4000)).unwrap();
        dynamic.set("default", key, Some(entry));
    }
    let entry = set(&dynamic, "c", &with_vars(0, 4000)).unwrap();
    dynamic.set("default", "c", Some(entry));
    assert_eq!(check_share(&dynamic, "default").unwrap_err().code, Code::ResourceExhausted);
    assert!(check_share(&dynamic, "acme").is_ok(), "another tenant has its own");
}

#[test]
fn a_group_whose_template_or_size_is_lost_is_unknown_and_not_gone() {
    let (config, mut dynamic) = (config(), Dynamic::default());
    let entry = |template: &str, size| DynamicGroup { template: template.to_owned(), size, ..DynamicGroup::default() };
    dynamic.set("default", "good", Some(entry("web", 1)));
    dynamic.set("default", "lost", Some(entry("renamed", 1)));
    dynamic.set("default", "less", Some(entry("web", -1)));
    dynamic.set("default", "fixed", Some(entry("", i32::MAX)));
    for (key, field) in [("lost", "default.lost.template"), ("less", "default.less.size"), ("fixed", "default.fixed")] {
        assert!(unknown(&config, &dynamic, "default", key).unwrap().starts_with(field), "{key}");
        assert_eq!(effective(&config, &dynamic, "default", key), None);
    }
    for key in ["good", "none"] {
        assert_eq!(unknown(&config, &dynamic, "default", key), None);
    }
    assert_eq!(merged(&config, &dynamic, "default", "lost").template, "renamed", "what is known is shown");
    // A request that names what is missing makes it whole.
    let entry = upsert(&config, &dynamic, ("default", "lost"), &request(|_| {}), &BTreeSet::new()).unwrap();
    dynamic.set("default", "lost", Some(entry));
    assert_eq!(effective(&config, &dynamic, "default", "lost").unwrap().size, 3);
}

#[test]
fn missing_groups_are_lost_if_they_were_written_or_an_instance_speaks_for_one() {
    use jiff::Timestamp;

    use crate::shard::instance::{Leaving, Reason};

    let (config, now) = (config(), Timestamp::UNIX_EPOCH);
    let record = |group: &str| Record::new(id(1), ("default", group, "web"), &Blueprint::default(), "s1", now);
    let gone = |record| Record { deleted_at: Some(now), ..record };
    let goes = |record| {
        let leaving = Leaving { reason: Reason::ScaleDown, since: now, delete_at: now };
        Record { leaving: Some(leaving), ..record }
    };
    let unwritten = |records: &[Record]| lost(Some(&config), false, records);
    assert_eq!(unwritten(&[]), None, "a shard that no server has led");
    assert_eq!(unwritten(&[record("fixed"), gone(record("web")), goes(record("web"))]), None, "one without requests");
    assert!(unwritten(&[record("fixed"), record("web")]).is_some_and(|why| why.contains("default.web")));
    assert_eq!(lost(None, false, &[record("web")]), None, "it may be a group of the configuration");
    for config in [Some(&config), None] {
        assert!(lost(config, true, &[]).is_some_and(|why| why.contains("missing")), "it was there");
    }
}
