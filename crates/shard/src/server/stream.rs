//! A connection as HTTP/2 sees it: it begins with bytes that were read before, and writes what belongs together at once.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How every HTTP/2 connection begins.
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Bytes that are gathered before they are written: four records of TLS. HTTP/2 hands a frame over in two pieces, its
/// head and at most 16 KiB of content, each of which would be a record and a call to the kernel of its own.
const GATHERED: usize = 64 * 1024;

/// A stream whose preface was read already, and is read again by HTTP/2.
pub struct Begun<S> {
    inner: S,
    read: usize,
    /// Empty and without memory after every flush: thousands of agents are connected, and silent.
    gathered: Vec<u8>,
    written: usize,
}

impl<S> Begun<S> {
    pub fn new(inner: S) -> Self {
        Self { inner, read: 0, gathered: Vec::new(), written: 0 }
    }

    pub fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S: AsyncWrite + Unpin> Begun<S> {
    fn poll_gathered(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.gathered.len() {
            let left = &self.gathered[self.written..];
            match ready!(Pin::new(&mut self.inner).poll_write(context, left))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.written += written,
            }
        }
        self.gathered.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Begun<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = &PREFACE[self.read..];
        if left.is_empty() {
            return Pin::new(&mut self.inner).poll_read(context, buffer);
        }
        let taken = left.len().min(buffer.remaining());
        buffer.put_slice(&left[..taken]);
        self.read += taken;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Begun<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.gathered.len() + bytes.len() > GATHERED {
            ready!(self.poll_gathered(context))?;
        }
        if bytes.len() >= GATHERED {
            return Pin::new(&mut self.inner).poll_write(context, bytes);
        }
        self.gathered.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_gathered(context))?;
        self.gathered = Vec::new();
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_gathered(context))?;
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    /// Counts writes, and takes less than it is given, as a full socket does.
    struct Counted {
        inner: DuplexStream,
        writes: usize,
    }

    impl AsyncWrite for Counted {
        fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.writes += 1;
            let some = bytes.len().min(24 * 1024);
            Pin::new(&mut self.inner).poll_write(context, &bytes[..some])
        }

        fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.inner).poll_flush(context)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.inner).poll_shutdown(context)
        }
    }

    #[tokio::test]
    async fn frames_are_written_together_in_order_and_nothing_is_kept() {
        const FRAMES: usize = 80;
        let (near, mut far) = duplex(4 * 1024 * 1024);
        let mut stream = Begun::new(Counted { inner: near, writes: 0 });
        let mut expected = Vec::new();
        for number in 0..FRAMES {
            let byte = u8::try_from(number).unwrap();
            for piece in [vec![byte; 9], vec![byte; 16 * 1024]] {
                stream.write_all(&piece).await.unwrap();
                expected.extend(piece);
            }
        }
        // One that is larger than what is gathered goes by itself, after what came before.
        stream.write_all(&vec![255; 3 * GATHERED]).await.unwrap();
        expected.extend(vec![255; 3 * GATHERED]);
        stream.flush().await.unwrap();
        assert_eq!(stream.gathered.capacity(), 0, "an idle connection holds nothing");
        let writes = stream.get_ref().writes;
        assert!(writes < 2 * FRAMES, "{writes} writes of {} pieces", 2 * FRAMES);
        stream.write_all(b"end").await.unwrap();
        stream.shutdown().await.unwrap();
        expected.extend(b"end");
        drop(stream);
        let mut received = Vec::new();
        far.read_to_end(&mut received).await.unwrap();
        assert!(received == expected, "{} of {} bytes", received.len(), expected.len());
    }
}
