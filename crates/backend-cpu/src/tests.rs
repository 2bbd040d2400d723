//! Tests of whole models: steps that exceed their memory, disjoint writes, foreign KV stores,
//! cancellation, and released pages.

use crate::CpuBackend;
use crate::kv_store::CpuKvStore;
use crate::model::CpuModel;
use latent_backend::{
    Backend, BackendError, BackendModel, Batch, CancelToken, InputRows, KV_BLOCK, LoadRequest, ModelOptions,
    ModelStep,
};
use latent_backend_reference::HostKvStore;
use latent_formats::{Checkpoint, ResidentPages};
use latent_graph::ir::AttentionPath;
use latent_graph::passes::{BindOptions, CacheForm, MlaChoice, Precision};
use latent_graph::{CheckpointTensors, Circuit, ModelConfig, Stage, StageOptions};
use latent_testing::{ModelRecipe, RandomWeightTypes};
use latent_threads::Placement;
use latent_types::{CacheType, TensorType};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const MAX_BATCH_TOKENS: usize = 32;

fn model(threads: usize) -> CpuModel {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    ModelRecipe::new("tiny-v3", RandomWeightTypes::from(TensorType::Q8_0)).write_gguf(&path).unwrap();
    load(&Arc::new(Checkpoint::open(&path).unwrap()), threads, true)
}

fn load(checkpoint: &Arc<Checkpoint>, threads: usize, keep_pages: bool) -> CpuModel {
    let (backend, config) = (CpuBackend::new(), ModelConfig::from_checkpoint(checkpoint).unwrap());
    let tier = backend.isa(None).unwrap();
    let bind = BindOptions { precision: Precision::Default, tier, cache: CacheType::F16 };
    let stages = StageOptions {
        mla: MlaChoice::Auto,
        form: CacheForm::Latent,
        bind,
        max_batch_tokens: MAX_BATCH_TOKENS,
        mtp: false,
    };
    let circuit = Circuit::named(&config.circuit).unwrap();
    let tensors = CheckpointTensors(checkpoint);
    let plans = Stage::of_model(circuit, &config, &tensors, backend.target(), &stages).unwrap();
    let placement = Placement::anywhere(threads);
    CpuModel::load(LoadRequest {
        communicator: None,
        checkpoint,
        config,
        stages: plans,
        options: ModelOptions { stages, context: 256, threads },
        placement: &placement,
        weights_fit: false,
        keep_pages,
        progress: &mut |_, _| {},
    })
    .unwrap()
}

fn batch(model: &CpuModel, rows: usize) -> Batch {
    let mut batch = Batch::default();
    let table: Vec<u32> = (0..rows.div_ceil(KV_BLOCK) as u32).collect();
    batch.push(
        InputRows::Tokens(&vec![1; rows]),
        0,
        &table,
        MlaChoice::Auto.path(rows, &model.config().attention),
    );
    batch
}

/// Runs the layers on a batch of `rows` rows. The error is the message of a panic.
fn forward(model: &mut CpuModel, rows: usize) -> Result<(), String> {
    let store = model.new_kv_store(4, 0).unwrap();
    let kv: &CpuKvStore = store.as_any().downcast_ref().unwrap();
    let batch = batch(model, rows);
    catch_unwind(AssertUnwindSafe(|| model.forward(&batch, kv, &CancelToken::new()).unwrap()))
        .map_err(|panic| panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "another panic".into()))
}

#[test]
fn more_rows_than_the_arena_was_made_for_are_refused() {
    let mut model = model(2);
    for rows in [MAX_BATCH_TOKENS + 1, 2 * MAX_BATCH_TOKENS, 3 * KV_BLOCK] {
        let said = forward(&mut model, rows).unwrap_err();
        assert_eq!(said, format!("a batch of {rows} rows exceeds the maximum of {MAX_BATCH_TOKENS}"));
    }
    forward(&mut model, MAX_BATCH_TOKENS).unwrap();
}

#[test]
fn values_outside_of_their_buffer_panic() {
    let mut model = model(1);
    let arena: fn(&mut CpuModel) = |model| model.arena.truncate(64);
    for cut in [arena, |model| model.hidden.truncate(64)] {
        let whole = (model.arena.clone(), model.hidden.clone());
        cut(&mut model);
        let said = forward(&mut model, 8).unwrap_err();
        assert!(said.ends_with(" of 64"), "{said}");
        (model.arena, model.hidden) = whole;
        forward(&mut model, 8).unwrap();
    }
}

/// In test builds every use of shared memory is recorded. Two workers that use one element between
/// two barriers, at least one of them to write it, would panic.
#[test]
fn workers_use_disjoint_memory_in_every_batch_bucket() {
    for threads in [2, 3, 8] {
        let mut model = model(threads);
        let store = model.new_kv_store(4, 0).unwrap();
        let kv: &CpuKvStore = store.as_any().downcast_ref().unwrap();
        let paths = [AttentionPath::Naive, AttentionPath::Absorbed];
        // The last ones see several KV splits.
        for (first, rows) in [(0, 32), (32, 32), (64, 32), (96, 32), (128, 32), (160, 5), (165, 1), (166, 3)]
        {
            for path in paths.into_iter().filter(|path| rows > 16 || *path == AttentionPath::Absorbed) {
                let mut batch = Batch::default();
                batch.push(InputRows::Tokens(&vec![1; rows]), first, &[0, 1, 2, 3], path);
                model.forward(&batch, kv, &CancelToken::new()).unwrap();
            }
        }
    }
}

#[test]
fn a_kv_cache_of_another_backend_is_refused() {
    let mut model = model(1);
    let mut layout = model.new_kv_store(4, 0).unwrap().layout().clone();
    layout.cache_type = CacheType::F32;
    let (batch, mut foreign) = (batch(&model, 3), HostKvStore::new(layout));
    let cancel = CancelToken::new();
    let step = ModelStep {
        batch: &batch,
        kv: &mut foreign,
        cancel: &cancel,
        on_logits: &mut |_, _| {},
        on_hidden: None,
    };
    assert!(matches!(model.step(step), Err(BackendError::ForeignStore)));
}

#[test]
fn a_cancelled_step_ends_for_every_number_of_threads() {
    for threads in [1, 2, 5] {
        let mut model = model(threads);
        let mut kv = model.new_kv_store(4, 0).unwrap();
        let batch = batch(&model, 20);
        for _ in 0..20 {
            let cancel = CancelToken::new();
            let canceller = std::thread::spawn({
                let cancel = cancel.clone();
                move || cancel.cancel()
            });
            let step = ModelStep {
                batch: &batch,
                kv: &mut *kv,
                cancel: &cancel,
                on_logits: &mut |_, _| {},
                on_hidden: None,
            };
            // The step may end before the other thread cancels it.
            assert!(matches!(model.step(step), Ok(()) | Err(BackendError::Cancelled)));
            canceller.join().unwrap();
            let step = ModelStep {
                batch: &batch,
                kv: &mut *kv,
                cancel: &cancel,
                on_logits: &mut |_, _| {},
                on_hidden: None,
            };
            assert!(matches!(model.step(step), Err(BackendError::Cancelled)));
        }
    }
}

/// Resident bytes and total bytes of the tensors that are packed. Counted in pieces of 16 kB, since
/// tensors share the pages at their ends.
fn resident(checkpoint: &Checkpoint, now: &ResidentPages) -> (usize, usize) {
    const PIECE: usize = 16 << 10;
    let packed = checkpoint.tensors().iter().filter(|info| info.ty == TensorType::Q8_0);
    let pieces = packed.flat_map(|info| (0..info.bytes / PIECE).map(|i| (info.name.as_str(), i * PIECE)));
    pieces.fold((0, 0), |(there, all), (name, start)| {
        let here = checkpoint.was_resident(name, start..start + PIECE, now);
        (there + usize::from(here) * PIECE, all + PIECE)
    })
}

/// The system may evict any page from its cache at any time, and does so if memory is short. So the
/// test is repeated if a page that should have stayed is missing.
#[test]
fn loading_releases_the_pages_that_it_read_unless_told_to_keep_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    ModelRecipe::new("tiny-v3", RandomWeightTypes::from(TensorType::Q8_0)).write_gguf(&path).unwrap();
    std::fs::File::open(&path).unwrap().sync_all().unwrap();
    let checkpoint = Arc::new(Checkpoint::open(&path).unwrap());
    let hidden = |mut model: CpuModel| {
        forward(&mut model, 4).unwrap();
        model.hidden.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
    };
    let mut there = Vec::new();
    for _ in 0..20 {
        let nothing = checkpoint.nothing_resident();
        // Begin with an empty page cache.
        checkpoint.tensors().iter().for_each(|info| checkpoint.release(&info.name, 0..usize::MAX, &nothing));
        checkpoint.release_rest(&nothing);
        let now = || resident(&checkpoint, &checkpoint.resident_pages());
        let (cold, all) = now();
        assert!(all > 256 << 10, "{all}");
        if cold > 0 {
            // A file system in memory (tmpfs) releases nothing.
            return;
        }
        let given_back = load(&checkpoint, 2, false);
        assert_eq!(now().0, 0);
        let kept = load(&checkpoint, 3, true);
        let after_keeping = now().0;
        // Pages that were in memory before loading stay there.
        let third = load(&checkpoint, 1, false);
        let hidden = [given_back, kept, third].map(hidden);
        assert!(hidden.iter().all(|h| *h == hidden[0]));
        if (after_keeping, now().0) == (all, all) {
            return;
        }
        there.push((after_keeping, now().0, all));
    }
    panic!("in memory after keeping, after loading again, and all: {there:?}");
}

#[test]
fn sizes_that_wrap_are_errors_in_this_crate() {
    let sum = std::panic::catch_unwind(|| std::hint::black_box(usize::MAX) + std::hint::black_box(1));
    assert!(sum.is_err(), "overflow checks are off: see [profile.release.package] in the root Cargo.toml");
}
