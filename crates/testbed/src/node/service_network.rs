//! Where Services work: a host of its own on the node's network, with a real kube-proxy.
//!
//! kube-proxy writes packet rules. In a network namespace of its own they are not the machine's, and they last as long
//! as the namespace: until the processes in it end.

use std::{
    fs::File,
    io,
    net::SocketAddr,
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::oneshot,
};
use tokio_util::task::AbortOnDropHandle;

use super::{NodeError, RealNode, SOCKET_INTERVAL, START_LIMIT};
use crate::{
    control_plane::ControlPlane,
    process::{Child, Program},
    tools,
    users::User,
};

/// Run as the first process of the new namespace: joins it to the node's bridge and stays. The route gives addresses of
/// Services a way that only translated packets get through: nobody on the bridge answers for the others, and the bridge
/// leads nowhere. The outer end is named by process id, because one of an owner that was killed can linger.
const JOIN: &str = r#"
set -e
init=$1 bridge=$2 address=$3 ready=$4
ip link set lo up
ip link add eth0 type veth peer name "strata-p$$" netns "$init"
nsenter --target "$init" --net ip link set "strata-p$$" master "$bridge" up
ip address add "$address/24" dev eth0
ip link set eth0 up
ip route add default dev eth0
: >"$ready"
exec sleep infinity
"#;

/// What kube-proxy listens on in its namespace once it works.
const KUBE_PROXY_HEALTH: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 10256);

/// Between neighbours on one machine; a packet that no rule translates is never answered.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// A running kube-proxy and the namespace it rules; one per node, and gone before it.
pub struct ServiceNetwork<'node> {
    // Dropped in this order.
    _kube_proxy: Child,
    _relay: AbortOnDropHandle<()>,
    _holder: Child,
    namespace: Namespace,
    _node: &'node RealNode,
}

impl<'node> ServiceNetwork<'node> {
    pub(super) async fn start(node: &'node RealNode, control_plane: &ControlPlane) -> Result<Self, NodeError> {
        let kube_proxy = tools::path("kube-proxy").await?;
        let kubeconfig = control_plane.kubeconfig_as(&User::named("system:kube-proxy")).await?;
        let (holder, namespace) = hold(node).await?;
        let relay = relay(&namespace, control_plane).await?;
        let kube_proxy = Child::start(kube_proxy_program(node, holder.pid(), &kube_proxy, &kubeconfig))?;
        listening(&namespace, &kube_proxy).await?;
        Ok(Self { _kube_proxy: kube_proxy, _relay: relay, _holder: holder, namespace, _node: node })
    }

    /// A connection from inside, where addresses of Services lead to their pods.
    pub async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        self.namespace.connect(address).await
    }
}

/// A network namespace. A socket belongs for ever to the one in which it was made, whoever uses it.
struct Namespace(Arc<File>);

impl Namespace {
    async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let stream = self.inside(move || std::net::TcpStream::connect_timeout(&address, CONNECT_LIMIT)).await?;
        stream.set_nonblocking(true)?;
        TcpStream::from_std(stream)
    }

    async fn listen(&self, address: SocketAddr) -> io::Result<TcpListener> {
        let listener = self.inside(move || std::net::TcpListener::bind(address)).await?;
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    }

    /// On a thread of its own, which ends there: those of a pool would stay inside.
    async fn inside<T: Send + 'static>(&self, make: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
        let (sender, socket) = oneshot::channel();
        let namespace = Arc::clone(&self.0);
        std::thread::spawn(move || {
            let enter = move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network));
            let _ = sender.send(enter.map_err(io::Error::from).and_then(|()| make()));
        });
        socket.await.map_err(io::Error::other)?
    }
}

/// Makes the namespace and waits until it is joined to the bridge.
async fn hold(node: &RealNode) -> Result<(Child, Namespace), NodeError> {
    let ready = node.layout.folder().join("service-network.ready");
    let slot = &node.slot;
    let program = Program::new("service-network", "unshare", node.layout.log("service-network"))
        .args(["--net", "sh", "-c", JOIN, "strata-network", &node.init, &slot.name()])
        .args([PathBuf::from(slot.neighbour().to_string()), ready.clone()]);
    let holder = Child::start(program)?;
    let joined = async {
        while holder.is_running() && !ready.exists() {
            tokio::time::sleep(SOCKET_INTERVAL).await;
        }
        holder.is_running()
    };
    if tokio::time::timeout(START_LIMIT, joined).await != Ok(true) {
        return Err(NodeError::NotReady { what: "the network of Services", log: holder.log_tail() });
    }
    let namespace = File::open(format!("/proc/{}/ns/net", holder.pid()))
        .map_err(|source| NodeError::Io { action: "open a network namespace".to_owned(), source })?;
    Ok((holder, Namespace(Arc::new(namespace))))
}

/// Makes the API server reachable inside under the address that kubeconfigs and certificates name.
async fn relay(namespace: &Namespace, control_plane: &ControlPlane) -> Result<AbortOnDropHandle<()>, NodeError> {
    let io = |source| NodeError::Io { action: "listen in a network namespace".to_owned(), source };
    let address =
        control_plane.server().trim_start_matches("https://").parse().map_err(io::Error::other).map_err(io)?;
    let listener = namespace.listen(address).await.map_err(io)?;
    let relay = async move {
        while let Ok((mut inner, _)) = listener.accept().await {
            tokio::spawn(async move {
                if let Ok(mut outer) = TcpStream::connect(address).await {
                    // An end of either side, of whatever kind, is seen by the other.
                    let _ = tokio::io::copy_bidirectional(&mut inner, &mut outer).await;
                }
            });
        }
    };
    Ok(AbortOnDropHandle::new(tokio::spawn(relay)))
}

/// With the node's mounts, whose `/run` is not the machine's. The limits of connection tracking are the machine's: 0
/// leaves them alone.
fn kube_proxy_program(node: &RealNode, holder: u32, kube_proxy: &Path, kubeconfig: &Path) -> Program {
    Program::new("kube-proxy", "nsenter", node.layout.log("kube-proxy"))
        .args(["--target", &holder.to_string(), "--net"])
        .args(["nsenter", "--target", &node.init, "--mount", "--pid"])
        .args([kube_proxy])
        .args([format!("--kubeconfig={}", kubeconfig.display()), format!("--hostname-override={}", node.name())])
        .args(["--proxy-mode=iptables", "--conntrack-max-per-core=0", "--conntrack-min=0"])
        .args(["--conntrack-tcp-timeout-established=0s", "--conntrack-tcp-timeout-close-wait=0s"])
}

async fn listening(namespace: &Namespace, kube_proxy: &Child) -> Result<(), NodeError> {
    let listens = async {
        while kube_proxy.is_running() && namespace.connect(KUBE_PROXY_HEALTH).await.is_err() {
            tokio::time::sleep(SOCKET_INTERVAL).await;
        }
        kube_proxy.is_running()
    };
    match tokio::time::timeout(START_LIMIT, listens).await {
        Ok(true) => Ok(()),
        _ => Err(NodeError::NotReady { what: "kube-proxy", log: kube_proxy.log_tail() }),
    }
}
