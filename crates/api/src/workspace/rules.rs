//! What must hold between the fields of a Workspace or a User, with what to tell whoever breaks it.

use serde_json::Value;

use super::form::{Form, Label};
use crate::schema::rule;

/// As `IngressSettings::is_nginx` has it.
const IS_NGINX: &str = "!has(self.spec.ingress) || !has(self.spec.ingress.class) || self.spec.ingress.class == 'nginx' || (has(self.spec.ingress.controller) && self.spec.ingress.controller == 'nginx')";

/// Then there is nothing at the user's host.
const WITHOUT_CODE_SERVER: &str = "!has(user.permissions) || !('code-server' in user.permissions) || (has(user.codeServer) && has(user.codeServer.disabled) && user.codeServer.disabled)";

/// The names of a map have this form, and are at most so long.
pub(super) fn names<F: Form>(max: usize) -> Value {
    rule(
        &format!("self.all(name, name.size() <= {max} && name.matches(r'{}'))", F::PATTERN),
        &format!("for every name: {}; {max} characters at most", F::REMEDY),
    )
}

/// Whether a service is at a host now.
fn is_exposed(services: &str, name: &str) -> String {
    format!("has({services}[{name}].expose) && (!has({services}[{name}].enabled) || {services}[{name}].enabled)")
}

/// Of spec.services.
pub(super) fn services() -> [Value; 3] {
    let prefix =
        |name: &str| format!("(has(self[{name}].expose.hostPrefix) ? self[{name}].expose.hostPrefix : {name})");
    // `in` a list of one, where `==` would do: older API servers cannot tell how long these strings are, and take that
    // for endless.
    let is_alone = format!(
        "!({}) || self.exists_one(other, {} && {} in [{}])",
        is_exposed("self", "name"),
        is_exposed("self", "other"),
        prefix("name"),
        prefix("other"),
    );
    [
        names::<Label>(53),
        rule(
            "self.all(name, !has(self[name].dependsOn) || self[name].dependsOn.all(other, other in self))",
            "dependsOn of a service names one that is not in spec.services; add it, or remove the name",
        ),
        rule(
            &format!("self.all(name, {is_alone})"),
            "two exposed services would be at the same host; give one of them another expose.hostPrefix",
        ),
    ]
}

/// Of the spec of a Workspace. What stands inside `exists` may be asked fifty thousand times: it is kept short.
pub(super) fn spec() -> [Value; 1] {
    let meets = |prefix: &str| format!("self.users.exists(user, user.slug == {prefix} && !({WITHOUT_CODE_SERVER}))");
    let is_apart = format!(
        "!({}) || (has(self.services[name].expose.hostPrefix) ? !{} : !{})",
        is_exposed("self.services", "name"),
        meets("self.services[name].expose.hostPrefix"),
        meets("name"),
    );
    [rule(
        &format!("!has(self.services) || !has(self.users) || self.services.all(name, {is_apart})"),
        "spec.services: an exposed service would be at the host of a user, {slug}.{workspace}.{domain}; give the service another expose.hostPrefix, or the user another slug",
    )]
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
