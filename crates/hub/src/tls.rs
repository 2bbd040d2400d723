//! TLS as every request of the program uses it: ring, and the certificates that the system trusts.

use crate::error::HubError;
use latent_files::input_file;
use std::path::Path;
use std::sync::Arc;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// The file of certificates that takes the place of the system's.
const CERTIFICATES: &str = "SSL_CERT_FILE";

/// TLS with the certificates that the system trusts; `SSL_CERT_FILE` and `SSL_CERT_DIR` name others. Reading them takes a few milliseconds.
/// Without any, TLS refuses every host and says why.
///
/// # Errors
/// A file in `SSL_CERT_FILE` that cannot be read, or that is not a plain file.
pub fn tls() -> Result<TlsConfig, HubError> {
    if let Some(path) = std::env::var_os(CERTIFICATES) {
        // what reads it would wait for a pipe
        let unusable = |error: latent_files::InputError| HubError::Setting {
            name: CERTIFICATES.into(),
            problem: error.to_string(),
        };
        input_file::open(Path::new(&path)).map_err(unusable)?;
    }
    let found = rustls_native_certs::load_native_certs();
    let certificates: Vec<_> = found.certs.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = RootCerts::Specific(Arc::new(certificates));
    Ok(TlsConfig::builder().unversioned_rustls_crypto_provider(provider).root_certs(roots).build())
}
