//! How sources are, for readiness and metrics.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};

use super::{Peer, Sources};

/// How sources of one kind are, for readiness and metrics.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub known: u64,
    pub unknown: u64,
    pub losses: u64,
    pub panics: u64,
    pub oldest: Option<Duration>,
    /// The first interruptions.
    pub interruptions: Vec<String>,
}

/// Interruptions beyond these are only counted.
pub(super) const MENTIONED: usize = 3;

/// Sources with their types erased.
pub(crate) trait Tallied: Send + Sync {
    fn name(&self) -> &'static str;
    fn tally(&self) -> Tally;
}

impl<P: Peer, V: Send + Sync + 'static> Tallied for Sources<P, V> {
    fn name(&self) -> &'static str {
        self.pool.name
    }

    fn tally(&self) -> Tally {
        let (losses, panics) = (&self.pool.losses, &self.pool.panics);
        let now = self.pool.clock.instant();
        let mut tally = Tally {
            losses: losses.load(Ordering::Relaxed),
            panics: panics.load(Ordering::Relaxed),
            ..Tally::default()
        };
        for (peer, entry) in &*self.pool.lock() {
            let age = entry.contact_at.map(|at| now.saturating_duration_since(at));
            tally.oldest = tally.oldest.max(age);
            let Some(interruption) = &entry.interruption else {
                tally.known += 1;
                continue;
            };
            tally.unknown += 1;
            let contact =
                age.map_or("never connected".to_owned(), |age| format!("last contact {} s ago", age.as_secs()));
            tally.interruptions.push(format!("{peer}: {interruption} ({contact})"));
        }
        tally.interruptions.sort();
        tally.interruptions.truncate(MENTIONED);
        tally
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} unknown: {}", self.unknown, self.known + self.unknown, self.interruptions.join("; "))
    }
}

/// All sources of a process, for metrics.
#[derive(Clone, Default)]
pub(crate) struct AllSources(Arc<Mutex<Vec<Arc<dyn Tallied>>>>);

impl AllSources {
    pub(crate) fn add(&self, sources: Arc<dyn Tallied>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(sources);
    }
}

impl fmt::Debug for AllSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AllSources")
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SourceLabel {
    source: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    source: &'static str,
    state: &'static str,
}

impl Collector for AllSources {
    #[allow(clippy::cast_precision_loss, reason = "there are not that many peers")]
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if all.is_empty() {
            return Ok(());
        }
        let tallies: Vec<_> = all.iter().map(|sources| (sources.name(), sources.tally())).collect();
        let gauge = ConstGauge::new(0.0).metric_type();
        let help = "Peers by whether their state is known now";
        let mut metric = encoder.encode_descriptor("strata_source_peers", help, None, gauge)?;
        for (source, tally) in &tallies {
            for (state, count) in [("known", tally.known), ("unknown", tally.unknown)] {
                ConstGauge::new(count as f64).encode(metric.encode_family(&StateLabel { source, state })?)?;
            }
        }
        let help = "Time since the last contact with the peer that has been silent longest";
        let mut metric = encoder.encode_descriptor("strata_source_silence_seconds", help, None, gauge)?;
        for (source, tally) in &tallies {
            let silence = tally.oldest.unwrap_or_default().as_secs_f64();
            ConstGauge::new(silence).encode(metric.encode_family(&SourceLabel { source })?)?;
        }
        let counter = ConstCounter::new(0_u64).metric_type();
        let help = "Connections to peers that failed or ended";
        let mut metric = encoder.encode_descriptor("strata_source_losses", help, None, counter)?;
        for (source, tally) in &tallies {
            ConstCounter::new(tally.losses).encode(metric.encode_family(&SourceLabel { source })?)?;
        }
        let help = "Connections that ended with a panic";
        let mut metric = encoder.encode_descriptor("strata_source_panics", help, None, counter)?;
        for (source, tally) in &tallies {
            ConstCounter::new(tally.panics).encode(metric.encode_family(&SourceLabel { source })?)?;
        }
        Ok(())
    }
}
