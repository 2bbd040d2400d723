//! Servers that respond without progress. The tests count requests until the pull fails.

use super::*;
use support::{COMMIT, Misdeed, large, noise};

const FILE: &str = "m-Q4_0.gguf";
const SIZE: usize = 600_000;
const ATTEMPTS: u32 = 3;

/// Interval between two bytes of a slow server: 50 bytes per second.
const DRIP: Duration = Duration::from_millis(20);

fn place(hub: &Hub) -> CacheFixture {
    let mut place = CacheFixture::new(hub);
    place.settings.attempts = ATTEMPTS;
    place.settings.idle = Duration::from_millis(500);
    place
}

/// Pulls a file from a hub that always misbehaves in these ways. Returns the error, the number of
/// requests for the file, and the number of bytes kept.
fn given_up(habits: Vec<Misdeed>) -> (String, usize, u64) {
    let hub = Hub::new(vec![large(FILE, noise(SIZE, 5))]);
    let place = place(&hub);
    hub.always(FILE, habits);
    let error = place.fails("hf:o/n");
    assert!(matches!(error, HubError::Unreachable { .. }), "{error}");
    let kept = std::fs::metadata(place.repo().join("parts").join(format!("{}.part", sha256_of_file())));
    (error.to_string(), hub.downloads(FILE).len(), kept.map_or(0, |part| part.len()))
}

fn sha256_of_file() -> String {
    support::sha256(&noise(SIZE, 5))
}

#[test]
fn dropped_connections_without_progress_end_the_pull() {
    for (habits, requests, kept, word) in [
        (vec![Misdeed::Truncate(0)], 3, 0, "after 0 of 600000 bytes"),
        (vec![Misdeed::Truncate(1)], 3, 3, "after 3 of 600000 bytes"),
        // A range is requested twice, because only the ETag may have changed.
        (vec![Misdeed::FromStart(200_000)], 5, 200_000, "after 200000 of 600000 bytes"),
        (vec![Misdeed::FromStart(0)], 3, 0, "3 attempts made no progress"),
        (vec![Misdeed::Truncate(300_000), Misdeed::WrongRange], 3, 300_000, "after 300000 of"),
        (
            vec![Misdeed::Status(206, vec![("content-range", "bytes 5-9/600000".into())])],
            3,
            0,
            "does not continue",
        ),
        (vec![Misdeed::Status(416, vec![]), Misdeed::Truncate(1)], 3, 0, "does not continue"),
        (vec![Misdeed::Status(500, vec![]), Misdeed::Truncate(1)], 3, 1, "returned status 500"),
    ] {
        let (error, asked, left) = given_up(habits.clone());
        assert_eq!((asked, left), (requests, kept), "{habits:?}: {error}");
        assert!(error.contains(word), "{habits:?}: {error}");
    }
}

#[test]
fn repeated_restarts_end_the_pull_even_with_more_bytes() {
    let (error, asked, kept) = given_up((1..100).map(|i| Misdeed::FromStart(i * 1000)).collect());
    assert!(error.contains("it restarted the file 3 times"), "{error}");
    // The first restart needs no further request. The last bytes are kept.
    assert!(asked <= 9 && kept >= 4000, "{asked} {kept}");
}

#[test]
fn silent_and_dripping_servers_end_the_pull() {
    std::thread::scope(|scope| {
        for (habit, word) in [
            (Misdeed::Stall(0), ""),
            (Misdeed::Drip(DRIP), "less than 1000 bytes per second"),
            (Misdeed::DripHeaders(DRIP), "timeout"),
            (Misdeed::DripChunk(DRIP), "less than 1000 bytes per second"),
            (Misdeed::Interim, ""),
            (Misdeed::Headers, "header"),
        ] {
            scope.spawn(move || {
                let (error, asked, _) = given_up(vec![habit.clone()]);
                assert!((1..=6).contains(&asked) && error.contains(word), "{habit:?} {asked}: {error}");
            });
        }
    });
}

#[test]
fn dripping_listings_end_the_pull() {
    std::thread::scope(|scope| {
        for what in ["revision", "tree"] {
            for habit in
                [Misdeed::Drip(DRIP), Misdeed::DripHeaders(DRIP), Misdeed::DripChunk(DRIP), Misdeed::Stall(0)]
            {
                scope.spawn(move || {
                    let hub = Hub::new(vec![large(FILE, noise(SIZE, 5))]);
                    let place = place(&hub);
                    hub.always(what, [habit.clone()]);
                    let error = place.fails("hf:o/n");
                    assert!(matches!(error, HubError::Unreachable { .. }), "{what} {habit:?}: {error}");
                    assert!(hub.seen().len() <= 4, "{what} {habit:?}: {}", hub.seen().len());
                });
            }
        }
    });
}

#[test]
fn endless_redirects_end_the_pull() {
    let hub = Hub::new(vec![large(FILE, noise(SIZE, 5))]);
    hub.always("resolve", [Misdeed::Redirect(format!("/o/n/resolve/{COMMIT}/{FILE}"))]);
    let error = place(&hub).fails("hf:o/n");
    assert!(matches!(error, HubError::Response { .. }), "{error}");
    assert!(hub.seen().len() <= 12, "{}", hub.seen().len());
}

#[test]
fn the_lowest_speed_is_a_setting() {
    let with = |speed: &str| {
        HubSettings::from_variables(&|name| match name {
            "HOME" => Some("/h".into()),
            "LATENT_MIN_SPEED" => Some(speed.into()),
            _ => None,
        })
    };
    assert_eq!(with("250000").unwrap().min_speed, 250_000);
    assert_eq!(
        HubSettings::from_variables(&|name| (name == "HOME").then(|| "/h".into())).unwrap().min_speed,
        1000
    );
    let error = with("fast").unwrap_err().to_string();
    assert!(error.contains("LATENT_MIN_SPEED") && error.contains("bytes per second"), "{error}");
    // At 50 bytes per second.
    for (speed, comes) in [(0, true), (10_000, false)] {
        let hub = Hub::new(vec![large(FILE, noise(60, 5))]);
        let mut place = place(&hub);
        place.settings.min_speed = speed;
        place.settings.attempts = 1;
        hub.always(FILE, [Misdeed::Drip(DRIP)]);
        assert_eq!(place.pull("hf:o/n").is_ok(), comes, "{speed}");
    }
}
