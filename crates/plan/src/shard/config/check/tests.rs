use serde_json::json;

use super::*;

fn good() -> Value {
    json!({
        "cluster": {"id": "dev"},
        "shard": {
            "id": "dev-1",
            "provider": {"kind": "process", "kubeconfig": "/tmp/k"},
            "subnet_pools": {"one": ["s1"], "two": ["s2", "s3"]},
        },
        "templates": {"web": {"kind": "web", "arch": "amd64", "subnet_pool": "one"}},
        "groups": {"default": {"web": {"template": "web", "size": 1}}},
    })
}

#[track_caller]
fn check_one(pointer: &str, value: Value, field: &str, text: &str) {
    let mut config = good();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = if parent.is_empty() { &mut config } else { config.pointer_mut(parent).expect("a place") };
    parent.as_object_mut().unwrap().insert(key.to_owned(), value);
    let (_, findings) = read(config);
    let found = findings.problems.iter().find(|problem| problem.field == field);
    assert!(found.is_some_and(|problem| problem.message.contains(text)), "{field}: {findings:?}");
}

#[test]
fn a_good_configuration_has_no_findings_and_its_defaults() {
    let (config, findings) = read(good());
    assert_eq!(findings, Findings::default());
    let config = config.unwrap();
    assert_eq!(config.drain_timeout().as_secs(), 300);
    assert_eq!(config.shard.garbage_collection.registration_timeout.get().as_secs(), 300);
    assert_eq!(config.shard.provider.settings["kubeconfig"], "/tmp/k");
}

#[test]
fn every_problem_names_its_field_and_the_remedy() {
    check_one("/cluster/id", json!("Dev"), "cluster.id", "not a name");
    check_one("/shard/id", json!(""), "shard.id", "not a name");
    check_one("/groups/default/Bad", json!({"template": "web"}), "groups.default.Bad", "not a name");
    check_one("/groups/a--b", json!({}), "groups.a--b", "not a name");
    check_one("/groups/default/web/template", json!("none"), "groups.default.web.template", "known: web");
    check_one("/groups/default/web/subnet_pool", json!("none"), "groups.default.web.subnet_pool", "known: one, two");
    check_one("/groups/default/web/size", json!(-1), "groups.default.web.size", "at least 0");
    check_one("/templates/web/kind", json!("webs"), "templates.web.kind", "three lower-case letters");
    check_one("/templates/web/kind", json!("we1"), "templates.web.kind", "three lower-case letters");
    check_one("/templates/web/arch", json!("x86"), "templates.web.arch", "amd64 or arm64");
    check_one("/templates/web/size", json!(-1), "templates.web.size", "at least 0");
    check_one("/shard/subnet_pools", json!({}), "shard.subnet_pools", "at least one");
    check_one("/shard/subnet_pools", json!({"one": []}), "shard.subnet_pools.one", "at least one");
    check_one("/shard/subnet_pools", json!({"one": ["s"], "two": ["s"]}), "shard.subnet_pools.two", "one pool");
    check_one("/shard/dynamic_subnet_pools", json!(["x"]), "shard.dynamic_subnet_pools", "known: one, two");
    let expiry = json!({"eligible_age": "2h", "forced_age": "1h"});
    check_one("/shard/expiry", expiry, "shard.expiry.forced_age", "must exceed expiry.eligible_age (2h)");
    let collection = json!({"interval": "10m"});
    check_one("/shard/garbage_collection", collection, "shard.garbage_collection.registration_timeout", "(10m)");
    check_one("/shard/election", json!({"leader_timeout": "6s"}), "shard.election.leader_timeout", "twice");
    check_one("/shard/create_rate_limit", json!(0), "shard.create_rate_limit", "at least 1");
    check_one("/shard/provider", json!({"kind": "aws"}), "shard.provider.kind", "of the original is not supported");
    check_one("/shard/provider", json!({"kind": "x"}), "shard.provider.kind", "supported: process");
    check_one("/certificates", json!({"agent": {"ttl": 0}}), "certificates.agent.ttl", "at least 1 hour");
    check_one("/shard/request_timeout", json!("soon"), "shard.request_timeout", "not a duration");
    check_one("/shards", json!({}), "shards", "unknown field `shards`");
    check_one("/shard/election", json!({"frequent": 5}), "shard.election.frequent", "invalid type");
    check_one("/templates/web/size", json!("two"), "templates.web.size", "invalid type");
    check_one("/groups/default/web/drain_timeout", json!("-1s"), "groups.default.web.drain_timeout", "not a duration");
    check_one("/groups/default/web", json!("x"), "groups.default.web", "invalid type");
    check_one("/shard/infra", json!({"provider": "tmux"}), "shard.infra", "write shard.provider instead");
}

#[test]
fn all_that_cannot_be_read_is_named_at_once() {
    let mut config = good();
    config["shard"]["idd"] = json!("x");
    config["shard"]["leader_election"] = json!({"frequent_interval": "1s"});
    config["templates"]["web"]["size"] = json!("two");
    let (config, findings) = read(config);
    assert!(config.is_none());
    let fields: Vec<_> = findings.problems.iter().map(|problem| &*problem.field).collect();
    assert_eq!(fields, ["shard.idd", "shard.leader_election", "templates.web.size"]);
}

#[test]
fn userdata_of_the_original_is_read_and_its_other_sources_are_named() {
    let template = |userdata: Value| {
        let mut config = good();
        config["templates"]["web"]["userdata"] = userdata;
        config
    };
    let text = |config: Value| {
        let (config, findings) = read(config);
        assert_eq!(findings, Findings::default());
        config.unwrap().templates["web"].userdata.clone()
    };
    assert_eq!(text(template(json!("a"))), "a");
    assert_eq!(text(template(json!({"content": "b"}))), "b");
    assert_eq!(text(template(json!({"source": "inline", "content": "c"}))), "c");
    let mut config = good();
    config["defaults"] = json!({"userdata": {"content": "d"}});
    assert_eq!(text(config.clone()), "d");
    config["templates"]["web"]["userdata"] = json!("own");
    assert_eq!(text(config), "own");
    let field = "templates.web.userdata";
    let url = json!({"source": "url", "content": "https://example.com/x.sh"});
    check_one("/templates/web/userdata", url, field, "\"url\" is not supported; put the text itself here");
    check_one("/templates/web/userdata", json!({"contents": "x"}), field, "\"contents\" is not known");
    check_one("/templates/web/userdata", json!({}), field, "has no content");
    check_one("/templates/web/userdata", json!(7), field, "invalid type");
    check_one("/defaults", json!({"userdata": {"source": "secret"}}), "defaults.userdata", "not supported");
}

#[test]
fn a_drain_timeout_of_zero_means_zero() {
    let mut config = good();
    config["shard"]["default_drain_timeout"] = json!("0");
    let (config, findings) = read(config);
    assert_eq!(findings, Findings::default());
    assert!(config.unwrap().drain_timeout().is_zero());
}

#[test]
fn keys_of_cut_features_are_named_and_have_no_effect() {
    let mut config = good();
    config["load_balancers"] = json!({"lb": {}});
    config["images"] = json!({});
    config["templates"]["web"]["files"] = json!({"a": "b"});
    config["groups"]["default"]["web"]["load_balancers"] = json!(["lb"]);
    let (config, findings) = read(config);
    assert!(config.is_some() && findings.problems.is_empty(), "{findings:?}");
    let mut fields: Vec<_> = findings.warnings.iter().map(|warning| &*warning.field).collect();
    fields.sort_unstable();
    assert_eq!(fields, ["groups.default.web.load_balancers", "images", "load_balancers", "templates.web.files"]);
}
