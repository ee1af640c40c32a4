//! Blanks comments and literals out of Rust source, so that a search finds code only.

/// The same text, line by line, with comments and the insides of literals replaced by spaces.
pub fn blank(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut out = String::with_capacity(source.len());
    let mut at = 0;
    while at < chars.len() {
        let end = literal_end(&chars, at);
        if end > at {
            out.extend(chars[at..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
            at = end;
        } else {
            out.push(chars[at]);
            at += 1;
        }
    }
    out
}

/// Where the comment or literal that starts at `at` ends; `at` itself when none starts here.
fn literal_end(chars: &[char], at: usize) -> usize {
    let next = chars.get(at + 1).copied();
    match chars[at] {
        '/' if next == Some('/') => {
            chars[at..].iter().position(|c| *c == '\n').map_or(chars.len(), |length| at + length)
        }
        '/' if next == Some('*') => block_comment_end(chars, at),
        '"' => quoted_end(chars, at),
        'r' if matches!(next, Some('"' | '#')) && !follows_word(chars, at) => raw_string_end(chars, at),
        // A quote opens a character when it closes again at once, else it names a lifetime.
        '\'' if next == Some('\\') => quoted_end(chars, at),
        '\'' if chars.get(at + 2) == Some(&'\'') => at + 3,
        _ => at,
    }
}

fn follows_word(chars: &[char], at: usize) -> bool {
    // `br"…"` is a raw byte string; any other letter before makes `r` the end of a word.
    at > 0 && chars[at - 1] != 'b' && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_')
}

fn block_comment_end(chars: &[char], at: usize) -> usize {
    let mut depth = 0;
    let mut here = at;
    while here + 1 < chars.len() {
        match (chars[here], chars[here + 1]) {
            ('/', '*') => depth += 1,
            ('*', '/') => depth -= 1,
            _ => {
                here += 1;
                continue;
            }
        }
        here += 2;
        if depth == 0 {
            return here;
        }
    }
    chars.len()
}

fn quoted_end(chars: &[char], at: usize) -> usize {
    let quote = chars[at];
    let mut here = at + 1;
    while here < chars.len() {
        match chars[here] {
            '\\' => here += 2,
            c if c == quote => return here + 1,
            _ => here += 1,
        }
    }
    chars.len()
}

fn raw_string_end(chars: &[char], at: usize) -> usize {
    let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
    let open = at + 1 + hashes;
    if chars.get(open) != Some(&'"') {
        return at; // a raw identifier: r#type
    }
    let closing: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
    chars[open + 1..]
        .windows(closing.len())
        .position(|window| window == closing)
        .map_or(chars.len(), |length| open + 1 + length + closing.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &str, code: &str) {
        let blanked = blank(source);
        assert_eq!(blanked.chars().count(), source.chars().count(), "keeps its length");
        let words: Vec<&str> = blanked.split_whitespace().collect();
        assert_eq!(words.join(" "), code);
    }

    #[test]
    fn comments_and_literals_go_and_code_stays() {
        check("a // b\nc", "a c");
        check("a /* b /* c */ d */ e", "a e");
        check(r#"a("b \" c") d"#, "a( ) d");
        check("a(r#\"b \" c\"#) d", "a( ) d");
        check("a(br\"b\") d", "a(b ) d");
        check("r#type r\"x\"", "r#type");
        check("fn f<'a>(x: &'a str) { '\"'; '\\''; y }", "fn f<'a>(x: &'a str) { ; ; y }");
        check("\"never closed", "");
    }

    #[test]
    fn lines_stay_lines() {
        assert_eq!(blank("/* a\nb */ c\n\"d\ne\"\n").lines().count(), 4);
    }
}
