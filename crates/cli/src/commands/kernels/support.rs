//! List of kernels and of those that run on this machine.

use super::device::{device_name, filter, nothing};
use crate::args::KernelsSupportArgs;
use crate::output;
use anyhow::Result;
use latent_backends::DeviceKernels;
use latent_conformance::OperationSupport;
use serde_json::{Map, Value, json};

pub(super) fn run(device: &DeviceKernels, args: &KernelsSupportArgs) -> Result<()> {
    let backend = &*device.kernels;
    let (levels, features) = (backend.levels(), backend.features());
    let filter = filter(device, &args.filter, None)?;
    let found = latent_conformance::support(backend, &latent_conformance::cases(), &filter);
    if found.is_empty() {
        return nothing(&args.filter);
    }
    let kernels = backend.kernels();
    let here = kernels.iter().filter(|kernel| kernel.missing.is_none()).count();
    if args.json {
        let features: Map<String, Value> =
            features.into_iter().map(|(name, there)| (name.to_owned(), there.into())).collect();
        return output::json(&json!({
            "backend": backend.name(),
            (if device.gpu.is_some() { "gpu" } else { "cpu" }): device_name(device),
            "levels": levels,
            "features": features,
            "kernels": kernels.len(),
            "kernels_here": here,
            "operations": found,
        }));
    }
    output::line(&format!("{}: {}", backend.name(), device_name(device)))?;
    let words = |there: bool| if there { "yes" } else { "no" };
    let named = |wanted: bool| -> String {
        let names: Vec<&str> =
            features.iter().filter(|(_, there)| *there == wanted).map(|(name, _)| *name).collect();
        if names.is_empty() { "none".into() } else { names.join(", ") }
    };
    output::line(&format!("features: {}; missing: {}", named(true), named(false)))?;
    output::line(&format!("kernels: {}, of which {here} run here", kernels.len()))?;
    if let Some(gpu) = &device.gpu {
        gpu.offers.iter().try_for_each(|offer| output::line(offer))?;
        return by_shaders(&found);
    }
    output::line("yes: runs here; no: this CPU does not have the instructions; –: not implemented")?;
    output::line("")?;
    let columns = |cells: Vec<String>| cells.iter().map(|cell| format!("{cell:>9}")).collect::<String>();
    output::line(&format!(
        "{:<16}{:<10}{:<7}{:<6}{}",
        "operation",
        "format",
        "layout",
        "input",
        columns(levels.iter().map(|level| level.name.to_owned()).collect())
    ))?;
    for row in &found {
        // A cell is a kernel for this level: present and runnable, present but without the
        // instructions, or not implemented.
        let cell = |level: &latent_conformance::KernelLevel| {
            let mut there = row.kernels.iter().filter(|kernel| kernel.level == level.name);
            there.next().map_or("–", |kernel| words(kernel.missing.is_none())).to_owned()
        };
        output::line(&format!(
            "{:<16}{:<10}{:<7}{:<6}{}",
            row.family.operation,
            row.family.format,
            row.family.layout,
            row.family.input,
            columns(levels.iter().map(cell).collect())
        ))?;
    }
    Ok(())
}

/// Lists the operations of shaders and their variants.
fn by_shaders(found: &[OperationSupport]) -> Result<()> {
    let (there, others): (Vec<&OperationSupport>, Vec<_>) =
        found.iter().partition(|row| !row.kernels.is_empty());
    output::line("")?;
    output::line(&format!("{:<16}{:<10}{:<7}{:<6}kernels", "operation", "format", "layout", "input"))?;
    for row in there {
        let kernels = row.kernels.iter().map(|kernel| match &kernel.missing {
            None => kernel.kernel.clone(),
            Some(missing) => format!("{} (not supported here: no {missing})", kernel.kernel),
        });
        output::line(&format!(
            "{:<16}{:<10}{:<7}{:<6}{}",
            row.family.operation,
            row.family.format,
            row.family.layout,
            row.family.input,
            kernels.collect::<Vec<_>>().join(", ")
        ))?;
    }
    output::line(&format!(
        "{} rows of the table have kernels for other devices only. The table does not list the shaders of \
         norms, rope, attention, routing and other operations; models of every architecture test them",
        others.len()
    ))
}
