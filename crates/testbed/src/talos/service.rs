//! The machine API of a server: roles, forwarding to other nodes, and what each call does.

use std::{net::Ipv4Addr, sync::Arc};

use futures::{StreamExt, future::BoxFuture, stream::BoxStream};
use talos::protocol::{
    common::{Data, Metadata},
    google::rpc,
};
use tonic::{Code, Request, Status};

use super::{fault::CallFault, listener::Caller, machine::Machine, node::Node, roles};

mod calls;
mod replies;

/// How Talos answers while it has no configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// Up to 1.12: `Version` is not implemented.
    #[default]
    Silent,
    /// From 1.13 on: `Version` answers.
    Answers,
}

/// The API of one server.
#[derive(Clone)]
pub(super) struct Agent {
    machine: Arc<Machine>,
}

/// A message of a reply: it can say which node it is of, and that the node failed.
trait Message: Default + Send + 'static {
    fn set_metadata(&mut self, metadata: Metadata);
}

/// Whom a call is for.
enum Targets {
    /// The server that was called.
    Here,
    One(String),
    Many(Vec<String>),
}

struct StreamTarget {
    machine: Arc<Machine>,
    /// How its pieces are marked.
    metadata: Option<Metadata>,
    fault: Option<CallFault>,
}

impl StreamTarget {
    /// After how many bytes it ends.
    fn limit(&self) -> usize {
        match self.fault {
            Some(CallFault::EndsEarly { after }) => after,
            _ => usize::MAX,
        }
    }
}

impl Agent {
    pub(super) fn new(machine: Arc<Machine>) -> Self {
        Self { machine }
    }

    pub(super) fn machine(&self) -> &Arc<Machine> {
        &self.machine
    }

    pub(super) fn name(&self) -> &str {
        self.machine.name()
    }

    /// Runs a call on every node it is for. With `nodes` a failure is part of the reply, else it is the reply.
    async fn each<T: Sync, M: Message>(
        &self,
        request: &Request<T>,
        rpc: &'static str,
        run: impl Fn(Arc<Machine>) -> BoxFuture<'static, Result<M, Status>> + Send + Sync,
    ) -> Result<Vec<M>, Status> {
        let caller = caller(request);
        match targets(request) {
            Targets::Here => Ok(vec![self.on(self.machine.clone(), &caller, rpc, &run).await?]),
            Targets::One(node) => {
                let machine = self.find(&node, rpc)?;
                Ok(vec![self.on(machine, &caller, rpc, &run).await?])
            }
            Targets::Many(nodes) => {
                let asked = nodes.into_iter().map(|node| self.one_of_many(node, &caller, rpc, &run));
                Ok(futures::future::join_all(asked).await)
            }
        }
    }

    async fn one_of_many<M: Message>(
        &self,
        node: String,
        caller: &Caller,
        rpc: &'static str,
        run: &(impl Fn(Arc<Machine>) -> BoxFuture<'static, Result<M, Status>> + Sync),
    ) -> M {
        let answer = match self.find(&node, rpc) {
            Ok(machine) => self.on(machine, caller, rpc, run).await,
            Err(status) => Err(status),
        };
        let mut message = M::default();
        let metadata = match answer {
            Ok(answer) => {
                message = answer;
                Metadata { hostname: node, ..Metadata::default() }
            }
            Err(status) => failed(node, &status),
        };
        message.set_metadata(metadata);
        message
    }

    /// Runs a call on one node, if the caller may, and records it.
    async fn on<M>(
        &self,
        machine: Arc<Machine>,
        caller: &Caller,
        rpc: &'static str,
        run: &(impl Fn(Arc<Machine>) -> BoxFuture<'static, Result<M, Status>> + Sync),
    ) -> Result<M, Status> {
        let (answer, fault) = match admitted(&machine, caller, rpc) {
            Err(status) => (Err(status), None),
            Ok(fault) => (run(machine.clone()).await, fault),
        };
        record(&machine, rpc, answer.as_ref().map_or_else(Status::code, |_| Code::Ok));
        match fault {
            Some(CallFault::Slow(delay)) => tokio::time::sleep(delay).await,
            // The caller's connection is one of this server, also for a call that was forwarded.
            Some(CallFault::LostReply) if answer.is_ok() => lose_reply(&self.machine).await,
            // What is lost is the reply to a call that was done: this fault is still to come.
            Some(CallFault::LostReply) => machine.fail(rpc, CallFault::LostReply, 1),
            _ => {}
        }
        answer
    }

    /// The one node a stream is of, if the caller may have it.
    fn stream_target<T>(&self, request: &Request<T>, rpc: &'static str) -> Result<StreamTarget, Status> {
        let (machine, metadata) = match targets(request) {
            Targets::Here => (self.machine.clone(), None),
            Targets::One(node) => (self.find(&node, rpc)?, None),
            Targets::Many(nodes) => match nodes.as_slice() {
                [node] => {
                    let metadata = Metadata { hostname: node.clone(), ..Metadata::default() };
                    (self.find(node, rpc)?, Some(metadata))
                }
                _ => return Err(Status::unimplemented("a simulated node streams from one node at a time")),
            },
        };
        let fault = admitted(&machine, &caller(request), rpc);
        let fault = fault.inspect_err(|status| record(&machine, rpc, status.code()))?;
        Ok(StreamTarget { machine, metadata, fault })
    }

    /// Another node of the same cluster, by its address.
    fn find(&self, node: &str, rpc: &'static str) -> Result<Arc<Machine>, Status> {
        let found = || {
            let address: Ipv4Addr = node.parse().ok()?;
            let machine = self.machine.world()?.at(address)?;
            let (theirs, ours) = (machine.node()?, self.machine.node()?);
            // A node forwards to itself also when nothing else reaches it.
            let is_within_reach =
                Arc::ptr_eq(&machine, &self.machine) || (machine.is_reachable() && self.machine.is_reachable());
            (is_within_reach && theirs.applied.os.certificate == ours.applied.os.certificate).then_some(machine)
        };
        found().ok_or_else(|| {
            let status = Status::unavailable(format!("connection error: desc = \"transport: dialing {node}:50000\""));
            record(&self.machine, rpc, status.code());
            status
        })
    }
}

fn caller<T>(request: &Request<T>) -> Caller {
    request.extensions().get::<Caller>().cloned().unwrap_or_default()
}

fn targets<T>(request: &Request<T>) -> Targets {
    let metadata = request.metadata();
    // Several values arrive as several entries or as one with commas.
    let values = |name: &str| -> Vec<String> {
        let entries = metadata.get_all(name).iter().filter_map(|value| value.to_str().ok());
        entries.flat_map(|value| value.split(',')).map(|value| value.trim().to_owned()).collect()
    };
    let nodes = values("nodes");
    if !nodes.is_empty() {
        return Targets::Many(nodes);
    }
    values("node").into_iter().next().map_or(Targets::Here, Targets::One)
}

/// What a server in maintenance implements, or what the caller's roles allow.
/// The fault that a call meets after it was let in. A caller who may not call meets none, and uses none up.
fn admitted(machine: &Machine, caller: &Caller, rpc: &str) -> Result<Option<CallFault>, Status> {
    allowed(machine, caller, rpc)?;
    match machine.take_fault(rpc) {
        Some(CallFault::Refused(code)) => Err(Status::new(code, "a fault was asked for")),
        fault => Ok(fault),
    }
}

fn allowed(machine: &Machine, caller: &Caller, rpc: &str) -> Result<(), Status> {
    if machine.node().is_none() {
        let is_open = rpc == "ApplyConfiguration" || (rpc == "Version" && machine.dialect() == Dialect::Answers);
        let closed = || Status::unimplemented("API is not implemented in maintenance mode");
        return if is_open { Ok(()) } else { Err(closed()) };
    }
    if roles::may_call(&caller.roles, rpc) { Ok(()) } else { Err(Status::permission_denied("not authorized")) }
}

fn failed(node: String, status: &Status) -> Metadata {
    let code = i32::from(status.code());
    let error = format!("rpc error: code = {:?} desc = {}", status.code(), status.message());
    let status = rpc::Status { code, message: status.message().to_owned() };
    Metadata { hostname: node, error, status: Some(status) }
}

fn record(machine: &Machine, rpc: &str, code: Code) {
    if let Some(world) = machine.world() {
        world.log.record(machine.name(), rpc, code);
    }
}

fn node_of(machine: &Machine) -> Result<Arc<Node>, Status> {
    machine.node().ok_or_else(|| Status::unavailable("the node is going down"))
}

/// Pieces of a stream, recorded when it ends.
fn recorded(
    target: StreamTarget,
    server: Arc<Machine>,
    rpc: &'static str,
    pieces: impl futures::Stream<Item = Result<Vec<u8>, Status>> + Send + 'static,
) -> BoxStream<'static, Result<Data, Status>> {
    let mut code = Code::Ok;
    let pieces = cut_off(pieces, target.limit());
    let StreamTarget { machine, metadata, fault } = target;
    let late = futures::stream::once(delay(fault)).filter_map(|()| std::future::ready(None));
    let end = futures::stream::once(async { None });
    let pieces = late.chain(pieces.map(Some)).chain(end);
    let recorded = pieces.filter_map(move |piece| {
        let is_lost = piece.is_none() && fault == Some(CallFault::LostReply);
        let server = server.clone();
        let piece = match piece {
            None => {
                record(&machine, rpc, code);
                None
            }
            Some(Ok(bytes)) => Some(Ok(Data { metadata: metadata.clone(), bytes })),
            Some(Err(status)) => {
                code = status.code();
                Some(Err(status))
            }
        };
        async move {
            if is_lost {
                lose_reply(&server).await;
            }
            piece
        }
    });
    recorded.boxed()
}

/// Never returns: a reply that is made may be sent before the connection is gone. The caller's end of it ends this too.
async fn lose_reply(server: &Machine) {
    server.break_connections();
    std::future::pending::<()>().await;
}

async fn delay(fault: Option<CallFault>) {
    if let Some(CallFault::Slow(delay)) = fault {
        tokio::time::sleep(delay).await;
    }
}

/// The stream up to so many bytes.
fn cut_off(
    pieces: impl futures::Stream<Item = Result<Vec<u8>, Status>> + Send + 'static,
    mut left: usize,
) -> impl futures::Stream<Item = Result<Vec<u8>, Status>> + Send + 'static {
    pieces.scan((), move |(), piece| {
        let piece = (left > 0).then(|| {
            piece.map(|mut bytes| {
                bytes.truncate(left);
                left -= bytes.len();
                bytes
            })
        });
        std::future::ready(piece)
    })
}
