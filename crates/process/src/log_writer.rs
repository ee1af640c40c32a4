//! Log lines on their way to standard error, written by a thread of their own: a reader that stops reading must stall
//! neither rounds nor the renewal of a lease.
//!
//! Not `tracing-appender`: its lines are only safe while a guard is dropped in time, which a watchdog's exit never does.

use std::{
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    time::Duration,
};

/// What may wait in memory: some ten thousand lines.
const MOST_BYTES: usize = 4 << 20;

enum Message {
    Line(Vec<u8>),
    Flush(Sender<()>),
}

/// Takes lines; never waits.
#[derive(Clone, Debug)]
pub(crate) struct LogWriter {
    sender: Sender<Message>,
    line: Arc<Waiting>,
}

/// What waits to be written, and what found no room.
#[derive(Debug, Default)]
struct Waiting {
    bytes: AtomicUsize,
    dropped: AtomicU64,
}

impl LogWriter {
    /// Starts the thread that writes to `sink`, whose failures cost the log and nothing else.
    pub(crate) fn start(sink: impl Write + Send + 'static) -> io::Result<Self> {
        let (sender, receiver) = channel();
        let line = Arc::<Waiting>::default();
        let waiting = line.clone();
        std::thread::Builder::new().name("log".to_owned()).spawn(move || write(&receiver, &waiting, sink))?;
        Ok(Self { sender, line })
    }

    /// Waits until all lines so far are written, but no longer than `limit`.
    pub(crate) fn flush(&self, limit: Duration) {
        let (written, is_written) = channel();
        if self.sender.send(Message::Flush(written)).is_ok() {
            let _ = is_written.recv_timeout(limit);
        }
    }
}

impl Write for LogWriter {
    /// One line: the subscriber writes each with one call.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let waiting = self.line.bytes.fetch_add(line.len(), Ordering::Relaxed);
        if waiting + line.len() > MOST_BYTES || self.sender.send(Message::Line(line.to_vec())).is_err() {
            self.line.bytes.fetch_sub(line.len(), Ordering::Relaxed);
            self.line.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write(lines: &Receiver<Message>, waiting: &Waiting, mut sink: impl Write) {
    while let Ok(message) = lines.recv() {
        match message {
            Message::Line(line) => {
                let _ = sink.write_all(&line);
                let left = waiting.bytes.fetch_sub(line.len(), Ordering::Relaxed) - line.len();
                // The line that says so must find room, or the count would be lost with it.
                let count = if left < MOST_BYTES / 2 { waiting.dropped.swap(0, Ordering::Relaxed) } else { 0 };
                if count > 0 {
                    tracing::error!(count, "log lines were dropped: standard error was not read quickly enough");
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
        let line = [b'x'; 1 << 10];
        let taken = MOST_BYTES / line.len();
        for _ in 0..taken + 10 {
            writer.write_all(&line).unwrap();
        }
        // What is in the sink's hands waits as well.
        assert_eq!(writer.line.dropped.load(Ordering::Relaxed), 10);
        allow.send(()).unwrap();
        assert_eq!(seen.recv().unwrap(), line);
        drop(allow);
        writer.flush(Duration::from_mins(1));
        assert_eq!(seen.try_iter().count() + 1, taken, "all that was taken is written");
        assert_eq!(writer.line.bytes.load(Ordering::Relaxed), 0);
    }
}
