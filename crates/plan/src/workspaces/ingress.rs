//! One Ingress per host.

use api::workspace::{Access, IngressSettings};
use serde_json::{Value, json};

/// What is reached at a host.
pub(super) struct Backend<'a> {
    pub host: &'a str,
    pub service: &'a str,
    pub port: i32,
    pub access: Access,
}

/// Name is needed for that of the certificate's Secret.
pub(super) fn ingress(name: &str, backend: &Backend<'_>, settings: &IngressSettings) -> Value {
    let mut annotations = json!(settings.annotations);
    if let Some(issuer) = &settings.issuer {
        annotations["cert-manager.io/cluster-issuer"] = json!(issuer);
    }
    if backend.access == Access::Authenticated {
        annotations["nginx.ingress.kubernetes.io/auth-url"] = json!(settings.auth_url);
        if let Some(signin) = &settings.auth_signin_url {
            annotations["nginx.ingress.kubernetes.io/auth-signin"] = json!(signin);
        }
    }
    let mut spec = json!({
        "rules": [{
            "host": backend.host,
            "http": { "paths": [{
                "path": "/", "pathType": "Prefix",
                "backend": { "service": { "name": backend.service, "port": { "number": backend.port } } },
            }] },
        }],
    });
    if let Some(class) = &settings.class {
        spec["ingressClassName"] = json!(class);
    }
    if settings.issuer.is_some() {
        spec["tls"] = json!([{ "hosts": [backend.host], "secretName": format!("{name}-tls") }]);
    }
    json!({ "metadata": { "annotations": annotations }, "spec": spec })
}

/// Where a host is reached.
pub(super) fn url(host: &str, settings: Option<&IngressSettings>) -> String {
    let is_encrypted = settings.is_some_and(|settings| settings.issuer.is_some());
    format!("{}://{host}", if is_encrypted { "https" } else { "http" })
}

/// Why this cannot be a host, if it cannot: DNS has limits.
pub(super) fn host_limit(host: &str) -> Option<String> {
    if host.split('.').any(|label| label.len() > 63) {
        return Some(format!("the host {host} has a part of more than 63 characters; shorten a prefix or a slug"));
    }
    (host.len() > 253).then(|| format!("the host {host} has more than 253 characters; shorten spec.domain or a prefix"))
}

/// What to do before anything can be exposed to authenticated users only, if something must be done. Only
/// ingress-nginx carries it out; behind another controller it would be open to all.
pub(super) fn authentication_remedy(settings: Option<&IngressSettings>) -> Option<String> {
    let class = settings.and_then(|settings| settings.class.as_deref()).unwrap_or_default();
    match settings.filter(|settings| settings.auth_url.is_some()) {
        None => Some("set spec.ingress.authURL, which checks who is signed in, or choose public".to_owned()),
        Some(settings) if settings.is_nginx() => None,
        Some(_) => Some(format!(
            "set spec.ingress.controller: nginx if class {class} is an ingress-nginx, or choose public and protect the \
             service itself"
        )),
    }
}
