use std::path::Path;

use super::*;

/// As the original's chart writes it.
const ORIGINAL: &str = r#"
cluster_id: prod
tenant: default
shards:
  eu-central-1a:
    registration_addr: "10.0.1.10:8992"
    operator_addr: "10.0.1.10:8993"
  eu-central-1b:
    registration_addr: "10.0.2.10:8992"
    operator_addr: "10.0.2.10:8993"
sleep:
  enabled: false
  remaining_nodes: 1
  inactivity: 30m
"#;

fn written(text: &str) -> (tempfile::TempDir, Given) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config.yaml");
    std::fs::write(&file, text).unwrap();
    (directory, Given { file: Some(file), ..Given::default() })
}

fn read(text: &str) -> Result<Settings, ConfigError> {
    let (_directory, given) = written(text);
    Settings::read(&given, "strata-system")
}

fn address(operator: &str, registration: &str) -> ShardAddress {
    ShardAddress { operator: operator.parse().unwrap(), registration: registration.parse().unwrap() }
}

#[test]
fn a99_the_originals_file_and_defaults_are_understood() {
    let settings = read(ORIGINAL).unwrap();
    assert_eq!((settings.cluster_id.as_str(), settings.tenant.as_str()), ("prod", "default"));
    assert_eq!(settings.cluster_name(), "prod--default");
    assert_eq!(settings.kubeconfig_secret(), "prod--default-kubeconfig");
    assert_eq!(settings.namespace, "strata-system");
    let shards = [
        ("eu-central-1a".to_owned(), address("10.0.1.10:8993", "10.0.1.10:8992")),
        ("eu-central-1b".to_owned(), address("10.0.2.10:8993", "10.0.2.10:8992")),
    ];
    assert_eq!(*settings.shards, shards.into());
    let names = Names {
        ca_config_map: "nstance-cluster-ca".to_owned(),
        cert_secret: "nstance-operator-cert".to_owned(),
        key_secret: "nstance-operator-key".to_owned(),
        nonce_secret: "nstance-operator-nonce".to_owned(),
    };
    assert_eq!(settings.names, names);
    assert_eq!(settings.workload, Workload::Own { service_account: "nstance-capi-workload".to_owned() });
}

#[test]
fn a99_the_originals_variables_win_over_the_defaults() {
    let (_directory, given) = written(ORIGINAL);
    let text = |text: &str| Some(text.to_owned());
    let given = Given {
        namespace: text("nstance"),
        ca_config_map: text("ca"),
        cert_secret: text("cert"),
        key_secret: text("key"),
        nonce_secret: text("nonce"),
        capi_endpoint: text("api.example"),
        capi_service_account: text("account"),
        cluster_id: text("other"),
        ..given
    };
    let settings = Settings::read(&given, "strata-system").unwrap();
    assert_eq!((settings.namespace.as_str(), settings.cluster_name()), ("nstance", "other--default".to_owned()));
    let Names { ca_config_map, cert_secret, key_secret, nonce_secret } = settings.names;
    assert_eq!([ca_config_map, cert_secret, key_secret, nonce_secret], ["ca", "cert", "key", "nonce"]);
    assert_eq!(settings.workload, Workload::External { host: "api.example".to_owned(), port: 443 });
}

#[test]
fn a_bare_address_is_the_operators_and_lists_name_standbys() {
    let text = "cluster_id: c\ntenant: t\nshards: {a: 'h:8993', b: 'h:1001,[::1]:2002', c: {registration_addr: 'h:1', operator_addr: 'i:2,j:3'}}";
    let shards = [
        ("a".to_owned(), address("h:8993", "h:8992")),
        ("b".to_owned(), address("h:1001,[::1]:2002", "h:1000,[::1]:2001")),
        ("c".to_owned(), address("i:2,j:3", "h:1")),
    ];
    assert_eq!(*read(text).unwrap().shards, shards.into());
}

#[test]
fn a13_what_is_wrong_is_named_with_its_key_and_remedy() {
    let long = "x".repeat(32);
    for (text, key, why) in [
        ("tenant: t\nshards: {a: 'h:2'}", "cluster_id", "missing"),
        ("cluster_id: c\nshards: {a: 'h:2'}", "tenant", "missing"),
        ("cluster_id: C\ntenant: t\nshards: {a: 'h:2'}", "cluster_id", "not a name"),
        ("cluster_id: a--b\ntenant: t\nshards: {a: 'h:2'}", "cluster_id", "not a name"),
        ("cluster_id: c\ntenant: -t\nshards: {a: 'h:2'}", "tenant", "not a name"),
        ("cluster_id: c\ntenant: t", "shards", "there is none"),
        ("cluster_id: c\ntenant: t\nshards: {}", "shards", "there is none"),
        ("cluster_id: c\ntenant: t\nshards: [a]", "shards", "not a map"),
        ("cluster_id: c\ntenant: t\nshards: {A: 'h:2'}", "shards.A", "not a name"),
        ("cluster_id: c\ntenant: t\nshards: {a: 'h'}", "shards.a", "port is missing"),
        ("cluster_id: c\ntenant: t\nshards: {a: 'h:1'}", "shards.a", "no port before it"),
        ("cluster_id: c\ntenant: t\nshards: {a: 7}", "shards.a", "no address"),
        ("cluster_id: c\ntenant: t\nshards: {a: 'h:2,i:3', b: 'i:3'}", "shards.b", "i:3 is that of the shard a too"),
        ("cluster_id: c\ntenant: t\nshards: {a: {operator_addr: 'h:2'}}", "shards.a.registration_addr", "missing"),
        (
            "cluster_id: c\ntenant: t\nshards: {a: {registration_addr: 'h:2', operator_addr: ''}}",
            "shards.a.operator_addr",
            "missing",
        ),
        ("cluster_id: c\ntenant: t\nshards: {a: {addr: 'h:2'}}", "shards.a.addr", "unknown"),
        ("cluster_id: c\ntennant: t\nshards: {a: 'h:2'}", "tennant", "unknown"),
        ("- a", "the configuration", "not a map"),
        ("shards: {a: [", "the configuration", ""),
        (
            &format!("cluster_id: {long}\ntenant: {long}\nshards: {{a: 'h:2'}}"),
            "cluster_id and tenant",
            "66 characters",
        ),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.key.ends_with(key), "{text}: {error}");
        assert!(error.why.contains(why) && !error.remedy.is_empty(), "{text}: {error}");
    }
    let just = format!("cluster_id: {long}\ntenant: {}\nshards: {{a: 'h:2'}}", &long[..29]);
    assert_eq!(read(&just).unwrap().cluster_name().len(), 63);
    let given = Given { file: Some("/no/such/file".into()), ..Given::default() };
    let missing = Settings::read(&given, "n").unwrap_err();
    assert!(missing.key == "/no/such/file" && missing.remedy.contains("--machines-config"), "{missing}");
}

#[test]
fn shards_of_a_config_map_are_entries_or_a_whole_file() {
    let map = |entries: &[(&str, &str)]| {
        entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let plain = parse_shards(&map(&[("a", "h:8993"), ("b", "i:8993")])).unwrap();
    assert_eq!(plain.keys().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(parse_shards(&map(&[("config.yaml", ORIGINAL)])).unwrap().len(), 2);
    assert_eq!(parse_shards(&map(&[])).unwrap_err(), file::no_shards());
    let given = Given {
        shards_config_map: Some("shards".to_owned()),
        cluster_id: Some("c".to_owned()),
        tenant: Some("t".to_owned()),
        ..Given::default()
    };
    let settings = Settings::read(&given, "n").unwrap();
    assert_eq!((settings.source, settings.shards.len()), (ShardSource::ConfigMap("shards".to_owned()), 0));
}

#[test]
fn an_external_endpoint_is_a_host_and_a_port() {
    for (text, host, port) in [
        ("https://api.example", "api.example", 443),
        ("http://api.example/", "api.example", 80),
        ("api.example:6443", "api.example", 6443),
        ("10.0.0.1", "10.0.0.1", 443),
        ("https://[fe80::1]:6443", "fe80::1", 6443),
        ("https://[fe80::1]", "fe80::1", 443),
    ] {
        assert_eq!(external(text), Ok(Workload::External { host: host.to_owned(), port }), "{text}");
    }
    for text in ["ftp://a", "https://", ":6443", "a:port", "a:0", "a:70000"] {
        let error = external(text).unwrap_err();
        assert!(error.key == "NSTANCE_CAPI_ENDPOINT" && error.remedy.contains("https://HOST:PORT"), "{error}");
    }
    assert!(!Path::new(DEFAULT_FILE).is_relative());
}
