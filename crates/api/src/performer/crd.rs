//! The custom resource definition, generated from the types of this module.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

/// The definition to install.
pub fn crd() -> CustomResourceDefinition {
    CustomResourceDefinition::default()
}
