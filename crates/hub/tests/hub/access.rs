//! Access: tokens, licences, missing revisions and repositories, rate limits.

use super::*;
use support::{COMMIT, Misdeed, large, noise};

fn hub() -> Hub {
    Hub::new(vec![large("m-Q4_0.gguf", noise(1000, 1))])
}

#[test]
fn the_token_is_sent_only_to_the_hub() {
    let hub = hub();
    hub.need_token("hf_secret", false);
    let place = CacheFixture::with(&hub.url, &[("HF_TOKEN", "hf_secret")]);
    place.pull("hf:o/n").unwrap();
    let seen = hub.seen();
    for request in &seen {
        assert_eq!(request.headers.contains_key("authorization"), request.host == "hub", "{request:?}");
    }
    assert!(seen.iter().any(|request| request.host == "storage"));
    // The same machine with another name is another host.
    let other = Hub::new(vec![]);
    hub.misbehave("resolve", [Misdeed::Redirect(other.url.replace("127.0.0.1", "localhost") + "/o/n/x")]);
    std::fs::remove_dir_all(place.repo()).unwrap();
    drop(place.pull("hf:o/n"));
    assert!(other.seen().iter().all(|request| !request.headers.contains_key("authorization")));
    assert_eq!(other.seen().len(), 1);
}

#[test]
fn no_token_is_sent_without_encryption() {
    // An address of this machine that is not recognized as a loopback address.
    let token = latent_hub::Token::new("HF_TOKEN", "hf_secret").unwrap();
    let hub = Hub::new(vec![]);
    let mut place = CacheFixture::new(&hub);
    place.settings.token = token;
    place.settings.attempts = 1;
    place.settings.endpoint = hub.url.replace("127.0.0.1", "0.0.0.0");
    let mut notes = Vec::new();
    let _ = place.pull_with("hf:o/n", &mut |event| {
        notes.extend(if let PullEvent::Note(text) = event { Some(text) } else { None });
        true
    });
    assert!(notes[0].contains("the token is not sent"), "{notes:?}");
    assert!(!hub.seen().is_empty());
    assert!(hub.seen().iter().all(|request| !request.headers.contains_key("authorization")));
}

#[test]
fn errors_of_access_say_what_to_do() {
    let hub = hub();
    hub.need_token("hf_right", false);
    let error = CacheFixture::new(&hub).fails("hf:o/n");
    assert!(matches!(error, HubError::Access { status: 401, token: false, .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("HF_TOKEN")
            && text.contains(&format!("{}/o/n", hub.url))
            && text.contains("does not exist"),
        "{text}"
    );
    let error = CacheFixture::with(&hub.url, &[("HF_TOKEN", "hf_wrong")]).fails("hf:o/n");
    assert!(matches!(error, HubError::Access { status: 403, token: true, .. }), "{error}");
    assert!(!error.to_string().contains("hf_wrong"), "{error}");
    hub.need_token("hf_right", true);
    let text = CacheFixture::new(&hub).fails("hf:o/n").to_string();
    assert!(text.contains("accept its licence") && text.contains("HF_TOKEN"), "{text}");
    let text = CacheFixture::with(&hub.url, &[("HF_TOKEN", "hf_wrong")]).fails("hf:o/n").to_string();
    assert!(text.contains("with the account of the token"), "{text}");
}

#[test]
fn missing_repositories_revisions_and_files_are_distinguished() {
    let hub = hub();
    let place = CacheFixture::new(&hub);
    assert!(matches!(place.fails("hf:o/none"), HubError::NoRepo { .. }));
    let error = place.fails("hf:o/n@v9");
    assert!(matches!(error, HubError::NoRevision { .. }), "{error}");
    assert!(error.to_string().contains("v9"), "{error}");
    let error = place.fails("hf:o/n/none.gguf");
    assert!(matches!(error, HubError::Choose { .. }), "{error}");
    assert!(error.to_string().contains("no file none.gguf"), "{error}");
    let error = place.fails("hf:o/n:Q8_0").to_string();
    assert!(error.contains("latent pull hf:o/n:Q4_0  # 1.00 kB"), "{error}");
    for reference in ["hf:o/n@v1", "hf:o/n@refs/pr/1:Q4_0", &format!("hf:o/n@{COMMIT}")] {
        place.pull(reference).unwrap();
        assert!(place.find(reference).is_some(), "{reference}");
    }
}

#[test]
fn a_long_retry_after_ends_the_pull() {
    let hub = hub();
    let place = CacheFixture::new(&hub);
    hub.misbehave("tree", [Misdeed::Status(429, vec![("retry-after", "3600".into())])]);
    let error = place.fails("hf:o/n");
    assert!(
        matches!(&error, HubError::RateLimited { wait: Some(wait), .. } if wait.as_secs() == 3600),
        "{error}"
    );
    assert!(error.to_string().contains("3600 seconds") && error.to_string().contains("HF_TOKEN"), "{error}");
}

#[test]
fn offline_sends_no_request() {
    let hub = hub();
    let mut place = CacheFixture::new(&hub);
    place.pull("hf:o/n").unwrap();
    let before = hub.seen().len();
    place.settings.offline = true;
    let error = place.pull("hf:o/n:Q8_0").unwrap_err();
    assert!(matches!(error, HubError::Offline { .. }), "{error}");
    assert!(error.to_string().contains("HF_HUB_OFFLINE"), "{error}");
    assert!(place.find("hf:o/n").is_some());
    assert_eq!(hub.seen().len(), before);
}
