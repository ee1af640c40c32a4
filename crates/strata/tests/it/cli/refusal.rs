//! What a command says when it cannot do its work.

use anyhow::Result;
use kube::config::Kubeconfig;
use testbed::{
    ControlPlane, Options, User,
    fault::{Calls, Fault, FaultProxy, Verb},
};

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
        let refusal = place.strata(args).await?.refusal(1)?;
        let expected = format!("error: there is no HelmRelease nope in namespace {}\nhint:", place.namespace);
        assert!(refusal.contains(&expected), "{args:?}: {refusal}");
    }
    let refusal = place.strata(&["release", "diff", "nope"]).await?.refusal(2)?;
    assert!(refusal.contains("there is no HelmRelease nope"), "{refusal}");
    let refusal = place.strata(&["workspace", "status", "nope"]).await?.refusal(1)?;
    assert!(
        refusal.contains("there is no Workspace nope") && refusal.contains("strata workspace list -A"),
        "{refusal}"
    );
    let mut create = strata(&["workspace", "create", "a", "--domain", "d.example", "-n", "not-there", "--kubeconfig"]);
    create.arg(&place.kubeconfig);
    let refusal = run(create).await?.refusal(1)?;
    assert!(
        refusal.contains("there is no namespace not-there\nhint: create it with `kubectl create namespace"),
        "{refusal}"
    );
    Ok(())
}

#[tokio::test]
async fn a_cluster_without_the_definitions_is_told_apart() -> Result<()> {
    let bare = ControlPlane::start(Options::bare()).await?;
    for args in [&["release", "list"][..], &["release", "status", "web"], &["workspace", "list", "-A"]] {
        let mut command = strata(args);
        command.arg("--kubeconfig").arg(bare.kubeconfig());
        let refusal = run(command).await?.refusal(1)?;
        assert!(refusal.contains("the cluster has no kind"), "{args:?}: {refusal}");
        assert!(refusal.contains("hint: install the CRDs with `strata crd"), "{args:?}: {refusal}");
    }
    let server = bare.kubeconfig();
    let text = std::fs::read_to_string(&server)?;
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("kubeconfig");
    std::fs::write(&path, text)?;
    bare.stop().await?;
    let mut command = strata(&["release", "list", "--kubeconfig"]);
    command.arg(&path);
    let refusal = run(command).await?.refusal(1)?;
    assert!(refusal.contains("cannot list HelmReleases") && refusal.contains("hint: is the cluster"), "{refusal}");
    Ok(())
}

/// So an API server answers while it reads in a kind that was just installed.
#[tokio::test]
async fn a_server_that_asks_for_a_moment_is_asked_again() -> Result<()> {
    let place = Place::new().await?;
    let proxy = FaultProxy::start(Kubeconfig::read_from(&place.kubeconfig)?, 1).await?;
    let later = Fault::TooManyRequests { retry_after_seconds: 1 };
    let read = proxy.inject(Calls::of(Verb::List, "workspaces").in_namespace(&place.namespace).at_most(2), later);
    let created = proxy.inject(Calls::of(Verb::Create, "workspaces").in_namespace(&place.namespace).at_most(1), later);
    for args in [&["workspace", "list"][..], &["workspace", "create", "a", "--domain", "d.example"]] {
        let mut command = strata(args);
        command.args(["-n", &place.namespace, "--kubeconfig"]).arg(proxy.kubeconfig_path());
        run(command).await?.data()?;
    }
    assert_eq!((read.hits(), created.hits()), (2, 1));
    place.workspaces.get("a").await?;
    Ok(())
}

#[tokio::test]
async fn a_proxy_of_the_environment_is_not_for_api_servers_and_its_password_stays_unsaid() -> Result<()> {
    let place = Place::new().await?;
    let proxy = "http://me:hunter2@127.0.0.1:1";
    let list = || {
        let mut command = strata(&["release", "list", "-n", &place.namespace, "--kubeconfig"]);
        command.env("HTTPS_PROXY", proxy);
        command
    };
    let mut direct = list();
    direct.arg(&place.kubeconfig);
    run(direct).await?.data()?;

    let mut config: serde_json::Value = serde_saphyr::from_str(&std::fs::read_to_string(&place.kubeconfig)?)?;
    config["clusters"][0]["cluster"]["proxy-url"] = proxy.into();
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("kubeconfig");
    std::fs::write(&path, config.to_string())?;
    let mut proxied = list();
    proxied.arg(&path);
    let refusal = run(proxied).await?.refusal(1)?;
    assert!(refusal.contains("proxy-url") && !refusal.contains("hunter2"), "{refusal}");
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
        let refusal = run(command).await?.refusal(code)?;
        assert!(
            refusal.contains("forbidden") && refusal.contains(&format!("hint: request the right to {verb} ")),
            "{refusal}"
        );
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
    let refusal = run(strata(&["release", "list", "--kubeconfig", "/not/there"])).await?.refusal(1)?;
    assert!(refusal.contains("no cluster to connect to") && refusal.contains("hint: name one"), "{refusal}");
    let script = run(strata(&["completion", "bash"])).await?.data()?;
    assert!(script.contains("rollback"), "{script}");
    Ok(())
}
