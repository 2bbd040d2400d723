//! HTTPS, with the certificate in the folder `tls`.

use crate::client::{Reply, connect, receive, request};
use crate::support::{CHAT, TestServer, ask, config, loader, source, start, until};
use latent_server::{Extras, Limits, ServeError, Server, ServerConfig};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/server/tls").join(name)
}

fn secure(limits: Limits) -> TestServer {
    start(ServerConfig { tls: Some((file("certificate.pem"), file("key.pem"))), limits, ..config() })
}

/// A connection of a client that trusts these roots.
fn encrypted(server: &TestServer, roots: RootCertStore) -> StreamOwned<ClientConnection, TcpStream> {
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), connect(server.address))
}

fn trusted() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file("certificate.pem")).unwrap()).unwrap();
    roots
}

/// Sends a request over TLS.
fn over_tls(server: &TestServer, method: &str, path: &str, body: &Value) -> Reply {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let mut stream = encrypted(server, trusted());
    stream.write_all(&request(server.address, method, path, &[], body.as_bytes())).unwrap();
    receive(stream)
}

fn assert_serves(server: &TestServer) {
    assert_eq!(over_tls(server, "GET", "/health", &Value::Null).ok(), json!({"status": "ok"}));
}

#[test]
fn clients_that_trust_the_certificate_get_answers_and_streams() {
    let server = secure(Limits::default());
    assert!(server.server().url().starts_with("https://"));
    assert_serves(&server);
    let whole = over_tls(&server, "POST", CHAT, &ask(json!({}))).ok();
    let chunks = over_tls(&server, "POST", CHAT, &ask(json!({"stream": true}))).chunks();
    let text: String =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert!(!text.is_empty());
    assert_eq!(whole["choices"][0]["message"]["content"], text);
    // A client that trusts no certificate refuses this one.
    let mut stranger = encrypted(&server, RootCertStore::empty());
    let refused = stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap_err().to_string();
    assert!(refused.contains("certificate"), "{refused}");
}

#[test]
fn plain_http_clients_get_no_answer() {
    let server = secure(Limits::default());
    let mut plain = connect(server.address);
    plain.write_all(&request(server.address, "GET", "/health", &[], b"")).unwrap();
    let mut said = Vec::new();
    // The connection was closed, perhaps by a reset.
    let _ = plain.read_to_end(&mut said);
    let text = String::from_utf8_lossy(&said);
    assert!(!text.contains("HTTP/") && !text.contains("ok"), "{text:?}");
    // Only a TLS alert may be sent before the connection is closed.
    assert!(said.first().is_none_or(|first| *first == 21), "{said:?}");
    assert_serves(&server);
}

#[test]
fn unfinished_handshakes_are_evicted() {
    let most = 20;
    let server = secure(Limits { connections: most, header_seconds: 600, ..Limits::default() });
    // The beginning of a handshake record.
    let mut silent: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut stream = connect(server.address);
            stream.write_all(&[22, 3, 1]).unwrap();
            stream
        })
        .collect();
    assert_serves(&server);
    until("the first are closed", || {
        let closed = |stream: &mut TcpStream| {
            stream.set_nonblocking(true).unwrap();
            !matches!(stream.read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
        };
        silent[..100 - most].iter_mut().all(closed)
    });
    assert_serves(&server);
}

#[test]
fn a_flood_of_aborted_handshakes_locks_no_client_out_and_leaks_nothing() {
    let server = secure(Limits { connections: 100, ..Limits::default() });
    let mut hello = Vec::new();
    encrypted(&server, trusted()).conn.write_tls(&mut hello).unwrap();
    for round in 0..8 {
        // Garbage, a part of a ClientHello and a whole one. Each is closed with the server's answer
        // unread, and some stay open.
        let open: Vec<TcpStream> = (0..50)
            .map(|i| {
                let mut stream = connect(server.address);
                let said = match i % 3 {
                    0 => &b"\x16\x03\x01\xff\xff garbage"[..],
                    1 => &hello[..hello.len() / 2],
                    _ => &hello[..],
                };
                // The server may have closed the connection already.
                let _ = stream.write_all(said);
                stream
            })
            .skip(round * 5)
            .collect();
        assert_serves(&server);
        drop(open);
    }
    // All aborted connections are closed. The remaining one is that of this request.
    until("all are closed", || {
        let metrics = over_tls(&server, "GET", "/metrics", &Value::Null).text();
        metrics.lines().any(|line| line == "latent_http_connections 1")
    });
    assert_eq!(over_tls(&server, "POST", CHAT, &ask(json!({}))).status, 200);
}

#[test]
fn invalid_certificate_files_are_named_before_listening() {
    // The address is in use: a server that listened first would report that and not the file.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    for (certificate, key, words) in [
        ("missing.pem", "key.pem", "missing.pem"),
        ("certificate.pem", "missing.pem", "missing.pem"),
        ("certificate.pem", "certificate.pem", "certificate.pem"),
        ("key.pem", "key.pem", "key.pem: it has no certificate in PEM format"),
        ("certificate.pem", "other-key.pem", "the certificate cannot be used"),
    ] {
        let tls = Some((file(certificate), file(key)));
        let started = Server::start(
            ServerConfig { port, tls, ..config() },
            vec![source("demo", loader())],
            Extras::default(),
        );
        let Err(error @ ServeError::Tls(_)) = started else { panic!("{certificate} and {key} are taken") };
        assert!(error.to_string().contains(words), "{error}");
    }
}
