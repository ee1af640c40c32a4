//! What configs take from other Secrets, kept so that a settled Workspace reads nothing.

use std::collections::{BTreeMap, HashMap};

use plan::workspaces::team::{MOST_TAKEN, Source};

/// A Secret's content in base64.
pub type Content = BTreeMap<String, String>;

/// What is known of the Secrets that one Workspace takes from, by name.
pub type Known = HashMap<String, Version>;

/// One version of a Secret.
pub struct Version {
    number: u64,
    size: usize,
    /// `None` if it does not fit in beside the others.
    content: Option<Content>,
}

/// One look at all Secrets that a Workspace takes from now; what is not asked for is forgotten.
pub struct Look {
    former: Known,
    pub known: Known,
    room: usize,
}

impl Look {
    pub fn new(former: Known) -> Self {
        Self { former, known: Known::new(), room: MOST_TAKEN }
    }

    /// What is known of a version; `None` if it must be read.
    pub fn find(&mut self, name: &str, number: u64) -> Option<Source> {
        let version = self.former.remove(name).filter(|version| version.number == number)?;
        match version.content {
            Some(content) => Some(self.add(name, number, content)),
            None if version.size > self.room => {
                self.known.insert(name.to_owned(), version);
                Some(Source::TooMuch)
            }
            None => None,
        }
    }

    /// What was read of a version: of a later one than that, perhaps; then it is read again once that is known of.
    pub fn add(&mut self, name: &str, number: u64, content: Content) -> Source {
        let size = content.iter().map(|(key, value)| key.len() + value.len()).sum();
        let is_fit = size <= self.room;
        if is_fit {
            self.room -= size;
        }
        let version = Version { number, size, content: is_fit.then(|| content.clone()) };
        self.known.insert(name.to_owned(), version);
        if is_fit { Source::Content(content) } else { Source::TooMuch }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(size: usize) -> Content {
        Content::from([("a".to_owned(), "x".repeat(size - 1))])
    }

    /// The names kept with content, in order.
    fn kept(known: &Known) -> Vec<&str> {
        let mut names: Vec<_> =
            known.iter().filter(|(_, version)| version.content.is_some()).map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn a_known_version_is_not_read_and_what_is_not_asked_for_is_forgotten() {
        let mut look = Look::new(Known::new());
        assert!(look.find("a", 1).is_none());
        for name in ["a", "b"] {
            look.add(name, 1, content(10));
        }
        let mut look = Look::new(look.known);
        assert!(look.find("a", 1) == Some(Source::Content(content(10))));
        assert_eq!(kept(&look.known), ["a"]);
        assert!(Look::new(look.known).find("a", 2).is_none(), "another version");
    }

    #[test]
    fn no_more_is_kept_than_fits_and_what_does_not_is_read_again_once_there_is_room() {
        let mut look = Look::new(Known::new());
        let half = MOST_TAKEN / 2;
        look.add("a", 1, content(half));
        look.add("b", 1, content(half));
        assert!(look.add("c", 1, content(1)) == Source::TooMuch);
        assert_eq!(kept(&look.known), ["a", "b"]);
        let mut look = Look::new(look.known);
        for name in ["a", "b"] {
            assert!(look.find(name, 1) == Some(Source::Content(content(half))));
        }
        assert!(look.find("c", 1) == Some(Source::TooMuch), "without a read");
        let mut look = Look::new(look.known);
        look.find("a", 1);
        assert!(look.find("c", 1).is_none());
    }
}
