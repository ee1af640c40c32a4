//! How a shard's machines at Hetzner are reached, by the names that Hetzner's own programs use.

use std::convert::Infallible;

use clap::Args;
use hetzner::Token;
use shard::provider::HcloudEnvironment;

#[derive(Debug, Args)]
pub struct HcloudFlags {
    // From the environment: arguments are seen by every user of the machine.
    #[arg(long, env = "HCLOUD_TOKEN", value_parser = |text: &str| Ok::<_, Infallible>(Token::new(text)), hide = true, hide_env_values = true)]
    hcloud_token: Option<Token>,
    /// Hetzner's API, for shards with the provider hcloud whose configuration names no other
    #[arg(long, env = "HCLOUD_ENDPOINT", value_name = "URL")]
    hcloud_endpoint: Option<String>,
}

impl HcloudFlags {
    pub fn environment(&self) -> HcloudEnvironment {
        HcloudEnvironment { token: self.hcloud_token.clone(), endpoint: self.hcloud_endpoint.clone() }
    }
}
