//! One instance by request, beside the group's size.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{
    config::Config,
    group::{Dynamic, check_vars, effective, of_template, open_pool},
    id::{self, InstanceId},
    instance::Record,
    refusal::{Code, Refusal},
    round::Subnet,
};

/// A request for one instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The caller's choice, so that it can ask again; empty for ours.
    pub instance_id: String,
    pub group: String,
    pub template: String,
    pub instance_type: String,
    pub subnet_pool: String,
    pub vars: BTreeMap<String, String>,
}

/// The record of the new instance. `uuid` is used if the caller chose no id; `exists` says whether an id is taken;
/// `subnets` gives a pool's subnets with their room.
pub fn record(
    (config, dynamic): (&Config, &Dynamic),
    tenant: &str,
    request: &Request,
    uuid: u128,
    exists: impl Fn(&InstanceId) -> bool,
    subnets: impl Fn(&[String]) -> Vec<Subnet>,
    now: Timestamp,
) -> Result<Record, Refusal> {
    id::check("config.group", &request.group)?;
    check_vars("config.vars", &request.vars)?;
    let Some(group) = effective(config, dynamic, tenant, &request.group) else {
        return Err(Refusal::new(Code::NotFound, format!("config.group: {:?} is not a group", request.group)));
    };
    let name = if request.template.is_empty() { &group.template } else { &request.template };
    let Some(template) = config.templates.get(name) else {
        return Err(Refusal::new(Code::NotFound, format!("config.template: {name:?} is not a template of this shard")));
    };
    config.check_instance_type(template, &request.instance_type)?;
    let mut blueprint = of_template(config, &group, name).unwrap_or_default();
    if !request.instance_type.is_empty() {
        blueprint.instance_type.clone_from(&request.instance_type);
    }
    // Its group's own pool is as good as none: the configuration may have put the group where requests may not.
    if !request.subnet_pool.is_empty() && request.subnet_pool != group.subnet_pool {
        blueprint.subnets = open_pool(config, &request.subnet_pool)?.to_vec();
    }
    blueprint.vars.extend(request.vars.clone());
    let id = match &*request.instance_id {
        "" => InstanceId::new(&template.kind, uuid),
        chosen => chosen_id(chosen, &template.kind, exists)?,
    };
    let room = subnets(&blueprint.subnets).into_iter().find(|subnet| subnet.free != Some(0));
    let subnet = room
        .ok_or_else(|| Refusal::new(Code::ResourceExhausted, "config.subnet_pool: every subnet of the pool is full"))?;
    let mut record = Record::new(id, (tenant, &request.group, name), &blueprint, &subnet.id, now);
    record.on_demand = true;
    Ok(record)
}

fn chosen_id(text: &str, kind: &str, exists: impl Fn(&InstanceId) -> bool) -> Result<InstanceId, Refusal> {
    let id = InstanceId::parse(text)?;
    if id.kind() != kind {
        return Err(Refusal::invalid(format!("instance_id: must begin with the template's kind, {kind:?}")));
    }
    if exists(&id) {
        return Err(Refusal::new(Code::AlreadyExists, format!("instance_id: {id} exists")));
    }
    Ok(id)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::shard::config::read;

    fn config() -> Config {
        let value = json!({
            "cluster": {"id": "dev"},
            "shard": {
                "id": "dev-1",
                "provider": {"kind": "process"},
                "subnet_pools": {"one": ["s1", "s2"], "full": ["s0"], "own": ["s3"], "shut": ["s4"]},
                "dynamic_subnet_pools": ["one", "full"],
            },
            "templates": {
                "web": {"kind": "web", "arch": "amd64", "subnet_pool": "one", "instance_types": ["a", "b"]},
                "big": {"kind": "big", "arch": "arm64", "instance_type": "c", "userdata": "x", "vars": {"v": "0", "x": "0"}},
            },
            "groups": {"default": {
                "web": {"template": "web", "size": 1, "vars": {"v": "1", "w": "1"}},
                "apart": {"template": "web", "subnet_pool": "own"},
            }},
        });
        let (config, findings) = read(value);
        assert_eq!(findings.problems, []);
        config.unwrap()
    }

    fn ask(request: &Request) -> Result<Record, Refusal> {
        let taken = InstanceId::new("web", 7);
        let room = |names: &[String]| {
            let free = |name: &String| Some(if name == "s0" || name == "s1" { 0 } else { 3 });
            names.iter().map(|name| Subnet { id: name.clone(), free: free(name) }).collect()
        };
        let now = Timestamp::UNIX_EPOCH;
        record((&config(), &Dynamic::default()), "default", request, 1, |id| *id == taken, room, now)
    }

    fn request(change: impl FnOnce(&mut Request)) -> Request {
        let mut request = Request { group: "web".to_owned(), ..Request::default() };
        change(&mut request);
        request
    }

    #[track_caller]
    fn refused(change: impl FnOnce(&mut Request), code: Code, field: &str) {
        let refusal = ask(&request(change)).unwrap_err();
        assert_eq!(refusal.code, code, "{refusal}");
        assert!(refusal.message.starts_with(field), "{refusal}");
    }

    #[test]
    fn an_instance_on_demand_takes_what_its_group_has_and_its_own_on_top() {
        let own = BTreeMap::from([("w".to_owned(), "2".to_owned())]);
        let record = ask(&request(|request| {
            request.vars = own;
            request.instance_type = "b".to_owned();
        }))
        .unwrap();
        assert_eq!((record.on_demand, &*record.subnet, &*record.instance_type), (true, "s2", "b"));
        assert_eq!(record.vars, BTreeMap::from([("v".into(), "1".into()), ("w".into(), "2".into())]));
        let chosen = InstanceId::new("web", 8);
        assert_eq!(ask(&request(|request| request.instance_id = chosen.to_string())).unwrap().id, chosen);
    }

    #[test]
    fn a_template_of_its_own_says_what_the_instance_is_made_with() {
        let record = ask(&request(|request| request.template = "big".to_owned())).unwrap();
        assert_eq!((record.id.kind(), &*record.template, &*record.instance_type), ("big", "big", "c"));
        let pair = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        assert_eq!(
            record.vars,
            [("v", "1"), ("w", "1"), ("x", "0")].map(pair).into(),
            "the group's over the template's"
        );
        let group = effective(&config(), &Dynamic::default(), "default", "web").unwrap();
        let blueprint = of_template(&config(), &group, "big").unwrap();
        assert_eq!((&*blueprint.userdata, &*blueprint.arch, &blueprint.hash), ("x", "arm64", &record.hash));
        assert_eq!(blueprint.subnets, group.blueprint.subnets, "where the group is");
        assert_eq!(of_template(&config(), &group, "web"), Some(group.blueprint.clone()));
        assert_eq!(of_template(&config(), &group, "none"), None);
    }

    #[test]
    fn a_pool_that_is_not_open_to_requests_is_its_groups_alone() {
        refused(|request| request.subnet_pool = "shut".into(), Code::InvalidArgument, "config.subnet_pool");
        refused(|request| request.subnet_pool = "own".into(), Code::InvalidArgument, "config.subnet_pool");
        for pool in ["", "own"] {
            let apart = request(|request| (request.group, request.subnet_pool) = ("apart".into(), pool.into()));
            assert_eq!(ask(&apart).unwrap().subnet, "s3", "{pool:?}");
        }
        let open = request(|request| (request.group, request.subnet_pool) = ("apart".into(), "one".into()));
        assert_eq!(ask(&open).unwrap().subnet, "s2");
    }

    #[test]
    fn a86_bad_requests_for_an_instance_have_their_code() {
        refused(|request| request.group.clear(), Code::InvalidArgument, "config.group");
        refused(|request| request.group = "none".into(), Code::NotFound, "config.group");
        refused(|request| request.template = "none".into(), Code::NotFound, "config.template");
        refused(|request| request.instance_type = "c".into(), Code::InvalidArgument, "instance_type");
        refused(|request| request.subnet_pool = "none".into(), Code::InvalidArgument, "config.subnet_pool");
        refused(|request| request.subnet_pool = "full".into(), Code::ResourceExhausted, "config.subnet_pool");
        refused(|request| request.instance_id = "x".into(), Code::InvalidArgument, "instance_id");
        let other = InstanceId::new("abc", 1).to_string();
        refused(|request| request.instance_id = other, Code::InvalidArgument, "instance_id");
        let taken = InstanceId::new("web", 7).to_string();
        refused(|request| request.instance_id = taken, Code::AlreadyExists, "instance_id");
    }
}
