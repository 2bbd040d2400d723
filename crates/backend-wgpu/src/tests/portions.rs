//! Steps that are submitted to the device in portions.

use super::{MlaVariant, load, random_model};
use crate::GpuBackend;
use latent_backend::{BackendError, BackendModel, Batch, CancelToken, InputRows, KvStore, ModelStep};
use latent_graph::passes::{CacheForm, MlaChoice};
use latent_testing::sample_of;
use latent_types::{CacheType, TensorType};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const WAY: MlaVariant =
    MlaVariant { mla: MlaChoice::Absorbed, form: CacheForm::Latent, cache: CacheType::F32 };

/// Runs a step of one sequence, at `(past, rows)`. Returns the logits of its last row.
fn step(
    model: &mut dyn BackendModel,
    kv: &mut dyn KvStore,
    at: (usize, usize),
    cancel: &CancelToken,
) -> Result<Vec<f32>, BackendError> {
    step_in(WAY, model, kv, at, cancel)
}

/// Like [`step`], with another formulation of attention.
fn step_in(
    way: MlaVariant,
    model: &mut dyn BackendModel,
    kv: &mut dyn KvStore,
    (past, rows): (usize, usize),
    cancel: &CancelToken,
) -> Result<Vec<f32>, BackendError> {
    let tokens: Vec<u32> = (past..past + rows).map(|i| (i * 7 % 100) as u32).collect();
    let mut batch = Batch::default();
    batch.push(
        InputRows::Tokens(&tokens),
        past,
        &[2, 0, 3, 1],
        way.mla.path(rows, &model.config().attention),
    );
    batch.wanted.push(rows as u32 - 1);
    let mut logits = Vec::new();
    let mut on_logits = |_: usize, row: &[f32]| logits.extend_from_slice(row);
    model.step(ModelStep { batch: &batch, kv, cancel, on_logits: &mut on_logits, on_hidden: None })?;
    Ok(logits)
}

#[test]
fn a_step_that_is_cancelled_in_the_middle_leaves_the_sequence_as_it_was() {
    let Some(device) = crate::testing::device() else { return };
    let (_folder, path) = random_model("tiny-v3", TensorType::F32);
    let whole = GpuBackend::on(Arc::clone(&device));
    // Portions of so little work that a step has many.
    let cut = GpuBackend::on(Arc::clone(&device)).with_portions_of(1e6);
    let calls = || device.calls.load(Ordering::Relaxed);
    let not_cancelled = CancelToken::new();
    let run = |gpu: &GpuBackend, cancelled: bool| {
        let mut model = load(gpu, &path, WAY).unwrap();
        let mut kv = model.new_kv_store(4, 0).unwrap();
        let mut all = vec![step(&mut *model, &mut *kv, (0, 40), &not_cancelled).unwrap()];
        let before = calls();
        let mut stopped = 0;
        if cancelled {
            // Cancelled before the step starts: the step notices it after the first portion.
            let cancel = CancelToken::new();
            cancel.cancel();
            let error = step(&mut *model, &mut *kv, (40, 150), &cancel).unwrap_err();
            assert!(matches!(error, BackendError::Cancelled), "{error}");
            stopped = calls() - before;
        }
        let before = calls();
        all.push(step(&mut *model, &mut *kv, (40, 150), &not_cancelled).unwrap());
        let of_step = calls() - before;
        all.push(step(&mut *model, &mut *kv, (190, 1), &not_cancelled).unwrap());
        (all, stopped, of_step)
    };
    let (expected, _, whole_calls) = run(&whole, false);
    let (found, stopped, cut_calls) = run(&cut, true);
    assert!(found == expected, "other bits");
    // If one call of attention is more work than a portion, it is made in several.
    assert!(whole_calls < cut_calls, "{whole_calls} {cut_calls}");
    assert!(stopped > 0 && stopped < cut_calls / 2, "{stopped} of {cut_calls} calls were made");
}

#[test]
fn decoding_takes_few_submissions_and_a_prompt_several() {
    let Some(device) = crate::testing::device() else { return };
    let (_folder, path) = random_model("tiny-v3", TensorType::F32);
    let gpu = GpuBackend::on(Arc::clone(&device)).with_portions_of(1e7);
    let mut model = load(&gpu, &path, WAY).unwrap();
    let mut kv = model.new_kv_store(4, 0).unwrap();
    let cancel = CancelToken::new();
    let mut lists = |at: (usize, usize)| {
        let before = device.lists.load(Ordering::Relaxed);
        step(&mut *model, &mut *kv, at, &cancel).unwrap();
        device.lists.load(Ordering::Relaxed) - before
    };
    let [prompt, one, four] = [(0, 150), (150, 1), (151, 4)].map(&mut lists);
    // A step that decodes has two lists, because its first calls are submitted early: the device
    // works on them while the host records the rest.
    assert!(prompt > 4 && (one, four) == (2, 2), "{prompt} {one} {four}");
}

#[test]
fn portions_are_timed_as_the_whole_step_is() {
    let Some(device) = crate::testing::device() else { return };
    let (_folder, path) = random_model("tiny-v3", TensorType::F32);
    let gpu = GpuBackend::on(device).with_portions_of(1e6);
    let mut model = load(&gpu, &path, WAY).unwrap();
    let mut kv = model.new_kv_store(4, 0).unwrap();
    model.start_profile();
    step(&mut *model, &mut *kv, (0, 150), &CancelToken::new()).unwrap();
    let times = model.stop_profile();
    // The third plan of the first stage is for many rows. Copies and views take no time.
    let phases = &times[2].phases;
    let timed = phases.iter().filter(|nanos| **nanos > 0).count();
    assert!(timed * 2 > phases.len(), "{timed} of {} phases", phases.len());
}

/// With little scratch memory, keys are expanded and experts run in several passes.
#[test]
fn passes_of_an_operation_are_submitted_separately() {
    let Some(device) = crate::testing::device() else { return };
    let (_folder, path) = random_model("tiny-v3", TensorType::F32);
    let way = MlaVariant { mla: MlaChoice::Naive, ..WAY };
    let run = |gpu: GpuBackend| {
        let mut model = load(&gpu, &path, way).unwrap();
        let mut kv = model.new_kv_store(4, 0).unwrap();
        let before = device.lists.load(Ordering::Relaxed);
        let cancel = CancelToken::new();
        let logits = step_in(way, &mut *model, &mut *kv, (0, 150), &cancel).unwrap();
        (logits, device.lists.load(Ordering::Relaxed) - before)
    };
    let gpu = || GpuBackend::on(Arc::clone(&device));
    let (expected, one) = run(gpu().with_scratch(1 << 14));
    let (found, of_passes) = run(gpu().with_scratch(1 << 14).with_portions_of(1.0));
    let (_, of_operations) = run(gpu().with_portions_of(1.0));
    assert!(found == expected, "other bits");
    assert!(one < of_operations && of_operations < of_passes, "{one} {of_operations} {of_passes}");
}

/// Attention is cut into as many calls as portions need: for a prompt, and for a few rows, whose KV
/// ranges are cut into splits anyway.
#[test]
fn attention_is_cut_into_portions_with_the_same_bits() {
    let Some(device) = crate::testing::device() else { return };
    let (_folder, path) = random_model("tiny-v3", TensorType::F32);
    let ways = [
        WAY,
        MlaVariant { mla: MlaChoice::Naive, ..WAY },
        MlaVariant { mla: MlaChoice::Naive, form: CacheForm::Expanded, ..WAY },
    ];
    for way in sample_of(ways, 0, 2) {
        let run = |portion: Option<f64>| {
            let gpu = GpuBackend::on(Arc::clone(&device));
            let gpu = portion.into_iter().fold(gpu, GpuBackend::with_portions_of);
            let mut model = load(&gpu, &path, way).unwrap();
            let mut kv = model.new_kv_store(4, 0).unwrap();
            let cancel = CancelToken::new();
            [(0, 150), (150, 16)].map(|at| {
                let counts = || [&device.calls, &device.lists].map(|count| count.load(Ordering::Relaxed));
                let before = counts();
                let logits = step_in(way, &mut *model, &mut *kv, at, &cancel).unwrap();
                let after = counts();
                (logits, [0, 1].map(|i| after[i] - before[i]))
            })
        };
        for (step, ((expected, whole), (found, cut))) in run(None).iter().zip(&run(Some(1.0))).enumerate() {
            assert!(found == expected, "{} {:?}: other bits", way.mla, way.form);
            // With expanded keys, the sixteen rows of one head are one task, which cannot be cut.
            let more = if step == 0 || way.mla == MlaChoice::Absorbed {
                whole[0] < cut[0]
            } else {
                whole[0] == cut[0]
            };
            assert!(more && whole[1] < cut[1], "{} {:?}: {whole:?} {cut:?}", way.mla, way.form);
        }
    }
}
