//! Partitions on loopback. Every dial there comes from 127.0.0.1, so that a packet is recognised by the user whose
//! socket sends it and by the address it goes to; connections that are open already are destroyed, because answers on
//! them go to 127.0.0.1.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    process::{Command, Stdio},
};

use super::{Error, Impairment, Machine, apiserver, owner::Owner};
use crate::{packages, process::AtEnd};

/// Programs that a partition takes.
const PROGRAMS: [&str; 2] = ["nft", "ss"];

/// The rules of one testbed: a table of nftables. It is removed when this process ends, however it ends.
#[derive(Debug)]
pub(super) struct Rules {
    table: String,
    range: String,
    _remover: AtEnd,
}

impl Rules {
    /// Where partitions cannot be made here, the reason.
    pub(super) fn new(number: u8) -> Result<Self, Error> {
        check()?;
        let table = format!("strata_{number}");
        let remover = AtEnd::run(r#"nft delete table inet "$1""#, &table).map_err(Error::Rules)?;
        Ok(Self { table, range: format!("127.{number}.0.0/16"), _remover: remover })
    }

    /// Replaces all rules by those that these servers need.
    pub(super) fn apply(&self, machines: &[std::sync::Arc<Machine>]) -> Result<(), Error> {
        let table = &self.table;
        // Adding before deleting: deleting one that is not there is an error.
        let mut text = format!("table inet {table} {{}}\ndelete table inet {table}\n");
        let mut rules = String::new();
        for machine in machines {
            rules.push_str(&self.of(machine));
        }
        if !rules.is_empty() {
            let hook = "type filter hook output priority 0; policy accept;";
            let _ = write!(text, "table inet {table} {{\n chain output {{\n {hook}\n{rules} }}\n}}\n");
        }
        run("nft", &["-f", "-"], &text)?;
        for machine in machines.iter().filter(|machine| !machine.is_reachable()) {
            self.break_connections(machine)?;
        }
        Ok(())
    }

    /// The server's programs reach each other. Others do not reach it, and it reaches no other.
    fn of(&self, machine: &Machine) -> String {
        let Some(Owner(uid)) = machine.owner() else { return String::new() };
        let ports = if machine.impairments.has(Impairment::Partition) {
            String::new()
        } else if machine.impairments.has(Impairment::ApiPartition) {
            format!("tcp dport {{ {}, {} }} ", apiserver::PORT, talos::PORT)
        } else {
            return String::new();
        };
        let (own, range) = (format!("{{ {}, {} }}", machine.public(), machine.private()), &self.range);
        format!(
            "meta skuid {uid} ip daddr {own} accept\n\
             ip daddr {own} {ports}drop\n\
             meta skuid {uid} ip daddr {range} {ports}drop\n"
        )
    }

    /// Ends what is open between the server and others: both ends, because neither can tell the other any more.
    fn break_connections(&self, machine: &Machine) -> Result<(), Error> {
        let Some(Owner(uid)) = machine.owner() else { return Ok(()) };
        let is_whole = machine.impairments.has(Impairment::Partition);
        let ports = if is_whole { vec![None] } else { vec![Some(apiserver::PORT), Some(talos::PORT)] };
        for address in [machine.public(), machine.private()] {
            for port in &ports {
                let at = port.map_or_else(|| address.to_string(), |port| format!("{address}:{port}"));
                run("ss", &["-K", "-t", "dst", &at], "")?;
                run("ss", &["-K", "-t", "src", &at], "")?;
            }
        }
        let open = run("ss", &["-Htne", "dst", &self.range], "")?;
        for (local, peer) in dialled(&open, uid) {
            let port = peer.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
            if is_whole || ports.contains(&port) {
                run("ss", &["-K", "-t", "src", local, "dst", peer], "")?;
            }
        }
        Ok(())
    }
}

/// Both addresses of the sockets of one user, as `ss -Htne` lists them.
fn dialled(listed: &str, uid: u32) -> Vec<(&str, &str)> {
    let mark = format!("uid:{uid}");
    let lines = listed.lines().filter(|line| line.split_whitespace().any(|word| word == mark));
    let addresses = |line: &'_ str| -> Option<(usize, usize)> { line.find("127.").zip(line.rfind("127.")) };
    lines
        .filter_map(|line| {
            let (first, second) = addresses(line)?;
            let word = |from: usize| line[from..].split_whitespace().next();
            word(first).zip(word(second))
        })
        .collect()
}

/// Whether partitions can be made on this machine; the error says what they lack.
pub fn check() -> Result<(), Error> {
    let mut missing: Vec<&str> = PROGRAMS.into_iter().filter(|program| !packages::is_on_path(program)).collect();
    if !rustix::process::geteuid().is_root() {
        missing.push("root");
    }
    if missing.is_empty() { Ok(()) } else { Err(Error::NoPartitions(missing.join(", "))) }
}

/// Installs what is missing where that can be done.
pub fn install() -> io::Result<()> {
    if check().is_ok() { Ok(()) } else { packages::install(&["nftables", "iproute2"]) }
}

fn run(program: &str, arguments: &[&str], input: &str) -> Result<String, Error> {
    let run = || {
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes())?;
        }
        let output = child.wait_with_output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(io::Error::other(format!("{program} ended with {}: {}", output.status, said.trim())));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    run().map_err(Error::Rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_found_by_their_user() {
        let listed = "\
ESTAB 0 0 127.0.0.1:40812 127.64.128.3:2380 uid:2135982082 ino:1 sk:2 cgroup:/ <->
ESTAB 0 0 127.0.0.1:40814 127.64.128.4:2380 uid:21359820 ino:1 sk:2 cgroup:/ <->
ESTAB 0 0 127.0.0.1:40816 127.64.128.4:2380 ino:1 sk:2 cgroup:/ <->
";
        assert_eq!(dialled(listed, 2_135_982_082), [("127.0.0.1:40812", "127.64.128.3:2380")]);
        assert_eq!(dialled(listed, 1), []);
    }
}
