//! What the log says of something that is tried again and again: the first failure, each other one, and its end.

/// The last failure of one thing.
#[derive(Default)]
pub struct Said(Option<String>);

impl Said {
    /// Whether this failure is another one than the last.
    pub fn is_news(&mut self, failure: &str) -> bool {
        let is_news = self.0.as_deref() != Some(failure);
        if is_news {
            self.0 = Some(failure.to_owned());
        }
        is_news
    }

    pub fn is_failing(&self) -> bool {
        self.0.is_some()
    }

    /// It succeeded. Whether it had failed before.
    pub fn ends(&mut self) -> bool {
        self.0.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_said_once_until_it_changes_or_ends() {
        let mut said = Said::default();
        assert!(!said.ends());
        assert_eq!(["a", "a", "b", "a"].map(|failure| said.is_news(failure)), [true, false, true, true]);
        assert!(said.is_failing() && said.ends());
        assert!(!said.is_failing() && !said.ends());
        assert!(said.is_news("a"));
    }
}
