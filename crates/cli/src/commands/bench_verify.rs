//! `latent bench --verify`: the cost of a step that verifies several tokens of one sequence, compared with the cost of the bytes that it reads.

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

/// Steps of each size that one round times, each with tokens of its own.
const STEPS: usize = 4;

/// The tokens that a step verifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VerifyText {
    /// Tokens that have nothing to do with each other.
    Independent,
    /// One token again and again: rows choose the same experts as far as they ever do.
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

    /// `rows` tokens of the step `number`.
    fn tokens(self, number: usize, rows: usize, vocab: usize) -> Vec<u32> {
        let first = number * MAX_VERIFY_ROWS;
        let at = |row| if self == VerifyText::Repeated { first } else { first + row };
        (0..rows).map(|row| token(at(row), vocab)).collect()
    }
}

/// Steps of one number of rows, after the same tokens.
struct VerifyMeasurement {
    text: VerifyText,
    depth: usize,
    rows: usize,
    /// Seconds of a step, per round.
    seconds: Vec<f64>,
    /// Time over that of one row in the same round.
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

    /// Mean over the MoE layers; none of a dense model.
    fn distinct(&self) -> Option<f64> {
        let layers = self.distinct.len();
        (layers > 0).then(|| self.distinct.values().sum::<f64>() / layers as f64)
    }

    /// What the time of one row should be multiplied by: the bytes that the step reads over those that one of one row reads.
    fn model(&self) -> f64 {
        self.bytes.total() / self.one.total()
    }

    fn ratio(&self) -> f64 {
        median(&self.ratios)
    }

    /// How much more time the step took than its bytes say.
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
    // the read-ahead thread would disturb the measurement
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

/// A sequence of some depth, to which steps are added and taken away again.
struct VerifyBench<'e> {
    engine: &'e mut Engine,
    activations: &'e Activations,
    sequence: Sequence,
    /// What it holds beforehand.
    context: Vec<u32>,
}

impl<'e> VerifyBench<'e> {
    fn new(engine: &'e mut Engine, activations: &'e Activations, depth: usize) -> Result<Self, EngineError> {
        let vocab = engine.config().vocab_size;
        // far from those of the steps
        let context = (0..depth).map(|i| token(usize::MAX / 2 - i, vocab)).collect();
        let mut bench = VerifyBench { engine, activations, sequence: Sequence::default(), context };
        bench.go_back()?;
        if depth > 0 {
            bench.engine.snapshot(&mut bench.sequence)?;
        }
        Ok(bench)
    }

    /// Makes the sequence what it was beforehand.
    fn go_back(&mut self) -> Result<(), EngineError> {
        let depth = self.context.len();
        let kept = self.engine.truncate(&mut self.sequence, depth);
        if kept == depth {
            return Ok(());
        }
        let (chunk, rest) = (self.engine.chunk_for(depth - kept), &self.context[kept..]);
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

    /// Seconds of a step that gives the logits of all its rows.
    fn time(&mut self, tokens: &[u32]) -> Result<f64, EngineError> {
        if interrupt::asked() {
            return Err(EngineError::Stopped);
        }
        let start = Instant::now();
        let mut inputs = [SeqInput::tokens(&mut self.sequence, tokens, LogitsRequest::All)];
        self.engine.step(&mut inputs, &mut |_, _, _| {})?.all()?;
        let seconds = start.elapsed().as_secs_f64();
        self.go_back()?;
        Ok(seconds)
    }

    fn routing(&mut self, tokens: &[u32]) -> Result<Vec<LayerRouting>, EngineError> {
        let routing = self.engine.trace_routing(self.activations, &mut self.sequence, tokens)?;
        self.go_back()?;
        Ok(routing)
    }

    /// Rounds in which every number of rows is timed in turn, compared with one row.
    fn measure(
        &mut self,
        text: VerifyText,
        counts: &[usize],
        rounds: usize,
    ) -> Result<Vec<VerifyMeasurement>, EngineError> {
        let vocab = self.engine.config().vocab_size;
        let mut all = vec![(1, Vec::new())];
        all.extend(counts.iter().filter(|rows| **rows > 1).map(|rows| (*rows, Vec::new())));
        let tokens = |round: usize, step: usize, rows| text.tokens(round * STEPS + step, rows, vocab);
        // the first round warms up
        for round in 0..=rounds {
            for (rows, seconds) in &mut all {
                let mut sum = 0.0;
                for step in 0..STEPS {
                    sum += self.time(&tokens(round, step, *rows))?;
                }
                if round > 0 {
                    seconds.push(sum / STEPS as f64);
                }
            }
        }
        let steps = (1..=rounds).flat_map(|round| (0..STEPS).map(move |step| (round, step)));
        let mut measured: Vec<VerifyMeasurement> = Vec::new();
        let one = all[0].1.clone();
        for (rows, seconds) in all {
            let mut distinct = BTreeMap::new();
            for (round, step) in steps.clone() {
                for layer in self.routing(&tokens(round, step, rows))? {
                    *distinct.entry(layer.layer).or_insert(0.0) +=
                        layer.distinct() as f64 / (rounds * STEPS) as f64;
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
        "steps_per_round": STEPS,
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
        "{}, {}, {} cache; medians of {} rounds of {STEPS} steps; all rows give logits. Bytes: weights outside of experts, the distinct \
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
    fn independent_tokens_differ_between_steps_and_repeated_ones_within_none() {
        let [a, b] = [0, 1].map(|number| VerifyText::Independent.tokens(number, 8, 100_000));
        assert!(a.iter().all(|token| !b.contains(token)) && a[0] != a[1]);
        let repeated = VerifyText::Repeated.tokens(1, 8, 100_000);
        assert_eq!(repeated, vec![b[0]; 8]);
        // a shorter step has the first tokens of a longer one
        assert_eq!(VerifyText::Independent.tokens(0, 3, 100_000), a[..3]);
    }
}
