//! Static counts of GPU kernels, for machines without a GPU to time them on.

use super::device::{device_name, filter, nothing};
use crate::args::KernelsCountArgs;
use crate::exit::UsageError;
use crate::{interrupt, output};
use anyhow::{Result, bail};
use latent_backends::DeviceKernels;
use latent_conformance::CaseCount;
use latent_graph::KernelCalls;
use serde_json::json;

/// Limits of a GPU's multiprocessor, from the tables of NVIDIA's CUDA programming guide.
struct Multiprocessor {
    name: &'static str,
    threads: u32,
    workgroups: u32,
    /// Bytes of workgroup memory, and bytes that the driver reserves per workgroup.
    memory: u32,
    reserved: u32,
}

// Compute capability 8.9 is Ada (L4, L40, RTX 40), 9.0 is Hopper (H100, H200).
const MULTIPROCESSORS: [Multiprocessor; 2] = [
    Multiprocessor { name: "8.9", threads: 1536, workgroups: 24, memory: 100 << 10, reserved: 1 << 10 },
    Multiprocessor { name: "9.0", threads: 2048, workgroups: 32, memory: 228 << 10, reserved: 1 << 10 },
];

impl Multiprocessor {
    /// Share of its threads that such workgroups occupy, if registers suffice.
    fn occupancy(&self, call: &KernelCalls) -> f64 {
        let threads = call.threads.max(1);
        // Registers are ignored: without the vendor's compiler their number is unknown.
        // `reserved` keeps the divisor above 0 for shaders without workgroup memory.
        let by_memory = self.memory / (call.memory + self.reserved);
        let workgroups = self.workgroups.min(self.threads / threads).min(by_memory);
        f64::from(workgroups * threads) / f64::from(self.threads)
    }
}

pub(super) fn run(device: &DeviceKernels, args: &KernelsCountArgs) -> Result<()> {
    if device.gpu.is_none() {
        let problem =
            "`latent kernels count` needs --device gpu or gpu:N; for CPU kernels, use `latent kernels perf`";
        return Err(UsageError(problem.into()).into());
    }
    let filter = filter(device, &args.filter, None)?;
    let (mut found, mut problems, mut printed) = (Vec::new(), Vec::new(), Ok(()));
    latent_conformance::count(&*device.kernels, &filter, &mut |counted| {
        match counted {
            Ok(count) => {
                if !args.json && printed.is_ok() {
                    printed = print(&count, found.is_empty());
                }
                found.push(count);
            }
            Err(problem) => problems.push(problem),
        }
        printed.is_ok() && !interrupt::asked()
    });
    printed?;
    if found.is_empty() && problems.is_empty() && !interrupt::asked() {
        return nothing(&args.filter);
    }
    if args.json {
        output::json(&json!({ "device": device_name(device), "counts": found }))?;
    } else {
        if found.iter().flat_map(|count| &count.calls).any(|call| call.compiled.instructions.is_some()) {
            output::line(
                "instr. to fit: the driver's statistics: instructions, estimated cycles per subgroup (a few \
                 iterations per loop), registers per thread, spilled registers, subgroups per processor",
            )?;
        } else {
            output::line(
                "the driver does not report compiled shaders (Vulkan: VK_KHR_pipeline_executable_properties)",
            )?;
        }
        output::line(
            "MB: minimum bytes read. occ.: occupancy as limited by threads and workgroup memory, for NVIDIA \
             compute capabilities 8.9 and 9.0. banks: accesses to workgroup memory with conflicts in 32 \
             banks, of all in the shader, and the most addresses in one bank",
        )?;
    }
    if !problems.is_empty() {
        bail!("not counted: {}", problems.join("; "));
    }
    Ok(())
}

/// Prints a line per shader of a case.
fn print(count: &CaseCount, first: bool) -> Result<()> {
    if first {
        let occupancy = MULTIPROCESSORS.map(|unit| format!("{:>6}", unit.name)).concat();
        let driver = driver(["instr.", "cycles", "regs", "spilled", "fit"].map(str::to_owned));
        output::line(&format!(
            "{:<46}{:>7}{:>8}{:>7} {:<26}{:>7}{:>5}{:>7}{driver}{occupancy}  banks",
            "case", "MB", "MFLOP", "FLOP/B", "shader", "groups", "thr.", "memory"
        ))?;
    }
    for (i, call) in count.calls.iter().enumerate() {
        let case = match i {
            0 => format!(
                "{:<46}{:>7.2}{:>8.1}{:>7.1}",
                count.case,
                count.bytes / 1e6,
                count.flops / 1e6,
                count.flops / count.bytes
            ),
            _ => format!("{:<68}", ""),
        };
        let occupancy =
            MULTIPROCESSORS.map(|unit| format!("{:>4.0} %", 100.0 * unit.occupancy(call))).concat();
        let banks = match call.conflicts.accesses {
            0 => "–".to_owned(),
            all => format!("{} of {all}, {}", call.conflicts.conflicting, call.conflicts.worst),
        };
        let found = &call.compiled;
        let stated = [found.instructions, found.cycles, found.registers, found.spilled, found.subgroups];
        let driver = driver(stated.map(|n| n.map_or_else(|| "–".to_owned(), |n| n.to_string())));
        output::line(&format!(
            "{case} {:<26}{:>7}{:>5}{:>7}{driver}{occupancy}  {banks}",
            call.kernel, call.workgroups, call.threads, call.memory
        ))?;
    }
    Ok(())
}

/// The driver's statistics, in columns.
fn driver([instructions, cycles, registers, spilled, subgroups]: [String; 5]) -> String {
    format!("{instructions:>8}{cycles:>8}{registers:>5}{spilled:>8}{subgroups:>4}")
}
