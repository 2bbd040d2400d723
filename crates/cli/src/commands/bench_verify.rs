//! `latent bench --verify`: the cost of a step that verifies several tokens of one sequence,
//! compared with the bytes that it reads.

use super::batched::{fit, token};
use super::median::median;
use crate::args::{BenchArgs, BenchFormat, MAX_VERIFY_ROWS, RowCounts};
use crate::{interrupt, model, output};
use anyhow::Result;
use latent_engine::cache::Sequence;
use latent_engine::{Engine, EngineError, LayerRouting, LogitsRequest, RoutedBytes, SeqInput, StepSize};
use latent_formats::Checkpoint;
use latent_graph::activations::Activations;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Instant;

/// Timed steps of each size per round. Each step has its own tokens.
const STEPS_PER_ROUND: usize = 4;

/// The tokens that a step verifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VerifyText {
    /// Unrelated tokens.
    Independent,
    /// One token repeated: rows share as many experts as they ever can.
    Repeated,
}

impl VerifyText {
    const ALL: [VerifyText; 2] = [VerifyText::Independent, VerifyText::Repeated];

    fn name(self) -> &'static str {
        match self {
            VerifyText::Independent => "independent",
            VerifyText::Repeated => "repeated",
        }
    }

    /// The `rows` tokens of step `number`.
    fn tokens(self, number: usize, rows: usize, vocab: usize) -> Vec<u32> {
        // Steps of all sizes with the same number begin with the same token, so that their ratios
        // compare like with like.
        let first = number * MAX_VERIFY_ROWS;
        let at = |row| if self == VerifyText::Repeated { first } else { first + row };
        (0..rows).map(|row| token(at(row), vocab)).collect()
    }
}

/// Results of steps with one number of rows.
struct VerifyMeasurement {
    text: VerifyText,
    depth: usize,
    rows: usize,
    /// Seconds of a step, per round.
    seconds: Vec<f64>,
    /// Time divided by that of one row in the same round.
    ratios: Vec<f64>,
    /// Distinct experts of a step, by MoE layer: mean over the steps.
    distinct: BTreeMap<usize, f64>,
    bytes: RoutedBytes,
    /// The bytes of a step of one row.
    one: RoutedBytes,
}

impl VerifyMeasurement {
    fn test(&self) -> String {
        let mut name = format!("verify {}, {}", self.rows, self.text.name());
        if self.depth > 0 {
            name += &format!(" @ d{}", self.depth);
        }
        name
    }

    /// Mean distinct experts over the MoE layers; `None` for a dense model.
    fn distinct(&self) -> Option<f64> {
        let layers = self.distinct.len();
        (layers > 0).then(|| self.distinct.values().sum::<f64>() / layers as f64)
    }

    /// The expected ratio of times: bytes read by the step divided by those read by a step of one
    /// row.
    fn model(&self) -> f64 {
        self.bytes.total() / self.one.total()
    }

    fn ratio(&self) -> f64 {
        median(&self.ratios)
    }

    /// Relative excess of the measured ratio over the expected one.
    fn deviation(&self) -> f64 {
        self.ratio() / self.model() - 1.0
    }
}

pub(super) fn run(args: &BenchArgs) -> Result<()> {
    let checkpoint = model::open_alone(&args.model)?;
    let counts = RowCounts::all(&args.verify);
    let deepest = args.n_depth.iter().max().copied().unwrap_or(0);
    let mut engine_args = args.model.engine.clone();
    let limit = latent_graph::ModelConfig::before_loading(&checkpoint)?.context_length;
    fit(&mut engine_args, deepest + counts.iter().max().copied().unwrap_or(1), limit)?;
    let table = if args.json { BenchFormat::Json } else { args.output };
    let mut engine = model::load(&checkpoint, &engine_args, table != BenchFormat::Md)?;
    // The thread that reads weights ahead would compete for memory bandwidth.
    engine.wait_for_weights();
    let activations = engine.activations(&checkpoint)?;
    let mut all = Vec::new();
    for &depth in &args.n_depth {
        let mut bench = VerifyBench::new(&mut engine, &activations, depth)?;
        for text in VerifyText::ALL {
            all.extend(bench.measure(text, &counts, usize::from(args.repetitions))?);
        }
        bench.release();
    }
    let objects: Vec<Value> = all.iter().map(|measured| object(measured, &engine, &checkpoint)).collect();
    match table {
        BenchFormat::Json => output::json(&Value::Array(objects)),
        BenchFormat::Csv => super::bench::csv(&objects),
        BenchFormat::Md => markdown(&all, &engine),
    }
}

/// A sequence of some depth. Steps are appended and removed again.
struct VerifyBench<'e> {
    engine: &'e mut Engine,
    activations: &'e Activations,
    sequence: Sequence,
    /// Its tokens before each step.
    context: Vec<u32>,
}

impl<'e> VerifyBench<'e> {
    fn new(engine: &'e mut Engine, activations: &'e Activations, depth: usize) -> Result<Self, EngineError> {
        let vocab = engine.config().vocab_size;
        // From the far end of the token sequence, so that no step repeats a token of the context.
        let context = (0..depth).map(|i| token(usize::MAX / 2 - i, vocab)).collect();
        let mut bench = VerifyBench { engine, activations, sequence: Sequence::default(), context };
        bench.rewind()?;
        if depth > 0 {
            bench.engine.snapshot(&mut bench.sequence)?;
        }
        Ok(bench)
    }

    /// Removes the tokens of the last step.
    fn rewind(&mut self) -> Result<(), EngineError> {
        let depth = self.context.len();
        let length = self.engine.truncate(&mut self.sequence, depth);
        if length == depth {
            return Ok(());
        }
        let (chunk, rest) = (self.engine.chunk_for(depth - length), &self.context[length..]);
        let mut go_on = |_| !interrupt::asked();
        self.engine.prefill(
            &mut self.sequence,
            rest,
            chunk,
            LogitsRequest::Nothing,
            &mut |_, _| {},
            &mut go_on,
        )
    }

    /// Times a step that computes the logits of all rows, as verification does.
    fn time(&mut self, tokens: &[u32]) -> Result<f64, EngineError> {
        if interrupt::asked() {
            return Err(EngineError::Stopped);
        }
        let start = Instant::now();
        let mut inputs = [SeqInput::tokens(&mut self.sequence, tokens, LogitsRequest::All)];
        self.engine.step(&mut inputs, &mut |_, _, _| {})?.all()?;
        let seconds = start.elapsed().as_secs_f64();
        self.rewind()?;
        Ok(seconds)
    }

    fn routing(&mut self, tokens: &[u32]) -> Result<Vec<LayerRouting>, EngineError> {
        let routing = self.engine.trace_routing(self.activations, &mut self.sequence, tokens)?;
        self.rewind()?;
        Ok(routing)
    }

    /// Measures rounds in which every number of rows is timed in turn, and one row as the base.
    fn measure(
        &mut self,
        text: VerifyText,
        counts: &[usize],
        rounds: usize,
    ) -> Result<Vec<VerifyMeasurement>, EngineError> {
        let vocab = self.engine.config().vocab_size;
        let mut all = vec![(1, Vec::new())];
        // One row is always measured: it is the base of the ratios.
        all.extend(counts.iter().filter(|rows| **rows > 1).map(|rows| (*rows, Vec::new())));
        let tokens =
            |round: usize, step: usize, rows| text.tokens(round * STEPS_PER_ROUND + step, rows, vocab);
        // The first round is a warm-up.
        for round in 0..=rounds {
            for (rows, seconds) in &mut all {
                let mut sum = 0.0;
                for step in 0..STEPS_PER_ROUND {
                    sum += self.time(&tokens(round, step, *rows))?;
                }
                if round > 0 {
                    seconds.push(sum / STEPS_PER_ROUND as f64);
                }
            }
        }
        // Routing is traced separately, with the same tokens: tracing copies activations and would
        // distort the times.
        let steps = (1..=rounds).flat_map(|round| (0..STEPS_PER_ROUND).map(move |step| (round, step)));
        let mut measured: Vec<VerifyMeasurement> = Vec::new();
        let one = all[0].1.clone();
        for (rows, seconds) in all {
            let mut distinct = BTreeMap::new();
            for (round, step) in steps.clone() {
                for layer in self.routing(&tokens(round, step, rows))? {
                    *distinct.entry(layer.layer).or_insert(0.0) +=
                        layer.distinct() as f64 / (rounds * STEPS_PER_ROUND) as f64;
                }
            }
            let size = StepSize { sequences: 1, rows, cached: self.context.len(), wanted: rows, mtp: false };
            let bytes = self.engine.routed_bytes(size, &|layer| distinct.get(&layer).copied().unwrap_or(0.0));
            let ratios = seconds.iter().zip(&one).map(|(seconds, one)| seconds / one).collect();
            let one = measured.first().map_or(bytes, |first| first.bytes);
            measured.push(VerifyMeasurement {
                text,
                depth: self.context.len(),
                rows,
                seconds,
                ratios,
                distinct,
                bytes,
                one,
            });
        }
        // One row is listed only if requested.
        measured.retain(|measured| counts.contains(&measured.rows));
        Ok(measured)
    }

    fn release(self) {
        self.engine.release(self.sequence);
    }
}

fn object(row: &VerifyMeasurement, engine: &Engine, checkpoint: &Checkpoint) -> Value {
    let s = engine.summary();
    json!({
        "build_commit": option_env!("LATENT_COMMIT").unwrap_or("unknown"),
        "version": env!("CARGO_PKG_VERSION"),
        "cpu_info": crate::cpu_info::cpu_info(),
        "model_filename": checkpoint.display_name(),
        "model_type": s.name,
        "n_threads": s.placement.threads(),
        "tier": s.tier.name(),
        "type_k": s.cache.name(),
        "test": row.test(),
        "text": row.text.name(),
        "n_rows": row.rows,
        "n_depth": row.depth,
        "rounds": row.seconds.len(),
        "steps_per_round": STEPS_PER_ROUND,
        "median_ms": 1e3 * median(&row.seconds),
        "samples_ms": row.seconds.iter().map(|s| s * 1e3).collect::<Vec<f64>>(),
        "time_ratio": row.ratio(),
        "samples_time_ratio": row.ratios,
        "distinct_experts": row.distinct(),
        "distinct_experts_by_layer": row.distinct.iter().map(|(layer, mean)| json!({"layer": layer, "mean": mean})).collect::<Vec<Value>>(),
        "dense_bytes": row.bytes.dense as u64,
        "expert_bytes": row.bytes.experts as u64,
        "cache_bytes": row.bytes.cache as u64,
        "model_ratio": row.model(),
        "deviation": row.deviation(),
    })
}

fn markdown(rows: &[VerifyMeasurement], engine: &Engine) -> Result<()> {
    output::line("| test | ms | time ÷ 1 row | experts per MoE layer | bytes ÷ 1 row | deviation |")?;
    output::line("| --- | ---: | ---: | ---: | ---: | ---: |")?;
    for row in rows {
        let experts = row.distinct().map_or_else(|| "–".into(), |distinct| format!("{distinct:.1}"));
        output::line(&format!(
            "| {} | {:.2} | {:.2} | {experts} | {:.2} | {:+.0} % |",
            row.test(),
            1e3 * median(&row.seconds),
            row.ratio(),
            row.model(),
            100.0 * row.deviation()
        ))?;
    }
    let s = engine.summary();
    output::line("")?;
    output::line(&format!(
        "{}, {}, {} cache; medians of {} rounds of {STEPS_PER_ROUND} steps; all rows give logits. Bytes: weights outside of experts, the distinct \
         experts that the router chose, cached rows.",
        s.name,
        s.placement,
        s.cache.name(),
        rows.first().map_or(0, |row| row.seconds.len())
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn independent_steps_share_no_token_and_repeated_steps_have_one() {
        let [a, b] = [0, 1].map(|number| VerifyText::Independent.tokens(number, 8, 100_000));
        assert!(a.iter().all(|token| !b.contains(token)) && a[0] != a[1]);
        let repeated = VerifyText::Repeated.tokens(1, 8, 100_000);
        assert_eq!(repeated, vec![b[0]; 8]);
        // A shorter step has the first tokens of a longer one.
        assert_eq!(VerifyText::Independent.tokens(0, 3, 100_000), a[..3]);
    }
}
