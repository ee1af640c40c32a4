//! Answers that are none of the API server's: of a proxy in front of it, broken off, or without an end.

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use testbed::fault::{Calls, Fault, Verb};

use crate::{
    harness::{Space, spec},
    scene::{Scene, Shared},
};

const ANSWERS: [(&str, Fault); 5] = [
    ("unserved", Fault::Text(404, "404 page not found\n")),
    ("gateway", Fault::Text(502, "<html><body>Bad Gateway</body></html>")),
    ("login", Fault::Text(200, "<html><body>Please sign in</body></html>")),
    ("half", Fault::CutInBody),
    ("endless", Fault::Endless),
];

const WRITES: [&str; 4] = ["create-pod", "status", "delete-pod", "release-finalizer"];

fn calls(write: &str, namespace: &str, name: &str) -> Calls {
    let owned = format!("performer-{name}");
    let calls = match write {
        "create-pod" => Calls::of(Verb::Create, "pods").named(&owned),
        "delete-pod" => Calls::of(Verb::Delete, "pods").named(&owned),
        "status" => Calls::of(Verb::Patch, "performers/status").named(name),
        _ => Calls::of(Verb::Patch, "performers").named(name),
    };
    calls.in_namespace(namespace).at_most(1)
}

/// One Performer's whole life while one of its writes gets a strange answer.
async fn live_through(shared: &Shared, space: &Space, write: &str, answer: (&str, Fault)) -> Result<()> {
    let name = format!("{write}-{}", answer.0);
    let inject = || shared.scene.proxy.inject(calls(write, &space.namespace, &name), answer.1);
    let early = matches!(write, "create-pod" | "status").then(inject);
    space.create_ready(&name, spec()).await?;
    let injected = early.unwrap_or_else(inject);
    space.delete_and_wait(&name).await?;
    injected.reached().await?;
    ensure!(space.pods.get_opt(&format!("performer-{name}")).await?.is_none(), "it went before its pod");
    Ok(())
}

#[tokio::test]
async fn no_write_believes_an_answer_that_is_not_the_servers() -> Result<()> {
    let shared = Scene::shared().await;
    let space = shared.scene.space("garbage").await?;
    let space = &space;
    let cases = WRITES.iter().flat_map(|write| ANSWERS.map(|answer| (*write, answer)));
    let lives = cases.map(|(write, answer)| async move {
        let life = Box::pin(live_through(shared, space, write, answer));
        life.await.with_context(|| format!("{write}: {}", answer.0))
    });
    try_join_all(lives).await?;
    Ok(())
}
