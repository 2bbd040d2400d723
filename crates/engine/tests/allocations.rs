//! A step after warm-up, sampling included, allocates nothing.
//!
//! One test in a program of its own: the allocator counts what every thread takes.
#![allow(unsafe_code, reason = "an allocator that counts")]

use latent_engine::cache::Sequence;
use latent_engine::sampling::{Sampler, SamplingParams};
use latent_engine::{Engine, EngineOptions, LogitsRequest, SeqInput};
use latent_formats::Checkpoint;
use latent_testing::{ModelRecipe, RandomWeightTypes};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

struct CountingAllocator;

static COUNT: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is handed to the system's allocator; only a count is kept.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, SeqCst);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn a_step_after_warm_up_allocates_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for shape in ["tiny-dense", "tiny-v3"] {
        let path = folder.path().join(format!("{shape}.gguf"));
        ModelRecipe::new(shape, RandomWeightTypes::from(latent_types::TensorType::Q4_0))
            .write_gguf(&path)
            .unwrap();
        let checkpoint = Arc::new(Checkpoint::open(&path).unwrap());
        let options = EngineOptions { context: Some(256), threads: Some(2), ..EngineOptions::default() };
        let mut engine =
            Engine::load(&*latent_backends::cpu(), &checkpoint, &options, &mut |_, _| {}).unwrap();
        let vocab = engine.config().vocab_size;
        let params = SamplingParams { temperature: 0.8, top_k: 20, ..SamplingParams::default() };
        let mut sampler = Sampler::new(params, vocab, Vec::new()).unwrap();
        let mut sequence = Sequence::default();
        let mut token = 1;
        let mut step = |token: &mut u32| {
            let tokens = [*token];
            let mut items = [SeqInput::tokens(&mut sequence, &tokens, LogitsRequest::Last)];
            let (sampler, next) = (&mut sampler, &mut *token);
            engine.step(&mut items, &mut |_, _, logits| *next = sampler.sample(logits).unwrap()).unwrap();
            sampler.accept(*token);
        };
        (0..20).for_each(|_| step(&mut token));
        let before = COUNT.load(SeqCst);
        // within one page of the cache, whose table grows by one number at a time
        (0..10).for_each(|_| step(&mut token));
        assert_eq!(COUNT.load(SeqCst) - before, 0, "{shape}: allocations in ten steps");
    }
}
