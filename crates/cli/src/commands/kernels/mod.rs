//! `latent kernels`: tests, measures, counts or lists the kernel cases.

mod count;
mod device;
mod perf;
mod support;
mod test;

use crate::args::{KernelsArgs, KernelsCommand};
use anyhow::Result;

pub(super) fn run(args: &KernelsArgs) -> Result<()> {
    let device = match &args.command {
        // A hollow device compiles shaders and allocates no memory.
        KernelsCommand::Count(_) => latent_backends::hollow_kernels(&args.device)?,
        _ => latent_backends::kernels(&args.device)?,
    };
    match &args.command {
        KernelsCommand::Count(args) => count::run(&device, args),
        KernelsCommand::Test(args) => test::run(&device, args),
        KernelsCommand::Perf(args) => perf::run(&device, args),
        KernelsCommand::Support(args) => support::run(&device, args),
    }
}
