//! Runs random models on the device and compares them with the reference backend. Also tests errors
//! of models, caches and devices.

use crate::matmul::tests::translate::translate;
use crate::{AdapterKind, GpuBackend};
use latent_backend::{
    Backend, BackendError, BackendModel, Batch, CancelToken, CompiledKernel, InputRows, KV_BLOCK, KvStore,
    LoadRequest, ModelOptions, ModelStep,
};
use latent_backend_reference::ReferenceBackend;
use latent_formats::Checkpoint;
use latent_graph::passes::{BindOptions, CacheForm, FORMS, MlaChoice, Precision};
use latent_graph::{CheckpointTensors, Circuit, ModelConfig, Stage, StageOptions};
use latent_testing::{ModelRecipe, RandomWeightTypes, sample_of};
use latent_threads::{PinPolicy, Placement, Topology};
use latent_types::{CacheType, TensorType, Tier};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

mod delta;
mod memory;
mod portions;
mod texts;
mod ways;

const CONTEXT: usize = 256;

/// Writes a model of one weight format to a folder, which is deleted when the first value is
/// dropped. It has only two layers: software adapters are slow.
fn random_model(shape: &str, format: TensorType) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    two_layers(shape, format).write_gguf(&path).unwrap();
    (folder, path)
}

/// A model of two layers. The first is dense, the second has experts.
fn two_layers(shape: &str, format: TensorType) -> ModelRecipe {
    ModelRecipe { layers: Some(2), ..ModelRecipe::new(shape, RandomWeightTypes::from(format)) }
}

/// The formulation of attention and the cache with which a test runs a model.
#[derive(Clone, Copy)]
struct MlaVariant {
    mla: MlaChoice,
    form: CacheForm,
    cache: CacheType,
}

/// A planned model that is not loaded yet.
struct StagedModel {
    checkpoint: Arc<Checkpoint>,
    config: ModelConfig,
    stages: Vec<Stage>,
    options: ModelOptions,
}

impl StagedModel {
    fn new(
        backend: &dyn Backend,
        path: &Path,
        (way, precision): (MlaVariant, Precision),
        change: &dyn Fn(&mut ModelConfig),
    ) -> Result<StagedModel, BackendError> {
        let checkpoint = Arc::new(Checkpoint::open(path)?);
        let mut config = ModelConfig::from_checkpoint(&checkpoint)?.without_indexer();
        change(&mut config);
        let circuit = Circuit::named(&config.circuit)?;
        let bind = BindOptions { precision, tier: Tier::Portable, cache: way.cache };
        let options = StageOptions { mla: way.mla, form: way.form, bind, max_batch_tokens: 320, mtp: false };
        let tensors = CheckpointTensors(&checkpoint);
        let stages = Stage::of_model(circuit, &config, &tensors, backend.target(), &options)?;
        let options = ModelOptions { stages: options, context: CONTEXT, threads: 1 };
        Ok(StagedModel { checkpoint, config, stages, options })
    }

    fn load(self, backend: &dyn Backend) -> Result<Box<dyn BackendModel>, BackendError> {
        let StagedModel { checkpoint, config, stages, options } = self;
        backend.load(LoadRequest {
            checkpoint: &checkpoint,
            config,
            stages,
            options,
            placement: &Placement::new(&Topology::detect(), 1, 1, PinPolicy::Off),
            weights_fit: true,
            keep_pages: true,
            communicator: None,
            progress: &mut |_, _| {},
        })
    }
}

fn load(backend: &dyn Backend, path: &Path, way: MlaVariant) -> Result<Box<dyn BackendModel>, BackendError> {
    StagedModel::new(backend, path, (way, Precision::Exact), &|_| {})?.load(backend)
}

/// Runs two sequences in steps of these sizes, both in each step. Returns the logits of every fifth
/// row.
fn run(model: &mut dyn BackendModel, way: MlaVariant, steps: &[usize]) -> Vec<Vec<f32>> {
    let mut kv = model.new_kv_store(8, 0).unwrap();
    let shape = model.config().attention;
    let (mut all, mut past) = (Vec::new(), 0);
    for rows in steps {
        let mut batch = Batch::default();
        for sequence in 0..2 {
            let tokens: Vec<u32> =
                (past..past + rows).map(|i| ((i * 7 + sequence * 31) % 100) as u32).collect();
            // The blocks of both sequences alternate, so that neither has consecutive blocks.
            let blocks: Vec<u32> = (0..4).map(|block| (block * 2 + sequence) as u32).collect();
            batch.push(InputRows::Tokens(&tokens), past, &blocks, way.mla.path(*rows, &shape));
        }
        batch.wanted = (0..batch.rows() as u32).rev().step_by(5).collect();
        let mut on_logits = |_: usize, logits: &[f32]| all.push(logits.to_vec());
        let step = ModelStep {
            batch: &batch,
            kv: &mut *kv,
            cancel: &CancelToken::new(),
            on_logits: &mut on_logits,
            on_hidden: None,
        };
        model.step(step).unwrap();
        past += rows;
    }
    all
}

/// The relative square error of each row, in ascending order.
fn errors(found: &[Vec<f32>], expected: &[Vec<f32>]) -> Vec<f64> {
    assert_eq!(found.len(), expected.len());
    let rows = found.iter().zip(expected).map(|(found, expected)| {
        let squares = |row: &mut dyn Iterator<Item = f64>| row.map(|x| x * x).sum::<f64>();
        let mut differences = found.iter().zip(expected).map(|(a, b)| f64::from(*a) - f64::from(*b));
        squares(&mut differences) / squares(&mut expected.iter().map(|x| f64::from(*x)))
    });
    let mut errors: Vec<f64> = rows.collect();
    errors.sort_by(f64::total_cmp);
    errors
}

fn tiny_shapes() -> impl Iterator<Item = &'static str> {
    latent_testing::shapes().filter(|shape| shape.starts_with("tiny"))
}

#[test]
fn models_of_every_shape_run_in_every_way_and_every_shader_translates() {
    let Some(device) = crate::testing::device() else { return };
    let gpus = [GpuBackend::on(Arc::clone(&device)), GpuBackend::on(device).unfused()];
    let folder = tempfile::tempdir().unwrap();
    let first = tiny_shapes().next().unwrap();
    for shape in sample_of(tiny_shapes(), 0, 3) {
        let path = folder.path().join(format!("{shape}.gguf"));
        two_layers(shape, TensorType::F32).write_gguf(&path).unwrap();
        // Tests of the engine run fixtures in every formulation; here one shape is enough.
        for (mla, form) in if shape == first { &FORMS[..] } else { &FORMS[..1] } {
            let (mla, form) = (*mla, *form);
            let way = |cache| MlaVariant { mla, form, cache };
            let steps = [36, 1, 4];
            let mut reference = load(&ReferenceBackend::default(), &path, way(CacheType::F32)).unwrap();
            let expected = run(&mut *reference, way(CacheType::F32), &steps);
            // Cache types that round may change which experts a row gets, so that some rows differ
            // by more: only the better half of the rows is judged.
            let rounding = [(CacheType::F16, 1e-5), (CacheType::Bf16, 1e-3), (CacheType::Int8, 1e-3)];
            let caches = if shape == first { &rounding[..] } else { &[] };
            // Only latents can be cached in int8.
            let caches = if form == CacheForm::Latent { caches } else { &caches[..caches.len().min(2)] };
            let plain = [(CacheType::F32, 1e-9)];
            // Fused plans are tested with every cache type in `ways`, over several blocks.
            let [fused, unfused] = &gpus;
            let of_unfused =
                plain.iter().chain(caches).filter(|_| shape == first).map(|case| (unfused, case));
            for (gpu, (cache, bound)) in plain.iter().map(|case| (fused, case)).chain(of_unfused) {
                let mut model = load(gpu, &path, way(*cache)).unwrap();
                let found = run(&mut *model, way(*cache), &steps);
                let errors = errors(&found, &expected);
                let judged = if *cache == CacheType::F32 { errors.len() - 1 } else { errors.len() / 2 };
                assert!(errors[judged] <= *bound, "{shape} {mla} {form:?} {cache}: {:e}", errors[judged]);
                assert!(
                    *cache != CacheType::F32 || found == run(&mut *model, way(*cache), &steps),
                    "{shape} {mla} {form:?} {cache}: other bits"
                );
            }
        }
    }
    let pipelines = gpus[0].device().pipelines.lock().unwrap();
    assert!(pipelines.len() > 40, "{}", pipelines.len());
    for (text, pipeline) in pipelines.iter() {
        let [metal, direct3d] = translate(&pipeline.name, text);
        assert!(metal.contains("kernel void main_") && direct3d.contains("numthreads"), "{}", pipeline.name);
    }
}

#[test]
fn shaders_that_check_indices_give_the_same_bits() {
    let Some(device) = crate::testing::device() else { return };
    let Some(checking) = crate::testing::checking_device(None) else { return };
    let (_folder, path) = random_model("tiny-v3", TensorType::Q8_0);
    for (mla, form) in FORMS {
        let way = MlaVariant { mla, form, cache: CacheType::F16 };
        let [trusted, checked] = [&device, &checking].map(|device| {
            let mut model = load(&GpuBackend::on(Arc::clone(device)), &path, way).unwrap();
            run(&mut *model, way, &[36, 1, 4])
        });
        // A hardware driver may fuse other multiplications and additions if the shader's text
        // differs.
        let bound = if device.description.kind == AdapterKind::Software { 0.0 } else { 1e-5 };
        let worst = errors(&checked, &trusted).into_iter().fold(0.0, f64::max);
        assert!(worst <= bound, "{mla} {form:?}: {worst:e}");
    }
}

/// In default precision inputs and the cache are rounded, which may change which experts a row
/// gets, so only half of the rows are judged. Three blocks are cached, so that the last steps read
/// them in several splits.
#[test]
fn models_run_with_what_products_use_on_hardware() {
    let (_folder, path) = random_model("tiny-v2", TensorType::Q4_0);
    let way = |cache| MlaVariant { mla: MlaChoice::Absorbed, form: CacheForm::Latent, cache };
    let mut reference = load(&ReferenceBackend::default(), &path, way(CacheType::F32)).unwrap();
    let steps = [70, 64, 1, 4];
    let expected = run(&mut *reference, way(CacheType::F32), &steps);
    for (precision, cache) in [(Precision::Exact, CacheType::F32), (Precision::Default, CacheType::F16)] {
        let Some(device) = crate::testing::device_as_hardware(precision) else { return };
        let has_matrices = device.variants.is_some_and(|variants| variants.matrices.is_some());
        let gpu = GpuBackend::on(device);
        let planned = StagedModel::new(&gpu, &path, (way(cache), precision), &|_| {}).unwrap();
        let mut model = planned.load(&gpu).unwrap();
        let found = run(&mut *model, way(cache), &steps);
        let errors = errors(&found, &expected);
        let middle = errors[errors.len() / 2];
        assert!(middle <= if precision == Precision::Exact { 1e-9 } else { 1e-3 }, "{precision}: {errors:?}");
        // Shows that default precision is used: int8 inputs cause larger errors than an f16 cache.
        // With cooperative matrices, prompts are multiplied in f16, and only later rows have int8
        // inputs.
        let judged = if has_matrices { errors[errors.len() - 1] } else { middle };
        assert_eq!(precision == Precision::Exact, judged <= 1e-6, "{precision}: {errors:?}");
        assert!(found == run(&mut *model, way(cache), &steps), "{precision}: other bits");
    }
}

#[test]
fn several_passes_with_little_scratch_memory_give_the_same_logits() {
    let Some(device) = crate::testing::device() else { return };
    let gpu = GpuBackend::on(device).with_scratch(1 << 14);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    two_layers("tiny-v3", TensorType::F32).write_gguf(&path).unwrap();
    for (mla, form) in [
        (MlaChoice::Naive, CacheForm::Latent),
        (MlaChoice::Naive, CacheForm::Expanded),
        (MlaChoice::Absorbed, CacheForm::Latent),
    ] {
        let way = MlaVariant { mla, form, cache: CacheType::F32 };
        // Each pass has 64 positions, so that the later steps begin within the second pass.
        let steps = [70, 1, 20];
        let mut reference = load(&ReferenceBackend::default(), &path, way).unwrap();
        let expected = run(&mut *reference, way, &steps);
        let mut model = load(&gpu, &path, way).unwrap();
        let found = run(&mut *model, way, &steps);
        let errors = errors(&found, &expected);
        assert!(errors[errors.len() - 1] <= 1e-9, "{mla} {form:?}: {errors:?}");
        let repeated = mla == MlaChoice::Naive && form == CacheForm::Latent;
        assert!(!repeated || found == run(&mut *model, way, &steps), "{mla} {form:?}: other bits");
    }
}

/// The number of calls of a step that decodes one row after five others.
fn calls(gpu: &GpuBackend, path: &Path) -> u64 {
    let way = MlaVariant { mla: MlaChoice::Auto, form: CacheForm::Latent, cache: CacheType::F32 };
    let mut model = load(gpu, path, way).unwrap();
    let mut kv = model.new_kv_store(1, 0).unwrap();
    let shape = model.config().attention;
    let mut step = |tokens: &[u32], first| {
        let before = gpu.device().calls.load(Ordering::Relaxed);
        let mut batch = Batch::default();
        batch.push(InputRows::Tokens(tokens), first, &[0], way.mla.path(tokens.len(), &shape));
        batch.wanted.push(tokens.len() as u32 - 1);
        let (cancel, mut ignore) = (CancelToken::new(), |_: usize, _: &[f32]| {});
        let step = ModelStep {
            batch: &batch,
            kv: &mut *kv,
            cancel: &cancel,
            on_logits: &mut ignore,
            on_hidden: None,
        };
        model.step(step).unwrap();
        gpu.device().calls.load(Ordering::Relaxed) - before
    };
    step(&[1, 2, 3, 4, 5], 0);
    step(&[6], 5)
}

/// Checks the figures of docs/gpu.md.
#[test]
fn fused_plans_have_fewer_calls() {
    let Some(device) = crate::testing::device() else { return };
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let counted = ["models/mla-demo-Q4_K_M.gguf", "crates/engine/tests/fixtures/v2-lite"].map(|model| {
        let path = models.join(model);
        let unfused = calls(&GpuBackend::on(Arc::clone(&device)).unfused(), &path);
        [unfused, calls(&GpuBackend::on(Arc::clone(&device)), &path)]
    });
    let [demo, experts] = counted;
    assert_eq!(demo, [165, 129], "unfused and fused");
    assert!(experts[1] < experts[0], "{experts:?}");
    println!("with experts: {experts:?}");
}

#[test]
fn too_large_and_foreign_caches_are_errors() {
    let Some(device) = crate::testing::device() else { return };
    let gpu = GpuBackend::on(device);
    let (_folder, path) = random_model("tiny-v3", TensorType::F32);
    let way = MlaVariant { mla: MlaChoice::Absorbed, form: CacheForm::Latent, cache: CacheType::F32 };
    let mut model = load(&gpu, &path, way).unwrap();
    // A cache larger than the memory of any device.
    let refused = model.new_kv_store(u32::MAX, 0).err().unwrap().to_string();
    assert!(refused.contains("KV cache of layer 0") && refused.contains("option `context`"), "{refused}");
    // The cache of another backend.
    let mut foreign = load(&ReferenceBackend::default(), &path, way).unwrap().new_kv_store(8, 0).unwrap();
    let mut batch = Batch::default();
    batch.push(InputRows::Tokens(&[1]), 0, &[0], MlaChoice::Absorbed.path(1, &model.config().attention));
    let cancel = CancelToken::new();
    let mut step = |kv: &mut dyn KvStore| {
        let mut ignore = |_: usize, _: &[f32]| {};
        model.step(ModelStep { batch: &batch, kv, cancel: &cancel, on_logits: &mut ignore, on_hidden: None })
    };
    assert!(matches!(step(&mut *foreign), Err(BackendError::ForeignStore)));
}

#[test]
fn rows_of_int8_equal_those_of_the_cpu() {
    let Some(device) = crate::testing::device() else { return };
    let gpu = GpuBackend::on(device);
    let (_folder, path) = random_model("tiny-v3", TensorType::F32);
    let stores = [CacheType::F32, CacheType::Int8].map(|cache| {
        let way = MlaVariant { mla: MlaChoice::Absorbed, form: CacheForm::Latent, cache };
        let mut model = load(&gpu, &path, way).unwrap();
        let mut kv = model.new_kv_store(2, 0).unwrap();
        let tokens: Vec<u32> = (0..100).collect();
        let mut batch = Batch::default();
        // The tokens fill the second block of the store, and then 36 rows of the first.
        batch.push(InputRows::Tokens(&tokens), 0, &[1, 0], way.mla.path(100, &model.config().attention));
        let (cancel, mut ignore) = (CancelToken::new(), |_: usize, _: &[f32]| {});
        let step = ModelStep {
            batch: &batch,
            kv: &mut *kv,
            cancel: &cancel,
            on_logits: &mut ignore,
            on_hidden: None,
        };
        model.step(step).unwrap();
        kv
    });
    // Latents of the first layer do not depend on the cache, so both stores rounded the same
    // numbers.
    let read = |number: usize, slot| {
        let kv: &dyn KvStore = &*stores[number];
        let mut row = vec![0; kv.layout().row(0).bytes()];
        kv.read_rows(0, slot, &mut row).unwrap();
        row
    };
    let layout = stores[1].layout().row(0);
    for slot in (0..36).chain(64..128) {
        let mut expected = vec![0; layout.bytes()];
        latent_kernels::store_row(layout, &crate::buffers::floats(&read(0, slot)), &mut expected);
        assert_eq!(read(1, slot), expected, "slot {slot}");
    }
}

#[test]
fn a_device_that_is_lost_between_two_steps_ends_the_second_with_an_error() {
    let Some(_) = crate::testing::device() else { return };
    // Opens a device for this test alone: other tests go on using theirs.
    let gpu = GpuBackend::open(0).unwrap();
    let (_folder, path) = random_model("tiny-v3", TensorType::F32);
    let way = MlaVariant { mla: MlaChoice::Absorbed, form: CacheForm::Latent, cache: CacheType::F32 };
    let mut model = load(&gpu, &path, way).unwrap();
    let mut kv = model.new_kv_store(1, 0).unwrap();
    let cancel = CancelToken::new();
    let mut step = |first: usize| {
        let mut batch = Batch::default();
        batch.push(InputRows::Tokens(&[1]), first, &[0], way.mla.path(1, &model.config().attention));
        batch.wanted.push(0);
        let mut received = 0;
        let mut on_logits = |_: usize, _: &[f32]| received += 1;
        let ran = model.step(ModelStep {
            batch: &batch,
            kv: &mut *kv,
            cancel: &cancel,
            on_logits: &mut on_logits,
            on_hidden: None,
        });
        ran.map(|()| received)
    };
    assert_eq!(step(0).unwrap(), 1);
    gpu.device().raw.destroy();
    for _ in 0..2 {
        let error = step(1).unwrap_err().to_string();
        assert!(error.contains("the device was lost") && error.contains("option `device: cpu`"), "{error}");
    }
    assert!(kv.read_rows(0, 0, &mut vec![0; kv.layout().row(0).bytes()]).is_err());
}

#[test]
fn steps_are_listed_without_memory_as_they_run() {
    let Some(_) = crate::testing::device() else { return };
    let (_folder, path) = random_model("tiny-v3", TensorType::Q4_K);
    let way = MlaVariant { mla: MlaChoice::Absorbed, form: CacheForm::Latent, cache: CacheType::F16 };
    let listed = |gpu: &GpuBackend| {
        let mut model = load(gpu, &path, way).unwrap();
        let kv = model.new_kv_store(4, 0).unwrap();
        let mut batch = Batch::default();
        batch.push(InputRows::Tokens(&[1]), 100, &[0, 1, 2, 3], way.mla.path(1, &model.config().attention));
        batch.wanted.push(0);
        let mut calls = model.kernel_calls(&batch, &*kv).unwrap();
        // Only a device without memory asks the driver how it compiled a kernel, so this is not
        // compared.
        calls
            .iter_mut()
            .flat_map(|node| &mut node.kernels)
            .for_each(|call| call.compiled = CompiledKernel::default());
        let words = calls.iter().map(|node| {
            let plan = model.stages()[node.stage].plan(1);
            plan.ir.nodes[node.node].op.word()
        });
        (words.collect::<Vec<_>>(), calls)
    };
    let (words, calls) = listed(&GpuBackend::open_hollow(0).unwrap());
    assert_eq!((words.clone(), calls.clone()), listed(&GpuBackend::open(0).unwrap()));
    let of = |word: &str| words.iter().zip(&calls).find(|(found, _)| **found == word).unwrap().1;
    let attention = &of("attend_latent").kernels[0];
    assert!(attention.calls >= 1 && attention.threads == 256, "{attention:?}");
    assert!((8192..=16384).contains(&attention.memory), "{attention:?}");
    let product = &of("linear").kernels[0];
    assert!(product.kernel.contains("gemv") && product.workgroups > 1 && product.memory > 0, "{product:?}");
    // The stage of the head is listed too.
    assert_eq!(words.iter().filter(|word| **word == "gather_rows").count(), 1);
}

#[test]
fn rows_of_the_cache_are_copied_shifted_read_and_written() {
    let Some(device) = crate::testing::device() else { return };
    let gpu = GpuBackend::on(device);
    let (_folder, path) = random_model("tiny-v3", TensorType::F32);
    for form in [CacheForm::Latent, CacheForm::Expanded] {
        let way = MlaVariant { mla: MlaChoice::Naive, form, cache: CacheType::F32 };
        let backends: [&dyn Backend; 2] = [&gpu, &ReferenceBackend::default()];
        let rows = backends.map(|backend| {
            let mut kv = load(backend, &path, way).unwrap().new_kv_store(3, 0).unwrap();
            let bytes = kv.layout().row(0).bytes();
            for slot in 0..KV_BLOCK {
                let elements = (0..bytes / 4).map(|i| (i * 37 % 101 + slot) as f32 / 64.0);
                let row: Vec<u8> = elements.flat_map(f32::to_le_bytes).collect();
                for layer in 0..kv.layout().layers.len() {
                    kv.write_rows(layer, slot, &row).unwrap();
                }
            }
            kv.copy_block(0, 2).unwrap();
            kv.shift_token(5, KV_BLOCK + 1, -3).unwrap();
            // In place.
            kv.shift_token(9, 9, 4).unwrap();
            let read = |slot| {
                let mut row = vec![0; bytes];
                kv.read_rows(1, slot, &mut row).unwrap();
                crate::buffers::floats(&row)
            };
            [2 * KV_BLOCK + 7, KV_BLOCK + 1, 9].map(read).to_vec()
        });
        assert_eq!(rows[0][0], rows[1][0], "a copied block");
        let errors = errors(&rows[0], &rows[1]);
        assert!(errors[2] < 1e-12, "{form:?}: {errors:?}");
    }
}
