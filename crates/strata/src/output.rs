//! Data on standard output: tables for people, objects for programs.

use std::io::{ErrorKind, Write};

use anstream::AutoStream;
use api::condition::Condition;
use clap::{
    Args, ValueEnum,
    builder::styling::{AnsiColor, Style},
};
use jiff::Timestamp;
use kube::api::DynamicObject;
use serde::Serialize;
use serde_json::json;

use crate::{Failure, objects::full_name};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Columns for people
    Table,
    /// The same with more columns
    Wide,
    /// The objects as the API server has them
    Json,
    /// The same as YAML
    Yaml,
    /// Only names, for scripts
    Name,
}

#[derive(Clone, Debug, Args)]
pub struct OutputFlags {
    /// How objects are printed
    #[arg(long, short, value_enum, value_name = "FORMAT")]
    pub output: Option<Format>,
    /// Leave out the line with the names of the columns
    #[arg(long)]
    pub no_headers: bool,
}

impl OutputFlags {
    /// Whether what is printed is read by programs, not people.
    pub fn is_for_programs(&self) -> bool {
        matches!(self.output, Some(Format::Json | Format::Yaml | Format::Name))
    }
}

/// How objects of one kind look in a table.
pub struct View {
    pub columns: &'static [&'static str],
    /// Further columns of `-o wide`.
    pub wide: &'static [&'static str],
    /// One cell for each of both.
    pub row: fn(&DynamicObject, Timestamp) -> Result<Vec<String>, Failure>,
}

/// Which objects are printed.
pub enum Shown {
    One(Box<DynamicObject>),
    Several { items: Vec<DynamicObject>, of_all_namespaces: bool },
}

/// One object: for people on a page of its own.
pub fn print_page(
    object: DynamicObject,
    page: fn(&DynamicObject, Timestamp) -> Result<String, Failure>,
    view: &View,
    flags: &OutputFlags,
) -> Result<(), Failure> {
    if flags.is_for_programs() {
        print_objects(Shown::One(Box::new(object)), view, flags)
    } else {
        print(&page(&object, process::Clock::default().now())?)
    }
}

pub fn print_objects(objects: Shown, view: &View, flags: &OutputFlags) -> Result<(), Failure> {
    let (is_one, of_all_namespaces, items) = match objects {
        Shown::One(object) => (true, false, vec![*object]),
        Shown::Several { items, of_all_namespaces } => (false, of_all_namespaces, items),
    };
    let format = flags.output.unwrap_or(Format::Table);
    match format {
        Format::Name => print(&lines(items.iter().map(full_name))),
        Format::Json | Format::Yaml => {
            let mut items: Vec<_> = items.into_iter().map(without_bookkeeping).collect();
            if is_one && let Some(object) = items.pop() {
                return print_data(&object, format);
            }
            print_data(&json!({ "apiVersion": "v1", "kind": "List", "metadata": {}, "items": items }), format)
        }
        Format::Table | Format::Wide => {
            let wide = if format == Format::Wide { view.wide } else { &[] };
            let columns = of_all_namespaces.then_some("NAMESPACE").into_iter();
            let mut table = Table::new(columns.chain(view.columns.iter().copied()).chain(wide.iter().copied()));
            let now = process::Clock::default().now();
            for item in &items {
                let namespace = item.metadata.namespace.clone().unwrap_or_default();
                table.add(of_all_namespaces.then_some(namespace).into_iter().chain((view.row)(item, now)?));
            }
            print(&table.render(!flags.no_headers))
        }
    }
}

/// kubectl hides these too: they are half of the text and say nothing of the object.
fn without_bookkeeping(mut object: DynamicObject) -> DynamicObject {
    object.metadata.managed_fields = None;
    object
}

pub fn print_data(data: &impl Serialize, format: Format) -> Result<(), Failure> {
    let cannot = |error: &dyn std::fmt::Display| Failure::new(format!("cannot print: {error}"));
    let text = match format {
        Format::Yaml => serde_saphyr::to_string(data).map_err(|error| cannot(&error))?,
        _ => serde_json::to_string_pretty(data).map_err(|error| cannot(&error))?,
    };
    print(&format!("{}\n", text.trim_end()))
}

/// Writes to standard output, without colours where there is no terminal or `NO_COLOR` is set. A reader that has gone
/// away, as `head` does, has what it wanted.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut stream = AutoStream::auto(std::io::stdout());
    match stream.write_all(text.as_bytes()).and_then(|()| stream.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::new(format!("cannot print: {error}"))),
        _ => Ok(()),
    }
}

/// Each with its end.
pub fn lines(lines: impl Iterator<Item = String>) -> String {
    lines.flat_map(|line| [line, "\n".to_owned()]).collect()
}

/// The text in a colour or none.
pub fn styled(text: &str, style: Style) -> String {
    format!("{style}{text}{style:#}")
}

/// Aligned columns.
pub struct Table {
    columns: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

/// As kubectl has it.
const GAP: usize = 3;

impl Table {
    pub fn new(columns: impl IntoIterator<Item = &'static str>) -> Self {
        Self { columns: columns.into_iter().collect(), rows: Vec::new() }
    }

    /// A row; cells without a column are left out, and an empty cell shows as `-`.
    pub fn add(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter().take(self.columns.len()).map(|cell| one_line(&cell));
        self.rows.push(cells.map(|cell| if cell.is_empty() { "-".to_owned() } else { cell }).collect());
    }

    /// A part of a page, set off from the one before; without rows there is none.
    pub fn section(&self) -> String {
        if self.rows.is_empty() { String::new() } else { format!("\n{}", self.render(true)) }
    }

    pub fn render(&self, with_columns: bool) -> String {
        let columns: Vec<String> = self.columns.iter().map(|&name| name.to_owned()).collect();
        let rows: Vec<_> = with_columns.then_some(&columns).into_iter().chain(&self.rows).collect();
        let width = |at: usize| rows.iter().map(|row| row.get(at).map_or(0, |cell| cell.chars().count())).max();
        let widths: Vec<_> = (0..columns.len()).map(|at| width(at).unwrap_or(0)).collect();
        let mut text = String::new();
        for row in rows {
            for (at, cell) in row.iter().enumerate() {
                text.push_str(&styled(cell, style(cell)));
                if at + 1 < row.len() {
                    text.extend(std::iter::repeat_n(' ', widths[at] + GAP - cell.chars().count()));
                }
            }
            text.push('\n');
        }
        text
    }
}

/// What is known of one object, a line each; what is not known has none.
pub fn facts(rows: impl IntoIterator<Item = (&'static str, Option<String>)>) -> String {
    let mut table = Table::new(["", ""]);
    for (name, fact) in rows {
        table.rows.extend(fact.map(|fact| vec![name.to_owned(), one_line(&fact)]));
    }
    table.render(false)
}

pub fn conditions(conditions: &[Condition], now: Timestamp) -> Table {
    let mut table = Table::new(["CONDITION", "STATUS", "REASON", "SINCE", "MESSAGE"]);
    for condition in conditions {
        table.add([
            condition.kind.to_string(),
            format!("{:?}", condition.status),
            condition.reason.to_string(),
            age(Some(condition.last_transition_time), now),
            condition.message.clone(),
        ]);
    }
    table
}

/// Words of conditions and phases; names in a cluster are never capitalised.
fn style(cell: &str) -> Style {
    match cell {
        "True" | "Ready" => AnsiColor::Green.on_default(),
        "False" | "Failed" => AnsiColor::Red.on_default(),
        "Unknown" | "Progressing" => AnsiColor::Yellow.on_default(),
        _ => Style::new(),
    }
}

/// Without what would break a line or speak to the terminal: messages hold what other programs said.
pub fn one_line(text: &str) -> String {
    text.trim().replace(char::is_control, " ")
}

/// The lines of what another program said, safe for a terminal and set off from our own.
pub fn indented(text: &str) -> String {
    lines(text.trim_end().lines().map(|line| format!("  {}", line.replace(char::is_control, " "))))
}

/// How long ago, as kubectl shows it: two units while the second one matters.
pub fn age(then: Option<Timestamp>, now: Timestamp) -> String {
    let Some(then) = then else { return String::new() };
    let seconds = now.duration_since(then).as_secs().max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |number: i64, unit: char, rest: i64, small: char| {
        if rest == 0 { format!("{number}{unit}") } else { format!("{number}{unit}{rest}{small}") }
    };
    match (seconds, hours, days) {
        (..120, ..) => format!("{seconds}s"),
        (..600, ..) => two(minutes, 'm', seconds % 60, 's'),
        (_, ..3, _) => format!("{minutes}m"),
        (_, ..8, _) => two(hours, 'h', minutes % 60, 'm'),
        (_, ..48, _) => format!("{hours}h"),
        (.., ..8) => two(days, 'd', hours % 24, 'h'),
        (.., ..730) => format!("{days}d"),
        _ => two(days / 365, 'y', days % 365, 'd'),
    }
}

/// How old an object is.
pub fn object_age(object: &DynamicObject, now: Timestamp) -> String {
    age(object.metadata.creation_timestamp.as_ref().map(|time| time.0), now)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    #[test]
    fn ages_are_told_as_kubectl_does() {
        let then = Timestamp::UNIX_EPOCH;
        let cases = [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (12_600, "3h30m"),
            (28_800, "8h"),
            (172_800, "2d"),
            (180_000, "2d2h"),
            (691_200, "8d"),
            (63_158_400, "2y1d"),
        ];
        for (seconds, shown) in cases {
            assert_eq!(age(Some(then), then + SignedDuration::from_secs(seconds)), shown);
        }
        assert_eq!(age(Some(then + SignedDuration::from_secs(5)), then), "0s", "clocks differ");
        assert_eq!(age(None, then), "");
    }

    #[test]
    fn columns_are_aligned_and_cells_cannot_break_out() {
        let mut table = Table::new(["NAME", "MESSAGE"]);
        table.add(["web".to_owned(), "two\nlines \u{1b}[31m".to_owned(), "beyond".to_owned()]);
        table.add(["größer".to_owned(), String::new()]);
        assert_eq!(table.render(true), "NAME     MESSAGE\nweb      two lines  [31m\ngrößer   -\n");
        assert_eq!(table.render(false), "web      two lines  [31m\ngrößer   -\n");
    }
}
