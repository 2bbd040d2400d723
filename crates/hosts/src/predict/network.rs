//! Measured hosts and the links between them.

use super::load::StepWork;
use latent_backend::DIRECT_SUM;

/// A host as measured with a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    pub name: String,
    /// Bytes of memory that are available to the model.
    pub memory: f64,
    pub speed: HostSpeed,
    /// Its speed while all other ranks compute too, if that differs: ranks of one machine share its
    /// memory bandwidth.
    pub at_once: Option<HostSpeed>,
}

/// The speed of a host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostSpeed {
    /// Bytes per second that steps of one row read.
    pub bandwidth: f64,
    /// Floating-point operations per second of prompts, if measured.
    pub flops: Option<f64>,
}

impl HostSpeed {
    /// The roofline time of some work.
    fn seconds(&self, work: &StepWork) -> f64 {
        let arithmetic = self.flops.map_or(0.0, |flops| work.flops / flops);
        arithmetic.max(work.bytes / self.bandwidth)
    }
}

impl Host {
    /// Computing time if the fraction `peers` of the other ranks computes concurrently.
    pub(super) fn seconds(&self, work: &StepWork, peers: f64) -> f64 {
        let (alone, peers) = (self.speed.seconds(work), peers.clamp(0.0, 1.0));
        // Linear between the two measurements: alone, and with all ranks.
        self.at_once.map_or(alone, |speed| (1.0 - peers) * alone + peers * speed.seconds(work))
    }
}

/// The network between hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetworkLink {
    /// Bytes per second.
    pub bandwidth: f64,
    /// Seconds of an empty message, from the call that sends it to the return of the call that
    /// receives it.
    pub latency: f64,
    /// Speed of sums of two ranks, if measured; otherwise that of other messages.
    pub sums: Option<SumSpeed>,
}

/// Speed of sums of two ranks. Both send concurrently, over links and cores that may serve only one
/// direction at a time, and each copies and adds what it receives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SumSpeed {
    /// Bytes per second of one rank's rows.
    pub bandwidth: f64,
    /// Seconds of an empty sum.
    pub latency: f64,
}

impl SumSpeed {
    /// Fits the speed to `(bytes, seconds)` of a short and of a long sum.
    pub(crate) fn measured(short: (f64, f64), long: (f64, f64), link_latency: f64) -> SumSpeed {
        // Without the round trip in which MPI announces the long message.
        let announced = long.1 - 2.0 * link_latency;
        // On a noisy link the long sum may take no longer than the short one. The rate is limited
        // to ten times the measured one.
        let bandwidth = (long.0 - short.0) / (announced - short.1).max(long.1 / 10.0);
        SumSpeed { bandwidth, latency: (short.1 - short.0 / bandwidth).max(0.0) }
    }
}

/// Open MPI's eager limit over TCP in bytes. A larger message is sent only after the receiver has
/// answered a request.
const EAGER_LIMIT: f64 = 65_536.0;

impl NetworkLink {
    /// Seconds until a message of this size has arrived.
    pub(super) fn message(&self, bytes: f64) -> f64 {
        self.latency + self.rendezvous(bytes) + bytes / self.bandwidth
    }

    /// Seconds of the request and its answer before a long message.
    fn rendezvous(&self, bytes: f64) -> f64 {
        if bytes > EAGER_LIMIT { 2.0 * self.latency } else { 0.0 }
    }

    /// Seconds until each rank has received and added the rows of `count` others, which all send
    /// concurrently.
    fn exchange(&self, count: f64, bytes: f64) -> f64 {
        let SumSpeed { bandwidth, latency } =
            self.sums.unwrap_or(SumSpeed { bandwidth: self.bandwidth, latency: self.latency });
        latency + self.rendezvous(bytes) + count * bytes / bandwidth
    }

    /// Seconds of the sums of `members` ranks.
    pub(super) fn sums(&self, work: &StepWork, members: usize) -> f64 {
        if work.sums == 0.0 || members < 2 {
            return 0.0;
        }
        let (bytes, others) = (work.summed / work.sums, members as f64 - 1.0);
        // As in the backend: short sums go directly to all ranks. Of long ones each rank sums a
        // share and distributes the result, which takes two exchanges of less.
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
    fn predicted_sums_take_as_long_as_measured_ones() {
        // 8 kB in 0.3 ms; a megabyte in 20.7 ms, of which the request takes 0.2 ms.
        let sums = SumSpeed::measured((8e3, 3e-4), (1.008e6, 2.07e-2), 1e-4);
        assert!((sums.bandwidth - 1e6 / 2.02e-2).abs() < 1.0, "{sums:?}");
        let link = NetworkLink { bandwidth: 1e8, latency: 1e-4, sums: Some(sums) };
        let of = |bytes: f64| {
            link.sums(&StepWork { sums: 2.0, summed: 2.0 * bytes, ..StepWork::default() }, 2) / 2.0
        };
        assert!((of(8e3) - 3e-4).abs() < 1e-9 && (of(1.008e6) - 2.07e-2).abs() < 1e-9);
        // Without a measurement, a sum takes as long as a message.
        let link = NetworkLink { sums: None, ..link };
        let work = StepWork { sums: 1.0, summed: 1e6, ..StepWork::default() };
        assert!((link.sums(&work, 2) - link.message(1e6)).abs() < 1e-12);
    }

    #[test]
    fn the_rate_is_finite_if_a_long_sum_took_no_longer_than_a_short_one() {
        let sums = SumSpeed::measured((8e3, 3e-4), (1e6, 3e-4), 1e-4);
        assert!(sums.bandwidth.is_finite() && sums.bandwidth > 0.0 && sums.latency >= 0.0, "{sums:?}");
    }
}
