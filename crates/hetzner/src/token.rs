//! The token of a project.

use std::fmt;

use http::HeaderValue;

/// Opens a project. Only the API gets to see it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Token(String);

impl Token {
    /// Space around it, as files and Secrets often have, is no part of it.
    pub fn new(token: &str) -> Self {
        Self(token.trim().to_owned())
    }

    /// `None` where it has characters that no header may have.
    pub(crate) fn header(&self) -> Option<HeaderValue> {
        let mut value = HeaderValue::try_from(format!("Bearer {}", self.0)).ok().filter(|_| !self.0.is_empty())?;
        value.set_sensitive(true);
        Some(value)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_not_printed() {
        let token = Token::new(" secret\n");
        assert_eq!(format!("{token:?} {:?}", token.header()), "Token(…) Some(Sensitive)");
        assert_eq!(token.header().unwrap().to_str().unwrap(), "Bearer secret");
        assert_eq!(Token::new("a\nb").header(), None);
        assert_eq!(Token::new(" ").header(), None);
    }
}
