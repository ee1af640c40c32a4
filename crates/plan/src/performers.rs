//! Performers: one pod and one Service per object.
//!
//! ```text
//! validate(&Performer) → Desired          what to build from, normalised
//! Ages::of(…, &former, Clocks) → Ages     how long what is waited on has lasted
//! plan(&Performer, &Observed, &Policy)    → Plan<Action>
//!   … runtime executes the steps and gives a Progress for each …
//! Observed::after(&Plan, &[Progress])     the world as those steps left it
//! report(&Round, now)                     → the whole status, events, and what to remember
//! ```

mod action;
mod age;
mod build;
mod decide;
mod desired;
mod event;
mod facts;
mod observed;
mod policy;
mod problem;
mod report;

pub use action::{Action, Cause, Created, Note};
pub use age::Ages;
pub use build::{pod, service};
pub use decide::plan;
pub use desired::{Desired, Identity, Invalid, avs_label, validate};
pub use facts::{
    Deletion, Exit, Foreign, ImageWriter, PodFacts, PodPhase, PortFacts, Scheduled, ServiceFacts, ServiceType,
    TargetPort, Waiting,
};
pub use observed::{Observed, Slot};
pub use policy::Policy;
use report::Round;
pub use report::{RoundOf, report};
