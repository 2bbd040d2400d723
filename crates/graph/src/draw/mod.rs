//! The drawing of a model: circuit, IR and plans as block diagrams, with everything known of each operation.
//!
//! [`Drawing::make`] runs the passes for every formulation and class of rows, folds layers of one structure into blocks, lays
//! them out, and explains each kernel. The result is data: [`Drawing::page`] wraps it into one HTML file,
//! [`Drawing::svg`] writes a view as SVG, and its JSON is described by `docs/graph.schema.json`.

mod blocks;
mod boxes;
mod circuit;
mod compose;
mod data;
mod fold;
mod formulas;
mod labels;
mod layout;
mod memory;
mod page;
mod paint;
mod ranks;
mod scene;
mod sketch;
mod style;
mod svg;
mod words;

pub use data::{
    Binding, Block, Buffer, CacheUse, Card, ClassCard, CostCard, Drawing, FORMAT, FormatCard, Formula,
    MachineCard, Memory, ModelCard, Operation, Other, Placed, Port, VERSION, View, WeightCard, WeightUse,
};
pub use page::{PageOptions, Wanted};
pub use scene::Mark;

use crate::circuit::{Circuit, TensorIndex};
use crate::config::ModelConfig;
use crate::error::GraphError;
use crate::ir::{AttentionPath, Ir, Span, Step};
use crate::passes::{BatchBucket, BindOptions, CacheForm, MlaChoice, crossover};
use crate::{Plan, PlanOptions};
use blocks::{Shared, Source};
use latent_types::KernelContract;
use std::ops::Range;

/// What a drawing is made for.
#[derive(Clone, Debug)]
pub struct Options {
    /// Precision, tier and type of the cache.
    pub bind: BindOptions,
    /// The most rows of one step.
    pub max_batch_tokens: usize,
    /// The layers that are drawn; all of them with embedding and head.
    pub layers: Range<usize>,
    /// What kind of file weights were assumed for, where there are none.
    pub assumed: Option<&'static str>,
    /// Whether the names of kernels stand in the boxes. They differ from machine to machine, so that documents leave them out.
    pub kernels: bool,
}

/// Formulations with what the cache stores.
const FORMULATIONS: [(MlaChoice, CacheForm, Card); 5] = [
    (
        MlaChoice::Auto,
        CacheForm::Latent,
        Card {
            key: "auto",
            name: "auto",
            about: "Absorbed for segments of few new rows, naive for many: both are in the plan.",
        },
    ),
    (
        MlaChoice::Absorbed,
        CacheForm::Latent,
        Card {
            key: "absorbed",
            name: "absorbed",
            about: "Queries go into latent space and attend to the cached latents themselves.",
        },
    ),
    (
        MlaChoice::Naive,
        CacheForm::Latent,
        Card {
            key: "naive",
            name: "naive",
            about: "Keys and values are expanded from the cached latents, a group of heads at a time.",
        },
    ),
    (
        MlaChoice::SeparateScores,
        CacheForm::Latent,
        Card {
            key: "split",
            name: "split",
            about: "Absorbed, with the scores of content and position apart.",
        },
    ),
    (
        MlaChoice::Naive,
        CacheForm::Expanded,
        Card {
            key: "expanded",
            name: "naive, expanded cache",
            about: "Keys and values are expanded once and stored: what attention without latents does, for comparison.",
        },
    ),
];

const CLASSES: [(BatchBucket, &str, &str); 3] = [
    (BatchBucket::Decode, "one", "1 row"),
    (BatchBucket::SmallBatch, "few", "2–16 rows"),
    (BatchBucket::Prefill, "many", "more rows"),
];

impl Drawing {
    /// Draws every stage, formulation and class of rows.
    ///
    /// # Errors
    /// What is wrong with the file's tensors, or which kernel is missing.
    pub fn make(
        circuit: &Circuit,
        config: &ModelConfig,
        tensors: &dyn TensorIndex,
        kernels: &[KernelContract],
        options: &Options,
    ) -> Result<Drawing, GraphError> {
        let whole = options.layers == (0..config.layers);
        let span = Span { embed: options.layers.start == 0, layers: options.layers.clone(), head: whole };
        let ir = Ir::build_with(circuit, config, &span, tensors)?;
        let mut shared = Shared::new(config, kernels, options);
        let mut views = Vec::new();

        let made = circuit::blocks(&mut shared, circuit, tensors.naming())?;
        let placed: Vec<_> = made.into_iter().map(|index| (index, 0)).collect();
        views.push(View { stage: "circuit", ..compose::view(&shared.blocks, &placed) });

        let source = Source { ir: &ir, phases: None, step: None, class: None };
        let placed: Vec<_> =
            shared.blocks_of(&source).into_iter().map(|(index, _, phase)| (index, phase)).collect();
        views.push(View { stage: "ir", ..compose::view(&shared.blocks, &placed) });

        let formulations = || FORMULATIONS.iter().filter(|(_, form, _)| form.stores(options.bind.cache));
        for (mla, form, card) in formulations() {
            for (class, key, _) in CLASSES {
                let wanted = PlanOptions {
                    span: span.clone(),
                    bucket: class,
                    max_batch_tokens: options.max_batch_tokens,
                    mla: *mla,
                    form: *form,
                    bind: options.bind,
                };
                let plan = Plan::from_ir(ir.clone(), config, kernels, &wanted)?;
                let view = plan_view(&mut shared, &plan, *mla);
                views.push(View { formulation: Some(card.key), class: Some(key), ..view });
            }
        }
        let used = shared.blocks.iter().flat_map(|block| &block.operations).map(|operation| operation.op);
        let operations = formulas::of(config, used.chain(["cache"]));
        let bind = options.bind;
        Ok(Drawing {
            format: FORMAT,
            version: VERSION,
            model: ModelCard {
                file: tensors.file(),
                name: config.name.clone(),
                about: circuit.about.clone(),
                assumed: options.assumed,
                parameters: ir.weights.iter().map(|w| w.elements() as u64).sum(),
                weight_bytes: ir.weights.iter().map(|w| w.bytes() as u64).sum(),
                crossover: crossover(&config.attention),
                config: config.clone(),
            },
            machine: MachineCard {
                tier: bind.tier.name(),
                precision: bind.precision.name(),
                cache: bind.cache.name(),
            },
            formulations: formulations().map(|(.., card)| card.clone()).collect(),
            classes: CLASSES
                .iter()
                .map(|(class, key, name)| ClassCard {
                    key,
                    name,
                    rows: class.max_rows(options.max_batch_tokens),
                })
                .collect(),
            operations,
            weights: shared.weights,
            bindings: shared.bindings,
            blocks: shared.blocks,
            views,
        })
    }

    /// The view of a stage; for a plan, of a formulation and a class too.
    pub fn view(&self, stage: &str, formulation: &str, class: &str) -> Option<&View> {
        self.views.iter().find(|view| {
            view.stage == stage
                && view.formulation.is_none_or(|key| key == formulation)
                && view.class.is_none_or(|key| key == class)
        })
    }
}

fn plan_view(shared: &mut Shared<'_>, plan: &Plan, mla: MlaChoice) -> View {
    let rows = plan.max_rows;
    // as the engine chooses: by the new rows of a segment
    let lane = match mla {
        MlaChoice::Auto if rows >= crossover(&shared.config.attention).unwrap_or(2) => AttentionPath::Naive,
        MlaChoice::Auto => AttentionPath::Absorbed,
        _ => AttentionPath::All,
    };
    let step = Step { rows, past_len: 0, sequences: 1, cache: shared.options.bind.cache, path: lane };
    let source =
        Source { ir: &plan.ir, phases: Some(&plan.phases), step: Some(step), class: Some(plan.bucket) };
    let runs = shared.blocks_of(&source);
    let placed: Vec<_> = runs.iter().map(|(index, _, phase)| (*index, *phase)).collect();
    View {
        stage: "plan",
        phases: Some(plan.phase_count()),
        memory: Some(memory::of(plan, &runs)),
        ..compose::view(&shared.blocks, &placed)
    }
}
