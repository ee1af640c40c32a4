//! Sample charts from both sources, by both helms.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, PersistentVolumeClaim},
};
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::Value;
use testbed::{
    ControlPlane,
    charts::{Access, Archive, ChartRepository, PASSWORD, Registry, USERNAME, package, sample, write_source},
    helm::Helm,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const LOGIN: [&str; 4] = ["--username", USERNAME, "--password", PASSWORD];

#[tokio::test]
async fn both_helms_pull_from_a_repository_and_need_its_login() -> Result<()> {
    let (open, closed) = (ChartRepository::start(Access::Anyone).await?, ChartRepository::start(Access::Login).await?);
    let wanted = sample("four", "1.1.0").await?;
    for helm in [Helm::current().await?, Helm::three().await?] {
        pull(&helm, &["four", "--repo", &open.url(), "--version", "^1.0"]).await?;
        assert_eq!(fs::read(helm.home().join("four-1.1.0.tgz"))?, fs::read(&wanted.path)?);
        fs::remove_file(helm.home().join("four-1.1.0.tgz"))?;

        let of_closed = ["four", "--repo", &closed.url(), "--version", "1.1.0"];
        let refused = pull(&helm, &of_closed).await.unwrap_err().to_string();
        assert!(refused.contains("401"), "{refused}");
        pull(&helm, &[&of_closed[..], &LOGIN].concat()).await?;
        assert!(helm.home().join("four-1.1.0.tgz").is_file());
    }
    assert!(open.requests().iter().all(|request| request.status == 200 && !request.had_credentials));
    for request in closed.requests() {
        assert_eq!(request.status, if request.had_credentials { 200 } else { 401 }, "{request:?}");
    }
    Ok(())
}

#[tokio::test]
async fn both_helms_pull_from_a_registry_and_need_its_login() -> Result<()> {
    let (open, closed) = tokio::try_join!(Registry::start(Access::Anyone), Registry::start(Access::Login))?;
    let (open, closed) = (&open, &closed);
    let wanted = sample("web", "1.0.0").await?;
    let digest = open.push(wanted).await?;
    assert!(digest.starts_with("sha256:"), "{digest}");
    assert_eq!(closed.push(wanted).await?, digest, "the same chart has the same digest");
    assert_eq!(ask(open.port(), "/v2/", None).await?.status, 200);
    assert_eq!(ask(closed.port(), "/v2/", None).await?.status, 401);
    for helm in [Helm::current().await?, Helm::three().await?] {
        for registry in [open, closed] {
            let chart = format!("{}/web", registry.url());
            let args = [chart.as_str(), "--version", "1.0.0", "--plain-http"];
            if registry.url() == closed.url() {
                let refused = pull(&helm, &args).await.unwrap_err().to_string();
                assert!(refused.contains("basic credential not found"), "{refused}");
                registry.log_in(&helm)?;
            }
            pull(&helm, &args).await?;
            assert_eq!(fs::read(helm.home().join("web-1.0.0.tgz"))?, fs::read(&wanted.path)?);
            fs::remove_file(helm.home().join("web-1.0.0.tgz"))?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_restarted_registry_keeps_its_address_and_charts() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let registry = Registry::start_in(directory.path(), None, Access::Anyone).await?;
    let digest = registry.push(sample("db", "1.0.0").await?).await?;
    let (url, port) = (registry.url(), registry.port());
    let second = Registry::start_in(&directory.path().join("second"), Some(port), Access::Anyone).await?;
    assert_ne!(second.port(), port, "the port was taken");
    drop(registry);
    let registry = Registry::start_in(directory.path(), Some(port), Access::Anyone).await?;
    assert_eq!(registry.url(), url);
    let chart = format!("{url}/db@{digest}");
    pull(&Helm::current().await?, &[&chart, "--plain-http"]).await?;
    Ok(())
}

#[tokio::test]
async fn the_index_follows_what_is_published_and_withdrawn() -> Result<()> {
    let repository = ChartRepository::start(Access::Anyone).await?;
    let helm = Helm::current().await?;
    let newest = ["chart", "four", "--repo", &repository.url()];
    assert!(show(&helm, &newest).await?.contains("version: 2.0.0"));
    assert!(repository.withdraw("four", "2.0.0") && !repository.withdraw("four", "2.0.0"));
    assert!(show(&helm, &newest).await?.contains("version: 1.1.0"));

    let directory = tempfile::tempdir()?;
    let source = write_source("four", directory.path())?;
    fs::write(source.join("values.yaml"), "note: changed\nimage: registry.test/ready:2\nreplicas: 0\n")?;
    let changed = package(&source, "3.0.0", directory.path()).await?;
    repository.publish(&changed)?;
    assert!(show(&helm, &["values", "four", "--repo", &repository.url()]).await?.contains("note: changed"));
    Ok(())
}

#[tokio::test]
async fn an_unchanged_index_is_not_sent_again() -> Result<()> {
    let repository = ChartRepository::start(Access::Anyone).await?;
    let etag = index(&repository, None).await?.etag;
    let again = index(&repository, Some(&etag)).await?;
    assert_eq!((again.status, again.length), (304, 0));
    repository.withdraw("db", "1.0.0");
    let changed = index(&repository, Some(&etag)).await?;
    assert!(changed.status == 200 && changed.etag != etag, "{}", changed.etag);
    assert_eq!(repository.requests().iter().map(|request| request.status).collect::<Vec<_>>(), [200, 304, 200]);
    Ok(())
}

#[tokio::test]
async fn a_repository_can_fail_hang_and_be_huge() -> Result<()> {
    let repository = ChartRepository::start(Access::Anyone).await?;
    repository.fail_next(2);
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(index(&repository, None).await?.status);
    }
    assert_eq!(statuses, [500, 500, 200]);
    let size = 3 << 20;
    repository.enlarge_index(size);
    assert!(index(&repository, None).await?.length >= size);
    pull(&Helm::current().await?, &["db", "--repo", &repository.url()]).await?;

    repository.delay_answers(std::time::Duration::from_hours(1));
    let mut hung = Box::pin(index(&repository, None));
    // Long against the milliseconds an answer takes.
    let outcome = tokio::time::timeout(std::time::Duration::from_secs(2), &mut hung).await;
    assert!(outcome.is_err());
    Ok(())
}

#[tokio::test]
async fn one_source_gives_one_digest() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let source = write_source("four", directory.path())?;
    let again = package(&source, "1.0.0", directory.path()).await?;
    assert_eq!(again.digest, sample("four", "1.0.0").await?.digest);
    assert_ne!(again.digest, sample("four", "1.1.0").await?.digest);
    Ok(())
}

/// Every chart does on the simulated nodes what its table says.
#[tokio::test]
async fn the_sample_charts_install_and_fail_as_they_say() -> Result<()> {
    let control_plane = ControlPlane::shared().await?;
    let namespace = &control_plane.namespace("charts").await?;
    let client = control_plane.client().await?;
    let (helm, three) = (Helm::current().await?, Helm::three().await?);
    let cluster = Cluster { kubeconfig: control_plane.kubeconfig(), namespace };

    cluster.install(&three, "old", sample("four", "1.0.0").await?, "{}").await?;
    cluster.install(&helm, "old", sample("four", "2.0.0").await?, r#"{"note": "010", "replicas": 1}"#).await?;
    let deployment = Api::<Deployment>::namespaced(client.clone(), namespace).get("old").await?;
    assert_eq!(deployment.annotations()["strata.dev/note"], "010");
    assert_eq!(deployment.labels()["helm.sh/chart"], "four-2.0.0");

    let values = r#"{"text": "on", "number": "007", "deep": {"a.b": "ä\n☃ <&>"}, "test": "succeeded"}"#;
    cluster.install(&helm, "web", sample("web", "1.0.0").await?, values).await?;
    let map = Api::<ConfigMap>::namespaced(client.clone(), namespace).get("web-values").await?;
    let mut arrived: Value = serde_json::from_str(&map.data.context("no data")?["values.json"])?;
    arrived.as_object_mut().context("not an object")?.retain(|key, _| values.contains(key));
    assert_eq!(arrived, serde_json::from_str::<Value>(values)?);
    cluster.run(&helm, &["test", "web"]).await?;
    cluster.install(&helm, "web", sample("web", "1.1.0").await?, r#"{"test": "failed"}"#).await?;
    let failed = cluster.run(&helm, &["test", "web"]).await.unwrap_err().to_string();
    assert!(failed.contains("web-test"), "{failed}");

    cluster.install(&helm, "db", sample("db", "1.0.0").await?, "{}").await?;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client, namespace);
    let claims: Vec<_> = claims.list(&ListParams::default()).await?.iter().map(ResourceExt::name_any).collect();
    assert_eq!(claims, ["data-db-0", "db-backup"]);

    cluster.install(&helm, "gauge", sample("gauge", "1.0.0").await?, r#"{"size": 3}"#).await?;
    assert!(cluster.run(&helm, &["get", "manifest", "gauge"]).await?.contains("kind: Gauge"));

    cluster.install(&helm, "fine", sample("broken", "1.0.0").await?, "{}").await?;
    let faults = [
        ("template", "cannot be rendered"),
        ("object", "spec.replicas"),
        ("hook", "pre-install"),
        ("not-ready", "deadline"),
    ];
    for (fault, word) in faults {
        let values = format!(r#"{{"fault": "{fault}"}}"#);
        let failed = cluster.install(&helm, fault, sample("broken", "1.0.0").await?, &values).await;
        let failed = failed.unwrap_err().to_string();
        assert!(failed.contains(word), "{fault}: {failed}");
    }
    Ok(())
}

struct Cluster<'a> {
    kubeconfig: PathBuf,
    namespace: &'a str,
}

impl Cluster<'_> {
    async fn install(&self, helm: &Helm, release: &str, archive: &Archive, values: &str) -> Result<String> {
        let (chart, file) = (archive.path.to_str().context("path")?, helm.home().join("values.json"));
        fs::write(&file, values)?;
        let values = file.to_str().context("path")?;
        // Only what never gets ready waits so long.
        let patience = if release == "not-ready" { "3s" } else { "1m" };
        let args = ["upgrade", "--install", release, chart, "--values", values, "--wait", "--timeout", patience];
        self.run(helm, &args).await
    }

    async fn run(&self, helm: &Helm, args: &[&str]) -> Result<String> {
        let place = ["--namespace", self.namespace, "--kubeconfig", self.kubeconfig.to_str().context("path")?];
        Ok(helm.run([args, &place].concat()).await?)
    }
}

async fn pull(helm: &Helm, args: &[&str]) -> Result<String> {
    Ok(helm.run([&["pull"], args].concat()).await?)
}

async fn show(helm: &Helm, args: &[&str]) -> Result<String> {
    Ok(helm.run([&["show"], args].concat()).await?)
}

struct Answer {
    status: u16,
    etag: String,
    length: usize,
}

async fn index(repository: &ChartRepository, known: Option<&str>) -> Result<Answer> {
    ask(repository.port(), "/index.yaml", known).await
}

async fn ask(port: u16, path: &str, known: Option<&str>) -> Result<Answer> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let known = known.map(|etag| format!("If-None-Match: {etag}\r\n")).unwrap_or_default();
    stream.write_all(format!("GET {path} HTTP/1.0\r\n{known}\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no end of the head")?;
    let status = head.split(' ').nth(1).context("no status")?.parse()?;
    let etag = head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap_or_default().to_owned();
    Ok(Answer { status, etag, length: body.len() })
}
