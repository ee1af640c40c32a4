//! How much of this machine's processors others take.

/// Ticks since the start of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Processors {
    /// In which something of ours ran.
    used: u64,
    /// In which something of ours was to run and another virtual machine ran instead.
    stolen: u64,
}

impl Processors {
    /// Nothing is stolen where the system does not say.
    pub fn now() -> Self {
        parse(&std::fs::read_to_string("/proc/stat").unwrap_or_default()).unwrap_or_default()
    }

    /// The percentage of what was wanted since then that others got.
    pub fn stolen_since(self, then: Self) -> u64 {
        let (used, stolen) = (self.used.saturating_sub(then.used), self.stolen.saturating_sub(then.stolen));
        (100 * stolen).checked_div(used + stolen).unwrap_or(0)
    }
}

/// `cpu  user nice system idle iowait irq softirq steal …`
fn parse(stat: &str) -> Option<Processors> {
    let ticks: Vec<u64> =
        stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().map_while(|tick| tick.parse().ok()).collect();
    let [user, nice, system, _idle, _waiting, irq, softirq, stolen, ..] = ticks[..] else { return None };
    Some(Processors { used: user + nice + system + irq + softirq, stolen })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_take_is_a_share_of_what_was_wanted() {
        let before = parse("cpu  100 0 50 1000 10 0 0 20 0 0\ncpu0 1 2 3\n").unwrap();
        let after = parse("cpu  150 0 70 9000 10 5 0 45 0 0\n").unwrap();
        assert_eq!((before, after.stolen_since(before)), (Processors { used: 150, stolen: 20 }, 25));
        assert_eq!(after.stolen_since(after), 0);
        assert_eq!((parse(""), parse("cpu  1 2 3\n")), (None, None));
    }
}
