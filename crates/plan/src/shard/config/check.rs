//! What is wrong with a configuration: each finding names its field and the remedy.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{Config, StaticGroup, Template};
use crate::shard::{id, refusal::Refusal};

/// The providers this server has.
const PROVIDERS: [&str; 2] = ["process", "hcloud"];

/// Features of the original that are cut: their keys are ignored, and named.
const CUT: [(&str, &str); 3] =
    [("load_balancers", "load balancers"), ("images", "image refresh"), ("files", "file push")];

/// Keys of the original that are written otherwise here.
const RENAMED: [(&str, &str); 6] = [
    ("shard.infra", "write shard.provider instead, with the kind `process` or `hcloud`"),
    ("shard.leader_election", "write shard.election instead, with frequent, infrequent and leader_timeout"),
    ("shard.bind", "remove it; the addresses are flags of `strata shard run`"),
    (
        "shard.advertise",
        "remove it; `strata shard run --advertise-host` says under which names others reach the server",
    ),
    ("cluster.secrets", "remove it; `strata shard init --encryption-key-file` seals the cluster's keys"),
    ("cluster.storage", "remove it; --storage names the one place of all objects"),
];

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub field: String,
    pub message: String,
}

/// Everything that was found. With problems the configuration is not used; warnings are only shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    pub problems: Vec<Problem>,
    pub warnings: Vec<Problem>,
}

impl Findings {
    fn problem(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.problems.push(Problem { field: field.into(), message: message.into() });
    }

    fn name(&mut self, field: &str, name: &str) {
        if let Err(Refusal { message, .. }) = id::check(field, name) {
            let text = message.strip_prefix(field).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(&message);
            self.problem(field, text);
        }
    }
}

/// Reads a configuration from its JSON value and checks it. `None` when it cannot be read at all.
pub fn read(mut value: Value) -> (Option<Config>, Findings) {
    let mut findings = Findings::default();
    if !value.is_object() {
        findings.problem("config", "must be an object: {\"cluster\": …, \"shard\": …}");
        return (None, findings);
    }
    cut(&mut value, "", &mut findings);
    userdata(&mut value, &mut findings);
    if let Ok(config) = serde_json::from_value::<Config>(value.clone()) {
        check(&config, &mut findings);
        return (Some(config), findings);
    }
    unreadable(&value, "", &serde_json::from_value::<Config>, &mut findings);
    (None, findings)
}

/// Names every smallest part that cannot be read, and says whether there is one. Every field has a default, so that each
/// part is read alone: `read` makes a whole configuration of it.
fn unreadable(
    part: &Value,
    path: &str,
    read: &dyn Fn(Value) -> Result<Config, serde_json::Error>,
    findings: &mut Findings,
) -> bool {
    let Err(error) = read(part.clone()) else { return false };
    let mut is_named = false;
    // Where not even an empty object is read, the key itself is wrong, not what is in it.
    let inside = part.as_object().filter(|_| read(Value::Object(Map::new())).is_ok());
    for (key, inner) in inside.into_iter().flatten() {
        let alone = |inner| read(Value::Object(Map::from_iter([(key.clone(), inner)])));
        is_named |= unreadable(inner, &join(path, key), &alone, findings);
    }
    if !is_named {
        let renamed = RENAMED.iter().find(|(key, _)| *key == path);
        let remedy =
            renamed.map_or_else(|| format!("{error}; correct or remove it"), |(_, remedy)| (*remedy).to_owned());
        findings.problem(if path.is_empty() { "config" } else { path }, remedy);
    }
    true
}

/// The original writes userdata as an object with its source, and once for all templates that have none.
fn userdata(value: &mut Value, findings: &mut Findings) {
    let defaults = value.get_mut("defaults").and_then(Value::as_object_mut);
    let default = defaults.and_then(|defaults| defaults.remove("userdata"));
    let default = default.map(|default| userdata_text(default, "defaults.userdata", findings));
    let Some(templates) = value.get_mut("templates").and_then(Value::as_object_mut) else { return };
    for (name, template) in templates {
        let Some(template) = template.as_object_mut() else { continue };
        let path = format!("templates.{name}.userdata");
        let own = template.remove("userdata").map(|own| userdata_text(own, &path, findings));
        if let Some(text) = own.or_else(|| default.clone()) {
            template.insert("userdata".to_owned(), text);
        }
    }
}

fn userdata_text(value: Value, path: &str, findings: &mut Findings) -> Value {
    let Value::Object(mut object) = value else { return value };
    let source = object.remove("source").unwrap_or_default();
    let content = object.remove("content").unwrap_or_default();
    let is_inline = source.is_null() || source == "" || source == "inline";
    if is_inline && content.is_string() && object.is_empty() {
        return content;
    }
    let message = match object.keys().next() {
        _ if !is_inline => format!("the source {source} is not supported; put the text itself here"),
        Some(key) => format!("the key {key:?} is not known; write the text itself, or {{\"content\": TEXT}}"),
        None => "has no content; write the text itself, or {\"content\": TEXT}".to_owned(),
    };
    findings.problem(path, message);
    Value::String(String::new())
}

/// Takes the keys of cut features out, at the places where the original has them.
fn cut(value: &mut Value, path: &str, findings: &mut Findings) {
    let Value::Object(object) = value else { return };
    let holder = path.is_empty() || path.starts_with("templates.") || path.starts_with("groups.");
    for (key, feature) in CUT.into_iter().filter(|_| holder) {
        if object.remove(key).is_some() {
            let message = format!("{feature} are not supported: the key has no effect; remove it");
            findings.warnings.push(Problem { field: join(path, key), message });
        }
    }
    for (key, inner) in object {
        let deeper = join(path, key);
        if matches!(path, "" | "templates" | "groups") || path.starts_with("groups.") && path.matches('.').count() == 1
        {
            cut(inner, &deeper, findings);
        }
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// Checks what the types do not.
pub fn check(config: &Config, findings: &mut Findings) {
    findings.name("cluster.id", &config.cluster.id);
    findings.name("shard.id", &config.shard.id);
    provider(config, findings);
    times(config, findings);
    pools(config, findings);
    for (name, template) in &config.templates {
        check_template(config, name, template, findings);
    }
    for (tenant, groups) in &config.groups {
        findings.name(&format!("groups.{tenant}"), tenant);
        for (key, group) in groups {
            check_group(config, &format!("groups.{tenant}.{key}"), key, group, findings);
        }
    }
}

fn provider(config: &Config, findings: &mut Findings) {
    let (kind, supported) = (&*config.shard.provider.kind, PROVIDERS.join(", "));
    if !PROVIDERS.contains(&kind) {
        let message = match kind {
            "aws" | "google" | "gcp" | "proxmox" | "tmux" | "mock" => {
                format!("the provider {kind:?} of the original is not supported; supported: {supported}")
            }
            _ => format!("{kind:?} is not a provider; supported: {supported}"),
        };
        findings.problem("shard.provider.kind", message);
    }
    for (name, arch) in &config.shard.provider.instance_types {
        if !is_arch(arch) {
            findings.problem(format!("shard.provider.instance_types.{name}"), "must be amd64 or arm64");
        }
    }
}

fn times(config: &Config, findings: &mut Findings) {
    let shard = &config.shard;
    let collection = &shard.garbage_collection;
    let positive = [
        ("shard.request_timeout", shard.request_timeout),
        ("shard.health_check_interval", shard.health_check_interval),
        ("shard.garbage_collection.interval", collection.interval),
        ("shard.election.frequent", shard.election.frequent),
    ];
    for (field, span) in positive {
        if span.get().is_zero() {
            findings.problem(field, "must be longer than 0");
        }
    }
    if collection.registration_timeout <= collection.interval {
        let message = format!("must exceed garbage_collection.interval ({})", collection.interval);
        findings.problem("shard.garbage_collection.registration_timeout", message);
    }
    let timing = shard.election.timing();
    if timing.valid() <= timing.renew {
        let message = "must be at least twice election.frequent: one renewal may fail";
        findings.problem("shard.election.leader_timeout", message);
    }
    if let (Some(eligible), Some(forced)) = (shard.expiry.eligible_age, shard.expiry.forced_age)
        && forced <= eligible
    {
        findings.problem("shard.expiry.forced_age", format!("must exceed expiry.eligible_age ({eligible})"));
    }
    let ages = [
        ("eligible_age", shard.expiry.eligible_age),
        ("forced_age", shard.expiry.forced_age),
        ("ondemand_age", shard.expiry.ondemand_age),
    ];
    for (name, _) in ages.iter().filter(|(_, age)| age.is_some_and(|age| age.get().is_zero())) {
        findings.problem(format!("shard.expiry.{name}"), "must be longer than 0; remove it for no expiry");
    }
    for (name, lifetime) in [("operator", config.certificates.operator), ("agent", config.certificates.agent)] {
        if lifetime.ttl == Some(0) {
            findings.problem(format!("certificates.{name}.ttl"), "must be at least 1 hour; remove it for the default");
        }
    }
    if shard.create_rate_limit == Some(0) {
        findings.problem("shard.create_rate_limit", "must be at least 1 per minute; remove it for no limit");
    }
}

fn pools(config: &Config, findings: &mut Findings) {
    let pools = &config.shard.subnet_pools;
    if pools.is_empty() {
        findings.problem("shard.subnet_pools", "at least one pool is needed");
    }
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
    for (pool, subnets) in pools {
        let field = format!("shard.subnet_pools.{pool}");
        findings.name(&field, pool);
        if subnets.is_empty() {
            findings.problem(&field, "at least one subnet of the provider is needed");
        }
        for subnet in subnets {
            if let Some(other) = owners.insert(subnet, pool) {
                findings.problem(&field, format!("subnet {subnet:?} is in {other:?} already; a subnet has one pool"));
            }
        }
    }
    for pool in config.shard.dynamic_subnet_pools.iter().filter(|pool| !pools.contains_key(*pool)) {
        let message = format!("{pool:?} is not a subnet pool; known: {}", names(pools.keys()));
        findings.problem("shard.dynamic_subnet_pools", message);
    }
}

fn check_template(config: &Config, name: &str, template: &Template, findings: &mut Findings) {
    let field = |part: &str| format!("templates.{name}.{part}");
    findings.name(&format!("templates.{name}"), name);
    if !id::is_kind(&template.kind) {
        findings.problem(field("kind"), "must be exactly three lower-case letters: instance ids begin with it");
    }
    if !is_arch(&template.arch) {
        findings.problem(field("arch"), "must be amd64 or arm64");
    }
    if template.size.is_some_and(|size| size < 0) {
        findings.problem(field("size"), "must be at least 0");
    }
    pool(config, field("subnet_pool"), &template.subnet_pool, findings);
    instance_type(config, field("instance_type"), template, &template.instance_type, findings);
}

fn check_group(config: &Config, path: &str, key: &str, group: &StaticGroup, findings: &mut Findings) {
    let field = |part: &str| format!("{path}.{part}");
    findings.name(path, key);
    if group.size.is_some_and(|size| size < 0) {
        findings.problem(field("size"), "must be at least 0");
    }
    let Some(template) = config.templates.get(&group.template) else {
        let known = names(config.templates.keys());
        findings.problem(field("template"), format!("{:?} is not a template; known: {known}", group.template));
        return;
    };
    if group.subnet_pool.is_empty() && template.subnet_pool.is_empty() {
        findings.problem(field("subnet_pool"), "neither the group nor its template names a subnet pool");
    }
    pool(config, field("subnet_pool"), &group.subnet_pool, findings);
    instance_type(config, field("instance_type"), template, &group.instance_type, findings);
}

fn pool(config: &Config, field: String, pool: &str, findings: &mut Findings) {
    if !pool.is_empty() && !config.shard.subnet_pools.contains_key(pool) {
        let known = names(config.shard.subnet_pools.keys());
        findings.problem(field, format!("{pool:?} is not a subnet pool; known: {known}"));
    }
}

fn instance_type(config: &Config, field: String, template: &Template, name: &str, findings: &mut Findings) {
    if let Err(refusal) = config.check_instance_type(template, name) {
        let message = refusal.message.trim_start_matches("instance_type: ");
        findings.problem(field, message);
    }
}

fn is_arch(arch: &str) -> bool {
    matches!(arch, "amd64" | "arm64")
}

fn names<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let all: BTreeSet<_> = names.map(String::as_str).collect();
    if all.is_empty() { "none".to_owned() } else { all.into_iter().collect::<Vec<_>>().join(", ") }
}

#[cfg(test)]
mod tests;
