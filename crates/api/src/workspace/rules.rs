//! What must hold between the fields of a Workspace or a User, with what to tell whoever breaks it.

use serde_json::{Value, json};

use super::form::{Form, Label};
use crate::schema::rule;

/// As `IngressSettings::is_nginx` has it.
const IS_NGINX: &str = "!has(self.spec.ingress) || !has(self.spec.ingress.class) || self.spec.ingress.class == 'nginx' || (has(self.spec.ingress.controller) && self.spec.ingress.controller == 'nginx')";

/// Then there is nothing at the user's host.
const WITHOUT_CODE_SERVER: &str = "!has(user.permissions) || !('code-server' in user.permissions) || (has(user.codeServer) && has(user.codeServer.disabled) && user.codeServer.disabled)";

/// For a map: each entry is as said; the message begins with the name of the first that is not.
fn each(holds: &str, message: &str) -> Value {
    json!({
        "rule": format!("self.all(name, {holds})"),
        "message": message,
        "messageExpression": format!("self.filter(name, !({holds}))[0] + \": {message}\""),
    })
}

/// The names of a map have this form, and are at most so long.
pub(super) fn names<F: Form>(max: usize) -> Value {
    each(
        &format!("name.size() <= {max} && name.matches(r'{}')", F::PATTERN),
        &format!("{} ({max} characters at most)", F::REMEDY),
    )
}

/// First parts of the hosts of those services that are exposed now.
fn prefixes(services: &str) -> String {
    let expose = format!("{services}[name].expose");
    format!(
        "{services}.filter(name, has({expose}) && (!has({services}[name].enabled) || {services}[name].enabled))\
         .map(name, has({expose}.hostPrefix) ? {expose}.hostPrefix : name)"
    )
}

/// Of spec.services.
pub(super) fn services() -> [Value; 3] {
    [
        names::<Label>(53),
        each(
            "!has(self[name].dependsOn) || self[name].dependsOn.all(other, other in self)",
            "dependsOn names a service that is not in spec.services; add it, or remove the name",
        ),
        // Lists of one are CEL's variables: what they hold is computed once, which the cost of 100 services asks for.
        rule(
            &format!("[{}].all(all, all.all(one, all.exists_one(other, other == one)))", prefixes("self")),
            "two exposed services would be at the same host; give one of them another expose.hostPrefix",
        ),
    ]
}

/// Of one entry of spec.configs.
pub(super) fn config() -> [Value; 2] {
    [
        rule(
            "has(self.data) != has(self.fromSecret)",
            "set either data, or fromSecret with the name of a Secret whose content is taken; exactly one of them",
        ),
        rule(
            "!has(self.fromSecret) || !has(self.kind) || self.kind == 'Secret'",
            "what is taken from a Secret is a Secret; remove kind, or set it to Secret",
        ),
    ]
}

/// Of a whole Workspace.
pub(super) fn workspace() -> Vec<Value> {
    let services = "has(self.spec.services) && self.spec.services.exists(name, has(self.spec.services[name].expose) && has(self.spec.services[name].expose.access) && self.spec.services[name].expose.access == 'authenticated')";
    let users = "has(self.spec.users) && self.spec.users.exists(user, has(user.codeServer) && has(user.codeServer.exposures) && user.codeServer.exposures.exists(exposure, has(exposure.access) && exposure.access == 'authenticated'))";
    let mut rules = vec![
        rule(
            &format!("self.metadata.name.size() <= 40 && self.metadata.name.matches('{}')", Label::PATTERN),
            "metadata.name becomes part of host and object names; use at most 40 lower-case letters, digits and dashes",
        ),
        rule(
            "has(self.spec.domain) || !has(self.spec.services) || !self.spec.services.exists(name, has(self.spec.services[name].expose))",
            "spec.domain is needed to expose a service; set it, or remove expose",
        ),
        rule(
            &format!(
                "!has(self.spec.services) || !has(self.spec.users) || [{}].all(prefixes, self.spec.users.all(user, !(user.slug in prefixes) || {WITHOUT_CODE_SERVER}))",
                prefixes("self.spec.services")
            ),
            "spec.services: an exposed service would be at the host of a user, {slug}.{workspace}.{domain}; give the service another expose.hostPrefix, or the user another slug",
        ),
    ];
    rules.extend(authenticated(&format!("({services}) || ({users})")));
    rules
}

/// Of a whole User.
pub(super) fn user() -> Vec<Value> {
    let mut rules = vec![rule(
        "self.spec.slug == oldSelf.spec.slug",
        "spec.slug cannot change, the volume hangs on it; create another User",
    )];
    rules.extend(authenticated(
        "has(self.spec.codeServer) && has(self.spec.codeServer.exposures) && self.spec.codeServer.exposures.exists(exposure, has(exposure.access) && exposure.access == 'authenticated')",
    ));
    rules
}

/// What must hold where something is exposed to authenticated users only.
fn authenticated(is_wanted: &str) -> [Value; 2] {
    [
        rule(
            &format!("!({is_wanted}) || (has(self.spec.ingress) && has(self.spec.ingress.authURL))"),
            "access authenticated needs spec.ingress.authURL, which says who is signed in; set it, or choose access: public",
        ),
        rule(
            &format!("!({is_wanted}) || ({IS_NGINX})"),
            "access authenticated is carried out by ingress-nginx; set spec.ingress.controller: nginx if spec.ingress.class is one, or use access: public and protect the service itself",
        ),
    ]
}
