//! Names, labels, annotations and finalizers that users, Cluster API and we rely on.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

/// Longer values of labels the API server refuses.
const LONGEST_LABEL: usize = 63;

/// Cluster API's: the Cluster that an object belongs to.
pub const CLUSTER_LABEL: &str = "cluster.x-k8s.io/cluster-name";
/// Cluster API's: the MachinePool that a machine is a member of.
pub const POOL_LABEL: &str = "cluster.x-k8s.io/pool-name";
/// The group of a shard group.
pub const GROUP_LABEL: &str = "nstance.dev/group";
/// The shard of a shard group.
pub const SHARD_LABEL: &str = "nstance.dev/shard";

/// On pools that the operator keeps, with the value [`MANAGED_BY`], which is the original's.
pub const MANAGED_BY_ANNOTATION: &str = "nstance.dev/managed-by";
pub const MANAGED_BY: &str = "nstance-operator";

/// On an NstanceCluster whose workload cluster is another one: the uid of the namespace `kube-system` there, by which it is
/// known again.
pub const WORKLOAD_CLUSTER_ANNOTATION: &str = "strata.dev/workload-cluster";

/// Cluster API's: a Machine that is to go before others when its owner shrinks.
pub const DELETE_MACHINE_ANNOTATION: &str = "cluster.x-k8s.io/delete-machine";
/// Cluster API's: the controllers of an object leave it as it is.
pub const PAUSED_ANNOTATION: &str = "cluster.x-k8s.io/paused";
/// Cluster API's: it does not drain the Node of this Machine.
pub const EXCLUDE_DRAINING_ANNOTATION: &str = "machine.cluster.x-k8s.io/exclude-node-draining";
/// Makes Cluster API wait with a Machine's deletion until our drain is done.
pub const PRE_DRAIN_HOOK: &str = "pre-drain.delete.hook.machine.cluster.x-k8s.io/strata";

/// On a Pod that asks for a machine of its own: the group to make it in, and the instance type where another one than the
/// group's is wanted.
pub const ON_DEMAND_GROUP_ANNOTATION: &str = "on-demand.nstance.dev/group";
pub const ON_DEMAND_TYPE_ANNOTATION: &str = "on-demand.nstance.dev/instance-type";
/// The shard to make it on.
pub const ON_DEMAND_SHARD_ANNOTATION: &str = "on-demand.nstance.dev/shard";
/// The same as the first two, in the original's older words.
pub const OLD_ON_DEMAND_GROUP_ANNOTATION: &str = "nstance.dev/on-demand-group";
pub const OLD_ON_DEMAND_TYPE_ANNOTATION: &str = "nstance.dev/on-demand-instance-type";
/// On the Machine and the NstanceMachine that were made for a Pod: its uid, and its `namespace/name`.
pub const ON_DEMAND_UID_LABEL: &str = "nstance.dev/on-demand-pod-uid";
pub const ON_DEMAND_POD_ANNOTATION: &str = "nstance.dev/on-demand-pod";

pub const POOL_FINALIZER: &str = "nstancemachinepool.infrastructure.cluster.x-k8s.io/finalizer";
pub const SHARD_GROUP_FINALIZER: &str = "nstanceshardgroup.infrastructure.cluster.x-k8s.io/finalizer";
pub const MACHINE_FINALIZER: &str = "nstancemachine.infrastructure.cluster.x-k8s.io/finalizer";

/// Of the shard group of one group on one shard. Neither name holds two hyphens in a row, so no two pairs share one.
pub fn shard_group_name(group: &str, shard: &str) -> String {
    format!("{group}--{shard}")
}

/// The value of [`POOL_LABEL`] for a MachinePool. Cluster API looks for its members by this: by the name, or by a digest of
/// it (FNV-1a) where the name is too long for a label.
pub fn pool_label(name: &str) -> String {
    if name.len() <= LONGEST_LABEL {
        return name.to_owned();
    }
    let fold = |digest: u32, byte: u8| (digest ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let digest = name.bytes().fold(0x811c_9dc5, fold);
    format!("hash_{}_z", URL_SAFE_NO_PAD.encode(digest.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_labelled_by_its_name_or_as_cluster_api_digests_it() {
        assert_eq!(pool_label(&"a".repeat(63)), "a".repeat(63));
        // As `format.MustFormatValue` of Cluster API 1.14.2 has it.
        assert_eq!(pool_label(&"a".repeat(64)), "hash_2W8PhQ_z");
    }
}
