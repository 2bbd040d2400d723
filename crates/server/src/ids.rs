//! Unique IDs, random seeds and timestamps.

use latent_text::Moment;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// A unique ID.
pub(crate) fn unique(prefix: &str) -> String {
    // A keyed hash (SipHash) of a counter, so that an ID does not reveal others: stored responses
    // are found by theirs. Two keys give 128 bits.
    static KEYS: OnceLock<[RandomState; 2]> = OnceLock::new();
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let keys = KEYS.get_or_init(|| [RandomState::new(), RandomState::new()]);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let [a, b] = keys.each_ref().map(|key| {
        let mut hasher = key.build_hasher();
        hasher.write_u64(number);
        hasher.finish()
    });
    format!("{prefix}{a:016x}{b:016x}")
}

/// A random seed for a request without one.
pub(crate) fn seed() -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u128(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos()));
    // 53 bits, which a double represents exactly: clients in JavaScript read the seed and send it
    // back.
    hasher.finish() >> 11
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Now in RFC 3339, in UTC.
pub(crate) fn timestamp() -> String {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    rfc3339(time.as_secs(), time.subsec_micros())
}

/// A Unix time in RFC 3339, in UTC. Later times than the year 9999, which the format cannot
/// represent, become its end.
pub(crate) fn rfc3339(seconds: u64, micros: u32) -> String {
    let time = Moment::utc(i64::try_from(seconds).unwrap_or(i64::MAX), micros);
    time.format("%Y-%m-%dT%H:%M:%S.%fZ").unwrap_or_else(|_| "9999-12-31T23:59:59.999999Z".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_dates_are_right() {
        assert_ne!(unique("a"), unique("a"));
        assert_eq!(rfc3339(0, 0), "1970-01-01T00:00:00.000000Z");
        // The leap day of a year that is divisible by 400.
        assert_eq!(rfc3339(951_782_399, 5), "2000-02-28T23:59:59.000005Z");
        assert_eq!(rfc3339(951_782_400, 0), "2000-02-29T00:00:00.000000Z");
        // RFC 3339 has years of four digits.
        assert_eq!(rfc3339(u64::MAX, 0), "9999-12-31T23:59:59.999999Z");
        assert_eq!(rfc3339(1_795_397_028, 0), "2026-11-23T01:23:48.000000Z");
    }
}
