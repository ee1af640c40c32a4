//! What the operator may do in the cluster, as data: roles, `strata rbac`, the chart and the
//! security page are all made from it, and a test compares it with the audit log.

use k8s_openapi::api::rbac::v1::PolicyRule;

/// Verbs on one resource, with the reason for having them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    pub group: &'static str,
    pub resource: &'static str,
    pub verbs: &'static [&'static str],
    pub why: &'static str,
}

impl Right {
    pub fn rule(&self) -> PolicyRule {
        PolicyRule {
            api_groups: Some(vec![self.group.to_owned()]),
            resources: Some(vec![self.resource.to_owned()]),
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
    why: "tell what happened to an object; one event per transition, never changed afterwards",
}];

/// Needed in the operator's own namespace only.
pub const OWN_NAMESPACE: &[Right] = &[Right {
    group: "coordination.k8s.io",
    resource: "leases",
    verbs: &["get", "list", "watch", "create", "update"],
    why: "elect the one replica that acts, renew and release its lease, and see another's release at once",
}];
