//! `latent devices`: the values of `--device`.

use crate::args::DevicesArgs;
use crate::output;
use anyhow::Result;
use latent_backends::GpuDevice;
use serde_json::{Value, json};

pub(super) fn run(args: &DevicesArgs) -> Result<()> {
    let gpus = latent_backends::gpu_devices();
    if args.json {
        return output::json(&Value::Array(gpus.iter().enumerate().map(described).collect()));
    }
    let mut lines = vec![
        format!("cpu        {}", crate::cpu_info::cpu_info()),
        "reference  every operation in plain f32; slow, for comparison".to_owned(),
    ];
    for (number, gpu) in gpus.iter().enumerate() {
        lines.push(format!("{:<9}  {}: {}", format!("gpu:{number}"), gpu.name, gpu.kind));
        lines.extend(gpu.offers.iter().map(|offer| format!("           {offer}")));
        if gpu.software {
            lines.push(
                "           runs on the CPU, slower than --device cpu: --device auto never selects it".into(),
            );
        }
    }
    if gpus.is_empty() && cfg!(feature = "gpu") {
        lines.push("no GPU: no driver for Vulkan, Metal or DX12 offers an adapter (on Linux, is the vendor's Vulkan driver installed?)".into());
    } else if gpus.is_empty() {
        lines.push(
            "no GPU: this build has no GPU backend; build it with the feature gpu (the default)".into(),
        );
    }
    output::items(&lines)
}

/// A GPU as JSON.
pub(super) fn described((number, gpu): (usize, &GpuDevice)) -> Value {
    let GpuDevice { name, kind, software, offers } = gpu;
    json!({ "device": format!("gpu:{number}"), "name": name, "kind": kind, "software": software, "offers": offers })
}
