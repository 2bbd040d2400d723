//! Hosts and the links between them, as they were measured.

use super::load::Work;

/// What a host can do with a model, as measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Bytes of memory that the model may take.
    pub memory: f64,
    /// Bytes per second that its steps of one row read.
    pub bandwidth: f64,
    /// Floating-point operations per second of prompts; none where they were not measured.
    pub flops: Option<f64>,
}

impl Host {
    /// Seconds that it computes.
    pub(super) fn seconds(&self, work: &Work) -> f64 {
        let arithmetic = self.flops.map_or(0.0, |flops| work.flops / flops);
        arithmetic.max(work.bytes / self.bandwidth)
    }
}

/// The network between hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bytes per second.
    pub bandwidth: f64,
    /// Seconds that a message takes however short it is, from the call that sends it to the end of the one that receives it.
    pub latency: f64,
}

/// Above this MPI asks the receiver before it sends over TCP.
const ASKED_FIRST: f64 = 65_536.0;

/// Values of a sum from which on each rank adds up a part of them, as in `Links::all_reduce`.
const IN_PARTS: f64 = 16_384.0;

impl Link {
    /// Seconds in which `count` messages of so many bytes, which one host sends, have arrived.
    pub(super) fn messages(&self, count: f64, bytes: f64) -> f64 {
        let trips = if bytes > ASKED_FIRST { 3.0 } else { 1.0 };
        trips * self.latency + count * bytes / self.bandwidth
    }

    /// Seconds of the sums of `members` ranks.
    pub(super) fn sums(&self, work: &Work, members: usize) -> f64 {
        if work.sums == 0.0 || members < 2 {
            return 0.0;
        }
        let (bytes, others) = (work.summed / work.sums, members as f64 - 1.0);
        let once = if members == 2 || bytes / 4.0 <= IN_PARTS {
            self.messages(others, bytes)
        } else {
            2.0 * self.messages(others, bytes / members as f64)
        };
        work.sums * once
    }
}
