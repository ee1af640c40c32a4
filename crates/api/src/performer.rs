//! `Performer` (`hourglass.eigenlayer.io/v1alpha1`): one AVS workload, run as one pod behind one
//! Service. The published schema is the contract; ours is a superset of it.

mod crd;
mod name;
mod object;
mod spec;
mod status;

pub use crd::crd;
pub use name::{
    APP, CONTAINER_NAME, DEFAULT_GRPC_PORT, FINALIZER, GENERATION_ANNOTATION, GRPC_PORT_NAME, IMAGE_ANNOTATION,
    INPUT_HASH_ANNOTATION, LABEL_APP, LABEL_AVS, LABEL_PERFORMER, MAX_NAME, REPLACEMENTS_ANNOTATION,
    VERSION_ANNOTATION, dns_name, grpc_endpoint, owned_name,
};
pub use object::Performer;
pub use spec::{
    EnvironmentSource, EnvironmentValue, HardwareRequirements, PerformerConfig, PerformerSpec, PullPolicy, Scheduling,
};
pub use status::{PerformerStatus, Phase};

pub const GROUP: &str = "hourglass.eigenlayer.io";
pub const VERSION: &str = "v1alpha1";
pub const API_VERSION: &str = "hourglass.eigenlayer.io/v1alpha1";
pub const KIND: &str = "Performer";
pub const PLURAL: &str = "performers";
