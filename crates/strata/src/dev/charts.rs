//! Where charts come from in dev: a repository, served by this process, and a registry, both with the sample charts.

use futures::future::try_join_all;
use kube::api::DynamicObject;
use serde::{Deserialize, Serialize};
use testbed::{
    charts::{Access, ChartRepository, Registry, samples},
    process::Child,
};

use super::{event::Report, place::Place};
use crate::Failure;

/// What the examples write instead of an address, which differs between environments.
const REPOSITORY: &str = "http://charts.strata.local";
const REGISTRY: &str = "oci://charts.strata.local";

pub struct Charts {
    repository: ChartRepository,
    registry: Registry,
}

/// Remembered between runs: releases of the last run still name the addresses of that time.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct Ports {
    repository: u16,
    registry: u16,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Addresses {
    /// `http://127.0.0.1:PORT`.
    pub repository: String,
    /// `oci://127.0.0.1:PORT/charts`, without TLS.
    pub registry: String,
}

impl Charts {
    /// Starts both and puts the sample charts in.
    pub async fn start(place: &Place, report: &Report) -> Result<Self, Failure> {
        report.step("charts", "starting a chart repository and an OCI registry");
        let (before, directory) = (place.chart_ports(), place.charts());
        let (repository, registry) = tokio::try_join!(
            ChartRepository::start_at(before.map(|ports| ports.repository), Access::Anyone),
            Registry::start_in(&directory, before.map(|ports| ports.registry), Access::Anyone),
        )?;
        place.write_chart_ports(Ports { repository: repository.port(), registry: registry.port() })?;
        try_join_all(samples().await?.iter().map(|archive| registry.push(archive))).await?;
        let charts = Self { repository, registry };
        let Addresses { repository, registry } = charts.addresses();
        report.done("charts", format!("{repository} and {registry}"));
        Ok(charts)
    }

    pub fn addresses(&self) -> Addresses {
        Addresses { repository: self.repository.url(), registry: self.registry.url() }
    }

    /// The registry; the repository lives and ends with us.
    pub fn child(&self) -> &Child {
        self.registry.child()
    }
}

impl Addresses {
    /// The example with our addresses where it leaves them open.
    pub fn fill(&self, example: &DynamicObject) -> DynamicObject {
        let text = serde_json::to_string(example).expect("examples have a JSON form");
        let text = text.replace(REPOSITORY, &self.repository).replace(REGISTRY, &self.registry);
        serde_json::from_str(&text).expect("an address in place of another leaves the form as it was")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn examples_get_the_addresses_that_they_leave_open() {
        let addresses =
            Addresses { repository: "http://127.0.0.1:1".into(), registry: "oci://127.0.0.1:2/charts".into() };
        let example = |repository: &str, registry: &str| -> DynamicObject {
            let charts = json!([{ "repo": repository, "name": "four" }, { "repo": registry, "name": "web" }]);
            serde_json::from_value(json!({ "metadata": { "name": "team" }, "spec": { "charts": charts } })).unwrap()
        };
        let filled = addresses.fill(&example("http://charts.strata.local", "oci://charts.strata.local"));
        assert_eq!(filled, example("http://127.0.0.1:1", "oci://127.0.0.1:2/charts"));
        let other = example("https://charts.example.com", "oci://registry.example.com/charts");
        assert_eq!(addresses.fill(&other), other);
    }
}
