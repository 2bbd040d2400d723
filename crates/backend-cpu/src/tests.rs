//! What keeps a step inside of the memory that was made for it.

use super::{Batch, CpuBackend};
use crate::kv_store::CpuKvStore;
use crate::{Engine, EngineOptions};
use latent_backend::KV_BLOCK;
use latent_formats::Checkpoint;
use latent_testing::{Kind, Recipe};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const LARGEST: usize = 32;

fn engine(threads: usize) -> Engine {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    Recipe::new("tiny-v3", Kind::from(latent_types::TensorType::Q8_0)).write_gguf(&path).unwrap();
    let checkpoint = Arc::new(Checkpoint::open(&path).unwrap());
    let (context, max_batch_tokens, threads) = (Some(256), Some(LARGEST), Some(threads));
    let options = EngineOptions { context, max_batch_tokens, threads, ..EngineOptions::default() };
    Engine::load(&checkpoint, &options, &mut |_, _| {}).unwrap()
}

/// The layers over a batch of so many rows, as a step would run them; what a panic said.
fn forward(backend: &mut CpuBackend, pool: &mut BlockPool, rows: usize) -> Result<(), String> {
    let (mut batch, mut sequence) = (Batch::default(), Sequence::default());
    pool.reserve(&mut sequence, rows).unwrap();
    batch.push(&vec![1; rows], 0, sequence.pages(), backend.path(rows));
    catch_unwind(AssertUnwindSafe(|| backend.forward(&batch, pool)))
        .map_err(|panic| panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "another panic".into()))
}

#[test]
fn more_rows_than_the_arena_was_made_for_are_refused() {
    let mut engine = engine(2);
    let (backend, pool) = engine.parts();
    for rows in [LARGEST + 1, 2 * LARGEST, 3 * KV_BLOCK] {
        let said = forward(backend, pool, rows).unwrap_err();
        assert_eq!(said, format!("a batch of {rows} rows, but at most {LARGEST} fit"));
    }
    forward(backend, pool, LARGEST).unwrap();
}

#[test]
fn values_outside_of_their_memory_are_refused_in_every_place() {
    let mut engine = engine(1);
    let (backend, pool) = engine.parts();
    let arena: fn(&mut CpuBackend) = |backend| backend.arena.truncate(64);
    for cut in [arena, |backend| backend.hidden.truncate(64)] {
        let whole = (backend.arena.clone(), backend.hidden.clone());
        cut(backend);
        let said = forward(backend, pool, 8).unwrap_err();
        assert!(said.starts_with("numbers ") && said.ends_with(" of 64"), "{said}");
        (backend.arena, backend.hidden) = whole;
        forward(backend, pool, 8).unwrap();
    }
}

#[test]
fn sizes_that_wrap_are_errors_in_this_crate() {
    let sum = std::panic::catch_unwind(|| std::hint::black_box(usize::MAX) + std::hint::black_box(1));
    assert!(sum.is_err(), "overflow checks are off: see [profile.release.package] in the root Cargo.toml");
}
