//! Keys that exist only because Hetzner mails a root password to those who name none.

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::{Engine, engine::general_purpose::STANDARD};

const ALGORITHM: &str = "ssh-ed25519";

/// A new public key in the form of OpenSSH. Its private half is gone when this returns: no one can log in with it.
///
/// # Panics
/// Where the operating system has no randomness to give.
pub fn throwaway_key() -> String {
    let pair = Ed25519KeyPair::generate().expect("the operating system gives random bytes");
    let mut blob = Vec::new();
    // RFC 8709: two strings, each behind its length.
    for part in [ALGORITHM.as_bytes(), pair.public_key().as_ref()] {
        let length = u32::try_from(part.len()).unwrap_or_default();
        blob.extend(length.to_be_bytes());
        blob.extend(part);
    }
    format!("{ALGORITHM} {}", STANDARD.encode(blob))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_form_of_openssh_and_differ() {
        let (one, other) = (throwaway_key(), throwaway_key());
        assert_ne!(one, other);
        let blob = STANDARD.decode(one.strip_prefix("ssh-ed25519 ").unwrap()).unwrap();
        let (head, key) = blob.split_at(19);
        assert_eq!(head, b"\0\0\0\x0bssh-ed25519\0\0\0\x20");
        assert_eq!(key.len(), 32);
    }
}
