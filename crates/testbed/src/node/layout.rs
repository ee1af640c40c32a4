//! The files of a real node: configuration of containerd, the kubelet and the pods' network.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde_json::json;

use super::{NodeError, PAUSE_IMAGE, slot::Slot};
use crate::control_plane::ControlPlane;

/// Run as the first process of the new namespaces: writes its process id as the outside sees it (the old `/proc` still
/// tells it), puts private memory over the places that containerd, the shims, the kubelet and CNI have built in, and
/// becomes containerd. The kubelet insists on its own values of some settings of the kernel: it sees copies, since the
/// real ones are the whole machine's. `-n`: mount must not leave its own table in the machine's `/run`. A gigabyte holds
/// images and files of tests many times over, and bounds what a runaway container can take.
pub(super) const ENTER: &str = r#"
set -e
read -r pid rest </proc/self/stat
echo "$pid" >"$1"
for path in /run /var/lib /var/log; do
    mount -n -t tmpfs -o mode=755,size=1g strata "$path"
done
mount -n -t proc proc /proc
for setting in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops \
    kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
    mkdir -p "/run/settings/${setting%/*}"
    cat "/proc/sys/$setting" >"/run/settings/$setting"
    mount -n --bind "/run/settings/$setting" "/proc/sys/$setting"
done
exec "$2" --config "$3"
"#;

pub(super) struct Layout {
    folder: PathBuf,
}

impl Layout {
    pub(super) fn write(slot: &Slot, control_plane: &ControlPlane, shim: &Path, cni: &Path) -> Result<Self, NodeError> {
        let layout = Self { folder: slot.folder() };
        let authority = control_plane.authority().certificate_file();
        let files = [
            (layout.containerd_configuration(), layout.containerd(shim, cni)),
            (layout.folder.join("cni/strata.conflist"), network(slot)),
            (layout.folder.join("registries/_default/hosts.toml"), NO_REGISTRY.to_owned()),
            (layout.kubelet_configuration(), layout.kubelet(slot, &authority)),
        ];
        for (path, text) in files {
            write(&path, &text)
                .map_err(|source| NodeError::Io { action: format!("write {}", path.display()), source })?;
        }
        Ok(layout)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.folder.join("containerd.sock")
    }

    pub(super) fn init_pid(&self) -> PathBuf {
        self.folder.join("init.pid")
    }

    pub(super) fn log(&self, program: &str) -> PathBuf {
        self.folder.join(format!("{program}.log"))
    }

    pub(super) fn containerd_configuration(&self) -> PathBuf {
        self.folder.join("containerd.toml")
    }

    pub(super) fn kubelet_configuration(&self) -> PathBuf {
        self.folder.join("kubelet.json")
    }

    /// NRI is off because its socket and folders are the machine's, not ours. `restrict_oom_score_adj` because a
    /// process in a container may not lower its score, and no sandbox would start.
    fn containerd(&self, shim: &Path, cni: &Path) -> String {
        let folder = self.folder.display();
        let (shim, cni) = (shim.display(), cni.display());
        format!(
            "version = 3
root = '/var/lib/containerd'
state = '/run/containerd'
imports = []
disabled_plugins = ['io.containerd.nri.v1.nri', 'io.containerd.internal.v1.opt']
[grpc]
address = '{folder}/containerd.sock'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = '{PAUSE_IMAGE}'
[plugins.'io.containerd.cri.v1.images'.registry]
config_path = '{folder}/registries'
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
runtime_path = '{shim}'
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ['{cni}']
conf_dir = '{folder}/cni'
use_internal_loopback = true
"
        )
    }

    /// Evictions are off: a full disk of the machine is not what tests are about.
    fn kubelet(&self, slot: &Slot, authority: &Path) -> String {
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": slot.gateway(),
            "authentication": {
                "anonymous": { "enabled": false },
                "webhook": { "enabled": true },
                "x509": { "clientCAFile": authority },
            },
            "authorization": { "mode": "Webhook" },
            "containerRuntimeEndpoint": format!("unix://{}", self.socket().display()),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": format!("/{}", slot.name()),
            "failCgroupV1": false,
            "failSwapOn": false,
            "enforceNodeAllocatable": [],
            "evictionHard": {
                "memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%",
            },
            "imageGCHighThresholdPercent": 100,
            "makeIPTablesUtilChains": false,
            "oomScoreAdj": 0,
            "healthzPort": 0,
            "resolvConf": "",
        })
        .to_string()
    }
}

/// Images come from the tests alone. A pull of anything else fails at once instead of leaving the machine.
const NO_REGISTRY: &str = "server = 'http://127.0.0.1:1'\n";

/// The bridge has its address already; without a gateway of its own the plugin leaves the machine's forwarding alone.
fn network(slot: &Slot) -> String {
    json!({
        "cniVersion": "1.0.0",
        "name": slot.name(),
        "plugins": [{
            "type": "bridge",
            "bridge": slot.name(),
            "ipam": {
                "type": "host-local",
                "ranges": [[{ "subnet": slot.subnet(), "gateway": slot.gateway(), "rangeEnd": slot.last_pod() }]],
                "routes": [{ "dst": "0.0.0.0/0" }],
            },
        }],
    })
    .to_string()
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, text)
}
