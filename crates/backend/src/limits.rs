//! Peak rates of devices, with which measured steps are compared.

use latent_types::Arithmetic;
use serde::Serialize;
use std::fmt;

/// Peak rates of a device, measured in the same run with the model's number of threads.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PeakRates {
    /// Bytes per second from memory.
    pub read_bandwidth: f64,
    /// Multiply-accumulates of 8-bit integers per second.
    pub int8_macs: f64,
    /// Multiply-accumulates of f32 per second.
    pub f32_macs: f64,
    /// The same for f16; on a GPU the faster of vectors and cooperative matrices; 0 if unsupported.
    pub f16_macs: f64,
    /// The same for bf16, by AMX tiles or AVX512-BF16; 0 without such kernels.
    pub bf16_macs: f64,
    /// The same for 8-bit integers by AMX tiles. Kernels do not use them, but other programs quote
    /// this rate.
    pub amx_int8_macs: f64,
}

impl PeakRates {
    /// Multiply-accumulates per second; 0 if the device lacks this arithmetic.
    pub fn macs(&self, arithmetic: Arithmetic) -> f64 {
        match arithmetic {
            Arithmetic::Int8 => self.int8_macs,
            Arithmetic::F32 => self.f32_macs,
            Arithmetic::F16 => self.f16_macs,
            Arithmetic::Bf16 => self.bf16_macs,
        }
    }
}

impl fmt::Display for PeakRates {
    /// As text, without unsupported arithmetic.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A multiply-accumulate counts as two operations.
        let speed = |macs: f64| 2e-9 * macs;
        let (integers, floats) = (speed(self.int8_macs), speed(self.f32_macs));
        write!(f, "{:.1} GB/s read, {integers:.0} GFLOP/s in integers, ", self.read_bandwidth / 1e9)?;
        write!(f, "{floats:.0} in f32")?;
        if self.f16_macs > 0.0 {
            write!(f, ", {:.0} in f16", speed(self.f16_macs))?;
        }
        let bf16 = speed(self.bf16_macs);
        if self.amx_int8_macs > 0.0 {
            let integers = speed(self.amx_int8_macs);
            write!(f, "; tiles {bf16:.0} in bf16, {integers:.0} in integers")?;
        } else if bf16 > 0.0 {
            write!(f, ", {bf16:.0} in bf16")?;
        }
        Ok(())
    }
}
