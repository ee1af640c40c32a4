//! What the operator's own process takes while helm works (W21), measured in a process that does nothing else.

use std::{fs, process::Stdio};

use anyhow::{Context, Result};
use runtime::Key;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
};
use workspaces::helm::{Class, Contents, Operation, Private};

use crate::{
    harness::{Scene, deploy, pack, with},
    world::World,
};

const MARKER: &str = "MEMORY ";
const PLACE: &str = "STRATA_TEST_PLACE";
/// Some 4 GB, ten megabytes at a time.
const HOG: &str = r#"{{- $text := repeat 1000000 "0123456789" }}{{- $all := list }}
{{- range until 400 }}{{ $all = append $all (printf "%s%d" $text .) }}{{- end }}
apiVersion: v1
kind: ConfigMap
metadata: {name: hog}
data: {length: {{ len $all | quote }}}
"#;

/// A figure of /proc/self/status, in bytes.
pub fn own_memory(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_matches([':', ' ', '\t', 'k', 'B']).parse::<u64>().unwrap() * 1024
}

/// Runs a chart that takes all it can get, and prints how much this process took, how much helm.
#[tokio::test]
#[ignore = "started by w21_a_hungry_chart_leaves_the_operators_memory_flat"]
async fn runner() -> Result<()> {
    #[expect(clippy::disallowed_methods, reason = "what the test that starts this one hands over")]
    let place = std::env::var(PLACE)?;
    let (namespace, kubeconfig): (String, String) = serde_json::from_str(&place)?;
    let kubeconfig = Private::new(fs::read(kubeconfig)?);
    let scene = Scene::real().await?;
    let run = async |name: &str, template: &str| {
        let chart = pack(scene.directory.path(), name, "1.0.0", template)?;
        let install = Operation::Install(deploy(chart));
        let contents = Contents { kubeconfig: Some(kubeconfig.clone()), ..Contents::new(install) };
        scene.run(with(&Key::new(namespace.as_str(), name), contents)).await
    };
    // What is made once is made before.
    run("usual", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: usual}\n").await?.result?;
    fs::write("/proc/self/clear_refs", "5")?;
    let before = own_memory("VmRSS");
    let hog = run("hog", HOG).await?;
    let grown = own_memory("VmHWM").saturating_sub(before);
    println!("\n{MARKER}{}", serde_json::to_string(&(grown, hog.peak_bytes, hog.result.unwrap_err().class.as_str()))?);
    Ok(())
}

#[tokio::test]
async fn w21_a_hungry_chart_leaves_the_operators_memory_flat() -> Result<()> {
    let control_plane = &World::shared().await.control_plane;
    let namespace = control_plane.namespace("hungry").await?;
    let place = serde_json::to_string(&(namespace, control_plane.kubeconfig()))?;
    #[expect(clippy::disallowed_methods, reason = "it is this test's own binary")]
    let mut runner = Command::new(std::env::current_exe()?)
        .args(["memory::runner", "--exact", "--ignored", "--nocapture"])
        .env(PLACE, place)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(runner.stdout.take().context("stdout is piped")?).lines();
    let (grown, peak, class): (u64, u64, String) = loop {
        let line = lines.next_line().await?.context("it ended too early")?;
        if let Some(found) = line.strip_prefix(MARKER) {
            break serde_json::from_str(found)?;
        }
    };
    assert_eq!(class, Class::OutOfMemory.as_str());
    assert!(peak > 100 << 20 && peak < 256 << 20, "helm took {peak} bytes");
    assert!(grown < 16 << 20, "the operator took {grown} bytes more");
    Ok(())
}
