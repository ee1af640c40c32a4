//! From a User to the objects of its code-server.

use std::collections::{BTreeMap, BTreeSet};

use api::condition::Reason;
use api::workspace::{
    Access, CodeServer, Exposure, LABEL_USER, LABEL_USER_UID, LABEL_WORKSPACE, User, UserSpec, ValuesKind, ValuesSource,
};
use serde_json::{Value, json};

use crate::Why;
use crate::object::differs;
use crate::workspaces::derived::{Derived, Found, ObjectId, ObjectKind, Objects, Owner};
use crate::workspaces::ingress::{Backend, authentication_remedy, host_limit, ingress};
use crate::workspaces::secret::{Content, PASSWORD};
use crate::workspaces::workspace::hash_name;

/// Stated whole, so that the same spec gives the same pod next year.
pub const DEFAULT_IMAGE: &str = "codercom/code-server:4.96.4";
/// Room for a few checked-out projects and their dependencies.
const DEFAULT_SIZE: &str = "10Gi";
/// Where the image listens.
const PORT: i32 = 8080;
/// The user `coder` of the image.
const CODER: i64 = 1000;
/// Any new value makes a new pod.
const RESTARTED_AT_ANNOTATION: &str = "workspaces.strata.dev/restarted-at";
pub(super) const NAME: &str = "code-server";
/// The variable that the image takes its password from.
const PASSWORD_VARIABLE: &str = "PASSWORD";

/// The name of all objects of a code-server but the Secret.
pub fn object_name(slug: &str) -> String {
    format!("{NAME}-{slug}")
}

/// As the StatefulSet calls its one pod.
pub fn pod_name(slug: &str) -> String {
    format!("{}-0", object_name(slug))
}

/// The slug that a pod's name speaks of.
pub fn slug_of_pod(pod: &str) -> Option<&str> {
    pod.strip_prefix(NAME)?.strip_prefix('-')?.strip_suffix("-0")
}

/// As the StatefulSet calls the claim of the home directory.
pub fn claim_name(slug: &str) -> String {
    format!("home-{}", pod_name(slug))
}

/// Where an exposed program is reached, beside the code-server's own host.
pub fn exposure_host(exposure: &Exposure, host: &str) -> String {
    format!("{}-{host}", exposure.host_prefix.as_deref().unwrap_or(&exposure.service))
}

pub(super) fn owner(user: &User) -> Owner {
    let slug = user.spec.as_ref().map(|spec| spec.slug.clone()).unwrap_or_default();
    let mut labels = BTreeMap::from([(LABEL_USER.to_owned(), slug)]);
    let workspace = user.metadata.labels.as_ref().and_then(|labels| labels.get(LABEL_WORKSPACE));
    labels.extend(workspace.map(|workspace| (LABEL_WORKSPACE.to_owned(), workspace.clone())));
    Owner::new(User::KIND, &user.metadata, labels)
}

/// Everything that shall be there, or what is wrong with the spec. Of `objects` those count that the User owns: its
/// password stays, and so does the form in which its volume was made.
pub fn derive(user: &User, objects: &Objects) -> Result<Vec<Derived>, Why> {
    let Some(spec) = &user.spec else {
        return Err(invalid("spec cannot be read; write it as `kubectl explain user.spec` shows"));
    };
    check_hosts(spec)?;
    let owner = owner(user);
    let present = password(&owner.uid, objects);
    if !spec.has_code_server() {
        return Ok(present.map(|name| Derived::keep(ObjectKind::Secret, name)).into_iter().collect());
    }
    let default = CodeServer::default();
    let settings = spec.code_server.as_ref().unwrap_or(&default);
    let name = object_name(&spec.slug);
    let live = objects.get(&ObjectId::new(ObjectKind::StatefulSet, name.as_str())).filter(|set| set.is_of(&owner.uid));
    let secret = match present {
        Some(name) => Derived::keep(ObjectKind::Secret, name),
        None => password_secret(&owner, &name, live),
    };
    let mut derived = vec![
        owner.derive(ObjectKind::ServiceAccount, name.as_str(), json!({})),
        role(&owner, &name, &spec.slug),
        role_binding(&owner, &name),
        service(&owner, &name, &spec.slug, settings),
        stateful_set(&owner, spec, settings, &secret.id.name, live),
        secret,
    ];
    derived.extend(ingresses(&owner, spec, settings, &name));
    Ok(derived)
}

fn check_hosts(spec: &UserSpec) -> Result<(), Why> {
    let Some(host) = spec.host.as_deref().filter(|_| spec.has_code_server()) else { return Ok(()) };
    let exposures = spec.code_server.as_ref().map(|settings| settings.exposures.as_slice()).unwrap_or_default();
    let remedy = authentication_remedy(spec.ingress.as_ref());
    let mut hosts = vec![host.to_owned()];
    for exposure in exposures {
        if let Some(remedy) = remedy.as_ref().filter(|_| exposure.access == Some(Access::Authenticated)) {
            return Err(invalid(format!("{} is exposed to authenticated users only; {remedy}", exposure.service)));
        }
        let host = exposure_host(exposure, host);
        if hosts.contains(&host) {
            return Err(invalid(format!("two exposures would use the same host {host}; give one another hostPrefix")));
        }
        hosts.push(host);
    }
    hosts.iter().find_map(|host| host_limit(host)).map_or(Ok(()), |message| Err(invalid(message)))
}

/// The Secret that the pod reads its password from, or, before there is a pod, the first one.
fn password<'a>(uid: &str, objects: &'a Objects) -> Option<&'a str> {
    let of_kind = |kind: ObjectKind| objects.iter().filter(move |(id, found)| id.kind == kind && found.is_of(uid));
    let is_used = |name: &&str| of_kind(ObjectKind::StatefulSet).any(|(_, set)| password_of(set) == Some(*name));
    let secrets = || of_kind(ObjectKind::Secret).filter(|(_, found)| !found.is_going).map(|(id, _)| id.name.as_str());
    secrets().find(is_used).or_else(|| secrets().next())
}

/// The name of the Secret that a StatefulSet takes the password from.
fn password_of(set: &Found) -> Option<&str> {
    let containers = set.content.0.pointer("/spec/template/spec/containers")?.as_array()?;
    let mut variables = containers.iter().filter_map(|container| container["env"].as_array()).flatten();
    variables.find(|variable| variable["name"] == PASSWORD_VARIABLE)?["valueFrom"]["secretKeyRef"]["name"].as_str()
}

/// A Secret for a new password. Its name is another than that of a Secret which is lost: pods read a password only when
/// they start, so the StatefulSet must change with it.
fn password_secret(owner: &Owner, name: &str, live: Option<&Found>) -> Derived {
    let lost = live.and_then(password_of);
    let name = hash_name(&format!("{name}-{PASSWORD}"), &json!({ "owner": owner.uid, "lost": lost }));
    owner.derive_secret(name, json!({ "immutable": true }), Content::NewPassword, None)
}

/// A person may look at the pod that is theirs, and at no other.
fn role(owner: &Owner, name: &str, slug: &str) -> Derived {
    let own_pod = |resource: &str| json!({ "apiGroups": [""], "resources": [resource], "resourceNames": [pod_name(slug)], "verbs": ["get"] });
    owner.derive(ObjectKind::Role, name, json!({ "rules": [own_pod("pods"), own_pod("pods/log")] }))
}

fn role_binding(owner: &Owner, name: &str) -> Derived {
    let fields = json!({
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name },
        "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": owner.namespace }],
    });
    owner.derive(ObjectKind::RoleBinding, name, fields)
}

fn service(owner: &Owner, name: &str, slug: &str, settings: &CodeServer) -> Derived {
    let port =
        |(name, port): (String, i32)| json!({ "name": name, "port": port, "targetPort": port, "protocol": "TCP" });
    let ports = ports(settings).into_iter().map(port).collect::<Vec<_>>();
    let spec = json!({ "type": "ClusterIP", "selector": selector(slug), "ports": ports });
    owner.derive(ObjectKind::Service, name, json!({ "spec": spec }))
}

/// Names and numbers, each number once.
fn ports(settings: &CodeServer) -> Vec<(String, i32)> {
    let exposed: BTreeSet<_> = settings.exposures.iter().map(|exposure| exposure.port).collect();
    let further = exposed.into_iter().filter(|port| *port != PORT).map(|port| (format!("port-{port}"), port));
    std::iter::once(("http".to_owned(), PORT)).chain(further).collect()
}

fn selector(slug: &str) -> Value {
    json!({ "app.kubernetes.io/name": NAME, LABEL_USER: slug })
}

fn stateful_set(owner: &Owner, spec: &UserSpec, settings: &CodeServer, secret: &str, live: Option<&Found>) -> Derived {
    let name = object_name(&spec.slug);
    let mut labels = owner.labels();
    labels.insert("app.kubernetes.io/name".to_owned(), json!(NAME));
    let mut annotations = json!({});
    if let Some(restarted_at) = &settings.restarted_at {
        annotations[RESTARTED_AT_ANNOTATION] = json!(restarted_at);
    }
    let pod = json!({
        "serviceAccountName": name,
        // Seven variables for each Service of the namespace would soon be more than a process can be started with.
        "enableServiceLinks": false,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": CODER, "runAsGroup": CODER, "fsGroup": CODER,
            "seccompProfile": { "type": "RuntimeDefault" },
        },
        "imagePullSecrets": named_once(spec.image_pull_secrets.iter().map(|secret| json!(secret))),
        "nodeSelector": settings.node_selector,
        "tolerations": settings.tolerations,
        "containers": [container(settings, secret)],
    });
    let set = json!({
        "replicas": i32::from(spec.stopped != Some(true)),
        "serviceName": name,
        // With the other policy a pod that never became ready would keep a repaired one from taking its place.
        "podManagementPolicy": "Parallel",
        "selector": { "matchLabels": selector(&spec.slug) },
        // The volume goes only with the User, if at all.
        "persistentVolumeClaimRetentionPolicy": { "whenDeleted": "Retain", "whenScaled": "Retain" },
        "template": { "metadata": { "labels": labels, "annotations": annotations }, "spec": pod },
        "volumeClaimTemplates": [claim(owner, settings, live)],
    });
    owner.derive(ObjectKind::StatefulSet, name, json!({ "spec": set }))
}

fn container(settings: &CodeServer, secret: &str) -> Value {
    // Stated either way: to an apply, null would be a value.
    let is_optional = |source: &ValuesSource| source.optional == Some(true);
    let named = |source: &ValuesSource| json!({ "name": source.name, "optional": is_optional(source) });
    let whole = settings.env_from.iter().filter(|source| source.key.is_none()).map(|source| match source.kind {
        ValuesKind::Secret => json!({ "secretRef": named(source) }),
        ValuesKind::ConfigMap => json!({ "configMapRef": named(source) }),
    });
    // A source with a key gives the variable of that name.
    let single = settings.env_from.iter().filter_map(|source| {
        let key = source.key.as_ref()?;
        let reference = json!({ "name": source.name, "key": key, "optional": is_optional(source) });
        let from = if source.kind == ValuesKind::Secret { "secretKeyRef" } else { "configMapKeyRef" };
        Some(json!({ "name": key, "valueFrom": { from: reference } }))
    });
    let password =
        json!({ "name": PASSWORD_VARIABLE, "valueFrom": { "secretKeyRef": { "name": secret, "key": PASSWORD } } });
    let own = settings.env.iter().map(|variable| json!(variable));
    // The password is not for a setting to replace.
    let others = single.chain(own).filter(|variable| variable["name"] != PASSWORD_VARIABLE);
    let containers = ports(settings).into_iter();
    let mut container = json!({
        "name": NAME,
        "image": settings.image.as_deref().unwrap_or(DEFAULT_IMAGE),
        "ports": containers.map(|(name, port)| json!({ "name": name, "containerPort": port, "protocol": "TCP" })).collect::<Vec<_>>(),
        "env": named_once(std::iter::once(password).chain(others)),
        "envFrom": whole.collect::<Vec<_>>(),
        "readinessProbe": { "httpGet": { "path": "/healthz", "port": "http" } },
        "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
        "volumeMounts": [{ "name": "home", "mountPath": "/home/coder" }],
    });
    if let Some(resources) = &settings.resources {
        container["resources"] = json!(resources);
    }
    container
}

/// Of several elements with one name the last: a list that has a name twice cannot be applied.
fn named_once(elements: impl Iterator<Item = Value>) -> Vec<Value> {
    let (elements, mut names) = (elements.collect::<Vec<_>>(), BTreeSet::new());
    let is_last = |element: &Value| names.insert(element["name"].to_string());
    let mut once: Vec<_> = elements.into_iter().rev().filter(is_last).collect();
    once.reverse();
    once
}

/// Kubernetes refuses to change it, so what was made stays as it was made.
fn claim(owner: &Owner, settings: &CodeServer, live: Option<&Found>) -> Value {
    let made = live.map(|live| &live.content.0["spec"]["volumeClaimTemplates"][0]);
    let labels = if let Some(made) = made {
        made["metadata"]["labels"].clone()
    } else {
        let mut labels = owner.labels();
        labels.insert(LABEL_USER_UID.to_owned(), json!(owner.uid));
        json!(labels)
    };
    let claim = |size: &Value, class: Option<&Value>| {
        let mut spec = json!({ "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": size } } });
        if let Some(class) = class {
            spec["storageClassName"] = class.clone();
        }
        json!({ "metadata": { "name": "home", "labels": labels }, "spec": spec })
    };
    let storage = settings.storage.clone().unwrap_or_default();
    let wanted =
        claim(&json!(storage.size.as_deref().unwrap_or(DEFAULT_SIZE)), storage.class.map(|c| json!(c)).as_ref());
    // One that has a class keeps it where the spec names none any more.
    let is_other = |made: &&Value| {
        differs(&wanted["spec"], made).is_some()
            || made.get("storageClassName") != wanted["spec"].get("storageClassName")
    };
    match made.map(|made| &made["spec"]).filter(is_other) {
        Some(made) => claim(&made["resources"]["requests"]["storage"], made.get("storageClassName")),
        None => wanted,
    }
}

fn ingresses(owner: &Owner, spec: &UserSpec, settings: &CodeServer, name: &str) -> Vec<Derived> {
    let Some(host) = &spec.host else { return Vec::new() };
    let ingress_settings = spec.ingress.clone().unwrap_or_default();
    let one = |object: String, host: &str, port: i32, access: Access| {
        let fields = ingress(&object, &Backend { host, service: name, port, access }, &ingress_settings);
        owner.derive(ObjectKind::Ingress, object, fields)
    };
    // The code-server asks for its password itself.
    let own = one(name.to_owned(), host, PORT, Access::Public);
    let exposed = settings.exposures.iter().map(|exposure| {
        let prefix = exposure.host_prefix.as_deref().unwrap_or(&exposure.service);
        let access = exposure.access.unwrap_or_default();
        // No slug has a dot: a user ana-x does not meet the exposure x of ana.
        one(format!("{name}.{prefix}"), &exposure_host(exposure, host), exposure.port, access)
    });
    std::iter::once(own).chain(exposed).collect()
}

fn invalid(message: impl Into<String>) -> Why {
    Why { reason: Reason::InvalidSpec, message: message.into() }
}
