//! The messages of conditions: bounded, and written again only when they say something else.

/// Far below the 32768 characters the schema allows: a message holds words of others (kubelet, the scheduler, webhooks)
/// of any length, and users do not read more than this.
const LONGEST: usize = 4096;

pub(crate) fn shortened(mut message: String) -> String {
    if let Some((end, _)) = message.char_indices().nth(LONGEST) {
        message.truncate(end);
        message.push('…');
    }
    message
}

/// The former message where the new one is the same but for its numbers (a quota's, a back-off's), which are no news;
/// other words are another cause.
pub(crate) fn steady(former: Option<&str>, message: String) -> String {
    let message = shortened(message);
    let same = former.filter(|former| without_numbers(former) == without_numbers(&message));
    same.map_or(message, str::to_owned)
}

/// A text with each number in it, and with it its unit, and each part of a uid or an id as one and the same sign.
fn without_numbers(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for part in text.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
        let (word, end) = part.split_at(part.trim_end_matches(|c: char| !c.is_ascii_alphanumeric()).len());
        let is_number = word.starts_with(|c: char| c.is_ascii_digit());
        // Four is the length of the shortest part of a uid.
        let is_id = word.len() >= 4
            && word.contains(|c: char| c.is_ascii_digit())
            && word.chars().all(|c| c.is_ascii_hexdigit());
        plain.push_str(if is_number || is_id { "#" } else { word });
        plain.push_str(end);
    }
    // A fraction is one number.
    plain.replace("#.#", "#")
}
