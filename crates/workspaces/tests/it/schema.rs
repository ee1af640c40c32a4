//! What the API server itself refuses, and what it can explain.

use anyhow::{Context, Result};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, PostParams},
};
use serde_json::{Value, json};

use crate::world::World;

/// Every field has a text for `kubectl explain`, down to the last.
fn check_described(path: &str, schema: &Value) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        // The server's own.
        if path.ends_with(".metadata") {
            continue;
        }
        let text = field["description"].as_str().unwrap_or_default();
        assert!(!text.trim().is_empty(), "{path} has no description");
        check_described(&path, field);
    }
    for inner in ["items", "additionalProperties"] {
        if schema[inner].is_object() {
            check_described(&format!("{path}[]"), &schema[inner]);
        }
    }
}

#[test]
fn w01_every_field_is_described() {
    for crd in api::workspace::crds() {
        let crd = json!(crd);
        let kind = crd["spec"]["names"]["kind"].as_str().unwrap_or_default();
        check_described(kind, &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]);
    }
}

/// Patterns that are left as such, because an API server would not take so many rules.
const UNTAUGHT: [&str; 3] = [
    "Workspace.spec.users[].codeServer.env[].name",
    "Workspace.spec.users[].codeServer.envFrom[].key",
    "Workspace.spec.users[].codeServer.envFrom[].name",
];

/// Where people are only shown a regular expression.
fn patterns(path: &str, schema: &Value, found: &mut Vec<String>) {
    if schema["pattern"].is_string() && schema["x-kubernetes-int-or-string"].is_null() {
        found.push(path.to_owned());
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        patterns(&format!("{path}.{name}"), field, found);
    }
    for inner in ["items", "additionalProperties"] {
        if schema[inner].is_object() {
            patterns(&format!("{path}[]"), &schema[inner], found);
        }
    }
}

#[test]
fn w01_forms_come_with_a_remedy() {
    let mut found = Vec::new();
    for crd in api::workspace::crds() {
        let crd = json!(crd);
        let kind = crd["spec"]["names"]["kind"].as_str().unwrap_or_default();
        let spec = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        patterns(&format!("{kind}.spec"), spec, &mut found);
    }
    assert_eq!(found, UNTAUGHT);
}

#[tokio::test]
#[allow(clippy::too_many_lines, reason = "a table of bad specs")]
async fn w01_bad_input_is_refused_with_a_message_that_names_field_and_remedy() -> Result<()> {
    let world = World::shared().await;
    let space = world.space("schema").await?;
    let chart = json!({ "repo": "http://charts.example", "name": "four", "version": "1.0.0" });
    let release = |fields: Value| {
        let mut spec = json!({ "chart": chart });
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        spec
    };
    let with_chart = |name: &str, value: Value| {
        let mut chart = chart.clone();
        chart[name] = value;
        json!({ "chart": chart })
    };
    let workspace = |fields: Value| {
        let mut spec = json!({ "domain": "example.com" });
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        spec
    };
    let ana = json!({ "slug": "ana", "email": "ana@example.com" });
    let person = |fields: Value| {
        let mut spec = ana.clone();
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        spec
    };
    let long = "a".repeat(54);
    // Kind, name, spec, and what the message must hold.
    let cases: Vec<(&str, &str, Value, &[&str])> = vec![
        ("HelmRelease", "web", json!({}), &["spec.chart", "Required"]),
        ("HelmRelease", "web", with_chart("repo", json!("ftp://charts")), &["spec.chart.repo", "https://"]),
        (
            "HelmRelease",
            "web",
            with_chart("repo", json!("https://u:p@host/x")),
            &["spec.chart.repo", "chart.secretRef"],
        ),
        ("HelmRelease", "web", with_chart("name", json!("../x")), &["spec.chart.name", "a path belongs into repo"]),
        ("HelmRelease", "web", with_chart("digest", json!("abc")), &["spec.chart.digest", "64"]),
        ("HelmRelease", "web", release(json!({ "timeout": "soon" })), &["spec.timeout", "90s"]),
        ("HelmRelease", "web", release(json!({ "memory": "much" })), &["spec.memory", "512Mi"]),
        ("HelmRelease", "web", release(json!({ "maxHistory": 0 })), &["spec.maxHistory", "1"]),
        ("HelmRelease", "web", release(json!({ "driftDetection": "on" })), &["spec.driftDetection", "warn"]),
        ("HelmRelease", "web", release(json!({ "crds": "always" })), &["spec.crds", "createReplace"]),
        ("HelmRelease", "web", release(json!({ "dependsOn": ["web"] })), &["spec.dependsOn", "remove it"]),
        (
            "HelmRelease",
            "web",
            release(json!({ "install": { "remediation": "rollback" } })),
            &["spec.install.remediation", "uninstall"],
        ),
        (
            "HelmRelease",
            "web",
            release(json!({ "valuesFrom": [{ "kind": "Pod", "name": "a" }] })),
            &["spec.valuesFrom[0].kind", "ConfigMap"],
        ),
        ("HelmRelease", "web", release(json!({ "values": [1] })), &["spec.values"]),
        ("HelmRelease", "web", with_chart("version", json!("")), &["spec.chart.version", "^1.2"]),
        ("HelmRelease", "web", with_chart("version", json!("  ")), &["spec.chart.version", "^1.2"]),
        ("HelmRelease", "web", with_chart("version", json!("newest")), &["spec.chart.version", "^1.2"]),
        ("HelmRelease", "web", with_chart("version", json!("1.0\n2")), &["spec.chart.version", "^1.2"]),
        ("HelmRelease", "web", release(json!({ "dependsOn": ["A b"] })), &["spec.dependsOn[0]", "lower-case letters"]),
        ("HelmRelease", "web", release(json!({ "serviceAccountName": "" })), &["spec.serviceAccountName", "letters"]),
        (
            "HelmRelease",
            "web",
            release(json!({ "valuesFrom": [{ "kind": "Secret", "name": "a", "key": "a/b" }] })),
            &["spec.valuesFrom[0].key", "letters, digits"],
        ),
        (
            "HelmRelease",
            "web",
            release(json!({ "driftIgnore": [{ "paths": ["replicas"] }] })),
            &["spec.driftIgnore[0].paths[0]", "/spec/replicas"],
        ),
        ("HelmRelease", "web", release(json!({ "releaseName": "a".repeat(54) })), &["spec.releaseName", "53"]),
        ("HelmRelease", &long, release(json!({})), &["53 characters", "spec.releaseName"]),
        (
            "Workspace",
            "team",
            workspace(json!({ "users": [{ "slug": "Not A Slug", "email": "a@b.c" }] })),
            &["spec.users[0].slug", "use lower-case letters, digits and dashes"],
        ),
        (
            "Workspace",
            "team",
            workspace(json!({ "users": [{ "slug": "ana", "email": "ana" }] })),
            &["spec.users[0].email", "ana@example.com"],
        ),
        ("Workspace", "team", workspace(json!({ "domain": "-x" })), &["spec.domain", "joined by dots"]),
        (
            "Workspace",
            "team",
            workspace(json!({ "imagePullSecrets": [{ "name": "A" }] })),
            &["spec.imagePullSecrets[0].name", "lower-case"],
        ),
        (
            "Workspace",
            "team",
            workspace(json!({ "services": { "Web": { "chart": chart } } })),
            &["spec.services", "at most 53", "lower-case"],
        ),
        (
            "Workspace",
            "team",
            workspace(json!({ "services": { "web": with_chart("repo", json!("charts")) } })),
            &["spec.services[web].chart.repo", "oci://"],
        ),
        (
            "Workspace",
            "team",
            workspace(json!({ "services": { "web": { "chart": chart, "expose": { "service": "a_b", "port": 1 } } } })),
            &["spec.services[web].expose.service", "lower-case"],
        ),
        (
            "Workspace",
            "team",
            workspace(json!({ "configs": { "a": { "data": { "a b": "c" } } } })),
            &["spec.configs[a].data", "letters, digits"],
        ),
        (
            "Workspace",
            "team",
            workspace(json!({ "userDefaults": { "env": [{ "name": "A B" }] } })),
            &["spec.userDefaults.env[0].name", "variable's name"],
        ),
        (
            "Workspace",
            "team",
            workspace(json!({ "userDefaults": { "storage": { "size": "big" } } })),
            &["spec.userDefaults.storage.size", "10Gi"],
        ),
        ("Workspace", "team", workspace(json!({ "users": [ana, ana] })), &["spec.users", "Duplicate"]),
        (
            "Workspace",
            "team",
            workspace(
                json!({ "services": { "web": { "chart": chart, "expose": { "service": "web", "port": 80, "access": "authenticated" } } } }),
            ),
            &["authURL"],
        ),
        ("User", "ana", json!({}), &["spec", "Required"]),
        ("User", "ana", json!({ "slug": "Not A Slug", "email": "ana@example.com" }), &["spec.slug", "dashes"]),
        ("User", "ana", person(json!({ "host": "https://x" })), &["spec.host", "joined by dots"]),
        (
            "User",
            "ana",
            person(json!({ "codeServer": { "env": [{ "name": "1A" }] } })),
            &["spec.codeServer.env[0].name", "no digit"],
        ),
    ];
    for (kind, name, spec, texts) in cases {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("workspaces.strata.dev", "v1alpha1", kind));
        let api: Api<DynamicObject> = Api::namespaced_with(space.client.clone(), &space.namespace, &resource);
        let object = DynamicObject::new(name, &resource).data(json!({ "spec": spec }));
        let refused = api.create(&PostParams { dry_run: true, ..PostParams::default() }, &object).await;
        let said = refused.err().with_context(|| format!("{kind} {spec} was taken"))?.to_string();
        for text in texts {
            assert!(said.contains(text), "{kind} {spec}: {text} is not in {said}");
        }
    }
    // What would leave a release behind is refused as well.
    space.create("web", release(json!({ "suspend": true }))).await?;
    for fields in [json!({ "releaseName": "other" }), json!({ "targetNamespace": "other" })] {
        let said = space.change("web", fields).await.err().context("it was taken")?.to_string();
        assert!(said.contains("cannot change") && said.contains("create another HelmRelease"), "{said}");
    }
    space.delete("web").await
}
