//! `strata workspace`.

use anyhow::Result;
use serde_json::{Value, json};

use super::place::{Place, condition, ready, steady};

const CREATE: [&str; 11] = [
    "workspace",
    "create",
    "team",
    "--domain",
    "example.com",
    "--user",
    "ana=ana@example.com",
    "--service",
    "web=https://charts.example/web@^1.0",
    "--service-account",
    "deployer",
];

fn status(phase: &str, is_ready: &str, reason: &str) -> Value {
    let mut status = ready(is_ready, reason, "as the operator says");
    status["phase"] = json!(phase);
    status["servicesReady"] = json!("0/1");
    status["usersReady"] = json!("1/1");
    status["users"] = json!([{ "slug": "ana", "ready": true, "url": "https://ana.team.example.com" }]);
    status["services"] =
        json!([{ "name": "web", "ready": false, "reason": "InstallFailed", "message": "no such\nimage" }]);
    status
}

#[tokio::test]
async fn a_workspace_is_created_as_the_flags_say() -> Result<()> {
    let place = Place::new().await?;
    let dry = place.strata(&[&CREATE[..], &["--dry-run"]].concat()).await?.data()?;
    assert!(place.workspaces.get_opt("team").await?.is_none(), "a dry run created it");
    place.strata(&CREATE).await?.data()?;
    let stored = place.workspaces.get("team").await?;
    let spec = serde_json::to_value(&stored.spec)?;
    assert_eq!(serde_saphyr::from_str::<Value>(&dry)?["spec"], spec);
    assert_eq!(
        spec,
        json!({
            "domain": "example.com",
            "services": {
                "web": {
                    "chart": { "repo": "https://charts.example", "name": "web", "version": "^1.0" },
                    "serviceAccountName": "deployer",
                },
            },
            "users": [{ "slug": "ana", "email": "ana@example.com", "permissions": ["code-server"] }],
        })
    );
    let refusal = place.strata(&CREATE).await?.refusal(1)?;
    assert!(
        refusal.contains("there is a Workspace team in namespace") && refusal.contains("hint: look at it"),
        "{refusal}"
    );
    let refusal =
        place.strata(&["workspace", "create", "Team", "--domain", "d.example", "--dry-run"]).await?.refusal(1)?;
    assert!(refusal.contains("metadata.name") && refusal.contains("hint: correct"), "{refusal}");
    let refusal = place.strata(&["workspace", "create", "t", "--domain", "d", "--service", "web"]).await?.refusal(2)?;
    assert!(refusal.contains("write it like web=https://"), "{refusal}");
    Ok(())
}

#[tokio::test]
async fn a_failed_workspace_tells_which_part_and_why() -> Result<()> {
    let place = Place::new().await?;
    let operator = async {
        place.until_workspace("team", |_| true).await?;
        place.report_workspace("team", status("Progressing", "False", "ServicesNotReady")).await?;
        place.report_workspace("team", status("Failed", "False", "ServicesNotReady")).await
    };
    let create = [&CREATE[..], &["--wait"]].concat();
    let (said, reported) = tokio::join!(place.strata(&create), operator);
    reported?;
    let refusal = said?.refusal(1)?;
    assert!(
        refusal.contains("\n  service web: InstallFailed: no such image\nhint: `strata workspace status team"),
        "{refusal}"
    );

    insta::assert_snapshot!(steady(&place.strata(&["workspace", "list"]).await?.data()?), @"
    NAME PHASE SERVICES USERS READY REASON AGE
    team Failed 0/1 1/1 False ServicesNotReady AGO
    ");
    let mut whole = status("Failed", "False", "ServicesNotReady");
    let users = condition("UsersReady", "True", "Succeeded", "1 of 1 users are ready");
    whole["conditions"] = json!([whole["conditions"][0], users]);
    place.report_workspace("team", whole).await?;
    let page = place.strata(&["workspace", "status", "team"]).await?.data()?;
    insta::assert_snapshot!(steady(&page.replace(&place.namespace, "team-a")), @"
    NAME team
    NAMESPACE team-a
    DOMAIN example.com
    PHASE Failed
    AGE AGO

    CONDITION STATUS REASON SINCE MESSAGE
    Ready False ServicesNotReady AGO as the operator says
    UsersReady True Succeeded AGO 1 of 1 users are ready

    SERVICE READY VERSION URL REASON MESSAGE
    web False - - InstallFailed no such image

    USER READY URL REASON
    ana True https://ana.team.example.com -
    ");
    let name = place.strata(&["workspace", "status", "team", "-o", "name"]).await?.data()?;
    assert_eq!(name, "workspace.workspaces.strata.dev/team\n");
    Ok(())
}

#[tokio::test]
async fn stop_and_start_wait_for_their_phase() -> Result<()> {
    let place = Place::new().await?;
    place.strata(&CREATE).await?.data()?;
    for (verb, stopped, phase) in [("stop", Some(true), "Stopped"), ("start", None, "Ready")] {
        let operator = async {
            place.until_workspace("team", |team| team.spec.as_ref().and_then(|spec| spec.stopped) == stopped).await?;
            place.report_workspace("team", status("Progressing", "False", "ServicesNotReady")).await?;
            place.report_workspace("team", status(phase, "True", "Succeeded")).await
        };
        let args = ["workspace", verb, "team", "--wait", "-o", "json"];
        let (said, reported) = tokio::join!(place.strata(&args), operator);
        reported?;
        let object: Value = serde_json::from_str(&said?.data()?)?;
        assert_eq!(object["status"]["phase"], phase);
    }
    Ok(())
}
