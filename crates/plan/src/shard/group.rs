//! What a group is: its static part from the configuration under its dynamic part from requests.

mod dynamic;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use md5::{Digest as _, Md5};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::Sha256;

use super::{
    config::{Config, StaticGroup, Template, merge},
    fence::Age,
    id::{self, InstanceId},
    instance::Record,
    refusal::{Code, Refusal},
};

pub use dynamic::{Dynamic, DynamicGroup};

/// More instances than a zone's server is built for; a size is a number of machines, not a typing error.
const LARGEST: i32 = 100_000;

/// Vars reach userdata and labels: so many, and so long, fit both.
const MOST_VARS: usize = 128;
const LONGEST_VAR: usize = 4096;

/// What one tenant's groups may take of the object that holds those of all tenants, which has 8 MiB at most: thousands
/// of groups, or some hundred with many vars.
const SHARE: usize = 1024 * 1024;

/// One request names at most so many instances to remove first.
const MOST_MARKS: usize = 1000;

/// A group as it counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    pub key: String,
    pub tenant: String,
    pub template: String,
    /// The template's.
    pub kind: String,
    pub size: i32,
    /// The group's own; empty if it has none.
    pub instance_type: String,
    pub subnet_pool: String,
    /// The group's own, static under dynamic.
    pub vars: BTreeMap<String, String>,
    pub is_static: bool,
    pub drain_timeout: Duration,
    pub remove_first: Vec<InstanceId>,
    pub replace: BTreeSet<InstanceId>,
    /// What its instances are made with.
    pub blueprint: Blueprint,
}

/// What an instance is made with, all levels merged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Blueprint {
    pub instance_type: String,
    pub arch: String,
    pub subnets: Vec<String>,
    pub userdata: String,
    pub vars: BTreeMap<String, String>,
    pub args: Map<String, Value>,
    /// Of all that needs another machine when it changes: vars do not.
    pub hash: String,
}

/// A request to create or change a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upsert {
    pub template: String,
    pub size: i32,
    pub instance_type: String,
    pub subnet_pool: String,
    pub vars: BTreeMap<String, String>,
    pub args: BTreeMap<String, String>,
    pub remove_first: Vec<String>,
}

/// Names of all groups, as (tenant, key), in order.
pub fn all(config: &Config, dynamic: &Dynamic) -> BTreeSet<(String, String)> {
    let names = |tenant: &String, key: &String| (tenant.clone(), key.clone());
    let fixed = config.groups.iter().flat_map(|(tenant, groups)| groups.keys().map(move |key| names(tenant, key)));
    fixed.chain(dynamic.names()).collect()
}

/// The group that counts. `None` if there is no such group, or what it should be is not known: [`unknown`].
pub fn effective(config: &Config, dynamic: &Dynamic, tenant: &str, key: &str) -> Option<Group> {
    let is_there = config.static_group(tenant, key).is_some() || dynamic.get(tenant, key).is_some();
    (is_there && unknown(config, dynamic, tenant, key).is_none()).then(|| merged(config, dynamic, tenant, key))
}

/// Why it is not known what a group should be: what is stored of it cannot be read, or names a template that the
/// configuration lost. Such a group is not one that is gone: nothing is made or removed for it.
pub fn unknown(config: &Config, dynamic: &Dynamic, tenant: &str, key: &str) -> Option<String> {
    if let Some(damage) = dynamic.damage(tenant, key) {
        return Some(damage);
    }
    let moving = dynamic.get(tenant, key)?;
    if !(0..=LARGEST).contains(&moving.size) {
        return Some(format!("{tenant}.{key}.size: {} is not between 0 and {LARGEST}", moving.size));
    }
    let name = config.static_group(tenant, key).map_or(&moving.template, |fixed| &fixed.template);
    let is_lost = !config.templates.contains_key(name);
    is_lost.then(|| format!("{tenant}.{key}.template: {name:?} is not a template of the shard's configuration"))
}

/// Why the dynamic groups are lost if nothing is stored of them. `None` of a shard that no server has led, and of one whose
/// servers stored groups only with the first request: `is_written` says whether a server stored them, some or none.
pub fn lost<'a>(
    config: Option<&Config>,
    is_written: bool,
    records: impl IntoIterator<Item = &'a Record>,
) -> Option<String> {
    if is_written {
        return Some("it was written and is missing".to_owned());
    }
    let config = config?;
    let stays = |record: &&Record| record.leaving.is_none() && record.deleted_at.is_none();
    let is_dynamic = |record: &&Record| config.static_group(&record.tenant, &record.group).is_none();
    let Record { id, tenant, group, .. } = records.into_iter().filter(stays).find(is_dynamic)?;
    Some(format!("it is missing, and instance {id} is of {tenant}.{group}, which is no group of the configuration"))
}

/// As far as it is known: the static part keeps template, pool, args and drain timeout; the dynamic one overrides size,
/// instance type and vars.
pub fn merged(config: &Config, dynamic: &Dynamic, tenant: &str, key: &str) -> Group {
    let (fixed, moving) = (config.static_group(tenant, key), dynamic.get(tenant, key));
    let (none, lost) = (StaticGroup::default(), Template::default());
    let under = fixed.unwrap_or(&none);
    let name = first(&[&under.template, moving.map_or("", |group| &group.template)]);
    let template = config.templates.get(name).unwrap_or(&lost);
    let pool =
        first(&[&under.subnet_pool, moving.map_or("", |group| &group.subnet_pool), &template.subnet_pool]).to_owned();
    let instance_type = first(&[moving.map_or("", |group| &group.instance_type), &under.instance_type]).to_owned();
    let mut vars = under.vars.clone();
    vars.extend(moving.map(|group| group.vars.clone()).unwrap_or_default());
    let size = moving.map(|group| group.size).or(under.size).or(template.size).unwrap_or(0);
    let blueprint = blueprint(config, template, under, (&instance_type, &pool), &vars);
    Group {
        key: key.to_owned(),
        tenant: tenant.to_owned(),
        template: name.to_owned(),
        kind: template.kind.clone(),
        size: size.max(0),
        instance_type,
        subnet_pool: pool,
        vars,
        is_static: fixed.is_some(),
        drain_timeout: under.drain_timeout.map_or_else(|| config.drain_timeout(), super::config::Span::get),
        remove_first: moving.map(|group| group.remove_first.clone()).unwrap_or_default(),
        replace: moving.map(|group| group.replace.clone()).unwrap_or_default(),
        blueprint,
    }
}

fn first<'a>(candidates: &[&'a str]) -> &'a str {
    candidates.iter().find(|text| !text.is_empty()).copied().unwrap_or("")
}

fn blueprint(
    config: &Config,
    template: &Template,
    group: &StaticGroup,
    (instance_type, pool): (&str, &str),
    group_vars: &BTreeMap<String, String>,
) -> Blueprint {
    let mut vars = config.defaults.vars.clone();
    vars.extend(template.vars.clone());
    vars.extend(group_vars.clone());
    let args = merge(&merge(&config.defaults.args, &template.args), &group.args);
    let instance_type = first(&[instance_type, &template.instance_type]).to_owned();
    let parts = json!({
        "args": args,
        "instance_type": instance_type,
        "subnet_pool": pool,
        "userdata": template.userdata,
        "kind": template.kind,
        "arch": template.arch,
    });
    Blueprint {
        instance_type,
        arch: template.arch.clone(),
        subnets: config.shard.subnet_pools.get(pool).cloned().unwrap_or_default(),
        userdata: template.userdata.clone(),
        vars,
        args,
        hash: hex(&Sha256::digest(parts.to_string().as_bytes())[..16]),
    }
}

/// The blueprint of a group's instance that is made from another template: what the group says under what it has.
pub fn of_template(config: &Config, group: &Group, name: &str) -> Option<Blueprint> {
    if name == group.template {
        return Some(group.blueprint.clone());
    }
    let (template, none) = (config.templates.get(name)?, StaticGroup::default());
    let fixed = config.static_group(&group.tenant, &group.key).unwrap_or(&none);
    // The group's own instance type was chosen for the group's own template.
    Some(blueprint(config, template, fixed, ("", &group.subnet_pool), &group.vars))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |text, byte| text + &format!("{byte:02x}"))
}

/// The stored entry after a request. Non-empty fields override; empty strings and absent vars never clear, as in the
/// original. `living` are the instances of the group.
pub fn upsert(
    config: &Config,
    dynamic: &Dynamic,
    (tenant, key): (&str, &str),
    request: &Upsert,
    living: &BTreeSet<InstanceId>,
) -> Result<DynamicGroup, Refusal> {
    id::check("key", key)?;
    bounds(request)?;
    let fixed = config.static_group(tenant, key);
    match fixed {
        Some(fixed) => restricted(fixed, request)?,
        None if !request.args.is_empty() => {
            return Err(Refusal::invalid("config.args: only the configuration of the shard sets args"));
        }
        None => {}
    }
    let before = effective(config, dynamic, tenant, key);
    let mut entry = dynamic.get(tenant, key).cloned().unwrap_or_default();
    override_text(&mut entry.instance_type, &request.instance_type);
    entry.vars.extend(request.vars.clone());
    if entry.vars.len() > MOST_VARS {
        let text = format!("config.vars: at most {MOST_VARS}, with those of earlier requests");
        return Err(Refusal::invalid(text));
    }
    if fixed.is_none() {
        override_text(&mut entry.template, &request.template);
        override_text(&mut entry.subnet_pool, &request.subnet_pool);
        moving(config, &entry)?;
    }
    if let Some(fixed) = fixed {
        inherit(&mut entry, fixed);
    }
    let template = first(&[fixed.map_or("", |fixed| &fixed.template), &entry.template]);
    if let Some(template) = config.templates.get(template) {
        config.check_instance_type(template, &entry.instance_type)?;
    }
    mark(&mut entry, request, before.map(|group| group.size), living)?;
    entry.size = request.size;
    Ok(entry)
}

/// Refuses groups of a tenant that together take more than its share of storage.
pub fn check_share(dynamic: &Dynamic, tenant: &str) -> Result<(), Refusal> {
    if dynamic.weight(tenant) <= SHARE {
        return Ok(());
    }
    let text = format!("config: the groups of tenant {tenant:?} together exceed {SHARE} bytes; remove groups or vars");
    Err(Refusal::new(Code::ResourceExhausted, text))
}

/// What the configuration says today is kept beside the override: the group may be gone from a configuration that no
/// server saw change.
fn inherit(entry: &mut DynamicGroup, fixed: &StaticGroup) {
    entry.template.clone_from(&fixed.template);
    entry.subnet_pool.clone_from(&fixed.subnet_pool);
}

fn override_text(kept: &mut String, new: &str) {
    if !new.is_empty() {
        new.clone_into(kept);
    }
}

fn bounds(request: &Upsert) -> Result<(), Refusal> {
    if !(0..=LARGEST).contains(&request.size) {
        return Err(Refusal::invalid(format!("config.size: {} is not between 0 and {LARGEST}", request.size)));
    }
    check_vars("config.vars", &request.vars)?;
    if request.remove_first.len() > MOST_MARKS {
        return Err(Refusal::invalid(format!("remove_first: at most {MOST_MARKS} instances")));
    }
    Ok(())
}

/// Vars of a request.
pub fn check_vars(field: &str, vars: &BTreeMap<String, String>) -> Result<(), Refusal> {
    if vars.len() > MOST_VARS {
        return Err(Refusal::invalid(format!("{field}: at most {MOST_VARS}")));
    }
    let long = |(key, value): (&String, &String)| key.is_empty() || key.len() + value.len() > LONGEST_VAR;
    match vars.iter().find(|entry| long(*entry)) {
        Some((key, _)) => {
            let shown: String = key.chars().take(32).collect();
            Err(Refusal::invalid(format!("{field}: {shown:?} is empty or longer than {LONGEST_VAR} bytes")))
        }
        None => Ok(()),
    }
}

/// What the configuration says of a static group stays.
fn restricted(fixed: &StaticGroup, request: &Upsert) -> Result<(), Refusal> {
    let refuse = |field: &str| {
        let text = format!("config.{field}: the group is static; change it in the configuration of the shard");
        Err(Refusal::new(Code::FailedPrecondition, text))
    };
    if !request.template.is_empty() && request.template != fixed.template {
        return refuse("template");
    }
    if !request.subnet_pool.is_empty() {
        return refuse("subnet_pool");
    }
    if request.args.is_empty() { Ok(()) } else { refuse("args") }
}

/// A dynamic group needs a template and a pool that we have.
fn moving(config: &Config, entry: &DynamicGroup) -> Result<(), Refusal> {
    if entry.template.is_empty() {
        return Err(Refusal::invalid("config.template: a new group needs a template"));
    }
    let Some(template) = config.templates.get(&entry.template) else {
        let text = format!("config.template: {:?} is not a template of this shard", entry.template);
        return Err(Refusal::new(Code::NotFound, text));
    };
    let pool = first(&[&entry.subnet_pool, &template.subnet_pool]);
    if pool.is_empty() {
        return Err(Refusal::invalid("config.subnet_pool: neither the group nor its template names one"));
    }
    open_pool(config, pool).map(|_| ())
}

/// The subnets of a pool that requests may name.
pub(super) fn open_pool<'a>(config: &'a Config, pool: &str) -> Result<&'a [String], Refusal> {
    let Some(subnets) = config.shard.subnet_pools.get(pool) else {
        return Err(Refusal::invalid(format!("config.subnet_pool: {pool:?} is not a subnet pool of this shard")));
    };
    let allowed = &config.shard.dynamic_subnet_pools;
    if !allowed.is_empty() && !allowed.iter().any(|other| other == pool) {
        let text = format!("config.subnet_pool: {pool:?} is not open to requests; open: {}", allowed.join(", "));
        return Err(Refusal::invalid(text));
    }
    Ok(subnets)
}

/// At a size that changes, the marked instances go before others; at one that stays, they are replaced. A replacement
/// that was accepted goes on until its instance is gone.
fn mark(
    entry: &mut DynamicGroup,
    request: &Upsert,
    before: Option<i32>,
    living: &BTreeSet<InstanceId>,
) -> Result<(), Refusal> {
    let marked: Vec<InstanceId> = request
        .remove_first
        .iter()
        .map(|text| InstanceId::parse(text).map_err(|refusal| field(&refusal)))
        .collect::<Result<_, _>>()?;
    entry.replace.retain(|id| living.contains(id));
    entry.remove_first.clear();
    // What is gone already needs no mark: a repeated request is no error.
    let marked = marked.into_iter().filter(|id| living.contains(id));
    if before == Some(request.size) {
        entry.replace.extend(marked);
    } else {
        entry.remove_first = marked.collect();
        let first: BTreeSet<_> = entry.remove_first.iter().cloned().collect();
        entry.replace.retain(|id| !first.contains(id));
    }
    Ok(())
}

fn field(refusal: &Refusal) -> Refusal {
    Refusal::invalid(refusal.message.replacen("instance_id", "remove_first", 1))
}

/// The dynamic groups after the configuration changed. An override of a static group keeps the template and pool that
/// it has from the configuration, for the time when the group is not static any more.
pub fn after_refresh(old: &Config, new: &Config, dynamic: &Dynamic) -> Dynamic {
    let mut after = dynamic.clone();
    after.for_each_mut(|tenant, key, entry| {
        if let Some(fixed) = new.static_group(tenant, key).or_else(|| old.static_group(tenant, key)) {
            inherit(entry, fixed);
        }
    });
    after
}

impl Group {
    /// Lower-case hexadecimal MD5 of the group as JSON with sorted keys, without counts: the original's etag.
    pub fn etag(&self) -> String {
        let parts = json!({
            "instance_type": self.instance_type,
            "is_static": self.is_static,
            "key": self.key,
            "size": self.size,
            "subnet_pool": self.subnet_pool,
            "template": self.template,
            "tenant": self.tenant,
            "vars": self.vars,
        });
        hex(&Md5::digest(parts.to_string().as_bytes()))
    }
}

#[cfg(test)]
mod tests;
