//! The memory of a model equals the plan.

use super::{CONTEXT, MlaVariant, StagedModel, random_model, run};
use crate::device::Device;
use crate::{AdapterKind, GpuBackend};
use latent_backend::{Backend, LayerState, WeightSource};
use latent_graph::ir::ModelSide;
use latent_graph::passes::{CacheForm, MlaChoice, Precision};
use latent_graph::{CheckpointTensors, Circuit, ModelConfig, Stage};
use latent_testing::sample_of;
use latent_types::{CacheType, TensorType};
use std::sync::Arc;

#[test]
fn steps_take_no_memory_that_was_not_planned() {
    let ways = [
        (Precision::Default, MlaChoice::Absorbed, CacheForm::Latent),
        (Precision::Exact, MlaChoice::Auto, CacheForm::Latent),
        (Precision::Default, MlaChoice::Naive, CacheForm::Latent),
        (Precision::Default, MlaChoice::Naive, CacheForm::Expanded),
    ];
    // a format that is multiplied with int8 inputs, and f32, which is not
    for (format, ways) in [(TensorType::Q4_0, &ways[..]), (TensorType::F32, &ways[1..2])] {
        let (_folder, path) = random_model("tiny-v3", format);
        for &(precision, mla, form) in sample_of(ways, 0, 3) {
            let Some(device) = crate::testing::device_as_hardware(precision) else { return };
            let gpu = GpuBackend::on(device);
            let way = MlaVariant { mla, form, cache: CacheType::F16 };
            let planned = StagedModel::new(&gpu, &path, (way, precision), &|_| {}).unwrap();
            let weights = gpu.weight_bytes(&planned.stages, WeightSource::File(&planned.checkpoint)).owned;
            let cache = LayerState::token_bytes(&gpu.layer_states(&planned.stages), way.cache) as u64;
            let scratch = gpu.scratch_bytes(&planned.config, &planned.stages, &planned.options, CONTEXT);
            let mut model = planned.load(&gpu).unwrap();
            let loaded = gpu.memory_in_use();
            let case = format!("{format} {precision} {mla} {form:?}");
            assert_eq!(loaded, weights + scratch.arena, "{case}");
            // one by one, and sorted by expert; together all rows that a step may have
            let _ = run(&mut *model, way, &[1, 4, 150]);
            assert_eq!(gpu.memory_in_use(), loaded, "{case}: a step took more");
            assert!(cache > 0 && scratch.expanded == 0, "{case}");
        }
    }
}

/// Rows behind a cut arrive as embeddings, so the embedding table is not needed.
#[test]
fn the_side_behind_a_cut_has_no_table_of_embeddings() {
    let Some(device) = crate::testing::device() else { return };
    let gpu = GpuBackend::on(device);
    let way = MlaVariant { mla: MlaChoice::Absorbed, form: CacheForm::Latent, cache: CacheType::F32 };
    // a head of its own, and one that is the table
    for shape in ["tiny-v3", "tiny-plm"] {
        let (_folder, path) = random_model(shape, TensorType::F32);
        let planned = StagedModel::new(&gpu, &path, (way, Precision::Exact), &|_| {}).unwrap();
        let StagedModel { checkpoint, config, stages, options } = &planned;
        let bytes = |stages: &[Stage]| gpu.weight_bytes(stages, WeightSource::File(checkpoint)).owned;
        let side = |config: &ModelConfig, cut| {
            let circuit = Circuit::named(&config.circuit).unwrap();
            let (tensors, target) = (CheckpointTensors(checkpoint), gpu.target());
            Stage::of_side((circuit, ModelSide::From(cut)), config, &tensors, target, &options.stages)
                .unwrap()
        };
        let table = 4 * (config.vocab_size * config.hidden_size) as u64;
        let head = bytes(&side(config, config.layers));
        assert_eq!(head, table + 4 * config.hidden_size as u64, "{shape}: the output alone");
        let all = bytes(&side(config, 0));
        assert_eq!(all, bytes(stages), "{shape}");
        let own = if shape == "tiny-plm" { 0 } else { table };
        assert!(all >= own + bytes(&side(config, 1)), "{shape}");
    }
}

/// A browser says neither how much there is nor, at once, that a trial has failed: its adapters are of no known kind.
#[test]
fn no_memory_is_tried_in_a_page() {
    let Some(_) = crate::testing::device() else { return };
    let own = |interface: &'static str| {
        let mut device = Device::open(0).unwrap();
        let description = &mut Arc::get_mut(&mut device).unwrap().description;
        (description.kind, description.interface) = (AdapterKind::Unknown, interface);
        GpuBackend::on(device).has_own_memory()
    };
    assert!(own("Vulkan") && !own("WebGPU"));
}
