//! Names, labels, annotations and finalizers that users, Cluster API and we rely on.

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
