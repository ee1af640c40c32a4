//! An admission webhook that the test itself serves.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use anyhow::{Context, Result};
use axum::{Router, body::Bytes, http::header::CONTENT_TYPE, routing::post};
use base64::{Engine, engine::general_purpose::STANDARD};
use k8s_openapi::api::{admissionregistration::v1::MutatingWebhookConfiguration, core::v1::Pod};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use serde_json::{Value, json};
use testbed::ControlPlane;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    harness::Space,
    observe::{create, eventually},
};

/// Connections of the API server that wait to be accepted: it keeps one and uses it again.
const BACKLOG: u32 = 16;

/// What a webhook says to a pod that is to be created.
pub enum Verdict {
    /// These JSON Patch operations.
    Patch(Value),
    Deny(&'static str),
}

/// A webhook for the creation of pods in one namespace; gone with the namespace's control plane, or by `remove`.
pub struct Webhook {
    name: String,
    configurations: Api<MutatingWebhookConfiguration>,
    acceptor: TlsAcceptor,
    /// Bound, so that the port is ours, but not listened on: connections are refused.
    socket: Option<TcpSocket>,
    server: Option<AbortOnDropHandle<()>>,
}

impl Webhook {
    /// Registers a webhook without which no pod is created in the namespace. Until it is served it cannot be reached.
    pub async fn register(control_plane: &ControlPlane, space: &Space) -> Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
        let url = format!("https://{}/", socket.local_addr()?);
        let identity = control_plane.authority().server("webhook", &["127.0.0.1"])?;
        let certificate = CertificateDer::from_pem_slice(identity.certificate.as_bytes())?;
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes())?;
        let config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key)?;
        let rule = json!({ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"] });
        let authority = STANDARD.encode(control_plane.authority().certificate());
        let webhook = json!({
            "name": "pods.webhook.test", "rules": [rule], "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "failurePolicy": "Fail", "timeoutSeconds": 30, "clientConfig": { "url": url, "caBundle": authority },
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": space.namespace } },
        });
        let configurations = Api::all(space.client.clone());
        let name = space.namespace.clone();
        create(&configurations, json!({ "metadata": { "name": name }, "webhooks": [webhook] })).await?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let webhook = Self { name, configurations, acceptor, socket: Some(socket), server: None };
        eventually("the webhook is asked", || async { Ok(probe(space).await.is_err()) }).await?;
        Ok(webhook)
    }

    /// A webhook that is reachable from the beginning.
    pub async fn start(
        control_plane: &ControlPlane,
        space: &Space,
        judge: impl Fn(&Pod) -> Verdict + Clone + Send + Sync + 'static,
    ) -> Result<Self> {
        let mut webhook = Self::register(control_plane, space).await?;
        webhook.serve(judge)?;
        Ok(webhook)
    }

    /// From now on it can be reached, for the first time.
    pub fn serve(&mut self, judge: impl Fn(&Pod) -> Verdict + Clone + Send + Sync + 'static) -> Result<()> {
        let listener = self.socket.take().context("a webhook is served once")?.listen(BACKLOG)?;
        let answer = move |review: Bytes| async move {
            ([(CONTENT_TYPE, "application/json")], answered(&review, &judge).to_string())
        };
        let listener = Tls { listener, acceptor: self.acceptor.clone() };
        let routes = Router::new().route("/", post(answer));
        let server = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, routes).await {
                tracing::warn!(%error, "the webhook ended");
            }
        });
        self.server = Some(AbortOnDropHandle::new(server));
        Ok(())
    }

    /// The API server asks it no more.
    pub async fn remove(self) -> Result<()> {
        self.configurations.delete(&self.name, &DeleteParams::default()).await?;
        Ok(())
    }
}

/// Whether a pod would be created in the namespace now.
pub async fn probe(space: &Space) -> Result<Pod> {
    let pod = json!({ "metadata": { "name": "probe" }, "spec": { "containers": [{ "name": "a", "image": "a" }] } });
    let params = PostParams { dry_run: true, ..PostParams::default() };
    Ok(space.pods.create(&params, &serde_json::from_value(pod)?).await?)
}

/// Whether the server refuses a pod in the namespace now; a failure of its own is no refusal.
pub async fn is_refused(space: &Space) -> bool {
    let error = probe(space).await.err().and_then(|error| error.downcast::<kube::Error>().ok());
    matches!(error, Some(kube::Error::Api(status)) if matches!(status.code, 403 | 422))
}

fn answered(review: &[u8], judge: impl Fn(&Pod) -> Verdict) -> Value {
    let review: Value = serde_json::from_slice(review).expect("the API server sends JSON");
    let request = &review["request"];
    let pod = serde_json::from_value(request["object"].clone()).expect("only pods are sent here");
    let mut response = match judge(&pod) {
        Verdict::Patch(patch) => {
            json!({ "allowed": true, "patchType": "JSONPatch", "patch": STANDARD.encode(patch.to_string()) })
        }
        Verdict::Deny(message) => json!({ "allowed": false, "status": { "code": 403, "message": message } }),
    };
    response["uid"] = request["uid"].clone();
    json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response })
}

struct Tls {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl axum::serve::Listener for Tls {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = axum::serve::Listener::accept(&mut self.listener).await;
            // A client that breaks off in its greeting is no reason to end.
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}
