//! Conformance tests and benchmarks of kernels: one table of cases with sizes, formats and error
//! bounds for every operation.
//!
//! * [`cases`], [`real_sizes`]: the table, with odd sizes for tests and sizes of real models for
//!   measurements.
//! * [`test`](test()): runs cases on every kernel of a [`CaseBackend`] and compares the results
//!   with sums in f64, and kernels with each other.
//! * [`perf`](perf()): bytes and operations per second at real sizes, compared with the machine's
//!   limits. [`support`](support()) lists the kernels that run here.
//! * [`count`](count()): counts kernel calls, for devices that cannot be timed.
//! * [`CpuCaseBackend`]: the CPU as a backend. Other backends implement [`CaseBackend`] and
//!   [`KernelJob`] and run the same table.
//!
//! ```
//! use latent_conformance::{CaseBackend, CpuCaseBackend, KernelFilter, CaseVerdict, cases, test};
//! let mut failed = 0;
//! test(&CpuCaseBackend::new(), &cases(), &KernelFilter::new(&["rms_norm".into()]), &mut |outcome| {
//!     failed += usize::from(matches!(outcome.verdict, CaseVerdict::Failed { .. }));
//!     true
//! });
//! assert_eq!(failed, 0);
//! ```
#![forbid(unsafe_code)]

mod attention;
mod backend;
mod case;
mod count;
mod cpu;
mod filter;
mod float16;
mod fused;
mod memory;
mod perf;
mod product;
mod random;
mod reference;
mod routing;
mod rows;
mod support;
mod table;
mod test;
mod w4;
mod w4_table;
mod work;

pub use attention::{
    ExpandedCase, ExpandedLines, ExpandedOperands, KeysCase, KeysOperands, LatentCase, LatentOperands, SCALE,
};
pub use backend::{CaseBackend, CaseKernel, KernelJob, KernelLevel};
pub use case::{CaseOperands, KernelCase, OperationFamily};
pub use count::{CaseCount, count};
pub use cpu::CpuCaseBackend;
pub use filter::KernelFilter;
pub use fused::{FusedSpeedup, fused_speedups};
pub use perf::{MachinePeaks, Measurement, PerfOptions, perf};
pub use product::{ProductCase, ProductOperands};
pub use reference::{BitIdentity, ErrorBound, ReferenceResults};
pub use routing::RoutingRules;
pub use rows::{RowCase, RowOp, RowOperands};
pub use support::{OperationSupport, support};
pub use table::{cases, real_sizes};
pub use test::{CaseOutcome, CaseVerdict, test};
pub use w4::{W4Case, W4Op, W4Operands, W4Quant, W4Rounding, W4ScaleType};
pub use work::CallCost;
