//! HTTP/2 by hand: what no library would send.

use std::net::SocketAddr;

use shard::identity::Role;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::zone::Zone;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const GOAWAY: u8 = 7;

pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// One frame as it came.
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
}

/// Of the client's certificate, if it has one.
type Subject<'a> = Option<(&'a str, &'a str, Role)>;

/// A connection of a client that answers nothing by itself.
pub struct Raw(TlsStream<TcpStream>);

impl Raw {
    /// TLS alone.
    pub async fn connect(zone: &Zone, address: SocketAddr, subject: impl Into<Subject<'_>>) -> Self {
        let tls = TlsConnector::from(zone.tls(subject.into()));
        let name = rustls::pki_types::ServerName::try_from(address.ip().to_string()).expect("an address");
        let tcp = TcpStream::connect(address).await.expect("it listens");
        Self(tls.connect(name, tcp).await.expect("TLS"))
    }

    /// HTTP/2 begun as it should be.
    pub async fn begin(zone: &Zone, address: SocketAddr, subject: impl Into<Subject<'_>>) -> Self {
        let mut raw = Self::connect(zone, address, subject).await;
        raw.0.write_all(PREFACE).await.expect("the server reads");
        raw.send(SETTINGS, 0, 0, &[]).await.expect("the server reads");
        raw
    }

    pub async fn send(&mut self, kind: u8, flags: u8, stream: u32, body: &[u8]) -> std::io::Result<()> {
        self.0.write_all(&frame(kind, flags, stream, body)).await
    }

    /// The next frame; `None` at the end of the connection.
    pub async fn next(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).await.ok()?;
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
        self.0.read_exact(&mut vec![0; length]).await.ok()?;
        Some(Frame { kind: head[3], flags: head[4], stream })
    }

    /// Both directions, for a client that reads while it writes.
    pub fn split(self) -> (tokio::io::ReadHalf<TlsStream<TcpStream>>, tokio::io::WriteHalf<TlsStream<TcpStream>>) {
        tokio::io::split(self.0)
    }
}

pub fn frame(kind: u8, flags: u8, stream: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("a small frame").to_be_bytes();
    let head = [length[1], length[2], length[3], kind, flags];
    [&head[..], &stream.to_be_bytes(), body].concat()
}

/// The headers of a call, without compression: HPACK's literals, and its static names where there are some.
pub fn call(path: &str) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).expect("a short text")][..], text.as_bytes()].concat();
    let (post, https, path_name, authority, literal) = (0x83, 0x87, 0x04, 0x01, 0x00);
    let mut block = vec![post, https, path_name];
    block.extend(text(path));
    block.push(authority);
    block.extend(text("shard"));
    for (name, value) in [("content-type", "application/grpc"), ("te", "trailers")] {
        block.push(literal);
        block.extend(text(name));
        block.extend(text(value));
    }
    block
}
