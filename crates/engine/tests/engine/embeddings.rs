//! Embeddings in place of tokens: the model's own embeddings give the bits of its tokens, on every
//! backend and in every mix and chunking. A malformed embedding is refused only for its sequence.

use crate::support::{checkpoint, folder};
use latent_backend::Backend;
use latent_backend_reference::{ReferenceBackend, ToyRecurrence};
use latent_engine::cache::{CacheFileError, Sequence, StateOptions};
use latent_engine::sampling::SamplingParams;
use latent_engine::{
    Engine, EngineError, EngineOptions, InputRows, Listener, LogitsRequest, Request, SeqError, SeqInput,
    Session,
};
use latent_formats::Checkpoint;
use latent_graph::passes::{MlaChoice, Precision};
use latent_testing::ModelRecipe;
use latent_text::Tokenizer;
use std::path::Path;
use std::sync::Arc;

fn options(precision: Precision, mla: MlaChoice) -> EngineOptions {
    EngineOptions {
        precision,
        mla,
        context: Some(512),
        max_batch_tokens: Some(128),
        threads: Some(1),
        states: StateOptions { every: 64, ..StateOptions::default() },
        ..EngineOptions::default()
    }
}

fn load(backend: &dyn Backend, checkpoint: &Arc<Checkpoint>, options: &EngineOptions) -> Engine {
    Engine::load(backend, checkpoint, options, &mut |_, _| {}).unwrap()
}

/// The model's embeddings of `tokens`, rows × hidden, multiplied by its factor.
fn looked_up(engine: &mut Engine, checkpoint: &Checkpoint, tokens: &[u32]) -> Vec<f32> {
    let activations = engine.activations(checkpoint).unwrap();
    let trace = engine.trace(&activations, 0..0, tokens, &mut |_| true).unwrap();
    let embed = activations.list().iter().position(|activation| activation.name == "embed").unwrap();
    let values = trace.values(embed).unwrap();
    assert!(values.all() && values.width == engine.config().hidden_size);
    values.numbers.clone()
}

/// Tokens with their embeddings.
struct EmbeddedText {
    tokens: Vec<u32>,
    values: Vec<f32>,
    hidden: usize,
}

impl EmbeddedText {
    fn new(engine: &mut Engine, checkpoint: &Checkpoint, count: usize) -> EmbeddedText {
        let tokens: Vec<u32> = (0..count as u32).map(|i| (i * i * 5 + 3 * i) % 100).collect();
        let values = looked_up(engine, checkpoint, &tokens);
        EmbeddedText { tokens, values, hidden: engine.config().hidden_size }
    }

    fn rows(&self, range: std::ops::Range<usize>, embedded: bool) -> InputRows<'_> {
        if !embedded {
            return InputRows::Tokens(&self.tokens[range]);
        }
        let values = &self.values[range.start * self.hidden..range.end * self.hidden];
        InputRows::Embeddings { values, width: self.hidden }
    }
}

/// Runs two halves of a text as two sequences, a fixed number of rows of each per step. `embedded`
/// says which steps of which sequence take embeddings. Returns all logits as bits.
fn run(
    engine: &mut Engine,
    text: &EmbeddedText,
    chunk: usize,
    embedded: fn(usize, usize) -> bool,
) -> Vec<Vec<u32>> {
    let half = text.tokens.len() / 2;
    let mut sequences: [Sequence; 2] = Default::default();
    let mut logits = vec![Vec::new(); 2 * half];
    for (step, first) in (0..half).step_by(chunk).enumerate() {
        let last = half.min(first + chunk);
        let input = |(number, sequence)| {
            let start = number * half;
            let rows = text.rows(start + first..start + last, embedded(number, step));
            SeqInput { sequence, rows, wanted: LogitsRequest::All, drafted: false }
        };
        let mut inputs: Vec<_> = sequences.iter_mut().enumerate().map(input).collect();
        let mut take = |input: usize, row: usize, l: &[f32]| {
            logits[input * half + first + row] = l.iter().map(|x| x.to_bits()).collect();
        };
        engine.step(&mut inputs, &mut take).unwrap().all().unwrap();
    }
    logits
}

#[test]
fn the_models_own_embeddings_give_the_bits_of_its_tokens() {
    let folder_of_random = tempfile::tempdir().unwrap();
    let random = folder_of_random.path().join("model.gguf");
    ModelRecipe { layers: Some(2), ..ModelRecipe::new("tiny-v3", "Q4_K_M".parse().unwrap()) }
        .write_gguf(&random)
        .unwrap();
    // minicpm3 multiplies its embedding by a factor.
    for (path, rows) in [(folder("minicpm3"), 40), (random, 140)] {
        let file = checkpoint(&path);
        let (cpu, reference) = (latent_backends::cpu(), latent_backends::reference());
        let recurrent = ReferenceBackend::with_recurrences(vec![ToyRecurrence::new(0.5)]);
        let backends: [(&dyn Backend, Precision); 4] = [
            (&*cpu, Precision::Default),
            (&*cpu, Precision::Exact),
            (&*reference, Precision::Exact),
            (&recurrent, Precision::Exact),
        ];
        for (number, (backend, precision)) in backends.into_iter().enumerate() {
            // The reference backend is slow.
            let rows = if number < 2 { rows } else { rows.min(24) };
            let mla = [MlaChoice::Auto, MlaChoice::Absorbed][number % 2];
            let mut engine = load(backend, &file, &options(precision, mla));
            // The toy recurrence changes the input of the first layer, so that the embeddings have
            // to be taken from an engine without it.
            let text = match number {
                3 => EmbeddedText::new(&mut load(&*reference, &file, &options(precision, mla)), &file, rows),
                _ => EmbeddedText::new(&mut engine, &file, rows),
            };
            for chunk in [1, 7, 64] {
                let tokens = run(&mut engine, &text, chunk, |_, _| false);
                let what = format!("{} {} in chunks of {chunk}", path.display(), backend.name());
                let mixes: [fn(usize, usize) -> bool; 4] = [
                    |_, _| true,
                    |sequence, _| sequence == 1,
                    |sequence, step| (sequence + step) % 2 == 0,
                    |_, step| step == 0,
                ];
                for (mix, embedded) in mixes.into_iter().enumerate() {
                    assert!(run(&mut engine, &text, chunk, embedded) == tokens, "{what}, mix {mix}");
                }
            }
        }
    }
}

fn small() -> (Engine, EmbeddedText) {
    let file = checkpoint(&folder("youtu"));
    let options = options(Precision::Exact, MlaChoice::Absorbed);
    let mut engine = load(&*latent_backends::cpu(), &file, &options);
    let text = EmbeddedText::new(&mut engine, &file, 100);
    (engine, text)
}

#[test]
fn a_malformed_embedding_is_refused_only_for_its_sequence() {
    let (mut engine, text) = small();
    let hidden = text.hidden;
    let mut spoiled = text.values[..3 * hidden].to_vec();
    spoiled[2 * hidden + 5] = f32::NAN;
    let mut infinite = text.values[..hidden].to_vec();
    infinite[0] = f32::NEG_INFINITY;
    let many = vec![0.5; 1000];
    let width = |elements, width| SeqError::EmbeddingWidth { elements, width, hidden };
    let cases = [
        (&text.values[..2 * hidden], hidden / 2, width(2 * hidden, hidden / 2)),
        (&text.values[..hidden], 2 * hidden, width(hidden, 2 * hidden)),
        (&text.values[..hidden + 1], hidden, width(hidden + 1, hidden)),
        (&text.values[..hidden], 0, width(hidden, 0)),
        // More rows than a step has, if they had the right width.
        (&many[..], 1, width(1000, 1)),
        (&spoiled[..], hidden, SeqError::EmbeddingNotFinite { position: 4 + 2, element: 5 }),
        (&infinite[..], hidden, SeqError::EmbeddingNotFinite { position: 4, element: 0 }),
        (&[], hidden, SeqError::NoRows),
    ];
    let free = engine.kv_cache().available();
    for (values, width, error) in cases {
        let (mut wrong, mut right) = (Sequence::default(), Sequence::default());
        let mut first = [SeqInput::tokens(&mut wrong, &text.tokens[..4], LogitsRequest::Nothing)];
        engine.step(&mut first, &mut |_, _, _| {}).unwrap().all().unwrap();
        let mut heard = Vec::new();
        let mut inputs = [
            SeqInput::embeddings(&mut wrong, values, width, LogitsRequest::Last),
            SeqInput {
                sequence: &mut right,
                rows: text.rows(0..3, true),
                wanted: LogitsRequest::Last,
                drafted: false,
            },
        ];
        let outcome = engine.step(&mut inputs, &mut |input, row, _| heard.push((input, row))).unwrap();
        assert_eq!(outcome.results(), [Err(error.clone()), Ok(())]);
        assert_eq!(heard, [(1, 2)]);
        assert_eq!((wrong.len(), wrong.embedded_from(), right.embedded_from()), (4, None, Some(0)));
        // Alone in a step, the sequence is refused too, unless there is nothing to run.
        let mut alone = [SeqInput::embeddings(&mut wrong, values, width, LogitsRequest::Last)];
        match engine.step(&mut alone, &mut |_, _, _| {}) {
            Ok(outcome) => assert_eq!(outcome.results(), [Err(error)]),
            Err(none) => assert!(matches!(none, EngineError::Rows { rows: 0, .. }), "{none}"),
        }
    }
    assert_eq!(engine.kv_cache().available(), free);
    let said = SeqError::EmbeddingWidth { elements: 65, width: 65, hidden: 64 }.to_string();
    assert!(said.contains("rows of 65") && said.contains("the model's hidden size (64)"), "{said}");
    let said = SeqError::EmbeddingNotFinite { position: 6, element: 5 }.to_string();
    assert!(said.contains("element 5 of the embedding at position 6 is not finite"), "{said}");
}

#[test]
fn rows_of_embeddings_are_neither_saved_nor_taken_for_tokens() {
    let (mut engine, text) = small();
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("saved");
    let mut sequence = Sequence::default();
    for (range, embedded) in [(0..10, false), (10..15, true), (15..20, false)] {
        let rows = text.rows(range, embedded);
        let mut inputs =
            [SeqInput { sequence: &mut sequence, rows, wanted: LogitsRequest::Nothing, drafted: false }];
        engine.step(&mut inputs, &mut |_, _, _| {}).unwrap().all().unwrap();
    }
    assert_eq!(sequence.embedded_from(), Some(10));
    let refused = engine.save(&sequence, &path).unwrap_err();
    assert!(
        matches!(refused, EngineError::CacheFile(CacheFileError::Embeddings { position: 10, .. })),
        "{refused}"
    );
    assert!(refused.to_string().contains("embeddings from position 10 on"), "{refused}");
    assert!(!path.exists());
    // A fork of the rows before the embeddings is a sequence of tokens.
    let mut before = engine.share(&sequence, 10);
    assert_eq!((before.embedded_from(), engine.share(&sequence, 11).embedded_from()), (None, Some(10)));
    engine.save(&before, &path).unwrap();
    assert_eq!(engine.truncate(&mut before, 5), 5);
    engine.shift(&mut sequence, 2..6).unwrap();
    assert!(engine.save(&sequence, &path).is_err());
    assert_eq!(engine.truncate(&mut sequence, 2), 2);
    assert_eq!(sequence.embedded_from(), None);

    // A session keeps only the rows that stand for tokens.
    let mut session = Session::from(sequence);
    let rows = text.rows(50..60, true);
    let mut inputs =
        [SeqInput { sequence: &mut session.sequence, rows, wanted: LogitsRequest::Nothing, drafted: false }];
    engine.step(&mut inputs, &mut |_, _, _| {}).unwrap().all().unwrap();
    assert_eq!(session.tokens(), &text.tokens[..2]);
    assert!(engine.save_session(&mut session, None, &path).is_err());
    assert_eq!(engine.truncate(&mut session.sequence, 2), 2);
    assert_eq!(engine.save_session(&mut session, None, &path).unwrap(), 2);
}

struct EmbeddingListener;

impl Listener for EmbeddingListener {}

#[test]
fn rows_of_embeddings_are_not_used_for_a_prompt() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/mla-demo-Q4_K_M.gguf");
    let file = checkpoint(&demo);
    let tokenizer = Arc::new(Tokenizer::from_checkpoint(&file).unwrap());
    let options = options(Precision::Default, MlaChoice::Auto);
    let mut engine = load(&*latent_backends::cpu(), &file, &options);
    let prompt: Vec<u32> = (20..32).collect();
    let values = vec![0.25; 3 * engine.config().hidden_size];
    let mut session = Session::default();
    for rows in [
        InputRows::Tokens(&prompt[..4]),
        InputRows::Embeddings { values: &values, width: engine.config().hidden_size },
    ] {
        let mut inputs = [SeqInput {
            sequence: &mut session.sequence,
            rows,
            wanted: LogitsRequest::Nothing,
            drafted: false,
        }];
        engine.step(&mut inputs, &mut |_, _, _| {}).unwrap().all().unwrap();
    }
    let request =
        Request { prompt, sampling: SamplingParams::greedy(), max_tokens: Some(5), ..Request::default() };
    let answer = engine.generate(&mut session, &request, &tokenizer, &mut EmbeddingListener).unwrap();
    let fresh =
        engine.generate(&mut Session::default(), &request, &tokenizer, &mut EmbeddingListener).unwrap();
    assert_eq!((answer.cached_tokens, answer.tokens), (4, fresh.tokens));
}
