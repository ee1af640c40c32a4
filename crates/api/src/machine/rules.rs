//! What the API server refuses, with the message for a user who writes it.
//!
//! Strings have no limits here, as in the published schemas. API servers therefore take the comparison of two of them
//! for expensive, and that of a list's for endless; `in` a list of one does not count the length.

use serde_json::Value;

use crate::schema::rule;

/// Of a spec with a subnet pool.
pub(super) fn subnet() -> [Value; 1] {
    [rule(
        "!has(self.subnetPool) || !has(self.subnets) || self.subnets.size() == 0",
        "spec.subnetPool and spec.subnets are two ways to write the same; keep one of them",
    )]
}

/// Of `subnets`.
pub(super) fn subnets() -> [Value; 1] {
    [rule(
        "self.size() <= 1",
        "spec.subnets: a group has one subnet pool; keep one entry, or make the subnets one pool in the shard's configuration",
    )]
}

/// Of `shards`.
pub(super) fn shards() -> [Value; 1] {
    [rule(
        "self.all(shard, self.exists_one(other, other in [shard]))",
        "spec.shards: a shard is listed twice; remove the duplicate",
    )]
}

/// Of the group of a pool: what it has under the old key would stay behind.
pub(super) fn pool_group() -> [Value; 1] {
    [rule(
        "self in [oldSelf]",
        "spec.group cannot change; create another pool with the other group, and delete this one",
    )]
}

/// Of the spec of a machine.
pub(super) fn group() -> [Value; 1] {
    [rule(
        "has(self.group) != has(self.groupRef)",
        "set spec.group to the key of a group, or spec.groupRef, its other spelling; exactly one of them",
    )]
}

/// Of the spec of a template.
pub(super) fn template() -> [Value; 1] {
    [rule(
        "self == oldSelf",
        "spec.template cannot change; create another NstanceMachineTemplate and refer to that one",
    )]
}

/// Of a whole pool: status says whether its group is static. Each compares with the former object, so that a write that
/// does not touch the field passes.
pub(super) fn static_pool() -> [Value; 4] {
    let is_dynamic = "!has(self.status) || !has(self.status.isStatic) || !self.status.isStatic";
    let unchanged = |field: &str, empty: &str| {
        let value = |object: &str| format!("(has({object}.spec.{field}) ? {object}.spec.{field} : {empty})");
        let (old, new) = (value("oldSelf"), value("self"));
        // Emptied, it is what a static group wants.
        rule(
            &format!("{is_dynamic} || {new} == {empty} || {new} == {old}"),
            &format!(
                "spec.{field}: the shards' own configuration has this group and decides it; remove the field, or change it there"
            ),
        )
    };
    let reported = "has(self.status.reportedShards) && shard in self.status.reportedShards";
    [
        unchanged("template", "''"),
        unchanged("subnetPool", "''"),
        unchanged("subnets", "[]"),
        rule(
            &format!(
                "{is_dynamic} || (oldSelf.spec.shards.all(shard, shard in self.spec.shards) && self.spec.shards.all(shard, shard in oldSelf.spec.shards || ({reported})))"
            ),
            "spec.shards: the shards' own configuration has this group; no shard can be removed here, and only those of status.reportedShards added; remove the group from the shard's configuration, or add it there first",
        ),
    ]
}
