//! From a Workspace to the objects that it stands for.

use std::collections::BTreeMap;

use api::condition::Reason;
use api::workspace::{
    Access, ChartValues, CodeServer, DELETE_DATA_ANNOTATION, HelmReleaseSpec, LABEL_WORKSPACE, MOST_VALUES, Service,
    Storage, UserDefaults, UserSpec, Workspace, WorkspaceSpec, WorkspaceUser,
};
use k8s_openapi::api::core::v1::EnvVar;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Source;
use super::config::Configs;
use super::network::{self, Endpoint};
use crate::Why;
use crate::releases::too_many_values;
use crate::workspaces::derived::{Derived, ObjectKind, Owner};
use crate::workspaces::ingress::{Backend, authentication_remedy, host_limit, ingress};
use crate::workspaces::user::exposure_host;

/// What the objects depend on beside the Workspace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Surroundings {
    /// Where the API server answers, as far as it is known.
    pub api_server: Vec<Endpoint>,
    /// The Secrets that spec.configs takes from, by name.
    pub sources: BTreeMap<String, Source>,
}

pub(super) fn owner(workspace: &Workspace) -> Owner {
    let name = workspace.metadata.name.clone().unwrap_or_default();
    Owner::new(Workspace::KIND, &workspace.metadata, BTreeMap::from([(LABEL_WORKSPACE.to_owned(), name)]))
}

/// The spec, or what is wrong with it.
pub(super) fn validate(workspace: &Workspace) -> Result<&WorkspaceSpec, Why> {
    let Some(spec) = &workspace.spec else {
        return Err(invalid("spec cannot be read; write it as `kubectl explain workspace.spec` shows"));
    };
    // Together, since they are in memory together.
    let values = spec.services.values().filter_map(|service| service.values.as_ref());
    if values.map(ChartValues::count).sum::<usize>() > MOST_VALUES {
        return Err(invalid(too_many_values("the values of spec.services")));
    }
    check_hosts(workspace.metadata.name.as_deref().unwrap_or_default(), spec)?;
    Ok(spec)
}

/// Everything that shall be there, or what is wrong with the spec.
pub fn derive(workspace: &Workspace, surroundings: &Surroundings) -> Result<Vec<Derived>, Why> {
    let spec = validate(workspace)?;
    let owner = owner(workspace);
    let configs = Configs::new(&owner.name, spec, surroundings);
    let mut objects = configs.objects(&owner);
    objects.extend(network::policies(&owner, spec, &surroundings.api_server));
    for (name, service) in enabled(spec) {
        objects.push(release(&owner, spec, name, service, &configs));
        objects.extend(exposure(&owner, spec, name, service));
    }
    objects.extend(spec.users.iter().map(|user| person(&owner, spec, user, &configs)));
    Ok(objects)
}

pub(super) fn enabled(spec: &WorkspaceSpec) -> impl Iterator<Item = (&String, &Service)> {
    spec.services.iter().filter(|(_, service)| service.enabled != Some(false))
}

/// Where a service is reached, if it is exposed.
pub(super) fn service_host(workspace: &str, spec: &WorkspaceSpec, name: &str, service: &Service) -> Option<String> {
    let (expose, domain) = (service.expose.as_ref()?, spec.domain.as_ref()?);
    Some(format!("{}.{workspace}.{domain}", expose.host_prefix.as_deref().unwrap_or(name)))
}

/// Where a user's code-server is reached.
fn user_host(workspace: &str, spec: &WorkspaceSpec, user: &WorkspaceUser) -> Option<String> {
    spec.domain.as_ref().map(|domain| format!("{}.{workspace}.{domain}", user.slug))
}

/// A host leads to one place only. Checked before anything changes: half of a wrong spec would move hosts about.
fn check_hosts(workspace: &str, spec: &WorkspaceSpec) -> Result<(), Why> {
    let remedy = authentication_remedy(spec.ingress.as_ref());
    let mut hosts: Vec<(String, String, Access)> = Vec::new();
    for (name, service) in enabled(spec) {
        let Some(expose) = &service.expose else { continue };
        let Some(host) = service_host(workspace, spec, name, service) else {
            return Err(invalid(format!("spec.domain is needed to expose service {name}; set it, or remove expose")));
        };
        hosts.push((host, format!("service {name}"), expose.access.unwrap_or_default()));
    }
    for user in spec.users.iter().filter(|user| user.has_code_server()) {
        let Some(host) = user_host(workspace, spec, user) else { continue };
        for exposure in user.code_server.iter().flat_map(|settings| &settings.exposures) {
            let who = format!("exposure {} of user {}", exposure.service, user.slug);
            hosts.push((exposure_host(exposure, &host), who, exposure.access.unwrap_or_default()));
        }
        hosts.push((host, format!("user {}", user.slug), Access::Public));
    }
    let mut known: BTreeMap<&str, &str> = BTreeMap::new();
    for (host, who, access) in &hosts {
        if let Some(message) = host_limit(host) {
            return Err(invalid(format!("{who}: {message}")));
        }
        if let Some(remedy) = remedy.as_ref().filter(|_| *access == Access::Authenticated) {
            return Err(invalid(format!("{who} is exposed to authenticated users only; {remedy}")));
        }
        if let Some(other) = known.insert(host, who) {
            return Err(invalid(format!(
                "{other} and {who} would use the same host {host}; give one another hostPrefix or slug"
            )));
        }
    }
    Ok(())
}

fn release(owner: &Owner, spec: &WorkspaceSpec, name: &str, service: &Service, configs: &Configs<'_>) -> Derived {
    let values_from = match configs.follow(&service.values_from) {
        Ok(values_from) => values_from,
        Err(why) => return Derived::hold(ObjectKind::HelmRelease, name, why),
    };
    let release = HelmReleaseSpec {
        chart: service.chart.clone(),
        values_from,
        values: service.values.clone(),
        depends_on: service.depends_on.clone(),
        service_account_name: service.service_account_name.clone(),
        timeout: service.timeout,
        drift_detection: service.drift_detection,
        // Always stated: whether it is stopped is for the Workspace to say.
        stopped: Some(spec.stopped == Some(true)),
        ..HelmReleaseSpec::default()
    };
    let annotations =
        if service.delete_data == Some(true) { json!({ DELETE_DATA_ANNOTATION: "true" }) } else { json!({}) };
    owner.derive(ObjectKind::HelmRelease, name, json!({ "metadata": { "annotations": annotations }, "spec": release }))
}

fn exposure(owner: &Owner, spec: &WorkspaceSpec, name: &str, service: &Service) -> Option<Derived> {
    let expose = service.expose.as_ref()?;
    let host = service_host(&owner.name, spec, name, service)?;
    let settings = spec.ingress.clone().unwrap_or_default();
    let (port, access) = (expose.port, expose.access.unwrap_or_default());
    // Not the service's name alone: charts like to call their own Ingress so.
    let object = format!("{}-{name}", owner.name);
    let backend = Backend { host: &host, service: &expose.service, port, access };
    let fields = ingress(&object, &backend, &settings);
    Some(owner.derive(ObjectKind::Ingress, object, fields))
}

fn person(owner: &Owner, spec: &WorkspaceSpec, user: &WorkspaceUser, configs: &Configs<'_>) -> Derived {
    let mut settings = merged(spec.user_defaults.as_ref(), user.code_server.as_ref());
    match configs.follow(&settings.env_from) {
        Ok(env_from) => settings.env_from = env_from,
        Err(why) => return Derived::hold(ObjectKind::User, &user.slug, why),
    }
    let person = UserSpec {
        slug: user.slug.clone(),
        email: user.email.clone(),
        name: user.name.clone(),
        permissions: user.permissions.clone(),
        code_server: Some(settings),
        host: user_host(&owner.name, spec, user),
        ingress: spec.ingress.clone(),
        image_pull_secrets: spec.image_pull_secrets.clone(),
        stopped: Some(spec.stopped == Some(true)),
    };
    owner.derive(ObjectKind::User, user.slug.as_str(), json!({ "spec": without_empty(json!(person)) }))
}

/// Of a map that an apply leaves without any field the API server makes null, which our schemas refuse.
fn without_empty(value: Value) -> Value {
    let Value::Object(fields) = value else { return value };
    let fields = fields.into_iter().map(|(name, value)| (name, without_empty(value)));
    fields.filter(|(_, value)| value.as_object().is_none_or(|map| !map.is_empty())).collect()
}

/// The defaults with a user's own settings over them.
fn merged(defaults: Option<&UserDefaults>, own: Option<&CodeServer>) -> CodeServer {
    let defaults = defaults.cloned().unwrap_or_default();
    let mut merged = own.cloned().unwrap_or_default();
    merged.image = merged.image.or(defaults.image);
    merged.resources = merged.resources.or(defaults.resources);
    merged.storage = match (merged.storage, defaults.storage) {
        (Some(own), Some(default)) => Some(Storage {
            size: own.size.or(default.size),
            class: own.class.or(default.class),
            retention: own.retention.or(default.retention),
        }),
        (own, default) => own.or(default),
    };
    let is_own = |variable: &EnvVar| merged.env.iter().any(|own| own.name == variable.name);
    let defaulted: Vec<_> = defaults.env.into_iter().filter(|variable| !is_own(variable)).collect();
    merged.env = defaulted.into_iter().chain(merged.env).collect();
    // Later sources win over earlier ones.
    merged.env_from = defaults.env_from.into_iter().chain(merged.env_from).collect();
    merged.node_selector = defaults.node_selector.into_iter().chain(merged.node_selector).collect();
    if merged.tolerations.is_empty() {
        merged.tolerations = defaults.tolerations;
    }
    merged
}

fn invalid(message: impl Into<String>) -> Why {
    Why { reason: Reason::InvalidSpec, message: message.into() }
}
