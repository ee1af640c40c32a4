//! What must hold between the fields of a Workspace or a User, with the message for a user who breaks it.
//!
//! A rule stands as deep as it can: API servers forgive a stored object what it breaks already as long as the part that
//! the rule is about does not change. At the root any write is such a change, also of status or finalizers, and what
//! broke a rule there could not even be deleted.

use serde_json::Value;

use super::form::{Form, Label};
use crate::schema::rule;

/// As `IngressSettings::is_nginx` has it.
const IS_NGINX: &str = "!has(self.ingress) || !has(self.ingress.class) || self.ingress.class == 'nginx' || (has(self.ingress.controller) && self.ingress.controller == 'nginx')";

/// Then there is nothing at the user's host. `user` is a spec, or an entry of spec.users.
fn is_without_code_server(user: &str) -> String {
    format!(
        "!has({user}.permissions) || !('code-server' in {user}.permissions) || (has({user}.codeServer) && has({user}.codeServer.disabled) && {user}.codeServer.disabled)"
    )
}

/// Whether a code-server exposes something to authenticated users only.
fn is_user_authenticated(user: &str) -> String {
    format!(
        "!({}) && has({user}.codeServer) && has({user}.codeServer.exposures) && {user}.codeServer.exposures.exists(exposure, has(exposure.access) && exposure.access == 'authenticated')",
        is_without_code_server(user),
    )
}

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

/// The first label of a service's host.
fn prefix(services: &str, name: &str) -> String {
    format!("(has({services}[{name}].expose.hostPrefix) ? {services}[{name}].expose.hostPrefix : {name})")
}

/// Of spec.services. What is compared with each other is gathered once, in a list of one that `all` gives its name to:
/// gathered or asked about anew for each pair, it would take the API server seconds.
pub(super) fn services() -> [Value; 3] {
    let prefixes = format!("self.map(name, {}, {})", is_exposed("self", "name"), prefix("self", "name"));
    [
        names::<Label>(53),
        rule(
            "self.all(name, !has(self[name].dependsOn) || self[name].dependsOn.all(other, other in self))",
            "dependsOn of a service names one that is not in spec.services; add it, or remove the name",
        ),
        rule(
            // `in` a list of one, where `==` would do: older API servers do not know how long these strings are, and
            // take that for endless.
            &format!("[{prefixes}].all(prefixes, prefixes.all(one, prefixes.exists_one(other, other in [one])))"),
            "two exposed services would use the same host; give one of them another expose.hostPrefix",
        ),
    ]
}

/// Of the spec of a Workspace.
pub(super) fn workspace_spec() -> Vec<Value> {
    let slugs = format!("self.users.map(user, !({}), user.slug)", is_without_code_server("user"));
    let exposed = is_exposed("self.services", "name");
    let is_apart = format!("!({exposed}) || !({} in slugs)", prefix("self.services", "name"));
    let mut rules = vec![
        rule(
            &format!(
                "!has(self.services) || !has(self.users) || [{slugs}].all(slugs, self.services.all(name, {is_apart}))"
            ),
            "spec.services: an exposed service would use the host of a user, {slug}.{workspace}.{domain}; give the service another expose.hostPrefix, or the user another slug",
        ),
        rule(
            &format!("has(self.domain) || !has(self.services) || !self.services.exists(name, {exposed})"),
            "spec.domain is needed to expose a service; set it, or remove expose",
        ),
    ];
    let services = format!(
        "has(self.services) && self.services.exists(name, {exposed} && has(self.services[name].expose.access) && self.services[name].expose.access == 'authenticated')"
    );
    let users = format!("has(self.users) && self.users.exists(user, {})", is_user_authenticated("user"));
    rules.extend(authenticated(&format!("({services}) || ({users})")));
    rules
}

/// Of the spec of a User.
pub(super) fn user_spec() -> Vec<Value> {
    let mut rules = vec![rule(
        "self.slug == oldSelf.slug",
        "spec.slug cannot change, the volume's name contains it; create another User",
    )];
    rules.extend(authenticated(&is_user_authenticated("self")));
    rules
}

/// Of a time-out. A duration is zero if all of its digits are.
pub(super) fn more_than_zero() -> Value {
    rule("self.matches('[1-9]')", "a time-out must be more than zero; write a duration like 90s, or leave it out")
}

/// Of one entry of spec.configs.
pub(super) fn config() -> [Value; 2] {
    [
        rule(
            "has(self.data) != has(self.fromSecret)",
            "set either data, or fromSecret with the name of a Secret to copy from; exactly one of them",
        ),
        rule(
            "!has(self.fromSecret) || !has(self.kind) || self.kind == 'Secret'",
            "an entry with fromSecret becomes a Secret; remove kind, or set it to Secret",
        ),
    ]
}

/// Of a whole Workspace. A name cannot change: what was taken once stays right.
pub(super) fn workspace() -> [Value; 1] {
    [rule(
        &format!("self.metadata.name.size() <= 40 && self.metadata.name.matches('{}')", Label::PATTERN),
        "metadata.name becomes part of host and object names; use at most 40 lower-case letters, digits and dashes",
    )]
}

/// What must hold where something is exposed to authenticated users only.
fn authenticated(is_wanted: &str) -> [Value; 2] {
    [
        rule(
            &format!("!({is_wanted}) || (has(self.ingress) && has(self.ingress.authURL))"),
            "access authenticated needs spec.ingress.authURL, which checks who is signed in; set it, or choose access: public",
        ),
        rule(
            &format!("!({is_wanted}) || ({IS_NGINX})"),
            "access authenticated works with ingress-nginx only; set spec.ingress.controller: nginx if spec.ingress.class is one, or use access: public and protect the service itself",
        ),
    ]
}
