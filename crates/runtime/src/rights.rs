//! What the operator may do in the cluster, as data: roles, `strata rbac`, the chart and the
//! security page are all made from it, and a test compares it with the audit log.

use k8s_openapi::{
    api::{
        core::v1::ServiceAccount,
        rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

/// The original operator's lease: where both run, only one of them acts.
pub const DEFAULT_LEASE: &str = "b8e8a8a8.hourglass.eigenlayer.io";

/// Verbs on one resource, with the reason for having them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    pub group: &'static str,
    /// As in the path of a request: `secrets`, `pods/eviction`, or `serviceaccounts/NAME/token` for one object only.
    pub resource: &'static str,
    pub verbs: &'static [&'static str],
    pub why: &'static str,
}

impl Right {
    pub fn rule(&self) -> PolicyRule {
        let parts: Vec<&str> = self.resource.split('/').collect();
        let (resource, names) = match parts[..] {
            [plural, name, subresource] => (format!("{plural}/{subresource}"), Some(vec![name.to_owned()])),
            _ => (self.resource.to_owned(), None),
        };
        PolicyRule {
            api_groups: Some(vec![self.group.to_owned()]),
            resources: Some(vec![resource]),
            resource_names: names,
            verbs: self.verbs.iter().map(|&verb| verb.to_owned()).collect(),
            ..PolicyRule::default()
        }
    }
}

/// Needed in the whole cluster, whichever layers run.
pub const CLUSTER: &[Right] = &[Right {
    group: "events.k8s.io",
    resource: "events",
    verbs: &["create"],
    why: "record what happened to an object; one event per transition, never changed afterwards",
}];

/// Needed in the operator's own namespace only, see [`own_rule`].
pub const OWN_NAMESPACE: &[Right] = &[
    Right {
        group: "coordination.k8s.io",
        resource: "leases",
        verbs: &["create"],
        why: "create the Lease that elects the one acting replica; a right to create cannot be bound to a name",
    },
    Right {
        group: "coordination.k8s.io",
        resource: "leases",
        verbs: &["get", "list", "watch", "update"],
        why: "renew and release that Lease, and watch for its release by another replica; this name only (`--lease-name`)",
    },
];

/// The rule for one of [`OWN_NAMESPACE`]: a right to one Lease. RBAC does not know the name of what is to be created; a
/// list or watch by the field `metadata.name` it takes as one of that name.
pub fn own_rule(right: &Right, lease: &str) -> PolicyRule {
    let is_for_one = right.verbs != ["create"];
    PolicyRule { resource_names: is_for_one.then(|| vec![lease.to_owned()]), ..right.rule() }
}

/// An account of a layer beside the operator's own, in the operator's namespace, with the rights of one of the layer's
/// roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    pub name: &'static str,
    /// The ClusterRole that it is bound to, and that the binding is named after.
    pub role: &'static str,
}

impl Account {
    pub fn objects(&self, namespace: &str) -> (ServiceAccount, ClusterRoleBinding) {
        let account = ServiceAccount { metadata: within(namespace, self.name), ..ServiceAccount::default() };
        let binding = ClusterRoleBinding {
            metadata: named(self.role),
            role_ref: role_ref("ClusterRole", self.role),
            subjects: Some(vec![subject(namespace, self.name)]),
        };
        (account, binding)
    }
}

/// What a layer needs in the operator's own namespace only. `name` is the operator's account, and the beginning of the
/// role's name.
pub fn layer_role(namespace: &str, name: &str, layer: &str, rights: &[Right]) -> (Role, RoleBinding) {
    let role_name = format!("{name}-{layer}");
    let role = Role { metadata: within(namespace, &role_name), rules: Some(rights.iter().map(Right::rule).collect()) };
    let binding = RoleBinding {
        metadata: within(namespace, &role_name),
        role_ref: role_ref("Role", &role_name),
        subjects: Some(vec![subject(namespace, name)]),
    };
    (role, binding)
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }
}

fn within(namespace: &str, name: &str) -> ObjectMeta {
    ObjectMeta { namespace: Some(namespace.to_owned()), ..named(name) }
}

fn role_ref(kind: &str, name: &str) -> RoleRef {
    RoleRef { api_group: "rbac.authorization.k8s.io".to_owned(), kind: kind.to_owned(), name: name.to_owned() }
}

fn subject(namespace: &str, account: &str) -> Subject {
    Subject {
        kind: "ServiceAccount".to_owned(),
        name: account.to_owned(),
        namespace: Some(namespace.to_owned()),
        ..Subject::default()
    }
}

/// Everything the operator is allowed to do, and the account that is allowed to.
pub struct Rbac {
    pub account: ServiceAccount,
    pub cluster_role: ClusterRole,
    pub cluster_binding: ClusterRoleBinding,
    pub role: Role,
    pub binding: RoleBinding,
}

impl Rbac {
    /// For an operator whose lease has another name than [`DEFAULT_LEASE`].
    #[must_use]
    pub fn with_lease(mut self, lease: &str) -> Self {
        self.role.rules = Some(OWN_NAMESPACE.iter().map(|right| own_rule(right, lease)).collect());
        self
    }

    /// All of it, in the order in which it is to be applied.
    pub fn objects(&self) -> [serde_json::Value; 5] {
        use serde_json::json;
        [
            json!(self.account),
            json!(self.cluster_role),
            json!(self.cluster_binding),
            json!(self.role),
            json!(self.binding),
        ]
    }
}

/// `layers` are the rights that the layers add to those of the runtime.
pub fn rbac(namespace: &str, name: &str, layers: &[Right]) -> Rbac {
    let lease_name = format!("{name}-lease");
    let cluster_rights = layers.iter().chain(CLUSTER);
    let rbac = Rbac {
        account: ServiceAccount { metadata: within(namespace, name), ..ServiceAccount::default() },
        cluster_role: ClusterRole {
            metadata: named(name),
            rules: Some(cluster_rights.map(Right::rule).collect()),
            ..ClusterRole::default()
        },
        cluster_binding: ClusterRoleBinding {
            metadata: named(name),
            role_ref: role_ref("ClusterRole", name),
            subjects: Some(vec![subject(namespace, name)]),
        },
        role: Role { metadata: within(namespace, &lease_name), rules: None },
        binding: RoleBinding {
            metadata: within(namespace, &lease_name),
            role_ref: role_ref("Role", &lease_name),
            subjects: Some(vec![subject(namespace, name)]),
        },
    };
    rbac.with_lease(DEFAULT_LEASE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layers_rights_in_one_namespace_are_bound_there() {
        let secrets = Right { group: "", resource: "secrets", verbs: &["get"], why: "" };
        let (role, binding) = layer_role("n", "strata", "machines", &[secrets]);
        assert_eq!(
            (role.metadata.namespace.as_deref(), role.metadata.name.as_deref()),
            (Some("n"), Some("strata-machines"))
        );
        assert_eq!(binding.metadata, role.metadata);
        assert_eq!((binding.role_ref.kind.as_str(), binding.role_ref.name.as_str()), ("Role", "strata-machines"));
        assert_eq!(binding.subjects.unwrap()[0].name, "strata");
        let (account, bound) = Account { name: "workload", role: "strata-workload" }.objects("n");
        assert_eq!(account.metadata.namespace.as_deref(), Some("n"));
        let subject = &bound.subjects.unwrap()[0];
        assert_eq!((subject.name.as_str(), subject.namespace.as_deref()), ("workload", Some("n")));
        assert_eq!((bound.role_ref.kind.as_str(), bound.role_ref.name.as_str()), ("ClusterRole", "strata-workload"));
    }

    #[test]
    fn a_right_may_be_to_one_object_only() {
        let rule = |resource| Right { group: "", resource, verbs: &["create"], why: "" }.rule();
        let token = rule("serviceaccounts/workload/token");
        assert_eq!(token.resources.unwrap(), ["serviceaccounts/token"]);
        assert_eq!(token.resource_names.unwrap(), ["workload"]);
        let eviction = rule("pods/eviction");
        assert_eq!((eviction.resources.unwrap(), eviction.resource_names), (vec!["pods/eviction".to_owned()], None));
    }

    #[test]
    fn only_the_own_lease_may_be_read_and_changed() {
        for (lease, rbac) in
            [(DEFAULT_LEASE, rbac("n", "strata", &[])), ("other", rbac("n", "strata", &[]).with_lease("other"))]
        {
            let rules = rbac.role.rules.unwrap();
            for rule in &rules {
                let names = rule.resource_names.clone().unwrap_or_default();
                assert_eq!(names, if rule.verbs == ["create"] { vec![] } else { vec![lease.to_owned()] }, "{rule:?}");
            }
            let verbs: Vec<String> = rules.into_iter().flat_map(|rule| rule.verbs).collect();
            assert_eq!(verbs, ["create", "get", "list", "watch", "update"]);
        }
    }
}
