//! Misuse of an engine that a program without unsafe code can write, and that must be refused.
#![forbid(unsafe_code)]

use latent_engine::cache::{CacheFileError, CacheFull, Sequence};
use latent_engine::{CancelToken, Engine, EngineError, EngineOptions, LogitsRequest, SeqError, SeqInput};
use latent_formats::Checkpoint;
use latent_testing::{ModelRecipe, RandomWeightTypes};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tempfile::TempDir;

fn model() -> (TempDir, Arc<Checkpoint>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    ModelRecipe::new("tiny-v3", RandomWeightTypes::from(latent_types::TensorType::Q8_0))
        .write_gguf(&path)
        .unwrap();
    let checkpoint = Arc::new(Checkpoint::open(&path).unwrap());
    (folder, checkpoint)
}

fn engine(checkpoint: &Arc<Checkpoint>, context: usize) -> Engine {
    let options = EngineOptions {
        context: Some(context),
        max_batch_tokens: Some(128),
        threads: Some(2),
        ..EngineOptions::default()
    };
    Engine::load(&*latent_backends::cpu(), checkpoint, &options, &mut |_, _| {}).unwrap()
}

/// The logits of the last token.
fn run(engine: &mut Engine, sequence: &mut Sequence, tokens: &[u32]) -> Result<Vec<f32>, EngineError> {
    let mut last = Vec::new();
    let mut items = [SeqInput::tokens(sequence, tokens, LogitsRequest::Last)];
    engine.step(&mut items, &mut |_, _, logits| last = logits.to_vec())?.all()?;
    Ok(last)
}

#[test]
fn a_sequence_of_another_engine_is_refused_and_nothing_changes() {
    let (folder, checkpoint) = model();
    let (mut one, mut two) = (engine(&checkpoint, 256), engine(&checkpoint, 256));
    let mut sequence = Sequence::default();
    run(&mut one, &mut sequence, &[1, 2, 3]).unwrap();
    let mut own = Sequence::default();
    let expected = run(&mut two, &mut own, &[1, 2, 3, 4]).unwrap();
    let free = two.kv_cache().available();
    // The foreign sequence alone, and in a step with a sequence of this engine.
    let error = run(&mut two, &mut sequence, &[4]).unwrap_err();
    assert!(matches!(error, EngineError::Sequence { index: None, error: SeqError::Foreign }), "{error}");
    let mut shared = one.share(&sequence, 2);
    let mut items = [
        SeqInput::tokens(&mut own, &[5], LogitsRequest::Last),
        SeqInput::tokens(&mut shared, &[3], LogitsRequest::Last),
    ];
    let mut heard = Vec::new();
    let outcome = two.step(&mut items, &mut |input, row, _| heard.push((input, row))).unwrap();
    // The engine's own sequence runs, the other one does not.
    assert_eq!(outcome.results(), [Ok(()), Err(SeqError::Foreign)]);
    let error = outcome.all().unwrap_err().to_string();
    assert!(error.starts_with("sequence 1 of the step: this sequence belongs to another engine"), "{error}");
    assert_eq!(heard, [(0, 0)]);
    let path = folder.path().join("saved");
    for error in [two.shift(&mut sequence, 0..1), two.save(&sequence, &path)] {
        assert!(matches!(error, Err(EngineError::ForeignSequence)), "{error:?}");
    }
    assert!(!path.exists());
    assert_eq!((two.kv_cache().available(), own.len(), sequence.len()), (free, 5, 3));
    // Its own engine can still continue it, and another engine may release it.
    assert_eq!(run(&mut one, &mut sequence, &[4]).unwrap(), expected);
    two.release(sequence);
    drop(shared);
    assert_eq!((one.kv_cache().available(), two.kv_cache().available()), (256, free));
}

#[test]
fn sequences_without_room_are_refused_and_the_others_run() {
    let (_folder, checkpoint) = model();
    let mut engine = engine(&checkpoint, 192);
    let mut sequences: [Sequence; 3] = Default::default();
    let tokens = [1; 65];
    let step = |engine: &mut Engine, sequences: &mut [Sequence; 3], counts: &[(usize, usize)]| {
        let mut items: Vec<SeqInput<'_>> = Vec::new();
        for (sequence, (_, count)) in sequences.iter_mut().zip(counts) {
            items.push(SeqInput::tokens(sequence, &tokens[..*count], LogitsRequest::Last));
        }
        let mut heard = 0;
        let refused = engine.step(&mut items, &mut |_, _, _| heard += 1).unwrap();
        let refused: Vec<_> = refused.refused().map(|(index, error)| (index, error.clone())).collect();
        (heard, refused)
    };
    // The cache has three blocks. The first two sequences take one each, so that the third, which
    // needs two, finds only one.
    let (heard, refused) = step(&mut engine, &mut sequences, &[(0, 1), (1, 62), (2, 65)]);
    let full = CacheFull { rows: 65, cached: 0, capacity: 192 };
    assert_eq!((heard, refused), (2, vec![(2, SeqError::CacheFull(full))]));
    assert_eq!(sequences.each_ref().map(|sequence| sequence.len()), [1, 62, 0]);
    assert!(sequences[2].block_table().is_empty());
    assert_eq!(engine.kv_cache().available(), 64);
    // The first sequence takes the last free block.
    let (heard, refused) = step(&mut engine, &mut sequences, &[(0, 64), (1, 64)]);
    assert_eq!((heard, refused.len(), refused[0].0), (1, 1, 1));
    assert_eq!(sequences.each_ref().map(|sequence| sequence.len()), [65, 62, 0]);
    let error = run(&mut engine, &mut sequences[2], &tokens).unwrap_err();
    assert!(matches!(error, EngineError::Sequence { error: SeqError::CacheFull(_), .. }), "{error}");
    // The end of the first sequence frees blocks for the second.
    sequences[0] = Sequence::default();
    assert_eq!(step(&mut engine, &mut sequences, &[(0, 1), (1, 64)]), (2, Vec::new()));
}

#[test]
fn a_cancelled_step_changes_no_sequence_and_the_next_one_runs() {
    let (_folder, checkpoint) = model();
    let mut engine = engine(&checkpoint, 256);
    let mut sequence = Sequence::default();
    run(&mut engine, &mut sequence, &[1, 2, 3]).unwrap();
    let token = CancelToken::new();
    engine.set_cancel_token(token.clone());
    // From another thread, as a server does.
    std::thread::spawn({
        let token = token.clone();
        move || token.cancel()
    })
    .join()
    .unwrap();
    let error = run(&mut engine, &mut sequence, &[4; 100]).unwrap_err();
    assert!(matches!(error, EngineError::Stopped), "{error}");
    assert_eq!(sequence.len(), 3);
    engine.set_cancel_token(CancelToken::new());
    let went_on = run(&mut engine, &mut sequence, &[4]).unwrap();
    assert_eq!(run(&mut engine, &mut Sequence::default(), &[1, 2, 3, 4]).unwrap(), went_on);
}

#[test]
fn blocks_of_dropped_sequences_are_freed_even_after_a_panic() {
    let (_folder, checkpoint) = model();
    let mut engine = engine(&checkpoint, 192);
    let expected = run(&mut engine, &mut Sequence::default(), &[1; 100]).unwrap();
    for _ in 0..22 {
        run(&mut engine, &mut Sequence::default(), &[2; 70]).unwrap();
        let lost = catch_unwind(AssertUnwindSafe(|| {
            let mut sequence = Sequence::default();
            let mut items = [SeqInput::tokens(&mut sequence, &[3; 100], LogitsRequest::Last)];
            let _ = engine.step(&mut items, &mut |_, _, _| panic!("a request that fails"));
        }));
        assert!(lost.is_err());
        assert_eq!(engine.kv_cache().available(), 192);
    }
    assert_eq!(run(&mut engine, &mut Sequence::default(), &[1; 100]).unwrap(), expected);
}

#[test]
fn steps_beyond_the_limits_of_the_engine_are_refused() {
    let (_folder, checkpoint) = model();
    let error = run(&mut engine(&checkpoint, 256), &mut Sequence::default(), &[1; 129]).unwrap_err();
    assert!(matches!(error, EngineError::Rows { rows: 129, max_batch_tokens: 128 }), "{error}");
    for max_batch_tokens in [usize::MAX, 1 << 60, (1 << 20) + 1] {
        let options = EngineOptions { max_batch_tokens: Some(max_batch_tokens), ..EngineOptions::default() };
        let error =
            Engine::load(&*latent_backends::cpu(), &checkpoint, &options, &mut |_, _| {}).err().unwrap();
        assert!(error.to_string().contains(&format!("a step of {max_batch_tokens} rows")), "{error}");
    }
}

/// The file with a correct checksum.
fn with_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.len() - 8);
    let sum = bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

#[test]
fn saved_rows_belong_to_their_own_tokens() {
    let (folder, checkpoint) = model();
    let mut engine = engine(&checkpoint, 256);
    let path = folder.path().join("saved");
    let mut sequence = Sequence::default();
    run(&mut engine, &mut sequence, &[1, 2, 3]).unwrap();
    assert_eq!(sequence.tokens(), [1, 2, 3]);
    engine.save(&sequence, &path).unwrap();
    let (mut restored, tokens) = engine.restore(&path).unwrap();
    assert_eq!((&tokens[..], restored.tokens()), (&[1, 2, 3][..], &[1, 2, 3][..]));
    assert_eq!(
        run(&mut engine, &mut restored, &[4]).unwrap(),
        run(&mut engine, &mut sequence, &[4]).unwrap()
    );

    // The tokens of a sequence change with its rows.
    assert_eq!(engine.share(&sequence, 2).tokens(), [1, 2]);
    assert_eq!((engine.truncate(&mut sequence, 3), sequence.tokens()), (3, &[1, 2, 3][..]));
    engine.shift(&mut sequence, 1..2).unwrap();
    assert_eq!((sequence.len(), sequence.tokens()), (2, &[1][..]));
    let refused = engine.save(&sequence, &path).unwrap_err();
    assert!(
        matches!(refused, EngineError::CacheFile(CacheFileError::Shifted { position: 1, .. })),
        "{refused}"
    );
    run(&mut engine, &mut sequence, &[5]).unwrap();
    assert_eq!((sequence.len(), sequence.tokens()), (3, &[1][..]));
    // Rows after a shift stand for no text, so that they cannot be saved. Without them, the
    // sequence can be saved again.
    assert_eq!(engine.truncate(&mut sequence, 1), 1);
    run(&mut engine, &mut sequence, &[7]).unwrap();
    engine.save(&sequence, &path).unwrap();

    // A file with a correct checksum and tokens outside of the vocabulary.
    let whole = std::fs::read(&path).unwrap();
    let at = whole.windows(8).position(|bytes| bytes == [1, 0, 0, 0, 7, 0, 0, 0]).unwrap();
    let vocab = engine.config().vocab_size as u32;
    for token in [vocab, u32::MAX] {
        let mut bytes = whole.clone();
        bytes[at + 4..at + 8].copy_from_slice(&token.to_le_bytes());
        std::fs::write(&path, with_checksum(bytes)).unwrap();
        for refused in [engine.restore(&path).map(drop), engine.restore_session(&path).map(drop)] {
            let refused = refused.unwrap_err().to_string();
            assert!(
                refused.contains(&format!("token id {token} at position 1 is out of range")),
                "{refused}"
            );
        }
    }
    let mut bytes = whole.clone();
    bytes[at + 4..at + 8].copy_from_slice(&(vocab - 1).to_le_bytes());
    std::fs::write(&path, with_checksum(bytes)).unwrap();
    assert_eq!(engine.restore(&path).unwrap().1, [1, vocab - 1]);
}
