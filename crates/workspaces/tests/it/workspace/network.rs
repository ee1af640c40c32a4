//! Who may talk to whom.

use anyhow::Result;
use api::workspace::WorkspacePhase;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use serde_json::json;

use super::harness::{World, condition, eventually};

#[tokio::test]
async fn w09_the_policies_are_exact_and_go_when_the_workspace_is_opened() -> Result<()> {
    let space = World::shared().await.space("network").await?;
    let spec = json!({ "network": { "allowedEgress": [{ "cidr": "10.20.0.0/16", "ports": [5432] }] } });
    space.ready_workspace("team", spec).await?;
    let all = [
        "team-allowed-egress",
        "team-api-server",
        "team-default-deny",
        "team-dns",
        "team-ingress-controller",
        "team-inside",
        "team-internet",
    ];
    assert_eq!(space.names::<NetworkPolicy>().await?, all);
    let policy = json!(space.get::<NetworkPolicy>("team-api-server").await?);
    let expected = json!([{
        "to": [{ "ipBlock": { "cidr": "192.0.2.10/32" } }], "ports": [{ "protocol": "TCP", "port": 6443 }],
    }]);
    assert_eq!(policy["spec"]["egress"], expected);
    let dns = json!(space.get::<NetworkPolicy>("team-dns").await?);
    let ports = json!([{ "protocol": "UDP", "port": 53 }, { "protocol": "TCP", "port": 53 }]);
    assert_eq!(dns["spec"]["egress"][0]["ports"], ports);
    let deny = json!(space.get::<NetworkPolicy>("team-default-deny").await?);
    assert_eq!(deny["spec"], json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] }));

    space.change("team", json!({ "network": { "allowedEgress": [], "internet": false } })).await?;
    let fewer = ["team-api-server", "team-default-deny", "team-dns", "team-ingress-controller", "team-inside"];
    eventually("they are fewer", async || Ok(space.names::<NetworkPolicy>().await? == fewer)).await?;

    space.change("team", json!({ "network": { "isolation": false } })).await?;
    eventually("they are gone", async || Ok(space.names::<NetworkPolicy>().await?.is_empty())).await?;
    let workspace = space.until_phase("team", WorkspacePhase::Ready).await?;
    assert!(condition(&workspace, "NetworkReady").starts_with("True NotIsolated"));
    Ok(())
}

#[tokio::test]
async fn w09_admission_refuses_an_egress_without_ports() -> Result<()> {
    let space = World::shared().await.space("portless").await?;
    let spec = json!({ "network": { "allowedEgress": [{ "cidr": "10.20.0.0/16", "ports": [] }] } });
    let refusal = space.workspace("team", spec).await.expect_err("it means all ports").to_string();
    assert!(refusal.contains("spec.network.allowedEgress[0].ports"), "{refusal}");
    Ok(())
}
