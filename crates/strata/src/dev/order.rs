//! What is built before what, so that a first start shows something before everything is there.

use testbed::{Options, capi, cloud::Cloud, tools::CHARTS};

use super::{UpFlags, clusters};

const REAL_NODE: [&str; 5] = ["kubelet", "containerd", "containerd-shim-runc-v2", "ctr", "healthserver"];

/// Programs that may have to be built, each list in the order of use.
#[derive(Debug, PartialEq, Eq)]
pub struct Builds {
    /// Without these nothing serves.
    pub first: Vec<&'static str>,
    /// Built while the control plane serves: for releases, workspaces and a real node.
    pub later: Vec<&'static str>,
    /// Built while their examples become ready, which need none of it.
    pub last: Vec<&'static str>,
}

impl Builds {
    pub fn of(flags: &UpFlags) -> Self {
        if flags.kubeconfig.is_some() {
            // Releases that are in that cluster already need helm from the start.
            return Self { first: CHARTS.to_vec(), later: Vec::new(), last: Vec::new() };
        }
        let mut later = CHARTS.to_vec();
        later.extend(REAL_NODE.iter().filter(|_| flags.real_node));
        // Nothing is started with kubectl: it is for the user's hands.
        let mut last = vec!["kubectl", capi::NAME];
        if flags.cluster.is_some() {
            last.extend(Cloud::PROGRAMS.into_iter().chain(clusters::TOOLS));
        }
        Self { first: Options::default().programs().to_vec(), later, last }
    }

    /// What a start does without at first.
    pub fn after_first(&self) -> Vec<&'static str> {
        [&self.later[..], &self.last].concat()
    }
}

/// What can be used already, for a user who waits for the rest.
pub fn usable_now(kubeconfig: &std::path::Path, missing: &[&str]) -> Option<String> {
    let rest = missing.join(", ");
    let kubeconfig = kubeconfig.display();
    (!missing.is_empty()).then(|| {
        format!(
            "The control plane, the operator and the performers are up: export KUBECONFIG={kubeconfig}\n\
             Still to build: {rest}; releases, workspaces and Cluster API follow, and the commands to try."
        )
    })
}

/// What can be used in addition once the examples of charts are ready.
pub fn usable_with_charts(missing: &[&str]) -> Option<String> {
    let rest = missing.join(", ");
    (!missing.is_empty()).then(|| {
        format!(
            "Releases and workspaces are up as well.\n\
             Still to build: {rest}; Cluster API's machines follow, and the commands to try."
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(real_node: bool, kubeconfig: Option<&str>) -> UpFlags {
        UpFlags {
            detach: false,
            fresh: false,
            real_node,
            cluster: None,
            cloud_controller: false,
            kubeconfig: kubeconfig.map(Into::into),
            wait: None,
        }
    }

    #[test]
    fn the_control_plane_needs_neither_kubectl_nor_charts_nor_cluster_api() {
        let builds = Builds::of(&flags(false, None));
        assert_eq!(builds.first, ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"]);
        assert_eq!(builds.later, ["helm", "registry"]);
        assert_eq!(builds.last, ["kubectl", "capi"]);
    }

    #[test]
    fn the_launcher_builds_in_the_same_order() {
        let builds = Builds::of(&flags(false, None));
        assert_eq!(testbed::tools::FIRST_START.to_vec(), [builds.first.clone(), builds.after_first()].concat());
    }

    #[test]
    fn a_real_node_comes_late_and_a_foreign_cluster_needs_only_charts() {
        assert_eq!(Builds::of(&flags(true, None)).later[CHARTS.len()..], REAL_NODE);
        let builds = Builds::of(&flags(false, Some("kind.yaml")));
        assert_eq!((builds.after_first(), builds.first), (Vec::new(), CHARTS.to_vec()));
    }

    #[test]
    fn a_user_who_waits_reads_what_is_up_and_what_is_missing() {
        let text = usable_now(std::path::Path::new("/x/kubeconfig"), &["helm", "registry"]).unwrap();
        assert!(text.contains("KUBECONFIG=/x/kubeconfig") && text.contains("Still to build: helm, registry"), "{text}");
        assert_eq!(usable_now(std::path::Path::new("/x/kubeconfig"), &[]), None);
        let text = usable_with_charts(&["kubectl", "capi"]).unwrap();
        assert!(text.contains("workspaces are up") && text.contains("Still to build: kubectl, capi"), "{text}");
        assert_eq!(usable_with_charts(&[]), None);
    }
}
