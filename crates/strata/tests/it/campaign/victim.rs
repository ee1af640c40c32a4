//! Who is killed, and the helm processes of an operator as the kernel knows them.

use std::{fs, path::Path};

use anyhow::Result;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use testbed::process::Child;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Victim {
    Operator,
    Helm,
    /// The operator and every helm, but not the guards between them.
    Both,
    /// The guards alone; the operator ends their helms.
    Guards,
    /// What the kernel does to a container.
    All,
    /// Helm with all of its process group.
    Group,
}

/// A process that works in the private directory.
#[derive(Clone, Debug)]
pub struct Process {
    pid: Pid,
    pub is_guard: bool,
    pub operation: String,
    pub release: String,
}

/// Everything that runs in a directory of a helm operation: helm and its guard.
pub fn processes(private: &Path) -> Vec<Process> {
    let entries = fs::read_dir("/proc").expect("/proc is mounted");
    entries.filter_map(|entry| process(&entry.ok()?.path(), private)).collect()
}

fn process(path: &Path, private: &Path) -> Option<Process> {
    let pid = Pid::from_raw(path.file_name()?.to_str()?.parse().ok()?)?;
    // Of a directory that was removed the kernel tells the former path.
    fs::read_link(path.join("cwd")).ok().filter(|directory| directory.starts_with(private))?;
    let line = fs::read_to_string(path.join("cmdline")).ok()?;
    let arguments: Vec<&str> = line.split('\0').collect();
    let is_guard = arguments.get(1) == Some(&"guard");
    // `strata guard BYTES BYTES MILLISECONDS MILLISECONDS helm upgrade …`, `helm upgrade …`.
    let [operation, release] = arguments.get(if is_guard { 7..9 } else { 1..3 })? else { return None };
    Some(Process { pid, is_guard, operation: (*operation).to_owned(), release: (*release).to_owned() })
}

impl Victim {
    /// Those that come first have their turn in the short part, too.
    pub const ALL: [Self; 6] = [Self::Operator, Self::Helm, Self::Both, Self::Guards, Self::All, Self::Group];

    pub fn ends_operator(self) -> bool {
        matches!(self, Self::Operator | Self::Both | Self::All)
    }

    /// How many were killed, the operator aside.
    pub async fn kill(self, running: &[Process], operator: &Child) -> Result<usize> {
        if self.ends_operator() {
            operator.signal(Signal::KILL)?;
        }
        let mut killed = 0;
        for process in running {
            let is_meant = match self {
                Self::Operator => false,
                Self::Helm | Self::Both | Self::Group => !process.is_guard,
                Self::Guards => process.is_guard,
                Self::All => true,
            };
            let send = if self == Self::Group { kill_process_group } else { kill_process };
            // It may just have ended.
            killed += usize::from(is_meant && send(process.pid, Signal::KILL).is_ok());
        }
        if self.ends_operator() {
            operator.exited().await;
        }
        Ok(killed)
    }
}
