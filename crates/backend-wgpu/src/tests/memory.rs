//! The memory of a model equals its estimate.

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
    // A format whose inputs can be rounded to int8, and f32, whose inputs cannot.
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
            // Few rows, whose experts run one by one, and many, which are sorted by expert. The
            // last step has nearly as many rows as a step may have.
            let _ = run(&mut *model, way, &[1, 4, 150]);
            assert_eq!(gpu.memory_in_use(), loaded, "{case}: a step took more");
            assert!(cache > 0 && scratch.expanded == 0, "{case}");
        }
    }
}

/// The side after a cut receives rows of the residual stream, so it does not need the embedding
/// table.
#[test]
fn the_side_after_a_cut_has_no_table_of_embeddings() {
    let Some(device) = crate::testing::device() else { return };
    let gpu = GpuBackend::on(device);
    let way = MlaVariant { mla: MlaChoice::Absorbed, form: CacheForm::Latent, cache: CacheType::F32 };
    // A model with a separate head, and one whose head is the table.
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

/// In a browser, memory must not be tried: it does not report how much there is, and reports a
/// failed allocation only later. Its adapters are of an unknown kind.
#[test]
fn a_web_page_does_not_try_to_allocate_memory() {
    let Some(_) = crate::testing::device() else { return };
    let own = |interface: &'static str| {
        let mut device = Device::open(0).unwrap();
        let description = &mut Arc::get_mut(&mut device).unwrap().description;
        (description.kind, description.interface) = (AdapterKind::Unknown, interface);
        GpuBackend::on(device).has_own_memory()
    };
    assert!(own("Vulkan") && !own("WebGPU"));
}
