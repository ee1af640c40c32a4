//! Names, labels and annotations that users, the executor and we rely on.

/// Kept on a Performer until its pod and Service are gone.
pub const FINALIZER: &str = "hourglass.eigenlayer.io/performer-finalizer";

pub const LABEL_APP: &str = "app";
/// Value of [`LABEL_APP`] on every performer pod.
pub const APP: &str = "hourglass-performer";
/// Holds the Performer's name; the Service selects by this label alone.
pub const LABEL_PERFORMER: &str = "hourglass.eigenlayer.io/performer";
pub const LABEL_AVS: &str = "hourglass.eigenlayer.io/avs";

/// Hash of the inputs the pod was built from.
pub const INPUT_HASH_ANNOTATION: &str = "hourglass.eigenlayer.io/input-hash";
/// `spec.version` the pod was built for; the version appears nowhere else in a pod.
pub const VERSION_ANNOTATION: &str = "hourglass.eigenlayer.io/version";
/// `spec.image` the pod was built for; admission may rewrite the container's own image.
pub const IMAGE_ANNOTATION: &str = "hourglass.eigenlayer.io/image";
/// `metadata.generation` of the Performer the pod was built for: a Performer of an earlier one, read from a cache, is old.
pub const GENERATION_ANNOTATION: &str = "hourglass.eigenlayer.io/generation";
/// How many pods in a row failed before this one; it makes the delay grow.
pub const REPLACEMENTS_ANNOTATION: &str = "hourglass.eigenlayer.io/replacements";

/// Name of the one container that we ask for, as of the original operator's. Admission may add others, in any place.
pub const CONTAINER_NAME: &str = "performer";
/// Name of the container port, the Service port and the Service's target.
pub const GRPC_PORT_NAME: &str = "grpc";
pub const DEFAULT_GRPC_PORT: u16 = 9090;

const PREFIX: &str = "performer-";

/// A Service name is a label of at most 63 characters, and ours starts with `performer-`.
pub const MAX_NAME: usize = 63 - PREFIX.len();

/// Name of the pod and of the Service of the Performer `name`.
pub fn owned_name(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// DNS name of the Performer's Service.
pub fn dns_name(name: &str, namespace: &str) -> String {
    format!("{PREFIX}{name}.{namespace}.svc.cluster.local")
}

/// Where clients reach the Performer: DNS name and port.
pub fn grpc_endpoint(name: &str, namespace: &str, port: u16) -> String {
    format!("{}:{port}", dns_name(name, namespace))
}
