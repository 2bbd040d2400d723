//! Certificates, and one request over TLS.

use super::*;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const CERTIFICATE: &[u8] = include_bytes!("../tls/localhost.pem");
const KEY: &[u8] = include_bytes!("../tls/localhost.key.pem");

fn config() -> Arc<ServerConfig> {
    let certificate = CertificateDer::from_pem_slice(CERTIFICATE).unwrap();
    let key = PrivateKeyDer::from_pem_slice(KEY).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    Arc::new(config.with_no_client_auth().with_single_cert(vec![certificate], key).unwrap())
}

/// Starts a server that answers every request with 404. Returns its port.
fn server() -> u16 {
    let config = config();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let connection = ServerConnection::new(config.clone()).unwrap();
            let mut stream = StreamOwned::new(connection, stream.unwrap());
            let mut bytes = [0; 4096];
            if stream.read(&mut bytes).is_ok() {
                let _ = stream
                    .write_all(b"HTTP/1.1 404 No\r\nx-error-code: RepoNotFound\r\ncontent-length: 0\r\n\r\n");
            }
        }
    });
    port
}

#[test]
fn a_host_without_a_trusted_certificate_is_refused() {
    let place = CacheFixture::with(&format!("https://localhost:{}", server()), &[("HF_TOKEN", "hf_secret")]);
    let error = place.fails("hf:o/n");
    assert!(matches!(error, HubError::Tls { .. }), "{error}");
    assert!(error.to_string().contains("SSL_CERT_FILE"), "{error}");
}

#[test]
fn certificates_of_the_environment_are_trusted() {
    // Trusted certificates are read once per process.
    let authority = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls/ca.pem");
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["tls::asks_over_tls", "--exact", "--ignored"])
        .env("SSL_CERT_FILE", authority)
        .env("LATENT_TEST_HUB", format!("https://localhost:{}", server()))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout).into_owned();
    assert!(child.status.success() && text.contains("1 passed"), "{text}");
}

/// Starts a server that sends the headers of a response, then one TLS record byte by byte. Returns
/// its port and the number of requests.
fn dripping_server() -> (u16, Arc<AtomicUsize>) {
    let (config, asked) = (config(), Arc::new(AtomicUsize::new(0)));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, count) = (listener.local_addr().unwrap().port(), asked.clone());
    let answer = move |mut stream: TcpStream| -> std::io::Result<()> {
        let mut connection = ServerConnection::new(config.clone()).unwrap();
        let mut tls = rustls::Stream::new(&mut connection, &mut stream);
        let _ = tls.read(&mut [0; 4096])?;
        count.fetch_add(1, Ordering::SeqCst);
        tls.write_all(b"HTTP/1.1 200 Word\r\ncontent-length: 9000\r\n\r\n")?;
        connection.writer().write_all(&[b' '; 9000])?;
        let mut record = Vec::new();
        connection.write_tls(&mut record)?;
        for byte in record {
            std::thread::sleep(Duration::from_millis(20));
            stream.write_all(&[byte])?;
        }
        Ok(())
    };
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (answer, stream) = (answer.clone(), stream.unwrap());
            std::thread::spawn(move || answer(stream));
        }
    });
    (port, asked)
}

/// Within a TLS record, no read returns, so only another thread can enforce the deadline.
#[test]
fn a_dripping_tls_record_ends_the_pull() {
    let (port, asked) = dripping_server();
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["tls::pulls_from_a_dripping_server", "--exact", "--ignored"])
        .env("SSL_CERT_FILE", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls/ca.pem"))
        .env("LATENT_TEST_HUB", format!("https://localhost:{port}"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout).into_owned();
    assert!(child.status.success() && text.contains("1 passed"), "{text}");
    assert!((1..=2).contains(&asked.load(Ordering::SeqCst)), "{asked:?}");
}

#[test]
#[ignore = "run by another test, with a server and its certificate"]
fn pulls_from_a_dripping_server() {
    let Ok(endpoint) = std::env::var("LATENT_TEST_HUB") else { return };
    let mut place = CacheFixture::with(&endpoint, &[]);
    place.settings.idle = Duration::from_secs(1);
    place.settings.attempts = 2;
    let error = place.fails("hf:o/n").to_string();
    assert!(error.contains("less than 1000 bytes per second"), "{error}");
}

#[test]
#[ignore = "run by another test, with a server and its certificate"]
fn asks_over_tls() {
    let Ok(endpoint) = std::env::var("LATENT_TEST_HUB") else { return };
    let error = CacheFixture::with(&endpoint, &[]).fails("hf:o/n");
    assert!(matches!(error, HubError::NoRepo { .. }), "{error}");
}
