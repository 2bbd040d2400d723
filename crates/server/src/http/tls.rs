//! TLS configuration from PEM files.

use latent_formats::InputError;
use std::path::{Path, PathBuf};

/// Maximum size in bytes of a certificate or key file.
#[cfg(feature = "tls")]
const MAX_BYTES: u64 = 1 << 20;

/// Errors of TLS configuration.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("this build has no TLS: build it with the feature `tls`, or use a reverse proxy in front of it")]
    Missing,
    #[error("{}: {problem}", path.display())]
    File { path: PathBuf, problem: String },
    #[error(transparent)]
    Input(#[from] InputError),
    #[error("the certificate cannot be used: {0}")]
    Certificate(String),
}

#[cfg(feature = "tls")]
pub(crate) type Acceptor = tokio_rustls::TlsAcceptor;

#[cfg(not(feature = "tls"))]
#[derive(Clone)]
pub(crate) enum Acceptor {}

/// Creates an acceptor from a certificate chain and its key.
#[cfg(feature = "tls")]
pub(crate) fn acceptor(certificate: &Path, key: &Path) -> Result<Acceptor, TlsError> {
    use latent_formats::input_file;
    use rustls_pki_types::pem::PemObject;
    use rustls_pki_types::{CertificateDer, PrivateKeyDer};
    use std::sync::Arc;
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::crypto::ring::default_provider;
    let wrong = |path: &Path, problem: String| TlsError::File { path: path.to_owned(), problem };
    let chain = CertificateDer::pem_slice_iter(&input_file::read(certificate, MAX_BYTES)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| wrong(certificate, error.to_string()))?;
    if chain.is_empty() {
        return Err(wrong(certificate, "it has no certificate in PEM format".into()));
    }
    let secret = PrivateKeyDer::from_pem_slice(&input_file::read(key, MAX_BYTES)?)
        .map_err(|error| wrong(key, error.to_string()))?;
    // The provider is passed explicitly: the process-wide default would panic if the program that
    // embeds this server links two providers.
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::Certificate(error.to_string()))?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(|error| TlsError::Certificate(error.to_string()))?;
    Ok(Arc::new(config).into())
}

#[cfg(not(feature = "tls"))]
pub(crate) fn acceptor(_certificate: &Path, _key: &Path) -> Result<Acceptor, TlsError> {
    Err(TlsError::Missing)
}
