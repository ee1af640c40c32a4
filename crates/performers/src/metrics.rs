//! Performers by phase and what they ask for, counted when they are scraped.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use api::performer::{Performer, Phase};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};
use runtime::{Key, Kind, Packed, Versioned};

use crate::view::PerformerView;

pub(crate) struct PerformerMetrics {
    performers: Arc<Kind<PerformerView, Packed<Performer>>>,
    shares: Mutex<Shares>,
}

impl PerformerMetrics {
    pub(crate) fn new(performers: Arc<Kind<PerformerView, Packed<Performer>>>) -> Self {
        Self { performers, shares: Mutex::default() }
    }
}

impl fmt::Debug for PerformerMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PerformerMetrics")
    }
}

/// Resources of one namespace that are shown, and of one Performer that are counted: several times what a node offers.
/// Their names are the users' to make up, and each is a series that a monitoring system keeps for a long time. Those that
/// most Performers request go first.
const MOST_RESOURCES: usize = 20;

/// No node offers a resource with a longer name: a domain of 253 characters, a slash and 63 more.
const LONGEST_NAME: usize = 317;

/// What one version of a Performer adds to the counts.
struct Share {
    version: u64,
    phase: &'static str,
    requests: Vec<(String, f64)>,
}

impl Share {
    fn of(kept: &Versioned<Packed<Performer>>) -> Self {
        let performer = kept.value.open();
        // A Performer without a status is about to be pending.
        let phase = performer.status.as_ref().and_then(|status| status.phase).unwrap_or(Phase::Pending);
        let desired = plan::performers::validate(&performer).ok();
        let requests = desired.and_then(|desired| desired.resources?.requests).unwrap_or_default();
        let requests = requests.into_iter().filter(|(resource, _)| resource.len() <= LONGEST_NAME);
        let requests = requests.filter_map(|(resource, quantity)| Some((resource, amount(&quantity.0)?)));
        let requests = requests.take(MOST_RESOURCES);
        Self { version: kept.version, phase: phase.as_str(), requests: requests.collect() }
    }
}

/// The shares of all Performers as of the last scrape: the next one looks only at those that changed since.
#[derive(Default)]
struct Shares(HashMap<Key, Share>);

impl Shares {
    fn refresh(&mut self, keys: Vec<Key>, get: impl Fn(&Key) -> Option<Arc<Versioned<Packed<Performer>>>>) {
        let mut before = std::mem::take(&mut self.0);
        let shares = keys.into_iter().filter_map(|key| {
            let performer = get(&key)?;
            let known = before.remove(&key).filter(|share| share.version == performer.version);
            Some((key, known.unwrap_or_else(|| Share::of(&performer))))
        });
        self.0 = shares.collect();
    }

    fn counts(&self) -> Counts<'_> {
        let mut by_phase = BTreeMap::new();
        let mut requested = BTreeMap::<&str, BTreeMap<&str, (usize, f64)>>::new();
        for (key, share) in &self.0 {
            *by_phase.entry((&*key.namespace, share.phase)).or_default() += 1;
            for (resource, amount) in &share.requests {
                let sum = requested.entry(&key.namespace).or_default().entry(resource).or_default();
                *sum = (sum.0 + 1, sum.1 + amount);
            }
        }
        let shown = requested.into_iter().flat_map(|(namespace, resources)| {
            let mut resources: Vec<_> = resources.into_iter().collect();
            // By name where equal, so that two scrapes show the same.
            resources.sort_by_key(|(resource, (performers, _))| (Reverse(*performers), *resource));
            let shown = resources.into_iter().take(MOST_RESOURCES);
            shown.map(move |(resource, (_, amount))| ((namespace, resource), amount))
        });
        Counts { by_phase, requested: shown.collect() }
    }
}

/// By namespace, and by phase or resource.
#[derive(Default)]
struct Counts<'a> {
    by_phase: BTreeMap<(&'a str, &'static str), i64>,
    requested: BTreeMap<(&'a str, &'a str), f64>,
}

impl Collector for PerformerMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        // The store is locked for each object alone, and never while one is validated.
        shares.refresh(self.performers.store().keys(), |key| self.performers.get(key));
        let counts = shares.counts();
        let mut performers = encoder.encode_descriptor(
            "strata_performers",
            "Performers by namespace and phase",
            None,
            MetricType::Gauge,
        )?;
        for ((namespace, phase), count) in &counts.by_phase {
            let labels = [("namespace", *namespace), ("phase", *phase)];
            ConstGauge::new(*count).encode(performers.encode_family(&labels)?)?;
        }
        let help = "Sum of the resources that performers request, in the base unit (cores, bytes, devices)";
        let mut requested = encoder.encode_descriptor("strata_performer_requests", help, None, MetricType::Gauge)?;
        for ((namespace, resource), amount) in &counts.requested {
            let labels = [("namespace", *namespace), ("resource", *resource)];
            ConstGauge::new(*amount).encode(requested.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

/// A Kubernetes quantity as a number: `500m`, `8Gi`, `1e3`.
fn amount(quantity: &str) -> Option<f64> {
    const SUFFIXES: [(&str, f64); 15] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("Ei", 1_152_921_504_606_846_976.0),
        ("n", 1e-9),
        ("u", 1e-6),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
        ("E", 1e18),
    ];
    if let Ok(plain) = quantity.parse() {
        return Some(plain);
    }
    let (number, factor) =
        SUFFIXES.iter().find_map(|(suffix, factor)| Some((quantity.strip_suffix(suffix)?, factor)))?;
    number.parse::<f64>().ok().map(|number| number * factor)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quantities_are_read_in_all_their_forms() {
        let amounts = ["2", "500m", "8Gi", "1e3", "1.5G", "x"].map(amount);
        let expected = [Some(2.0), Some(0.5), Some(8_589_934_592.0), Some(1000.0), Some(1.5e9), None];
        assert_eq!(amounts, expected);
    }

    fn performer(version: u64, memory: &str) -> Arc<Versioned<Packed<Performer>>> {
        performer_with(version, &json!({ "memory": memory }))
    }

    fn performer_with(version: u64, requests: &serde_json::Value) -> Arc<Versioned<Packed<Performer>>> {
        let spec = json!({
            "avsAddress": "0x1234567890abcdef1234567890abcdef12345678",
            "image": "registry.test/performer:v1",
            "resources": { "requests": requests },
        });
        let value = json!({ "metadata": { "name": "a", "namespace": "n" }, "spec": spec });
        let performer: Performer = serde_json::from_value(value).unwrap();
        Arc::new(Versioned { version, value: Packed::new(&performer) })
    }

    #[test]
    fn names_that_users_make_up_do_not_become_series_without_end() {
        let mut shares = Shares::default();
        for number in 0..1000 {
            let requests = vec![("memory".to_owned(), 1.0), (format!("made.up/{number}"), 1.0)];
            shares.0.insert(Key::new("n", number.to_string()), Share { version: 1, phase: "Pending", requests });
        }
        let calm = Share { version: 1, phase: "Pending", requests: vec![("example.com/gpu".to_owned(), 2.0)] };
        shares.0.insert(Key::new("calm", "a"), calm);
        let counts = shares.counts();
        assert_eq!(counts.requested.len(), MOST_RESOURCES + 1);
        assert_eq!(counts.requested.get(&("n", "memory")), Some(&1000.0));
        assert_eq!(counts.requested.get(&("calm", "example.com/gpu")), Some(&2.0));
    }

    #[test]
    fn a_name_that_no_resource_can_have_is_not_shown() {
        let long = |length: usize| performer_with(1, &json!({ "memory": "1Ki", "x".repeat(length): "1" }));
        let shown = |length| Share::of(&long(length)).requests.len();
        assert_eq!((shown(LONGEST_NAME), shown(LONGEST_NAME + 1)), (2, 1));
    }

    #[test]
    fn a_version_is_looked_at_once_and_what_is_gone_is_not_counted() {
        let (mut shares, key) = (Shares::default(), Key::new("n", "a"));
        let mut memory = |performer: Option<Arc<Versioned<Packed<Performer>>>>| {
            shares.refresh(vec![key.clone()], |_| performer.clone());
            let counts = shares.counts();
            (counts.requested.get(&("n", "memory")).copied(), counts.by_phase.get(&("n", "Pending")).copied())
        };
        assert_eq!(memory(Some(performer(1, "1Ki"))), (Some(1024.0), Some(1)));
        assert_eq!(memory(Some(performer(1, "2Ki"))), (Some(1024.0), Some(1)), "the version is the same");
        assert_eq!(memory(Some(performer(2, "2Ki"))), (Some(2048.0), Some(1)));
        assert_eq!(memory(None), (None, None));
    }
}
