use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;

fn now() -> Timestamp {
    "2026-11-15T12:00:00Z".parse().unwrap()
}

/// Made once: a key of 2048 bits takes its time.
fn secrets() -> Secrets {
    static SECRETS: LazyLock<Secrets> = LazyLock::new(|| Secrets::generate(now()).unwrap());
    SECRETS.clone()
}

#[test]
fn a_bundle_survives_its_yaml_form() {
    let secrets = secrets();
    assert!(secrets.os.key.starts_with("-----BEGIN ED25519 PRIVATE KEY-----"), "Talos reads its key by this label");
    assert_eq!(Secrets::from_yaml(&secrets.to_yaml()).unwrap(), secrets);
}

#[test]
fn debug_output_holds_no_secret() {
    let secrets = secrets();
    let text = format!("{secrets:?} {:?}", secrets.os);
    assert!(!text.contains(&secrets.trustd_token) && !text.contains("PRIVATE KEY"), "{text}");
}

/// Removes one key at `path` from a whole bundle.
fn without(path: &[&str]) -> String {
    let text = secrets().to_yaml();
    let mut value: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
    let (last, parents) = path.split_last().unwrap();
    let parent = parents.iter().fold(&mut value, |value, key| &mut value[*key]);
    parent.as_object_mut().unwrap().remove(*last).expect("the bundle has this part");
    serde_saphyr::to_string(&value).unwrap()
}

#[test]
fn a_missing_part_is_named() {
    let cases: [(&[&str], &str); 9] = [
        (&["cluster"], "cluster.id"),
        (&["cluster", "secret"], "cluster.secret"),
        (&["secrets", "bootstraptoken"], "secrets.bootstraptoken"),
        (&["secrets", "secretboxencryptionsecret"], "secrets.secretboxencryptionsecret"),
        (&["trustdinfo"], "trustdinfo.token"),
        (&["certs"], "certs"),
        (&["certs", "etcd", "key"], "certs.etcd"),
        (&["certs", "k8sserviceaccount"], "certs.k8sserviceaccount"),
        (&["certs", "os", "crt"], "certs.os"),
    ];
    for (path, expected) in cases {
        match Secrets::from_yaml(&without(path)) {
            Err(SecretsError::Missing { part }) => assert_eq!(part, expected, "without {path:?}"),
            other => panic!("without {path:?}: {other:?}"),
        }
    }
}

#[test]
fn a_part_of_another_cluster_is_refused() {
    let other = Secrets::generate(now()).unwrap();
    let mixed = |mix: fn(&mut Secrets, Secrets)| {
        let mut ours = secrets();
        mix(&mut ours, other.clone());
        ours.to_yaml()
    };
    let cases = [
        ("certs.os", mixed(|ours, other| ours.os.key = other.os.key)),
        ("certs.etcd", mixed(|ours, other| ours.etcd.certificate = other.etcd.certificate)),
        ("certs.k8s", mixed(|ours, other| ours.kubernetes.key = other.kubernetes.key)),
        ("certs.k8saggregator", mixed(|ours, other| ours.aggregator.certificate = other.aggregator.certificate)),
        // Of another part of the same file.
        ("certs.etcd", mixed(|ours, _| ours.etcd.key = ours.kubernetes.key.clone())),
    ];
    for (named, text) in cases {
        match Secrets::from_yaml(&text) {
            Err(error @ SecretsError::Foreign { part, source: CertificateError::KeyOfAnother }) => {
                assert_eq!(part, named);
                assert!(error.to_string().ends_with("restore the cluster's own file"), "{error}");
            }
            other => panic!("{named}: {other:?}"),
        }
    }
}

#[test]
fn a_leaf_certificate_is_no_authority() {
    let mut secrets = secrets();
    let subject = Subject { organization: Some("os:admin"), ..Subject::default() };
    secrets.os = secrets.os_authority().unwrap().sign(&subject, now(), jiff::SignedDuration::from_hours(1)).unwrap();
    let error = Secrets::from_yaml(&secrets.to_yaml()).unwrap_err();
    assert!(matches!(error, SecretsError::Foreign { part: "certs.os", source: CertificateError::NoAuthority }));
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in ".{0,200}") {
        let _ = Secrets::from_yaml(&text);
    }

    #[test]
    fn no_certificate_bytes_make_the_reader_panic(crt in "[A-Za-z0-9+/=]{0,80}", key in ".{0,40}") {
        let text = format!("certs:\n  os:\n    crt: '{crt}'\n    key: '{}'\n", key.replace('\'', ""));
        let _ = Secrets::from_yaml(&text);
    }
}
