//! What is stored of an operator's nonce that was used: the key that used it, under a line that says when the nonce ends.
//! From then on the nonce is refused by itself, and the object may go.

use jiff::Timestamp;

/// PEM allows lines before its first one. Servers before this one wrote none.
const EXPIRES: &[u8] = b"expires: ";

/// The object of a nonce that ends then and was used with that key.
pub fn object(key: &[u8], expires_at: Timestamp) -> Vec<u8> {
    [EXPIRES, expires_at.to_string().as_bytes(), b"\n", key].concat()
}

/// The key that used it.
pub fn key(object: &[u8]) -> &[u8] {
    split(object).map_or(object, |(_, key)| key)
}

/// When the nonce ends. `None` for an object that does not say so, which stays.
pub fn expires_at(object: &[u8]) -> Option<Timestamp> {
    std::str::from_utf8(split(object)?.0).ok()?.parse().ok()
}

fn split(object: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = object.strip_prefix(EXPIRES)?;
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    Some((&rest[..end], &rest[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_and_the_end_are_read_back_and_an_older_object_is_its_key() {
        let end: Timestamp = "2026-01-01T03:00:00Z".parse().unwrap();
        let written = object(b"-----BEGIN\nkey", end);
        assert_eq!((key(&written), expires_at(&written)), (&b"-----BEGIN\nkey"[..], Some(end)));
        assert_eq!((key(b"-----BEGIN"), expires_at(b"-----BEGIN")), (&b"-----BEGIN"[..], None));
        // What a client puts before its own key changes nothing.
        let sly = object(b"expires: 1970-01-01T00:00:00Z\nkey", end);
        assert_eq!((key(&sly), expires_at(&sly)), (&b"expires: 1970-01-01T00:00:00Z\nkey"[..], Some(end)));
        assert_eq!(expires_at(b"expires: soon\nkey"), None);
    }
}
