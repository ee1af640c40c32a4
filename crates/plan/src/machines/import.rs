//! Pools for groups that shards have and Kubernetes does not.

use std::collections::{BTreeMap, BTreeSet};

use api::machine::{API_VERSION, MANAGED_BY, MANAGED_BY_ANNOTATION, NstanceMachinePool};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::pool::machine_pool;
use super::shard::Group;
use crate::fact::Fact;

/// What is known of all groups.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    pub namespace: String,
    /// Name of the Cluster.
    pub cluster: String,
    /// Every shard of the operator's configuration, with its groups by key.
    pub shards: BTreeMap<String, Fact<BTreeMap<String, Group>>>,
    /// Groups that pools of the namespace have.
    pub groups: BTreeSet<String>,
    /// Names of the namespace's NstanceMachinePools and MachinePools.
    pub names: BTreeSet<String>,
}

/// What to make of the groups.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Imports {
    pub pools: Vec<Import>,
    /// Shards without whose answer nothing is imported: a pool made from half of its shards would shrink its group.
    pub silent: Vec<String>,
    /// Groups whose name another pool has.
    pub taken: Vec<String>,
}

/// One pool and its MachinePool. The names are those of the group.
#[derive(Clone, Debug, PartialEq)]
pub struct Import {
    pub group: String,
    pub pool: Value,
    pub machine_pool: Value,
    /// Fields in which the shards differ. The pool leaves them to each shard: to set them would replace the instances of
    /// the others.
    pub differing: Vec<&'static str>,
}

/// The pools that are missing. What exists is never changed from a shard's words.
pub fn import(observed: &Observed) -> Imports {
    let mut imports = Imports::default();
    let mut groups: BTreeMap<&str, BTreeMap<&str, &Group>> = BTreeMap::new();
    for (shard, fact) in &observed.shards {
        match fact.known() {
            Ok(found) => {
                for (key, group) in found {
                    groups.entry(key).or_default().insert(shard, group);
                }
            }
            Err(_) => imports.silent.push(shard.clone()),
        }
    }
    if !imports.silent.is_empty() {
        return imports;
    }
    for (key, shards) in groups.into_iter().filter(|(key, _)| !observed.groups.contains(*key)) {
        if observed.names.contains(key) {
            imports.taken.push(key.to_owned());
        } else {
            imports.pools.extend(one(observed, key, &shards));
        }
    }
    imports
}

fn one(observed: &Observed, key: &str, shards: &BTreeMap<&str, &Group>) -> Option<Import> {
    let first = shards.values().next()?;
    let differs = |field: fn(&Group, &Group) -> bool| shards.values().any(|group| field(group, first));
    let has_types = differs(|one, other| one.instance_type != other.instance_type);
    let has_vars = differs(|one, other| one.vars != other.vars);
    let has_templates = differs(|one, other| one.template != other.template);
    let differing = [("template", has_templates), ("instanceType", has_types), ("vars", has_vars)];
    let mut ids: Vec<String> = shards.values().flat_map(|group| group.provider_ids(&[], &[])).collect();
    ids.sort_unstable();
    // Template and subnet pool stay the shards': a static group refuses them.
    let mut spec = json!({ "group": key, "shards": shards.keys().collect::<Vec<_>>() });
    if !first.instance_type.is_empty() && !has_types {
        spec["instanceType"] = json!(first.instance_type);
    }
    if !first.vars.is_empty() && !has_vars {
        spec["vars"] = json!(first.vars);
    }
    if !ids.is_empty() {
        spec["providerIDList"] = json!(ids);
    }
    let replicas = shards.values().map(|group| group.size.max(0)).fold(0, i32::saturating_add);
    let pool = json!({
        "apiVersion": API_VERSION,
        "kind": NstanceMachinePool::KIND,
        "metadata": {
            "name": key,
            "namespace": observed.namespace,
            "annotations": { MANAGED_BY_ANNOTATION: MANAGED_BY },
        },
        "spec": spec,
    });
    Some(Import {
        group: key.to_owned(),
        pool,
        machine_pool: machine_pool(key, &observed.namespace, &observed.cluster, replicas),
        differing: differing.into_iter().filter_map(|(field, differs)| differs.then_some(field)).collect(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::shard::{Instance, Members};
    use super::*;
    use crate::fact::{Class, Failure};
    use crate::shard::instance::MachineStatus;

    fn group(size: i32, ids: &[&str]) -> Group {
        let instance = |id: &&str| Instance {
            id: (*id).to_owned(),
            provider_id: (*id).to_owned(),
            node_provider_id: String::new(),
            status: MachineStatus::Running,
            created_at: None,
            is_leaving: false,
        };
        let members = Members::Listed(ids.iter().map(instance).collect());
        let vars = [("team".to_owned(), "a".to_owned())].into();
        Group {
            template: "small".to_owned(),
            subnet_pool: "private".to_owned(),
            size,
            vars,
            members,
            ..Group::default()
        }
    }

    fn says<const N: usize>(groups: [(&str, Group); N]) -> Fact<BTreeMap<String, Group>> {
        let value = groups.into_iter().map(|(key, group)| (key.to_owned(), group)).collect();
        Fact::Known { value, age: Duration::ZERO }
    }

    fn observed() -> Observed {
        let large = Group { instance_type: "large".to_owned(), ..group(1, &["i-1"]) };
        let shards = [
            ("dev-2".to_owned(), says([("web", group(4, &["i-3", "i-2"])), ("db", group(1, &[]))])),
            ("dev-1".to_owned(), says([("web", large)])),
        ];
        Observed {
            namespace: "strata-system".to_owned(),
            cluster: "c--t".to_owned(),
            shards: shards.into(),
            groups: ["db".to_owned()].into(),
            names: ["db".to_owned()].into(),
        }
    }

    #[test]
    fn a17_a18_an_import_sums_sizes_and_leaves_template_and_subnet_to_the_shards() {
        let imports = import(&observed());
        let [web] = imports.pools.as_slice() else { panic!("{imports:?}") };
        let spec = json!({
            "group": "web", "shards": ["dev-1", "dev-2"], "vars": { "team": "a" },
            "providerIDList": ["i-1", "i-2", "i-3"],
        });
        assert_eq!(web.pool["spec"], spec);
        assert_eq!(web.pool["metadata"]["annotations"], json!({ "nstance.dev/managed-by": "nstance-operator" }));
        assert_eq!(web.machine_pool["metadata"]["annotations"], web.pool["metadata"]["annotations"]);
        assert_eq!(web.machine_pool["spec"]["replicas"], 5);
        assert_eq!(web.differing, ["instanceType"], "either would replace the instances of the other shard");
    }

    #[test]
    fn a16_nothing_is_imported_until_every_shard_has_answered() {
        let mut observed = observed();
        let why = Failure { class: Class::Transient, message: "silent".to_owned() };
        observed
            .shards
            .insert("dev-3".to_owned(), Fact::Unknown { why, last: Some((BTreeMap::new(), Duration::ZERO)) });
        let imports = import(&observed);
        assert_eq!((imports.pools, imports.silent), (Vec::new(), vec!["dev-3".to_owned()]));
    }

    #[test]
    fn a19_what_exists_is_left_alone_and_a_name_that_is_taken_is_named() {
        let mut observed = observed();
        observed.groups.insert("web".to_owned());
        assert_eq!(import(&observed), Imports::default());
        observed.groups.remove("web");
        observed.names.insert("web".to_owned());
        assert_eq!(import(&observed), Imports { taken: vec!["web".to_owned()], ..Imports::default() });
    }
}
