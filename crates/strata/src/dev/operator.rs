//! The operator as a process of its own: this binary once more, under its own identity.

use std::{
    ffi::OsStr,
    fs,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    time::Duration,
};

use testbed::{
    control_plane::READY_PATIENCE,
    process::{Child, Program},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::Instant,
};

use super::{
    cluster::{NAMESPACE, POLL},
    place::{OPERATOR_LOG, Place},
};
use crate::Failure;

/// A little more than the operator's own grace period of 5 s.
const STOP_GRACE: Duration = Duration::from_secs(7);
/// One answer over loopback; longer means that the process hangs.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);

pub const NAME: &str = "strata-operator";

pub struct Operator {
    pub child: Child,
    /// `http://127.0.0.1:PORT/metrics`.
    pub metrics: String,
}

impl Operator {
    /// Starts it and waits until it says that it is ready.
    pub async fn start(place: &Place, kubeconfig: &Path) -> Result<Self, Failure> {
        let binary = std::env::current_exe()
            .map_err(|error| Failure::new(format!("cannot find this program's own file: {error}")))?;
        // On a first start it is still being built; the first release is applied when it is there.
        let helm = testbed::tools::place("helm")?;
        let log = place.file(OPERATOR_LOG);
        let begin = fs::metadata(&log).map_or(0, |metadata| metadata.len());
        let program = Program::new(NAME, binary, &log)
            .args(["operator", "--kubeconfig"])
            .args([kubeconfig])
            .args(["--lease-namespace", NAMESPACE, "--log-format", "json"])
            .args([OsStr::new("--helm"), helm.as_os_str()])
            .args([OsStr::new("--helm-directory"), place.file("helm").as_os_str()])
            // The user of this environment may read this disk anyway.
            .args(["--helm-local-charts"])
            // Within the grace that it gets itself.
            .args(["--helm-grace-period", "5s"])
            // Any free port: several environments run side by side.
            .args(["--health-probe-bind-address", "127.0.0.1:0", "--metrics-bind-address", "127.0.0.1:0"]);
        let machines = place.machines_config();
        let program = if machines.is_file() {
            program.args([OsStr::new("--machines-config"), machines.as_os_str()])
        } else {
            program
        };
        let child = Child::start(program)?;
        let deadline = Instant::now() + READY_PATIENCE;
        let listening = until(&child, deadline, async || {
            listening(&log, begin).ok_or("no listen address in its log yet".to_owned())
        });
        let listening = listening.await?;
        until(&child, deadline, async || answers(&listening.health).await).await?;
        Ok(Self { child, metrics: format!("http://{}/metrics", listening.metrics) })
    }

    /// Lets it finish and give up its lease.
    pub async fn stop(self) -> Result<(), Failure> {
        Ok(self.child.terminate(STOP_GRACE).await?)
    }
}

/// Repeats `question` until it has an answer, the program has ended or time is up.
async fn until<T>(
    child: &Child,
    deadline: Instant,
    question: impl AsyncFn() -> Result<T, String>,
) -> Result<T, Failure> {
    loop {
        let why = match question().await {
            Ok(answer) => return Ok(answer),
            Err(why) => why,
        };
        if !child.is_running() {
            return Err(ended(child).await);
        }
        if Instant::now() > deadline {
            let (log, tail) = (child.program().log.display(), child.log_tail());
            return Err(Failure::new(format!("{NAME} is not ready in time ({why}); the end of {log}:\n{tail}")));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Waits for the end of the operator, and reports it.
pub async fn ended(child: &Child) -> Failure {
    let status = child.exited().await;
    let (log, tail) = (child.program().log.display(), child.log_tail());
    Failure::new(format!("{NAME} ended with status {status}; the end of {log}:\n{tail}"))
}

struct Listening {
    health: String,
    metrics: String,
}

/// The addresses in the operator's own log line about them, past `begin`.
fn listening(log: &PathBuf, begin: u64) -> Option<Listening> {
    let mut file = fs::File::open(log).ok()?;
    file.seek(SeekFrom::Start(begin)).ok()?;
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    let line = text.lines().find(|line| line.contains("\"listening\""))?;
    Some(Listening { health: address(line, "health")?, metrics: address(line, "metrics")? })
}

/// `"health":"Some(127.0.0.1:1234)"` gives `127.0.0.1:1234`.
fn address(line: &str, field: &str) -> Option<String> {
    let (_, rest) = line.split_once(&format!("\"{field}\":\"Some("))?;
    rest.split_once(')').map(|(address, _)| address.to_owned())
}

/// Asks `/readyz`; the error says what is not ready.
async fn answers(address: &str) -> Result<(), String> {
    let question = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    match tokio::time::timeout(ANSWER_PATIENCE, question).await {
        Ok(Ok(answer)) if answer.lines().next().is_some_and(|line| line.contains(" 200 ")) => Ok(()),
        Ok(Ok(answer)) => Err(answer.lines().filter(|line| line.starts_with("[-]")).collect::<Vec<_>>().join(", ")),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no answer".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_from_the_log_past_the_given_place() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let old = "{\"message\":\"listening\",\"health\":\"Some(127.0.0.1:1)\",\"metrics\":\"Some(127.0.0.1:2)\"}\n";
        let new = old.replace("127.0.0.1:1", "127.0.0.1:3");
        fs::write(&log, format!("{old}{{\"message\":\"strata operator starts\"}}\n{new}")).unwrap();
        let found = listening(&log, old.len() as u64).unwrap();
        assert_eq!((found.health.as_str(), found.metrics.as_str()), ("127.0.0.1:3", "127.0.0.1:2"));
        assert!(listening(&log, (old.len() * 3) as u64).is_none());
    }
}
