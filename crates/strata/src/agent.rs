//! `strata agent`.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use ::agent::{NodeOptions, Options};
use clap::Args;
use shard::{client::Addresses, clock::Clock};
use tokio_util::sync::CancellationToken;

use crate::{
    Failure,
    config::{LogFormat, duration},
    connection::client_config,
    explained,
    operator::stop_on_signal,
};

/// The environment variables are those of the original agent, so that its userdata starts this one unchanged.
#[derive(Debug, Args)]
pub struct Flags {
    /// The instance that the agent speaks for
    #[arg(long, env = "NSTANCE_INSTANCE_ID", value_name = "ID")]
    instance_id: String,
    /// Where the shard registers agents: host:port, or several separated by commas
    #[arg(long, env = "NSTANCE_SERVER_REGISTRATION_ADDR", value_name = "ADDRESSES")]
    registration_addr: Addresses,
    /// Where the shard takes reports: host:port, or several separated by commas
    #[arg(long, env = "NSTANCE_SERVER_AGENT_ADDR", value_name = "ADDRESSES")]
    agent_addr: Addresses,
    /// Folder with ca.crt and nonce.jwt; the agent adds its key and certificate
    #[arg(long, env = "NSTANCE_IDENTITY_DIR", value_name = "DIR", default_value = "/opt/nstance-agent/identity")]
    identity_dir: PathBuf,
    /// The instance's name in its network [default: its id]
    #[arg(long, env = "NSTANCE_INSTANCE_HOSTNAME", value_name = "NAME")]
    hostname: Option<String>,
    /// The instance's IPv4 address
    #[arg(long, env = "NSTANCE_INSTANCE_IPV4", value_name = "ADDRESS")]
    ipv4: Option<IpAddr>,
    /// The instance's IPv6 address
    #[arg(long, env = "NSTANCE_INSTANCE_IPV6", value_name = "ADDRESS")]
    ipv6: Option<IpAddr>,
    /// Time between health reports
    #[arg(long, env = "NSTANCE_REPORT_INTERVAL", value_parser = duration, default_value = "60s", value_name = "DURATION")]
    report_interval: Duration,
    /// File that appears when the machine is about to be taken away; it may hold {"action": …, "time": …}
    #[arg(long, value_name = "FILE")]
    notice_file: Option<PathBuf>,
    /// Time between looks for that file
    #[arg(long, env = "NSTANCE_SPOT_POLL_INTERVAL", value_parser = duration, default_value = "2s", value_name = "DURATION")]
    notice_interval: Duration,
    /// End once no process holds a lock on this file
    #[arg(long, value_name = "FILE")]
    end_with_lock: Option<PathBuf>,
    #[command(flatten)]
    node: NodeFlags,
    /// Form of the log [default: json, on a terminal pretty]
    #[arg(long, env = "STRATA_LOG_FORMAT", value_enum)]
    log_format: Option<LogFormat>,
    /// Level or filter of the log
    #[arg(long, env = "STRATA_LOG_LEVEL", default_value = "info", value_name = "LEVEL")]
    log_level: String,
}

#[derive(Debug, Args)]
struct NodeFlags {
    /// Register a Node named as the instance, and keep its status and its Lease
    #[arg(long, requires_all = ["provider_id", "shard", "group"])]
    node: bool,
    /// Kubeconfig file [default: $KUBECONFIG or ~/.kube/config]
    #[arg(long, value_name = "FILE", requires = "node")]
    kubeconfig: Option<PathBuf>,
    /// The Node's provider ID
    #[arg(long, value_name = "ID", requires = "node")]
    provider_id: Option<String>,
    /// The instance's shard, which is its zone
    #[arg(long, requires = "node")]
    shard: Option<String>,
    /// The instance's group
    #[arg(long, requires = "node")]
    group: Option<String>,
    /// Label of the Node; one that Kubernetes would refuse is left out
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = pair, requires = "node")]
    labels: Vec<(String, String)>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("{text:?} is not a label: write NAME=VALUE"))?;
    Ok((name.to_owned(), value.to_owned()))
}

pub fn run(flags: Flags) -> Result<(), Failure> {
    crate::operator::start_logs_as(flags.log_format, &flags.log_level)?;
    // One thread: an agent waits, and a host runs many of them.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("cannot start: {error}")))?;
    let result = runtime.block_on(work(flags));
    crate::operator::end(runtime);
    result
}

async fn work(flags: Flags) -> Result<(), Failure> {
    let stop = CancellationToken::new();
    tokio::spawn(stop_on_signal(stop.clone()));
    let address = |address: Option<IpAddr>| address.map(|address| address.to_string()).unwrap_or_default();
    let addresses = [address(flags.ipv4), address(flags.ipv6)];
    let node = flags.node.options(&flags.instance_id, &addresses).await?;
    let [ipv4, ipv6] = addresses;
    let options = Options {
        hostname: flags.hostname.unwrap_or_else(|| flags.instance_id.clone()),
        instance_id: flags.instance_id,
        registration: flags.registration_addr,
        agent: flags.agent_addr,
        identity_dir: flags.identity_dir,
        ipv4,
        ipv6,
        report_interval: flags.report_interval,
        notice_file: flags.notice_file,
        notice_interval: flags.notice_interval,
        end_with_lock: flags.end_with_lock,
        node,
    };
    tracing::info!(version = env!("CARGO_PKG_VERSION"), instance = options.instance_id, "strata agent starts");
    ::agent::run(options, Clock::default(), stop).await.map_err(|error| {
        Failure::new(explained(&error)).hint("userdata puts ca.crt and nonce.jwt into the folder of --identity-dir")
    })
}

impl NodeFlags {
    async fn options(self, instance_id: &str, addresses: &[String; 2]) -> Result<Option<NodeOptions>, Failure> {
        if !self.node {
            return Ok(None);
        }
        let config = client_config(self.kubeconfig.as_deref(), None).await?;
        let client = runtime::connect(config)
            .map_err(|error| Failure::new(format!("cannot make a client for the API server: {error}")))?;
        let (labels, refused) = ::agent::labels(self.labels);
        if !refused.is_empty() {
            tracing::warn!(vars = refused.join(", "), "no label of the Node: the name is reserved, or no label's");
        }
        Ok(Some(NodeOptions {
            client,
            instance_id: instance_id.to_owned(),
            provider_id: self.provider_id.unwrap_or_default(),
            shard: self.shard.unwrap_or_default(),
            group: self.group.unwrap_or_default(),
            labels,
            addresses: addresses.clone(),
        }))
    }
}
