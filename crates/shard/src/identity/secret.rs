//! Keys at rest: sealed with a key that an administrator keeps outside of storage.

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};

/// Seals what is secret in storage: AES-256-GCM, the 12-byte nonce before the text, as the original.
pub struct SealingKey(RandomizedNonceKey);

/// Why something is not sealed or opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    #[error("the encryption key must be 32 bytes, or 64 hexadecimal digits")]
    Key,
    #[error("cannot be opened with this encryption key")]
    Open,
    #[error("cannot be sealed")]
    Seal,
}

impl SealingKey {
    /// From the content of a key file: 32 bytes, or 64 hexadecimal digits.
    pub fn read(content: &[u8]) -> Result<Self, SealError> {
        let bytes = if content.len() == 32 { content.to_vec() } else { hex(content.trim_ascii())? };
        RandomizedNonceKey::new(&AES_256_GCM, &bytes).map(Self).map_err(|_| SealError::Key)
    }

    pub fn seal(&self, text: &[u8]) -> Result<Vec<u8>, SealError> {
        let mut sealed = text.to_vec();
        let nonce = self.0.seal_in_place_append_tag(Aad::empty(), &mut sealed).map_err(|_| SealError::Seal)?;
        Ok([&nonce.as_ref()[..], &sealed].concat())
    }

    pub fn open(&self, sealed: &[u8]) -> Result<Vec<u8>, SealError> {
        let (nonce, text) = sealed.split_at_checked(NONCE_LEN).ok_or(SealError::Open)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| SealError::Open)?;
        let mut text = text.to_vec();
        let opened = self.0.open_in_place(nonce, Aad::empty(), &mut text).map_err(|_| SealError::Open)?;
        Ok(opened.to_vec())
    }
}

fn hex(digits: &[u8]) -> Result<Vec<u8>, SealError> {
    let pairs = digits.chunks(2).map(|pair| {
        let text = std::str::from_utf8(pair).ok().filter(|text| text.len() == 2)?;
        u8::from_str_radix(text, 16).ok()
    });
    pairs.collect::<Option<_>>().ok_or(SealError::Key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_opens_with_the_same_key_only() {
        let key = SealingKey::read(&[7; 32]).unwrap();
        let sealed = key.seal(b"secret").unwrap();
        assert_eq!(sealed.len(), NONCE_LEN + 6 + 16);
        assert_ne!(sealed, key.seal(b"secret").unwrap(), "each sealing has its own nonce");
        assert_eq!(key.open(&sealed).unwrap(), b"secret");
        assert_eq!(SealingKey::read(&[8; 32]).unwrap().open(&sealed), Err(SealError::Open));
        for damaged in [&sealed[1..], &sealed[..5], &[]] {
            assert_eq!(key.open(damaged), Err(SealError::Open));
        }
    }

    #[test]
    fn a_key_is_bytes_or_hexadecimal() {
        let text = format!("{}\n", "07".repeat(32));
        let sealed = SealingKey::read(&[7; 32]).unwrap().seal(b"x").unwrap();
        assert_eq!(SealingKey::read(text.as_bytes()).unwrap().open(&sealed).unwrap(), b"x");
        for bad in [&b""[..], b"abc", &[b'z'; 64], &[b'0'; 63], &[0; 31]] {
            assert_eq!(SealingKey::read(bad).err(), Some(SealError::Key));
        }
    }
}
