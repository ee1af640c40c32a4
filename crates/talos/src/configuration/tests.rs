use super::*;

fn pair(name: &str) -> Pair {
    Pair { certificate: format!("{name} certificate"), key: format!("{name} key") }
}

/// Not valid, but the same on every run.
fn secrets() -> Secrets {
    Secrets {
        cluster_id: "cluster-id".to_owned(),
        cluster_secret: "cluster-secret".to_owned(),
        bootstrap_token: "abcdef.0123456789abcdef".to_owned(),
        secretbox_key: "secretbox".to_owned(),
        trustd_token: "ghijkl.0123456789abcdef".to_owned(),
        etcd: pair("etcd"),
        kubernetes: pair("kubernetes"),
        aggregator: pair("aggregator"),
        service_account_key: "service account key".to_owned(),
        os: pair("os"),
    }
}

fn spec(role: Role) -> NodeSpec {
    NodeSpec {
        cluster: "prod".to_owned(),
        hostname: if role == Role::ControlPlane { "prod-cp-a1b2c" } else { "prod-w-d3e4f" }.to_owned(),
        role,
        server_id: 4711,
        talos_version: "v1.12.1".to_owned(),
        kubernetes_version: "1.35.0".to_owned(),
        schematic: None,
        endpoint: "10.0.0.254".parse().unwrap(),
        certificate_hosts: vec!["192.0.2.7".to_owned(), "10.0.0.254".to_owned()],
        node_cidr: "10.0.0.0/17".to_owned(),
        pod_cidr: "10.0.128.0/17".to_owned(),
        service_cidr: "10.96.0.0/12".to_owned(),
    }
}

#[test]
fn k48_control_plane() {
    insta::assert_snapshot!(spec(Role::ControlPlane).machine_configuration(&secrets()));
}

#[test]
fn k48_worker() {
    insta::assert_snapshot!(spec(Role::Worker).machine_configuration(&secrets()));
}

#[test]
fn a_worker_gets_no_key_of_an_authority() {
    let text = spec(Role::Worker).machine_configuration(&secrets());
    for name in ["os", "kubernetes", "etcd", "aggregator", "service account"] {
        assert!(!text.contains(&STANDARD.encode(format!("{name} key"))), "{name}");
    }
}

#[test]
fn a_schematic_selects_the_installer() {
    let spec = NodeSpec { schematic: Some("376567988ad".to_owned()), ..spec(Role::Worker) };
    assert_eq!(spec.installer(), "factory.talos.dev/installer/376567988ad:v1.12.1");
}
