//! Encryption, from certificates and a key in PEM files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// The files of a server's identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The chain of certificates.
    pub certificates: PathBuf,
    pub key: PathBuf,
    /// Certificates of authorities; clients must show a certificate that one of them signed.
    pub client_authorities: Option<PathBuf>,
}

/// Reads the files.
pub fn acceptor(identity: &Identity) -> Result<TlsAcceptor, String> {
    let Identity { certificates, key, client_authorities } = identity;
    let problem = |path: &Path| {
        let path = path.display().to_string();
        move |error: String| format!("{path}: {error}")
    };
    let read = |path: &Path| -> Result<Vec<CertificateDer<'static>>, String> {
        let all: Vec<_> = CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect)
            .map_err(|error| problem(path)(error.to_string()))?;
        if all.is_empty() {
            return Err(problem(path)("there is no certificate in it; PEM is expected".into()));
        }
        Ok(all)
    };
    let chain = read(certificates)?;
    let key_der =
        PrivateKeyDer::from_pem_file(key).map_err(|error| problem(key)(error.to_string()))?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = match client_authorities {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for authority in read(path)? {
                roots.add(authority).map_err(|error| problem(path)(error.to_string()))?;
            }
            let clients =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            let clients = clients.map_err(|error| problem(path)(error.to_string()))?;
            builder.with_client_cert_verifier(clients)
        }
    };
    let mut config = builder
        .with_single_cert(chain, key_der)
        .map_err(|error| problem(key)(error.to_string()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
