//! Calls that stream bytes. None of them holds the whole in memory; all have a limit for silence.

use std::{io::Read, time::Duration};

use futures::{SinkExt, Stream, StreamExt, channel::mpsc, future, stream};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::timeout,
};
use tonic::Streaming;

use super::{CALL_LIMIT, Client, Error, bounded};
use crate::{
    protocol::{common::Data, machine::EtcdSnapshotRequest},
    snapshot::{Snapshot, Verifier},
};

/// Pieces come one after another; this long without one means that the node hangs.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);
/// A kubeconfig is some five kilobytes. More than this is none.
const KUBECONFIG_LIMIT: usize = 1024 * 1024;
/// Small enough to be forwarded by any proxy, large enough that framing costs nothing.
const PIECE: usize = 64 * 1024;
/// Pieces read ahead of the network while a snapshot is uploaded.
const AHEAD: usize = 4;

impl Client {
    /// Streams a snapshot of the node's etcd into `sink` and checks it on the way. On an error what was written is no
    /// snapshot.
    pub async fn etcd_snapshot(&self, sink: &mut (impl AsyncWrite + Unpin)) -> Result<Snapshot, Error> {
        const RPC: &str = "EtcdSnapshot";
        let mut service = self.service.clone();
        let request = self.request(EtcdSnapshotRequest {});
        let mut stream = bounded(RPC, CALL_LIMIT, service.etcd_snapshot(request)).await?.into_inner();
        let mut verifier = Verifier::default();
        while let Some(piece) = next_piece(RPC, &mut stream).await? {
            verifier.update(&piece);
            sink.write_all(&piece).await.map_err(Error::Write)?;
        }
        sink.flush().await.map_err(Error::Write)?;
        Ok(verifier.finish()?)
    }

    /// Uploads a snapshot that `Bootstrap` can then recover from. After an error it must not: the node may hold the whole of
    /// it or nothing.
    pub async fn etcd_recover(&self, mut source: impl AsyncRead + Unpin) -> Result<(), Error> {
        const RPC: &str = "EtcdRecover";
        let (mut sender, receiver) = mpsc::channel(AHEAD);
        let mut service = self.service.clone();
        let request = self.request(until_end(receiver));
        let silent = |_| Error::TimedOut { rpc: RPC, seconds: SILENCE_LIMIT.as_secs() };
        let upload = async {
            loop {
                let mut bytes = Vec::with_capacity(PIECE);
                (&mut source).take(PIECE as u64).read_to_end(&mut bytes).await.map_err(Error::Read)?;
                let piece = (!bytes.is_empty()).then_some(Data { metadata: None, bytes });
                let is_end = piece.is_none();
                // That the node takes no more is for its answer to explain.
                let _ = timeout(SILENCE_LIMIT, sender.send(piece)).await.map_err(silent)?;
                if is_end || sender.is_closed() {
                    return Ok::<(), Error>(());
                }
            }
        };
        let mut call = std::pin::pin!(service.etcd_recover(request));
        let reply = tokio::select! {
            reply = &mut call => reply,
            uploaded = upload => {
                uploaded?;
                timeout(SILENCE_LIMIT, call).await.map_err(silent)?
            }
        };
        let reply = reply.map_err(|status| Error::from_status(RPC, &status))?;
        let message = reply.into_inner().messages.into_iter().next().ok_or(Error::Empty { rpc: RPC })?;
        match message.metadata.as_ref().and_then(|metadata| Error::from_metadata(RPC, metadata)) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// The administrator's kubeconfig.
    pub async fn kubeconfig(&self) -> Result<String, Error> {
        const RPC: &str = "Kubeconfig";
        let mut service = self.service.clone();
        let mut stream = bounded(RPC, CALL_LIMIT, service.kubeconfig(self.request(()))).await?.into_inner();
        let mut archive = Vec::new();
        let whole = async {
            while let Some(piece) = next_piece(RPC, &mut stream).await? {
                if archive.len() + piece.len() > KUBECONFIG_LIMIT {
                    return Err(Error::Kubeconfig { why: format!("it is larger than {KUBECONFIG_LIMIT} bytes") });
                }
                archive.extend_from_slice(&piece);
            }
            Ok(())
        };
        // It is small: not even its pieces may take longer.
        let late = |_| Error::TimedOut { rpc: RPC, seconds: SILENCE_LIMIT.as_secs() };
        timeout(SILENCE_LIMIT, whole).await.map_err(late)??;
        unpack_kubeconfig(&archive)
    }
}

/// Pieces until the end is sent, which is `None`. Where the sender is dropped before, nothing follows: the node would take
/// a stream that ends for the whole. The call itself is dropped then, which resets the stream.
fn until_end(pieces: mpsc::Receiver<Option<Data>>) -> impl Stream<Item = Data> {
    pieces.chain(stream::pending()).scan((), |(), piece| future::ready(piece))
}

async fn next_piece(rpc: &'static str, stream: &mut Streaming<Data>) -> Result<Option<Vec<u8>>, Error> {
    let silent = Error::TimedOut { rpc, seconds: SILENCE_LIMIT.as_secs() };
    let next = async {
        loop {
            let piece = stream.next().await;
            // One with nothing in it is silence too.
            if !matches!(&piece, Some(Ok(Data { metadata: None, bytes })) if bytes.is_empty()) {
                return piece;
            }
        }
    };
    let data = match timeout(SILENCE_LIMIT, next).await.map_err(|_| silent)? {
        None => return Ok(None),
        Some(data) => data.map_err(|status| Error::from_status(rpc, &status))?,
    };
    match data.metadata.as_ref().and_then(|metadata| Error::from_metadata(rpc, metadata)) {
        Some(error) => Err(error),
        None => Ok(Some(data.bytes)),
    }
}

/// The archive is a gzipped tar with one file in it.
fn unpack_kubeconfig(archive: &[u8]) -> Result<String, Error> {
    let broken = |error: std::io::Error| Error::Kubeconfig { why: error.to_string() };
    let unpacked = flate2::read::GzDecoder::new(archive).take(KUBECONFIG_LIMIT as u64);
    let mut tar = tar::Archive::new(unpacked);
    let mut entries = tar.entries().map_err(broken)?;
    let file = entries.next().ok_or_else(|| Error::Kubeconfig { why: "it holds no file".to_owned() })?;
    let mut file = file.map_err(broken)?;
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(broken)?;
    if text.len() as u64 == file.size() {
        Ok(text)
    } else {
        Err(Error::Kubeconfig { why: "it ended early".to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    fn archive(content: &[u8]) -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_cksum();
        tar.append_data(&mut header, "kubeconfig", content).unwrap();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&tar.into_inner().unwrap()).unwrap();
        gzip.finish().unwrap()
    }

    #[test]
    fn the_one_file_is_unpacked() {
        assert_eq!(unpack_kubeconfig(&archive(b"apiVersion: v1\n")).unwrap(), "apiVersion: v1\n");
    }

    #[tokio::test]
    async fn an_upload_that_is_given_up_never_ends_as_a_whole_one() {
        let piece = || Some(Data { metadata: None, bytes: vec![1] });
        let (mut sender, receiver) = mpsc::channel(2);
        sender.send(piece()).await.unwrap();
        sender.send(None).await.unwrap();
        assert_eq!(until_end(receiver).collect::<Vec<_>>().await.len(), 1);
        let (mut sender, receiver) = mpsc::channel(2);
        sender.send(piece()).await.unwrap();
        drop(sender);
        let mut given_up = Box::pin(until_end(receiver));
        assert_eq!(given_up.next().await, piece());
        assert!(futures::poll!(given_up.next()).is_pending());
    }

    #[test]
    fn an_archive_that_ends_early_is_an_error() {
        let whole = archive(&[b'x'; 4000]);
        for end in [0, 1, 10, whole.len() / 2] {
            assert!(matches!(unpack_kubeconfig(&whole[..end]), Err(Error::Kubeconfig { .. })), "{end}");
        }
    }

    #[test]
    fn an_archive_that_unpacks_without_end_is_cut_off() {
        let bomb = archive(&vec![b' '; 4 * KUBECONFIG_LIMIT]);
        assert!(bomb.len() < KUBECONFIG_LIMIT);
        assert!(matches!(unpack_kubeconfig(&bomb), Err(Error::Kubeconfig { .. })));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), valid in any::<bool>()) {
            let mut archive = if valid { archive(b"content") } else { Vec::new() };
            archive.extend(bytes);
            let _ = unpack_kubeconfig(&archive);
        }
    }
}
