//! Forms that strings must have, each with the message for a user who writes another one. A form stands in for `String`
//! in a schema: `#[schemars(with = "Option<Name>")]`.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use crate::schema::REMEDY;

macro_rules! forms {
    ($($(#[$meta:meta])* $form:ident: $max:literal, $pattern:expr, $remedy:literal;)*) => {$(
        $(#[$meta])*
        pub(super) struct $form;

        impl Form for $form {
            const PATTERN: &'static str = $pattern;
            const REMEDY: &'static str = $remedy;
        }

        impl JsonSchema for $form {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($form).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "maxLength": $max, "pattern": $pattern, REMEDY: $remedy })
            }
        }
    )*};
}

pub(super) trait Form: JsonSchema {
    const PATTERN: &'static str;
    const REMEDY: &'static str;
}

forms! {
    /// Of a namespace, a Service, one part of a host.
    Label: 63, "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        "use lower-case letters, digits and dashes, with a letter or digit at both ends";
    /// Of most objects.
    Name: 253, "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        "use lower-case letters, digits, dashes and dots, with a letter or digit at both ends";
    Host: 253, r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
        "use lower-case letters, digits and dashes in parts joined by dots, each with a letter or digit at both ends";
    /// In a Secret or ConfigMap.
    DataKey: 253, "^[-._a-zA-Z0-9]+$", "a key of a Secret or ConfigMap has only letters, digits, dashes, dots and underscores";
    /// As every supported version of Kubernetes takes it; newer ones take more.
    Variable: 253, "^[-._a-zA-Z][-._a-zA-Z0-9]*$",
        "a variable's name has only letters, digits, dashes, dots and underscores, and no digit at its beginning";
    Email: 254, r"^[^@\s]+@[^@\s]+$", "write an address like ana@example.com";
    Url: 1024, r"^https?://[^/\s]", "write a URL that begins with http:// or https://";
    Repo: 1024, r"^(https?|oci|file)://\S+$", "write a URL that begins with http://, https://, oci:// or file://";
    ChartName: 250, "^[a-zA-Z0-9]([-_.a-zA-Z0-9]*[a-zA-Z0-9])?$",
        "use letters, digits, dashes, dots and underscores, with a letter or digit at both ends; a path belongs into repo";
    /// Helm alone knows what is a range; this is what none can be.
    ChartVersion: 250, "^ *[0-9vVxX*^~=<>!|,-][ -~]*$", "write a version like 1.2.3 or a range like ^1.2 or >=1.0 <2";
    Digest: 71, "^(sha256:)?[a-f0-9]{64}$", "write the sha256 digest of the chart's archive, 64 lower-case hexadecimal digits";
    Memory: 20, r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|k|M|G)?$", "write an amount of memory like 512Mi or 1Gi";
    Size: 20, r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$", "write a size like 10Gi";
    /// Of numbers that a duration can hold, in no less than milliseconds: what is not written as zero is not zero.
    Duration: 32, r"^([0-9]{1,5}(ms|(\.[0-9]{1,3})?(s|m|h)))+$",
        "write a duration like 90s, 5m or 1h30m, each number with at most 5 digits";
    Pointer: 500, "^/.", "write a JSON pointer like /spec/replicas";
    /// `isCIDR` would say it shorter, but only from Kubernetes 1.31 on.
    Cidr: 64, r"^((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)/(3[0-2]|[12]?\d)$|^(([0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}|(([0-9a-fA-F]{1,4}:){0,6}[0-9a-fA-F]{1,4})?::(([0-9a-fA-F]{1,4}:){0,6}[0-9a-fA-F]{1,4})?)/(12[0-8]|1[01]\d|[1-9]?\d)$",
        "write an address range like 10.20.0.0/16 or 2001:db8::/32";
}

/// Kubernetes' own type, with a form for the names.
pub(super) fn variables(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = generator.subschema_for::<Vec<k8s_openapi::api::core::v1::EnvVar>>();
    if let Some(name) = schema.pointer_mut("/items/properties/name").and_then(Value::as_object_mut) {
        let form = json!(generator.subschema_for::<Variable>());
        name.extend(form.as_object().cloned().unwrap_or_default());
    }
    schema
}
