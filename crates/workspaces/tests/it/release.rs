//! The real helm on a real API server.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use runtime::Key;
use testbed::User;
use workspaces::helm::{Class, Contents, Deploy, Operation, Private, Request};

use crate::{
    harness::{PATIENCE, Scene, deploy, pack, with},
    world::World,
};

/// Everything of the values, so that a test sees what helm saw.
const VALUES: &str = "apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Release.Name }}}
data: {values: {{ .Values | toJson | quote }}}
";
/// Never ready when asked so: no node has the label.
const WORKLOAD: &str = r"apiVersion: apps/v1
kind: Deployment
metadata: {name: {{ .Release.Name }}}
spec:
  replicas: {{ .Values.replicas }}
  selector: {matchLabels: {app: {{ .Release.Name }}}}
  template:
    metadata: {labels: {app: {{ .Release.Name }}}}
    spec: {nodeSelector: {no: node}, containers: [{name: none, image: none}]}
";
/// Some 4 GB, ten megabytes at a time.
const HOG: &str = r#"{{- $text := repeat 1000000 "0123456789" }}{{- $all := list }}
{{- range until 400 }}{{ $all = append $all (printf "%s%d" $text .) }}{{- end }}
apiVersion: v1
kind: ConfigMap
metadata: {name: hog}
data: {length: {{ len $all | quote }}}
"#;

/// Broken when asked so. It shows whether it was installed, and its hook runs at installs only.
const INSTALLED: &str = r"apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Release.Name }}}
data: {isInstall: {{ .Release.IsInstall | quote }}}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .Values.attempt }}
  annotations: {helm.sh/hook: pre-install}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Values.attempt }}-part}
{{- if .Values.broken }}
---
apiVersion: v1
kind: Service
metadata: {name: {{ .Release.Name }}}
spec: {ports: [{port: 70000}]}
{{- end }}
";

struct Release {
    scene: Scene,
    namespace: String,
    client: kube::Client,
    kubeconfig: Private,
}

impl Release {
    async fn new() -> Result<Self> {
        // The operator there takes no part in it: no HelmRelease stands for these.
        let control_plane = &World::shared().await.control_plane;
        let kubeconfig = Private::new(std::fs::read(control_plane.kubeconfig())?);
        let namespace = control_plane.namespace("runner").await?;
        Ok(Self { scene: Scene::real().await?, namespace, client: control_plane.client().await?, kubeconfig })
    }

    fn key(&self, name: &str) -> Key {
        Key::new(self.namespace.as_str(), name)
    }

    fn chart(&self, template: &str) -> Result<Deploy> {
        Ok(deploy(pack(self.scene.directory.path(), "chart", "1.0.0", template)?))
    }

    fn request(&self, name: &str, operation: Operation, values: &[&str]) -> Request {
        let values = values.iter().map(Private::new).collect();
        let kubeconfig = Some(self.kubeconfig.clone());
        with(&self.key(name), Contents { kubeconfig, values, ..Contents::new(operation) })
    }

    fn uninstall(&self, name: &str) -> Request {
        self.request(name, Operation::Uninstall { keep_history: false, wait: false }, &[])
    }

    /// Revisions of a release and their states, as helm stores them.
    async fn history(&self, name: &str) -> Result<Vec<(u32, String)>> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let listed = secrets.list_metadata(&ListParams::default().labels(&format!("owner=helm,name={name}"))).await?;
        let mut history = Vec::new();
        for mut labels in listed.into_iter().filter_map(|secret| secret.metadata.labels) {
            let version = labels.remove("version").context("helm labels the revision")?;
            history.push((version.parse()?, labels.remove("status").context("helm labels the state")?));
        }
        history.sort();
        Ok(history)
    }

    async fn check(&self, request: Request, history: &[(u32, &str)]) -> Result<()> {
        let name = request.key.name.clone();
        let finished = self.scene.run(request).await?;
        assert_eq!(finished.result, Ok(()));
        assert!(finished.peak_bytes > 20 << 20 && finished.peak_bytes < 256 << 20, "{}", finished.peak_bytes);
        let found = self.history(&name).await?;
        let found: Vec<_> = found.iter().map(|(revision, state)| (*revision, state.as_str())).collect();
        assert_eq!(found, history);
        Ok(())
    }
}

#[tokio::test]
async fn a_release_from_install_to_uninstall() -> Result<()> {
    let release = Release::new().await?;
    let chart = release.chart(VALUES)?;
    let do_it = |operation, values: &[&str]| release.request("web", operation, values);
    release.check(do_it(Operation::Install(chart.clone()), &["note: a"]), &[(1, "deployed")]).await?;
    let upgraded = [(1, "superseded"), (2, "deployed")];
    release.check(do_it(Operation::Upgrade(chart), &[]), &upgraded).await?;
    let maps: Api<ConfigMap> = Api::namespaced(release.client.clone(), &release.namespace);
    assert_eq!(maps.get("web").await?.data.unwrap()["values"], "{}", "values of the last revision are not taken over");
    let back = Operation::Rollback { revision: 1, wait: true, history_max: 5, force_conflicts: false };
    let rolled_back = [(1, "superseded"), (2, "superseded"), (3, "deployed")];
    release.check(do_it(back, &[]), &rolled_back).await?;
    release.check(do_it(Operation::Test, &[]), &rolled_back).await?;
    release.check(release.uninstall("web"), &[]).await?;
    release.check(release.uninstall("web"), &[]).await
}

#[tokio::test]
async fn a_failed_install_is_followed_by_an_install_with_its_hooks() -> Result<()> {
    let release = Release::new().await?;
    let install = Operation::Install(release.chart(INSTALLED)?);
    let maps: Api<ConfigMap> = Api::namespaced(release.client.clone(), &release.namespace);
    let former = Operation::Uninstall { keep_history: false, wait: true };
    for (name, before, revision, is_left) in [("adopts", None, 2, true), ("anew", Some(former), 1, false)] {
        let values = |attempt: &str, broken: bool| format!("attempt: {name}-{attempt}\nbroken: {broken}\n");
        let first = release.request(name, install.clone(), &[&values("first", true)]);
        assert!(release.scene.run(first).await?.result.is_err());
        assert_eq!(release.history(name).await?, [(1, "failed".to_owned())]);
        let kubeconfig = Some(release.kubeconfig.clone());
        let values = vec![Private::new(values("second", false))];
        let contents = Contents { kubeconfig, values, before, ..Contents::new(install.clone()) };
        let second = release.scene.run(with(&release.key(name), contents)).await?;
        assert_eq!(second.result, Ok(()));
        assert_eq!(release.history(name).await?.last(), Some(&(revision, "deployed".to_owned())));
        assert_eq!(maps.get(name).await?.data.unwrap()["isInstall"], "true", "{name}");
        assert!(maps.get_opt(&format!("{name}-second")).await?.is_some(), "{name}: its hook did not run");
        assert_eq!(maps.get_opt(&format!("{name}-first-part")).await?.is_some(), is_left, "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn an_install_over_a_release_that_is_there_is_refused_as_locked() -> Result<()> {
    let release = Release::new().await?;
    let install = || Ok::<_, anyhow::Error>(release.request("web", Operation::Install(release.chart(VALUES)?), &[]));
    release.check(install()?, &[(1, "deployed")]).await?;
    let failure = release.scene.run(install()?).await?.result.unwrap_err();
    assert_eq!(failure.class, Class::Locked, "{failure}");
    assert_eq!(release.history("web").await?, [(1, "deployed".to_owned())]);
    Ok(())
}

#[tokio::test]
async fn w40_values_arrive_as_written() -> Result<()> {
    let release = Release::new().await?;
    let first = r#"{"port": "0755", "yes": "true", "big": "9007199254740993", "a.b/c": 1, "list": [1], "over": 1}"#;
    let second = "text: |\n  one\n  two: ü €\nover: two\nlist: []\n";
    let install = Operation::Install(release.chart(VALUES)?);
    release.check(release.request("web", install, &[first, second]), &[(1, "deployed")]).await?;
    let maps: Api<ConfigMap> = Api::namespaced(release.client.clone(), &release.namespace);
    let values: serde_json::Value = serde_json::from_str(&maps.get("web").await?.data.unwrap()["values"])?;
    let expected = serde_json::json!({
        "port": "0755", "yes": "true", "big": "9007199254740993", "a.b/c": 1, "list": [], "over": "two",
        "text": "one\ntwo: ü €\n",
    });
    assert_eq!(values, expected);
    Ok(())
}

#[tokio::test]
async fn w21_a_hungry_chart_ends_by_its_own_limit() -> Result<()> {
    let release = Release::new().await?;
    let install = Operation::Install(release.chart(HOG)?);
    let finished = release.scene.run(release.request("hog", install, &[])).await?;
    let failure = finished.result.as_ref().unwrap_err();
    assert_eq!(failure.class, Class::OutOfMemory, "{failure}");
    assert!(finished.peak_bytes < 256 << 20, "{}", finished.peak_bytes);
    Ok(())
}

#[tokio::test]
async fn w25_a_wait_in_vain_is_a_timeout() -> Result<()> {
    let mut release = Release::new().await?;
    // helm ends as soon as it has stored its failure.
    release.scene = Scene::real_with(|config| config.grace = Duration::from_mins(1)).await?;
    let install = Operation::Install(Deploy { wait: true, ..release.chart(WORKLOAD)? });
    let mut short = release.request("web", install, &["replicas: 1"]);
    // On a busy machine helm needs seconds before it waits.
    short.timeout = Duration::from_secs(20);
    let finished = release.scene.run(short).await?;
    assert_eq!(finished.result.as_ref().unwrap_err().class, Class::Timeout, "{finished:?}");
    assert_eq!(release.history("web").await?, [(1, "failed".to_owned())]);
    Ok(())
}

#[tokio::test]
async fn w26_a_drain_during_upgrades_leaves_none_pending() -> Result<()> {
    let release = Release::new().await?;
    let chart = release.chart(WORKLOAD)?;
    let names = ["one", "two", "three", "four", "five"];
    for name in names {
        let install = Operation::Install(chart.clone());
        release.check(release.request(name, install, &["replicas: 0"]), &[(1, "deployed")]).await?;
    }
    for name in names {
        let upgrade = Operation::Upgrade(Deploy { wait: true, ..chart.clone() });
        let mut upgrade = release.request(name, upgrade, &["replicas: 1"]);
        // So that all five run at once.
        upgrade.memory = Some(144 << 20);
        release.scene.runner.submit(upgrade)?;
    }
    let all_wait = async {
        for name in names {
            while release.history(name).await?.len() < 2 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Ok::<_, anyhow::Error>(())
    };
    tokio::time::timeout(PATIENCE, all_wait).await.context("the upgrades do not begin")??;
    release.scene.runner.drain(Duration::from_mins(1)).await;
    for name in names {
        let history = release.history(name).await?;
        assert_eq!(history, [(1, "deployed".to_owned()), (2, "failed".to_owned())]);
        let finished = release.scene.finished(&release.key(name)).await?;
        assert_eq!(finished.result.as_ref().unwrap_err().class, Class::Cancelled);
    }
    Ok(())
}

#[tokio::test]
async fn failures_have_their_class() -> Result<()> {
    let release = Release::new().await?;
    let control_plane = &World::shared().await.control_plane;
    let install = || Ok::<_, anyhow::Error>(Operation::Install(release.chart(VALUES)?));
    let class = async |request: Request| -> Result<Class> {
        Ok(release.scene.run(request).await?.result.clone().err().context("it has to fail")?.class)
    };
    let accounts: Api<ServiceAccount> = Api::namespaced(release.client.clone(), &release.namespace);
    let mut account = ServiceAccount::default();
    account.metadata.name = Some("powerless".into());
    accounts.create(&PostParams::default(), &account).await?;
    let powerless = control_plane.kubeconfig_as(&User::service_account(&release.namespace, "powerless")).await?;
    let by = |kubeconfig: Private| {
        let contents = Contents { kubeconfig: Some(kubeconfig), ..Contents::new(install()?) };
        Ok::<_, anyhow::Error>(with(&release.key("web"), contents))
    };
    assert_eq!(class(by(Private::new(std::fs::read(powerless)?))?).await?, Class::Forbidden);

    let text =
        String::from_utf8_lossy(release.kubeconfig.expose()).replace(control_plane.server(), "https://127.0.0.1:1");
    assert_eq!(class(by(Private::new(text))?).await?, Class::Unreachable);

    let nothing = Operation::Rollback { revision: 1, wait: false, history_max: 5, force_conflicts: false };
    assert_eq!(class(release.request("web", nothing, &[])).await?, Class::ReleaseNotFound);
    Ok(())
}
