//! Runs the table of cases on a device: matmuls with the blocks of a file, attention, rows of
//! embeddings, the delta rule, and the entries for 4-bit weights.

mod attention;
mod delta;
mod embed;
mod job;
mod product;
#[cfg(test)]
mod tests;
mod w4;

use crate::adapters::AdapterDescription;
use crate::backend::GpuBackend;
use crate::commands::Commands;
use crate::device::Device;
use crate::matmul::layout::{BlockLayout, layout};
use crate::matmul::products::ProductContext;
use crate::matmul::tiles::MAX_GEMV_ROWS;
use crate::variants::{KernelVariant, KernelVariants};
use job::{GpuJob, RecordedJob};
use latent_backend::KernelCalls;
use latent_conformance::{
    CaseBackend, CaseKernel, CaseOperands, KernelCase, KernelJob, KernelLevel, LatentCase, ProductCase,
    RowOp, W4Op, real_sizes,
};
use latent_graph::passes::Precision;
use latent_types::{ActivationType, Arithmetic, CacheType, TensorType, WeightLayout};
use std::sync::Arc;

/// A device whose shaders run cases.
pub struct GpuCaseBackend {
    device: Arc<Device>,
    kernels: Vec<GpuKernel>,
}

/// A kernel, with the variants of its shaders or those that are chosen for the device.
struct GpuKernel {
    name: String,
    served: KernelCases,
    /// A feature that it needs and the adapter lacks.
    missing: Option<&'static str>,
    variants: Option<KernelVariants>,
    /// Whether the variant changes the shader of a format. If not, its cases would only repeat
    /// those of another kernel.
    differs: fn(TensorType) -> bool,
}

/// The name of a kernel, and the cases that it computes.
type KernelCases = (&'static str, fn(&KernelCase) -> bool);

/// The first three kernels of the list have variants.
const PRODUCTS: usize = 3;

/// Kernels that multiply quantized weights in default precision, in addition to those of exact
/// precision: the kernel, the feature that it needs, and the variants with this feature.
type RoundedKernel = (KernelCases, &'static str, fn(&AdapterDescription) -> Option<KernelVariants>);

const ROUNDED: [RoundedKernel; 3] = [
    (
        ("gpu_gemv_int8", |case| integers(case).is_some_and(|case| case.rows <= MAX_GEMV_ROWS)),
        "int8 dot products",
        integer_variants,
    ),
    (
        ("gpu_gemm_int8", |case| integers(case).is_some_and(|case| case.rows > MAX_GEMV_ROWS)),
        "int8 dot products",
        integer_variants,
    ),
    (
        ("gpu_gemm_f16", |case| halves(case).is_some_and(|case| case.rows > MAX_GEMV_ROWS)),
        "f16",
        half_variants,
    ),
];

/// The variants of exact precision, with int8 dot products.
fn integer_variants(adapter: &AdapterDescription) -> Option<KernelVariants> {
    let integers = KernelVariant::Integers.alone(adapter)?.integers;
    Some(KernelVariants { integers, ..exact_variants(adapter) })
}

/// The variants of exact precision, with cooperative matrices of f16, or f16 tiles if the adapter
/// has none.
fn half_variants(adapter: &AdapterDescription) -> Option<KernelVariants> {
    let exact = exact_variants(adapter);
    match KernelVariant::MatricesF16.alone(adapter) {
        Some(KernelVariants { matrices, .. }) => Some(KernelVariants { matrices, ..exact }),
        None => KernelVariant::F16Tiles.alone(adapter).map(|_| KernelVariants { f16_tiles: true, ..exact }),
    }
}

fn exact_variants(adapter: &AdapterDescription) -> KernelVariants {
    KernelVariants { matrices: None, ..KernelVariants::of(adapter, Precision::Exact) }
}

/// The name of the kernel that computes the delta rule in chunks of rows.
const DELTA_CHUNKS: &str = "gpu_delta_chunks";

const KERNELS: [KernelCases; 13] = [
    ("gpu_gemv", |case| product(case).is_some_and(|case| !case.across && case.rows <= MAX_GEMV_ROWS)),
    ("gpu_gemm", |case| product(case).is_some_and(|case| !case.across && case.rows > MAX_GEMV_ROWS)),
    ("gpu_transposed", |case| product(case).is_some_and(|case| case.across)),
    ("gpu_gather", |case| match case {
        KernelCase::Row(case) => matches!(case.op, RowOp::Embed(ty, layout) if embed::serves(ty, layout)),
        _ => false,
    }),
    ("gpu_delta_rows", |case| matches!(case, KernelCase::Row(case) if delta::serves(case))),
    (DELTA_CHUNKS, |case| match case {
        KernelCase::Row(case) => case.op == RowOp::DeltaChunks && delta::serves(case),
        _ => false,
    }),
    ("gpu_attend_latent", |case| matches!(case, KernelCase::Latent(case) if attention::serves_latent(case))),
    (
        "gpu_attend_expanded",
        |case| matches!(case, KernelCase::Expanded(case) if attention::serves_expanded(case)),
    ),
    ("gpu_w4_gemm", |case| w4_op(case).is_some_and(|op| matches!(op, W4Op::Gemm(_)))),
    ("gpu_w4_fused", |case| w4_op(case).is_some_and(|op| matches!(op, W4Op::Fused(_)))),
    ("gpu_w4_striped", |case| w4_op(case).is_some_and(|op| matches!(op, W4Op::Striped(..)))),
    ("gpu_w4_reduce", |case| w4_op(case).is_some_and(|op| matches!(op, W4Op::Reduce(_)))),
    ("gpu_w4_dequant", |case| {
        w4_op(case).is_some_and(|op| matches!(op, W4Op::DequantF32 | W4Op::DequantF16))
    }),
];

/// A matmul of exact precision: shaders read the blocks of files, and inputs in f32.
fn product(case: &KernelCase) -> Option<&ProductCase> {
    match case {
        KernelCase::Product(case) => {
            ((case.layout, case.activation) == (WeightLayout::Rows, ActivationType::F32)).then_some(case)
        }
        _ => None,
    }
}

/// A matmul with inputs in blocks of int8. The table has it for tiles, which are a layout of the
/// CPU; shaders read the blocks of the file instead.
fn integers(case: &KernelCase) -> Option<&ProductCase> {
    of_tiles(case, ActivationType::A8)
        .filter(|case| layout(case.weight).is_some_and(BlockLayout::has_integers))
}

/// A matmul whose factors are rounded. The CPU rounds them to bf16, shaders to f16. f16 has three
/// more bits, so that the bounds for bf16 hold for it.
fn halves(case: &KernelCase) -> Option<&ProductCase> {
    of_tiles(case, ActivationType::Bf16)
}

fn of_tiles(case: &KernelCase, activation: ActivationType) -> Option<&ProductCase> {
    match case {
        KernelCase::Product(case) => ((case.layout, case.activation, case.across)
            == (WeightLayout::Tiles, activation, false))
            .then_some(case),
        _ => None,
    }
}

/// An operation on 4-bit weights that shaders compute.
fn w4_op(case: &KernelCase) -> Option<W4Op> {
    match case {
        KernelCase::W4(case) => w4::serves(case.op).then_some(case.op),
        _ => None,
    }
}

impl GpuCaseBackend {
    /// Creates the kernels of a backend's device, in every variant that can be forced.
    pub fn of(backend: &GpuBackend) -> GpuCaseBackend {
        let mut gpu = GpuCaseBackend::on(Arc::clone(backend.device()));
        let alone = |variant: KernelVariant| variant.alone(&gpu.device.description);
        let (planes, subgroups) = (alone(KernelVariant::Planes), alone(KernelVariant::Subgroups));
        let repacked = |ty: TensorType| layout(ty).is_some_and(|layout| layout.odd_scale().is_some());
        let mut further = Vec::new();
        for served in KERNELS.into_iter().take(PRODUCTS) {
            let mut add = |variant, variants: Option<KernelVariants>, differs| {
                let (name, missing) =
                    (format!("{}_{variant}", served.0), variants.is_none().then_some(variant));
                further.push(GpuKernel { name, served, missing, variants, differs });
            };
            add("plain", Some(KernelVariants::default()), |_| true);
            // Only blocks that are whole words without their scale are repacked into planes.
            add("planes", planes, repacked);
            if served.0 == "gpu_gemv" {
                add("subgroups", subgroups, |_| true);
            }
        }
        for (served, needs, variants) in ROUNDED {
            let variants = variants(&gpu.device.description);
            let (name, missing) = (served.0.to_owned(), variants.is_none().then_some(needs));
            further.push(GpuKernel { name, served, missing, variants, differs: |_| true });
        }
        gpu.kernels.extend(further);
        gpu
    }

    /// Creates the kernels of a device, only in the variants that are chosen for it.
    pub(crate) fn on(device: Arc<Device>) -> GpuCaseBackend {
        let kernel = |served: KernelCases| {
            let name = served.0.to_owned();
            GpuKernel { name, served, missing: None, variants: None, differs: |_| true }
        };
        GpuCaseBackend { device, kernels: KERNELS.map(kernel).into() }
    }

    /// Uploads the operands of a case, and prepares its calls.
    fn recorded(
        &self,
        kernel: &CaseKernel,
        case: &KernelCase,
        operands: &CaseOperands,
    ) -> Result<Box<dyn RecordedJob>, String> {
        let device = &self.device;
        let variants = self.kernels.get(kernel.id).and_then(|kernel| kernel.variants);
        let products = match variants {
            Some(variants) => ProductContext::with(device, variants),
            // The table's bounds for f32 inputs hold in exact precision only: default precision may
            // quantize inputs.
            None => ProductContext::new(device, Precision::Exact),
        };
        match (case, operands) {
            (KernelCase::Product(case), CaseOperands::Product(operands)) => {
                boxed(product::GpuProductJob::new(&products, case, operands))
            }
            (KernelCase::Latent(case), CaseOperands::Latent(operands)) => {
                boxed(attention::GpuLatentJob::new(device, case, operands))
            }
            (KernelCase::Expanded(case), CaseOperands::Expanded(operands)) => {
                boxed(attention::GpuExpandedJob::new(device, case, operands))
            }
            // Before the next arm, which takes all other row operations as embeddings.
            (KernelCase::Row(case), CaseOperands::Row(operands)) if delta::serves(case) => {
                boxed(delta::DeltaJob::new(device, case, operands, kernel.name == DELTA_CHUNKS))
            }
            (KernelCase::Row(case), CaseOperands::Row(operands)) => {
                boxed(embed::EmbedJob::new(device, case, operands))
            }
            (KernelCase::W4(case), CaseOperands::W4(operands)) => {
                boxed(w4::GpuW4Job::new(device, case, operands))
            }
            _ => Err(format!("no shader computes {}", case.name())),
        }
    }

    /// Makes a matmul of eight rows into one of a prompt, with 512 rows.
    fn prompt(case: &KernelCase) -> Option<KernelCase> {
        let case = product(case).filter(|case| case.rows == MAX_GEMV_ROWS)?;
        Some(KernelCase::Product(ProductCase { rows: 512, ..*case }))
    }
}

fn boxed(
    job: Result<impl RecordedJob + 'static, impl std::fmt::Display>,
) -> Result<Box<dyn RecordedJob>, String> {
    job.map(|job| Box::new(job) as _).map_err(|error| error.to_string())
}

impl CaseBackend for GpuCaseBackend {
    fn name(&self) -> &'static str {
        "gpu"
    }

    fn levels(&self) -> Vec<KernelLevel> {
        vec![KernelLevel { name: "wgsl", available: true }]
    }

    fn features(&self) -> Vec<(&'static str, bool)> {
        let description = &self.device.description;
        vec![
            ("f16", description.f16),
            ("subgroups", description.subgroups.is_some()),
            ("cooperative_matrices", !description.matrices.is_empty()),
            ("timestamps", description.timestamps),
        ]
    }

    fn flushes(&self) -> bool {
        // WGSL allows devices to flush subnormal numbers.
        true
    }

    fn kernels(&self) -> Vec<CaseKernel> {
        let kernel = |(id, kernel): (usize, &GpuKernel)| CaseKernel {
            name: kernel.name.clone(),
            level: "wgsl",
            missing: kernel.missing.map(str::to_owned),
            id,
        };
        self.kernels.iter().enumerate().map(kernel).collect()
    }

    /// Adds prompts, which the table has only in layouts of the CPU, and attention to a long
    /// context.
    fn real_sizes(&self) -> Vec<KernelCase> {
        let mut cases = real_sizes();
        let mut prompts: Vec<KernelCase> = cases.iter().filter_map(GpuCaseBackend::prompt).collect();
        prompts.retain(|case| !cases.contains(case));
        cases.extend(prompts);
        let long = |case: &KernelCase| match case {
            KernelCase::Latent(case) if attention::serves_latent(case) && case.cache == CacheType::F16 => {
                Some(KernelCase::Latent(LatentCase { rows: 32_768, ..*case }))
            }
            _ => None,
        };
        let long: Vec<KernelCase> = cases.iter().filter_map(long).collect();
        cases.extend(long);
        cases
    }

    fn serves(&self, kernel: &CaseKernel, case: &KernelCase) -> bool {
        let differs = |kernel: &GpuKernel| product(case).is_none_or(|case| (kernel.differs)(case.weight));
        self.kernels.get(kernel.id).is_some_and(|kernel| (kernel.served.1)(case) && differs(kernel))
    }

    /// The arithmetic that limits a case with rounded factors. Only cooperative matrices multiply
    /// in f16: tiles store f16 and are multiplied in f32.
    fn arithmetic(&self, kernel: &CaseKernel, case: &KernelCase) -> Option<Arithmetic> {
        halves(case)?;
        let variants = self.kernels.get(kernel.id)?.variants?;
        Some(if variants.matrices.is_some() { Arithmetic::F16 } else { Arithmetic::F32 })
    }

    fn count(
        &self,
        kernel: &CaseKernel,
        case: &KernelCase,
        operands: &CaseOperands,
    ) -> Result<Vec<KernelCalls>, String> {
        let recorded = self.recorded(kernel, case, operands)?;
        // Calls are only recorded: counting does not run them.
        let mut commands = Commands::new(&self.device);
        recorded.record(&mut commands, 0).map_err(|error| error.to_string())?;
        Ok(commands.kernels(0))
    }

    /// Runs the job once, so that an error of the device is reported here: `run` cannot report any.
    fn prepare<'o>(
        &self,
        kernel: &CaseKernel,
        case: &'o KernelCase,
        operands: &'o CaseOperands,
    ) -> Result<Box<dyn KernelJob + Send + 'o>, String> {
        let job = GpuJob(self.recorded(kernel, case, operands)?);
        job.call(0).map_err(|error| error.to_string())?;
        Ok(Box::new(job))
    }
}
