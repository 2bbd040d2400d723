//! The machine's limits, measured several times per run: the memory bandwidth of a shared machine
//! changes within seconds.

use super::median::median;
use crate::args::EngineArgs;
use crate::model;
use anyhow::Result;
use latent_engine::{Engine, PeakRates};
use std::time::{Duration, Instant};

/// Maximum ratio of two measured bandwidths at which a percentage of the limit is meaningful.
const MAX_SPREAD: f64 = 1.25;

/// A measurement older than this is repeated between tests.
const MAX_AGE: Duration = Duration::from_secs(2);

/// Measured limits, in order of time.
#[derive(Default)]
pub(super) struct LimitSamples {
    samples: Vec<PeakRates>,
    last: Option<Instant>,
}

impl LimitSamples {
    /// Measures the limits again.
    pub(super) fn measure(&mut self, engine: &Engine, args: &EngineArgs) -> Result<()> {
        self.samples.push(model::limits(engine, args)?);
        self.last = Some(Instant::now());
        Ok(())
    }

    /// Measures the limits again between two tests, unless the last measurement is recent.
    pub(super) fn refresh(&mut self, engine: &Engine, args: &EngineArgs) -> Result<()> {
        match self.last {
            Some(last) if last.elapsed() < MAX_AGE => Ok(()),
            _ => self.measure(engine, args),
        }
    }

    pub(super) fn median(&self) -> PeakRates {
        let of = |limit: fn(&PeakRates) -> f64| median(&self.samples.iter().map(limit).collect::<Vec<_>>());
        PeakRates {
            read_bandwidth: of(|limits| limits.read_bandwidth),
            int8_macs: of(|limits| limits.int8_macs),
            f32_macs: of(|limits| limits.f32_macs),
            f16_macs: of(|limits| limits.f16_macs),
            bf16_macs: of(|limits| limits.bf16_macs),
            amx_int8_macs: of(|limits| limits.amx_int8_macs),
        }
    }

    /// The minimum and maximum bandwidth, in bytes per second.
    pub(super) fn bandwidths(&self) -> (f64, f64) {
        let all = self.samples.iter().map(|limits| limits.read_bandwidth);
        all.fold((f64::INFINITY, 0.0), |(low, high), one| (low.min(one), high.max(one)))
    }

    /// Whether the bandwidth varied too much for percentages of it.
    pub(super) fn are_noisy(&self) -> bool {
        let (low, high) = self.bandwidths();
        high > MAX_SPREAD * low
    }

    /// Describes the median limits of a device and the range of the bandwidth.
    pub(super) fn text(&self, device: &str) -> String {
        let how = format!("median of {} measurements in this run", self.samples.len());
        self.text_of(device, &how, &self.median())
    }

    /// Describes these limits of a device and the range of the bandwidth.
    pub(super) fn text_of(&self, device: &str, how: &str, limits: &PeakRates) -> String {
        let (low, high) = self.bandwidths();
        let (low_gb, high_gb) = (low / 1e9, high / 1e9);
        let mut text =
            format!("limits of {device}, {how}: {limits}; reads from {low_gb:.1} to {high_gb:.1} GB/s");
        if self.are_noisy() {
            text.push_str(": too noisy for shares of the limit; run it again on a quiet machine");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(bandwidths: &[f64]) -> LimitSamples {
        let one = |gigabytes: &f64| PeakRates {
            read_bandwidth: gigabytes * 1e9,
            int8_macs: 4e9,
            f32_macs: 2e9,
            f16_macs: 0.0,
            bf16_macs: 0.0,
            amx_int8_macs: 0.0,
        };
        LimitSamples { samples: bandwidths.iter().map(one).collect(), last: None }
    }

    #[test]
    fn limits_report_median_and_spread() {
        let quiet = samples(&[20.0, 22.0, 21.0]);
        assert!(!quiet.are_noisy() && (quiet.median().read_bandwidth - 21e9).abs() < 1.0);
        let text = quiet.text("2 threads");
        assert!(text.contains("median of 3") && text.contains("from 20.0 to 22.0 GB/s"), "{text}");
        assert!(!text.contains("noisy"), "{text}");
    }

    #[test]
    fn two_states_of_memory_make_a_run_too_noisy() {
        let noisy = samples(&[18.0, 61.0, 60.0]);
        assert!(noisy.are_noisy());
        assert!(noisy.text("2 threads").contains("from 18.0 to 61.0 GB/s: too noisy"));
    }
}
