//! Values as users write them: durations, addresses, and the file that holds them.

use std::{net::SocketAddr, path::Path, time::Duration};

use clap::{
    ArgAction, Args,
    builder::{PossibleValuesParser, TypedValueParser},
};
use jiff::SignedDuration;
use serde::{Deserialize, Deserializer, de::Error as _};

use crate::{
    Failure,
    layers::{self, machines::MachinesFlags, performers::PerformersFlags, workspaces::WorkspacesFlags},
};

/// A duration like `2m`, `90s` or `1h30m`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let advice = "write it like 2m, 90s or 1h30m";
    let signed: SignedDuration = text.parse().map_err(|_| format!("{text:?} is not a duration: {advice}"))?;
    let duration = Duration::try_from(signed).map_err(|_| format!("{text:?} is negative: {advice}"))?;
    if duration.is_zero() { Err(format!("{text:?} is zero: {advice}")) } else { Ok(duration) }
}

/// An amount of memory like `512Mi`, `1G` or a number of bytes.
pub fn bytes(text: &str) -> Result<u64, String> {
    plan::object::bytes(text).ok_or_else(|| format!("{text:?} is not an amount of memory: write it like 512Mi or 1Gi"))
}

/// Where to listen: `:8080` (all addresses), `127.0.0.1:8080`, or `0` for nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen(pub Option<SocketAddr>);

pub fn listen(text: &str) -> Result<Listen, String> {
    if text == "0" {
        return Ok(Listen(None));
    }
    // Go's habit, which existing deployments rely on: no host means every address.
    let full = if text.starts_with(':') { format!("[::]{text}") } else { text.to_owned() };
    full.parse().map(|address| Listen(Some(address))).map_err(|_| {
        format!("{text:?} is not an address to listen on: write :8080, 127.0.0.1:8080, or 0 to switch it off")
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Json,
    Pretty,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StreamingLists {
    /// Where the server offers them (Kubernetes 1.34 and newer)
    Auto,
    On,
    Off,
}

/// Every setting of the operator. The same structure is filled from flags, from the environment (by clap) and from the
/// configuration file, whose keys are the long flags in camel case.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Values {
    /// Layers to run, separated by commas [default: performers and workspaces, and machines where it is configured]
    #[arg(long, env = "STRATA_LAYERS", value_parser = layer(), value_delimiter = ',')]
    #[serde(deserialize_with = "read_layers")]
    pub layers: Option<Vec<&'static str>>,
    /// Where /metrics answers; 0 switches it off [default: :8080]
    #[arg(long, env = "STRATA_METRICS_BIND_ADDRESS", value_parser = listen, value_name = "ADDRESS")]
    #[serde(deserialize_with = "read_listen")]
    pub metrics_bind_address: Option<Listen>,
    /// Where /livez, /healthz and /readyz answer; 0 switches it off [default: :8081]
    #[arg(long, env = "STRATA_HEALTH_PROBE_BIND_ADDRESS", value_parser = listen, value_name = "ADDRESS")]
    #[serde(deserialize_with = "read_listen")]
    pub health_probe_bind_address: Option<Listen>,
    /// Act only while holding the lease; switch off only where a single replica is certain [default: true]
    #[arg(long, env = "STRATA_LEADER_ELECT", action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub leader_elect: Option<bool>,
    /// Name of the lease [default: b8e8a8a8.hourglass.eigenlayer.io]
    #[arg(long, env = "STRATA_LEASE_NAME", value_name = "NAME")]
    pub lease_name: Option<String>,
    /// Namespace of the lease [default: $POD_NAMESPACE, else the namespace of the kubeconfig or pod]
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAMESPACE")]
    pub lease_namespace: Option<String>,
    /// Others take over when the leader has been silent this long [default: 6s]
    #[arg(long, env = "STRATA_LEASE_DURATION", value_parser = duration, value_name = "DURATION")]
    #[serde(deserialize_with = "read_duration")]
    pub lease_duration: Option<Duration>,
    /// json for machines, pretty for people [default: json, or pretty on a terminal]
    #[arg(long, env = "STRATA_LOG_FORMAT", value_enum)]
    pub log_format: Option<LogFormat>,
    /// Level, or a filter like info,performers=debug [default: info]
    #[arg(long, env = "STRATA_LOG_LEVEL", value_name = "FILTER")]
    pub log_level: Option<String>,
    /// Period of the drift check of every object [default: 2m]
    #[arg(long, env = "STRATA_RESYNC", value_parser = duration, value_name = "DURATION")]
    #[serde(deserialize_with = "read_duration")]
    pub resync: Option<Duration>,
    /// Objects of one kind reconciled at once [default: 10]
    #[arg(long, env = "STRATA_CONCURRENCY", value_name = "N")]
    pub concurrency: Option<usize>,
    /// A request to the API server without answer is given up and retried after this long [default: 10s]
    #[arg(long, env = "STRATA_REQUEST_TIMEOUT", value_parser = duration, value_name = "DURATION")]
    #[serde(deserialize_with = "read_duration")]
    pub request_timeout: Option<Duration>,
    /// What running reconciles may take to finish after SIGTERM [default: 5s]
    #[arg(long, env = "STRATA_GRACE_PERIOD", value_parser = duration, value_name = "DURATION")]
    #[serde(deserialize_with = "read_duration")]
    pub grace_period: Option<Duration>,
    /// Fill caches by streaming lists [default: auto]
    #[arg(long, env = "STRATA_STREAMING_LISTS", value_enum, value_name = "MODE")]
    pub streaming_lists: Option<StreamingLists>,
    #[command(flatten)]
    #[serde(flatten)]
    pub performers: PerformersFlags,
    #[command(flatten)]
    #[serde(flatten)]
    pub workspaces: WorkspacesFlags,
    #[command(flatten)]
    #[serde(flatten)]
    pub machines: MachinesFlags,
}

impl Values {
    /// These settings, and those of `other` where these are silent.
    pub fn or(self, other: Self) -> Self {
        Self {
            layers: self.layers.or(other.layers),
            metrics_bind_address: self.metrics_bind_address.or(other.metrics_bind_address),
            health_probe_bind_address: self.health_probe_bind_address.or(other.health_probe_bind_address),
            leader_elect: self.leader_elect.or(other.leader_elect),
            lease_name: self.lease_name.or(other.lease_name),
            lease_namespace: self.lease_namespace.or(other.lease_namespace),
            lease_duration: self.lease_duration.or(other.lease_duration),
            log_format: self.log_format.or(other.log_format),
            log_level: self.log_level.or(other.log_level),
            resync: self.resync.or(other.resync),
            concurrency: self.concurrency.or(other.concurrency),
            request_timeout: self.request_timeout.or(other.request_timeout),
            grace_period: self.grace_period.or(other.grace_period),
            streaming_lists: self.streaming_lists.or(other.streaming_lists),
            performers: self.performers.or(other.performers),
            workspaces: self.workspaces.or(other.workspaces),
            machines: self.machines.or(other.machines),
        }
    }

    pub fn read(path: &Path) -> Result<Self, Failure> {
        let shown = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::new(format!("cannot read the configuration file {shown}: {error}")))?;
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        serde_saphyr::from_str(&text).map_err(|error| {
            Failure::new(format!("configuration file {shown}: {error}"))
                .hint("keys are the long flags in camel case, for example leaseDuration: 6s")
        })
    }
}

/// A duration that may not be shorter than `least`.
pub struct Lower {
    pub flag: &'static str,
    pub given: Option<Duration>,
    pub least: Duration,
    /// What a shorter one would do.
    pub because: &'static str,
    pub default: &'static str,
}

impl Values {
    /// Shorter durations are slips (`1ms` for `1m`) that would load the API server or hurt the objects.
    fn durations(&self) -> [Lower; 4] {
        [
            Lower {
                flag: "--resync",
                given: self.resync,
                least: Duration::from_secs(1),
                because: "every object would be looked at all the time",
                default: "2m",
            },
            Lower {
                flag: "--lease-duration",
                given: self.lease_duration,
                // A renewal has two ninths of it.
                least: Duration::from_secs(1),
                because: "a lease must outlast a slow request to the API server",
                default: "6s",
            },
            Lower {
                flag: "--request-timeout",
                given: self.request_timeout,
                least: Duration::from_secs(1),
                because: "a busy API server could answer nothing in time",
                default: "10s",
            },
            Lower {
                flag: "--grace-period",
                given: self.grace_period,
                // What the chart gives with the shortest terminationGracePeriodSeconds, and enough for a request.
                least: Duration::from_millis(100),
                because: "no reconcile could finish",
                default: "5s",
            },
        ]
    }

    /// Refuses what can only be a slip.
    pub fn check(&self) -> Result<(), Failure> {
        if self.concurrency == Some(0) {
            return Err(
                Failure::new("--concurrency 0 would reconcile nothing").hint("set at least 1; the default is 10")
            );
        }
        let of_layers = self.performers.durations().into_iter().chain(self.workspaces.durations());
        for Lower { flag, given, least, because, default } in self.durations().into_iter().chain(of_layers) {
            if let Some(given) = given.filter(|given| *given < least) {
                return Err(Failure::new(format!("{flag} is {given:?}, below {least:?}: {because}"))
                    .hint(format!("set {flag} to {least:?} or more; the default is {default}")));
            }
        }
        Ok(())
    }
}

/// A value of the configuration file as a user would write it on the command line.
#[derive(Deserialize)]
#[serde(untagged)]
enum Word {
    Text(String),
    Number(u64),
}

fn read<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    parse: fn(&str) -> Result<T, String>,
) -> Result<Option<T>, D::Error> {
    let text = Option::<Word>::deserialize(deserializer)?.map(|word| match word {
        Word::Text(text) => text,
        Word::Number(number) => number.to_string(),
    });
    text.map(|text| parse(&text).map_err(D::Error::custom)).transpose()
}

pub fn read_duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    read(deserializer, duration)
}

pub fn read_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    read(deserializer, bytes)
}

fn read_listen<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Listen>, D::Error> {
    read(deserializer, listen)
}

fn read_layers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<&'static str>>, D::Error> {
    let named = Option::<Vec<String>>::deserialize(deserializer)?;
    named.map(|names| names.iter().map(|name| layers::known(name)).collect()).transpose().map_err(D::Error::custom)
}

/// The name of a layer that there is.
pub fn layer() -> impl TypedValueParser<Value = &'static str> {
    PossibleValuesParser::new(layers::all().map(|spec| spec.name)).try_map(|name| layers::known(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_name_the_remedy() {
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        for wrong in ["", "5", "-3s", "0s", "soon"] {
            assert!(duration(wrong).unwrap_err().contains("write it like 2m"), "{wrong}");
        }
    }

    #[test]
    fn durations_that_can_only_be_slips_are_refused_by_their_flag() {
        let check = |key: &str, text: &str| {
            let values: Values = serde_saphyr::from_str(&format!("{key}: {text}\n")).unwrap();
            values.check().map_err(|failure| format!("{}; {}", failure.message, failure.hint.unwrap()))
        };
        assert_eq!(
            check("resync", "1ms").unwrap_err(),
            "--resync is 1ms, below 1s: every object would be looked at all the time; \
             set --resync to 1s or more; the default is 2m"
        );
        assert_eq!(check("resync", "1s"), Ok(()));
        for key in [
            "leaseDuration",
            "requestTimeout",
            "gracePeriod",
            "pendingLimit",
            "failureDelay",
            "deletionMargin",
            "helmGracePeriod",
            "helmLockPatience",
            "chartTimeToLive",
        ] {
            let refused = check(key, "1ms").unwrap_err();
            assert!(refused.starts_with("--"), "{refused}");
            assert_eq!(check(key, "1m"), Ok(()));
        }
        assert!(Values::default().check().is_ok());
    }

    #[test]
    fn addresses_follow_the_habit_of_existing_deployments() {
        assert_eq!(listen(":8080").unwrap().0.unwrap().port(), 8080);
        assert_eq!(listen("127.0.0.1:0").unwrap().0.unwrap().to_string(), "127.0.0.1:0");
        assert_eq!(listen("0"), Ok(Listen(None)));
        assert!(listen("8080").unwrap_err().contains("write :8080"));
    }

    #[test]
    fn an_unknown_key_is_refused_by_name() {
        let error = serde_saphyr::from_str::<Values>("leaseDuratoin: 6s\n").unwrap_err().to_string();
        assert!(error.contains("leaseDuratoin"), "{error}");
    }

    #[test]
    fn a_file_sets_the_process_and_every_layer() {
        let text = "layers: [workspaces]\nconcurrency: 3\nfailureDelay: 20s\nhelmMemory: 1073741824\nhelm: /bin/helm\n\
                    helmOtherNamespaces: true\nmetricsBindAddress: 0\n";
        let values: Values = serde_saphyr::from_str(text).unwrap();
        assert_eq!(values.layers, Some(vec!["workspaces"]));
        assert_eq!((values.concurrency, values.metrics_bind_address), (Some(3), Some(Listen(None))));
        assert_eq!(values.performers.failure_delay, Some(Duration::from_secs(20)));
        let helm = values.workspaces;
        assert_eq!((helm.helm_memory, helm.helm_other_namespaces), (Some(1 << 30), Some(true)));
        assert_eq!(helm.helm.unwrap(), Path::new("/bin/helm"));
        for (text, complaint) in [
            ("layers: [machine]\n", "\"machine\" is not a layer: write performers, workspaces, machines"),
            ("helmMemory: much\n", "\"much\" is not an amount of memory"),
            ("failureDelay: 5\n", "\"5\" is not a duration"),
        ] {
            let error = serde_saphyr::from_str::<Values>(text).unwrap_err().to_string();
            assert!(error.contains(complaint), "{error}");
        }
    }

    #[test]
    fn every_flag_has_a_key_of_its_name() {
        let flags = Values::augment_args(clap::Command::new("operator"));
        for flag in flags.get_arguments().filter_map(clap::Arg::get_long) {
            let mut words = flag.split('-');
            let first = words.next().unwrap_or_default().to_owned();
            let key = words.fold(first, |key, word| key + &word[..1].to_uppercase() + &word[1..]);
            let read = serde_saphyr::from_str::<Values>(&format!("{key}: null\n"));
            assert!(read.is_ok(), "{key}: {}", read.unwrap_err());
        }
    }

    #[test]
    fn layers_are_named_on_the_command_line_by_their_names() {
        let parse = |text: &str| {
            let matches =
                Values::augment_args(clap::Command::new("operator")).try_get_matches_from(["operator", text])?;
            <Values as clap::FromArgMatches>::from_arg_matches(&matches)
        };
        assert_eq!(parse("--layers=workspaces,performers").unwrap().layers, Some(vec!["workspaces", "performers"]));
        let refused = parse("--layers=machine").unwrap_err().to_string();
        assert!(refused.contains("performers, workspaces, machines"), "{refused}");
    }
}
