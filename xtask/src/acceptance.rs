//! Keeps `docs/acceptance.md` true: every row names tests, and every named test ran and passed.

use std::collections::BTreeMap;

use crate::report::{Report, Verdict};

/// The rows that the specifications ask for, as far as there is code for them: performers, workspaces, the helm runner
/// with its releases, the zone shard of the machines, their pools and the drain, and the clients of the clusters.
const ROWS: [(char, std::ops::RangeInclusive<u32>); 8] = [
    ('P', 1..=53),
    ('W', 1..=15),
    ('W', 20..=40),
    ('A', 1..=92),
    ('A', 95..=98),
    ('K', 39..=39),
    ('K', 41..=43),
    ('K', 46..=51),
];

fn row_ids() -> impl Iterator<Item = String> {
    ROWS.into_iter().flat_map(|(letter, numbers)| numbers.map(move |number| format!("{letter}{number:02}")))
}

/// What the comparison of table and report found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Findings {
    pub problems: Vec<String>,
    /// Rows shown by a test that could not run here, with the reason.
    pub skips: Vec<String>,
}

/// The table's rows: number to test names.
#[derive(Debug, Default, PartialEq, Eq)]
struct Table {
    rows: BTreeMap<String, Vec<String>>,
    problems: Vec<String>,
}

/// Compares the table in `markdown` with what ran. Where skips are not allowed they are problems.
pub fn check(markdown: &str, report: &Report, skips_allowed: bool) -> Findings {
    let table = parse(markdown);
    let mut findings = Findings { problems: table.problems, skips: Vec::new() };
    for id in row_ids() {
        match table.rows.get(&id).map(Vec::as_slice) {
            None => findings.problems.push(format!("{id}: no row")),
            Some([]) => findings.problems.push(format!("{id}: names no test")),
            Some(tests) => {
                for test in tests {
                    findings.judge(&id, test, report, skips_allowed);
                }
            }
        }
    }
    findings
}

impl Findings {
    fn judge(&mut self, id: &str, test: &str, report: &Report, skips_allowed: bool) {
        match report.tests.get(test) {
            Some(Verdict::Passed) => {}
            Some(Verdict::Failed) => self.problems.push(format!("{id}: {test} failed")),
            Some(Verdict::Unfinished) => self.problems.push(format!("{id}: {test} did not end")),
            Some(Verdict::Ignored) => self.problems.push(format!("{id}: {test} is ignored")),
            Some(Verdict::Skipped(reason)) => {
                let line = format!("{id}: {test} skipped: {reason}");
                if skips_allowed { &mut self.skips } else { &mut self.problems }.push(line);
            }
            None => self.problems.push(format!("{id}: {test} did not run: no such test")),
        }
    }
}

/// Rows look like `| P01 | what | crate::path::test, crate::path::other |`.
fn parse(markdown: &str) -> Table {
    let mut table = Table::default();
    for line in markdown.lines() {
        let Some(cells) = row_cells(line) else { continue };
        let id = cells[0];
        let &[_, _, tests] = cells.as_slice() else {
            table.problems.push(format!("{id}: {} cells instead of 3", cells.len()));
            continue;
        };
        if table.rows.insert(id.to_owned(), names(tests)).is_some() {
            table.problems.push(format!("{id}: more than one row"));
        }
    }
    table
}

fn row_cells(line: &str) -> Option<Vec<&str>> {
    let cells = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    let cells: Vec<&str> = cells.split('|').map(str::trim).collect();
    is_row_id(cells.first()?).then_some(cells)
}

fn names(cell: &str) -> Vec<String> {
    let names = cell.split(',').map(|name| name.trim().trim_matches('`').to_owned());
    names.filter(|name| !name.is_empty()).collect()
}

/// The same table with its last column brought up to date: a test whose name starts with a row's
/// number (`p17_…`) is in that row, and names of tests that no longer exist are dropped.
pub fn update(markdown: &str, tests: &[String]) -> String {
    let line = |line: &str| {
        let cells = row_cells(line).filter(|cells| cells.len() == 3);
        let Some(&[id, what, cell]) = cells.as_deref() else { return format!("{line}\n") };
        let kept = names(cell).into_iter().filter(|name| tests.contains(name));
        let numbered = tests.iter().filter(|test| numbers(test).any(|number| number == id)).cloned();
        let mut all: Vec<String> = kept.chain(numbered).map(|name| format!("`{name}`")).collect();
        all.sort();
        all.dedup();
        format!("| {id} | {what} | {} |\n", all.join(", "))
    };
    markdown.lines().map(line).collect()
}

/// `plan::it::p05_p09_ports` is about P05 and P09.
fn numbers(test: &str) -> impl Iterator<Item = String> {
    let name = test.rsplit("::").next().unwrap_or(test);
    name.split('_').map(str::to_uppercase).take_while(|word| is_row_id(word))
}

fn is_row_id(cell: &str) -> bool {
    let digits = cell.strip_prefix(['P', 'W', 'A', 'K']);
    digits.is_some_and(|digits| digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table whose rows all name the test `good`, except those given.
    fn table(rows: &[(&str, &str)]) -> String {
        let head = "# Acceptance\n\n| # | Check | Tests |\n| --- | --- | --- |\n".to_owned();
        let rows = row_ids().filter_map(|id| {
            let own = rows.iter().find(|(own, _)| *own == id);
            let tests = own.map_or("`plan::good`", |(_, tests)| tests);
            (tests != "-").then(|| format!("| {id} | what | {tests} |\n"))
        });
        std::iter::once(head).chain(rows).collect()
    }

    fn check_rows(rows: &[(&str, &str)], skips_allowed: bool, problems: &[&str], skips: &[&str]) {
        let report = Report {
            tests: [
                ("plan::good".to_owned(), Verdict::Passed),
                ("plan::bad".to_owned(), Verdict::Failed),
                ("plan::lazy".to_owned(), Verdict::Ignored),
                ("node::away".to_owned(), Verdict::Skipped("needs root".to_owned())),
            ]
            .into(),
            broken: Vec::new(),
        };
        let findings = check(&table(rows), &report, skips_allowed);
        assert_eq!(findings.problems, problems);
        assert_eq!(findings.skips, skips);
    }

    #[test]
    fn updating_adds_numbered_tests_and_drops_those_that_are_gone() {
        let before =
            "# Title\n\n| # | Check | Tests |\n| P05 | ports | `plan::gone`, `plan::kept` |\n| P09 | one |  |\n";
        let tests = ["plan::kept", "plan::it::p05_p09_ports", "plan::p09_one", "plan::p5_x"].map(str::to_owned);
        let after = "# Title\n\n| # | Check | Tests |\n\
                     | P05 | ports | `plan::it::p05_p09_ports`, `plan::kept` |\n\
                     | P09 | one | `plan::it::p05_p09_ports`, `plan::p09_one` |\n";
        assert_eq!(update(before, &tests), after);
        assert_eq!(update(after, &tests), after);
    }

    #[test]
    fn a_full_table_of_passed_tests_has_no_findings() {
        check_rows(&[("P02", "plan::good, `plan::good`")], false, &[], &[]);
    }

    #[test]
    fn a_missing_row_is_found() {
        let rows = [("P07", "-"), ("W40", "-"), ("A88", "-"), ("K51", "-")];
        check_rows(&rows, true, &["P07: no row", "W40: no row", "A88: no row", "K51: no row"], &[]);
    }

    #[test]
    fn a_row_without_tests_is_found() {
        check_rows(&[("P01", "")], true, &["P01: names no test"], &[]);
    }

    #[test]
    fn a_test_that_does_not_exist_is_found_beside_one_that_does() {
        let problem = "P03: plan::gone did not run: no such test";
        check_rows(&[("P03", "`plan::good`, `plan::gone`")], true, &[problem], &[]);
    }

    #[test]
    fn failed_and_ignored_tests_are_found() {
        check_rows(
            &[("P04", "plan::bad"), ("P05", "plan::lazy")],
            true,
            &["P04: plan::bad failed", "P05: plan::lazy is ignored"],
            &[],
        );
    }

    #[test]
    fn a_skip_is_listed_with_its_reason_and_is_a_problem_where_not_allowed() {
        let line = "P06: node::away skipped: needs root";
        check_rows(&[("P06", "node::away")], true, &[], &[line]);
        check_rows(&[("P06", "node::away")], false, &[line], &[]);
    }

    #[test]
    fn a_row_given_twice_or_with_a_missing_cell_is_found() {
        let mut text = table(&[]);
        text += "| P09 | again | plan::good |\n| P10 | short |\n";
        let report = Report { tests: [("plan::good".to_owned(), Verdict::Passed)].into(), broken: vec![] };
        let findings = check(&text, &report, true);
        assert_eq!(findings.problems, ["P09: more than one row", "P10: 2 cells instead of 3"]);
    }
}
