//! Recurrent state in addition to cached rows: a random model on the reference backend with two toy
//! recurrences before its first layer, so that rows and logits depend on every earlier token
//! through states of fixed size.

use crate::support;
use crate::support::{bits, checkpoint};
use latent_backend_reference::{ReferenceBackend, ToyRecurrence};
use latent_engine::cache::{CacheFileError, Sequence, StateOptions, StatesFull};
use latent_engine::sampling::SamplingParams;
use latent_engine::{
    CancelToken, ContextShift, Engine, EngineError, EngineOptions, Listener, LogitsRequest, Request,
    SeqError, SeqInput, Session, StopReason,
};
use latent_formats::Checkpoint;
use latent_graph::passes::MlaChoice;
use latent_testing::ModelRecipe;
use latent_text::Tokenizer;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

/// A snapshot after each block, so that short texts have several.
const OFTEN: StateOptions = StateOptions { sequences: 4, snapshots: 4, every: 64 };

struct RecurrentModel {
    folder: TempDir,
    checkpoint: Arc<Checkpoint>,
    fails: Arc<AtomicBool>,
}

impl RecurrentModel {
    fn new() -> RecurrentModel {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        let recipe =
            ModelRecipe { layers: Some(1), ..ModelRecipe::new("tiny-dense", "F32".parse().unwrap()) };
        recipe.write_gguf(&path).unwrap();
        RecurrentModel { checkpoint: checkpoint(&path), folder, fails: Arc::default() }
    }

    fn engine(&self, states: StateOptions) -> Engine {
        let second = ToyRecurrence { decay: 0.25, fails: Arc::clone(&self.fails) };
        let backend = ReferenceBackend::with_recurrences(vec![ToyRecurrence::new(0.75), second]);
        Engine::load(&backend, &self.checkpoint, &options(states), &mut |_, _| {}).unwrap()
    }

    fn file(&self) -> std::path::PathBuf {
        self.folder.path().join("saved.kv")
    }
}

fn options(states: StateOptions) -> EngineOptions {
    EngineOptions {
        // One formulation of attention, so that the bits do not depend on the number of rows.
        mla: MlaChoice::Absorbed,
        context: Some(1024),
        max_batch_tokens: Some(256),
        threads: Some(1),
        states,
        ..EngineOptions::default()
    }
}

fn text(count: usize) -> Vec<u32> {
    (0..count as u32).map(|i| (i * i * 7 + 3 * i) % 250).collect()
}

/// The logits of the last token, as bits.
fn feed(engine: &mut Engine, sequence: &mut Sequence, tokens: &[u32]) -> Vec<u32> {
    feed_in(engine, sequence, tokens, 256)
}

fn feed_in(engine: &mut Engine, sequence: &mut Sequence, tokens: &[u32], chunk: usize) -> Vec<u32> {
    let mut last = Vec::new();
    let take = &mut |_: usize, logits: &[f32]| last = logits.iter().map(|x| x.to_bits()).collect();
    engine.prefill(sequence, tokens, chunk, LogitsRequest::Last, take, &mut |_| true).unwrap();
    last
}

/// The logits of a new sequence after `tokens`.
fn fresh(engine: &mut Engine, tokens: &[u32]) -> Vec<u32> {
    feed(engine, &mut Sequence::default(), tokens)
}

fn positions(sequence: &Sequence) -> Vec<usize> {
    sequence.snapshots().collect()
}

#[test]
fn logits_depend_on_the_state_and_not_on_the_chunks() {
    let model = RecurrentModel::new();
    let tokens = text(150);
    let mut engine = model.engine(OFTEN);
    let whole = support::all_logits(&mut engine, &tokens, 256);
    for chunk in [1, 7, 64, 100] {
        assert!(bits(&support::all_logits(&mut engine, &tokens, chunk)) == bits(&whole), "{chunk}");
    }
    let backend = latent_backends::reference();
    let mut plain = Engine::load(&*backend, &model.checkpoint, &options(OFTEN), &mut |_, _| {}).unwrap();
    assert!(bits(&support::all_logits(&mut plain, &tokens, 256)) != bits(&whole));
    // Two sequences with different states in one step.
    let mut sequences: [Sequence; 2] = Default::default();
    let (a, b) = (&tokens[..70], &tokens[70..]);
    let [one, two] = &mut sequences;
    let mut inputs =
        [SeqInput::tokens(one, a, LogitsRequest::Last), SeqInput::tokens(two, b, LogitsRequest::Last)];
    let mut logits = [Vec::new(), Vec::new()];
    engine
        .step(&mut inputs, &mut |input, _, row| logits[input] = row.iter().map(|x| x.to_bits()).collect())
        .unwrap()
        .all()
        .unwrap();
    assert!(logits == [fresh(&mut engine, a), fresh(&mut engine, b)]);
}

#[test]
fn a_truncated_sequence_continues_from_a_snapshot_like_a_new_one() {
    let model = RecurrentModel::new();
    let mut engine = model.engine(OFTEN);
    let tokens = text(230);
    let expected = fresh(&mut engine, &tokens);
    for chunk in [50, 256] {
        let mut sequence = Sequence::default();
        feed_in(&mut engine, &mut sequence, &tokens, chunk);
        assert_eq!(positions(&sequence), [64, 128, 192]);
        assert_eq!((sequence.reusable(1000), sequence.reusable(229), sequence.reusable(63)), (230, 192, 0));
        // Truncating to the present length changes nothing.
        assert_eq!(engine.truncate(&mut sequence, 230), 230);
        for (to, at) in [(200, 192), (192, 192), (150, 128), (100, 64), (63, 0)] {
            assert_eq!((engine.truncate(&mut sequence, to), sequence.len()), (at, at));
            assert_eq!(sequence.block_table().len(), at.div_ceil(64));
            assert!(positions(&sequence).iter().all(|position| *position <= at));
            // Another text runs first, so that leftovers of it would change the logits.
            let mut other = engine.share(&sequence, at);
            feed(&mut engine, &mut other, &[9; 30]);
            assert!(feed(&mut engine, &mut sequence, &tokens[at..]) == expected, "chunks of {chunk}, {to}");
        }
    }
    assert_eq!(engine.kv_cache().available_states(), engine.kv_cache().state_slots());
}

#[test]
fn forks_are_independent() {
    let model = RecurrentModel::new();
    let mut engine = model.engine(OFTEN);
    let tokens = text(200);
    let mut stem = Sequence::default();
    feed(&mut engine, &mut stem, &tokens[..140]);
    let used = |engine: &Engine| engine.kv_cache().state_slots() - engine.kv_cache().available_states();
    let before = used(&engine);
    let (mut end, mut middle, mut none) =
        (engine.share(&stem, 140), engine.share(&stem, 139), engine.share(&stem, 50));
    assert_eq!(used(&engine), before, "a fork takes no slot until it runs");
    assert_eq!([end.len(), middle.len(), none.len()], [140, 128, 0]);
    let left = feed(&mut engine, &mut stem, &tokens[140..]);
    let right = feed(&mut engine, &mut end, &[5, 6, 7]);
    let back = feed(&mut engine, &mut middle, &[8; 20]);
    let anew = feed(&mut engine, &mut none, &[1, 2]);
    assert!(left == fresh(&mut engine, &tokens));
    assert!(right == fresh(&mut engine, &[&tokens[..140], &[5, 6, 7]].concat()));
    assert!(back == fresh(&mut engine, &[&tokens[..128], &[8; 20]].concat()));
    assert!(anew == fresh(&mut engine, &[1, 2]));
    // A fork keeps the shared snapshots when its origin is dropped.
    drop(stem);
    assert_eq!(engine.truncate(&mut end, 130), 128);
    assert!(feed(&mut engine, &mut end, &tokens[128..]) == left);
}

#[test]
fn a_step_that_ends_early_does_not_change_the_state() {
    let model = RecurrentModel::new();
    let mut engine = model.engine(OFTEN);
    let tokens = text(140);
    let mut sequence = Sequence::default();
    feed(&mut engine, &mut sequence, &tokens[..100]);
    let (free, kept) = (engine.kv_cache().available_states(), positions(&sequence));
    let cancel = CancelToken::new();
    engine.set_cancel_token(cancel.clone());
    let end = |engine: &mut Engine, sequence: &mut Sequence, tokens: &[u32]| {
        let mut inputs = [SeqInput::tokens(sequence, tokens, LogitsRequest::Last)];
        engine.step(&mut inputs, &mut |_, _, _| panic!("no logits")).err().unwrap()
    };
    // The backend checks the cancel token after its first node, which has written the new states
    // already: the step must not have written them over the present ones.
    cancel.cancel();
    assert!(matches!(end(&mut engine, &mut sequence, &[9; 60]), EngineError::Stopped));
    engine.set_cancel_token(CancelToken::new());
    model.fails.store(true, Ordering::Relaxed);
    let failed = end(&mut engine, &mut sequence, &[8; 100]);
    assert!(failed.to_string().contains("told to fail"), "{failed}");
    let mut new = Sequence::default();
    end(&mut engine, &mut new, &[3; 70]);
    assert_eq!((new.len(), positions(&new)), (0, vec![]));
    model.fails.store(false, Ordering::Relaxed);
    assert_eq!((sequence.len(), positions(&sequence)), (100, kept));
    assert_eq!(engine.kv_cache().available_states(), free);
    let went_on = feed(&mut engine, &mut sequence, &tokens[100..]);
    assert!(went_on == fresh(&mut engine, &tokens));
    assert!(feed(&mut engine, &mut new, &tokens) == went_on);
}

#[test]
fn a_limited_number_of_snapshots_is_kept_at_a_distance() {
    let model = RecurrentModel::new();
    let mut engine = model.engine(StateOptions { snapshots: 3, ..OFTEN });
    let tokens = text(400);
    let mut sequence = Sequence::default();
    // Requested snapshots: within a chunk, and at the end of one.
    engine.snapshot_at(&mut sequence, 10).unwrap();
    feed(&mut engine, &mut sequence, &tokens[..50]);
    engine.snapshot(&mut sequence).unwrap();
    engine.snapshot(&mut sequence).unwrap();
    engine.snapshot_at(&mut sequence, 20).unwrap();
    assert_eq!(positions(&sequence), [10, 50], "each once, without earlier positions");
    feed(&mut engine, &mut sequence, &tokens[50..130]);
    assert_eq!(positions(&sequence), [50, 64, 128]);
    let mut seen = Vec::new();
    for (step, part) in tokens[130..].chunks(47).enumerate() {
        feed(&mut engine, &mut sequence, part);
        let now = positions(&sequence);
        assert!(now.len() <= 3 && now.last() == Some(&(sequence.len() / 64 * 64)), "{step}: {now:?}");
        seen = now;
    }
    assert_eq!((seen.len(), seen[2]), (3, 384));
    assert!(seen[0] <= 200, "{seen:?}");
    let expected = fresh(&mut engine, &tokens);
    for position in seen.into_iter().rev() {
        assert_eq!(engine.truncate(&mut sequence, position), position);
        assert!(feed(&mut engine, &mut sequence, &tokens[position..]) == expected);
        assert_eq!(engine.truncate(&mut sequence, position), position);
    }
    // Without snapshots, a sequence can only go back to its start.
    let mut bare = model.engine(StateOptions { snapshots: 0, ..OFTEN });
    let mut sequence = Sequence::default();
    feed(&mut bare, &mut sequence, &tokens[..200]);
    bare.snapshot(&mut sequence).unwrap();
    assert_eq!((positions(&sequence), bare.truncate(&mut sequence, 199)), (vec![], 0));
}

#[test]
fn sequences_without_a_slot_are_refused_and_the_others_run() {
    let model = RecurrentModel::new();
    // Each sequence needs two slots, one for the present state and one for the next. No slots are
    // left for snapshots.
    let mut engine = model.engine(StateOptions { sequences: 2, snapshots: 0, every: 64 });
    let slots = engine.kv_cache().state_slots();
    assert_eq!(slots, 4);
    let tokens = text(80);
    let mut sequences: [Sequence; 5] = Default::default();
    let step = |engine: &mut Engine, sequences: &mut [Sequence], tokens: &[u32]| {
        let of = |sequence| SeqInput::tokens(sequence, tokens, LogitsRequest::Last);
        let mut inputs: Vec<_> = sequences.iter_mut().map(of).collect();
        let outcome = engine.step(&mut inputs, &mut |_, _, _| {}).unwrap();
        outcome.refused().map(|(index, error)| (index, error.clone())).collect::<Vec<_>>()
    };
    let full = || SeqError::StatesFull(StatesFull { slots });
    let rows = engine.kv_cache().available();
    assert_eq!(step(&mut engine, &mut sequences, &tokens[..40]), [(4, full())]);
    assert_eq!((sequences[3].len(), sequences[4].len(), sequences[4].block_table().len()), (40, 0, 0));
    assert_eq!(engine.kv_cache().available(), rows - 4 * 64, "nor does it hold blocks back");
    // All slots are in use: no sequence can run a step.
    assert_eq!(step(&mut engine, &mut sequences[..2], &[1]), [(0, full()), (1, full())]);
    assert!(full().to_string().contains("all 4 slots of recurrent state are in use"), "{}", full());
    // The end of a sequence frees its slot.
    sequences[3] = Sequence::default();
    assert_eq!(step(&mut engine, &mut sequences[..2], &tokens[40..]), [(1, full())]);
    drop(sequences);
    assert_eq!(engine.kv_cache().available_states(), slots);
    assert!(!fresh(&mut engine, &tokens).is_empty());
}

#[test]
fn a_sequence_drops_snapshots_before_it_runs_out_of_slots() {
    let model = RecurrentModel::new();
    let mut engine = model.engine(StateOptions { sequences: 1, snapshots: 2, every: 64 });
    let tokens = text(300);
    let mut one = Sequence::default();
    feed(&mut engine, &mut one, &tokens[..250]);
    assert_eq!((positions(&one), engine.kv_cache().available_states()), (vec![128, 192], 1));
    let mut two = Sequence::default();
    feed(&mut engine, &mut two, &tokens[..5]);
    assert_eq!(engine.kv_cache().available_states(), 0);
    // A sequence drops its own snapshots, the less useful first, and never those of another one.
    feed(&mut engine, &mut one, &tokens[250..251]);
    assert_eq!(positions(&one), [192]);
    assert!(feed_in(&mut engine, &mut one, &tokens[251..], 20) == fresh_elsewhere(&model, &tokens));
    drop((one, two));
    assert_eq!(engine.kv_cache().available_states(), engine.kv_cache().state_slots());
}

fn fresh_elsewhere(model: &RecurrentModel, tokens: &[u32]) -> Vec<u32> {
    fresh(&mut model.engine(OFTEN), tokens)
}

#[test]
fn slots_are_freed_however_a_sequence_ends() {
    let model = RecurrentModel::new();
    let mut engine = model.engine(OFTEN);
    let slots = engine.kv_cache().state_slots();
    for _ in 0..4 {
        let mut sequence = Sequence::default();
        feed(&mut engine, &mut sequence, &text(130));
        let fork = engine.share(&sequence, 100);
        engine.release(sequence);
        assert_eq!(positions(&fork), [64]);
        assert_eq!(engine.kv_cache().available_states(), slots - 1);
        drop(fork);
        let lost = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut sequence = Sequence::default();
            let mut inputs = [SeqInput::tokens(&mut sequence, &[3; 100], LogitsRequest::Last)];
            let _ = engine.step(&mut inputs, &mut |_, _, _| panic!("a request that fails"));
        }));
        assert!(lost.is_err());
        assert_eq!(engine.kv_cache().available_states(), slots);
    }
    // A sequence may outlive its engine. Another engine refuses a sequence that has run, and one
    // for which only a snapshot was requested.
    let mut sequence = Sequence::default();
    let mut asked = Sequence::default();
    feed(&mut engine, &mut sequence, &[1, 2]);
    engine.snapshot_at(&mut asked, 5).unwrap();
    let mut other = model.engine(OFTEN);
    for sequence in [&mut sequence, &mut asked] {
        assert!(matches!(other.snapshot(sequence), Err(EngineError::ForeignSequence)));
        let mut inputs = [SeqInput::tokens(sequence, &[1], LogitsRequest::Last)];
        assert_eq!(other.step(&mut inputs, &mut |_, _, _| {}).unwrap().results(), [Err(SeqError::Foreign)]);
    }
    drop(engine);
    drop(sequence);
}

#[test]
fn a_saved_sequence_has_its_state_and_its_snapshots() {
    let model = RecurrentModel::new();
    let (mut engine, mut other) = (model.engine(OFTEN), model.engine(OFTEN));
    let tokens = text(200);
    let path = model.file();
    for length in [0, 50, 192, 200] {
        let mut sequence = Sequence::default();
        if length > 0 {
            feed(&mut engine, &mut sequence, &tokens[..length]);
        }
        let mut session = Session::from(sequence);
        assert_eq!(engine.save_session(&mut session, Some(b"about"), &path).unwrap(), length);
        let (mut restored, attachment) = other.restore_session(&path).unwrap();
        assert_eq!(attachment.as_deref(), Some(&b"about"[..]));
        assert_eq!((restored.sequence.len(), restored.tokens()), (length, &tokens[..length]));
        let went_on = feed(&mut other, &mut restored.sequence, &[4, 5]);
        assert!(went_on == fresh(&mut engine, &[&tokens[..length], &[4, 5]].concat()), "{length}");
        if length == 200 {
            assert_eq!(other.truncate(&mut restored.sequence, 150), 128);
            let went_on = feed(&mut other, &mut restored.sequence, &tokens[128..]);
            assert!(went_on == fresh(&mut engine, &tokens));
        }
    }
    assert_eq!(other.kv_cache().available_states(), other.kv_cache().state_slots());
    // An engine with fewer slots restores only the newest states.
    let mut narrow = model.engine(StateOptions { sequences: 1, snapshots: 1, every: 64 });
    let (restored, _) = narrow.restore(&path).unwrap();
    assert_eq!(positions(&restored), [200]);
    let mut busy: Vec<Sequence> = vec![restored];
    while narrow.kv_cache().available_states() > 0 {
        busy.push(Sequence::default());
        feed(&mut narrow, busy.last_mut().unwrap(), &[1]);
    }
    let refused = narrow.restore(&path).err().unwrap();
    assert!(matches!(refused, EngineError::CacheFile(CacheFileError::StatesFull { .. })), "{refused}");
}

#[test]
fn files_of_another_kind_and_damaged_ones_are_refused() {
    let model = RecurrentModel::new();
    let mut engine = model.engine(OFTEN);
    let mut plain =
        Engine::load(&*latent_backends::reference(), &model.checkpoint, &options(OFTEN), &mut |_, _| {})
            .unwrap();
    let (path, tokens) = (model.file(), text(70));
    let mut sequence = Sequence::default();
    feed(&mut plain, &mut sequence, &tokens);
    plain.save(&sequence, &path).unwrap();
    assert!(std::fs::read(&path).unwrap().starts_with(b"LATNTKV1"), "as before");
    let refused = engine.restore(&path).unwrap_err().to_string();
    assert!(refused.contains("another kind of cache: without recurrent state"), "{refused}");

    let mut sequence = Sequence::default();
    feed(&mut engine, &mut sequence, &tokens);
    engine.save(&sequence, &path).unwrap();
    let refused = plain.restore(&path).unwrap_err().to_string();
    assert!(refused.contains("another kind of cache: with recurrent state"), "{refused}");
    drop(sequence);

    let whole = std::fs::read(&path).unwrap();
    let layout = engine.kv_cache().layout();
    let states = whole.len() - 8 - 2 * (8 + layout.state_bytes());
    let (free, rows) = (engine.kv_cache().available_states(), engine.kv_cache().available());
    let second = states + 8 + layout.state_bytes();
    // Wrong numbers of states, orders, positions and contents.
    for (at, bytes) in
        [(32, 3), (32, 1), (32, 0), (states, 70), (states, 0), (second, 64), (second, 71), (states + 9, 1)]
    {
        let mut changed = whole.clone();
        changed[at] = bytes;
        let sum = changed[..changed.len() - 8].iter().fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| {
            (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let end = changed.len() - 8;
        if at != states + 9 {
            changed[end..].copy_from_slice(&sum.to_le_bytes());
        }
        std::fs::write(&path, &changed).unwrap();
        let refused = engine.restore(&path).unwrap_err().to_string();
        assert!(refused.contains("not a saved Latent sequence"), "{at}: {refused}");
    }
    std::fs::write(&path, &whole[..whole.len() - 20]).unwrap();
    assert!(engine.restore(&path).is_err());
    assert_eq!((engine.kv_cache().available_states(), engine.kv_cache().available()), (free, rows));
}

#[test]
fn unsupported_operations_are_refused_and_the_memory_of_states_is_counted() {
    let model = RecurrentModel::new();
    let mut engine = model.engine(OFTEN);
    let mut sequence = Sequence::default();
    feed(&mut engine, &mut sequence, &text(100));
    let refused = engine.shift(&mut sequence, 3..40).unwrap_err();
    assert!(matches!(refused, EngineError::NoContextShift), "{refused}");
    assert!(refused.to_string().contains("cannot forget tokens"), "{refused}");
    assert_eq!(sequence.len(), 100);
    let (layout, hidden) = (engine.kv_cache().layout(), engine.config().hidden_size);
    assert_eq!(layout.state_bytes(), 2 * 4 * hidden);
    assert_eq!((layout.layers.len(), layout.recurrent().count(), layout.state_slots), (3, 2, 24));
    let needed = engine.needed();
    assert_eq!(needed.state, 24 * 8 * hidden as u64);
    assert!(needed.parts().any(|part| part == ("state", needed.state)));

    let many = options(StateOptions { sequences: usize::MAX, ..OFTEN });
    let backend = ReferenceBackend::with_recurrences(vec![ToyRecurrence::new(0.5)]);
    let refused = Engine::load(&backend, &model.checkpoint, &many, &mut |_, _| {}).err().unwrap();
    assert!(refused.to_string().contains("too many slots"), "{refused}");
}

struct RecurrentListener;

impl Listener for RecurrentListener {}

#[test]
fn a_conversation_goes_back_to_the_ends_of_its_messages() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/mla-demo-Q4_K_M.gguf");
    let file = checkpoint(&demo);
    let tokenizer = Arc::new(Tokenizer::from_checkpoint(&file).unwrap());
    let backend = ReferenceBackend::with_recurrences(vec![ToyRecurrence::new(0.5)]);
    let mut engine =
        Engine::load(&backend, &file, &options(StateOptions::default()), &mut |_, _| {}).unwrap();
    let request = |prompt: &[u32]| Request {
        prompt: prompt.to_vec(),
        sampling: SamplingParams {
            logit_bias: tokenizer.end_of_generation().iter().map(|id| (*id, f32::NEG_INFINITY)).collect(),
            ..SamplingParams::greedy()
        },
        max_tokens: Some(4),
        ..Request::default()
    };
    let mut ask = |session: &mut Session, prompt: &[u32]| {
        engine.generate(session, &request(prompt), &tokenizer, &mut RecurrentListener).unwrap()
    };
    let prompt: Vec<u32> = (20..32).collect();
    let mut session = Session::default();
    let first = ask(&mut session, &prompt);
    assert_eq!((first.cached_tokens, first.stop), (0, StopReason::Length));
    // Another answer to the same prompt: all tokens of the prompt but the last are cached.
    let again = ask(&mut session, &prompt);
    assert_eq!((again.cached_tokens, &again.tokens), (11, &first.tokens));
    // The next message continues from the present state.
    let said = session.tokens().to_vec();
    let longer = [&said[..], &[40, 41, 42]].concat();
    let second = ask(&mut session, &longer);
    assert_eq!((said.len(), second.cached_tokens), (15, 15));
    assert_eq!(second.tokens, ask(&mut Session::default(), &longer).tokens);
    // Back to the end of the first answer, with another message.
    let other = [&said[..], &[50, 51]].concat();
    let answer = ask(&mut session, &other);
    assert_eq!(answer.cached_tokens, 15);
    assert_eq!(answer.tokens, ask(&mut Session::default(), &other).tokens);

    let shifted = Request { shift: Some(ContextShift { keep: 2, discard: 0 }), ..request(&prompt) };
    let refused = engine.generate(&mut session, &shifted, &tokenizer, &mut RecurrentListener).unwrap_err();
    assert!(matches!(refused, EngineError::NoContextShift), "{refused}");
}
