//! Sums and rows of local ranks in both wire types.
#![allow(missing_docs, reason = "tests")]

use latent_backend::RankLinks;
use latent_graph::config::{RankPart, WireType};
use latent_hosts::{LocalRank, local_ranks};
use std::sync::Arc;

/// A rank that shares layers with all others, and sends rows to the next rank in a ring.
fn part(rank: usize, ranks: usize, wire: WireType) -> RankPart {
    RankPart {
        receives_from: Some((rank + ranks - 1) % ranks),
        sends_to: Some((rank + 1) % ranks),
        ..RankPart::bare(rank, ranks, 0..ranks, wire)
    }
}

/// The results of `run` on each rank, each in its own thread.
fn on_each<T: Send>(ranks: usize, wire: WireType, run: impl Fn(usize, &RankLinks) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let start = |(rank, communicator): (usize, LocalRank)| {
            let run = &run;
            scope.spawn(move || run(rank, &RankLinks::new(Arc::new(communicator), part(rank, ranks, wire))))
        };
        let threads: Vec<_> = local_ranks(ranks).into_iter().enumerate().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The nearest bf16 value, with ties to even.
fn rounded(value: f32) -> f32 {
    let bits = value.to_bits();
    let up = 0x7fff + (bits >> 16 & 1);
    f32::from_bits((bits + up) & 0xffff_0000)
}

fn term(rank: usize, at: usize) -> f32 {
    ((at * 7 + rank * 13) as f32 * 0.618_034).sin() * 10f32.powi((at % 9) as i32 - 4)
}

#[test]
fn sums_of_bf16_terms_are_equal_on_all_ranks_and_by_every_way() {
    // Short values go whole to all ranks. Of long ones each of three ranks sums a share.
    for len in [5, 40_000] {
        for (ranks, wire) in [(2, WireType::Bf16), (3, WireType::Bf16), (3, WireType::F32)] {
            let sums = on_each(ranks, wire, |rank, links| {
                let mut values: Vec<f32> = (0..len).map(|at| term(rank, at)).collect();
                links.all_reduce(&mut values).unwrap();
                values
            });
            // The own terms are rounded too. Otherwise each rank would have other sums, and ranks
            // that share layers would diverge.
            let crossed = |rank, at| match wire {
                WireType::F32 => term(rank, at),
                WireType::Bf16 => rounded(term(rank, at)),
            };
            let expected: Vec<f32> = (0..len)
                // In the order of ranks, since floating-point addition is not associative.
                .map(|at| (1..ranks).fold(crossed(0, at), |sum, rank| sum + crossed(rank, at)))
                .collect();
            assert!(sums.iter().all(|sum| *sum == expected), "{len} elements on {ranks} ranks in {wire}");
        }
    }
}

#[test]
fn rows_arrive_as_the_wire_carries_them() {
    for wire in [WireType::F32, WireType::Bf16] {
        let received = on_each(3, wire, |rank, links| {
            let rows: Vec<f32> = (0..24).map(|at| term(rank, at)).collect();
            links.send_rows(&rows).unwrap();
            let mut rows = vec![0.0; 24];
            links.receive_rows(&mut rows).unwrap();
            rows
        });
        for (rank, rows) in received.iter().enumerate() {
            let sent = (0..24).map(|at| term((rank + 2) % 3, at));
            let expected: Vec<f32> = match wire {
                WireType::F32 => sent.collect(),
                WireType::Bf16 => sent.map(rounded).collect(),
            };
            assert_eq!(*rows, expected, "{wire}");
        }
    }
}
