//! YAML of tenants, read within limits: a tree takes many times the memory of its text, what refers to an anchor is in it
//! once more, and the parser keeps a copy of what has an anchor.

use serde::Deserialize;

/// Fails beyond so many values, aliases included, and so many bytes of their text.
pub fn read<T: for<'de> Deserialize<'de>>(
    text: &str,
    most_nodes: usize,
    most_bytes: usize,
) -> Result<T, serde_saphyr::Error> {
    let budget = serde_saphyr::budget! {
        max_nodes: most_nodes,
        max_total_scalar_bytes: most_bytes,
        max_recorded_anchor_events: most_nodes,
        max_recorded_anchor_bytes: most_bytes,
    };
    serde_saphyr::from_str_with_options(text, serde_saphyr::options! { budget: budget })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn nested_anchors_are_copied_no_more_often_than_there_may_be_values() {
        let nested = |depth: usize| {
            let anchors: Vec<_> = (0..depth).map(|number| format!("&a{number} [")).collect();
            format!("{}{}{}", anchors.concat(), "0,".repeat(1000), "]".repeat(depth))
        };
        assert!(read::<Value>(&nested(3), 5000, 1 << 20).is_ok());
        assert!(read::<Value>(&nested(50), 5000, 1 << 20).is_err());
    }
}
