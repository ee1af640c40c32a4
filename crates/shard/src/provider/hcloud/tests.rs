use plan::shard::config::read;
use serde_json::{Value, json};

use super::*;

fn config(change: impl FnOnce(&mut Value)) -> Value {
    let mut config = json!({
        "cluster": { "id": "prod" },
        "shard": { "id": "fsn1", "provider": { "kind": "hcloud" }, "subnet_pools": { "default": ["fsn1"] } },
        "defaults": { "args": { "location": "fsn1" } },
        "templates": {
            "web": {
                "kind": "web", "arch": "amd64", "subnet_pool": "default", "instance_type": "cx23",
                "args": { "image": "debian-13" },
            },
        },
    });
    change(&mut config);
    config
}

fn found(change: impl FnOnce(&mut Value)) -> Vec<(String, String)> {
    let (config, mut findings) = read(config(change));
    check(&config.expect("it can be read"), &mut findings);
    findings.problems.into_iter().map(|problem| (problem.field, problem.message)).collect()
}

#[track_caller]
fn refused(change: impl FnOnce(&mut Value), field: &str, remedy: &str) {
    let found = found(change);
    assert!(found.len() == 1 && found[0].0 == field && found[0].1.contains(remedy), "{found:?}");
}

#[test]
fn every_wrong_key_is_named_with_its_remedy() {
    assert_eq!(found(|_| {}), []);
    let args =
        |key: &'static str, value: Value| move |config: &mut Value| config["templates"]["web"]["args"][key] = value;
    assert_eq!(found(args("networks", json!(["private", 7]))), []);
    refused(
        |config| config["shard"]["provider"]["token"] = json!("x"),
        "shard.provider",
        "expected one of `token_file`",
    );
    refused(|config| config["templates"]["web"]["instance_type"] = json!(""), "templates.web.instance_type", "cx23");
    refused(|config| config["defaults"] = json!({}), "templates.web.args.location", "such as \"fsn1\"");
    refused(|config| config["templates"]["web"]["args"] = json!({}), "templates.web.args.image", "debian-13");
    refused(args("imge", json!("x")), "templates.web.args.imge", "expected one of `image`");
    refused(args("firewalls", json!("x")), "templates.web.args.firewalls", "correct or remove it");
    refused(args("placement_group", json!(true)), "templates.web.args.placement_group", "a name or a number");
    let hidden = json!({ "enable_ipv4": false, "enable_ipv6": false });
    refused(args("public_net", hidden.clone()), "templates.web.args.public_net", "args.networks");
    let own = json!({ "nstance.dev/shard": "x" });
    refused(args("labels", own), "templates.web.args.labels.nstance.dev/shard", "the shard's own");
    let group = json!({ "default": { "g": { "template": "web", "args": { "public_net": hidden } } } });
    refused(|config| config["groups"] = group, "groups.default.g.args.public_net", "args.networks");
}

#[test]
fn a_group_is_not_blamed_for_its_template() {
    let found = found(|config| {
        config["templates"]["web"]["args"]["imge"] = json!("x");
        config["groups"] = json!({ "default": { "g": { "template": "web", "args": { "ssh_keys": ["me"] } } } });
    });
    let fields: Vec<_> = found.iter().map(|(field, _)| &**field).collect();
    assert_eq!(fields, ["templates.web.args.imge"]);
}

#[test]
fn the_sample_of_the_guide_is_a_configuration() {
    let guide = include_str!("../../../../../docs/guide/hetzner.md");
    let (_, rest) = guide.split_once("```jsonc\n").expect("a sample");
    let (sample, _) = rest.split_once("```").expect("its end");
    let (config, findings) = crate::config::parse(sample);
    assert!(config.is_some() && findings == Findings::default(), "{findings:?}");
}

fn server(status: &str, locked: bool) -> Server {
    let server = json!({
        "id": 42, "name": "web01", "status": status, "created": "2026-01-02T03:04:05+00:00", "locked": locked,
        "labels": { "nstance.dev/instance-id": "web01", "nstance.dev/group": "web", "nstance.dev/on-demand": "true" },
        "server_type": { "id": 1, "name": "cx23" },
    });
    serde_json::from_value(server).unwrap()
}

#[test]
fn a_server_that_is_off_is_down_unless_something_is_under_way() {
    let expected = [
        ("initializing", MachineStatus::Pending, MachineStatus::Pending),
        ("starting", MachineStatus::Pending, MachineStatus::Pending),
        ("running", MachineStatus::Running, MachineStatus::Running),
        ("stopping", MachineStatus::Stopping, MachineStatus::Pending),
        ("off", MachineStatus::Stopped, MachineStatus::Pending),
        ("deleting", MachineStatus::Deleting, MachineStatus::Deleting),
        ("rebuilding", MachineStatus::Repairing, MachineStatus::Repairing),
        ("migrating", MachineStatus::Unknown, MachineStatus::Unknown),
        ("hibernating", MachineStatus::Unknown, MachineStatus::Unknown),
    ];
    for (said, at_rest, locked) in expected {
        assert_eq!((status(&server(said, false)), status(&server(said, true))), (at_rest, locked), "{said}");
    }
    let machine = machine(&server("running", false)).unwrap();
    assert_eq!((&*machine.provider_id, &*machine.group, machine.on_demand), ("42", "web", true));
    let mut bare = server("running", false);
    bare.labels.clear();
    assert_eq!(super::machine(&bare), None, "it says not whose it is");
}

#[test]
fn what_kept_the_provider_from_it_has_a_class() {
    let refused = |status, code: &str| {
        let cause = hetzner::Cause::Refused {
            status,
            code: code.to_owned(),
            message: "no".to_owned(),
            retry_after: Some(Duration::from_secs(9)),
        };
        let ProviderError { class, message, retry_after } =
            failed(&hetzner::Error { operation: "POST /servers".to_owned(), cause });
        assert!(message.starts_with("POST /servers: no") && message.contains("; "), "{message}");
        (class, retry_after)
    };
    assert_eq!(refused(412, "resource_unavailable"), (ErrorClass::Capacity, None));
    assert_eq!(refused(429, "rate_limit_exceeded"), (ErrorClass::RateLimited, Some(Duration::from_secs(9))));
    assert_eq!(refused(423, "locked"), (ErrorClass::Locked, None));
    assert_eq!(refused(401, "unauthorized"), (ErrorClass::Unauthorized, None));
    assert_eq!(refused(403, "forbidden"), (ErrorClass::Unauthorized, None));
    assert_eq!(refused(422, "invalid_input"), (ErrorClass::Invalid, None));
    assert_eq!(refused(403, "resource_limit_exceeded"), (ErrorClass::Invalid, None));
    assert_eq!(refused(503, "unavailable"), (ErrorClass::Transient, None));
}

#[test]
fn without_a_token_it_does_not_open_and_a_new_one_needs_no_restart() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    let environment = |token: Option<&str>| Environment { token: token.map(hetzner::Token::new), endpoint: None };
    let open = |settings: &Settings, token| {
        Access::open(settings, &environment(token), TIMES).err().map(|error| error.message)
    };
    let none = open(&Settings::default(), None).unwrap();
    assert!(none.contains("HCLOUD_TOKEN"), "{none}");
    assert_eq!(open(&Settings::default(), Some("a")), None);
    let settings = Settings { token_file: Some(file.clone()), ..Settings::default() };
    let missing = open(&settings, Some("a")).unwrap();
    assert!(missing.contains(file.to_str().unwrap()), "the file counts: {missing}");
    std::fs::write(&file, " \n").unwrap();
    assert!(open(&settings, None).unwrap().contains("is empty"));
    let bad = Settings { endpoint: Some("api.hetzner.cloud".to_owned()), ..Settings::default() };
    assert!(open(&bad, Some("a")).unwrap().contains("https://api.hetzner.cloud/v1"));

    std::fs::write(&file, "first\n").unwrap();
    let access = Access::open(&settings, &Environment::default(), TIMES).unwrap();
    access.client().unwrap();
    let cause = hetzner::Cause::Refused {
        status: 401,
        code: "unauthorized".to_owned(),
        message: "unable to authenticate".to_owned(),
        retry_after: None,
    };
    access.note(&hetzner::Error { operation: "GET /servers".to_owned(), cause });
    let refused = access.client().unwrap_err();
    assert!(refused.class == ErrorClass::Unauthorized && refused.message.contains("unable to"), "{refused:?}");
    assert!(!format!("{refused:?}").contains("first"));
    std::fs::write(&file, "second\n").unwrap();
    access.client().expect("another token is tried at once");
}
