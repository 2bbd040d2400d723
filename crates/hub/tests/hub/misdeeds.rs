//! Servers that fail, send wrong data, or attack.

use super::*;
use support::{COMMIT, HubFile, Misdeed, large, noise, sha256, small};

const FILE: &str = "m-Q4_0.gguf";

fn one(len: usize) -> (Hub, CacheFixture, Vec<u8>) {
    let bytes = noise(len, 5);
    let hub = Hub::new(vec![large(FILE, bytes.clone())]);
    let place = CacheFixture::new(&hub);
    (hub, place, bytes)
}

/// Pulls from a server with these faults. Returns the numbers of requests for the file and of notes
/// to the user.
fn survives(misdeeds: impl IntoIterator<Item = Misdeed>) -> (usize, usize) {
    let (hub, place, bytes) = one(600_000);
    hub.misbehave(FILE, misdeeds);
    let mut notes = 0;
    let pulled = place.pull_with("hf:o/n", &mut |event| {
        notes += usize::from(matches!(event, PullEvent::Note(_)));
        true
    });
    assert_eq!(std::fs::read(pulled.unwrap().model.path).unwrap(), bytes);
    (hub.downloads(FILE).len(), notes)
}

#[test]
fn failed_downloads_are_retried() {
    assert_eq!(survives([Misdeed::Truncate(250_000), Misdeed::Truncate(0), Misdeed::Truncate(1)]), (4, 3));
    assert_eq!(survives([Misdeed::Status(500, vec![]), Misdeed::Status(503, vec![])]), (3, 2));
    assert_eq!(survives([Misdeed::Status(429, vec![("retry-after", "0".into())])]), (2, 1));
    // The signature of an address has expired.
    assert_eq!(survives([Misdeed::Status(403, vec![])]), (2, 1));
    // Half of the file, then the whole file instead of the range, once or twice.
    assert_eq!(survives([Misdeed::Truncate(300_000), Misdeed::IgnoreRange]), (3, 1));
    assert_eq!(survives([Misdeed::Truncate(300_000), Misdeed::IgnoreRange, Misdeed::IgnoreRange]), (3, 1));
    assert_eq!(survives([Misdeed::Truncate(300_000), Misdeed::WrongRange]), (3, 2));
    // The number of attempts is unlimited as long as each makes progress.
    assert_eq!(survives((0..12).map(|_| Misdeed::Truncate(20_000))), (13, 12));
}

#[test]
fn revisions_and_listings_are_retried() {
    let (hub, place, _) = one(1000);
    for what in ["revision", "tree", "resolve"] {
        hub.misbehave(what, [Misdeed::Status(502, vec![]), Misdeed::Status(500, vec![])]);
    }
    place.pull("hf:o/n").unwrap();
}

#[test]
fn attempts_are_limited_without_progress() {
    let (hub, mut place, _) = one(1000);
    place.settings.attempts = 3;
    hub.misbehave(FILE, (0..9).map(|_| Misdeed::Status(500, vec![("x-error-message", "Boom".into())])));
    let error = place.fails("hf:o/n").to_string();
    assert!(error.contains("500: Boom") && error.contains("HTTPS_PROXY"), "{error}");
    assert_eq!(hub.downloads(FILE).len(), 3);
}

#[test]
fn a_silent_server_times_out() {
    let (hub, mut place, bytes) = one(600_000);
    place.settings.idle = Duration::from_millis(300);
    hub.misbehave("tree", [Misdeed::Stall(0)]);
    hub.misbehave(FILE, [Misdeed::Stall(200_000)]);
    assert_eq!(std::fs::read(place.pull("hf:o/n").unwrap().model.path).unwrap(), bytes);
    assert_eq!(hub.downloads(FILE)[1].headers["range"], "bytes=200000-");
}

#[test]
fn a_slow_server_does_not_time_out() {
    let (hub, mut place, _) = one(600_000);
    place.settings.idle = Duration::from_millis(400);
    hub.misbehave(FILE, [Misdeed::Slow(Duration::from_millis(100))]);
    place.pull("hf:o/n").unwrap();
    assert_eq!(hub.downloads(FILE).len(), 1);
}

#[test]
fn wrong_bytes_are_removed() {
    let (hub, place, bytes) = one(100_000);
    hub.misbehave(FILE, [Misdeed::WrongBytes]);
    let error = place.fails("hf:o/n");
    assert!(matches!(error, HubError::Checksum { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(&sha256(&bytes)) && text.contains(FILE), "{text}");
    assert!(!place.files().iter().any(|path| path.ends_with(".part")), "{:?}", place.files());
    place.pull("hf:o/n").unwrap();
    // Small files have git's checksum.
    let hub = Hub::new(vec![small("config.json", "{\"a\": 1}"), large("model.safetensors", "x")]);
    let place = CacheFixture::new(&hub);
    hub.misbehave("config.json", [Misdeed::WrongBytes]);
    assert!(matches!(place.pull("hf:o/n").unwrap_err(), HubError::Checksum { .. }));
    assert!(!place.repo().join(COMMIT).join("config.json").exists());
}

#[test]
fn a_part_with_wrong_bytes_is_downloaded_again() {
    let (hub, place, bytes) = one(100_000);
    let parts = place.repo().join("parts");
    std::fs::create_dir_all(&parts).unwrap();
    std::fs::write(parts.join(format!("{}.part", sha256(&bytes))), vec![7; 60_000]).unwrap();
    assert_eq!(std::fs::read(place.pull("hf:o/n").unwrap().model.path).unwrap(), bytes);
    assert_eq!(hub.downloads(FILE).len(), 2);
}

#[test]
fn wrong_sizes_are_refused() {
    for misdeed in [Misdeed::Endless, Misdeed::Length(99_999), Misdeed::Length(100_001)] {
        let (hub, place, _) = one(100_000);
        hub.misbehave(FILE, [misdeed.clone()]);
        let error = place.fails("hf:o/n");
        assert!(matches!(error, HubError::Size { expected: 100_000, .. }), "{misdeed:?}: {error}");
        assert!(!place.files().iter().any(|path| path.ends_with(".part")), "{:?}", place.files());
    }
    let (hub, place, _) = one(100_000);
    hub.misbehave(FILE, [Misdeed::Compressed]);
    assert!(place.fails("hf:o/n").to_string().contains("compressed"));
}

#[test]
fn a_model_larger_than_the_disk_is_rejected_before_the_download() {
    let hub = Hub::new(vec![HubFile { size: Some(1 << 60), ..large(FILE, noise(10, 1)) }]);
    let place = CacheFixture::new(&hub);
    let error = place.fails("hf:o/n");
    if cfg!(unix) {
        assert!(matches!(error, HubError::Space { .. }), "{error}");
        assert!(error.to_string().contains("LATENT_CACHE"), "{error}");
        assert_eq!(hub.downloads(FILE).len(), 0);
    }
}

#[test]
fn names_out_of_the_folder_are_rejected() {
    let sha = "a".repeat(64);
    for path in [
        "../../../evil-Q4_0.gguf",
        "/tmp/evil-Q4_0.gguf",
        "a\\\\..\\\\evil-Q4_0.gguf",
        "nul/evil-Q4_0.gguf",
        "a\\u0000-Q4_0.gguf",
        "C:evil-Q4_0.gguf",
    ] {
        let hub = Hub::new(vec![small("README.md", "words")]);
        hub.add_entry(&format!("{{\"type\": \"file\", \"path\": \"{path}\", \"size\": 5, \"lfs\": {{\"oid\": \"{sha}\", \"size\": 5}}}}"));
        let place = CacheFixture::new(&hub);
        let error = place.fails("hf:o/n");
        assert!(matches!(error, HubError::UnsafePath { .. }), "{path}: {error}");
        assert!(!error.to_string().contains('\0'));
        assert_eq!(hub.seen().iter().filter(|seen| seen.target.contains("evil")).count(), 0);
    }
    // Only files of the listing are downloaded, whatever the index names.
    let index = r#"{"weight_map": {"a": "../../../x.safetensors"}}"#;
    let hub = Hub::new(vec![small("config.json", "{}"), small("model.safetensors.index.json", index)]);
    let error = CacheFixture::new(&hub).pull("hf:o/n").unwrap_err();
    assert!(error.to_string().contains("../../../x.safetensors"), "{error}");
    // Two names that are the same file on some systems.
    let hub =
        Hub::new(vec![large("m-F16-00001-of-00002.gguf", "a"), large("M-F16-00001-of-00002.gguf", "b")]);
    hub.add_entry("{\"type\": \"symlink\", \"path\": \"link-Q4_0.gguf\", \"size\": 5}");
    assert!(matches!(CacheFixture::new(&hub).fails("hf:o/n/link-Q4_0.gguf"), HubError::Choose { .. }));
}

#[test]
fn invalid_commits_are_rejected() {
    for body in [r#"{"sha": "../../../x"}"#, r#"{"sha": 1}"#, "{}", "<html>", ""] {
        let (hub, place, _) = one(10);
        hub.misbehave("revision", [Misdeed::Body(body.into())]);
        let error = place.fails("hf:o/n");
        assert!(matches!(error, HubError::Response { .. }), "{body}: {error}");
    }
}

#[test]
fn endless_listings_are_rejected() {
    let (hub, place, _) = one(10);
    hub.misbehave("tree", [Misdeed::Endless]);
    let error = place.fails("hf:o/n").to_string();
    assert!(error.contains("more than 33554432 bytes"), "{error}");
    let (hub, place, _) = one(10);
    hub.misbehave("tree", [Misdeed::Body("{\"error\": 1}".into())]);
    assert!(place.fails("hf:o/n").to_string().contains("JSON"));
}

#[test]
fn invalid_and_circular_redirects_are_rejected() {
    for to in ["/o/n/resolve/x", "file:///etc/passwd", "ftp://127.0.0.1/x", "http://u:p@127.0.0.1/", ""] {
        let (hub, place, _) = one(10);
        let again = format!("/o/n/resolve/{COMMIT}/{FILE}");
        let to = if to.starts_with("/o") { again } else { to.into() };
        hub.misbehave("resolve", (0..20).map(|_| Misdeed::Redirect(to.clone())));
        let error = place.fails("hf:o/n");
        assert!(matches!(error, HubError::Response { .. }), "{to}: {error}");
    }
}

#[test]
fn an_unreachable_hub_is_named() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let mut place = CacheFixture::with(&url, &[]);
    place.settings.attempts = 2;
    let error = place.fails("hf:o/n");
    assert!(matches!(error, HubError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains(&url), "{error}");
}
