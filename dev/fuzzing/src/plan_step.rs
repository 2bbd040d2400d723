//! Compares plans with exact arithmetic, for random tiny models in every format.

use crate::model;
use crate::source::FuzzSource;
use latent_engine::{ActivationTrace, Engine, EngineOptions};
use latent_evaluate::compare::{ComparedRun, Numerics, Tolerance, compare};
use latent_formats::Checkpoint;
use latent_graph::activations::Activations;
use latent_graph::passes::{FORMS, Precision};
use latent_testing::{ModelRecipe, RandomWeightTypes};
use latent_types::{CacheType, TensorType, Tier};
use std::sync::Arc;

/// Runs a model of a random shape and format with any formulation, cache type, batch size and tier.
/// The result must stay within the declared tolerance of a run in exact arithmetic.
///
/// # Panics
/// If it does not, with the first activation that exceeds the tolerance.
pub fn plan_step(bytes: &[u8]) {
    let mut source = FuzzSource::new(bytes);
    let recipe = recipe(&mut source);
    let (mla, form) = *source.pick(&FORMS);
    let cache = *source.pick(&[
        None,
        Some(CacheType::F16),
        Some(CacheType::Bf16),
        Some(CacheType::F32),
        Some(CacheType::Int8),
        Some(CacheType::Q8_0),
        Some(CacheType::Q4_0),
        Some(CacheType::Fp8),
    ]);
    let precision = if source.once_in(4) { Precision::Exact } else { Precision::Default };
    let best = latent_backends::cpu().isa(None).unwrap_or(Tier::Portable);
    let tier = Some((*source.pick(&Tier::ALL)).min(best));
    let max_batch_tokens = Some(1 + source.below(40));
    let threads = Some(1 + source.below(2) as u16 as usize);
    let options =
        EngineOptions { mla, form, cache, precision, tier, max_batch_tokens, threads, ..model::options() };
    let tokens: Vec<u32> =
        // The vocabulary of the tiny shapes has 512 tokens.
        (0..1 + source.below(40)).map(|i| (i as u32 * 37 + u32::from(source.byte())) % 512).collect();

    let checkpoint = model::checkpoint(&recipe);
    let exact = EngineOptions { precision: Precision::Exact, ..model::options() };
    let Some(reference) = run(&checkpoint, &exact, &tokens) else { panic!("{recipe:?} does not load") };
    // Combinations without a kernel, or without a meaning, are refused at loading.
    let Some(other) = run(&checkpoint, &options, &tokens) else { return };
    let tolerance = Tolerance::between(Some(&reference.numerics), Some(&other.numerics));
    let report = compare(reference.side(), other.side(), tolerance);
    let report = report.unwrap_or_else(|error| panic!("{recipe:?} {options:?}: {error}"));
    if let Some(first) = report.parted {
        let at = &report.points[first];
        panic!(
            "{recipe:?} {options:?}, {} tokens: {} is {:e} away where its inputs are {:e} away",
            tokens.len(),
            at.name,
            at.distance.worst_relative,
            at.inputs_error
        );
    }
}

fn recipe(source: &mut FuzzSource<'_>) -> ModelRecipe {
    let shapes = ["tiny-dense", "tiny-v2", "tiny-v3", "tiny-glm", "tiny-minicpm3", "tiny-plm"];
    // Q8_K is a format for activations; no file stores weights in it.
    let stored = |ty: &TensorType| ty.ggml_id().is_some() && *ty != TensorType::Q8_K;
    let kinds: Vec<RandomWeightTypes> =
        latent_quant::encodable().filter(stored).map(RandomWeightTypes::from).collect();
    let shape = *source.pick(&shapes);
    let kind = *source.pick(&kinds);
    ModelRecipe {
        layers: Some(1 + source.below(2)),
        legacy: source.once_in(4),
        kv_b: source.once_in(4).then(|| source.pick(&kinds).base),
        seed: u64::from(source.byte()),
        ..ModelRecipe::new(shape, kind)
    }
}

struct FuzzPlanRun {
    points: Activations,
    trace: ActivationTrace,
    numerics: Numerics,
}

impl FuzzPlanRun {
    fn side(&self) -> ComparedRun<'_> {
        ComparedRun { points: &self.points, trace: &self.trace }
    }
}

fn run(checkpoint: &Arc<Checkpoint>, options: &EngineOptions, tokens: &[u32]) -> Option<FuzzPlanRun> {
    let mut engine: Engine = model::load(checkpoint, options).ok()?;
    let points = engine.activations(checkpoint).ok()?;
    let layers = 0..engine.config().layers;
    let trace = engine.trace(&points, layers, tokens, &mut |_| true);
    let trace = trace.unwrap_or_else(|error| panic!("{options:?}: {error}"));
    Some(FuzzPlanRun { points, trace, numerics: Numerics::of(&engine) })
}
