//! `latent bench`: speed of prefill and decode, compared with the roofline, which is measured in
//! the same run.

use super::batched::{BatchedSequences, context, fit};
use super::bench_draft;
use super::bench_memory::{self, EarlierRun};
use super::limit_samples::LimitSamples;
use crate::args::{BenchArgs, BenchFormat, ModelArgs};
use crate::cpu_info::cpu_info;
use crate::{model, output, prediction};
use anyhow::{Context, Result};
use latent_engine::{Engine, PeakRates, Roofline, StepSize, Summary};
use latent_graph::config::WireType;
use latent_hosts::predict::PredictionCase;
use latent_types::format_bytes;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// One row of the table.
struct BenchMeasurement {
    test: String,
    size: BenchSize,
    /// Seconds of each repetition.
    seconds: Vec<f64>,
    /// Bytes that a step in the middle of the test must read: weights and KV cache.
    step_bytes: f64,
    /// Minimum time of the whole test at the machine's limits.
    roofline: Roofline,
    /// The prediction from the hosts file.
    predicted: Option<BenchPrediction>,
}

/// The size of a test.
#[derive(Clone, Copy)]
struct BenchSize {
    /// Tokens of the prompt; 0: none.
    prompt: usize,
    /// Tokens that each sequence generates; 0: none.
    generate: usize,
    /// Tokens in each sequence's cache before the test.
    depth: usize,
    /// Sequences that decode together.
    sequences: usize,
    /// Other threads that keep CPUs busy.
    busy: usize,
}

impl BenchSize {
    fn name(&self) -> String {
        let BenchSize { prompt, generate, depth, sequences, busy } = *self;
        let mut name = if prompt > 0 { format!("pp{prompt}") } else { format!("tg{generate}") };
        if sequences > 1 {
            name += &format!(" × {sequences}");
        }
        if depth > 0 {
            name += &format!(" @ d{depth}");
        }
        if busy > 0 {
            name += &format!(" + {busy} busy");
        }
        name
    }

    fn tokens(&self) -> f64 {
        (self.sequences * (self.prompt + self.generate)) as f64
    }

    /// The test as a case of the predictor.
    fn case(&self, engine: &Engine, wire: WireType) -> PredictionCase {
        // `BatchedSequences::decode` divides the sequences in this way.
        let groups = engine.steps_in_flight().min(self.sequences);
        let rows = self.sequences.div_ceil(groups);
        PredictionCase {
            context: self.depth + self.prompt + self.generate,
            past: self.depth + self.generate / 2,
            rows,
            in_flight: self.sequences.div_ceil(rows),
            prompt: self.prompt,
            chunk: engine.chunk_for(self.prompt),
            wire,
        }
    }

    fn steps(&self, chunk: usize) -> Vec<StepSize> {
        let mut steps: Vec<_> = StepSize::prompt(self.prompt, self.depth, chunk).collect();
        steps.extend((0..self.generate).map(|i| StepSize::decode(self.sequences, self.depth + i)));
        steps
    }
}

impl BenchMeasurement {
    /// Mean and standard deviation of f over the repetitions.
    fn spread(&self, f: impl Fn(f64) -> f64) -> (f64, f64) {
        let values: Vec<f64> = self.seconds.iter().map(|s| f(*s)).collect();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        // The sample variance (n - 1). `max` avoids 0 / 0 with one repetition.
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
        (mean, variance.sqrt())
    }

    fn speed(&self) -> (f64, f64) {
        self.spread(|s| self.size.tokens() / s)
    }

    /// Tokens per second at the roofline.
    fn roofline_speed(&self) -> f64 {
        self.size.tokens() / self.roofline.seconds
    }

    /// Measured speed divided by the roofline's.
    fn of_roofline(&self) -> f64 {
        self.speed().0 / self.roofline_speed()
    }

    /// Seconds to the first token of a prompt.
    fn first_token(&self) -> Option<f64> {
        (self.size.prompt > 0).then(|| self.spread(|s| s).0)
    }

    /// Read bandwidth that decode uses, in GB/s.
    fn gb_per_s(&self) -> f64 {
        if self.size.generate == 0 { 0.0 } else { self.roofline.bytes / self.spread(|s| s).0 / 1e9 }
    }
}

pub(super) fn run(args: &BenchArgs) -> Result<()> {
    if let Some(path) = &args.save {
        crate::target::check(path, args.model.engine.force)?;
    }
    // Read before the model is loaded. An error in the file would otherwise follow minutes of
    // measurements.
    let before = args.compare.as_deref().map(EarlierRun::read).transpose()?;
    let checkpoint = model::open_shared(&args.model)?;
    let sizes = sizes(args);
    let mut engine_args = args.model.engine.clone();
    let needed = |size: &BenchSize| context(size.sequences, size.depth + size.prompt + size.generate);
    let least = if args.model.engine.draft.has_mtp() { bench_draft::CONTEXT } else { 1 };
    let limit = latent_graph::ModelConfig::before_loading(&checkpoint)?.context_length;
    fit(&mut engine_args, sizes.iter().map(needed).max().unwrap_or(1).max(least), limit)?;
    let table = if args.json { BenchFormat::Json } else { args.output };
    let mut engine = model::load(&checkpoint, &engine_args, table != BenchFormat::Md)?;
    // The thread that reads weights ahead would compete for memory bandwidth.
    engine.wait_for_weights();
    let mut limits = LimitSamples::default();
    limits.measure(&engine, &args.model.engine)?;
    let mut rows = Vec::new();
    // The limits are measured before, between and after the tests: on a shared machine they change
    // within seconds. The rooflines below use the median of all.
    for size in sizes {
        rows.push(measure(&mut engine, size, args, &limits.median())?);
        limits.refresh(&engine, &args.model.engine)?;
    }
    limits.measure(&engine, &args.model.engine)?;
    for row in &mut rows {
        row.roofline = roofline(&engine, row.size, &limits.median());
    }
    let file = checkpoint.display_name();
    let mut objects: Vec<Value> = rows.iter().map(|row| object(row, &engine, &file, &limits)).collect();
    if let Some(path) = &args.save {
        bench_memory::save(path, &objects)?;
    }
    let comparison = before.map(|before| before.compare(&objects));
    if let Some(comparison) = &comparison {
        comparison.add_to(&mut objects);
    }
    let drafting =
        engine.drafts().then(|| bench_draft::measure(&mut engine, &checkpoint, args)).transpose()?;
    // Returned after the output, which shows the tests that have become slower.
    let regression = match (&comparison, args.fail_below) {
        (Some(comparison), Some(least)) => comparison.check(least),
        _ => Ok(()),
    };
    match table {
        BenchFormat::Json => {
            objects.extend(drafting.map(|drafting| drafting.object()));
            output::json(&Value::Array(objects))
        }
        // CSV has one header. The table of drafts has other columns, so it is left out.
        BenchFormat::Csv => csv(&objects),
        BenchFormat::Md => {
            markdown(&rows, &engine, &limits)?;
            print_predicted(&rows.iter().map(predicted_and_measured).collect::<Vec<_>>())?;
            drafting.map_or(Ok(()), |drafting| drafting.print())?;
            comparison.map_or(Ok(()), |comparison| comparison.print())
        }
    }?;
    regression
}

/// The requested tests, ordered by depth.
fn sizes(args: &BenchArgs) -> Vec<BenchSize> {
    let mut sizes = Vec::new();
    for &depth in &args.n_depth {
        for &prompt in args.n_prompt.iter().filter(|n| **n > 0) {
            sizes.push(BenchSize { prompt, generate: 0, depth, sequences: 1, busy: 0 });
        }
        for &generate in args.n_gen.iter().filter(|n| **n > 0) {
            let many = args.sequences.iter().map(|n| usize::from(*n));
            sizes.extend(many.map(|sequences| BenchSize { prompt: 0, generate, depth, sequences, busy: 0 }));
        }
    }
    // Each test with busy threads follows the same test without them.
    let busy = usize::from(args.busy);
    let counts = if busy > 0 { vec![0, busy] } else { vec![0] };
    sizes.iter().flat_map(|size| counts.iter().map(|&busy| BenchSize { busy, ..*size })).collect()
}

fn roofline(engine: &Engine, size: BenchSize, limits: &PeakRates) -> Roofline {
    engine.roofline(&size.steps(engine.chunk_for(size.prompt)), limits)
}

fn measure(
    engine: &mut Engine,
    size: BenchSize,
    args: &BenchArgs,
    limits: &PeakRates,
) -> Result<BenchMeasurement> {
    let BenchSize { prompt, generate, depth, sequences: count, busy } = size;
    let mut batch = BatchedSequences::new(engine, count, depth + prompt + generate);
    batch.fill(engine, depth)?;
    let mut seconds = Vec::new();
    // After `fill`: the prefill of the depth is not measured and should not be slowed down.
    let busy = BusyThreads::start(busy)?;
    // The first repetition warms caches, page tables and the thread pool. Two decode steps suffice
    // for that.
    for repetition in 0..=args.repetitions {
        batch.truncate(engine, depth)?;
        let start = Instant::now();
        if prompt > 0 {
            batch.prompt(engine, depth..depth + prompt)?;
        }
        let steps = if repetition == 0 { generate.min(2) } else { generate };
        batch.decode(engine, depth + prompt..depth + prompt + steps)?;
        if repetition > 0 {
            seconds.push(start.elapsed().as_secs_f64());
        }
    }
    drop(busy);
    batch.release(engine);
    // The cache's mean length during the test.
    let cost = engine.cost(StepSize::decode(count, depth + generate / 2));
    Ok(BenchMeasurement {
        test: size.name(),
        size,
        seconds,
        step_bytes: cost.weight_bytes + cost.cache_bytes,
        roofline: roofline(engine, size, limits),
        predicted: predicted(&args.model, engine, &size.case(engine, args.model.engine.wire))?,
    })
}

fn predicted_and_measured(row: &BenchMeasurement) -> (&str, f64, Option<BenchPrediction>) {
    (&row.test, row.speed().0, row.predicted)
}

fn object(row: &BenchMeasurement, engine: &Engine, file: &str, samples: &LimitSamples) -> Value {
    let (limits, (low, high)) = (samples.median(), samples.bandwidths());
    let s = engine.summary();
    let (avg_ns, stddev_ns) = row.spread(|s| s * 1e9);
    let (avg_ts, stddev_ts) = row.speed();
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let mut object = json!({
        // Names and units of llama-bench's JSON up to `samples_ts`, so that its scripts read this
        // output. Latent's own fields follow.
        "build_commit": option_env!("LATENT_COMMIT").unwrap_or("unknown"),
        "build_number": 0,
        "version": env!("CARGO_PKG_VERSION"),
        "cpu_info": cpu_info(),
        "backends": backends(s),
        "device": s.device,
        "model_filename": file,
        "model_type": s.name,
        "model_size": s.weight_bytes,
        "model_n_params": s.parameters,
        "load_seconds": s.load_time.as_secs_f64(),
        "n_batch": engine.max_batch_tokens(),
        "n_ubatch": engine.chunk_for(row.size.prompt),
        "n_threads": s.placement.threads(),
        "tier": s.tier.name(),
        "type_k": s.cache.name(),
        "type_v": s.cache.name(),
        "n_prompt": row.size.prompt,
        "n_gen": row.size.generate,
        "n_depth": row.size.depth,
        "n_sequences": row.size.sequences,
        "test": row.test,
        "test_time": time,
        "avg_ns": avg_ns as u64,
        "stddev_ns": stddev_ns as u64,
        "avg_ts": avg_ts,
        "stddev_ts": stddev_ts,
        "samples_ts": row.seconds.iter().map(|s| row.size.tokens() / s).collect::<Vec<f64>>(),
        "ttft_ms": row.first_token().map(|seconds| seconds * 1e3),
        "bytes_per_step": row.step_bytes as u64,
        "bytes_per_token": (row.step_bytes / row.size.sequences as f64) as u64,
        "gb_per_s": row.gb_per_s(),
        "read_bandwidth_gb_per_s": limits.read_bandwidth / 1e9,
        "integer_gmac_per_s": limits.int8_macs / 1e9,
        "float_gmac_per_s": limits.f32_macs / 1e9,
        "half_gmac_per_s": limits.f16_macs / 1e9,
        "bf16_gmac_per_s": limits.bf16_macs / 1e9,
        "int8_tiles_gmac_per_s": limits.amx_int8_macs / 1e9,
        "roofline_ts": row.roofline_speed(),
        "roofline_bound": row.roofline.bound(),
        "of_roofline": row.of_roofline(),
    });
    object["n_busy"] = json!(row.size.busy);
    object["read_bandwidth_min_gb_per_s"] = json!(low / 1e9);
    object["read_bandwidth_max_gb_per_s"] = json!(high / 1e9);
    object["too_noisy"] = json!(samples.are_noisy());
    if let Some(predicted) = row.predicted {
        object["predicted_ts"] = json!(predicted.speed);
        object["predicted_link_ms"] = json!(1e3 * predicted.links);
    }
    object
}

/// The backends of a model in llama-bench's notation.
fn backends(summary: &Summary) -> String {
    let front = summary.front.as_ref().map(|front| front.backend);
    let all: Vec<String> = std::iter::once(summary.backend).chain(front).map(str::to_uppercase).collect();
    all.join(",")
}

/// Prints one line per object with the keys whose values are scalars.
pub(super) fn csv(objects: &[Value]) -> Result<()> {
    let Some(keys) =
        objects.first().and_then(Value::as_object).map(|o| o.keys().cloned().collect::<Vec<_>>())
    else {
        return Ok(());
    };
    let fits =
        |key: &String| objects.iter().all(|object| !(object[key].is_array() || object[key].is_object()));
    let keys: Vec<String> = keys.into_iter().filter(fits).collect();
    output::line(&keys.join(","))?;
    for object in objects {
        let cell = |key: &String| {
            let value = &object[key];
            // RFC 4180: every cell is quoted and quotes are doubled. llama-bench does the same.
            format!("\"{}\"", value.as_str().map_or_else(|| value.to_string(), |s| s.replace('"', "\"\"")))
        };
        output::line(&keys.iter().map(cell).collect::<Vec<_>>().join(","))?;
    }
    Ok(())
}

fn markdown(rows: &[BenchMeasurement], engine: &Engine, limits: &LimitSamples) -> Result<()> {
    let s = engine.summary();
    output::line(
        "| model | size | params | threads | test | t/s | first token | bytes/step | GB/s | roofline t/s | of it |",
    )?;
    output::line("| --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |")?;
    for row in rows {
        let (speed, deviation) = row.speed();
        let first = row.first_token().map_or_else(String::new, |s| format!("{:.0} ms", s * 1e3));
        let decode = if row.size.generate > 0 {
            format!("{} | {:.1}", format_bytes(row.step_bytes as u64), row.gb_per_s())
        } else {
            " | ".into()
        };
        let bound = if row.roofline.bound() == "memory" { "memory" } else { "arith." };
        // If the bandwidth itself varied by more than 25 %, a percentage of it is meaningless.
        let share = match limits.are_noisy() {
            true => "–".to_owned(),
            false => format!("{:.0} %", 100.0 * row.of_roofline()),
        };
        output::line(&format!(
            "| {} | {} | {} | {} | {} | {speed:.2} ± {deviation:.2} | {first} | {decode} | {:.2} ({bound}) | {share} |",
            s.name,
            format_bytes(s.weight_bytes),
            model::count(s.parameters),
            s.placement.threads(),
            row.test,
            row.roofline_speed()
        ))?;
    }
    output::line("")?;
    let limits = limits.text(&model::measured(s));
    output::line(&format!("{limits}; loaded in {:.2} s", s.load_time.as_secs_f64()))
}

/// Threads that spin until this is dropped.
struct BusyThreads {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl BusyThreads {
    fn start(count: usize) -> Result<BusyThreads> {
        let mut busy = BusyThreads { stop: Arc::default(), threads: Vec::new() };
        for _ in 0..count {
            let stop = Arc::clone(&busy.stop);
            let spin = move || while !stop.load(Ordering::Relaxed) {};
            let thread = std::thread::Builder::new().name("busy".into()).spawn(spin);
            busy.threads.push(thread.context("starting a busy thread")?);
        }
        Ok(busy)
    }
}

impl Drop for BusyThreads {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A thread that only spins cannot panic.
            let _ = thread.join();
        }
    }
}

/// The prediction of a test.
#[derive(Clone, Copy)]
struct BenchPrediction {
    /// Tokens per second.
    speed: f64,
    /// Seconds per decode step spent on links between ranks.
    links: f64,
}

/// Predicts a test; `None` without a hosts file or on one host.
fn predicted(args: &ModelArgs, engine: &Engine, case: &PredictionCase) -> Result<Option<BenchPrediction>> {
    let found = prediction::of_partition(args, engine.partition(), case)?;
    Ok(found.and_then(|found| {
        let speed = match (case.prompt, found.first_token) {
            (0, _) => found.tokens_per_second,
            (prompt, Some(seconds)) => prompt as f64 / seconds,
            (_, None) => return None,
        };
        Some(BenchPrediction { speed, links: found.links })
    }))
}

/// Prints a line for each test with a prediction.
fn print_predicted(rows: &[(&str, f64, Option<BenchPrediction>)]) -> Result<()> {
    if rows.iter().all(|(_, _, predicted)| predicted.is_none()) {
        return Ok(());
    }
    output::line("")?;
    output::line("| test | predicted t/s | measured t/s | measured / predicted |")?;
    output::line("| --- | ---: | ---: | ---: |")?;
    for (test, measured, predicted) in rows {
        if let Some(BenchPrediction { speed, .. }) = predicted {
            let part = measured / speed;
            output::line(&format!("| {test} | {speed:.2} | {measured:.2} | {part:.2} |"))?;
        }
    }
    Ok(())
}
