//! Which role may call what; the table of machined.

const ADMIN: &str = "os:admin";
const OPERATOR: &str = "os:operator";
const READER: &str = "os:reader";
const BACKUP: &str = "os:etcd:backup";

/// All calls of the machine API that a node serves.
pub const CALLS: [&str; 21] = [
    "ApplyConfiguration",
    "Bootstrap",
    "EtcdAlarmDisarm",
    "EtcdAlarmList",
    "EtcdDefragment",
    "EtcdForfeitLeadership",
    "EtcdLeaveCluster",
    "EtcdMemberList",
    "EtcdRecover",
    "EtcdRemoveMemberByID",
    "EtcdSnapshot",
    "EtcdStatus",
    "GenerateClientConfiguration",
    "Hostname",
    "Kubeconfig",
    "Reboot",
    "Reset",
    "ServiceList",
    "Shutdown",
    "Upgrade",
    "Version",
];

/// Whether one of `roles` may call `rpc`.
pub(super) fn may_call(roles: &[String], rpc: &str) -> bool {
    let allowed: &[&str] = match rpc {
        "EtcdAlarmList" | "EtcdMemberList" | "EtcdStatus" => &[ADMIN, OPERATOR, READER, BACKUP],
        "EtcdSnapshot" => &[ADMIN, OPERATOR, BACKUP],
        "Hostname" | "ServiceList" | "Version" => &[ADMIN, OPERATOR, READER],
        "EtcdAlarmDisarm" | "EtcdDefragment" | "Reboot" | "Shutdown" => &[ADMIN, OPERATOR],
        _ => &[ADMIN],
    };
    roles.iter().any(|role| allowed.contains(&role.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_calls_is_that_of_the_protocol() {
        let protocol = include_str!("../../../talos/proto/machine.proto");
        let lines = protocol.lines().filter_map(|line| line.trim().strip_prefix("rpc ")?.split('(').next());
        let mut calls: Vec<&str> = lines.collect();
        calls.sort_unstable();
        assert_eq!(CALLS[..], calls);
    }

    #[test]
    fn readers_read_and_change_nothing() {
        let reader = [READER.to_owned()];
        assert!(["Version", "ServiceList", "EtcdMemberList", "EtcdStatus"].iter().all(|rpc| may_call(&reader, rpc)));
        let forbidden = ["Reset", "Reboot", "Kubeconfig", "EtcdSnapshot", "Bootstrap", "ApplyConfiguration"];
        assert!(!forbidden.iter().any(|rpc| may_call(&reader, rpc)));
        assert!(may_call(&[BACKUP.to_owned()], "EtcdSnapshot"));
        assert!(!may_call(&[], "Version"));
    }
}
