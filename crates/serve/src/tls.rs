//! Encryption, from a certificate and a key in PEM files.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Reads a chain of certificates and its key.
pub fn acceptor(certificates: &Path, key: &Path) -> Result<TlsAcceptor, String> {
    let problem = |path: &Path| {
        let path = path.display().to_string();
        move |error: String| format!("{path}: {error}")
    };
    let chain: Vec<_> = CertificateDer::pem_file_iter(certificates)
        .and_then(Iterator::collect)
        .map_err(|error| problem(certificates)(error.to_string()))?;
    if chain.is_empty() {
        return Err(problem(certificates)("there is no certificate in it; PEM is expected".into()));
    }
    let key_der =
        PrivateKeyDer::from_pem_file(key).map_err(|error| problem(key)(error.to_string()))?;
    let provider = Arc::new(ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_single_cert(chain, key_der)
        .map_err(|error| problem(key)(error.to_string()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
