//! The notice that the machine is about to be taken away: a file in the form of a cloud's metadata,
//! `{"action": "terminate", "time": "2026-01-01T00:00:00Z"}`. What is in the file may be missing, that it is there
//! counts.

use std::{fs::File, io, io::Read, path::Path, time::Duration};

use jiff::Timestamp;
use serde::Deserialize;
use tokio::sync::watch;

/// What a notice without an action means.
const ACTION: &str = "terminate";

/// A notice has a hundred bytes; the rest of a longer file is none of it.
const LONGEST: u64 = 64 * 1024;

/// The machine's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub action: String,
    pub deadline: Option<Timestamp>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Written {
    action: Option<String>,
    #[serde(alias = "deadline")]
    time: Option<String>,
}

/// Tells `news` about the notice, and about each change of it. Never returns: there is no way back from a notice.
pub async fn watch(path: Option<&Path>, interval: Duration, news: watch::Sender<Option<Notice>>) {
    let Some(path) = path else { return std::future::pending().await };
    loop {
        match read(path) {
            Ok(Some(notice)) => {
                news.send_if_modified(|known| {
                    let is_news = known.as_ref() != Some(&notice);
                    *known = Some(notice);
                    is_news
                });
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(path = %path.display(), %error, "cannot look for a notice"),
        }
        tokio::time::sleep(interval).await;
    }
}

fn read(path: &Path) -> io::Result<Option<Notice>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut text = String::new();
    let is_text = file.take(LONGEST).read_to_string(&mut text).is_ok();
    let written: Written = if is_text { serde_json::from_str(&text).unwrap_or_default() } else { Written::default() };
    Ok(Some(Notice {
        action: written.action.filter(|action| !action.is_empty()).unwrap_or_else(|| ACTION.to_owned()),
        deadline: written.time.and_then(|time| time.parse().ok()),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a76_a_file_that_is_there_is_a_notice_whatever_it_says() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notice");
        assert_eq!(read(&path).unwrap(), None);
        let deadline = "2026-01-01T00:02:00Z";
        for (text, action, expected) in [
            ("", "terminate", None),
            ("soon", "terminate", None),
            (r#"{"action": "stop"}"#, "stop", None),
            (r#"{"action": "hibernate", "time": "2026-01-01T00:02:00Z"}"#, "hibernate", Some(deadline)),
            (r#"{"deadline": "2026-01-01T00:02:00Z", "more": 1}"#, "terminate", Some(deadline)),
            (r#"{"time": "tomorrow"}"#, "terminate", None),
        ] {
            std::fs::write(&path, text).unwrap();
            let expected = expected.map(|time: &str| time.parse().unwrap());
            assert_eq!(read(&path).unwrap(), Some(Notice { action: action.to_owned(), deadline: expected }), "{text}");
        }
    }
}
