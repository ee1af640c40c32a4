//! The lines of a watch.

use std::ops::Range;

use http_body_util::BodyExt;
use kube::client::Body;

use crate::watch::WatchError;

/// Objects are at most 3 MB in a request; a line of ten times that is no event.
pub(crate) const LONGEST_LINE: usize = 32 << 20;
/// What a buffer may keep after a long line: many events fit in.
const KEPT: usize = 64 << 10;

/// A body that is read line by line, without a copy of each.
pub(crate) struct Lines {
    body: Body,
    buffer: Vec<u8>,
    /// Where the next line begins.
    begin: usize,
    /// No line ends before this.
    searched: usize,
}

impl Lines {
    pub(crate) fn new(body: Body) -> Self {
        Self { body, buffer: Vec::new(), begin: 0, searched: 0 }
    }

    /// The place of the next line; `None` when the stream has ended. What a broken connection left of a line is lost
    /// with it. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Option<Range<usize>>, WatchError> {
        loop {
            if let Some(length) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
                let line = self.begin..self.searched + length;
                self.begin = line.end + 1;
                self.searched = self.begin;
                if line.is_empty() {
                    continue;
                }
                return Ok(Some(line));
            }
            self.buffer.drain(..self.begin);
            (self.begin, self.searched) = (0, self.buffer.len());
            if self.buffer.is_empty() {
                self.buffer.shrink_to(KEPT);
            }
            if self.buffer.len() > LONGEST_LINE {
                return Err(WatchError::TooLong);
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => self.buffer.extend_from_slice(&frame.into_data().unwrap_or_default()),
                Some(Err(error)) => {
                    let source = Box::new(kube::Error::ReadEvents(std::io::Error::other(error)));
                    return Err(WatchError::Lost { verb: "watch", source });
                }
            }
        }
    }

    pub(crate) fn line(&self, place: Range<usize>) -> &[u8] {
        &self.buffer[place]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_whole_however_they_arrive() {
        let text = "one\ntwo\n\nthree\nrest";
        let mut lines = Lines::new(Body::from(text.as_bytes().to_vec()));
        let mut read = Vec::new();
        while let Some(place) = lines.next().await.unwrap() {
            read.push(String::from_utf8(lines.line(place).to_vec()).unwrap());
        }
        assert_eq!(read, ["one", "two", "three"]);
    }
}
