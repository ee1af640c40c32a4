//! The groups as they count: merged when configuration or requests change, not when they are asked for.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use plan::shard::{
    config::Config,
    group::{Dynamic, Group, all, merged, unknown},
};

/// Nothing is made or removed for such a group until then.
const REMEDY: &str = "correct it in the file of groups or in the configuration, or restore it from a backup";

/// Configuration, requests, and what they make of each group.
pub struct Groups {
    config: Arc<Config>,
    dynamic: Dynamic,
    /// By tenant, then key.
    current: BTreeMap<String, BTreeMap<String, Arc<Current>>>,
    /// Why it is not known what a group, or the groups of a tenant, should be.
    unknown: BTreeSet<String>,
}

/// A group, with its etag.
pub struct Current {
    pub group: Group,
    pub etag: String,
    /// It is not known what it should be. It is shown with what it has, and nothing is decided about it.
    pub is_unknown: bool,
}

impl Groups {
    pub fn new(config: Config, dynamic: Dynamic) -> Self {
        let mut groups = Self { config: Arc::new(config), dynamic, current: BTreeMap::new(), unknown: BTreeSet::new() };
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

    /// Whether it is not known what a group should be: it is no group that is gone.
    pub fn is_unknown(&self, tenant: &str, key: &str) -> bool {
        unknown(&self.config, &self.dynamic, tenant, key).is_some()
    }

    /// How many groups and tenants are unknown.
    pub fn unknown(&self) -> usize {
        self.unknown.len()
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
        self.merge(|tenant, key| before.is_same(&after, tenant, key));
    }

    /// Merges every group but those that stay.
    fn merge(&mut self, stays: impl Fn(&str, &str) -> bool) {
        let mut before = std::mem::take(&mut self.current);
        let mut reasons: BTreeSet<String> = self.dynamic.tenant_damages().collect();
        for (tenant, key) in all(&self.config, &self.dynamic) {
            let known = before.get_mut(&tenant).and_then(|groups| groups.remove(&key));
            let why = unknown(&self.config, &self.dynamic, &tenant, &key);
            let current = known.filter(|_| stays(&tenant, &key)).unwrap_or_else(|| {
                let group = merged(&self.config, &self.dynamic, &tenant, &key);
                Arc::new(Current { etag: group.etag(), group, is_unknown: why.is_some() })
            });
            self.current.entry(tenant).or_default().insert(key, current);
            reasons.extend(why);
        }
        for why in reasons.difference(&self.unknown) {
            tracing::error!("groups: {why}; {REMEDY}");
        }
        for why in self.unknown.difference(&reasons) {
            tracing::info!("groups: repaired: {why}");
        }
        self.unknown = reasons;
    }
}
