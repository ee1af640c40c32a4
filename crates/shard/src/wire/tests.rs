//! The bytes on the wire, pinned: the whole protocol as a table, and one message of every call with all fields set.

use std::{collections::BTreeMap, fmt::Write};

use prost::Message;
use prost_types::{
    DescriptorProto, FileDescriptorSet, Timestamp,
    field_descriptor_proto::{Label, Type},
};

use super::*;

const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/nstance.v1.bin"));

#[test]
fn a01_names_numbers_and_types_are_those_of_the_protocol() {
    let set = FileDescriptorSet::decode(DESCRIPTORS).unwrap();
    let mut table = String::new();
    for file in set.file.iter().filter(|file| file.package() == "nstance.v1") {
        for service in &file.service {
            for call in &service.method {
                let (from, to) = (call.input_type(), call.output_type());
                let stream = |on: bool| if on { "stream " } else { "" };
                let (up, down) = (stream(call.client_streaming()), stream(call.server_streaming()));
                writeln!(table, "{}/{}: {up}{from} -> {down}{to}", service.name(), call.name()).unwrap();
            }
        }
        file.message_type.iter().for_each(|message| describe(message, "", &mut table));
        for kind in &file.enum_type {
            let values: Vec<_> =
                kind.value.iter().map(|value| format!("{}={}", value.name(), value.number())).collect();
            writeln!(table, "enum {}: {}", kind.name(), values.join(" ")).unwrap();
        }
    }
    insta::assert_snapshot!(table);
}

fn describe(message: &DescriptorProto, outer: &str, table: &mut String) {
    let name = format!("{outer}{}", message.name());
    let fields: Vec<_> = message
        .field
        .iter()
        .map(|field| {
            let kind = match field.r#type() {
                Type::Message | Type::Enum => field.type_name().rsplit('.').next().unwrap_or_default().to_owned(),
                other => other.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
            };
            let repeated = if field.label() == Label::Repeated { "[]" } else { "" };
            let optional = if field.proto3_optional() { "?" } else { "" };
            format!("{}={}:{kind}{repeated}{optional}", field.number(), field.name())
        })
        .collect();
    writeln!(table, "{name}: {}", fields.join(" ")).unwrap();
    message.nested_type.iter().for_each(|nested| describe(nested, &format!("{name}."), table));
    for kind in &message.enum_type {
        let values: Vec<_> = kind.value.iter().map(|value| format!("{}={}", value.name(), value.number())).collect();
        writeln!(table, "enum {name}.{}: {}", kind.name(), values.join(" ")).unwrap();
    }
}

#[expect(clippy::unnecessary_wraps, reason = "message fields are options")]
fn at(seconds: i64) -> Option<Timestamp> {
    Some(Timestamp { seconds, nanos: 7 })
}

fn vars(value: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("k".to_owned(), value.to_owned())])
}

fn group() -> GroupStatus {
    GroupStatus {
        key: "web".into(),
        tenant: "default".into(),
        template: "tpl".into(),
        size: 3,
        instance_type: "m1".into(),
        subnet_pool: "pool".into(),
        vars: vars("v"),
        is_static: true,
        etag: "0a".into(),
        actual_size: 2,
        provider_ids: vec!["i-1".into(), "i-2".into()],
        instances: vec![group_status::Instance {
            instance_id: "web01".into(),
            provider_id: "i-1".into(),
            node_provider_id: "process:///a/web01".into(),
            status: "running".into(),
            created_at: at(1),
        }],
    }
}

/// One line per message: what it is, and its bytes.
#[derive(Default)]
struct Golden(String);

impl Golden {
    fn add<M: Message + Default + PartialEq + std::fmt::Debug>(&mut self, name: &str, message: &M) {
        let bytes = message.encode_to_vec();
        assert_eq!(&M::decode(&*bytes).unwrap(), message, "{name} survives");
        let hex = bytes.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
        writeln!(self.0, "{name} {hex}").unwrap();
    }
}

#[test]
fn a01_messages_of_the_operator_service() {
    let mut golden = Golden::default();
    golden.add("RenewCertificate>", &RenewCertificateRequest { public_key_pem: b"key".to_vec() });
    golden.add(
        "RenewCertificate<",
        &RenewCertificateResponse { client_certificate_pem: b"crt".to_vec(), expires_at: at(2) },
    );
    golden.add("GetConfigStatus<", &GetConfigStatusResponse { etag: "e".into(), last_modified: at(3), size: 9 });
    golden.add("RefreshConfig<", &RefreshConfigResponse { updated: true, prev_etag: "a".into(), etag: "b".into() });
    golden.add("ListGroups<", &ListGroupsResponse { groups: vec![group()], encoded: vec![] });
    let config = GroupConfig {
        template: "tpl".into(),
        size: -1,
        instance_type: "m1".into(),
        subnet_pool: "pool".into(),
        vars: vars("v"),
        args: vars("a"),
    };
    golden.add(
        "UpsertGroup>",
        &UpsertGroupRequest { key: "web".into(), config: Some(config), remove_first: vec!["web01".into()] },
    );
    golden.add("UpsertGroup<", &group());
    golden.add("DeleteGroup>", &DeleteGroupRequest { key: "web".into() });
    let config = InstanceConfig {
        group: "web".into(),
        template: "tpl".into(),
        instance_type: "m1".into(),
        subnet_pool: "pool".into(),
        vars: vars("v"),
    };
    golden.add("CreateInstance>", &CreateInstanceRequest { instance_id: "web01".into(), config: Some(config) });
    golden.add("CreateInstance<", &CreateInstanceResponse { instance_id: "web01".into(), status: "pending".into() });
    golden.add("DeleteInstance>", &DeleteInstanceRequest { instance_id: "web01".into() });
    golden.add("DeleteInstance<", &DeleteInstanceResponse { status: "deleting".into() });
    golden.add("GetInstanceStatus>", &GetInstanceStatusRequest { instance_id: "web01".into() });
    golden.add(
        "GetInstanceStatus<",
        &InstanceStatusResponse {
            instance_id: "web01".into(),
            tenant: "default".into(),
            status: "running".into(),
            created_at: at(4),
            last_seen: at(5),
            provider_instance_id: "i-1".into(),
            // As the original's, which does not know it.
            node_provider_id: String::new(),
        },
    );
    golden.add("AcknowledgeDrained>", &AcknowledgeDrainedRequest { instance_id: "web01".into() });
    tenants(&mut golden);
    streams(&mut golden);
    insta::assert_snapshot!(golden.0);
}

fn tenants(golden: &mut Golden) {
    golden.add("SleepTenant>", &SleepTenantRequest { tenant: "default".into(), if_not_busy: true, wake_at: at(6) });
    golden.add("SleepTenant<", &SleepTenantResponse { result: 3, status: 2, wake_at: at(7) });
    golden.add("WakeTenant>", &WakeTenantRequest { tenant: "default".into(), listener: Some("l".into()) });
    golden.add("WakeTenant<", &WakeTenantResponse { result: 2, status: 1, upstream: Some("u".into()) });
    golden.add("GetTenantStatus>", &GetTenantStatusRequest { tenant: "default".into() });
    let listeners = vec![ListenerActivity { listener: "l".into(), available: true, idle_since: at(8) }];
    golden.add("GetTenantStatus<", &GetTenantStatusResponse { status: 1, wake_at: at(9), listeners });
}

fn streams(golden: &mut Golden) {
    golden.add("WatchGroups<", &GroupEvent { r#type: 1, group: Some(group()) });
    let gone = GroupStatus { key: "web".into(), tenant: "default".into(), ..GroupStatus::default() };
    golden.add("WatchGroups< delete", &GroupEvent { r#type: 2, group: Some(gone) });
    golden.add(
        "WatchInstances<",
        &InstanceEvent {
            instance_id: "web01".into(),
            tenant: "default".into(),
            provider_instance_id: "i-1".into(),
            group: "web".into(),
            status: "pending_deletion".into(),
            reason: "unhealthy".into(),
            unhealthy_at: at(10),
            delete_at: at(11),
            time_left: None,
        },
    );
    golden.add(
        "WatchErrors<",
        &ErrorEvent { group: "web".into(), instance_id: "web01".into(), error: "no".into(), timestamp: at(12) },
    );
}

#[test]
fn a01_messages_of_the_registration_and_agent_services() {
    let mut golden = Golden::default();
    golden.add(
        "RegisterAgent>",
        &RegisterClientRequest {
            registration_nonce_jwt: "jwt".into(),
            public_key_pem: b"key".to_vec(),
            private_ipv4: "10.0.0.1".into(),
            private_ipv6: "::1".into(),
            hostname: "h".into(),
        },
    );
    golden
        .add("RegisterAgent<", &RegisterClientResponse { client_certificate_pem: b"crt".to_vec(), expires_at: at(13) });
    golden.add("ReceiveKeyRequests<", &KeyRequest { key_names: vec!["a".into(), "b".into()] });
    let keys = vec![public_keys_request::PublicKey { filename: "f".into(), public_key_pem: b"p".to_vec() }];
    golden.add("SubmitPublicKeys>", &PublicKeysRequest { instance_id: "web01".into(), keys });
    golden.add("SubmitHealthReport>", &report());
    golden.add(
        "ReceiveFiles<",
        &FileMessage { filename: "f".into(), content: b"c".to_vec(), last_modified: at(16), config_hash: "h".into() },
    );
    insta::assert_snapshot!(golden.0);
}

fn report() -> HealthReportRequest {
    let network_interface = NetworkInterface {
        interface_name: "eth0".into(),
        rx_bytes: 1,
        tx_bytes: 2,
        rx_packets: 3,
        tx_packets: 4,
        rx_drops: 5,
        tx_drops: 6,
    };
    let metrics = Metrics {
        cpu_usage: Some(0.5),
        cpu_core_usage: vec![0.25, 0.75],
        memory_usage: Some(0.0),
        network_interface: Some(network_interface),
        network_interface_error: Some("e".into()),
        ebpf_counters: BTreeMap::from([(1, 2)]),
        ebpf_error: Some("e".into()),
        conntrack_count: Some(8),
        conntrack_max: Some(9),
        conntrack_error: Some("e".into()),
    };
    let file = |status| FileStatus { status: Some(status) };
    HealthReportRequest {
        version: "v2".into(),
        instance_id: "web01".into(),
        timestamp: at(14),
        count: 4,
        uptime: "1m".into(),
        metrics: Some(metrics),
        files: BTreeMap::from([
            ("a".to_owned(), file(file_status::Status::LastModified(Timestamp { seconds: 15, nanos: 0 }))),
            ("b".to_owned(), file(file_status::Status::Error("e".into()))),
        ]),
        termination_notice: Some(TerminationNotice { action: "terminate".into(), deadline: at(15) }),
        config_hash: "h".into(),
    }
}
