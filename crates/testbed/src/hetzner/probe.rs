//! One health check of one target.

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use http::{Request, header::HOST};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use rustls::{
    ClientConfig, DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use tokio::{net::TcpStream, time::timeout};

use super::balancer_service::{HealthCheck, HttpCheck};

/// A check looks for a few words at most.
const LONGEST_ANSWER: usize = 64 << 10;

type Asker = Client<HttpsConnector<HttpConnector>, Empty<Bytes>>;

pub(super) struct Probe {
    port: u16,
    limit: Duration,
    http: Option<(HttpCheck, Asker)>,
}

impl Probe {
    pub fn new(check: &HealthCheck) -> Self {
        let is_http = check.protocol != "tcp";
        let http = is_http.then(|| {
            let mut plain = HttpConnector::new();
            plain.enforce_http(false);
            let connector = HttpsConnector::from((plain, tls()));
            // A pooled connection would show a target that no longer accepts as healthy.
            let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector);
            (check.http.clone().unwrap_or_default(), client)
        });
        Self { port: check.port, limit: Duration::from_secs(check.timeout.into()), http }
    }

    pub async fn run(&self, target: Ipv4Addr) -> bool {
        let result = match &self.http {
            None => timeout(self.limit, TcpStream::connect((target, self.port))).await.map(|made| made.is_ok()),
            Some((check, client)) => {
                timeout(self.limit, self.ask(target, check, client)).await.map(|fine| fine == Some(true))
            }
        };
        result.unwrap_or(false)
    }

    async fn ask(&self, target: Ipv4Addr, check: &HttpCheck, client: &Asker) -> Option<bool> {
        let scheme = if check.tls { "https" } else { "http" };
        let mut request = Request::get(format!("{scheme}://{target}:{}{}", self.port, check.path));
        if !check.domain.is_empty() {
            request = request.header(HOST, &check.domain);
        }
        let answer = client.request(request.body(Empty::new()).ok()?).await.ok()?;
        let status = answer.status();
        if !check.status_codes.iter().any(|pattern| fits(pattern, status.as_str())) {
            return Some(false);
        }
        if check.response.is_empty() {
            return Some(true);
        }
        let body = Limited::new(answer.into_body(), LONGEST_ANSWER).collect().await.ok()?.to_bytes();
        Some(String::from_utf8_lossy(&body).contains(&check.response))
    }
}

fn fits(pattern: &str, status: &str) -> bool {
    pattern.len() == status.len()
        && pattern.chars().zip(status.chars()).all(|(wanted, is)| wanted == '?' || wanted == is)
}

/// The vendor's checks accept any certificate.
fn tls() -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let schemes = provider.signature_verification_algorithms.supported_schemes();
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider knows the default versions");
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(schemes)));
    Arc::new(builder.with_no_client_auth())
}

#[derive(Debug)]
struct AnyCertificate(Vec<SignatureScheme>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::TcpListener,
    };

    use rustls::{ServerConfig, ServerConnection, StreamOwned};

    use super::*;

    #[test]
    fn question_marks_stand_for_digits() {
        assert!(fits("2??", "204") && fits("401", "401") && fits("???", "500"));
        assert!(!fits("2??", "404") && !fits("40", "401") && !fits("", "200"));
    }

    /// As an API server answers one without credentials, with a certificate of its own.
    fn refuse_one(listener: &TcpListener, config: Arc<ServerConfig>) {
        let (stream, _) = listener.accept().unwrap();
        let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
        let _ = stream.read(&mut [0; 1024]).unwrap();
        stream.write_all(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 6\r\n\r\ndenied").unwrap();
    }

    async fn check(status_codes: &[&str], response: &str) -> bool {
        let made = rcgen::generate_simple_self_signed(["node".to_owned()]).unwrap();
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key.into()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || refuse_one(&listener, Arc::new(config)));
        let http = HttpCheck {
            tls: true,
            path: "/version".to_owned(),
            status_codes: status_codes.iter().map(|&code| code.to_owned()).collect(),
            response: response.to_owned(),
            ..HttpCheck::default()
        };
        let check =
            HealthCheck { protocol: "http".to_owned(), port, interval: 3, timeout: 60, retries: 1, http: Some(http) };
        let result = Probe::new(&check).run(Ipv4Addr::LOCALHOST).await;
        server.join().unwrap();
        result
    }

    #[tokio::test]
    async fn a_target_behind_tls_is_asked_for_its_status_and_text() {
        assert!(check(&["200", "401"], "").await);
        assert!(check(&["401"], "denied").await);
        assert!(!check(&["2??"], "").await);
        assert!(!check(&["401"], "welcome").await);
    }
}
