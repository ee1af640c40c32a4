//! The metrics of a process: each part registers its own, `/metrics` answers with all.

use std::{
    fmt::{self, Debug},
    sync::{Mutex, PoisonError},
};

use prometheus_client::{collector::Collector, encoding::text, metrics::info::Info, registry};

pub struct Registry(Mutex<registry::Registry>);

impl Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Registry")
    }
}

impl Default for Registry {
    fn default() -> Self {
        let mut registry = registry::Registry::default();
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("strata_build", "Version of the running program", version);
        Self(Mutex::new(registry))
    }
}

impl Registry {
    /// Adds metrics that are counted where things happen.
    pub fn register(&self, add: impl FnOnce(&mut registry::Registry)) {
        add(&mut self.lock());
    }

    /// Adds metrics that are computed when they are asked for.
    pub fn collect(&self, collector: Box<dyn Collector>) {
        self.lock().register_collector(collector);
    }

    /// The text that `/metrics` answers.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut out = String::new();
        text::encode(&mut out, &self.lock())?;
        Ok(out)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, registry::Registry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
