//! `Performer` (`hourglass.eigenlayer.io/v1alpha1`): one AVS workload, run as one pod behind one
//! Service. The published schema is the contract; ours is a superset of it.

mod crd;
mod decode;
mod name;
mod spec;
mod status;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};

pub use crd::crd;
pub use name::{
    APP, DEFAULT_GRPC_PORT, FINALIZER, GRPC_PORT_NAME, IMAGE_ANNOTATION, INPUT_HASH_ANNOTATION, LABEL_APP, LABEL_AVS,
    LABEL_PERFORMER, MAX_NAME, REPLACEMENTS_ANNOTATION, VERSION_ANNOTATION, dns_name, grpc_endpoint, owned_name,
};
pub use spec::{
    EnvironmentSource, EnvironmentValue, HardwareRequirements, PerformerConfig, PerformerSpec, PullPolicy, Scheduling,
};
pub use status::{PerformerStatus, Phase};

pub const GROUP: &str = "hourglass.eigenlayer.io";
pub const VERSION: &str = "v1alpha1";
pub const API_VERSION: &str = "hourglass.eigenlayer.io/v1alpha1";
pub const KIND: &str = "Performer";
pub const PLURAL: &str = "performers";

/// One AVS workload.
///
/// Written by hand rather than derived: the published schema does not require `spec`, so an object
/// without one can be stored and must decode.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Performer {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: Option<PerformerSpec>,
    #[serde(default)]
    pub status: Option<PerformerStatus>,
}

impl Serialize for Performer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = 3 + usize::from(self.spec.is_some()) + usize::from(self.status.is_some());
        let mut object = serializer.serialize_struct(KIND, fields)?;
        object.serialize_field("apiVersion", API_VERSION)?;
        object.serialize_field("kind", KIND)?;
        object.serialize_field("metadata", &self.metadata)?;
        if let Some(spec) = &self.spec {
            object.serialize_field("spec", spec)?;
        }
        if let Some(status) = &self.status {
            object.serialize_field("status", status)?;
        }
        object.end()
    }
}

// kube implements its own `Resource` for everything that has these two.
impl k8s_openapi::Resource for Performer {
    const API_VERSION: &'static str = API_VERSION;
    const GROUP: &'static str = GROUP;
    const KIND: &'static str = KIND;
    const VERSION: &'static str = VERSION;
    const URL_PATH_SEGMENT: &'static str = PLURAL;
    type Scope = NamespaceResourceScope;
}

impl k8s_openapi::Metadata for Performer {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
