//! The inputs a pod and a Service are built from: effective, normalised, hashable.

use std::collections::BTreeMap;

use api::condition::Reason;
use api::performer::{
    DEFAULT_GRPC_PORT, HardwareRequirements, MAX_NAME, Performer, PerformerConfig, PerformerSpec, PullPolicy,
    Scheduling, owned_name,
};
use api::workspace::MOST_VALUES;
use k8s_openapi::api::core::v1::{
    Affinity, EnvVar, EnvVarSource, LocalObjectReference, ResourceRequirements, Toleration,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Whose pod and Service it is. Nothing of it is an input of the pod: what changes here alone replaces none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub name: String,
    pub namespace: String,
    pub uid: String,
    /// `metadata.generation`, which the server raises with every change of the spec.
    pub generation: Option<i64>,
}

impl Identity {
    pub fn of(performer: &Performer) -> Self {
        let meta = &performer.metadata;
        Self {
            name: meta.name.clone().unwrap_or_default(),
            namespace: meta.namespace.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            generation: meta.generation,
        }
    }

    /// Name of the pod and of the Service.
    pub fn owned_name(&self) -> String {
        owned_name(&self.name)
    }
}

/// Everything a pod is built from, normalised so that specs that mean the same are equal.
///
/// Optional parts are left out when empty: an input that a later version adds then leaves the hash
/// of every older spec as it was, and an operator update replaces no pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Desired {
    pub avs_label: String,
    pub image: String,
    pub image_pull_policy: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    pub grpc_port: u16,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Box<Affinity>>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub runtime_class: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub priority_class: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<LocalObjectReference>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub service_account: String,
    /// Whether a GPU or a TEE was asked for. Says nothing about the pod, so it is not hashed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub needs_hardware: bool,
}

impl Desired {
    /// Short hash of the inputs, kept on the pod.
    pub fn hash(&self) -> String {
        let inputs = Self { needs_hardware: false, ..self.clone() };
        let canonical = serde_json::to_vec(&inputs).expect("plain data with string keys serialises");
        // 64 bits: two specs of one Performer must differ, nothing more.
        let digest = Sha256::digest(canonical);
        let short = digest.first_chunk().expect("sha256 gives 32 bytes");
        format!("{:016x}", u64::from_be_bytes(*short))
    }
}

/// Why no pod can be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// `InvalidName` or `InvalidSpec`.
    pub reason: Reason,
    /// Names the field and the remedy.
    pub message: String,
}

/// Checks a Performer and works out what to build from.
pub fn validate(performer: &Performer) -> Result<Desired, Invalid> {
    validate_name(performer.metadata.name.as_deref().unwrap_or_default())?;
    let spec = performer.spec.as_ref().ok_or_else(missing)?;
    if spec.image.trim().is_empty() {
        return Err(invalid(Reason::InvalidSpec, "spec.image is empty: name the container image to run"));
    }
    let none = PerformerConfig::default();
    let config = spec.config.as_ref().unwrap_or(&none);
    let grpc_port = effective_port(config)?;
    let scheduling = spec.scheduling.as_deref();
    let hardware = spec.hardware_requirements.as_deref();
    let resources = resources(spec, hardware);
    let needs_hardware = asks_for_gpu(resources.as_ref()) || hardware.is_some_and(|h| h.tee_required == Some(true));
    Ok(Desired {
        avs_label: avs_label(&spec.avs_address),
        image: spec.image.clone(),
        image_pull_policy: spec.image_pull_policy.unwrap_or(PullPolicy::IfNotPresent).as_str().to_owned(),
        version: spec.version.clone().unwrap_or_default(),
        grpc_port,
        env: env(config),
        command: config.command.clone(),
        args: config.args.clone(),
        resources,
        node_selector: node_selector(scheduling, hardware),
        tolerations: scheduling.map(|s| s.tolerations.clone()).unwrap_or_default(),
        affinity: scheduling.and_then(|s| s.affinity.clone()).filter(|a| **a != Affinity::default()),
        runtime_class: scheduling.and_then(|s| s.runtime_class.clone()).unwrap_or_default(),
        priority_class: scheduling.and_then(|s| s.priority_class_name.clone()).unwrap_or_default(),
        image_pull_secrets: spec.image_pull_secrets.clone(),
        service_account: config.service_account_name.clone().unwrap_or_default(),
        needs_hardware,
    })
}

fn validate_name(name: &str) -> Result<(), Invalid> {
    let message = if name.len() > MAX_NAME {
        format!(
            "the name has {} characters; its Service would be named performer-{name}, and a Service name \
             ends at 63: recreate the Performer under a name of at most {MAX_NAME} characters",
            name.len()
        )
    } else if name.contains('.') {
        "the name contains a dot, which a Service name must not: recreate the Performer under a name without dots"
            .to_owned()
    } else {
        return Ok(());
    };
    Err(invalid(Reason::InvalidName, message))
}

/// What cannot be read, and what is too large to be kept, is none.
fn missing() -> Invalid {
    let message = format!(
        "spec is missing, cannot be read or has more than {MOST_VALUES} values: set spec.avsAddress and spec.image, and shorten its lists"
    );
    invalid(Reason::InvalidSpec, message)
}

fn invalid(reason: Reason, message: impl Into<String>) -> Invalid {
    Invalid { reason, message: message.into() }
}

fn effective_port(config: &PerformerConfig) -> Result<u16, Invalid> {
    match config.grpc_port {
        None | Some(0) => Ok(DEFAULT_GRPC_PORT),
        Some(port) => u16::try_from(port).map_err(|_| {
            invalid(Reason::InvalidSpec, format!("spec.config.grpcPort is {port}: set a port from 1 to 65535"))
        }),
    }
}

/// `environment` sorted by name, then `environmentFrom` in its own order, so that it overrides.
fn env(config: &PerformerConfig) -> Vec<EnvVar> {
    let plain = config.environment.iter().map(|(name, value)| EnvVar {
        name: name.clone(),
        value: Some(value.clone()),
        value_from: None,
    });
    let sourced = config.environment_from.iter().map(|entry| EnvVar {
        name: entry.name.clone(),
        value: None,
        value_from: entry.value_from.as_ref().and_then(|from| {
            // An empty `valueFrom` would make the API server refuse the pod; it means no source.
            (from.secret_key_ref.is_some() || from.config_map_key_ref.is_some()).then(|| EnvVarSource {
                secret_key_ref: from.secret_key_ref.clone(),
                config_map_key_ref: from.config_map_key_ref.clone(),
                ..EnvVarSource::default()
            })
        }),
    });
    plain.chain(sourced).collect()
}

fn gpu_count(hardware: &HardwareRequirements) -> i32 {
    hardware.gpu_count.unwrap_or_default()
}

/// The container's resources with the GPUs written over them.
fn resources(spec: &PerformerSpec, hardware: Option<&HardwareRequirements>) -> Option<ResourceRequirements> {
    let mut resources = spec.resources.as_deref().cloned().unwrap_or_default();
    if let Some(hardware) = hardware.filter(|h| gpu_count(h) > 0) {
        let kind = hardware.gpu_type.as_deref().filter(|t| !t.is_empty()).unwrap_or("gpu");
        let resource = format!("nvidia.com/{kind}");
        let count = Quantity(gpu_count(hardware).to_string());
        for amounts in [&mut resources.limits, &mut resources.requests] {
            amounts.get_or_insert_default().insert(resource.clone(), count.clone());
        }
    }
    resources.limits = resources.limits.filter(|m| !m.is_empty());
    resources.requests = resources.requests.filter(|m| !m.is_empty());
    resources.claims = resources.claims.filter(|c| !c.is_empty());
    (resources != ResourceRequirements::default()).then_some(resources)
}

fn asks_for_gpu(resources: Option<&ResourceRequirements>) -> bool {
    let amounts = resources.into_iter().flat_map(|r| [&r.limits, &r.requests]).flatten();
    amounts.flat_map(BTreeMap::keys).any(|name| name.starts_with("nvidia.com/"))
}

/// Scheduling, then TEE, then custom labels; the later wins on the same key.
fn node_selector(scheduling: Option<&Scheduling>, hardware: Option<&HardwareRequirements>) -> BTreeMap<String, String> {
    let mut selector = scheduling.map(|s| s.node_selector.clone()).unwrap_or_default();
    if let Some(hardware) = hardware {
        if let Some(label) = tee_label(hardware) {
            selector.insert(label.to_owned(), "true".to_owned());
        }
        selector.extend(hardware.custom_labels.clone());
    }
    selector
}

/// The label that Node Feature Discovery puts on nodes with the TEE asked for.
fn tee_label(hardware: &HardwareRequirements) -> Option<&'static str> {
    if hardware.tee_required != Some(true) {
        return None;
    }
    match hardware.tee_type.as_deref()? {
        "sgx" => Some("intel.feature.node.kubernetes.io/sgx"),
        "sev" => Some("amd.feature.node.kubernetes.io/sev"),
        "tdx" => Some("intel.feature.node.kubernetes.io/tdx"),
        _ => None,
    }
}

/// An AVS address as a label value: always valid, and an Ethereum address only changes case.
pub fn avs_label(address: &str) -> String {
    let legal = address.chars().flat_map(char::to_lowercase).map(|c| match c {
        'a'..='z' | '0'..='9' | '.' | '-' => c,
        _ => '-',
    });
    // 63 is the length limit of label values. All characters are ASCII by now.
    let cut: String = legal.take(63).collect();
    cut.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned()
}
