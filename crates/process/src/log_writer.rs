//! Log lines on their way to standard error, written by a thread of their own: a reader that stops reading must stall
//! neither rounds nor the renewal of a lease.
//!
//! Not `tracing-appender`: its lines are only safe while a guard is dropped in time, which a watchdog's exit never does.

use std::{
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel},
    },
    time::Duration,
};

/// Lines that may wait; a line is a few hundred bytes, so this is some megabytes at most.
const WAITING_LINES: usize = 8192;
/// Only while the process ends.
const LOOK: Duration = Duration::from_millis(1);

enum Message {
    Line(Vec<u8>),
    Flush(Sender<()>),
}

/// Takes lines; never waits.
#[derive(Clone, Debug)]
pub(crate) struct LogWriter {
    sender: SyncSender<Message>,
    dropped: Arc<AtomicU64>,
}

impl LogWriter {
    /// Starts the thread that writes to `sink`, whose failures cost the log and nothing else.
    pub(crate) fn start(sink: impl Write + Send + 'static) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(WAITING_LINES);
        let dropped = Arc::<AtomicU64>::default();
        let counted = dropped.clone();
        std::thread::Builder::new().name("log".to_owned()).spawn(move || write(&receiver, &counted, sink))?;
        Ok(Self { sender, dropped })
    }

    /// Waits until all lines so far are written, but no longer than `limit`.
    pub(crate) fn flush(&self, limit: Duration) {
        let (written, is_written) = channel();
        // A full line has no event for room in it.
        for _ in 0..=limit.as_millis() / LOOK.as_millis() {
            if !matches!(self.sender.try_send(Message::Flush(written.clone())), Err(TrySendError::Full(_))) {
                let _ = is_written.recv_timeout(limit);
                return;
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl Write for LogWriter {
    /// One line: the subscriber writes each with one call.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.sender.try_send(Message::Line(line.to_vec())).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write(lines: &Receiver<Message>, dropped: &AtomicU64, mut sink: impl Write) {
    while let Ok(message) = lines.recv() {
        match message {
            Message::Line(line) => {
                let _ = sink.write_all(&line);
                let count = dropped.swap(0, Ordering::Relaxed);
                if count > 0 {
                    tracing::warn!(count, "log lines were dropped: standard error was not read quickly enough");
                }
            }
            // Nobody may wait any more.
            Message::Flush(written) => drop(written.send(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a line when it is let, and shows it.
    struct Slow(Receiver<()>, Sender<Vec<u8>>);

    impl Write for Slow {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            let _ = self.1.send(line.to_vec());
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_sink_that_does_not_take_lines_stalls_no_one_and_what_is_lost_is_counted() {
        let (allow, allowed) = channel();
        let (shown, seen) = channel();
        let mut writer = LogWriter::start(Slow(allowed, shown)).unwrap();
        for number in 0..WAITING_LINES + 10 {
            writer.write_all(format!("{number}").as_bytes()).unwrap();
        }
        let dropped = usize::try_from(writer.dropped.load(Ordering::Relaxed)).unwrap();
        // One may be in the sink's hands.
        assert!((9..=10).contains(&dropped), "{dropped}");
        allow.send(()).unwrap();
        assert_eq!(seen.recv().unwrap(), b"0");
        drop(allow);
        writer.flush(Duration::from_mins(1));
        assert_eq!(seen.try_iter().count() + 1 + dropped, WAITING_LINES + 10, "all that was taken is written");
    }
}
