use std::time::Duration;

use super::*;
use crate::{
    identity::{Kind, key_pair},
    provider::InProcess,
};

fn order(userdata: &str) -> Order {
    let text = str::to_owned;
    Order {
        instance_id: text("web01"),
        cluster: text("dev"),
        shard: text("dev-1"),
        tenant: text("acme"),
        group: text("web"),
        kind: text("web"),
        arch: text("amd64"),
        instance_type: text("big"),
        userdata: text(userdata),
        vars: [("ZONE", "z'1"), ("TIER", "gold")].map(|(name, value)| (text(name), text(value))).into(),
        registration_timeout: Duration::from_mins(5),
        report_interval: Duration::from_millis(1500),
        ..Order::default()
    }
}

struct Scene {
    cloud: InProcess,
    nonces: Arc<Nonces>,
    clock: Clock,
    prepared: Prepared,
}

fn scene() -> Scene {
    let clock = Clock::stepped("2026-01-01T00:00:00Z".parse().unwrap());
    let cloud = InProcess::new(clock.clone());
    let nonces = Arc::new(Nonces::load(&key_pair().serialize_pem()).unwrap());
    let text = str::to_owned;
    let preparation = Preparation {
        nonces: Arc::clone(&nonces),
        ca_pem: text("-----BEGIN CERTIFICATE-----\nCA\n-----END CERTIFICATE-----\n"),
        endpoints: Arc::new(|| {
            let text = str::to_owned;
            Endpoints { registration: text("h:1"), agent: text("h:3,g:3"), operator: text("h:2") }
        }),
        provider: ProviderVariables {
            kind: text("process"),
            program: text("/opt/strata"),
            kubeconfig: text("/kubeconfig"),
            lock: text("/lock"),
            ..ProviderVariables::default()
        },
        clock: clock.clone(),
    };
    let prepared = Prepared::new(Arc::new(cloud.clone()), preparation);
    Scene { cloud, nonces, clock, prepared }
}

async fn check(userdata: &str, expected: Result<&str, &str>) {
    let scene = scene();
    let made = scene.prepared.create(&order(userdata)).await;
    let rendered = made.map(|_| scene.cloud.order("web01").unwrap().userdata);
    let expected = expected.map(str::to_owned).map_err(|text| format!("userdata: {text}"));
    assert_eq!(rendered.map_err(|error| error.to_string()), expected, "{userdata}");
}

#[tokio::test]
async fn a83_vars_and_facts_reach_userdata_under_the_names_of_the_original() {
    let all = "{{ .Cluster.ID }} {{ .Server.Shard }} {{ .Server.RegistrationAddr }} {{ .Server.AgentAddr }} \
               {{ .Server.OperatorAddr }} {{ .Provider.Kind }}{{ .Provider.Region }}{{ .Provider.Zone }} \
               {{ .Instance.ID }} {{ .Instance.Kind }} {{ .Instance.Arch }} {{ .Instance.Type }} {{ .Vars.TIER }}";
    check(all, Ok("dev dev-1 h:1 h:3,g:3 h:2 process web01 web amd64 big gold")).await;
    check("{{ if eq .Provider.Kind \"aws\" }}a{{ else }}b{{ end }}", Ok("b")).await;
    check("[{{ .Vars.UNSET }}{{ .Image.any }}]", Ok("[]")).await;
    check("{{ quote .Vars.ZONE }}", Ok(r"'z'\''1'")).await;
}

#[tokio::test]
async fn an_error_names_the_variable_or_the_place() {
    let known = "known are .Cluster, .Server, .Provider, .Instance, .Vars, .Image, .Nonce";
    check("x {{ .Server.Adress }}", Err(&format!(".Server.Adress is no variable; {known}"))).await;
    check("{{ .Servers.Shard }}", Err(&format!(".Servers.Shard is no variable; {known}"))).await;
    let error = check_template("line\n{{ if }}").unwrap_err().to_string();
    assert!(error.contains(":2:"), "{error}");
    assert!(check_template("{{ quote 1 2 }}").is_err());
    assert!(check_template("{{ range 200000 }}x{{ end }}").is_err());
    check_template("").unwrap();
    check_template("#!/bin/bash\nSSH=\"{{ .Vars.SSH }}\"\n{{ .Nonce }}").unwrap();
}

#[tokio::test]
async fn the_nonce_is_the_instances_own_and_lasts_as_long_as_it_may_take_to_register() {
    let scene = scene();
    let order = Order { on_demand: true, ..order("{{ .Nonce }}") };
    scene.prepared.create(&order).await.unwrap();
    let nonce = scene.cloud.order("web01").unwrap().userdata;
    let claims = scene.nonces.verify(&nonce, Kind::Agent, "dev", scene.clock.now()).unwrap();
    let said = (&*claims.sub, &*claims.tenant, &*claims.shard, &*claims.group, claims.on_demand);
    assert_eq!(said, ("web01", "acme", "dev-1", "web", true));
    assert_eq!(claims.exp, scene.clock.now().as_second() + 300);
}

#[tokio::test]
async fn without_a_template_our_agent_runs() {
    let scene = scene();
    scene.prepared.create(&order("")).await.unwrap();
    let userdata = scene.cloud.order("web01").unwrap().userdata;
    let shown = userdata.lines().map(|line| if line.starts_with("printf") { "printf NONCE" } else { line });
    insta::assert_snapshot!(shown.collect::<Vec<_>>().join("\n"), @r"
    #!/bin/sh
    set -eu
    umask 077
    mkdir -p identity
    cat >identity/ca.crt <<'CERTIFICATE'
    -----BEGIN CERTIFICATE-----
    CA
    -----END CERTIFICATE-----
    CERTIFICATE
    printf NONCE
    exec '/opt/strata' agent \
      --instance-id 'web01' \
      --registration-addr 'h:1' \
      --agent-addr 'h:3,g:3' \
      --identity-dir identity \
      --notice-file termination-notice \
      --end-with-lock '/lock' \
      --node \
      --kubeconfig '/kubeconfig' \
      --provider-id 'process:///dev-1/web01' \
      --shard 'dev-1' \
      --group 'web' \
      --label 'TIER=gold' \
      --label 'ZONE=z'\''1' \
      --report-interval '1s500ms'
    ");
}

#[tokio::test]
async fn a_machine_of_its_own_runs_our_agent_as_a_unit_and_asks_for_its_number() {
    let Scene { cloud, mut prepared, .. } = scene();
    prepared.preparation.provider.kind = "hcloud".to_owned();
    prepared.create(&order("")).await.unwrap();
    let userdata = cloud.order("web01").unwrap().userdata;
    for line in [
        "ExecStart=/bin/sh /var/lib/strata/agent.sh",
        "exec '/opt/strata' agent \\",
        "  --instance-id 'web01' \\",
        "  --provider-id \"hcloud://$server\" \\",
        r"  --label 'ZONE=z'\''1' \",
        "  --report-interval '1s500ms'",
    ] {
        assert!(userdata.lines().any(|one| one == line), "{line}\n{userdata}");
    }
    assert!(!userdata.contains("process:///"), "its number is not known before it is made: {userdata}");
}
