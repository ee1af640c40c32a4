//! An error with its causes in one line, for logs and messages: a type's own text leaves its source to the reader.

use std::error::Error;

/// The error, then what caused it.
pub fn explained(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // Transparent wrappers repeat their source.
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
