//! Performers: one pod and one Service per object.
//!
//! ```text
//! validate(&Performer) → Desired          what to build from, normalised
//! Ages::of(…, &former, Clocks) → Ages     how long what is waited on has lasted
//! plan(&Performer, &Observed, &Policy)    → Plan<Action>
//!   … the executor runs the actions until one is not done, and gives an Outcome for each it tried …
//! Observed::after(&Plan, &[Outcome])      the world as those outcomes left it
//! status(&Round, now, &Capabilities)      → PerformerStatus, whole
//! events(before, after, &Plan, &[Outcome])→ what to tell the user
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
mod report;
mod trouble;

pub use action::{Action, Cause, Outcome};
pub use age::{Ages, Clocks};
pub use build::{pod, service};
pub use decide::plan;
pub use desired::{Desired, Identity, Invalid, avs_label, validate};
pub use event::events;
pub use facts::{
    Deletion, Exit, ImageWriter, PodFacts, PodPhase, PortFacts, Scheduled, ServiceFacts, ServiceType, TargetPort,
    Waiting,
};
pub use observed::{Observed, Slot};
pub use policy::Policy;
pub use report::{Capabilities, Round, status};
