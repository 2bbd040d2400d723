//! Measured hosts and the links between them.

use super::load::StepWork;
use latent_backend::DIRECT_SUM;

/// What a host can do with a model, as measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    pub name: String,
    /// Bytes of memory that the model may take.
    pub memory: f64,
    /// How fast it is.
    pub speed: HostSpeed,
    /// How fast it is while all others compute too, where that is another: ranks of one machine take memory bandwidth from each other.
    pub at_once: Option<HostSpeed>,
}

/// How fast a host reads and computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostSpeed {
    /// Bytes per second that its steps of one row read.
    pub bandwidth: f64,
    /// Floating-point operations per second of prompts; none where they were not measured.
    pub flops: Option<f64>,
}

impl HostSpeed {
    fn seconds(&self, work: &StepWork) -> f64 {
        let arithmetic = self.flops.map_or(0.0, |flops| work.flops / flops);
        arithmetic.max(work.bytes / self.bandwidth)
    }
}

impl Host {
    /// Seconds that it computes, where on average this share of the other ranks computes meanwhile.
    pub(super) fn seconds(&self, work: &StepWork, company: f64) -> f64 {
        let (alone, company) = (self.speed.seconds(work), company.clamp(0.0, 1.0));
        self.at_once.map_or(alone, |speed| (1.0 - company) * alone + company * speed.seconds(work))
    }
}

/// The network between hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetworkLink {
    /// Bytes per second.
    pub bandwidth: f64,
    /// Seconds that a message takes however short it is, from the call that sends it to the end of the one that receives it.
    pub latency: f64,
    /// Of two ranks that add up, where that was measured; else their messages are as any others.
    pub sums: Option<SumSpeed>,
}

/// How fast two ranks add up rows: both send at once what they have, over cores and links that may serve one way at a time, and each copies and adds what comes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SumSpeed {
    /// Bytes per second of one rank's rows.
    pub bandwidth: f64,
    /// Seconds that a sum takes however short it is.
    pub latency: f64,
}

impl SumSpeed {
    /// From `(bytes, seconds)` of a short sum and of a long one, which is announced first, over a
    /// link of this latency.
    pub(crate) fn measured(short: (f64, f64), long: (f64, f64), link_latency: f64) -> SumSpeed {
        let announced = long.1 - 2.0 * link_latency;
        // where links vary by more than the long one takes, at most ten times as fast as it was
        let bandwidth = (long.0 - short.0) / (announced - short.1).max(long.1 / 10.0);
        SumSpeed { bandwidth, latency: (short.1 - short.0 / bandwidth).max(0.0) }
    }
}

/// Above this MPI asks the receiver before it sends over TCP.
const ASKED_FIRST: f64 = 65_536.0;

impl NetworkLink {
    /// Seconds until a message of this size has arrived.
    pub(super) fn message(&self, bytes: f64) -> f64 {
        self.latency + self.asking(bytes) + bytes / self.bandwidth
    }

    /// Seconds until a receiver that is asked first has answered.
    fn asking(&self, bytes: f64) -> f64 {
        if bytes > ASKED_FIRST { 2.0 * self.latency } else { 0.0 }
    }

    /// Seconds in which each rank has what `count` others send to all of it at once, and has added it up.
    fn exchange(&self, count: f64, bytes: f64) -> f64 {
        let SumSpeed { bandwidth, latency } =
            self.sums.unwrap_or(SumSpeed { bandwidth: self.bandwidth, latency: self.latency });
        latency + self.asking(bytes) + count * bytes / bandwidth
    }

    /// Seconds of the sums of `members` ranks.
    pub(super) fn sums(&self, work: &StepWork, members: usize) -> f64 {
        if work.sums == 0.0 || members < 2 {
            return 0.0;
        }
        let (bytes, others) = (work.summed / work.sums, members as f64 - 1.0);
        let once = if members == 2 || bytes / 4.0 <= DIRECT_SUM as f64 {
            self.exchange(others, bytes)
        } else {
            2.0 * self.exchange(others, bytes / members as f64)
        };
        work.sums * once
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_take_as_long_as_those_that_were_measured() {
        // 8 kB in 0.3 ms, a megabyte in 20.7 ms, 0.2 ms of them to ask
        let sums = SumSpeed::measured((8e3, 3e-4), (1.008e6, 2.07e-2), 1e-4);
        assert!((sums.bandwidth - 1e6 / 2.02e-2).abs() < 1.0, "{sums:?}");
        let link = NetworkLink { bandwidth: 1e8, latency: 1e-4, sums: Some(sums) };
        let of = |bytes: f64| {
            link.sums(&StepWork { sums: 2.0, summed: 2.0 * bytes, ..StepWork::default() }, 2) / 2.0
        };
        assert!((of(8e3) - 3e-4).abs() < 1e-9 && (of(1.008e6) - 2.07e-2).abs() < 1e-9);
        // what was not measured is taken as one way of the link
        let link = NetworkLink { sums: None, ..link };
        let work = StepWork { sums: 1.0, summed: 1e6, ..StepWork::default() };
        assert!((link.sums(&work, 2) - link.message(1e6)).abs() < 1e-12);
    }

    #[test]
    fn a_long_sum_that_took_no_longer_than_a_short_one_has_a_rate() {
        let sums = SumSpeed::measured((8e3, 3e-4), (1e6, 3e-4), 1e-4);
        assert!(sums.bandwidth.is_finite() && sums.bandwidth > 0.0 && sums.latency >= 0.0, "{sums:?}");
    }
}
