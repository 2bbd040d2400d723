//! Keys, origins, hosts and addresses.

use crate::client::Reply;
use crate::support::{CHAT, TestServer, ask, config, demo, loader, source, start};
use latent_server::{ApiKeys, Extras, ServeError, Server, ServerConfig};
use serde_json::json;

fn with(server: &TestServer, method: &str, path: &str, headers: &[(&str, &str)]) -> Reply {
    let body = if method == "POST" { ask(json!({})).to_string() } else { String::new() };
    server.ask(method, path, headers, &body)
}

/// A server with two keys.
fn with_keys() -> TestServer {
    start(ServerConfig { keys: ApiKeys::parse("first-secret-key\nsecond-secret-key").unwrap(), ..config() })
}

#[test]
fn requests_need_a_valid_key() {
    let server = with_keys();
    for headers in [
        &[][..],
        &[("Authorization", "Bearer wrong-secret-key")],
        &[("Authorization", "Basic first-secret-key")],
        &[("Authorization", "Bearer ")],
        &[("x-api-key", "first-secret-ke")],
        &[("Cookie", "latent_key=first-secret-key")],
    ] {
        let reply = with(&server, "POST", CHAT, headers);
        assert!(!reply.error(401).0.contains("secret"));
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
    }
    for path in [
        "/props",
        "/slots",
        "/metrics",
        "/v1/models",
        "/latent/stats",
        "/latent/graph",
        "/openapi.json",
        "/api/tags",
        "/unknown",
    ] {
        assert_eq!(with(&server, "GET", path, &[]).status, 401, "{path}");
    }
    for path in ["/", "/health", "/v1/health"] {
        assert_eq!(with(&server, "GET", path, &[]).status, 200, "{path}");
    }
    assert_eq!(with(&server, "POST", "/v1/messages", &[]).json()["error"]["type"], "authentication_error");
    for headers in [&[("Authorization", "bearer first-secret-key")], &[("x-api-key", "second-secret-key")]] {
        with(&server, "POST", CHAT, headers).ok();
    }
    assert!(
        !with(&server, "GET", "/metrics", &[("x-api-key", "first-secret-key")]).text().contains("secret")
    );
    // The cookie is valid for the drawing only. This server has none, hence 404 and not 401.
    let cookie = [("Cookie", "a=b; latent_key=first%2Dsecret-key")];
    assert_eq!(with(&server, "GET", "/latent/graph", &cookie).status, 404);
    assert_eq!(with(&server, "GET", "/props", &cookie).status, 401);
}

#[test]
fn keys_do_not_share_responses_or_prefixes() {
    let server = with_keys();
    let long =
        json!({"messages": [{"role": "user", "content": "A fox in the snow. ".repeat(20)}], "max_tokens": 1})
            .to_string();
    let cached = |key: &str| {
        let reply = server.ask("POST", CHAT, &[("x-api-key", key)], &long);
        reply.ok()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!(cached("first-secret-key"), 0);
    assert_eq!(cached("second-secret-key"), 0);
    assert!(cached("first-secret-key") >= 64);
    let body = json!({"input": "x", "max_output_tokens": 1}).to_string();
    let stored = server.ask("POST", "/v1/responses", &[("x-api-key", "first-secret-key")], &body).ok();
    let path = format!("/v1/responses/{}", stored["id"].as_str().unwrap());
    assert_eq!(with(&server, "GET", &path, &[("x-api-key", "second-secret-key")]).status, 404);
    assert_eq!(with(&server, "GET", &path, &[("x-api-key", "first-secret-key")]).status, 200);
}

#[test]
fn other_origins_are_refused_unless_allowed() {
    let server = demo();
    let own = format!("http://{}", server.address);
    let health = |headers: &[(&str, &str)]| with(&server, "GET", "/health", headers);
    assert_eq!(health(&[("Origin", &own)]).status, 200);
    let other = health(&[("Origin", "https://evil.example")]);
    assert!(other.status == 403 && other.header("access-control-allow-origin").is_none());
    assert_eq!(with(&server, "OPTIONS", CHAT, &[("Origin", "https://evil.example")]).status, 403);
    for host in ["LOCALHOST:8080", "LocalHost", "localhost.", "127.0.0.1:1", "[::1]:8080"] {
        assert_eq!(health(&[("Host", host)]).status, 200, "{host}");
    }
    // DNS rebinding: a foreign name that resolves to this address.
    assert_eq!(health(&[("Host", "evil.example:8080")]).status, 403);
    assert_eq!(health(&[("Host", "localhost:8080")]).status, 200);
    let open = start(ServerConfig { cors: vec!["https://chat.example".into()], ..config() });
    let named = with(
        &open,
        "OPTIONS",
        CHAT,
        &[("Origin", "https://chat.example"), ("Access-Control-Request-Method", "POST")],
    );
    assert_eq!(named.status, 200);
    assert_eq!(named.header("access-control-allow-origin"), Some("https://chat.example"));
    assert!(named.header("access-control-allow-headers").unwrap().contains("authorization"));
    assert_eq!(with(&open, "GET", "/health", &[("Origin", "https://evil.example")]).status, 403);
}

/// The answer to a CORS preflight from this origin for these headers.
fn preflight(server: &TestServer, origin: &str, headers: &str) -> Reply {
    let asked = [
        ("Origin", origin),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", headers),
        ("Access-Control-Request-Private-Network", "true"),
    ];
    with(server, "OPTIONS", CHAT, &asked)
}

#[test]
fn preflights_echo_the_requested_headers() {
    let server = start(ServerConfig { cors: vec!["https://chat.example, localhost".into()], ..config() });
    let sdk = "anthropic-dangerous-direct-browser-access,authorization,openai-beta,x-stainless-arch";
    for origin in ["https://chat.example", "http://localhost:5173", "http://127.0.0.1", "http://[::1]:3000"] {
        let reply = preflight(&server, origin, sdk);
        assert_eq!((reply.status, reply.body.len()), (200, 0));
        for (name, value) in [
            ("access-control-allow-origin", origin),
            ("access-control-allow-headers", sdk),
            ("access-control-allow-methods", "GET, POST, DELETE, OPTIONS"),
            ("access-control-allow-credentials", "true"),
            ("access-control-allow-private-network", "true"),
        ] {
            assert_eq!(reply.header(name), Some(value), "{origin}");
        }
        assert!(reply.header("vary").unwrap().contains("Access-Control-Request-Headers"));
    }
    for origin in ["https://evil.example", "http://localhost.evil.com", "http://notlocalhost", "null"] {
        let reply = preflight(&server, origin, sdk);
        assert!(reply.headers.iter().all(|(name, _)| !name.starts_with("access-control")), "{origin}");
    }
    // A value that is not a list of header names is not echoed.
    let odd = preflight(&server, "https://chat.example", "a b, {}");
    assert!(odd.header("access-control-allow-headers").unwrap().starts_with("authorization, "));
    // Pages may read the headers that clients use, such as the request's ID and `Retry-After`.
    let answer = with(&server, "GET", "/health", &[("Origin", "https://chat.example")]);
    assert!(answer.header("access-control-expose-headers").unwrap().contains("x-request-id"));
}

#[test]
fn wildcard_origins_have_no_credentials_by_default() {
    let any = || vec!["*".to_owned()];
    let server = start(ServerConfig { cors: any(), ..config() });
    let reply = preflight(&server, "https://a.example", "authorization");
    assert_eq!(reply.header("access-control-allow-origin"), Some("*"));
    assert_eq!(reply.header("access-control-allow-headers"), Some("authorization"));
    assert_eq!(reply.header("access-control-allow-credentials"), None);
    let server = start(ServerConfig { cors: any(), cors_credentials: true, ..config() });
    let reply = preflight(&server, "https://a.example", "authorization");
    assert_eq!(reply.header("access-control-allow-origin"), Some("https://a.example"));
    assert_eq!(reply.header("access-control-allow-credentials"), Some("true"));
    let wrong = ServerConfig { cors: vec!["chat.example".into()], ..config() };
    let refused = Server::start(wrong, vec![source("demo", loader())], Extras::default());
    let Err(ServeError::Cors(word)) = refused else { panic!("a word without a scheme matches no origin") };
    assert_eq!(word, "chat.example");
}

#[test]
fn other_addresses_need_keys() {
    let refused = Server::start(
        ServerConfig { host: "0.0.0.0".into(), ..config() },
        vec![source("demo", loader())],
        Extras::default(),
    );
    assert!(matches!(refused, Err(ServeError::Unauthenticated(_))));
    let allowed = ServerConfig { host: "0.0.0.0".into(), allow_unauthenticated: true, ..config() };
    let server = crate::support::wrap(
        Server::start(allowed, vec![source("demo", loader())], Extras::default()).unwrap(),
    );
    drop(server);
    let taken = demo();
    let again = Server::start(
        ServerConfig { port: taken.address.port(), ..config() },
        vec![source("demo", loader())],
        Extras::default(),
    );
    assert!(matches!(again, Err(ServeError::Listen { .. })));
}
