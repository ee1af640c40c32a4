//! What the API server itself refuses, and what it can explain.

use anyhow::{Context, Result};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
    runtime::wait::{await_condition, conditions::is_crd_established},
};
use serde_json::{Value, json};
use testbed::{ControlPlane, Options};

use crate::{
    space::{PATIENCE, eventually},
    world::World,
};

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

/// A Workspace that reaches out.
fn to(cidr: &str) -> Value {
    json!({ "network": { "allowedEgress": [{ "cidr": cidr, "ports": [443] }] } })
}

/// As many of everything as the schema lets in: rules have a budget, and what they cost grows with the object.
fn largest(chart: &Value) -> Value {
    let service = |number: u32| {
        let expose = json!({ "service": "web", "port": 80, "hostPrefix": format!("{}-{number}", "p".repeat(50)) });
        let others: Vec<_> = (0..50).map(|other| format!("{}-{other}", "s".repeat(40))).collect();
        (format!("{}-{number}", "s".repeat(40)), json!({ "chart": chart, "expose": expose, "dependsOn": others }))
    };
    let user = |number: u32| {
        let exposure = |port: u32| json!({ "service": format!("app-{port}"), "port": port, "access": "authenticated" });
        json!({
            "slug": format!("{}-{number}", "u".repeat(30)), "email": "a@example.com", "permissions": ["code-server"],
            "codeServer": { "exposures": (1..=20).map(exposure).collect::<Vec<_>>() },
        })
    };
    let config = |number: u32| {
        let data: serde_json::Map<_, _> = (0..50).map(|key| (format!("key-{key}"), json!(""))).collect();
        (format!("config-{number}"), json!({ "data": data }))
    };
    json!({
        "domain": "example.com", "ingress": { "authURL": "https://auth.example" },
        "services": (0..100).map(service).collect::<serde_json::Map<_, _>>(),
        "users": (0..500).map(user).collect::<Vec<_>>(),
        "configs": (0..100).map(config).collect::<serde_json::Map<_, _>>(),
    })
}

/// Creates nothing. The largest is a megabyte with ten thousand exposures; on a busy machine the server may give up after
/// half a minute.
async fn trial(api: &Api<DynamicObject>, object: &DynamicObject) -> Result<()> {
    let parameters = PostParams { dry_run: true, ..PostParams::default() };
    let trying = async {
        loop {
            match api.create(&parameters, object).await {
                Err(kube::Error::Api(status)) if status.code == 504 => {}
                taken => return taken,
            }
        }
    };
    tokio::time::timeout(PATIENCE, trying).await??;
    Ok(())
}

#[tokio::test]
async fn w01_what_is_right_is_taken() -> Result<()> {
    let space = World::shared().await.space("taken").await?;
    let chart = json!({ "repo": "oci://registry.example/charts", "name": "four" });
    let versions = [
        "1.2.3",
        "v1.2.3",
        "1.2.3-rc.1+build",
        "1",
        "1.x",
        "*",
        "x",
        "^1.2",
        "~1.2",
        "~> 1",
        ">=1.0 <2",
        ">= 1, < 2",
        "!=1.5.0",
        "=1",
        "1 - 2",
        "<1 || >2",
        " 1.2.3 ",
    ];
    let mut cases: Vec<_> = versions
        .iter()
        .map(|version| {
            let mut chart = chart.clone();
            chart["version"] = json!(version);
            ("HelmRelease", json!({ "chart": chart }))
        })
        .collect();
    let cidrs =
        ["0.0.0.0/0", "10.20.0.0/16", "192.0.2.1/32", "::/0", "2001:db8::/32", "fe80::1/128", "1:2:3:4:5:6:7:8/64"];
    cases.extend(cidrs.iter().map(|cidr| ("Workspace", to(cidr))));
    let web = json!({ "chart": chart, "expose": { "service": "web", "port": 80, "access": "authenticated" } });
    for ingress in [
        json!({ "authURL": "https://auth.example" }),
        json!({ "class": "nginx", "authURL": "https://auth.example" }),
        json!({ "class": "inner", "controller": "nginx", "authURL": "https://auth.example" }),
    ] {
        cases.push(("Workspace", json!({ "domain": "a", "ingress": ingress, "services": { "web": web } })));
    }
    // What is not installed is in nobody's way.
    let mut absent = web.clone();
    absent["enabled"] = json!(false);
    absent["expose"] = json!({ "service": "web", "port": 80, "hostPrefix": "web" });
    let ana = json!({ "slug": "ana", "email": "ana@example.com" });
    let public = json!({ "chart": chart, "expose": { "service": "web", "port": 80 } });
    let services = json!({ "web": public, "absent": absent, "ana": public });
    cases.push(("Workspace", json!({ "domain": "a", "services": services, "users": [ana] })));
    let mut absent = web.clone();
    absent["enabled"] = json!(false);
    let exposures = json!([{ "service": "app", "port": 80, "access": "authenticated" }]);
    let disabled = json!({ "disabled": true, "exposures": exposures });
    let bob = json!({ "slug": "bob", "email": "bob@example.com", "codeServer": { "exposures": exposures } });
    let mut cyd = json!({ "slug": "cyd", "email": "cyd@example.com", "permissions": ["code-server"] });
    cyd["codeServer"] = disabled;
    cases.push(("Workspace", json!({ "services": { "web": absent }, "users": [bob, cyd] })));
    cases.extend([("User", bob), ("User", cyd)]);
    for timeout in ["1ms", "0.001s", "1h30m", "90s", "99999h", "0h0.5m"] {
        cases.push(("HelmRelease", json!({ "chart": chart, "timeout": timeout, "interval": "0s" })));
    }
    for config in [
        json!({ "data": {} }),
        json!({ "kind": "Secret", "data": { "a": "b" } }),
        json!({ "fromSecret": { "name": "a" } }),
        json!({ "kind": "Secret", "fromSecret": { "name": "a" } }),
    ] {
        cases.push(("Workspace", json!({ "configs": { "a": config } })));
    }
    cases.push(("Workspace", largest(&chart)));
    for (kind, spec) in cases {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("workspaces.strata.dev", "v1alpha1", kind));
        let api: Api<DynamicObject> = Api::namespaced_with(space.client.clone(), &space.namespace, &resource);
        let object = DynamicObject::new("one", &resource).data(json!({ "spec": spec }));
        let mut shown = spec.to_string();
        shown.truncate(300);
        let what = || format!("{kind} {shown}");
        trial(&api, &object).await.with_context(what)?;
    }
    Ok(())
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
    let with_code_server = |fields: Value| {
        let mut spec = person(fields);
        spec["permissions"] = json!(["code-server"]);
        spec
    };
    let authenticated = json!({ "service": "web", "port": 80, "access": "authenticated" });
    let with_ingress = |ingress: Value| {
        let web = json!({ "chart": chart, "expose": authenticated });
        workspace(json!({ "ingress": ingress, "services": { "web": web } }))
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
        ("HelmRelease", "web", release(json!({ "timeout": "0s" })), &["spec.timeout", "more than zero"]),
        (
            "HelmRelease",
            "web",
            release(json!({ "rollback": { "timeout": "0m0.0s" } })),
            &["spec.rollback.timeout", "more than zero"],
        ),
        (
            "HelmRelease",
            "web",
            release(json!({ "interval": "99999999999999999999999h" })),
            &["spec.interval", "5 digits"],
        ),
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
            &["spec.services", "lower-case", "53 characters"],
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
            workspace(json!({ "services": { "web": { "chart": chart, "timeout": "0s" } } })),
            &["spec.services[web].timeout", "more than zero"],
        ),
        (
            "Workspace",
            "team",
            json!({ "services": { "web": { "chart": chart, "expose": { "service": "web", "port": 80 } } } }),
            &["spec.domain is needed", "remove expose"],
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
            &["spec.ingress.authURL", "public"],
        ),
        (
            "Workspace",
            "team",
            with_ingress(json!({ "class": "traefik", "authURL": "https://auth.example" })),
            &["spec.ingress.controller: nginx", "public"],
        ),
        (
            "Workspace",
            "team",
            workspace(json!({
                "ingress": { "class": "traefik", "authURL": "https://auth.example" },
                "users": [with_code_server(json!({ "codeServer": { "exposures": [authenticated] } }))],
            })),
            &["spec.ingress.controller: nginx"],
        ),
        (
            "User",
            "ana",
            with_code_server(json!({ "codeServer": { "exposures": [authenticated] } })),
            &["spec.ingress.authURL", "public"],
        ),
        (
            "User",
            "ana",
            with_code_server(json!({
                "ingress": { "class": "traefik", "authURL": "https://auth.example" },
                "codeServer": { "exposures": [authenticated] },
            })),
            &["spec.ingress.controller: nginx"],
        ),
        (
            "Workspace",
            "team",
            workspace(json!({ "services": { "web": { "chart": chart, "dependsOn": ["db"] } } })),
            &["spec.services", "dependsOn", "add it, or remove the name"],
        ),
        (
            "Workspace",
            "team",
            workspace(json!({ "services": {
                "api": { "chart": chart, "expose": { "service": "web", "port": 80, "hostPrefix": "web" } },
                "web": { "chart": chart, "expose": { "service": "web", "port": 80 } },
            } })),
            &["spec.services", "same host", "hostPrefix"],
        ),
        (
            "Workspace",
            "team",
            workspace(json!({
                "services": { "ana": { "chart": chart, "expose": { "service": "web", "port": 80 } } },
                "users": [person(json!({ "permissions": ["code-server"] }))],
            })),
            &["spec.services", "host of a user", "another slug"],
        ),
        ("Workspace", "team", workspace(json!({ "configs": { "a": {} } })), &["spec.configs[a]", "fromSecret", "data"]),
        (
            "Workspace",
            "team",
            workspace(json!({ "configs": { "a": { "data": { "a": "b" }, "fromSecret": { "name": "c" } } } })),
            &["spec.configs[a]", "exactly one"],
        ),
        (
            "Workspace",
            "team",
            workspace(json!({ "configs": { "a": { "kind": "ConfigMap", "fromSecret": { "name": "c" } } } })),
            &["spec.configs[a]", "remove kind"],
        ),
        ("Workspace", "team", to("10.0.0.0"), &["spec.network.allowedEgress[0].cidr", "10.20.0.0/16"]),
        ("Workspace", "team", to("10.0.0.0/33"), &["spec.network.allowedEgress[0].cidr", "10.20.0.0/16"]),
        ("Workspace", "team", to("10.0.0.256/8"), &["spec.network.allowedEgress[0].cidr", "10.20.0.0/16"]),
        ("Workspace", "team", to("2001:db8::/129"), &["spec.network.allowedEgress[0].cidr", "2001:db8::/32"]),
        ("Workspace", "team", to("2001:db8:/32"), &["spec.network.allowedEgress[0].cidr", "2001:db8::/32"]),
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

/// The definition of a kind without any rule.
fn without_rules(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.remove("x-kubernetes-validations");
            fields.values_mut().for_each(without_rules);
        }
        Value::Array(items) => items.iter_mut().for_each(without_rules),
        _ => {}
    }
}

/// An object that was stored before there were these rules must still be reported on, and go.
#[tokio::test]
async fn w01_what_breaks_a_new_rule_is_still_reported_on_and_deleted() -> Result<()> {
    // Nothing runs here.
    let control_plane = ControlPlane::start(Options { fsync: false, ..Options::bare() }).await?;
    let client = control_plane.client().await?;
    let namespace = control_plane.namespace("stored").await?;
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let install = async |crd: Value| -> Result<()> {
        let name = crd["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        crds.patch(&name, &PatchParams::apply("test").force(), &Patch::Apply(crd)).await?;
        tokio::time::timeout(PATIENCE, await_condition(crds.clone(), &name, is_crd_established())).await??;
        Ok(())
    };
    for crd in api::workspace::crds() {
        let mut crd = json!(crd);
        without_rules(&mut crd);
        install(crd).await?;
    }
    let chart = json!({ "repo": "http://charts.example", "name": "four" });
    let exposure = json!({ "service": "web", "port": 80, "access": "authenticated" });
    let ingress = json!({ "class": "traefik" });
    let code_server = json!({ "exposures": [exposure] });
    let ana = json!({
        "slug": "ana", "email": "ana@example.com", "permissions": ["code-server"], "codeServer": code_server,
    });
    let web = json!({ "chart": chart, "expose": exposure, "timeout": "0s" });
    let mut user = ana.clone();
    user["ingress"] = ingress.clone();
    let cases = [
        ("Workspace", json!({ "ingress": ingress, "services": { "web": web }, "users": [ana] })),
        ("User", user),
        ("HelmRelease", json!({ "chart": chart, "timeout": "0s", "targetNamespace": "other" })),
    ];
    let api = |kind: &str| -> (ApiResource, Api<DynamicObject>) {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("workspaces.strata.dev", "v1alpha1", kind));
        let api = Api::namespaced_with(client.clone(), &namespace, &resource);
        (resource, api)
    };
    for (kind, spec) in &cases {
        let (resource, api) = api(kind);
        let mut object = DynamicObject::new("stored", &resource).data(json!({ "spec": spec }));
        object.metadata.finalizers = Some(vec!["workspaces.strata.dev/test".to_owned()]);
        api.create(&PostParams::default(), &object).await.with_context(|| kind.to_string())?;
    }
    for crd in api::workspace::crds() {
        install(json!(crd)).await?;
    }
    for (kind, spec) in &cases {
        let (resource, api) = api(kind);
        // The rules are at work once they refuse another of the kind.
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        let other = DynamicObject::new("other", &resource).data(json!({ "spec": spec }));
        eventually("the rules are at work", async || Ok(api.create(&dry_run, &other).await.is_err())).await?;
        let status = Patch::Merge(json!({ "status": { "observedGeneration": 1 } }));
        api.patch_status("stored", &PatchParams::default(), &status).await.with_context(|| format!("{kind} status"))?;
        api.delete("stored", &DeleteParams::default()).await?;
        let finalizers = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        api.patch("stored", &PatchParams::default(), &finalizers).await.with_context(|| format!("{kind} metadata"))?;
        assert!(api.get_opt("stored").await?.is_none(), "{kind} went");
    }
    Ok(())
}
