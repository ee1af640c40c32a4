//! What requests said about groups, as it is stored.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use super::{Age, InstanceId};

/// Dynamic groups by tenant and name, as they are stored. What cannot be read among them is kept as it is: the groups
/// that it is about are unknown, and no other is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Dynamic(BTreeMap<String, Tenant>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum Tenant {
    Groups(BTreeMap<String, Entry>),
    Damaged(Value),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
enum Entry {
    Group(Box<DynamicGroup>),
    Damaged(Value),
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Ok(match read(&value) {
            Ok(group) => Self::Group(Box::new(group)),
            Err(_) => Self::Damaged(value),
        })
    }
}

/// Only from an object: a list without items would be read as a group of size 0.
fn read(value: &Value) -> Result<DynamicGroup, String> {
    if value.is_object() {
        DynamicGroup::deserialize(value).map_err(|error| error.to_string())
    } else {
        Err(format!("{} where an object is expected", kind(value)))
    }
}

/// What requests said about one group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DynamicGroup {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub template: String,
    pub size: i32,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub instance_type: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subnet_pool: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub vars: BTreeMap<String, String>,
    /// Go before others when the group shrinks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remove_first: Vec<InstanceId>,
    /// Are replaced although the size stays.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub replace: BTreeSet<InstanceId>,
    /// Of the newest request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age: Option<Age>,
}

impl Dynamic {
    pub fn get(&self, tenant: &str, key: &str) -> Option<&DynamicGroup> {
        match self.groups(tenant)?.get(key)? {
            Entry::Group(group) => Some(group),
            Entry::Damaged(_) => None,
        }
    }

    /// Whether the same is stored of a group, readable or not.
    pub fn is_same(&self, other: &Self, tenant: &str, key: &str) -> bool {
        let (one, two) = (self.groups(tenant), other.groups(tenant));
        let is_damaged = |dynamic: &Self| dynamic.tenant_damage(tenant).is_some();
        one.and_then(|groups| groups.get(key)) == two.and_then(|groups| groups.get(key))
            && is_damaged(self) == is_damaged(other)
    }

    /// Why the groups of a tenant cannot be read: all of them together.
    pub fn tenant_damage(&self, tenant: &str) -> Option<String> {
        match self.0.get(tenant)? {
            Tenant::Groups(_) => None,
            Tenant::Damaged(value) => Some(format!("{tenant}: {} where an object is expected", kind(value))),
        }
    }

    /// Why what is stored of a group cannot be read.
    pub fn damage(&self, tenant: &str, key: &str) -> Option<String> {
        let Some(Entry::Damaged(value)) = self.groups(tenant).and_then(|groups| groups.get(key)) else {
            return self.tenant_damage(tenant);
        };
        read(value).err().map(|why| format!("{tenant}.{key}: {why}"))
    }

    /// Why groups of whole tenants cannot be read.
    pub fn tenant_damages(&self) -> impl Iterator<Item = String> {
        self.0.keys().filter_map(|tenant| self.tenant_damage(tenant))
    }

    /// Names of the groups, as (tenant, key), those included that cannot be read.
    pub fn names(&self) -> BTreeSet<(String, String)> {
        let named = |(tenant, groups): (&String, &Tenant)| match groups {
            Tenant::Groups(groups) => groups.keys().map(|key| (tenant.clone(), key.clone())).collect(),
            Tenant::Damaged(_) => Vec::new(),
        };
        self.0.iter().flat_map(named).collect()
    }

    /// Sets or removes one group; tenants without groups go. What cannot be read is not written over.
    pub fn set(&mut self, tenant: &str, key: &str, group: Option<DynamicGroup>) {
        if self.damage(tenant, key).is_some() {
            return;
        }
        let none = || Tenant::Groups(BTreeMap::new());
        if let Tenant::Groups(groups) = self.0.entry(tenant.to_owned()).or_insert_with(none) {
            match group {
                Some(group) => groups.insert(key.to_owned(), Entry::Group(Box::new(group))),
                None => groups.remove(key),
            };
        }
        self.0.retain(|_, tenant| !matches!(tenant, Tenant::Groups(groups) if groups.is_empty()));
    }

    /// Changes every group that can be read.
    pub fn for_each_mut(&mut self, mut change: impl FnMut(&str, &str, &mut DynamicGroup)) {
        for (tenant, groups) in &mut self.0 {
            let Tenant::Groups(groups) = groups else { continue };
            for (key, entry) in groups {
                if let Entry::Group(group) = entry {
                    change(tenant, key, group);
                }
            }
        }
    }

    /// The newest epoch that each tenant's groups were changed in.
    pub fn epochs(&self) -> BTreeMap<String, u64> {
        let newest = |tenant: &String| {
            let ages = self.groups(tenant)?.values().filter_map(|entry| match entry {
                Entry::Group(group) => group.age,
                Entry::Damaged(_) => None,
            });
            Some((tenant.clone(), ages.map(|age| age.epoch).max()?))
        };
        self.0.keys().filter_map(newest).collect()
    }

    /// What the tenant's groups take of storage, in bytes.
    pub(super) fn weight(&self, tenant: &str) -> usize {
        self.0.get(tenant).map_or(0, |groups| json!(groups).to_string().len())
    }

    fn groups(&self, tenant: &str) -> Option<&BTreeMap<String, Entry>> {
        match self.0.get(tenant)? {
            Tenant::Groups(groups) => Some(groups),
            Tenant::Damaged(_) => None,
        }
    }
}

/// As JSON names it.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_named_and_kept_and_nothing_else_is_lost() {
        let stored = json!({
            "acme": {"good": {"template": "web", "size": 2, "age": {"epoch": 7, "generation": 1}},
                     "bad": {"size": "three", "vars": {"a": "b"}}, "worse": []},
            "lost": "what was here",
            "other": {"fine": {"size": 1}},
        });
        let mut dynamic: Dynamic = serde_json::from_value(stored.clone()).unwrap();
        assert_eq!(json!(dynamic), stored, "written back as it was");
        assert_eq!(dynamic.get("acme", "good").unwrap().size, 2);
        assert_eq!((dynamic.get("acme", "bad"), dynamic.get("lost", "any")), (None, None));
        assert_eq!((dynamic.damage("acme", "good"), dynamic.damage("acme", "none")), (None, None));
        let damages = |dynamic: &Dynamic| -> Vec<String> {
            let groups = dynamic.names().into_iter().filter_map(|(tenant, key)| dynamic.damage(&tenant, &key));
            dynamic.tenant_damages().chain(groups).collect()
        };
        let text = damages(&dynamic).join("\n");
        for part in ["acme.bad: invalid type: string \"three\"", "acme.worse: an array where", "lost: a string where"] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(damages(&dynamic).len(), 3);
        assert!(dynamic.damage("lost", "any").unwrap().starts_with("lost: "));
        assert_eq!(dynamic.epochs(), BTreeMap::from([("acme".to_owned(), 7)]));
        let group = DynamicGroup { size: 9, ..DynamicGroup::default() };
        for (tenant, key) in [("acme", "bad"), ("lost", "any")] {
            dynamic.set(tenant, key, Some(group.clone()));
            dynamic.set(tenant, key, None);
        }
        dynamic.for_each_mut(|_, _, group| group.size += 1);
        dynamic.set("other", "fine", None);
        let after = json!(dynamic);
        assert_eq!(after["acme"]["bad"], stored["acme"]["bad"]);
        assert_eq!((&after["lost"], after["acme"]["good"]["size"].as_i64()), (&stored["lost"], Some(3)));
        assert!(after.get("other").is_none(), "a tenant without groups goes");
    }
}
