//! A machine's hardware and the measured limits of its CPU.

use super::super::devices::described;
use crate::cpu_info::cpu_info;
use anyhow::{Context, Result};
use latent_backend::PeakRates;
use latent_backends::GpuDevice;
use latent_engine::memory::{self, AvailableMemory};
use latent_threads::{PinPolicy, Placement, Topology};
use latent_types::{Tier, format_bytes};
use serde_json::{Value, json};

/// The machine, as a bug report describes it.
pub(super) struct MachineReport {
    cpu: String,
    topology: Topology,
    placement: Placement,
    /// The highest tier that the CPU has and `LATENT_ISA` allows.
    pub(super) tier: Tier,
    instructions: Vec<&'static str>,
    memory: Option<AvailableMemory>,
    limits: PeakRates,
    pub(super) gpus: Vec<GpuDevice>,
}

/// Names of the features that the CPU has.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! detected {
    ($detect:ident: $($feature:tt)*) => {
        [$(($feature, std::arch::$detect!($feature))),*].into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect()
    };
}

/// Instruction sets that matter to kernels.
#[cfg(target_arch = "x86_64")]
fn instructions() -> Vec<&'static str> {
    detected!(is_x86_feature_detected: "avx2" "fma" "f16c" "avxvnni" "avx512f" "avx512bw" "avx512vl"
        "avx512dq" "avx512vbmi" "avx512vnni" "avx512bf16" "avx512fp16")
}

/// Instruction sets for the report. Kernels for this architecture are portable code.
#[cfg(target_arch = "aarch64")]
fn instructions() -> Vec<&'static str> {
    detected!(is_aarch64_feature_detected: "neon" "fp16" "dotprod" "i8mm" "bf16" "sve" "sve2")
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn instructions() -> Vec<&'static str> {
    Vec::new()
}

impl MachineReport {
    /// Inspects the machine and measures bandwidth and arithmetic for about a second.
    pub(super) fn measure() -> Result<MachineReport> {
        let topology = Topology::detect();
        let parallelism = latent_threads::parallelism();
        let threads = latent_threads::threads_for(&topology, parallelism);
        let placement = Placement::new(&topology, parallelism, threads, PinPolicy::default());
        let cpu = latent_backends::cpu();
        let tier = cpu.isa(None)?;
        let memory = memory::available();
        let limits =
            latent_backends::limits(&*cpu, &placement, tier).context("measuring the machine's limits")?;
        let gpus = latent_backends::gpu_devices();
        Ok(MachineReport {
            cpu: cpu_info(),
            topology,
            placement,
            tier,
            instructions: instructions(),
            memory,
            limits,
            gpus,
        })
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let (cores, cpus) = (self.topology.cores(), self.topology.cpus());
        let memory = self.memory.as_ref().map_or_else(
            || "unknown on this system".to_owned(),
            |free| format!("{} available ({})", format_bytes(free.bytes), free.limit),
        );
        let instructions = match self.instructions.as_slice() {
            [] => String::new(),
            all => format!(" ({})", all.join(" ")),
        };
        let mut lines = vec![
            format!("latent        {} for {}, {}", env!("CARGO_PKG_VERSION"), target(), features().join(" ")),
            format!("cpu           {}", self.cpu),
            format!("threads       {}, of {cores} cores with {cpus} hardware threads", self.placement),
            format!("instructions  {}{instructions}", self.tier),
            format!("memory        {memory}"),
            format!("limits        {}", self.limits),
        ];
        lines.extend(self.decode_bounds().map(|(name, speed)| {
            format!("              {name}: at most {speed:.1} tokens/s for one user, by bandwidth")
        }));
        for (number, gpu) in self.gpus.iter().enumerate() {
            let slow = if gpu.software { " (runs on the CPU; never chosen by --device auto)" } else { "" };
            lines.push(format!("{:<12}  {}: {}{slow}", format!("gpu:{number}"), gpu.name, gpu.kind));
            lines.extend(gpu.offers.iter().map(|offer| format!("              {offer}")));
        }
        if self.gpus.is_empty() {
            let why =
                if cfg!(feature = "gpu") { "no adapter found" } else { "this build has no GPU backend" };
            lines.push(format!("gpu           {why}"));
        }
        lines
    }

    /// Upper bounds of the decode speed of models with short names that fit into memory.
    fn decode_bounds(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let free = self.memory.as_ref().map_or(u64::MAX, |free| free.bytes);
        let bandwidth = self.limits.read_bandwidth;
        latent_hub::short_names()
            .iter()
            .filter(move |entry| entry.bytes < free)
            // Each token reads the active weights once, and the bandwidth bounds how fast.
            .filter_map(move |entry| Some((entry.name.as_str(), bandwidth / entry.bytes_per_token? as f64)))
    }

    pub(super) fn json(&self) -> Value {
        let bounds: serde_json::Map<String, Value> =
            self.decode_bounds().map(|(name, speed)| (name.to_owned(), speed.into())).collect();
        json!({
            "target": target(),
            "features": features(),
            "cpu": self.cpu,
            "cores": self.topology.cores(),
            "cpus": self.topology.cpus(),
            "threads": self.placement.threads(),
            "tier": self.tier.name(),
            "instructions": self.instructions,
            "memory": self.memory,
            "limits": self.limits,
            "decode_bounds": bounds,
            "gpus": self.gpus.iter().enumerate().map(described).collect::<Vec<_>>(),
        })
    }
}

/// Architecture and operating system.
fn target() -> String {
    format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS)
}

/// The features of this build.
fn features() -> Vec<&'static str> {
    let all = [
        ("demo", cfg!(feature = "demo")),
        ("gpu", cfg!(feature = "gpu")),
        ("tls", cfg!(feature = "tls")),
        ("otel", cfg!(feature = "otel")),
        ("mpi", cfg!(feature = "mpi")),
    ];
    all.into_iter().filter(|(_, built)| *built).map(|(name, _)| name).collect()
}
