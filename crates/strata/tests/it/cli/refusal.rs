//! What a command says when it cannot do its work.

use anyhow::Result;
use testbed::{ControlPlane, Options, User};

use super::place::{Place, chart, ready, run, strata};

#[tokio::test]
async fn missing_things_are_named_with_the_remedy() -> Result<()> {
    let place = Place::new().await?;
    for args in [
        &["release", "status", "nope"][..],
        &["release", "history", "nope"],
        &["release", "rollback", "nope"],
        &["release", "suspend", "nope"],
    ] {
        let told = place.strata(args).await?.refusal(1)?;
        let expected = format!("error: there is no HelmRelease nope in namespace {}\nhint:", place.namespace);
        assert!(told.contains(&expected), "{args:?}: {told}");
    }
    let told = place.strata(&["release", "diff", "nope"]).await?.refusal(2)?;
    assert!(told.contains("there is no HelmRelease nope"), "{told}");
    let told = place.strata(&["workspace", "status", "nope"]).await?.refusal(1)?;
    assert!(told.contains("there is no Workspace nope") && told.contains("strata workspace list -A"), "{told}");
    let mut create = strata(&["workspace", "create", "a", "--domain", "d.example", "-n", "not-there", "--kubeconfig"]);
    create.arg(&place.kubeconfig);
    let told = run(create).await?.refusal(1)?;
    assert!(told.contains("there is no namespace not-there\nhint: create it with `kubectl create namespace"), "{told}");
    Ok(())
}

#[tokio::test]
async fn a_cluster_without_the_definitions_is_told_apart() -> Result<()> {
    let bare = ControlPlane::start(Options::bare()).await?;
    for args in [&["release", "list"][..], &["release", "status", "web"], &["workspace", "list", "-A"]] {
        let mut command = strata(args);
        command.arg("--kubeconfig").arg(bare.kubeconfig());
        let told = run(command).await?.refusal(1)?;
        assert!(told.contains("the cluster has no kind"), "{args:?}: {told}");
        assert!(told.contains("hint: install the CRDs with `strata crd"), "{args:?}: {told}");
    }
    let server = bare.kubeconfig();
    let text = std::fs::read_to_string(&server)?;
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("kubeconfig");
    std::fs::write(&path, text)?;
    bare.stop().await?;
    let mut command = strata(&["release", "list", "--kubeconfig"]);
    command.arg(&path);
    let told = run(command).await?.refusal(1)?;
    assert!(told.contains("cannot list HelmReleases") && told.contains("hint: is the cluster"), "{told}");
    Ok(())
}

#[tokio::test]
async fn a_missing_right_is_named() -> Result<()> {
    let place = Place::new().await?;
    place
        .release("web", serde_json::json!({ "chart": chart() }), ready("True", "InstallSucceeded", "deployed"))
        .await?;
    let nobody = place.control_plane.kubeconfig_as(&User::named("nobody")).await?;
    for (args, code, verb) in [
        (&["release", "list"][..], 1, "list"),
        (&["release", "status", "web"], 1, "get"),
        (&["release", "diff", "web"], 2, "get"),
        (&["workspace", "create", "a", "--domain", "d.example"], 1, "create"),
    ] {
        let mut command = strata(args);
        command.args(["-n", &place.namespace, "--kubeconfig"]).arg(&nobody);
        let told = run(command).await?.refusal(code)?;
        assert!(told.contains("forbidden") && told.contains(&format!("hint: request the right to {verb} ")), "{told}");
    }
    Ok(())
}

#[tokio::test]
async fn wrong_usage_ends_with_two() -> Result<()> {
    for args in [
        &["release", "suspend"][..],
        &["release", "suspend", "web", "--all"],
        &["release", "reconcile"],
        &["release", "rollback", "web", "0"],
        &["release", "list", "-o", "xml"],
        &["release", "reconcile", "web", "--timeout", "soon"],
        &["workspace", "create", "team"],
    ] {
        run(strata(args)).await?.refusal(2)?;
    }
    let told = run(strata(&["release", "list", "--kubeconfig", "/not/there"])).await?.refusal(1)?;
    assert!(told.contains("no cluster to connect to") && told.contains("hint: name one"), "{told}");
    let script = run(strata(&["completion", "bash"])).await?.data()?;
    assert!(script.contains("rollback"), "{script}");
    Ok(())
}
