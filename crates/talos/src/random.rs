//! Random values for secrets, from the TLS provider's generator.

use rustls::crypto::aws_lc_rs::default_provider;

/// `N` bytes for a secret.
///
/// # Panics
/// Where the operating system has no randomness to give; no secret may be made then.
pub(crate) fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    default_provider().secure_random.fill(&mut bytes).expect("the operating system gives random bytes");
    bytes
}

/// `length` characters of `[a-z0-9]`, each equally likely.
pub(crate) fn word(length: usize) -> String {
    const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    // The largest multiple of 36 in a byte: what is above it would make the first letters likelier.
    const FAIR: u8 = 252;
    let fair = std::iter::repeat_with(bytes::<1>).map(|[byte]| byte).filter(|&byte| byte < FAIR);
    fair.take(length).map(|byte| char::from(LETTERS[usize::from(byte) % LETTERS.len()])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_their_length_and_alphabet() {
        let word = word(22);
        assert_eq!(word.len(), 22);
        assert!(word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()), "{word}");
    }
}
