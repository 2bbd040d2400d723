//! `latent bench` of drafts: acceptance, cost of their steps, and gain.

use super::conversation::MessageList;
use super::median::median;
use super::prompt::ChatFormatter;
use crate::args::BenchArgs;
use crate::{interrupt, output};
use anyhow::Result;
use latent_engine::cache::Sequence;
use latent_engine::sampling::SamplingParams;
use latent_engine::{
    DraftCount, DraftInput, Engine, EngineError, Listener, LogitsRequest, Request, SeqInput, Session,
};
use latent_formats::Checkpoint;
use serde_json::{Value, json};
use std::time::Instant;

/// Questions to the model.
// Acceptance depends on the text, so they are fixed. The demo model was trained on such stories.
const QUESTIONS: [&str; 4] = [
    "Hello!",
    "Who are you?",
    "Tell me a story about a fox and a lantern.",
    "Tell me a story about an owl called Greta and a kite.",
];

/// Maximum tokens of an answer.
const MAX_ANSWER_TOKENS: usize = 400;

/// Context for a question and its answer, with a margin for the chat template.
pub(super) const CONTEXT: usize = 1024;

/// Results of a benchmark of drafts.
pub(super) struct DraftBench {
    count: DraftCount,
    /// Tokens of the answers. Greedy answers are the same without drafts.
    tokens: usize,
    /// Tokens without the first one of each answer, which comes from the prompt's last step.
    stepped: usize,
    /// Seconds of all answers per repetition, with and without drafts.
    with: Vec<f64>,
    without: Vec<f64>,
    /// Median seconds of a step of one row, of two rows, and of the MTP layer.
    one: f64,
    two: f64,
    mtp: f64,
}

impl DraftBench {
    /// Speed-up by drafts: the median of the repetitions.
    fn gain(&self) -> f64 {
        // The answers of a ratio were measured in turn, so slow phases of the machine affect both.
        let ratios: Vec<f64> =
            self.without.iter().zip(&self.with).map(|(without, with)| without / with).collect();
        median(&ratios)
    }

    /// The gain expected from acceptance and the cost of steps: a drafted step costs two rows and
    /// the MTP layer, and yields 1 + acceptance tokens.
    fn expected(&self) -> f64 {
        (1.0 + self.count.acceptance()) * self.one / (self.two + self.mtp)
    }

    fn speed(&self, seconds: &[f64]) -> f64 {
        self.stepped as f64 / median(seconds)
    }

    pub(super) fn object(&self) -> Value {
        json!({
            "test": "drafts",
            "drafts": self.count,
            "acceptance": self.count.acceptance(),
            "tokens": self.tokens,
            "one_row_ms": 1e3 * self.one,
            "two_rows_ms": 1e3 * self.two,
            "mtp_ms": 1e3 * self.mtp,
            "two_rows_cost": self.two / self.one,
            "mtp_cost": self.mtp / self.one,
            "drafted_ts": self.speed(&self.with),
            "undrafted_ts": self.speed(&self.without),
            "gain": self.gain(),
            "expected_gain": self.expected(),
        })
    }

    pub(super) fn print(&self) -> Result<()> {
        let DraftCount { drafted, accepted, .. } = self.count;
        output::line("")?;
        output::line(
            "| drafts | accepted | step of 1 row | of 2 rows | MTP layer | t/s without | with | gain | expected |",
        )?;
        output::line("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")?;
        output::line(&format!(
            "| {drafted} | {accepted} ({:.1} %) | {:.3} ms | {:.3} ms ({:.2} ×) | {:.3} ms ({:.2} ×) | {:.2} | {:.2} | {:.2} × | {:.2} × |",
            100.0 * self.count.acceptance(),
            1e3 * self.one,
            1e3 * self.two,
            self.two / self.one,
            1e3 * self.mtp,
            self.mtp / self.one,
            self.speed(&self.without),
            self.speed(&self.with),
            self.gain(),
            self.expected(),
        ))?;
        output::line("")?;
        output::line(&format!(
            "drafts: {} answers of at most {MAX_ANSWER_TOKENS} tokens, greedy, with and without drafts in turn; expected: (1 + acceptance) · one row ÷ \
             (two rows + MTP layer)",
            QUESTIONS.len()
        ))
    }
}

struct BenchListener;

impl Listener for BenchListener {
    fn token(&mut self, _: &latent_engine::TokenEvent<'_>) -> bool {
        !interrupt::asked()
    }
}

/// Measures drafts with answers to fixed questions.
pub(super) fn measure(engine: &mut Engine, checkpoint: &Checkpoint, args: &BenchArgs) -> Result<DraftBench> {
    let config = engine.config().clone();
    let formatter = ChatFormatter::open(checkpoint, &config, Some(engine.context()))?;
    let mut made = DraftBench {
        count: DraftCount::default(),
        tokens: 0,
        stepped: 0,
        with: Vec::new(),
        without: Vec::new(),
        one: 0.0,
        two: 0.0,
        mtp: 0.0,
    };
    let mut last = Vec::new();
    for repetition in 0..args.repetitions {
        let (mut with, mut without) = (0.0, 0.0);
        for question in QUESTIONS {
            let mut conversation = MessageList::new(None);
            conversation.push("user", question);
            let prompt = formatter.chat(conversation.messages())?;
            let mut ask = |max_drafts| {
                let request = Request {
                    prompt: prompt.clone(),
                    sampling: SamplingParams::greedy(),
                    max_tokens: Some(MAX_ANSWER_TOKENS),
                    max_drafts,
                    ..Request::default()
                };
                // A new session for each answer: in a reused one the prompt would be cached.
                engine.generate(&mut Session::default(), &request, formatter.tokenizer(), &mut BenchListener)
            };
            let (drafted, plain) = (ask(None)?, ask(Some(0))?);
            if interrupt::asked() {
                return Err(EngineError::Stopped.into());
            }
            with += drafted.generate_seconds;
            without += plain.generate_seconds;
            // Greedy answers repeat exactly, so their tokens are counted once.
            if repetition == 0 {
                made.tokens += drafted.tokens.len();
                made.stepped += drafted.tokens.len().saturating_sub(1);
                made.count.drafted += drafted.drafts.drafted;
                made.count.accepted += drafted.drafts.accepted;
                last = [prompt, plain.tokens].concat();
            }
        }
        made.with.push(with);
        made.without.push(without);
    }
    steps(engine, &last, &mut made)?;
    Ok(made)
}

/// Times single steps after a text.
fn steps(engine: &mut Engine, text: &[u32], made: &mut DraftBench) -> Result<(), EngineError> {
    // Room for the two rows and the draft behind the text.
    let room = engine.context().saturating_sub(4);
    let text = &text[..text.len().min(room)];
    let mut sequence = Sequence::default();
    let chunk = engine.chunk_for(text.len());
    engine.prefill(&mut sequence, text, chunk, LogitsRequest::Nothing, &mut |_, _| {}, &mut |_| true)?;
    let (len, pair) = (sequence.len(), [text[0], text[text.len() / 2]]);
    let (mut one, mut two, mut mtp) = (Vec::new(), Vec::new(), Vec::new());
    // The kinds alternate, so that slow phases of the machine affect all of them.
    for _ in 0..TIMED_STEPS {
        let mut rows = |engine: &mut Engine, rows: usize| -> Result<f64, EngineError> {
            let start = Instant::now();
            let mut inputs = [SeqInput::drafted(&mut sequence, &pair[..rows])];
            engine.step(&mut inputs, &mut |_, _, _| {})?.all()?;
            let seconds = start.elapsed().as_secs_f64();
            // A single row stays: the draft below continues from it.
            if rows == 2 {
                let _ = engine.truncate(&mut sequence, len);
            }
            Ok(seconds)
        };
        two.push(rows(engine, 2)?);
        one.push(rows(engine, 1)?);
        let start = Instant::now();
        let mut inputs = [DraftInput { sequence: &mut sequence, token: pair[1] }];
        engine.draft(&mut inputs, &mut |_, _| {})?;
        mtp.push(start.elapsed().as_secs_f64());
        let _ = engine.truncate(&mut sequence, len);
    }
    (made.one, made.two, made.mtp) = (median(&one), median(&two), median(&mtp));
    Ok(())
}

/// Number of timed steps of each kind.
// Odd, so that the median is a measured value.
const TIMED_STEPS: usize = 101;
