//! Which cluster a kubeconfig of the workload cluster reaches. In another one than before none of the instances' Nodes and
//! Pods are, and all that waits for them would take them for gone.

use api::machine::{NstanceCluster, WORKLOAD_CLUSTER_ANNOTATION};

/// What is done with a kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Use,
    /// It is asked again: until then what was used before is, or nothing.
    Wait(String),
    Refuse(String),
}

/// `known` is the uid of the cluster that was reached before, and `found` what the one says that is reached now: nothing
/// where the kubeconfig's user may not ask for it. The last are the NstanceCluster's.
pub fn judge(known: Option<&str>, found: Result<Option<&str>, &str>, (namespace, name): (&str, &str)) -> Verdict {
    match (known, found) {
        (Some(known), Ok(Some(found))) if known != found => Verdict::Refuse(format!(
            "it reaches another cluster than before: there the namespace kube-system has the uid {found}, and not {known}; \
             put a kubeconfig of the same cluster in its place or, if that was made anew, allow the new one with: kubectl \
             annotate -n {namespace} {} {name} --overwrite {WORKLOAD_CLUSTER_ANNOTATION}={found}",
            NstanceCluster::PLURAL
        )),
        (Some(_), Err(why)) => Verdict::Wait(format!("the cluster that it reaches does not say which it is: {why}")),
        // Nothing was made for any cluster before the first.
        (None, _) | (Some(_), Ok(_)) => Verdict::Use,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: (&str, &str) = ("n", "c");

    #[test]
    fn a_kubeconfig_of_another_cluster_is_refused_and_one_that_is_silent_waits() {
        assert_eq!(judge(Some("a"), Ok(Some("a")), CLUSTER), Verdict::Use);
        let Verdict::Refuse(why) = judge(Some("a"), Ok(Some("b")), CLUSTER) else { panic!("another cluster") };
        assert!(why.contains("uid b, and not a") && why.contains("kubectl annotate -n n nstanceclusters c "), "{why}");
        assert!(why.ends_with("strata.dev/workload-cluster=b"), "{why}");
        let Verdict::Wait(why) = judge(Some("a"), Err("refused"), CLUSTER) else { panic!("a silent one") };
        assert!(why.ends_with(": refused"), "{why}");
        assert_eq!(judge(Some("a"), Ok(None), CLUSTER), Verdict::Use, "its user may not ask");
        for found in [Ok(Some("b")), Ok(None), Err("refused")] {
            assert_eq!(judge(None, found, CLUSTER), Verdict::Use, "the first one");
        }
    }
}
