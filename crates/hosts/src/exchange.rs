//! Measures the links between ranks by exchanging messages, as steps do.

use crate::agree::on_least;
use crate::predict::{NetworkLink, SumSpeed};
use crate::wire::Reader;
use crate::wrong_message;
use latent_backend::{Channel, Communicator, RankError, RankLinks};
use latent_graph::config::{RankPart, WireType};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of a short message: about a residual row.
const SHORT: usize = 8192;

/// How often one goes there and back, and is added up.
const TRIPS: usize = 100;

/// Bytes of long messages: as the rows of a chunk of a prompt.
const LONG: usize = 4 << 20;

/// How often they are sent, after one that is not counted: TCP has to find out how much it may send at once.
const LONG_TRIPS: usize = 3;

/// Bytes of long rows that are added up.
const ADDED: usize = 1 << 20;

/// How often. The first half is not counted: TCP takes longer to find out how much it may send where both sides send.
const ADDED_TRIPS: usize = 32;

/// A rank computes for about so long between two messages. What carries them sleeps meanwhile, and takes its time to wake.
const COMPUTING: Duration = Duration::from_millis(1);

/// The slowest of the links on which each rank sends to the next, and the last to the first. All ranks call it, and all get the same; none for one rank.
pub fn slowest_link(communicator: &Arc<dyn Communicator>) -> Result<Option<NetworkLink>, RankError> {
    let ranks = communicator.ranks();
    if ranks < 2 {
        return Ok(None);
    }
    let pairs = if ranks == 2 { 1 } else { ranks };
    let mut slowest = NetworkLink { bandwidth: f64::INFINITY, latency: 0.0, sums: None };
    let mut adding = SumSpeed { bandwidth: f64::INFINITY, latency: 0.0 };
    for from in 0..pairs {
        let to = (from + 1) % ranks;
        // one pair at a time
        on_least(&**communicator, 0)?;
        if communicator.rank() == from {
            let link = measure(&**communicator, to)?;
            slowest.latency = slowest.latency.max(link.latency);
            slowest.bandwidth = slowest.bandwidth.min(link.bandwidth);
        } else if communicator.rank() == to {
            answer(&**communicator, from)?;
        }
        // ranks that share layers follow each other
        if to > from && (from..=to).contains(&communicator.rank()) {
            let sums = measure_sums(communicator, from, slowest.latency)?;
            adding.latency = adding.latency.max(sums.latency);
            adding.bandwidth = adding.bandwidth.min(sums.bandwidth);
        }
    }
    // the longest time as the least of what is left of a large number
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

/// A core that is busy as it is in a step, and how long it was.
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

/// The link to a rank that answers.
fn measure(communicator: &dyn Communicator, to: usize) -> Result<NetworkLink, RankError> {
    let trip = |bytes: &[u8]| {
        compute();
        let start = Instant::now();
        let mut answer = Vec::new();
        communicator.send(to, Channel::Values, bytes)?;
        communicator.receive(to, Channel::Values, &mut answer)?;
        let seconds = start.elapsed().as_secs_f64();
        // the other side must have seen all of it, and says for how long it computed then
        let mut reader = Reader(&answer);
        match (reader.u64(), reader.u64()) {
            (Some(seen), Some(nanos)) if seen == bytes.len() as u64 => Ok(seconds - nanos as f64 / 1e9),
            _ => Err(wrong_message(communicator, to, "another number of bytes than it was sent".into())),
        }
    };
    let times = |count: usize, bytes: usize| -> Result<f64, RankError> {
        let message = vec![0; bytes];
        trip(&message)?;
        Ok(median((0..count).map(|_| trip(&message)).collect::<Result<Vec<f64>, RankError>>()?))
    };
    let (short, long) = (times(TRIPS, SHORT)?, times(LONG_TRIPS, LONG)?);
    // the answer is short, and a long message is announced first
    let bandwidth = LONG as f64 / (long - 2.0 * short).max(long / 10.0);
    let latency = (short - SHORT as f64 / bandwidth) / 2.0;
    Ok(NetworkLink { bandwidth, latency: latency.max(0.0), sums: None })
}

fn answer(communicator: &dyn Communicator, to: usize) -> Result<(), RankError> {
    let mut message = Vec::new();
    for _ in 0..TRIPS + 1 + LONG_TRIPS + 1 {
        communicator.receive(to, Channel::Values, &mut message)?;
        let computed = compute().as_nanos() as u64;
        let answer = [(message.len() as u64).to_le_bytes(), computed.to_le_bytes()];
        communicator.send(to, Channel::Values, answer.as_flattened())?;
    }
    Ok(())
}

/// The sums of rank `first` and the next one, both of which call it. They send to each other at once, copy, and add: that takes longer than one way of the link.
fn measure_sums(
    communicator: &Arc<dyn Communicator>,
    first: usize,
    latency: f64,
) -> Result<SumSpeed, RankError> {
    let part = RankPart::bare(communicator.rank(), communicator.ranks(), first..first + 2, WireType::F32);
    let links = RankLinks::new(communicator.clone(), part);
    // on average: the rank that ended a sum first begins the next one first, and waits longer
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
