//! `strata dev` as its users and their scripts run it.

mod clusters;
mod environment;
mod zones;

use std::{path::Path, process::Stdio};

use anyhow::{Context, Result, ensure};
use api::performer::Performer;
use environment::{Environment, eventually, run};
use k8s_openapi::{
    api::{
        core::v1::{ConfigMap, Namespace, Pod, Secret},
        rbac::v1::{ClusterRole, ClusterRoleBinding},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
    config::Kubeconfig,
    runtime::wait::await_condition,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use testbed::{ControlPlane, Options, helm::Helm, tools};
use tokio::io::{AsyncBufReadExt, BufReader};
use zones::Zones;

const OPERATOR: &str = "system:serviceaccount:strata-system:strata";
const PROGRAMS: [&str; 11] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kwok",
    "kwok-agents",
    "capi",
    "registry",
    "strata-operator",
    "shard-dev-1",
    "shard-dev-2",
];

/// The API server's address in a kubeconfig.
fn server_of(kubeconfig: &str) -> Result<String> {
    let cluster = Kubeconfig::read_from(kubeconfig)?.clusters.remove(0).cluster;
    cluster.and_then(|cluster| cluster.server).context("no server")
}

#[tokio::test]
async fn dev_up_detached_runs_the_examples_and_keeps_state_until_fresh() -> Result<()> {
    let dev = Environment::new().await?;
    dev.dev(&["up", "--detach"]).await?;

    let status = dev.status().await?;
    let keys: Vec<_> = status.as_object().context("not an object")?.keys().collect();
    assert_eq!(keys, ["auditLog", "ca", "charts", "endpoints", "kubeconfig", "programs", "storage"]);
    assert_eq!(names(&status), PROGRAMS);
    for program in status["programs"].as_array().context("no programs")? {
        assert!(Path::new(&format!("/proc/{}", program["pid"])).exists(), "{program}");
        assert!(Path::new(program["log"].as_str().context("no log")?).is_file(), "{program}");
    }
    let kubeconfig = dev.dev(&["kubeconfig"]).await?.trim().to_owned();
    assert_eq!(status["kubeconfig"], kubeconfig.as_str());
    let server = server_of(&kubeconfig)?;
    assert_stock_kubectl_sees_ready_examples(&kubeconfig).await?;
    assert_deleted_pod_comes_back(dev.client().await?).await?;
    assert_operator_uses_its_own_account(status["auditLog"].as_str().context("no audit log")?).await?;

    let helm = Helm::current().await?;
    pull_from_both(&helm, &status["charts"]).await?;

    let again = dev.dev(&["up", "--detach"]).await?;
    assert!(again.contains("strata is up"), "{again}");
    assert_eq!(dev.status().await?, status, "a second up changed something");

    create_namespace(&dev.client().await?, "mine").await?;
    let zones = Zones::of(&dev).await?;
    zones.settled([1, 1]).await?;
    zones.shard(&["scale", "dev-1", "mine", "0", "--template", "web"]).await?.data()?;
    dev.dev(&["down"]).await?;
    assert_eq!(dev.processes()?, Vec::<String>::new());
    let down = run(dev.command(&["status", "-o", "json"])).await?;
    assert!(!down.status.success());
    assert!(
        serde_json::from_slice::<Value>(&down.stderr)?["hint"].as_str().is_some_and(|hint| hint.contains("dev up"))
    );
    dev.dev(&["down"]).await?;

    dev.dev(&["up", "--detach"]).await?;
    assert!(has_namespace(&dev.client().await?, "mine").await?, "the state was lost");
    assert_eq!(server_of(&kubeconfig)?, server, "Cluster API would not find its cluster any more");
    let after = dev.status().await?;
    assert_eq!(after["charts"], status["charts"], "releases would not find their charts any more");
    assert_eq!(after["endpoints"], status["endpoints"], "operators would not find their zones any more");
    let zones = Zones::of(&dev).await?;
    zones.settled([1, 1]).await?;
    assert!(zones.groups().await?.to_string().contains("\"mine\""), "the storage was lost");
    pull_from_both(&helm, &status["charts"]).await?;
    dev.dev(&["up", "--detach", "--fresh"]).await?;
    assert!(!has_namespace(&dev.client().await?, "mine").await?, "the state was kept");
    assert!(!Zones::of(&dev).await?.groups().await?.to_string().contains("\"mine\""), "the storage was kept");
    Ok(())
}

#[tokio::test]
async fn dev_survives_rivals_and_the_sigkill_of_its_supervisor() -> Result<()> {
    let dev = Environment::new().await?;
    let (one, other) = tokio::join!(dev.dev(&["up", "--detach"]), dev.dev(&["up", "--detach"]));
    one?;
    other?;
    assert_eq!(dev.supervisors()?.len(), 1);

    let before = dev.status().await?;
    for program in ["strata-operator", "registry", "capi", "kube-scheduler", "kwok"] {
        let pid = pid_of(program, &before)?;
        environment::signal(pid, Signal::KILL)?;
        eventually("it to come back", async || Ok(pid_of(program, &dev.status().await?)? != pid)).await?;
    }
    // Listens again a moment after its process id is known.
    let helm = Helm::current().await?;
    let can_pull = async || Ok(pull_from_both(&helm, &before["charts"]).await.is_ok());
    eventually("the registry to serve again", can_pull).await?;

    let zones = Zones::of(&dev).await?;
    zones.without_operator().await?;
    zones.scale("dev-2", 2).await?;
    let instances = zones.settled([1, 2]).await?;
    let supervisor = dev.supervisors()?[0];
    environment::signal(supervisor, Signal::KILL)?;
    eventually("every process, of instances too, to be gone", async || Ok(dev.processes()?.is_empty())).await?;
    let refused = zones.shard(&["instances"]).await?.refusal(1)?;
    assert!(refused.contains("nothing is up") && refused.contains("strata dev up"), "{refused}");
    assert!(!run(dev.command(&["status"])).await?.status.success());
    assert!(!run(dev.command(&["kubeconfig"])).await?.status.success());
    dev.dev(&["down"]).await?;
    dev.dev(&["up", "--detach"]).await?;
    assert_eq!(names(&dev.status().await?), PROGRAMS);
    // Others take their places, and no Node of the killed environment is left.
    let next = Zones::of(&dev).await?.settled([1, 2]).await?;
    assert!(next.keys().all(|id| !instances.contains_key(id)), "{next:?}");
    dev.dev(&["down"]).await?;
    assert_eq!(dev.processes()?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn dev_up_in_the_foreground_ends_everything_with_ctrl_c() -> Result<()> {
    let dev = Environment::new().await?;
    let mut command = dev.command(&["up"]);
    let mut up = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut lines = BufReader::new(up.stdout.take().context("no stdout")?).lines();
    while !lines.next_line().await?.context("it ended before it was up")?.contains("strata is up") {}
    assert_eq!(names(&dev.status().await?), PROGRAMS);
    environment::signal(up.id().context("it has ended")?, Signal::INT)?;
    assert!(up.wait().await?.success());
    assert_eq!(dev.processes()?, Vec::<String>::new());
    assert!(!dev.directory().join("session.json").exists());
    Ok(())
}

#[tokio::test]
async fn dev_up_says_which_program_failed_and_leaves_nothing_running() -> Result<()> {
    let dev = Environment::new().await?;
    let mut command = dev.command(&["up", "--detach"]);
    // Ends at once with this text, as a broken binary would.
    let broken = dev.directory().join("broken-etcd");
    std::fs::create_dir_all(dev.directory())?;
    environment::write_program(&broken, "#!/bin/sh\necho cannot open the disk >&2\nexit 3\n")?;
    command.env("STRATA_ETCD", &broken);
    let output = run(command).await?;
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(printed.contains("etcd ended with status 3") && printed.contains("cannot open the disk"), "{printed}");
    assert_eq!(dev.processes()?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn dev_up_on_a_cluster_that_is_there_and_down_restores_it() -> Result<()> {
    let cluster = ControlPlane::start(Options::default()).await?;
    let client = cluster.client().await?;
    create_namespace(&client, "performers-demo").await?;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "performers-demo");
    let map = json!({ "metadata": { "name": "chain" }, "data": { "rpc-url": "of the user" } });
    maps.create(&PostParams::default(), &serde_json::from_value(map)?).await?;
    let before = inventory(&client).await?;
    let dev = Environment::new().await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("kubeconfig");
    let of_two = OfTwo::read(&cluster.kubeconfig())?;
    of_two.write(&file, &of_two.here)?;
    let up = ["up", "--detach", "--wait", "5s", "--kubeconfig", file.to_str().context("path")?];

    let mark = cluster.audit().mark()?;
    let messages = dev.messages(&up).await?;
    assert!(messages.contains("the zones dev-1 and dev-2 are left out"), "{messages}");
    assert!(messages.contains("Cluster API and the machines layer are left out"), "{messages}");
    let status = dev.status().await?;
    assert_eq!((&status["storage"], &status["ca"], &status["endpoints"]), (&Value::Null, &Value::Null, &json!({})));
    assert_eq!((&status["auditLog"], names(&status)), (&Value::Null, vec!["registry", "strata-operator"]));
    let refused = run(dev.command(&["up", "--detach"])).await?;
    let refusal = String::from_utf8(refused.stderr)?;
    assert!(!refused.status.success() && refusal.contains("already up, but on the cluster of"), "{refusal}");
    let performers: Api<Performer> = Api::namespaced(client.clone(), "performers-demo");
    await_condition(performers, "basic", is_ready).await?;
    let pod = cluster.audit().wait_for(mark, |entry| entry.user == OPERATOR && entry.verb == "create").await?;
    assert!(pod.is_some(), "the operator did not act under its own account");
    let mine: Api<Performer> = Api::namespaced(client.clone(), "default");
    let spec =
        json!({ "metadata": { "name": "mine" }, "spec": { "avsAddress": "0x1", "image": "registry.test/ready:1" } });
    mine.create(&PostParams::default(), &serde_json::from_value(spec)?).await?;
    await_condition(mine.clone(), "mine", is_ready).await?;

    of_two.write(&file, "elsewhere")?;
    let other = run(dev.command(&up)).await?;
    let refusal = String::from_utf8(other.stderr)?;
    assert!(!other.status.success() && refusal.contains("already up, but on the cluster of"), "{refusal}");
    environment::signal(dev.supervisors()?[0], Signal::KILL)?;
    eventually("the operator to be gone", async || Ok(dev.processes()?.is_empty())).await?;
    let other = run(dev.command(&up)).await?;
    let refusal = String::from_utf8(other.stderr)?;
    assert!(!other.status.success() && refusal.contains("cannot use the kubeconfig"), "{refusal}");
    let messages = dev.messages(&["down"]).await?;
    assert!(messages.contains("stays, because of Performer default/mine"), "{messages}");
    of_two.write(&file, &of_two.here)?;
    let mut with_crd = before.clone();
    with_crd.push("CustomResourceDefinition performers.hourglass.eigenlayer.io".to_owned());
    with_crd.sort();
    assert_eq!(inventory(&client).await?, with_crd);
    assert!(mine.get("mine").await?.status.is_some_and(|status| status.ready), "the user's Performer was touched");

    dev.dev(&up).await?;
    mine.delete("mine", &DeleteParams::default()).await?;
    await_condition(mine, "mine", |performer: Option<&Performer>| performer.is_none()).await?;
    dev.dev(&["down"]).await?;
    assert_eq!(inventory(&client).await?, before);
    let map = maps.get("chain").await?;
    assert_eq!(map.data.context("no data")?["rpc-url"], "of the user");
    assert_eq!(dev.processes()?, Vec::<String>::new());
    Ok(())
}

/// A kubeconfig whose second context leads to no server.
struct OfTwo {
    config: Value,
    here: String,
}

impl OfTwo {
    fn read(file: &Path) -> Result<Self> {
        let mut config: Value = serde_saphyr::from_str(&std::fs::read_to_string(file)?)?;
        let here = config["current-context"].as_str().context("no current context")?.to_owned();
        let user = config["users"][0]["name"].clone();
        let cluster = json!({ "name": "elsewhere", "cluster": { "server": "https://127.0.0.1:1" } });
        let context = json!({ "name": "elsewhere", "context": { "cluster": "elsewhere", "user": user } });
        config["clusters"].as_array_mut().context("no clusters")?.push(cluster);
        config["contexts"].as_array_mut().context("no contexts")?.push(context);
        Ok(Self { config, here })
    }

    /// As `kubectl config use-context` does.
    fn write(&self, file: &Path, current: &str) -> Result<()> {
        let mut config = self.config.clone();
        config["current-context"] = json!(current);
        Ok(std::fs::write(file, config.to_string())?)
    }
}

async fn assert_stock_kubectl_sees_ready_examples(kubeconfig: &str) -> Result<()> {
    let text = std::fs::read_to_string(kubeconfig)?;
    assert!(text.contains("client-certificate-data") && text.contains("certificate-authority-data"));
    let kubectl = tools::path("kubectl").await?;
    let args = ["--kubeconfig", kubeconfig, "get", "performers", "--all-namespaces", "-o", "json"];
    let output = run(environment::command(&kubectl, &args)).await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let list: Value = serde_json::from_slice(&output.stdout)?;
    let ready: Vec<_> =
        list["items"].as_array().context("no items")?.iter().map(|item| &item["status"]["ready"]).collect();
    assert_eq!(ready, [&json!(true); 6]);
    Ok(())
}

async fn assert_deleted_pod_comes_back(client: Client) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client, "performers-demo");
    let old = pods.get("performer-basic").await?.uid();
    pods.delete("performer-basic", &DeleteParams::default()).await?;
    let is_back = |pod: Option<&Pod>| {
        let conditions = pod.filter(|pod| pod.uid() != old).and_then(|pod| pod.status.as_ref()?.conditions.as_ref());
        conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
    };
    tokio::time::timeout(environment::PATIENCE, await_condition(pods.clone(), "performer-basic", is_back))
        .await
        .context("the pod did not come back")??;
    Ok(())
}

async fn assert_operator_uses_its_own_account(audit_log: &str) -> Result<()> {
    let is_pod = |entry: &&Value| entry["verb"] == "create" && entry["objectRef"]["resource"] == "pods";
    // An entry is written when its request has ended, which its client may know before.
    let are_written = async || Ok(requests_of_operator(audit_log)?.iter().filter(is_pod).count() >= 7);
    eventually("the pods of six examples, and of one that came back, in the audit log", are_written).await?;
    let requests = requests_of_operator(audit_log)?;
    let strangers: Vec<_> = requests.iter().filter(|entry| entry["user"]["username"] != OPERATOR).collect();
    assert_eq!(strangers, Vec::<&Value>::new());
    let refused: Vec<_> = requests.iter().filter(|entry| entry["responseStatus"]["code"] == 403).collect();
    assert_eq!(refused, Vec::<&Value>::new());
    Ok(())
}

fn requests_of_operator(audit_log: &str) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(audit_log)?;
    let complete = text.rfind('\n').map_or(0, |end| end + 1);
    let entries: Vec<Value> = text[..complete].lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    // Agents of instances are the same program, and have an account of their own.
    let is_operators = |entry: &Value| {
        let is_ours = entry["userAgent"].as_str().is_some_and(|agent| agent.starts_with("strata/"));
        is_ours && entry["user"]["username"] != "strata-agent"
    };
    Ok(entries.into_iter().filter(is_operators).collect())
}

fn names(status: &Value) -> Vec<&str> {
    let programs = status["programs"].as_array().expect("a list of programs");
    programs.iter().filter_map(|program| program["name"].as_str()).collect()
}

fn pid_of(name: &str, status: &Value) -> Result<u32> {
    let programs = status["programs"].as_array().context("no programs")?;
    let program = programs.iter().find(|program| program["name"] == name).with_context(|| format!("no {name}"))?;
    Ok(u32::try_from(program["pid"].as_u64().context("no pid")?)?)
}

async fn pull_from_both(helm: &Helm, charts: &Value) -> Result<()> {
    let address = |name: &str| charts[name].as_str().context("no address");
    helm.run(["pull", "four", "--repo", address("repository")?, "--version", "1.0.0"]).await?;
    let chart = format!("{}/four", address("registry")?);
    helm.run(["pull", &chart, "--version", "1.0.0", "--plain-http"]).await?;
    Ok(())
}

fn is_ready(performer: Option<&Performer>) -> bool {
    performer.and_then(|performer| performer.status.as_ref()).is_some_and(|status| status.ready)
}

async fn create_namespace(client: &Client, name: &str) -> Result<()> {
    let namespace: Namespace = serde_json::from_value(json!({ "metadata": { "name": name } }))?;
    Api::all(client.clone()).create(&PostParams::default(), &namespace).await?;
    Ok(())
}

async fn has_namespace(client: &Client, name: &str) -> Result<bool> {
    Ok(Api::<Namespace>::all(client.clone()).get_opt(name).await?.is_some())
}

/// All that `dev up` could leave behind.
async fn inventory(client: &Client) -> Result<Vec<String>> {
    let mut all = Vec::new();
    all.extend(listed(Api::<Namespace>::all(client.clone())).await?);
    all.extend(listed(Api::<CustomResourceDefinition>::all(client.clone())).await?);
    all.extend(listed(Api::<ClusterRole>::all(client.clone())).await?);
    all.extend(listed(Api::<ClusterRoleBinding>::all(client.clone())).await?);
    all.extend(listed(Api::<ConfigMap>::namespaced(client.clone(), "performers-demo")).await?);
    all.extend(listed(Api::<Secret>::namespaced(client.clone(), "performers-demo")).await?);
    all.extend(listed(Api::<Pod>::namespaced(client.clone(), "performers-demo")).await?);
    // Made by Kubernetes itself, some time after the namespace.
    all.retain(|name| name != "ConfigMap kube-root-ca.crt");
    all.sort();
    Ok(all)
}

async fn listed<K>(api: Api<K>) -> Result<Vec<String>>
where
    K: k8s_openapi::Resource + kube::Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let list = api.list(&ListParams::default()).await?;
    Ok(list.iter().map(|object| format!("{} {}", <K as k8s_openapi::Resource>::KIND, object.name_any())).collect())
}

#[tokio::test]
async fn a_directory_that_is_held_outside_of_the_container_is_refused_at_once() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let lock = std::fs::File::create(folder.path().join("lock"))?;
    rustix::fs::fcntl_lock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive)?;
    for args in [&["up", "--detach"][..], &["down"]] {
        let strata = ["--user", "--map-root-user", "--pid", "--fork", env!("CARGO_BIN_EXE_strata"), "dev"];
        let mut contained = environment::command(Path::new("unshare"), &strata);
        contained.args(args).env("STRATA_DEV_DIR", folder.path());
        let refused = run(contained).await?;
        let refusal = String::from_utf8(refused.stderr)?;
        if refusal.starts_with("unshare:") {
            return testbed::skip(format!("no namespace can be made here: {refusal}")).map_err(anyhow::Error::msg);
        }
        assert!(!refused.status.success() && refusal.contains("cannot be seen from here"), "{args:?}: {refusal}");
    }
    Ok(())
}

/// What is left to write to is full; the command that waits for the background process learns why all the same.
#[tokio::test]
async fn a_background_process_on_a_full_disk_says_why_it_ends() -> Result<()> {
    let dev = Environment::new().await?;
    let mut command = dev.command(&["supervise", "--kubeconfig", "/nonexistent"]);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full")?;
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(full).kill_on_drop(true).spawn()?;
    // Held open, as the command that started it does until it has read an outcome.
    let _stdin = child.stdin.take();
    let mut lines = BufReader::new(child.stdout.take().context("stdout is piped")?).lines();
    let failed = async {
        while let Some(line) = lines.next_line().await? {
            if let Some(failed) = serde_json::from_str::<Value>(&line)?.get("Failed") {
                return anyhow::Ok(failed["message"].to_string());
            }
        }
        anyhow::bail!("it ended without a message")
    };
    let message = tokio::time::timeout(environment::PATIENCE, failed).await.context("it hangs")??;
    ensure!(message.contains("/nonexistent"), "{message}");
    tokio::time::timeout(environment::PATIENCE, child.wait()).await.context("it does not end")??;
    Ok(())
}
