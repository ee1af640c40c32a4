//! A proxy between an operator and the server of a shard: it holds calls, and repeats or loses what the shard announces.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::Result;
use bytes::{Buf, Bytes, BytesMut};
use futures::{StreamExt, stream};
use http::{Request, Response};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    client::conn::http2::SendRequest,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use shard::{
    clock::Clock,
    identity::{Authority, Role, ServerTls, client_tls, key_pair},
    wire,
};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    strike::{Rpc, Strikes},
    zones::{CLUSTER, TENANT},
};

const DAY: Duration = Duration::from_hours(24);

/// Before each message gRPC writes one byte of flags and four of length.
const PREFIX: usize = 5;

/// What becomes of the deletions that a shard announces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Announcements {
    #[default]
    Passed,
    /// Each comes twice.
    Twice,
    /// Each is followed by all that came before it.
    Replayed,
    /// The next one is lost, and the stream with it.
    Lost,
}

struct Shared {
    strikes: Strikes,
    announcements: Mutex<Announcements>,
    /// All that was announced, as it was sent.
    past: Mutex<Vec<Bytes>>,
    upstream: SocketAddr,
    connector: TlsConnector,
}

/// The running proxy; it ends when dropped.
pub struct Wire {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    _server: AbortOnDropHandle<()>,
}

type Body = UnsyncBoxBody<Bytes, hyper::Error>;
type Upstream = SendRequest<Full<Bytes>>;

impl Wire {
    /// Before the server whose operator port this is.
    pub async fn start(upstream: SocketAddr, authority: &Authority, clock: &Clock, strikes: &Strikes) -> Result<Self> {
        let ca = authority.certificate_pem();
        let server = authority.issue_server(&["127.0.0.1".to_owned()], clock.now(), DAY)?;
        let acceptor = TlsAcceptor::from(ServerTls::new(ca, &server, Arc::new(clock.clone()))?.mutual()?);
        let key = key_pair();
        let subject = (CLUSTER, TENANT, Role::Operator);
        let (certificate, _) = authority.issue_client(subject, key.public_key_pem().as_bytes(), clock.now(), DAY)?;
        let identity = Some((certificate.as_str(), &*key.serialize_pem()));
        let connector = TlsConnector::from(client_tls(ca, identity, Arc::new(clock.clone()))?);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            strikes: strikes.clone(),
            announcements: Mutex::default(),
            past: Mutex::default(),
            upstream,
            connector,
        });
        let serving = shared.clone();
        let server = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (serving, acceptor) = (serving.clone(), acceptor.clone());
                tokio::spawn(async move {
                    // A server that is away looks to the operator as it would without the proxy.
                    let _ = serving.connection(stream, acceptor).await;
                });
            }
        });
        Ok(Self { address, shared, _server: AbortOnDropHandle::new(server) })
    }

    pub fn announce(&self, announcements: Announcements) {
        *self.shared.announcements.lock().unwrap_or_else(PoisonError::into_inner) = announcements;
    }
}

impl Shared {
    /// Each connection of the operator has one of its own to the server, and ends with it.
    async fn connection(self: Arc<Self>, stream: TcpStream, acceptor: TlsAcceptor) -> Result<()> {
        stream.set_nodelay(true)?;
        let stream = acceptor.accept(stream).await?;
        let upstream = TcpStream::connect(self.upstream).await?;
        upstream.set_nodelay(true)?;
        let upstream = self.connector.connect(Ipv4Addr::LOCALHOST.into(), upstream).await?;
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(upstream)).await?;
        let service = service_fn(move |request| self.clone().answer(sender.clone(), request));
        let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), service);
        tokio::select! {
            result = serving => result?,
            result = connection => result?,
        }
        Ok(())
    }

    async fn answer(
        self: Arc<Self>,
        mut upstream: Upstream,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, hyper::Error> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let method = parts.uri.path().rsplit('/').next().unwrap_or_default().to_owned();
        let about = about(&method, &body);
        let call = upstream.send_request(Request::from_parts(parts, Full::new(body)));
        let answer = match about {
            Some(about) => self.strikes.meet(&Rpc { method: method.clone(), about }, call).await?,
            None => call.await?,
        };
        Ok(answer.map(|body| if method == "WatchInstances" { self.announced(body) } else { body.boxed_unsync() }))
    }

    /// The stream of announcements, with what is to become of each.
    fn announced(self: &Arc<Self>, body: Incoming) -> Body {
        let relay = (self.clone(), body, BytesMut::new());
        let frames = stream::unfold(Some(relay), async |relay| {
            let (shared, mut body, mut rest) = relay?;
            let frame = match body.frame().await? {
                Ok(frame) => frame,
                Err(error) => return Some((vec![Err(error)], None)),
            };
            let data = match frame.into_data() {
                Ok(data) => data,
                Err(trailers) => return Some((vec![Ok(trailers)], Some((shared, body, rest)))),
            };
            rest.extend_from_slice(&data);
            let mut frames = Vec::new();
            while let Some(message) = message(&mut rest) {
                match shared.relayed(message) {
                    Some(messages) => frames.extend(messages.into_iter().map(|message| Ok(Frame::data(message)))),
                    // The end without trailers is a broken stream.
                    None => return Some((frames, None)),
                }
            }
            Some((frames, Some((shared, body, rest))))
        });
        StreamBody::new(frames.flat_map(stream::iter)).boxed_unsync()
    }

    /// What the operator gets instead of a message; `None` if its stream is lost.
    fn relayed(&self, message: Bytes) -> Option<Vec<Bytes>> {
        let mut mode = self.announcements.lock().unwrap_or_else(PoisonError::into_inner);
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        past.push(message.clone());
        match *mode {
            Announcements::Passed => Some(vec![message]),
            Announcements::Twice => Some(vec![message.clone(), message]),
            Announcements::Replayed => Some(std::iter::once(message).chain(past.iter().cloned()).collect()),
            Announcements::Lost => {
                *mode = Announcements::Passed;
                None
            }
        }
    }
}

/// The first whole message, prefix included.
fn message(buffer: &mut BytesMut) -> Option<Bytes> {
    let length = usize::try_from(buffer.get(1..PREFIX)?.get_u32()).ok()?;
    (buffer.len() >= PREFIX + length).then(|| buffer.split_to(PREFIX + length).freeze())
}

/// The group or instance that a call changes; `None` for calls that change nothing.
fn about(method: &str, body: &Bytes) -> Option<String> {
    let body = body.slice(PREFIX.min(body.len())..);
    match method {
        "UpsertGroup" => Some(wire::UpsertGroupRequest::decode(body).ok()?.key),
        "DeleteGroup" => Some(wire::DeleteGroupRequest::decode(body).ok()?.key),
        "CreateInstance" => Some(wire::CreateInstanceRequest::decode(body).ok()?.config?.group),
        "DeleteInstance" => Some(wire::DeleteInstanceRequest::decode(body).ok()?.instance_id),
        "AcknowledgeDrained" => Some(wire::AcknowledgeDrainedRequest::decode(body).ok()?.instance_id),
        _ => None,
    }
}
