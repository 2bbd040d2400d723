//! `latent bench`: speed of prefill and decoding, beside the bandwidth that bounds decoding, measured in the same run.

use crate::args::{BenchArgs, Table};
use crate::{interrupt, model, output};
use anyhow::{Context, Result};
use engine::cache::Sequence;
use engine::memory::readable;
use engine::{Engine, EngineError, Item, Wanted};
use serde_json::{Value, json};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// One row of the table.
struct Measured {
    test: String,
    prompt: usize,
    generate: usize,
    depth: usize,
    /// Seconds of each repetition.
    seconds: Vec<f64>,
    /// Bytes that a token must read: weights and cache.
    bytes_per_token: f64,
}

impl Measured {
    fn tokens(&self) -> f64 {
        (self.prompt + self.generate) as f64
    }

    /// Mean and standard deviation of f over the repetitions.
    fn spread(&self, f: impl Fn(f64) -> f64) -> (f64, f64) {
        let values: Vec<f64> = self.seconds.iter().map(|s| f(*s)).collect();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
        (mean, variance.sqrt())
    }

    fn speed(&self) -> (f64, f64) {
        self.spread(|s| self.tokens() / s)
    }

    /// Bytes a second that decoding reads at least.
    fn gb_per_s(&self) -> f64 {
        if self.generate == 0 { 0.0 } else { self.bytes_per_token * self.speed().0 / 1e9 }
    }
}

pub(super) fn run(args: &BenchArgs) -> Result<()> {
    let checkpoint = model::open(args.model.model.as_deref())?;
    let mut model_args = args.model.clone();
    let longest = |list: &[usize]| list.iter().copied().max().unwrap_or(0);
    let needed = longest(&args.depth) + longest(&args.prompt).max(longest(&args.generate));
    model_args.ctx.get_or_insert(needed.max(1));
    let table = if args.json { Table::Json } else { args.output };
    let mut engine = model::load(&checkpoint, &model_args, table != Table::Md)?;
    let bandwidth =
        engine::read_bandwidth(&engine.summary().placement).context("measuring the read bandwidth")?;
    let mut rows = Vec::new();
    for &depth in &args.depth {
        for &n in args.prompt.iter().filter(|n| **n > 0) {
            rows.push(measure(&mut engine, n, 0, depth, args.repetitions)?);
        }
        for &n in args.generate.iter().filter(|n| **n > 0) {
            rows.push(measure(&mut engine, 0, n, depth, args.repetitions)?);
        }
    }
    let file = checkpoint.display_name();
    let objects: Vec<Value> = rows.iter().map(|row| object(row, &engine, &file, bandwidth)).collect();
    match table {
        Table::Json => output::json(&Value::Array(objects)),
        Table::Csv => csv(&objects),
        Table::Md => markdown(&rows, &engine, bandwidth),
    }
}

/// Token ids that look random but are the same in every run.
pub(super) fn token(i: usize, vocab: usize) -> u32 {
    let mixed = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> 20) % vocab as u64) as u32
}

fn measure(
    engine: &mut Engine,
    prompt: usize,
    generate: usize,
    depth: usize,
    repetitions: u16,
) -> Result<Measured> {
    let vocab = engine.contract().vocab_size;
    let tokens: Vec<u32> = (0..depth + prompt + generate).map(|i| token(i, vocab)).collect();
    let mut sequence = Sequence::default();
    let chunk = engine.largest();
    let go_on = &mut |_: usize| !interrupt::asked();
    if depth > 0 {
        engine.prefill(&mut sequence, &tokens[..depth], chunk, Wanted::Nothing, &mut |_, _| {}, go_on)?;
    }
    let mut seconds = Vec::new();
    // the first repetition warms up
    for repetition in 0..=repetitions {
        engine.truncate(&mut sequence, depth);
        let start = Instant::now();
        if prompt > 0 {
            let part = &tokens[depth..depth + prompt];
            engine.prefill(&mut sequence, part, chunk, Wanted::Last, &mut |_, _| {}, go_on)?;
        }
        let steps = if repetition == 0 { generate.min(2) } else { generate };
        for i in 0..steps {
            let next = [tokens[depth + prompt + i]];
            let mut items = [Item { sequence: &mut sequence, tokens: &next, wanted: Wanted::Last }];
            engine.step(&mut items, &mut |_, _, _| {})?;
            if interrupt::asked() {
                return Err(EngineError::Stopped.into());
            }
        }
        if repetition > 0 {
            seconds.push(start.elapsed().as_secs_f64());
        }
    }
    engine.release(sequence);
    let cost = engine.cost(1, depth + generate / 2);
    let kind = if prompt > 0 { format!("pp{prompt}") } else { format!("tg{generate}") };
    let test = if depth > 0 { format!("{kind} @ d{depth}") } else { kind };
    Ok(Measured {
        test,
        prompt,
        generate,
        depth,
        seconds,
        bytes_per_token: cost.weight_bytes + cost.cache_bytes,
    })
}

fn object(row: &Measured, engine: &Engine, file: &str, bandwidth: f64) -> Value {
    let s = engine.summary();
    let (avg_ns, stddev_ns) = row.spread(|s| s * 1e9);
    let (avg_ts, stddev_ts) = row.speed();
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    json!({
        "build_commit": option_env!("LATENT_COMMIT").unwrap_or("unknown"),
        "build_number": 0,
        "version": env!("CARGO_PKG_VERSION"),
        "cpu_info": cpu_info(),
        "backends": "CPU",
        "model_filename": file,
        "model_type": s.name,
        "model_size": s.weight_bytes,
        "model_n_params": s.parameters,
        "load_seconds": s.load_time.as_secs_f64(),
        "n_batch": engine.largest(),
        "n_ubatch": engine.largest(),
        "n_threads": s.placement.threads(),
        "tier": s.tier.name(),
        "type_k": s.cache.name(),
        "type_v": s.cache.name(),
        "n_prompt": row.prompt,
        "n_gen": row.generate,
        "n_depth": row.depth,
        "test": row.test,
        "test_time": time,
        "avg_ns": avg_ns as u64,
        "stddev_ns": stddev_ns as u64,
        "avg_ts": avg_ts,
        "stddev_ts": stddev_ts,
        "samples_ts": row.seconds.iter().map(|s| row.tokens() / s).collect::<Vec<f64>>(),
        "bytes_per_token": row.bytes_per_token as u64,
        "gb_per_s": row.gb_per_s(),
        "read_bandwidth_gb_per_s": bandwidth / 1e9,
    })
}

fn cpu_info() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| Some(line.split_once(':')?.1.trim().to_owned()))
        .unwrap_or_else(|| std::env::consts::ARCH.into())
}

fn csv(objects: &[Value]) -> Result<()> {
    let Some(keys) =
        objects.first().and_then(Value::as_object).map(|o| o.keys().cloned().collect::<Vec<_>>())
    else {
        return Ok(());
    };
    let keys: Vec<String> = keys.into_iter().filter(|key| key != "samples_ts").collect();
    output::line(&keys.join(","))?;
    for object in objects {
        let cell = |key: &String| {
            let value = &object[key];
            format!("\"{}\"", value.as_str().map_or_else(|| value.to_string(), |s| s.replace('"', "\"\"")))
        };
        output::line(&keys.iter().map(cell).collect::<Vec<_>>().join(","))?;
    }
    Ok(())
}

fn markdown(rows: &[Measured], engine: &Engine, bandwidth: f64) -> Result<()> {
    let s = engine.summary();
    output::line(
        "| model | size | params | threads | test | t/s | bytes a token | GB/s | of read bandwidth |",
    )?;
    output::line("| --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: |")?;
    for row in rows {
        let (speed, deviation) = row.speed();
        let decode = if row.generate > 0 {
            let share = 100.0 * row.gb_per_s() * 1e9 / bandwidth;
            format!("{} | {:.1} | {share:.0} %", readable(row.bytes_per_token as u64), row.gb_per_s())
        } else {
            "| |".into()
        };
        output::line(&format!(
            "| {} | {} | {} | {} | {} | {speed:.2} ± {deviation:.2} | {decode} |",
            s.name,
            readable(s.weight_bytes),
            model::count(s.parameters),
            s.placement.threads(),
            row.test
        ))?;
    }
    output::line(&format!(
        "\nread bandwidth with {}: {:.1} GB/s; loaded in {:.2} s",
        s.placement,
        bandwidth / 1e9,
        s.load_time.as_secs_f64()
    ))
}
