//! Charts from where they are published, fetched by the real helm.

use std::{
    fmt::Write,
    fs,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::Result;
use api::workspace::ChartReference;
use futures::FutureExt;
use runtime::Key;
use sha2::{Digest, Sha256};
use testbed::charts::{Access, PASSWORD, Registry, USERNAME, sample};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};
use workspaces::helm::{
    Chart, ChartRef, Charts, ChartsConfig, Class, Credentials, Failure, Found, OperationKind, Private,
};

use crate::harness::{Scene, pack};

/// Stands for the number of requests before, in what is served.
const REQUEST: &str = "REQUEST";

/// A chart repository: the files of a directory, an ETag for each, a log of requests.
struct Repository {
    url: String,
    directory: PathBuf,
    log: Arc<Mutex<Vec<String>>>,
}

impl Repository {
    async fn start(directory: PathBuf, authorization: Option<&'static str>) -> Result<Self> {
        fs::create_dir_all(&directory)?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let log = Arc::new(Mutex::new(Vec::new()));
        let repository = Self { url, directory: directory.clone(), log: log.clone() };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, directory.clone(), log.clone(), authorization));
            }
        });
        Ok(repository)
    }

    fn publish(&self, name: &str, versions: &[&str]) -> Result<()> {
        let mut index = format!("apiVersion: v1\nentries:\n  {name}:\n");
        for version in versions {
            let digest = digest(&fs::read(pack(&self.directory, name, version, "")?)?);
            let url = format!("{name}-{version}.tgz");
            writeln!(
                index,
                "  - {{apiVersion: v2, name: {name}, version: {version}, digest: {digest}, urls: [{url}]}}"
            )?;
        }
        Ok(fs::write(self.directory.join("index.yaml"), index)?)
    }

    /// What was asked for since the last look.
    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().unwrap())
    }

    fn chart(&self, version: &str) -> ChartRef {
        chart(&self.url, version)
    }
}

async fn answer(
    stream: TcpStream,
    directory: PathBuf,
    log: Arc<Mutex<Vec<String>>>,
    authorization: Option<&str>,
) -> Result<()> {
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).await? > 0 {}
    let header = |name: &str| {
        let mut lines = head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
    };
    let path = head.split(' ').nth(1).unwrap_or_default().trim_start_matches('/').to_owned();
    let mut content = fs::read(directory.join(&path));
    if path == "index.yaml" {
        let number = log.lock().unwrap().len().to_string();
        content = content.map(|index| String::from_utf8_lossy(&index).replace(REQUEST, &number).into_bytes());
    }
    let etag = content.as_ref().map(|content| digest(content)).unwrap_or_default();
    let (status, content) = match content {
        _ if authorization.is_some() && header("authorization").as_deref() != authorization => {
            ("401 Unauthorized", vec![])
        }
        Err(_) => ("404 Not Found", vec![]),
        Ok(_) if header("if-none-match").as_ref() == Some(&etag) => ("304 Not Modified", vec![]),
        Ok(content) => ("200 OK", content),
    };
    log.lock().unwrap().push(format!("{path} {}", &status[..3]));
    let length = content.len();
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nETag: {etag}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&content).await?;
    Ok(stream.flush().await?)
}

fn digest(content: &[u8]) -> String {
    Sha256::digest(content).iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

fn chart(repo: &str, version: &str) -> ChartRef {
    let chart = ChartReference {
        repo: repo.into(),
        name: "four".into(),
        version: Some(version.to_owned()).filter(|version| !version.is_empty()),
        ..ChartReference::default()
    };
    ChartRef { chart, credentials: None, ca: None }
}

fn asker() -> Key {
    Key::new("a", "web")
}

/// Waits for what is not `Working`.
async fn find(scene: &Scene, charts: &Charts, wanted: &ChartRef) -> Result<Result<Arc<Chart>, Failure>> {
    let look = || match charts.find(&asker(), wanted) {
        Found::Ready(chart) | Found::Aging(chart) => Some(Ok(chart)),
        Found::Failed(failure) => Some(Err(failure)),
        Found::Working => None,
    };
    scene.until("no answer about the chart", look).await
}

fn pulls(scene: &Scene) -> u64 {
    let ended = scene.runner.snapshot().ended;
    ended.iter().filter(|((kind, _), _)| *kind == OperationKind::Pull).map(|(_, tally)| tally.count).sum()
}

/// Every look is worth a request.
fn impatient() -> ChartsConfig {
    ChartsConfig { time_to_live: Duration::ZERO, retry: Duration::ZERO, ..ChartsConfig::default() }
}

#[tokio::test]
async fn w34_an_exact_version_is_fetched_once_for_all() -> Result<()> {
    let scene = Scene::real().await?;
    let repository = Repository::start(scene.path("repository"), None).await?;
    repository.publish("four", &["1.0.0", "1.2.0", "2.0.0"])?;
    let charts = Charts::open(impatient(), scene.runner.clone())?;
    let wanted = repository.chart("1.2.0");
    let others: Vec<_> = (0..5).map(|other| Key::new("a", other.to_string())).collect();
    for other in &others {
        assert!(matches!(charts.find(other, &wanted), Found::Working));
    }
    let found = find(&scene, &charts, &wanted).await?.unwrap();
    let bytes = fs::read(scene.path("repository/four-1.2.0.tgz"))?;
    assert_eq!((found.name.as_str(), found.version.as_str()), ("four", "1.2.0"));
    assert_eq!((&found.digest, fs::read(&found.path)?), (&digest(&bytes), bytes));
    assert_eq!(repository.requests(), ["index.yaml 200", "four-1.2.0.tgz 200"]);
    // Again, and after a restart: not a request and not a process.
    assert_eq!(find(&scene, &charts, &wanted).await?.unwrap(), found);
    let reopened = Charts::open(impatient(), scene.runner.clone())?;
    assert!(matches!(reopened.find(&asker(), &wanted), Found::Ready(chart) if chart == found));
    assert_eq!((repository.requests(), pulls(&scene)), (vec![], 1));
    Ok(())
}

#[tokio::test]
async fn w34_a_range_follows_the_repository_without_helm_until_it_changes() -> Result<()> {
    let scene = Scene::real().await?;
    let repository = Repository::start(scene.path("repository"), None).await?;
    repository.publish("four", &["1.0.0", "2.0.0"])?;
    let charts = Charts::open(impatient(), scene.runner.clone())?;
    let wanted = repository.chart("^1.0");
    assert_eq!(find(&scene, &charts, &wanted).await?.unwrap().version, "1.0.0");
    repository.requests();
    // The old answer stands while the repository is asked whether it is still right.
    assert_eq!(find(&scene, &charts, &wanted).await?.unwrap().version, "1.0.0");
    scene.until("the index is not asked for", || (repository.requests() == ["index.yaml 304"]).then_some(())).await?;
    assert_eq!(pulls(&scene), 1);
    repository.publish("four", &["1.0.0", "1.3.0", "2.0.0"])?;
    let newer = || {
        let found = charts.find(&asker(), &wanted);
        matches!(found, Found::Ready(chart) | Found::Aging(chart) if chart.version == "1.3.0").then_some(())
    };
    scene.until("the newer version is not found", newer).await?;
    assert_eq!(pulls(&scene), 2);
    Ok(())
}

#[tokio::test]
async fn who_asks_anew_is_not_answered_by_an_older_look() -> Result<()> {
    let scene = Scene::real().await?;
    let repository = Repository::start(scene.path("repository"), None).await?;
    repository.publish("four", &["1.0.0"])?;
    let charts = Charts::open(ChartsConfig::default(), scene.runner.clone())?;
    find(&scene, &charts, &repository.chart("1.0.0")).await?.unwrap();
    repository.publish("four", &["1.0.0", "1.3.0"])?;
    let wanted = repository.chart("^1.0");
    // The first look has begun, and the index that it goes by is recent.
    assert!(matches!(charts.find(&asker(), &wanted), Found::Working));
    assert!(charts.get(&asker(), &wanted, true).now_or_never().is_none());
    let ready = || match charts.find(&asker(), &wanted) {
        Found::Ready(chart) => Some(chart.version.clone()),
        _ => None,
    };
    assert_eq!(scene.until("no answer about the chart", ready).await?, "1.3.0");
    // Nor by the answer of before, while the new one is looked for.
    repository.publish("four", &["1.0.0", "1.3.0", "1.4.0"])?;
    assert!(charts.get(&asker(), &wanted, true).now_or_never().is_none());
    assert!(matches!(charts.find(&asker(), &wanted), Found::Aging(_)));
    assert_eq!(scene.until("no answer about the chart", ready).await?, "1.4.0");
    Ok(())
}

#[tokio::test]
async fn w34_an_unknown_version_is_looked_for_in_a_new_index_and_named() -> Result<()> {
    let scene = Scene::real().await?;
    let repository = Repository::start(scene.path("repository"), None).await?;
    repository.publish("four", &["1.0.0"])?;
    let charts = Charts::open(ChartsConfig::default(), scene.runner.clone())?;
    assert_eq!(find(&scene, &charts, &repository.chart("1.0.0")).await?.unwrap().version, "1.0.0");
    repository.publish("four", &["1.0.0", "3.0.0"])?;
    assert_eq!(find(&scene, &charts, &repository.chart("3.0.0")).await?.unwrap().version, "3.0.0");
    let failure = find(&scene, &charts, &repository.chart("9.0.0")).await?.unwrap_err();
    assert_eq!(failure.class, Class::ChartNotFound);
    assert_eq!(failure.message, format!("{} has no chart four with a version that fits \"9.0.0\"", repository.url));
    repository.requests();
    assert_eq!(find(&scene, &charts, &repository.chart("9.0.0")).await?, Err(failure));
    assert_eq!(repository.requests(), [""; 0], "a failure is not tried again at once");
    Ok(())
}

#[tokio::test]
async fn an_index_that_is_new_at_every_request_is_looked_at_twice() -> Result<()> {
    let scene = Scene::real().await?;
    let repository = Repository::start(scene.path("repository"), None).await?;
    let index = format!("apiVersion: v1\nentries: {{}}\n# {REQUEST}\n");
    fs::write(scene.path("repository/index.yaml"), index)?;
    let charts = Charts::open(ChartsConfig::default(), scene.runner.clone())?;
    let failure = find(&scene, &charts, &repository.chart("9.0.0")).await?.unwrap_err();
    assert_eq!((failure.class, pulls(&scene)), (Class::ChartNotFound, 2));
    assert_eq!(repository.requests(), ["index.yaml 200"; 2]);
    Ok(())
}

#[tokio::test]
async fn w34_credentials_open_a_repository_and_appear_nowhere() -> Result<()> {
    let scene = Scene::real().await?;
    let repository = Repository::start(scene.path("repository"), Some("Basic dTpjYW5hcnk=")).await?;
    repository.publish("four", &["1.0.0"])?;
    let charts = Charts::open(ChartsConfig::default(), scene.runner.clone())?;
    let mut wanted = repository.chart("1.0.0");
    let refused = find(&scene, &charts, &wanted).await?.unwrap_err();
    assert_eq!(refused.class, Class::Unauthorised, "{refused}");
    assert!(refused.message.ends_with("name a Secret with username and password in spec.chart.secretRef"), "{refused}");
    wanted.credentials = Some(Credentials { username: "u".into(), password: Private::new("canary") });
    assert_eq!(find(&scene, &charts, &wanted).await?.unwrap().version, "1.0.0");
    assert!(!format!("{wanted:?}").contains("canary"));
    for entry in ["charts", "index"] {
        for file in fs::read_dir(scene.path("cache").join(entry))? {
            assert!(!String::from_utf8_lossy(&fs::read(file?.path())?).contains("canary"));
        }
    }
    assert!(scene.operation_directories().is_empty());
    Ok(())
}

#[tokio::test]
async fn w34_a_registry_that_needs_another_spec_says_which() -> Result<()> {
    let scene = Scene::real().await?;
    let registry = Registry::start(Access::Login).await?;
    registry.push(sample("four", "1.0.0").await?).await?;
    let charts = Charts::open(ChartsConfig::default(), scene.runner.clone())?;
    for version in ["1.0.0", "^1.0"] {
        let mut wanted = chart(&registry.url(), version);
        let failure = find(&scene, &charts, &wanted).await?.unwrap_err();
        assert_eq!(failure.class, Class::PlainHttp, "{failure}");
        assert!(failure.message.ends_with("set spec.chart.plainHTTP: true"), "{failure}");
        wanted.chart.plain_http = Some(true);
        let failure = find(&scene, &charts, &wanted).await?.unwrap_err();
        assert_eq!(failure.class, Class::Unauthorised, "{failure}");
        assert!(failure.message.contains("; name a Secret"), "{failure}");
        wanted.credentials = Some(Credentials { username: USERNAME.into(), password: Private::new("wrong") });
        let failure = find(&scene, &charts, &wanted).await?.unwrap_err();
        assert!(failure.message.contains("; correct username and password"), "{failure}");
        wanted.credentials = Some(Credentials { username: USERNAME.into(), password: Private::new(PASSWORD) });
        assert_eq!(find(&scene, &charts, &wanted).await?.unwrap().version, "1.0.0");
    }
    Ok(())
}

#[tokio::test]
async fn w34_a_pinned_digest_must_match() -> Result<()> {
    let scene = Scene::real().await?;
    let repository = Repository::start(scene.path("repository"), None).await?;
    repository.publish("four", &["1.0.0"])?;
    let charts = Charts::open(ChartsConfig::default(), scene.runner.clone())?;
    let right = digest(&fs::read(scene.path("repository/four-1.0.0.tgz"))?);
    let pinned = |digest: &str| {
        let mut wanted = repository.chart("1.0.0");
        wanted.chart.digest = Some(digest.into());
        wanted
    };
    assert!(find(&scene, &charts, &pinned(&format!("sha256:{right}"))).await?.is_ok());
    let failure = find(&scene, &charts, &pinned(&right.replace(['0', '1'], "f"))).await?.unwrap_err();
    assert_eq!(failure.class, Class::DigestMismatch, "{failure}");
    Ok(())
}

#[tokio::test]
async fn w34_local_charts_need_no_helm() -> Result<()> {
    let scene = Scene::real().await?;
    let charts = Charts::open(ChartsConfig::default(), scene.runner.clone())?;
    let packed = pack(scene.directory.path(), "four", "1.0.0", "")?;
    let found = find(&scene, &charts, &chart(&format!("file://{}", packed.display()), "")).await?.unwrap();
    assert_eq!((found.version.as_str(), found.digest.as_str()), ("1.0.0", digest(&fs::read(&packed)?).as_str()));
    let directory = scene.path("chart");
    fs::create_dir(&directory)?;
    fs::write(directory.join("Chart.yaml"), "{apiVersion: v2, name: here, version: 0.1.0}")?;
    let found = find(&scene, &charts, &chart(&format!("file://{}", directory.display()), "")).await?.unwrap();
    assert_eq!((found.path.as_path(), found.version.as_str()), (directory.as_path(), "0.1.0"));
    let missing = find(&scene, &charts, &chart("file:///no/chart", "")).await?.unwrap_err();
    assert_eq!((missing.class, pulls(&scene)), (Class::ChartNotFound, 0));
    Ok(())
}

#[tokio::test]
async fn the_least_recently_used_chart_goes_and_what_is_in_use_leaves_no_room_for_more() -> Result<()> {
    let scene = Scene::real().await?;
    let local = |version| {
        let packed = pack(scene.directory.path(), "four", version, "")?;
        let bytes = fs::metadata(&packed)?.len();
        Ok::<_, anyhow::Error>((chart(&format!("file://{}", packed.display()), ""), bytes))
    };
    let [one, two, three] = [local("1.0.0")?, local("2.0.0")?, local("3.0.0")?];
    // Archives of the same content but for a digit may differ in a byte or two; there is room for two.
    let cache_bytes = one.1 + two.1 + 16;
    let charts = Charts::open(ChartsConfig { cache_bytes, ..ChartsConfig::default() }, scene.runner.clone())?;
    let held = find(&scene, &charts, &one.0).await?.unwrap();
    let dropped = find(&scene, &charts, &two.0).await?.unwrap().path.clone();
    assert!(held.path.exists() && dropped.exists());
    let newest = find(&scene, &charts, &three.0).await?.unwrap();
    assert!(held.path.exists() && newest.path.exists() && !dropped.exists());
    let refused = find(&scene, &charts, &two.0).await?.unwrap_err();
    assert_eq!(refused.class, Class::CacheFull, "{refused}");
    assert!(refused.message.contains("charts in use") && refused.message.contains("--chart-cache-size"), "{refused}");
    assert!(held.path.exists() && newest.path.exists() && !dropped.exists());
    drop(newest);
    assert!(charts.get(&asker(), &two.0, true).now_or_never().is_none());
    assert!(find(&scene, &charts, &two.0).await?.is_ok(), "there is room again");
    assert!(held.path.exists());
    Ok(())
}

#[tokio::test]
async fn an_archive_that_no_release_could_hold_is_refused() -> Result<()> {
    let scene = Scene::real().await?;
    let repository = Repository::start(scene.path("repository"), None).await?;
    // Random, so that it stays as large when it is packed.
    let noise: String = (0..24_u64 << 20)
        .scan(1_u64, |state, _| {
            *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            Some(char::from(b'!' + u8::try_from((*state >> 33) % 90).unwrap()))
        })
        .collect();
    let large = pack(&repository.directory, "four", "1.0.0", &format!("#{noise}"))?;
    assert!(fs::metadata(&large)?.len() > 10 << 20);
    let digest = digest(&fs::read(&large)?);
    let index = format!(
        "apiVersion: v1\nentries:\n  four:\n  - {{apiVersion: v2, name: four, version: 1.0.0, digest: {digest}, urls: [four-1.0.0.tgz]}}\n"
    );
    fs::write(repository.directory.join("index.yaml"), index)?;
    let charts = Charts::open(ChartsConfig::default(), scene.runner.clone())?;
    let remote = find(&scene, &charts, &repository.chart("1.0.0")).await?.unwrap_err();
    let local = find(&scene, &charts, &chart(&format!("file://{}", large.display()), "")).await?.unwrap_err();
    for refused in [remote, local] {
        assert_eq!(refused.class, Class::TooLarge, "{refused}");
        assert!(refused.message.contains("larger than 10485760 bytes"), "{refused}");
    }
    assert_eq!(fs::read_dir(scene.path("cache/incoming"))?.count(), 0);
    Ok(())
}

/// Accepts and never answers.
async fn silent() -> Result<(String, TcpListener)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    Ok((format!("http://{}", listener.local_addr()?), listener))
}

#[tokio::test]
async fn downloads_of_one_namespace_leave_room_for_others_and_a_shared_one_starts_in_any_turn() -> Result<()> {
    let scene = Scene::real().await?;
    let repository = Repository::start(scene.path("repository"), None).await?;
    repository.publish("four", &["1.0.0"])?;
    let config = ChartsConfig { download_bytes: 3 << 20, index_bytes: 1 << 20, ..ChartsConfig::default() };
    let charts = Charts::open(config, scene.runner.clone())?;
    let slow = [silent().await?, silent().await?, silent().await?];
    let busy = Key::new("busy", "web");
    for (url, _) in &slow {
        assert!(matches!(charts.find(&busy, &chart(url, "1.0.0")), Found::Working));
    }
    // Two of three run, which is all that one namespace gets, and its third waits; so does what it asks for next.
    let wanted = repository.chart("1.0.0");
    assert!(matches!(charts.find(&busy, &wanted), Found::Working));
    let accepted = async { tokio::try_join!(slow[0].1.accept(), slow[1].1.accept()) };
    tokio::time::timeout(crate::harness::PATIENCE, accepted).await??;
    assert_eq!(repository.requests(), [""; 0]);
    assert_eq!(find(&scene, &charts, &wanted).await?.unwrap().version, "1.0.0", "it starts in the other's turn");
    Ok(())
}

#[tokio::test]
async fn a_shared_chart_is_pulled_in_the_turn_of_whoever_waits_for_it() -> Result<()> {
    // Four at once, three of them of one namespace; pulls succeed by what the script does.
    let gated = r#"echo "$1 $2" >>"$SCENE/log"; until [ -e "$SCENE/gate" ]; do sleep 0.02; done"#;
    let scene = Scene::fake(gated, |_| {})?;
    for number in 0..4 {
        scene.runner.submit(crate::harness::install(&Key::new("busy", number.to_string())))?;
    }
    scene.until("three never ran", || (scene.lines("log").len() == 3).then_some(())).await?;
    let charts = Charts::open(ChartsConfig::default(), scene.runner.clone())?;
    let wanted = chart("oci://registry.example/charts", "1.0.0");
    assert!(matches!(charts.find(&Key::new("busy", "web"), &wanted), Found::Working));
    scene.until("the pull is not in line", || (scene.runner.snapshot().waiting == 2).then_some(())).await?;
    assert!(matches!(charts.find(&Key::new("calm", "web"), &wanted), Found::Working));
    scene
        .until("the pull waits", || scene.lines("log").iter().any(|line| line.starts_with("pull")).then_some(()))
        .await?;
    assert_eq!(scene.runner.snapshot().waiting, 1, "the busy namespace's fourth");
    fs::write(scene.path("gate"), "")?;
    scene.idle().await
}

#[tokio::test]
async fn a_replaced_chart_goes_unless_it_is_held() -> Result<()> {
    let scene = Scene::real().await?;
    let repository = Repository::start(scene.path("repository"), None).await?;
    let charts = Charts::open(impatient(), scene.runner.clone())?;
    let wanted = repository.chart("^1.0");
    let next = async |version: &str| {
        repository.publish("four", &[version])?;
        let look = || match charts.find(&asker(), &wanted) {
            Found::Ready(chart) | Found::Aging(chart) if chart.version == version => Some(chart),
            _ => None,
        };
        scene.until("the newer version is not found", look).await
    };
    let held = next("1.0.0").await?;
    let replaced = next("1.1.0").await?.path.clone();
    assert!(held.path.exists() && replaced.exists());
    next("1.2.0").await?;
    assert!(held.path.exists() && !replaced.exists());
    let released = held.path.clone();
    drop(held);
    let newest = next("1.3.0").await?;
    assert!(newest.path.exists() && !released.exists());
    Ok(())
}

#[tokio::test]
async fn a_chart_that_somebody_removed_is_fetched_again() -> Result<()> {
    let scene = Scene::real().await?;
    let repository = Repository::start(scene.path("repository"), None).await?;
    repository.publish("four", &["1.0.0"])?;
    let charts = Charts::open(ChartsConfig::default(), scene.runner.clone())?;
    for version in ["1.0.0", "^1.0"] {
        let wanted = repository.chart(version);
        let path = find(&scene, &charts, &wanted).await?.unwrap().path.clone();
        fs::remove_file(&path)?;
        assert!(matches!(charts.find(&asker(), &wanted), Found::Working));
        assert_eq!(find(&scene, &charts, &wanted).await?.unwrap().path, path);
        assert!(path.exists());
    }
    Ok(())
}

#[tokio::test]
async fn the_least_recently_used_index_goes_and_a_refused_download_leaves_nothing() -> Result<()> {
    let scene = Scene::real().await?;
    let left = |name: &str| {
        let files = fs::read_dir(scene.path("cache/index"))?;
        let names = files.map(|file| Ok(file?.file_name().to_string_lossy().into_owned()));
        let names = names.collect::<Result<Vec<_>>>()?;
        Ok::<_, anyhow::Error>(names.iter().filter(|file| file.ends_with(name)).count())
    };
    let repository = async |directory: &str| {
        let repository = Repository::start(scene.path(directory), None).await?;
        repository.publish("four", &["1.0.0"])?;
        Ok::<_, anyhow::Error>(repository)
    };
    let (one, two) = (repository("one").await?, repository("two").await?);
    let bytes = fs::metadata(one.directory.join("index.yaml"))?.len();
    // The archives are smaller still.
    let config = |cache_bytes| ChartsConfig { cache_bytes, ..ChartsConfig::default() };
    let archive = fs::metadata(one.directory.join("four-1.0.0.tgz"))?.len();
    let charts = Charts::open(config(bytes.max(archive) + bytes / 2), scene.runner.clone())?;
    for repository in [&one, &two] {
        find(&scene, &charts, &repository.chart("1.0.0")).await?.unwrap();
        assert_eq!((left("-index.yaml")?, left(".json")?), (1, 1), "there is room for one");
    }
    for small in [ChartsConfig { index_bytes: 1, ..ChartsConfig::default() }, config(bytes - 1)] {
        let charts = Charts::open(small, scene.runner.clone())?;
        let third = repository("three").await?;
        let refused = find(&scene, &charts, &third.chart("1.0.0")).await?.unwrap_err();
        assert!(matches!(refused.class, Class::TooLarge | Class::CacheFull), "{refused}");
        assert_eq!(left(".new")?, 0);
    }
    fs::write(scene.path("cache/index/x.new"), "")?;
    Charts::open(config(1), scene.runner.clone())?;
    assert_eq!(left(".new")?, 0);
    Ok(())
}
