//! What every program of strata runs on, whatever it does: the clock, health and its watchdog, metrics, logs, admin ports,
//! parts that live as long as the process, and the order in which they end. No Kubernetes.

pub mod admin;
mod clock;
mod explain;
mod health;
mod log_writer;
mod metrics;
pub mod panic;
mod part;
mod task;
mod telemetry;

pub use clock::{Clock, jittered};
pub use explain::explained;
pub use health::{Health, PassingPulse, Pulse, spawn_watchdog};
pub use metrics::Registry;
pub use part::{Part, Parts};
pub use task::{ListenError, Tasks};
pub use telemetry::{LogFormat, flush as flush_logs, init as init_logs};
