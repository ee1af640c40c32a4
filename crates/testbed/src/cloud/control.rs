//! The control port: one request and one reply per connection, each a line of JSON, after a line with the token.

use std::{
    collections::BTreeMap,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    CONTROL_LIMIT, Parts,
    fault::{Active, FaultError, Where},
};

/// A request names a few words; a list of faults has some hundred lines at most.
const LONGEST: u64 = 1 << 20;

/// What the control port is asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "do")]
pub enum Request {
    /// A fault of Hetzner's API.
    Hcloud {
        operation: String,
        kind: String,
        #[serde(flatten)]
        at: Where,
        times: Option<u32>,
    },
    /// A fault of one server, or of one call that it answers.
    Node {
        name: String,
        rpc: Option<String>,
        kind: String,
        times: Option<u32>,
    },
    List,
    Clear,
    /// The servers there are.
    Servers,
}

/// A server as Hetzner's API has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerInfo {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub private: Option<Ipv4Addr>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reply {
    Done,
    Faults(Vec<Active>),
    Servers(Vec<ServerInfo>),
    Refused(String),
}

/// Why there is no reply.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("the simulators' control port {0} does not answer")]
    Io(SocketAddr, #[source] io::Error),
    #[error("the simulators' control port {0} does not answer in time")]
    Late(SocketAddr),
}

/// Sends one request to the control port of a cloud.
pub async fn ask(control: SocketAddr, token: &str, request: &Request) -> Result<Reply, ControlError> {
    let asked = async {
        let mut stream = TcpStream::connect(control).await?;
        let request = serde_json::to_string(request)?;
        stream.write_all(format!("{token}\n{request}\n").as_bytes()).await?;
        let mut reply = String::new();
        BufReader::new(stream.take(LONGEST)).read_line(&mut reply).await?;
        Ok(serde_json::from_str(&reply)?)
    };
    let asked = timeout(CONTROL_LIMIT, asked).await.map_err(|_| ControlError::Late(control))?;
    asked.map_err(|error| ControlError::Io(control, error))
}

/// Serves requests until the handle is dropped.
pub(super) async fn serve(parts: Arc<Parts>, token: String) -> io::Result<(SocketAddr, AbortOnDropHandle<()>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let serving = tokio::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else { continue };
            // One after another: so do people ask. One that hangs is cut off.
            if let Ok(Err(error)) = timeout(CONTROL_LIMIT, answer(&parts, &token, stream)).await {
                tracing::debug!(%error, "a request to the simulators' control port was cut short");
            }
        }
    });
    Ok((address, AbortOnDropHandle::new(serving)))
}

async fn answer(parts: &Parts, token: &str, mut stream: TcpStream) -> io::Result<()> {
    let (read, mut write) = stream.split();
    let mut lines = BufReader::new(read.take(LONGEST)).lines();
    let (shown, request) = (lines.next_line().await?, lines.next_line().await?);
    let reply = if shown.as_deref() == Some(token) {
        match serde_json::from_str(&request.unwrap_or_default()) {
            Ok(request) => carry_out(parts, request).await.unwrap_or_else(|error| refused(&error)),
            Err(error) => Reply::Refused(format!("not a request: {error}")),
        }
    } else {
        Reply::Refused("the control port takes the token that `strata dev status -o json` shows".to_owned())
    };
    let mut text = serde_json::to_string(&reply)?;
    text.push('\n');
    write.write_all(text.as_bytes()).await
}

/// With all causes.
fn refused(error: &FaultError) -> Reply {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    Reply::Refused(text)
}

async fn carry_out(parts: &Parts, request: Request) -> Result<Reply, FaultError> {
    match request {
        Request::Hcloud { operation, kind, at, times } => parts.fail_hcloud(&operation, &kind, at, times)?,
        Request::Node { name, rpc: Some(rpc), kind, times } => {
            parts.fail_call(&name, &rpc, &kind, times.unwrap_or(1))?;
        }
        Request::Node { name, rpc: None, kind, .. } => parts.fail_node(&name, &kind).await?,
        Request::List => return Ok(Reply::Faults(parts.active())),
        Request::Servers => {
            let servers = parts.simulator.machines().into_iter().map(|machine| ServerInfo {
                private: machine.private.first().map(|(_, address)| *address),
                name: machine.name,
                labels: machine.labels,
            });
            return Ok(Reply::Servers(servers.collect()));
        }
        Request::Clear => parts.clear().await?,
    }
    Ok(Reply::Done)
}
