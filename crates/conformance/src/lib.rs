//! Conformance tests and benchmarks of kernels: one declared table of cases with sizes, formats and error bounds.
//!
//! * [`cases`], [`real_sizes`]: the table, with odd sizes for tests and sizes of real models for measurements.
//! * [`test`](test()): runs cases on every kernel of a [`Backend`] and compares results with f64 references, and kernels with each other.
//! * [`perf`](perf()): bandwidth and arithmetic throughput at real sizes, next to the machine's limits. [`support`](support()): what runs here.
//! * [`Cpu`]: the CPU kernels as a backend. Another backend implements [`Backend`] and [`Job`] and runs the same table.
//!
//! ```
//! use latent_conformance::{Backend, Cpu, Filter, Verdict, cases, test};
//! let mut failed = 0;
//! test(&Cpu::new(), &cases(), &Filter::new(&["rms_norm".into()]), &mut |outcome| {
//!     failed += usize::from(matches!(outcome.verdict, Verdict::Failed { .. }));
//!     true
//! });
//! assert_eq!(failed, 0);
//! ```
#![forbid(unsafe_code)]

mod attention;
mod backend;
mod case;
mod cpu;
mod filter;
mod memory;
mod numbers;
mod perf;
mod product;
mod random;
mod routing;
mod rows;
mod support;
mod table;
mod test;

pub use attention::{
    ExpandedCase, ExpandedLines, ExpandedOperands, KeysCase, KeysOperands, LatentCase, LatentOperands,
};
pub use backend::{Backend, Job, Kernel, Level};
pub use case::{Arithmetic, Bound, Case, Family, Operands, Truth, Work};
pub use cpu::Cpu;
pub use filter::Filter;
pub use perf::{Limits, Measurement, PerfOptions, perf};
pub use product::{ProductCase, ProductOperands};
pub use routing::Routing;
pub use rows::{RowCase, RowOp, RowOperands};
pub use support::{Support, support};
pub use table::{cases, real_sizes};
pub use test::{Outcome, Verdict, test};
