//! Builds a drawing: circuit, IR, and a plan for each formulation and bucket.

use crate::build::blocks::blocks_of;
use crate::build::builder::{Builder, ViewInput};
use crate::build::{arrange, circuit, formulas, memory, passes};
use crate::data::{
    BucketInfo, Drawing, DrawingView, FORMAT, FormulationInfo, ModelSummary, TargetInfo, VERSION,
};
use crate::device::DeviceRuns;
use crate::options::Options;
use latent_graph::circuit::{Circuit, TensorIndex, TensorNaming};
use latent_graph::config::ModelConfig;
use latent_graph::ir::{AttentionPath, Ir, ModelSpan, Op, StepWorkload};
use latent_graph::passes::{BatchBucket, CacheForm, MlaChoice, crossover};
use latent_graph::{BackendTarget, GraphError, Plan, PlanOptions};

/// The formulations, with the form of the KV cache.
static FORMULATIONS: [(MlaChoice, CacheForm, FormulationInfo); 5] = [
    (
        MlaChoice::Auto,
        CacheForm::Latent,
        FormulationInfo {
            key: "auto",
            name: "auto",
            about: "Absorbed for segments of few new rows, naive for many: both are in the plan.",
        },
    ),
    (
        MlaChoice::Absorbed,
        CacheForm::Latent,
        FormulationInfo {
            key: "absorbed",
            name: "absorbed",
            about: "Queries go into latent space and attend to the cached latents themselves.",
        },
    ),
    (
        MlaChoice::Naive,
        CacheForm::Latent,
        FormulationInfo {
            key: "naive",
            name: "naive",
            about: "Keys and values are expanded from the cached latents, a group of heads at a time.",
        },
    ),
    (
        MlaChoice::SeparateScores,
        CacheForm::Latent,
        FormulationInfo {
            key: "separate",
            name: "separate",
            about: "Absorbed, with separate scores for content and position.",
        },
    ),
    (
        MlaChoice::Naive,
        CacheForm::Expanded,
        FormulationInfo {
            key: "expanded",
            name: "expanded cache",
            about: "Keys and values are expanded once and stored: what attention without latents does, for comparison.",
        },
    ),
];

const BUCKETS: [(BatchBucket, &str); 3] =
    [(BatchBucket::Decode, "1"), (BatchBucket::SmallBatch, "2–16"), (BatchBucket::Prefill, "17+")];

/// The key of `bucket` in views.
pub fn bucket_key(bucket: BatchBucket) -> &'static str {
    match bucket {
        BatchBucket::Decode => "decode",
        BatchBucket::SmallBatch => "small_batch",
        BatchBucket::Prefill => "prefill",
    }
}

impl Drawing {
    /// Draws every stage, formulation and batch bucket.
    ///
    /// # Errors
    /// Missing or wrong tensors, or a missing kernel.
    pub fn make(
        circuit: &Circuit,
        config: &ModelConfig,
        tensors: &dyn TensorIndex,
        target: &BackendTarget,
        options: &Options,
    ) -> Result<Drawing, GraphError> {
        Drawing::on_device(circuit, config, tensors, target, (options, &DeviceRuns::default()))
    }

    /// Like [`make`](Self::make), with the kernel calls of operations on a device.
    pub fn on_device(
        circuit: &Circuit,
        config: &ModelConfig,
        tensors: &dyn TensorIndex,
        target: &BackendTarget,
        (options, runs): (&Options, &DeviceRuns),
    ) -> Result<Drawing, GraphError> {
        // The head needs the rows after the last layer, and the embedding those before the first.
        let whole = options.layers == (0..config.layers);
        let embed = options.layers.start == 0;
        let span = match options.mtp {
            true => ModelSpan::whole_mtp(circuit, config)?,
            // A rank's own layers.
            false if config.part.is_some() => ModelSpan::backbone(config),
            false => ModelSpan { embed, layers: options.layers.clone(), head: whole, mtp: false },
        };
        // Built once; every formulation and bucket starts from it.
        let ir = Ir::build_with(circuit, config, &span, tensors)?;
        let mut builder = Builder::new(circuit, config, target, (options, runs))?;
        let mut views = vec![circuit_view(&mut builder, tensors.naming())?, ir_view(&mut builder, &ir)];
        for (mla, form, info) in formulations(options, &ir) {
            for (bucket, _) in BUCKETS {
                let wanted = PlanOptions {
                    span: span.clone(),
                    bucket,
                    max_batch_tokens: options.max_batch_tokens,
                    mla: *mla,
                    form: *form,
                    bind: options.bind,
                };
                let (formulation, key) = (Some(info.key), Some(bucket_key(bucket)));
                for view in pass_views(&mut builder, &ir, &wanted)? {
                    views.push(DrawingView { formulation, bucket: key, ..view });
                }
                // The plan runs the target's own passes, so it can differ from the last pass view.
                let plan = Plan::from_ir(ir.clone(), config, target, &wanted)?;
                views.push(DrawingView { formulation, bucket: key, ..plan_view(&mut builder, &plan, *mla) });
            }
        }
        // Only formulas of operations that occur; "cache" explains the cylinders.
        let used = builder.blocks.iter().flat_map(|block| &block.operations).map(|operation| operation.op);
        let operations = formulas::of(config, used.chain(["cache"]));
        Ok(Drawing {
            format: FORMAT,
            version: VERSION,
            model: summary(circuit, config, tensors, &ir, options),
            machine: TargetInfo {
                tier: options.bind.tier.name(),
                precision: options.bind.precision.name(),
                cache: options.bind.cache.name(),
                device: runs.device(),
            },
            formulations: formulations(options, &ir).map(|(.., info)| info.clone()).collect(),
            buckets: buckets(options.max_batch_tokens),
            passes: passes::of(config),
            operations,
            weights: builder.weights,
            bindings: builder.bindings,
            blocks: builder.blocks,
            views,
        })
    }

    /// The view of a stage, and for a plan of a formulation and a bucket. The IR is the one before
    /// all passes.
    pub fn view(&self, stage: &str, formulation: &str, bucket: &str) -> Option<&DrawingView> {
        self.views.iter().find(|view| {
            view.stage == stage
                && view.pass.is_none()
                && view.formulation.is_none_or(|key| key == formulation)
                && view.bucket.is_none_or(|key| key == bucket)
        })
    }
}

/// The formulations that the cache type can store. With an adapter of kv_b the expanded cache is
/// not supported.
fn formulations(
    options: &Options,
    ir: &Ir,
) -> impl Iterator<Item = &'static (MlaChoice, CacheForm, FormulationInfo)> + use<> {
    let adapted = ir.nodes.iter().any(|node| node.op == Op::MlaAttention && node.weight("lora_a").is_some());
    let cache = options.bind.cache;
    FORMULATIONS
        .iter()
        .filter(move |(_, form, _)| form.stores(cache) && !(adapted && *form == CacheForm::Expanded))
}

fn buckets(max_batch_tokens: usize) -> Vec<BucketInfo> {
    let info = |(bucket, name): (BatchBucket, &'static str)| BucketInfo {
        key: bucket_key(bucket),
        name,
        rows: bucket.max_rows(max_batch_tokens),
    };
    BUCKETS.into_iter().map(info).collect()
}

fn summary(
    circuit: &Circuit,
    config: &ModelConfig,
    tensors: &dyn TensorIndex,
    ir: &Ir,
    options: &Options,
) -> ModelSummary {
    ModelSummary {
        file: tensors.file(),
        name: config.name.clone(),
        about: circuit.about.clone(),
        assumed: options.assumed,
        // The IR has every weight once, also a tied embedding.
        parameters: ir.weights.iter().map(|w| w.elements() as u64).sum(),
        weight_bytes: ir.weights.iter().map(|w| w.bytes() as u64).sum(),
        crossover: crossover(&config.attention),
        config: config.clone(),
    }
}

fn circuit_view(builder: &mut Builder<'_>, naming: TensorNaming) -> Result<DrawingView, GraphError> {
    let made = circuit::blocks(builder, naming)?;
    // A circuit has no phases.
    let placed: Vec<_> = made.into_iter().map(|index| (index, 0)).collect();
    Ok(DrawingView { stage: "circuit", ..arrange::view(&builder.blocks, &placed) })
}

fn ir_view(builder: &mut Builder<'_>, ir: &Ir) -> DrawingView {
    let input = ViewInput { ir, phases: None, step: None, bucket: None };
    let placed: Vec<_> =
        blocks_of(builder, &input).into_iter().map(|(index, _, phase)| (index, phase)).collect();
    DrawingView { stage: "ir", ..arrange::view(&builder.blocks, &placed) }
}

/// The IR after each pass.
fn pass_views(
    builder: &mut Builder<'_>,
    ir: &Ir,
    options: &PlanOptions,
) -> Result<Vec<DrawingView>, GraphError> {
    let stages = passes::after_each(ir.clone(), builder.config, options)?;
    let before = std::iter::once(ir).chain(&stages);
    let mut views = Vec::new();
    for ((pass, before), after) in passes::of(builder.config).iter().zip(before).zip(&stages) {
        let input = ViewInput { ir: after, phases: None, step: None, bucket: None };
        let (placed, runs): (Vec<_>, Vec<_>) =
            blocks_of(builder, &input).into_iter().map(|(index, run, phase)| ((index, phase), run)).unzip();
        let mut view = arrange::view(&builder.blocks, &placed);
        for (placed, changes) in view.blocks.iter_mut().zip(passes::changes(before, after, &runs)) {
            placed.changed = changes.changed;
            placed.removed = changes.removed;
        }
        views.push(DrawingView { stage: "ir", pass: Some(pass.key), ..view });
    }
    Ok(views)
}

fn plan_view(builder: &mut Builder<'_>, plan: &Plan, mla: MlaChoice) -> DrawingView {
    let rows = plan.max_rows;
    // As the engine chooses, for one sequence with all rows of the bucket.
    let path = match mla {
        MlaChoice::Auto => mla.path(rows, &builder.config.attention),
        _ => AttentionPath::All,
    };
    // Costs per cached row are stored separately, so the page can show any context.
    let step = StepWorkload { rows, past_len: 0, sequences: 1, cache: builder.options.bind.cache, path };
    let input =
        ViewInput { ir: &plan.ir, phases: Some(&plan.phases), step: Some(step), bucket: Some(plan.bucket) };
    let runs = blocks_of(builder, &input);
    let placed: Vec<_> = runs.iter().map(|(index, _, phase)| (*index, *phase)).collect();
    DrawingView {
        stage: "plan",
        phases: Some(plan.phase_count()),
        memory: Some(memory::of(plan, &runs)),
        ..arrange::view(&builder.blocks, &placed)
    }
}
