//! `strata dev fault`: what goes wrong in the simulated clusters, on demand.

use clap::{Args, Subcommand};
use testbed::cloud::{Active, Reply, Request, Where};

use super::{clusters::ask_simulators, place::Place, status};
use crate::{Failure, output::print};

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Let requests to Hetzner's API fail
    #[command(after_help = HCLOUD_KINDS)]
    Hcloud(HcloudFlags),
    /// Let a server fail, or calls to its machine API
    #[command(after_help = NODE_KINDS)]
    Node(NodeFlags),
    /// List faults that last or wait for their request
    List {
        #[arg(long, short, value_enum, default_value_t)]
        output: status::Output,
    },
    /// End all faults; a server that was turned off or deleted stays so
    Clear,
}

const HCLOUD_KINDS: &str = "\
Kinds:
  lost-response              carried out, and the connection closed instead of answered
  cut                        the connection closed before anything is done
  slow=SECONDS               the answer comes later
  409 423 429 500 502 503 504   this status, with the vendor's code; nothing is done
  stuck-action failed-action vanished-action   what becomes of the actions of the request
  capacity                   no host has room; --location and --server-type limit it
  rate-limit                 the project's requests are spent

Examples:
  strata dev fault hcloud --op \"POST /servers\" --kind lost-response --times 1
  strata dev fault hcloud --op \"POST /servers/*/actions/poweron\" --kind stuck-action";

const NODE_KINDS: &str = "\
Kinds:
  power-off             the plug is pulled; `hcloud server poweron` turns it on again
  delete                the server is lost without a request
  partition             no traffic to it or from it (needs root, nftables and iproute2)
  api-partition         no traffic of the machine API and of Kubernetes' API, while etcd goes on
                        (needs the same)
  etcd-stopped          etcd is killed and stays down
  kubelet-stopped       the kubelet is silent
  slow-disk             etcd stands still most of the time
  certificate-expired   the machine API shows a certificate that has expired
Kinds with --rpc, for the next calls of that name:
  lost-response, slow=SECONDS, ends-early=BYTES (streams), unavailable, deadline-exceeded,
  permission-denied, resource-exhausted, internal, unknown

Examples:
  strata dev fault node ha-cp-a1b2c --kind api-partition
  strata dev fault node ha-cp-a1b2c --rpc EtcdStatus --kind unavailable --times 3";

#[derive(Debug, Args)]
pub struct HcloudFlags {
    /// Method and whole path, without /v1; * stands for one part of the path
    #[arg(long, value_name = "OPERATION")]
    op: String,
    /// What goes wrong, one of the kinds below
    #[arg(long)]
    kind: String,
    /// How often it happens [default: until cleared]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    times: Option<u32>,
    /// Where capacity is missing [default: everywhere]
    #[arg(long)]
    location: Option<String>,
    /// What capacity is missing for [default: every type]
    #[arg(long)]
    server_type: Option<String>,
}

#[derive(Debug, Args)]
pub struct NodeFlags {
    /// Name of the server
    name: String,
    /// What goes wrong, one of the kinds below
    #[arg(long)]
    kind: String,
    /// The call of the machine API that is to fail, such as EtcdStatus
    #[arg(long)]
    rpc: Option<String>,
    /// How often it happens [default: 1]
    #[arg(long, value_name = "COUNT", requires = "rpc", value_parser = clap::value_parser!(u32).range(1..))]
    times: Option<u32>,
}

pub async fn run(place: &Place, command: Command) -> Result<(), Failure> {
    let session = status::current(place)?;
    let (request, output) = match command {
        Command::Hcloud(HcloudFlags { op, kind, times, location, server_type }) => {
            (Request::Hcloud { operation: op, kind, at: Where { location, server_type }, times }, None)
        }
        Command::Node(NodeFlags { name, kind, rpc, times }) => (Request::Node { name, rpc, kind, times }, None),
        Command::List { output } => (Request::List, Some(output)),
        Command::Clear => (Request::Clear, None),
    };
    match (ask_simulators(&session, &request).await?, output) {
        (Reply::Faults(faults), Some(status::Output::Json)) => {
            let text = serde_json::to_string_pretty(&faults).expect("faults have a JSON form");
            print(&format!("{text}\n"))
        }
        (Reply::Faults(faults), _) => print(&table(&faults)),
        _ => Ok(()),
    }
}

fn table(faults: &[Active]) -> String {
    let row = |on: &str, of: &str, kind: &str, times: &str| format!("{on:<24} {of:<36} {kind:<20} {times}\n");
    let rows = faults.iter().map(|fault| {
        let times = fault.times.map_or_else(|| "until cleared".to_owned(), |times| times.to_string());
        row(&fault.on, fault.of.as_deref().unwrap_or("-"), &fault.kind, &times)
    });
    std::iter::once(row("ON", "OF", "KIND", "TIMES")).chain(rows).collect()
}
