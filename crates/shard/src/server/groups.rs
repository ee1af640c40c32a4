//! The groups as they count: merged when configuration or requests change, not when they are asked for.

use std::{collections::BTreeMap, sync::Arc};

use plan::shard::{
    config::Config,
    group::{Dynamic, Group, all, effective},
};

/// Configuration, requests, and what they make of each group.
pub struct Groups {
    config: Arc<Config>,
    dynamic: Dynamic,
    /// By tenant, then key.
    current: BTreeMap<String, BTreeMap<String, Arc<Current>>>,
}

/// A group, with its etag.
pub struct Current {
    pub group: Group,
    pub etag: String,
}

impl Groups {
    pub fn new(config: Config, dynamic: Dynamic) -> Self {
        let mut groups = Self { config: Arc::new(config), dynamic, current: BTreeMap::new() };
        groups.merge(|_, _| false);
        groups
    }

    pub fn config(&self) -> &Arc<Config> {
        &self.config
    }

    pub fn dynamic(&self) -> &Dynamic {
        &self.dynamic
    }

    pub fn get(&self, tenant: &str, key: &str) -> Option<&Arc<Current>> {
        self.current.get(tenant)?.get(key)
    }

    pub fn of_tenant(&self, tenant: &str) -> impl Iterator<Item = &Arc<Current>> {
        self.current.get(tenant).into_iter().flat_map(BTreeMap::values)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Current>> {
        self.current.values().flat_map(BTreeMap::values)
    }

    pub fn set_config(&mut self, config: Config) {
        self.config = Arc::new(config);
        self.merge(|_, _| false);
    }

    pub fn set_dynamic(&mut self, dynamic: Dynamic) {
        let before = std::mem::replace(&mut self.dynamic, dynamic);
        let after = self.dynamic.clone();
        self.merge(|tenant, key| before.get(tenant, key) == after.get(tenant, key));
    }

    /// Merges every group but those that stay.
    fn merge(&mut self, stays: impl Fn(&str, &str) -> bool) {
        let mut before = std::mem::take(&mut self.current);
        for (tenant, key) in all(&self.config, &self.dynamic) {
            let known = before.get_mut(&tenant).and_then(|groups| groups.remove(&key));
            let current = known.filter(|_| stays(&tenant, &key)).or_else(|| {
                let group = effective(&self.config, &self.dynamic, &tenant, &key)?;
                Some(Arc::new(Current { etag: group.etag(), group }))
            });
            if let Some(current) = current {
                self.current.entry(tenant).or_default().insert(key, current);
            }
        }
    }
}
