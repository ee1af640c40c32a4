//! What Cluster API's core controllers are installed with, made from the files of their Go module as its own
//! kustomization would, with three differences: only the stored version of each kind is served, since the others need a
//! conversion webhook; webhooks are registered by URL, since a control plane on loopback has no Services; the base role
//! is bound directly as well, since only a controller-manager fills the aggregated one.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

/// Where the controllers would run in a cluster.
pub(super) const NAMESPACE: &str = "capi-system";
pub(super) const SERVICE_ACCOUNT: &str = "capi-manager";
/// Says which files a definition was made from.
pub(super) const DEFINITION_LABEL: &str = "testbed.strata/definition-of";

/// Why a file of the module is of no use.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read {path}; remove the folder to have it fetched again")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path} is not as Cluster API publishes it ({what}); remove its folder to have it fetched again")]
    Form { path: PathBuf, what: String },
}

/// The files of Cluster API's Go module.
#[derive(Clone)]
pub(super) struct Files {
    folder: PathBuf,
}

impl Files {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Value of [`DEFINITION_LABEL`]: changes with the version.
    pub(super) fn label(&self) -> String {
        self.folder.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// One file for each kind, in order.
    pub(super) fn definition_files(&self) -> Result<Vec<PathBuf>, Error> {
        let folder = self.folder.join("core/config/crd/bases");
        let list = || -> io::Result<Vec<_>> { fs::read_dir(&folder)?.map(|entry| Ok(entry?.path())).collect() };
        let mut files = list().map_err(|source| Error::Read { path: folder.clone(), source })?;
        files.sort();
        if files.is_empty() { Err(form(&folder, "it is empty")) } else { Ok(files) }
    }

    /// The definition in one file, with its stored version alone.
    pub(super) fn definition(&self, file: &Path) -> Result<Value, Error> {
        let [mut definition] = read(file)?;
        let versions = definition.pointer_mut("/spec/versions").and_then(Value::as_array_mut);
        let versions = versions.ok_or_else(|| form(file, "it has no versions"))?;
        versions.retain(|version| version["storage"] == true);
        definition["metadata"]["labels"][DEFINITION_LABEL] = self.label().into();
        Ok(definition)
    }

    /// Namespace, ServiceAccount and rights. Providers add theirs by a ClusterRole with the label
    /// `cluster.x-k8s.io/aggregate-to-manager: "true"`.
    pub(super) fn rights(&self) -> Result<Vec<Value>, Error> {
        let file = self.folder.join("core/config/rbac/role.yaml");
        let [mut base] = read(&file)?;
        let aggregate = json!({ "cluster.x-k8s.io/aggregate-to-manager": "true" });
        base["metadata"] = json!({ "name": "capi-manager-role", "labels": aggregate });
        let binding = |role: &str| {
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": { "name": role },
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
                "subjects": [{ "kind": "ServiceAccount", "name": SERVICE_ACCOUNT, "namespace": NAMESPACE }],
            })
        };
        Ok(vec![
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } }),
            json!({
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": { "name": SERVICE_ACCOUNT, "namespace": NAMESPACE },
            }),
            base,
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRole",
                "metadata": { "name": "capi-aggregated-manager-role" },
                "aggregationRule": { "clusterRoleSelectors": [{ "matchLabels": aggregate }] },
            }),
            binding("capi-manager-role"),
            binding("capi-aggregated-manager-role"),
        ])
    }

    /// Both webhook configurations; the API server calls `https://127.0.0.1:PORT/…` and trusts `authority` (PEM).
    pub(super) fn webhooks(&self, port: u16, authority: &str) -> Result<[Value; 2], Error> {
        let file = self.folder.join("core/config/webhook/manifests.yaml");
        let mut configurations: [Value; 2] = read(&file)?;
        for configuration in &mut configurations {
            let name = configuration["metadata"]["name"].as_str().ok_or_else(|| form(&file, "a name is missing"))?;
            configuration["metadata"]["name"] = format!("capi-{name}").into();
            let webhooks = configuration["webhooks"].as_array_mut();
            for webhook in webhooks.ok_or_else(|| form(&file, "it has no webhooks"))? {
                let path = webhook.pointer("/clientConfig/service/path").and_then(Value::as_str);
                let path = path.ok_or_else(|| form(&file, "a webhook has no path"))?;
                let url = format!("https://127.0.0.1:{port}{path}");
                webhook["clientConfig"] = json!({ "url": url, "caBundle": STANDARD.encode(authority) });
            }
        }
        Ok(configurations)
    }
}

/// The documents of a file, which must be so many.
fn read<const N: usize>(file: &Path) -> Result<[Value; N], Error> {
    let text = fs::read_to_string(file).map_err(|source| Error::Read { path: file.to_owned(), source })?;
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).map_err(|error| form(file, &error.to_string()))?;
    let found = documents.len();
    documents.try_into().map_err(|_| form(file, &format!("{found} documents instead of {N}")))
}

fn form(path: &Path, what: &str) -> Error {
    Error::Form { path: path.to_owned(), what: what.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(path: &str, text: &str) -> (tempfile::TempDir, Files, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
        let files = Files::new(folder.path().to_owned());
        (folder, files, file)
    }

    #[test]
    fn only_the_stored_version_of_a_kind_is_served() {
        let text = "---\nmetadata: {name: clusters}\nspec:\n  versions:\n  - {name: v1beta1, served: true, storage: \
                    false}\n  - {name: v1beta2, served: true, storage: true}\n";
        let (_folder, files, file) = files("core/config/crd/bases/clusters.yaml", text);
        assert_eq!(files.definition_files().unwrap(), std::slice::from_ref(&file));
        let definition = files.definition(&file).unwrap();
        let versions = json!([{ "name": "v1beta2", "served": true, "storage": true }]);
        assert_eq!(definition["spec"]["versions"], versions);
    }

    #[test]
    fn webhooks_are_called_by_url() {
        let one =
            "kind: K\nmetadata: {name: NAME}\nwebhooks:\n- name: one\n  clientConfig: {service: {path: /mutate}}\n";
        let text = format!("---\n{one}---\n{one}");
        let (_folder, files, _) = files("core/config/webhook/manifests.yaml", &text);
        let [configuration, _] = files.webhooks(1234, "pem").unwrap();
        let client = json!({ "url": "https://127.0.0.1:1234/mutate", "caBundle": "cGVt" });
        assert_eq!(configuration["webhooks"], json!([{ "name": "one", "clientConfig": client }]));
        assert_eq!(configuration["metadata"]["name"], "capi-NAME");
    }

    #[test]
    fn a_file_of_another_form_is_named_with_the_remedy() {
        let (_folder, files, file) = files("core/config/webhook/manifests.yaml", "kind: K\n");
        let error = files.webhooks(1, "pem").unwrap_err().to_string();
        assert!(error.contains(&file.display().to_string()) && error.contains("1 documents instead of 2"), "{error}");
        assert!(error.contains("remove its folder"), "{error}");
        let error = files.rights().unwrap_err().to_string();
        assert!(error.contains("role.yaml") && error.contains("remove the folder"), "{error}");
    }
}
