//! `latent top` against metrics of a small server.

use crate::support::latent;
use crate::support::server::{MockAnswer, MockServer};
use serde_json::Value;
use std::time::Duration;

fn metrics(readings: usize) -> String {
    let tokens = 1000 + 100 * readings;
    format!(
        "# TYPE latent_requests_running gauge\nlatent_requests_running 3\nlatent_requests_waiting 1\n\
         latent_generated_tokens_total {tokens}\nlatent_kv_blocks{{state=\"used\"}} 5\nlatent_kv_blocks{{state=\"cached\"}} 2\n\
         latent_kv_blocks{{state=\"free\"}} 9\nlatent_prefix_hits_total 1\nlatent_prefix_lookups_total 4\n\
         evil_\u{1b}[2J 7\nlatent_x{{a=\"\u{1b}[2J 1\n"
    )
}

fn server() -> MockServer {
    MockServer::new(|path, before| match path {
        "/metrics" => MockAnswer::Plain("200 OK", metrics(before)),
        "/latent/profile" => {
            let phases = r#"{"phases": [{"name": "experts\u001b[2J", "share": 0.75, "microseconds": 1500}]}"#;
            MockAnswer::Plain("200 OK", phases.into())
        }
        _ => MockAnswer::Plain("404 Not Found", String::new()),
    })
}

#[test]
fn without_a_terminal_one_snapshot_is_printed() {
    let server = server();
    let args = ["top", "--url", &server.url, "--interval", "0.2"];
    for args in [&args[..], &[&args[..], &["--once"]].concat()] {
        let output = latent(args).env("LATENT_API_KEY", "abc").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && !text.contains('\u{1b}'), "{text}");
        for said in
            ["3 running, 1 waiting", "5 used  ▒ 2 cached  · 9 free", "1 of 4 hit (25 %)", "75 %", "1500 µs"]
        {
            assert!(text.contains(said), "no {said:?} in {text}");
        }
    }
    assert!(server.all().iter().all(|asked| asked.headers.contains(&"authorization: bearer abc".to_owned())));
    let output = latent(&[&args[..], &["--json"]].concat()).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rate = report["per_second"]["generated_tokens"].as_f64().unwrap();
    // 100 tokens between readings at least 0.2 s apart
    assert!(rate > 1.0 && rate <= 500.0, "{report}");
    assert_eq!(report["cache_blocks"]["cached"], 2.0);
    assert_eq!(report["phases"][0]["name"], "experts\u{1b}[2J");
}

#[test]
fn a_server_without_metrics_is_an_error_with_advice() {
    let none = MockServer::new(|_, _| MockAnswer::Plain("404 Not Found", String::new()));
    let other = MockServer::new(|_, _| MockAnswer::Plain("200 OK", "go_threads 5\n".into()));
    let large = MockServer::new(|_, _| MockAnswer::Plain("200 OK", "#\n".repeat(5 << 20)));
    for (url, word) in [
        (none.url.as_str(), "has no /metrics"),
        (&other.url, "no metrics"),
        (&large.url, "more than 8388608 bytes"),
        ("http://127.0.0.1:9", "is the server running there?"),
    ] {
        let output = latent(&["top", "--once", "--url", url]).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && stderr.contains(word), "{stderr}");
    }
}

#[test]
fn an_endless_reading_times_out() {
    let (flood, drip) = (Duration::ZERO, Duration::from_millis(20));
    let body = "HTTP/1.1 200 OK\r\ncontent-length: 99999\r\n\r\n";
    let chunk = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5;";
    std::thread::scope(|scope| {
        for (start, more, pause, said) in [
            ("HTTP/1.1 200 OK\r\n", "x: y\r\n", flood, "header"),
            (
                "HTTP/1.1 200 OK\r\n\r\n",
                &"# aaaaaaaaaaaaaaaaaaaaaaaa\n".repeat(4000),
                flood,
                "more than 8388608 bytes",
            ),
            ("HTTP/1.1 200 OK\r\nx: ", "y", drip, "timeout"),
            (body, " ", drip, "timeout"),
            (chunk, "a", drip, "timeout"),
        ] {
            let more = more.to_owned();
            scope.spawn(move || {
                let server =
                    MockServer::new(move |_, _| MockAnswer::Endless(start.into(), more.clone(), pause));
                let output =
                    latent(&["top", "--once", "--timeout", "1", "--url", &server.url]).output().unwrap();
                let stderr = String::from_utf8(output.stderr).unwrap();
                assert!(output.status.code() == Some(1) && stderr.contains(said), "{start:?}: {stderr}");
            });
        }
    });
}
