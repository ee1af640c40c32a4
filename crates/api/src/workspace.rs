//! The kinds of `workspaces.strata.dev`: a team's environment, its people, and Helm releases, which also stand alone.

mod chart_values;
mod duration;
mod form;
mod name;
mod release;
mod release_status;
mod rules;
mod user;
#[expect(clippy::module_inception, reason = "each module has the name of its kind")]
mod workspace;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

pub use chart_values::{ChartValues, MOST_VALUES, count_values};
pub use duration::Span;
pub use name::{
    DELETE_DATA_ANNOTATION, DIGEST_ANNOTATION, FINALIZER, FORCE_ANNOTATION, LABEL_MANAGED_BY, LABEL_USER,
    LABEL_USER_UID, LABEL_WORKSPACE, MANAGED_BY, MAX_RELEASE_NAME, RECONCILE_ANNOTATION, ROLLBACK_ANNOTATION,
};
pub use release::{
    ChartReference, CrdPolicy, DriftDetection, DriftIgnore, DriftTarget, HelmRelease, HelmReleaseSpec,
    InstallRemediation, InstallStrategy, Repository, RollbackStrategy, SecretReference, TestStrategy,
    UninstallStrategy, UpgradeRemediation, UpgradeStrategy, ValuesKind, ValuesSource,
};
pub use release_status::{
    HelmReleaseStatus, OperationKind, ReadValues, ReleaseOperation, ReleaseRevision, Remedy, ResolvedChart,
    StoppedWorkload, TestResult,
};
pub use user::{CodeServer, Permission, User, UserPhase, UserSpec, UserStatus};
pub use workspace::{
    Access, Config, ConfigKind, Egress, Exposure, IngressController, IngressSettings, InventoryEntry, Network,
    Retention, Service, ServiceSummary, Storage, UserDefaults, UserSummary, Workspace, WorkspacePhase, WorkspaceSpec,
    WorkspaceStatus, WorkspaceUser,
};

pub const GROUP: &str = "workspaces.strata.dev";
pub const VERSION: &str = "v1alpha1";
pub const API_VERSION: &str = "workspaces.strata.dev/v1alpha1";

/// The definitions to install.
pub fn crds() -> [CustomResourceDefinition; 3] {
    [release::crd(), workspace::crd(), user::crd()]
}

/// The schema of a whole object of this group.
fn root<S: schemars::JsonSchema, T: schemars::JsonSchema>(
    kind: &str,
    description: &str,
    rules: &[serde_json::Value],
) -> serde_json::Value {
    let mut schema = serde_json::json!({
        "type": "object",
        "description": description,
        "required": ["spec"],
        "properties": {
            "apiVersion": { "type": "string", "description": format!("Always {API_VERSION}.") },
            "kind": { "type": "string", "description": format!("Always {kind}.") },
            "metadata": { "type": "object" },
            "spec": crate::schema::schema_of::<S>(),
            "status": crate::schema::schema_of::<T>(),
        },
    });
    if !rules.is_empty() {
        schema["x-kubernetes-validations"] = serde_json::json!(rules);
    }
    schema
}
