//! Logs: one line per thing that happened, as JSON for machines or as text for people, on stderr.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    sync::OnceLock,
    time::Duration,
};

use tracing_subscriber::EnvFilter;

use crate::log_writer::LogWriter;

/// Of this process.
static WRITER: OnceLock<LogWriter> = OnceLock::new();

/// A panic waits this long for its line to be written: much longer than any reader needs, and much shorter than a lease.
const LAST_WORDS: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Json,
    Pretty,
}

/// Starts logging for the process. `filter` is in the form of `RUST_LOG`, for example `info,performers=debug`.
pub fn init(format: LogFormat, filter: &str) -> Result<(), String> {
    let is_level = filter.parse::<tracing_subscriber::filter::LevelFilter>().is_ok();
    if !is_level && !filter.contains(['=', ',']) {
        // It would be taken for the name of a module, and everything else would fall silent.
        return Err(format!(
            "log level {filter:?} is unknown: use error, warn, info, debug or trace, or a filter like info,performers=debug"
        ));
    }
    let filter = EnvFilter::try_new(completed(filter)).map_err(|error| format!("log filter {filter:?}: {error}"))?;
    let writer = LogWriter::start(std::io::stderr()).map_err(|error| format!("no thread for the log: {error}"))?;
    let writer = WRITER.get_or_init(|| writer);
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| writer.clone());
    let started = match format {
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(true).with_span_list(false).try_init(),
        LogFormat::Pretty => builder.compact().try_init(),
    };
    started.map_err(|error| error.to_string())?;
    // The standard hook writes to stderr itself: a reader that stops reading would stall the thread that panics.
    std::panic::set_hook(Box::new(|panic| {
        let at = panic.location().map(ToString::to_string);
        let backtrace = Backtrace::capture();
        let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
        tracing::error!(at, backtrace, "panicked: {}", crate::panic::message(panic.payload()));
        // The process may end by it.
        flush(LAST_WORDS);
    }));
    Ok(())
}

/// kube's client reports every failed request as an error of its own, several times a second while a server is down. What
/// fails is reported by the caller, so it is silent unless the filter names it. A panic is reported here, whatever else is
/// to be silent.
fn completed(filter: &str) -> String {
    let quiet = if filter.contains("kube_client") { "" } else { ",kube_client=off" };
    format!("{filter}{quiet},process::telemetry=error")
}

/// Waits until what was logged is written, but no longer than `limit`: to be called before the process ends.
pub fn flush(limit: Duration) {
    if let Some(writer) = WRITER.get() {
        writer.flush(limit);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// What is logged under a filter when kube's client and we report an error.
    fn logged(filter: &str) -> String {
        #[derive(Clone, Default)]
        struct Lines(Arc<Mutex<Vec<u8>>>);
        impl std::io::Write for Lines {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().unwrap().write(bytes)
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let lines = Lines::default();
        let writer = lines.clone();
        let builder = tracing_subscriber::fmt().with_env_filter(completed(filter)).with_writer(move || writer.clone());
        tracing::subscriber::with_default(builder.finish(), || {
            tracing::error!(target: "kube_client::client::builder", "failed with error");
            tracing::warn!(target: "runtime::watch", "watch interrupted");
            tracing::error!("panicked");
        });
        String::from_utf8(lines.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_failed_request_is_told_once_unless_more_is_asked_for() {
        let usual = logged("info");
        assert!(usual.contains("watch interrupted") && !usual.contains("failed with error"), "{usual}");
        assert!(logged("info,kube_client=warn").contains("failed with error"));
    }

    #[test]
    fn no_filter_silences_a_panic() {
        for filter in ["off", "performers=debug", "off,kube_client=off"] {
            let text = logged(filter);
            assert!(text.contains("panicked") && !text.contains("watch interrupted"), "{filter}: {text}");
        }
    }
}
