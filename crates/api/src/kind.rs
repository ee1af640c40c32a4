//! One object of a kind as it is stored.

/// Gives a kind its type and its identity. Not kube's derive: with that an object without a readable `spec` would not
/// decode, and it must, so that it can be reported.
macro_rules! kind {
    ($(#[$meta:meta])* $kind:ident, $plural:expr, $spec:ty, $status:ty) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
        pub struct $kind {
            #[serde(default)]
            pub metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
            #[serde(default)]
            pub spec: Option<$spec>,
            #[serde(default)]
            pub status: Option<$status>,
        }

        impl $kind {
            pub const KIND: &'static str = stringify!($kind);
            pub const PLURAL: &'static str = $plural;
        }

        impl serde::Serialize for $kind {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeStruct;
                let fields = 3 + usize::from(self.spec.is_some()) + usize::from(self.status.is_some());
                let mut object = serializer.serialize_struct(Self::KIND, fields)?;
                object.serialize_field("apiVersion", super::API_VERSION)?;
                object.serialize_field("kind", Self::KIND)?;
                object.serialize_field("metadata", &self.metadata)?;
                if let Some(spec) = &self.spec {
                    object.serialize_field("spec", spec)?;
                }
                if let Some(status) = &self.status {
                    object.serialize_field("status", status)?;
                }
                object.end()
            }
        }

        // kube implements its own `Resource` for everything that has these two.
        impl k8s_openapi::Resource for $kind {
            const API_VERSION: &'static str = super::API_VERSION;
            const GROUP: &'static str = super::GROUP;
            const KIND: &'static str = Self::KIND;
            const VERSION: &'static str = super::VERSION;
            const URL_PATH_SEGMENT: &'static str = Self::PLURAL;
            type Scope = k8s_openapi::NamespaceResourceScope;
        }

        impl k8s_openapi::Metadata for $kind {
            type Ty = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

            fn metadata(&self) -> &Self::Ty {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut Self::Ty {
                &mut self.metadata
            }
        }

        impl kube::core::object::HasStatus for $kind {
            type Status = $status;

            fn status(&self) -> Option<&$status> {
                self.status.as_ref()
            }

            fn status_mut(&mut self) -> &mut Option<$status> {
                &mut self.status
            }
        }
    };
}
pub(crate) use kind;
