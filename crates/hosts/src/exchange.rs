//! Measures the links between ranks by exchanging messages.

use crate::agree::on_least;
use crate::predict::Link;
use crate::wire::Reader;
use crate::wrong_message;
use latent_backend::{Channel, Communicator, RankError};
use std::time::Instant;

/// Bytes of a short message: about a residual row.
const SHORT: usize = 8192;

/// How often one goes there and back.
const TRIPS: usize = 100;

/// Bytes of long messages: as the rows of a chunk of a prompt.
const LONG: usize = 4 << 20;

/// How often they are sent, after one that is not counted: TCP has to find out how much it may send at once.
const LONG_TRIPS: usize = 3;

/// The slowest of the links on which each rank sends to the next, and the last to the first. All ranks call it, and all get the same; none for one rank.
///
/// # Errors
/// A rank that is gone.
pub fn slowest_link(communicator: &dyn Communicator) -> Result<Option<Link>, RankError> {
    let ranks = communicator.ranks();
    if ranks < 2 {
        return Ok(None);
    }
    let pairs = if ranks == 2 { 1 } else { ranks };
    let (mut latency, mut bandwidth) = (0.0f64, f64::INFINITY);
    for from in 0..pairs {
        let to = (from + 1) % ranks;
        // one pair at a time
        on_least(communicator, 0)?;
        if communicator.rank() == from {
            let link = measure(communicator, to)?;
            (latency, bandwidth) = (latency.max(link.latency), bandwidth.min(link.bandwidth));
        } else if communicator.rank() == to {
            answer(communicator, from)?;
        }
    }
    // the longest time as the least of what is left of a large number
    let nanos = on_least(communicator, u64::MAX - (latency * 1e9) as u64)?;
    let bandwidth = on_least(communicator, if bandwidth.is_finite() { bandwidth as u64 } else { u64::MAX })?;
    Ok(Some(Link { latency: (u64::MAX - nanos) as f64 / 1e9, bandwidth: bandwidth as f64 }))
}

/// The link to a rank that answers.
fn measure(communicator: &dyn Communicator, to: usize) -> Result<Link, RankError> {
    let trip = |bytes: &[u8]| {
        let start = Instant::now();
        let mut answer = Vec::new();
        communicator.send(to, Channel::Values, bytes)?;
        communicator.receive(to, Channel::Values, &mut answer)?;
        // the other side must have seen all of it
        if Reader(&answer).u64() != Some(bytes.len() as u64) {
            return Err(wrong_message(communicator, to, "another number of bytes than it was sent".into()));
        }
        Ok(start.elapsed().as_secs_f64())
    };
    let times = |count: usize, bytes: usize| -> Result<f64, RankError> {
        let message = vec![0; bytes];
        trip(&message)?;
        let mut times = (0..count).map(|_| trip(&message)).collect::<Result<Vec<f64>, RankError>>()?;
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    };
    let (short, long) = (times(TRIPS, SHORT)?, times(LONG_TRIPS, LONG)?);
    // the answer is short, and a long message is announced first
    let bandwidth = LONG as f64 / (long - 2.0 * short).max(long / 10.0);
    let latency = (short - SHORT as f64 / bandwidth) / 2.0;
    Ok(Link { bandwidth, latency: latency.max(0.0) })
}

fn answer(communicator: &dyn Communicator, to: usize) -> Result<(), RankError> {
    let mut message = Vec::new();
    for _ in 0..TRIPS + 1 + LONG_TRIPS + 1 {
        communicator.receive(to, Channel::Values, &mut message)?;
        communicator.send(to, Channel::Values, &(message.len() as u64).to_le_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local_ranks;

    #[test]
    fn all_ranks_get_one_link_and_one_rank_has_none() {
        for count in [1, 2, 3] {
            let found: Vec<Option<Link>> = std::thread::scope(|scope| {
                let ranks = local_ranks(count).into_iter();
                let threads: Vec<_> =
                    ranks.map(|rank| scope.spawn(move || slowest_link(&rank).unwrap())).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert!(found.iter().all(|link| *link == found[0]), "{found:?}");
            let sound = |link: Link| link.bandwidth > 0.0 && link.bandwidth.is_finite() && link.latency < 1.0;
            assert_eq!(found[0].is_some_and(sound), count > 1, "{found:?}");
        }
    }
}
