//! Measurement of the links between ranks, with messages like those of steps.

use crate::agree::on_least;
use crate::predict::{NetworkLink, SumSpeed};
use crate::wire::Reader;
use crate::wrong_message;
use latent_backend::{Channel, Communicator, RankError, RankLinks};
use latent_graph::config::{RankPart, WireType};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of a short message: about one residual row.
const SHORT: usize = 8192;

/// Number of round trips and of sums of short messages.
const TRIPS: usize = 100;

/// Bytes of a long message: about the rows of a chunk of a prompt.
const LONG: usize = 4 << 20;

/// Number of long messages, after one that is not counted, in which TCP's congestion window grows.
const LONG_TRIPS: usize = 3;

/// Bytes of a long sum.
const ADDED: usize = 1 << 20;

/// Number of long sums. The first half is not counted: TCP's window grows more slowly if both sides
/// send.
const ADDED_TRIPS: usize = 32;

/// Computing time between two messages. Network devices and cores sleep meanwhile and take time to
/// wake, as in real steps. Without it, latencies come out too low.
const COMPUTING: Duration = Duration::from_millis(1);

/// Measures the slowest link of the ring in which each rank sends to the next one. All ranks must
/// call it, and all get the same result. `None` for a single rank.
pub fn slowest_link(communicator: &Arc<dyn Communicator>) -> Result<Option<NetworkLink>, RankError> {
    let ranks = communicator.ranks();
    if ranks < 2 {
        return Ok(None);
    }
    // The ring of two ranks has one link: messages cross it in both directions.
    let pairs = if ranks == 2 { 1 } else { ranks };
    let mut slowest = NetworkLink { bandwidth: f64::INFINITY, latency: 0.0, sums: None };
    let mut adding = SumSpeed { bandwidth: f64::INFINITY, latency: 0.0 };
    for from in 0..pairs {
        let to = (from + 1) % ranks;
        // A barrier: only one pair sends at a time.
        on_least(&**communicator, 0)?;
        if communicator.rank() != from && communicator.rank() != to {
            continue;
        }
        let link = measure_pair(&**communicator, from, to)?;
        slowest.latency = slowest.latency.max(link.latency);
        slowest.bandwidth = slowest.bandwidth.min(link.bandwidth);
        // Ranks that share layers are consecutive, so the link from the last to the first has no
        // sums.
        if to > from {
            let sums = measure_sums(communicator, from, link.latency)?;
            adding.latency = adding.latency.max(sums.latency);
            adding.bandwidth = adding.bandwidth.min(sums.bandwidth);
        }
    }
    // The maximum over ranks, by way of `on_least`: the minimum of the complements. It takes
    // integers, hence nanoseconds and whole bytes per second.
    let longest = |seconds: f64| -> Result<f64, RankError> {
        Ok((u64::MAX - on_least(&**communicator, u64::MAX - (seconds * 1e9) as u64)?) as f64 / 1e9)
    };
    let least = |rate: f64| -> Result<f64, RankError> {
        Ok(on_least(&**communicator, if rate.is_finite() { rate as u64 } else { u64::MAX })? as f64)
    };
    let sums = SumSpeed { latency: longest(adding.latency)?, bandwidth: least(adding.bandwidth)? };
    let (latency, bandwidth) = (longest(slowest.latency)?, least(slowest.bandwidth)?);
    Ok(Some(NetworkLink { bandwidth, latency, sums: Some(sums) }))
}

/// Keeps the core busy, as in a step. Returns for how long.
fn compute() -> Duration {
    let start = Instant::now();
    while start.elapsed() < COMPUTING {
        std::hint::spin_loop();
    }
    start.elapsed()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Measures the link between two ranks, which both call it and get the same result: each of them
/// subtracts the latency from the time of a sum.
fn measure_pair(communicator: &dyn Communicator, from: usize, to: usize) -> Result<NetworkLink, RankError> {
    if communicator.rank() == from {
        let link = measure(communicator, to)?;
        let found = [link.bandwidth, link.latency].map(f64::to_le_bytes);
        communicator.send(to, Channel::Values, found.as_flattened())?;
        return Ok(link);
    }
    answer(communicator, from)?;
    let mut found = Vec::new();
    communicator.receive(from, Channel::Values, &mut found)?;
    let mut reader = Reader(&found);
    match (reader.u64(), reader.u64()) {
        (Some(bandwidth), Some(latency)) => {
            let [bandwidth, latency] = [bandwidth, latency].map(f64::from_bits);
            Ok(NetworkLink { bandwidth, latency, sums: None })
        }
        _ => Err(wrong_message(communicator, from, "an invalid link speed".into())),
    }
}

/// Measures the link to a rank that runs [`answer`].
fn measure(communicator: &dyn Communicator, to: usize) -> Result<NetworkLink, RankError> {
    let trip = |bytes: &[u8]| {
        compute();
        let start = Instant::now();
        let mut answer = Vec::new();
        communicator.send(to, Channel::Values, bytes)?;
        communicator.receive(to, Channel::Values, &mut answer)?;
        let seconds = start.elapsed().as_secs_f64();
        // The answer has the number of bytes received and the other side's computing time, which is
        // not part of the trip.
        let mut reader = Reader(&answer);
        match (reader.u64(), reader.u64()) {
            (Some(seen), Some(nanos)) if seen == bytes.len() as u64 => Ok(seconds - nanos as f64 / 1e9),
            _ => Err(wrong_message(communicator, to, "a different number of bytes than it was sent".into())),
        }
    };
    let times = |count: usize, bytes: usize| -> Result<f64, RankError> {
        let message = vec![0; bytes];
        // The first message is not counted: see `LONG_TRIPS`.
        trip(&message)?;
        Ok(median((0..count).map(|_| trip(&message)).collect::<Result<Vec<f64>, RankError>>()?))
    };
    let (short, long) = (times(TRIPS, SHORT)?, times(LONG_TRIPS, LONG)?);
    // Subtracted: the short answer, and the request to send that MPI exchanges before a long
    // message. At least a tenth of the time remains, since the latency varies.
    let bandwidth = LONG as f64 / (long - 2.0 * short).max(long / 10.0);
    let latency = (short - SHORT as f64 / bandwidth) / 2.0;
    Ok(NetworkLink { bandwidth, latency: latency.max(0.0), sums: None })
}

fn answer(communicator: &dyn Communicator, to: usize) -> Result<(), RankError> {
    let mut message = Vec::new();
    // As many as `measure` sends, including one uncounted message of either length.
    for _ in 0..TRIPS + 1 + LONG_TRIPS + 1 {
        communicator.receive(to, Channel::Values, &mut message)?;
        let computed = compute().as_nanos() as u64;
        let answer = [(message.len() as u64).to_le_bytes(), computed.to_le_bytes()];
        communicator.send(to, Channel::Values, answer.as_flattened())?;
    }
    Ok(())
}

/// Measures the sums of ranks `first` and `first + 1`, which both call it. They send to each other
/// concurrently, copy and add, which takes longer than one message.
fn measure_sums(
    communicator: &Arc<dyn Communicator>,
    first: usize,
    latency: f64,
) -> Result<SumSpeed, RankError> {
    let part = RankPart::bare(communicator.rank(), communicator.ranks(), first..first + 2, WireType::F32);
    let links = RankLinks::new(communicator.clone(), part);
    // The mean, not the median: the rank that finishes a sum first starts the next one first and
    // waits longer, so that times alternate.
    let mean = |count: usize, bytes: usize| -> Result<f64, RankError> {
        let mut values = vec![0.0; bytes / 4];
        let mut seconds = 0.0;
        for at in 0..count {
            compute();
            let start = Instant::now();
            links.all_reduce(&mut values)?;
            if at >= count / 2 {
                seconds += start.elapsed().as_secs_f64();
            }
        }
        Ok(seconds / (count - count / 2) as f64)
    };
    let (short, long) = (mean(TRIPS, SHORT)?, mean(ADDED_TRIPS, ADDED)?);
    Ok(SumSpeed::measured((SHORT as f64, short), (ADDED as f64, long), latency))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local_ranks;

    #[test]
    fn both_ranks_of_a_pair_subtract_one_latency() {
        let links: Vec<NetworkLink> = std::thread::scope(|scope| {
            let measured = |rank| scope.spawn(move || measure_pair(&rank, 0, 1).unwrap());
            let threads: Vec<_> = local_ranks(2).into_iter().map(measured).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(links[0].bandwidth > 0.0 && links[0].bandwidth.is_finite(), "{links:?}");
        assert_eq!(links[0], links[1]);
    }

    #[test]
    fn all_ranks_get_one_link_and_one_rank_has_none() {
        for count in [1, 2, 3] {
            let found: Vec<Option<NetworkLink>> = std::thread::scope(|scope| {
                let ranks = local_ranks(count).into_iter();
                let measured = |rank| {
                    let rank: Arc<dyn Communicator> = Arc::new(rank);
                    slowest_link(&rank).unwrap()
                };
                let threads: Vec<_> = ranks.map(|rank| scope.spawn(move || measured(rank))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert!(found.iter().all(|link| *link == found[0]), "{found:?}");
            let rate = |rate: f64| rate > 0.0 && rate.is_finite();
            let sound = |link: NetworkLink| {
                let sums = link.sums.unwrap();
                rate(link.bandwidth) && link.latency < 1.0 && rate(sums.bandwidth) && sums.latency < 1.0
            };
            assert_eq!(found[0].is_some_and(sound), count > 1, "{found:?}");
        }
    }
}
