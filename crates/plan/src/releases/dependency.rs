//! `dependsOn` as a graph.

/// The way from `start` back to itself: `a`, `b`, `a`. `needs` gives the names a release depends on.
pub fn cycle(start: &str, needs: impl Fn(&str) -> Vec<String>) -> Option<Vec<String>> {
    let mut seen = std::collections::BTreeSet::new();
    let mut way = vec![start.to_owned()];
    walk(start, start, &needs, &mut seen, &mut way).then_some(way)
}

fn walk(
    start: &str,
    at: &str,
    needs: &impl Fn(&str) -> Vec<String>,
    seen: &mut std::collections::BTreeSet<String>,
    way: &mut Vec<String>,
) -> bool {
    for next in needs(at) {
        way.push(next.clone());
        if next == start || (seen.insert(next.clone()) && walk(start, &next, needs, seen, way)) {
            return true;
        }
        way.pop();
    }
    false
}
