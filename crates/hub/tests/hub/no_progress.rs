//! Servers that keep a pull busy without bringing it further. What bounds it is counted in requests.

use super::*;
use support::{COMMIT, Misdeed, large, noise};

const FILE: &str = "m-Q4_0.gguf";
const SIZE: usize = 600_000;
const ATTEMPTS: u32 = 3;

/// Between two bytes of a server that drips: 50 bytes per second.
const DRIP: Duration = Duration::from_millis(20);

fn place(hub: &Hub) -> CacheFixture {
    let mut place = CacheFixture::new(hub);
    place.settings.attempts = ATTEMPTS;
    place.settings.idle = Duration::from_millis(500);
    place
}

/// Pulls from a hub that has these habits at its file; the error, how often the file was asked for, and what is kept of it.
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
fn a_server_that_drops_the_connection_without_progress_is_given_up() {
    for (habits, requests, kept, word) in [
        (vec![Misdeed::Truncate(0)], 3, 0, "after 0 of 600000 bytes"),
        (vec![Misdeed::Truncate(1)], 3, 3, "after 3 of 600000 bytes"),
        // ranges are asked for twice, in case that only the ETag is another one
        (vec![Misdeed::FromStart(200_000)], 5, 200_000, "after 200000 of 600000 bytes"),
        (vec![Misdeed::FromStart(0)], 3, 0, "3 attempts came no further"),
        (vec![Misdeed::Truncate(300_000), Misdeed::WrongRange], 3, 300_000, "after 300000 of"),
        (
            vec![Misdeed::Status(206, vec![("content-range", "bytes 5-9/600000".into())])],
            3,
            0,
            "does not continue",
        ),
        (vec![Misdeed::Status(416, vec![]), Misdeed::Truncate(1)], 3, 0, "does not continue"),
        (vec![Misdeed::Status(500, vec![]), Misdeed::Truncate(1)], 3, 1, "answers 500"),
    ] {
        let (error, asked, left) = given_up(habits.clone());
        assert_eq!((asked, left), (requests, kept), "{habits:?}: {error}");
        assert!(error.contains(word), "{habits:?}: {error}");
    }
}

#[test]
fn a_server_that_starts_again_is_given_up_although_each_time_more_comes() {
    let (error, asked, kept) = given_up((1..100).map(|i| Misdeed::FromStart(i * 1000)).collect());
    assert!(error.contains("it sent the file from its start 3 times"), "{error}");
    // the first time nothing is asked for again; what came last stays
    assert!(asked <= 9 && kept >= 4000, "{asked} {kept}");
}

#[test]
fn a_server_that_is_silent_or_drips_is_given_up() {
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
fn listings_that_drip_are_given_up_too() {
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
fn redirects_without_end_are_given_up() {
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
    // at 50 bytes per second
    for (speed, comes) in [(0, true), (10_000, false)] {
        let hub = Hub::new(vec![large(FILE, noise(60, 5))]);
        let mut place = place(&hub);
        place.settings.min_speed = speed;
        place.settings.attempts = 1;
        hub.always(FILE, [Misdeed::Drip(DRIP)]);
        assert_eq!(place.pull("hf:o/n").is_ok(), comes, "{speed}");
    }
}
