//! Which real programs `strata dev` and the tests run, how each is built, and where it is kept.
//!
//! Versions are stated in `tools/<module>/go.mod` alone. This crate needs next to nothing: the launcher builds programs
//! with it while the rest of strata is still being compiled.

mod shelf;

pub use shelf::Shelf;
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

/// Go's own settings for every build: static programs, because they must run wherever the cache is mounted, and no
/// workspace of the user's.
pub const GO_ENVIRONMENT: [(&str, &str); 2] = [("CGO_ENABLED", "0"), ("GOWORK", "off")];

/// Where everything is kept that outlives a clone: `${XDG_CACHE_HOME:-~/.cache}/strata`.
#[expect(clippy::disallowed_methods, reason = "the launcher and strata must look for programs in the same place")]
pub fn cache() -> PathBuf {
    // A relative one is invalid by its specification, and would be another folder for each of the programs.
    let named = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    // Without HOME it is the home of the user's account. Never a folder that all users share: what lies there is run.
    let home = || std::env::home_dir().filter(|home| home.is_absolute()).map(|home| home.join(".cache"));
    let base = named.or_else(home).expect("XDG_CACHE_HOME or HOME must be an absolute path: set one of them");
    base.join("strata")
}

/// A Go module under `tools/` that pins one upstream project.
#[derive(Debug)]
struct Module {
    pub name: &'static str,
    /// The required module whose version is the version of its programs.
    upstream: &'static str,
    pub go_mod: &'static str,
    pub go_sum: &'static str,
    /// The program, where it is ours and upstream is only its library.
    pub main_go: Option<&'static str>,
}

macro_rules! module {
    ($name:literal, $upstream:literal) => {
        Module {
            name: $name,
            upstream: $upstream,
            go_mod: include_str!(concat!("../../../tools/", $name, "/go.mod")),
            go_sum: include_str!(concat!("../../../tools/", $name, "/go.sum")),
            main_go: None,
        }
    };
}

static ETCD: Module = module!("etcd", "go.etcd.io/etcd/server/v3");
/// What Talos 1.12 ships. Members of 3.7 follow other rules of membership and would hide faults; a snapshot must be
/// restored by the version that will serve it.
static ETCD36: Module = module!("etcd36", "go.etcd.io/etcd/server/v3");
static ETCDCTL: Module = module!("etcd36", "go.etcd.io/etcd/etcdctl/v3");
static ETCDUTL: Module = module!("etcd36", "go.etcd.io/etcd/etcdutl/v3");
static TALOSCTL: Module = module!("talosctl", "github.com/siderolabs/talos");
static KUBERNETES: Module = module!("kubernetes", "k8s.io/kubernetes");
static KWOK: Module = module!("kwok", "sigs.k8s.io/kwok");
static HELM: Module = module!("helm", "helm.sh/helm/v4");
/// Its releases are still in many clusters; tests hand them over.
static HELM3: Module = module!("helm3", "helm.sh/helm/v3");
static REGISTRY: Module = Module {
    main_go: Some(include_str!("../../../tools/registry/main.go")),
    ..module!("registry", "github.com/distribution/distribution/v3")
};
/// Its core controllers.
static CLUSTER_API: Module = module!("capi", "sigs.k8s.io/cluster-api");
static CONTAINERD: Module = module!("containerd", "github.com/containerd/containerd/v2");
static HEALTHSERVER: Module = Module {
    main_go: Some(include_str!("../../../tools/healthserver/main.go")),
    ..module!("healthserver", "google.golang.org/grpc")
};

static HCLOUDCHECK: Module = Module {
    main_go: Some(include_str!("../../../tools/hcloudcheck/main.go")),
    ..module!("hcloudcheck", "github.com/hetznercloud/hcloud-go/v2")
};

/// Asks nodes and validates configurations with the vendor's library.
static TALOSPROBE: Module = Module {
    main_go: Some(include_str!("../../../tools/talosprobe/main.go")),
    ..module!("talosprobe", "github.com/siderolabs/talos/pkg/machinery")
};

/// One program of the catalog.
#[derive(Debug)]
pub struct Tool {
    pub name: &'static str,
    module: &'static Module,
    /// Below the upstream module; empty for its root.
    package: &'static str,
    tags: &'static str,
    /// Files and folders of the upstream module that the program is installed with; they are kept beside it.
    pub files: &'static [&'static str],
    /// `KUBEBUILDER_ASSETS` may hold it, as in every controller project.
    pub is_kubebuilder_asset: bool,
}

const fn tool(name: &'static str, module: &'static Module, package: &'static str) -> Tool {
    Tool { name, module, package, tags: "", files: &[], is_kubebuilder_asset: false }
}

impl Tool {
    const fn kubebuilder_asset(mut self) -> Self {
        self.is_kubebuilder_asset = true;
        self
    }

    /// Snapshotters that need C headers and that no test uses.
    const fn without_btrfs_and_zfs(mut self) -> Self {
        self.tags = "no_btrfs,no_zfs";
        self
    }

    const fn with_files(mut self, files: &'static [&'static str]) -> Self {
        self.files = files;
        self
    }
}

/// What Cluster API's own kustomization installs its core controllers with.
const CLUSTER_API_FILES: &[&str] =
    &["core/config/crd/bases", "core/config/rbac/role.yaml", "core/config/webhook/manifests.yaml"];

/// What charts come from, and what installs them: all that `strata dev up --kubeconfig` needs.
pub const CHARTS: [&str; 2] = ["helm", "registry"];

/// What the first start of `strata dev up` needs, in the order of use: the control plane, then what releases and
/// workspaces need, then kubectl, which only the commands to try need, and Cluster API.
pub const FIRST_START: [&str; 9] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kwok",
    "helm",
    "registry",
    "kubectl",
    "capi",
];

/// In the order in which building them repeats the least work and the quickest come first.
pub static CATALOG: [Tool; 22] = [
    tool("etcd", &ETCD, "").kubebuilder_asset(),
    tool("kube-apiserver", &KUBERNETES, "/cmd/kube-apiserver").kubebuilder_asset(),
    tool("kubectl", &KUBERNETES, "/cmd/kubectl").kubebuilder_asset(),
    tool("kube-scheduler", &KUBERNETES, "/cmd/kube-scheduler"),
    tool("kube-controller-manager", &KUBERNETES, "/cmd/kube-controller-manager"),
    tool("kwok", &KWOK, "/cmd/kwok"),
    tool("kubelet", &KUBERNETES, "/cmd/kubelet"),
    tool("kube-proxy", &KUBERNETES, "/cmd/kube-proxy"),
    tool("helm", &HELM, "/cmd/helm"),
    tool("helm3", &HELM3, "/cmd/helm"),
    tool("registry", &REGISTRY, ""),
    tool("capi", &CLUSTER_API, "/core").with_files(CLUSTER_API_FILES),
    tool("containerd", &CONTAINERD, "/cmd/containerd").without_btrfs_and_zfs(),
    tool("containerd-shim-runc-v2", &CONTAINERD, "/cmd/containerd-shim-runc-v2").without_btrfs_and_zfs(),
    tool("ctr", &CONTAINERD, "/cmd/ctr").without_btrfs_and_zfs(),
    tool("healthserver", &HEALTHSERVER, ""),
    tool("hcloudcheck", &HCLOUDCHECK, ""),
    tool("etcd36", &ETCD36, ""),
    tool("etcdctl", &ETCDCTL, ""),
    tool("etcdutl", &ETCDUTL, ""),
    tool("talosprobe", &TALOSPROBE, ""),
    tool("talosctl", &TALOSCTL, "/cmd/talosctl"),
];

impl Tool {
    pub fn named(name: &str) -> Option<&'static Self> {
        CATALOG.iter().find(|tool| tool.name == name)
    }

    /// The pinned version, without the leading `v`.
    pub fn version(&self) -> &'static str {
        required_version(self.module.go_mod, self.module.upstream).expect("go.mod requires the module it pins")
    }

    /// The variable that names a binary to use instead: `STRATA_KUBE_APISERVER`.
    pub fn variable(&self) -> String {
        format!("STRATA_{}", self.name.to_uppercase().replace('-', "_"))
    }

    fn package(&self) -> String {
        if self.module.main_go.is_some() {
            return ".".to_owned();
        }
        format!("{}{}", self.module.upstream, self.package)
    }

    /// Arguments of Go that build it into the file `out`, in the folder of its pins.
    pub fn go_arguments(&self, out: &Path) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["build".into(), "-o".into(), out.into()];
        arguments.extend(self.build_flags().into_iter().chain([self.package()]).map(OsString::from));
        arguments
    }

    /// Arguments of Go that fetch the upstream module and describe it, with its folder as `Dir`, in the folder of the pins.
    pub fn go_download_arguments(&self) -> [&'static str; 4] {
        ["mod", "download", "-json", self.module.upstream]
    }

    /// Arguments of `go build`, apart from output and package.
    fn build_flags(&self) -> Vec<String> {
        // Not -trimpath: it writes the version that was asked for into what it compiles, also where another replaces it, and
        // so would compile the same sources again.
        let mut flags = vec!["-buildvcs=false".to_owned()];
        if !self.tags.is_empty() {
            flags.extend(["-tags".to_owned(), self.tags.to_owned()]);
        }
        flags.extend(["-ldflags".to_owned(), self.linker_flags()]);
        flags
    }

    /// Without the version stamp Kubernetes programs call themselves v0.0.0, which clients refuse.
    fn linker_flags(&self) -> String {
        let strip = "-s -w";
        if self.module.name != KUBERNETES.name {
            return strip.to_owned();
        }
        let version = self.version();
        let (major, minor) = major_minor(version).expect("the pin is a semantic version");
        let base = "k8s.io/component-base/version";
        format!(
            "{strip} -X {base}.gitVersion=v{version} -X {base}.gitMajor={major} -X {base}.gitMinor={minor} \
             -X k8s.io/client-go/pkg/version.gitVersion=v{version}"
        )
    }

    /// Name of the cached binary: changes with everything that decides its content.
    fn cache_key(&self) -> String {
        let mut digest = Sha256::new();
        for part in [self.module.go_mod, self.module.go_sum, &self.package(), &self.build_flags().join("\n")] {
            digest.update(part);
            digest.update([0]);
        }
        digest.update(self.module.main_go.unwrap_or_default());
        digest.update(self.files.join("\n"));
        let digest = digest.finalize();
        let short = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]);
        let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
        format!("{}-{}-{os}-{arch}-{short:08x}", self.name, self.version())
    }
}

fn required_version<'a>(go_mod: &'a str, module: &str) -> Option<&'a str> {
    go_mod.lines().find_map(|line| {
        let line = line.trim();
        let mut words = line.strip_prefix("require ").unwrap_or(line).split_whitespace();
        (words.next()? == module).then(|| words.next())??.strip_prefix('v')
    })
}

/// The first `MAJOR.MINOR` in a text such as the output of `--version`.
pub fn major_minor(text: &str) -> Option<(u32, u32)> {
    text.split(|c: char| !(c.is_ascii_digit() || c == '.')).find_map(|word| {
        let mut numbers = word.split('.');
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn every_tool_has_a_pinned_version() {
        for tool in &CATALOG {
            assert!(major_minor(tool.version()).is_some(), "{}: {}", tool.name, tool.version());
        }
    }

    #[test]
    fn a_first_start_builds_the_control_plane_then_what_charts_need_then_the_rest() {
        let at = |name: &str| FIRST_START.iter().position(|one| *one == name).unwrap();
        assert!(FIRST_START.iter().all(|name| Tool::named(name).is_some()));
        let serving = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"];
        for chart in CHARTS {
            assert!(serving.into_iter().all(|sooner| at(sooner) < at(chart)), "{chart}");
            assert!(["kubectl", "capi"].into_iter().all(|later| at(chart) < at(later)), "{chart}");
        }
    }

    /// Of every module that `go_mod` names, as it is built.
    fn versions(go_mod: &str) -> BTreeMap<&str, &str> {
        let mut versions = BTreeMap::new();
        for line in go_mod.lines() {
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                [name, "=>", _, version] => versions.insert(name, version),
                [name, version, ..] | ["require", name, version] if version.starts_with('v') => {
                    Some(*versions.entry(name).or_insert(version))
                }
                _ => None,
            };
        }
        versions
    }

    /// Go compiles a package again where it, or one below it, has another version. Kubernetes' and Helm's programs are
    /// built with what they ask for themselves; the others follow them.
    #[test]
    fn what_programs_have_in_common_is_compiled_once() {
        let follow = [(&KWOK, &KUBERNETES), (&CLUSTER_API, &KUBERNETES), (&REGISTRY, &KUBERNETES)];
        for (module, first) in follow.into_iter().chain([(&TALOSCTL, &KUBERNETES), (&HELM3, &HELM)]) {
            let (own, others) = (versions(module.go_mod), versions(first.go_mod));
            let both: Vec<_> = own.keys().filter(|name| others.contains_key(*name)).collect();
            assert!(both.len() > 30, "{}: {}", module.name, both.len());
            for name in both {
                assert_eq!(own[name], others[name], "{name} of {} and of {}", module.name, first.name);
            }
        }
    }

    #[test]
    fn kubernetes_programs_carry_their_version() {
        let flags = Tool::named("kubectl").unwrap().build_flags().join(" ");
        let version = Tool::named("kubectl").unwrap().version();
        assert!(flags.contains(&format!("gitVersion=v{version} ")), "{flags}");
    }

    #[test]
    fn versions_are_found_in_what_programs_print() {
        assert_eq!(major_minor("Kubernetes v1.36.3\n"), Some((1, 36)));
        assert_eq!(major_minor("etcd Version: 3.7.3\nGit SHA: 12ab"), Some((3, 7)));
        assert_eq!(major_minor("no number"), None);
    }
}
