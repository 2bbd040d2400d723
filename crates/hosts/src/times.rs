//! Encoding of a rank's times.

use crate::wire::{Reader, Writer};
use latent_backend::RankTimes;

pub(crate) fn message(times: &RankTimes) -> Vec<u8> {
    let mut out = Writer::default();
    out.u64(times.nanos);
    out.u64(times.idle);
    out.usize(times.operations.len());
    for (word, nanos) in &times.operations {
        out.bytes(word.as_bytes());
        out.u64(*nanos);
    }
    out.0
}

/// Parses the times in a message; `None` for malformed bytes.
pub(crate) fn read((rank, host): (usize, String), message: &[u8]) -> Option<RankTimes> {
    let mut from = Reader(message);
    let (nanos, idle) = (from.u64()?, from.u64()?);
    let mut operations = Vec::new();
    for _ in 0..from.usize()? {
        operations.push((String::from_utf8_lossy(from.bytes()?).into_owned(), from.u64()?));
    }
    from.is_done().then_some(RankTimes { rank, host, nanos, idle, operations })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_arrive_as_they_were_sent() {
        let operations = vec![("receive_rows".to_owned(), 700), ("linear".to_owned(), 20)];
        let times = RankTimes { rank: 2, host: "b".into(), nanos: 1 << 40, idle: 9, operations };
        let message = message(&times);
        assert_eq!(read((2, "b".into()), &message), Some(times));
        for len in 0..message.len() {
            assert_eq!(read((2, "b".into()), &message[..len]), None, "{len} bytes");
        }
    }
}
