//! `dependsOn` as a graph.

use std::collections::HashSet;

/// Releases that are looked at in the search for a cycle: many times what depends on one another in one namespace, and
/// little enough for every round of each. Releases of a longer cycle wait for one another all the same.
const MOST_VISITED: usize = 1000;
/// Releases of a cycle that a message names; more say no more to a reader.
const MOST_SHOWN: usize = 20;

/// The way from `start` back to itself: `a`, `b`, `a`. `needs` gives the names a release depends on.
///
/// Depth first with a stack of its own: a chain of any length costs memory on the heap, not a deeper call.
pub fn cycle(start: &str, needs: impl Fn(&str) -> Vec<String>) -> Option<Vec<String>> {
    let mut seen = HashSet::new();
    // Each release on the way with what is left to look at behind it.
    let mut way = vec![(start.to_owned(), needs(start).into_iter())];
    while let Some((_, next)) = way.last_mut() {
        let Some(next) = next.next() else {
            way.pop();
            continue;
        };
        if next == start {
            return Some(way.into_iter().map(|(name, _)| name).chain([next]).collect());
        }
        if seen.len() < MOST_VISITED && seen.insert(next.clone()) {
            let behind = needs(&next).into_iter();
            way.push((next, behind));
        }
    }
    None
}

/// A cycle for people: `a → b → a`, the middle of a long one left out.
pub(super) fn shown(cycle: &[String]) -> String {
    if cycle.len() <= MOST_SHOWN {
        return cycle.join(" → ");
    }
    let (begin, rest) = cycle.split_at(MOST_SHOWN / 2);
    let (left_out, end) = rest.split_at(rest.len() - MOST_SHOWN / 2);
    format!("{} → … {} more … → {}", begin.join(" → "), left_out.len(), end.join(" → "))
}
