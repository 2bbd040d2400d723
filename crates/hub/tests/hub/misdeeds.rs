//! Servers that fail, lie or attack.

use super::*;
use support::{COMMIT, HubFile, Misdeed, large, noise, sha256, small};

const FILE: &str = "m-Q4_0.gguf";

fn one(len: usize) -> (Hub, CacheFixture, Vec<u8>) {
    let bytes = noise(len, 5);
    let hub = Hub::new(vec![large(FILE, bytes.clone())]);
    let place = CacheFixture::new(&hub);
    (hub, place, bytes)
}

/// Pulls in spite of misdeeds; how often the bytes were asked for, and how many notes the user got.
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
fn what_breaks_is_tried_again() {
    assert_eq!(survives([Misdeed::Truncate(250_000), Misdeed::Truncate(0), Misdeed::Truncate(1)]), (4, 3));
    assert_eq!(survives([Misdeed::Status(500, vec![]), Misdeed::Status(503, vec![])]), (3, 2));
    assert_eq!(survives([Misdeed::Status(429, vec![("retry-after", "0".into())])]), (2, 1));
    // an address whose signature has expired
    assert_eq!(survives([Misdeed::Status(403, vec![])]), (2, 1));
    // half of the file, and then the whole: once for another ETag, once without ranges at all
    assert_eq!(survives([Misdeed::Truncate(300_000), Misdeed::IgnoreRange]), (3, 1));
    assert_eq!(survives([Misdeed::Truncate(300_000), Misdeed::IgnoreRange, Misdeed::IgnoreRange]), (3, 1));
    assert_eq!(survives([Misdeed::Truncate(300_000), Misdeed::WrongRange]), (3, 2));
    // the number of attempts is unlimited while each brings new bytes
    assert_eq!(survives((0..12).map(|_| Misdeed::Truncate(20_000))), (13, 12));
}

#[test]
fn revisions_and_listings_are_tried_again_too() {
    let (hub, place, _) = one(1000);
    for what in ["revision", "tree", "resolve"] {
        hub.misbehave(what, [Misdeed::Status(502, vec![]), Misdeed::Status(500, vec![])]);
    }
    place.pull("hf:o/n").unwrap();
}

#[test]
fn a_server_that_never_recovers_ends_the_attempts() {
    let (hub, mut place, _) = one(1000);
    place.settings.attempts = 3;
    hub.misbehave(FILE, (0..9).map(|_| Misdeed::Status(500, vec![("x-error-message", "Boom".into())])));
    let error = place.fails("hf:o/n").to_string();
    assert!(error.contains("500: Boom") && error.contains("HTTPS_PROXY"), "{error}");
    assert_eq!(hub.downloads(FILE).len(), 3);
}

#[test]
fn a_silent_server_is_given_up() {
    let (hub, mut place, bytes) = one(600_000);
    place.settings.idle = Duration::from_millis(300);
    hub.misbehave("tree", [Misdeed::Stall(0)]);
    hub.misbehave(FILE, [Misdeed::Stall(200_000)]);
    assert_eq!(std::fs::read(place.pull("hf:o/n").unwrap().model.path).unwrap(), bytes);
    assert_eq!(hub.downloads(FILE)[1].headers["range"], "bytes=200000-");
}

#[test]
fn a_slow_server_is_not() {
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
    // small files have git's checksum
    let hub = Hub::new(vec![small("config.json", "{\"a\": 1}"), large("model.safetensors", "x")]);
    let place = CacheFixture::new(&hub);
    hub.misbehave("config.json", [Misdeed::WrongBytes]);
    assert!(matches!(place.pull("hf:o/n").unwrap_err(), HubError::Checksum { .. }));
    assert!(!place.repo().join(COMMIT).join("config.json").exists());
}

#[test]
fn a_part_that_was_wrong_before_is_downloaded_anew() {
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
fn a_model_larger_than_the_disk_is_refused_before_anything_comes() {
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
fn names_that_lead_out_of_the_folder_are_refused() {
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
    // an index may name what it likes: only files of the listing come
    let index = r#"{"weight_map": {"a": "../../../x.safetensors"}}"#;
    let hub = Hub::new(vec![small("config.json", "{}"), small("model.safetensors.index.json", index)]);
    let error = CacheFixture::new(&hub).pull("hf:o/n").unwrap_err();
    assert!(error.to_string().contains("../../../x.safetensors"), "{error}");
    // two names that are one file on some systems
    let hub =
        Hub::new(vec![large("m-F16-00001-of-00002.gguf", "a"), large("M-F16-00001-of-00002.gguf", "b")]);
    hub.add_entry("{\"type\": \"symlink\", \"path\": \"link-Q4_0.gguf\", \"size\": 5}");
    assert!(matches!(CacheFixture::new(&hub).fails("hf:o/n/link-Q4_0.gguf"), HubError::Choose { .. }));
}

#[test]
fn commits_that_are_none_are_refused() {
    for body in [r#"{"sha": "../../../x"}"#, r#"{"sha": 1}"#, "{}", "<html>", ""] {
        let (hub, place, _) = one(10);
        hub.misbehave("revision", [Misdeed::Body(body.into())]);
        let error = place.fails("hf:o/n");
        assert!(matches!(error, HubError::Response { .. }), "{body}: {error}");
    }
}

#[test]
fn listings_without_end_are_refused() {
    let (hub, place, _) = one(10);
    hub.misbehave("tree", [Misdeed::Endless]);
    let error = place.fails("hf:o/n").to_string();
    assert!(error.contains("more than 33554432 bytes"), "{error}");
    let (hub, place, _) = one(10);
    hub.misbehave("tree", [Misdeed::Body("{\"error\": 1}".into())]);
    assert!(place.fails("hf:o/n").to_string().contains("JSON"));
}

#[test]
fn redirects_in_circles_and_to_nowhere_are_refused() {
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
fn a_hub_that_is_not_there_is_named() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let mut place = CacheFixture::with(&url, &[]);
    place.settings.attempts = 2;
    let error = place.fails("hf:o/n");
    assert!(matches!(error, HubError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains(&url), "{error}");
}
