//! Measures the scheduler: the time between tokens during a long prompt, the throughput of many
//! clients, and the time to the first token with a prefix cached in memory and on disk.
//!
//! ```text
//! cargo run --release -p latent-engine --example scheduler_bench -- [MODEL.gguf | SHAPE TYPE LAYERS] [--long N] [--prefix N]
//! ```
//!
//! SHAPE, TYPE and LAYERS are those of `latent make-model`; the default is the demo model. `--long`
//! (16384) sets the length of the prompt that runs while other jobs decode, `--prefix` (4000) the
//! length of the cached one, in tokens, limited by the model's context. The KV cache holds the
//! longer of them, 1024 tokens after it and 8192 for the other jobs. The program first prints the
//! memory that this takes. Loading fails if the machine has less.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a program for the terminal")]

use latent_engine::cache::DiskCache;
use latent_engine::sampling::SamplingParams;
use latent_engine::scheduler::{Job, JobEvent, JobId, Scheduler, SchedulerOptions};
use latent_engine::{Engine, EngineOptions, Request};
use latent_formats::Checkpoint;
use latent_testing::ModelRecipe;
use latent_text::Tokenizer;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

type BenchResult<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/mla-demo-Q4_K_M.gguf");

/// Number of tokens of the context that a prompt leaves free.
const FREE_CONTEXT: usize = 64;

/// Number of tokens in the KV cache for jobs that run concurrently with the longest prompt.
const OTHERS: usize = 16 * 512;

struct SchedulerBench {
    checkpoint: Arc<Checkpoint>,
    tokenizer: Arc<Tokenizer>,
    context: usize,
    vocab: u64,
    long: usize,
    prefix: usize,
}

fn main() -> BenchResult<()> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let mut number = |name: &str, default: usize| -> BenchResult<usize> {
        let Some(at) = args.iter().position(|arg| arg == name) else { return Ok(default) };
        let given = args.get(at + 1).and_then(|number| number.parse().ok());
        args.drain(at..(at + 2).min(args.len()));
        given.filter(|number| *number > 0).ok_or_else(|| format!("{name} needs a number of tokens").into())
    };
    let (long, prefix) = (number("--long", 16_384)?, number("--prefix", 4000)?);
    let folder = tempfile::tempdir()?;
    let path = match &args[..] {
        [] => PathBuf::from(DEMO),
        [path] => PathBuf::from(path),
        [shape, kind, layers] => {
            let path = folder.path().join("random.gguf");
            ModelRecipe { layers: Some(layers.parse()?), ..ModelRecipe::new(shape, kind.parse()?) }
                .write_gguf(&path)?;
            path
        }
        _ => return Err("give a file, or shape, type and layers".into()),
    };
    // Random models have no tokenizer. The texts do not matter here, so that any tokenizer will do.
    let tokenizer = Arc::new(Tokenizer::from_checkpoint(&Checkpoint::open(Path::new(DEMO))?)?);
    let checkpoint = Arc::new(Checkpoint::open(&path)?);
    let config = latent_graph::ModelConfig::from_checkpoint(&checkpoint)?;
    let limit = config.context_length;
    let most = limit.checked_sub(FREE_CONTEXT).ok_or("the model's context is too short for this")?;
    let (long, prefix) = (long.min(most), prefix.min(most));
    let context = limit.min(long.max(prefix) + 1024);
    let vocab = config.vocab_size as u64;
    let bench = SchedulerBench { checkpoint, tokenizer, context, vocab, long, prefix };
    bench.describe(limit)?;
    for decoding in [1, 4] {
        bench.under_a_long_prompt(decoding)?;
    }
    bench.clients()?;
    bench.cached(folder.path())
}

impl SchedulerBench {
    /// Prints the settings and the memory that they take.
    fn describe(&self, limit: usize) -> BenchResult<()> {
        let engine = self.engine()?;
        let (summary, config) = (engine.summary(), engine.config());
        println!(
            "{}: {} layers, {} hidden, {:.2} GB of weights; {}, {}",
            summary.name,
            config.layers,
            config.hidden_size,
            summary.weight_bytes as f64 / 1e9,
            summary.tier,
            summary.placement,
        );
        println!(
            "context of {} tokens (the model's limit: {limit}); KV cache of {} tokens in {}; {:.2} GB of memory in all",
            self.context,
            self.context + OTHERS,
            summary.cache,
            engine.needed().total() as f64 / 1e9,
        );
        println!("prompts: {} tokens while other jobs decode, {} tokens cached", self.long, self.prefix);
        Ok(())
    }

    fn engine(&self) -> BenchResult<Engine> {
        let options = EngineOptions {
            context: Some(self.context),
            cache_tokens: Some(self.context + OTHERS),
            ..EngineOptions::default()
        };
        Ok(Engine::load(&*latent_backends::cpu(), &self.checkpoint, &options, &mut |_, _| {})?)
    }

    fn scheduler(&self, options: SchedulerOptions) -> BenchResult<Scheduler> {
        Ok(Scheduler::new(self.engine()?, Arc::clone(&self.tokenizer), options))
    }

    fn job(&self, kind: u32, len: usize, tokens: usize) -> Job {
        let kind = u64::from(kind);
        let token = |i: u64| ((24 + (i * i * 7 + i * (kind + 3) + kind * 31) % 990) % self.vocab) as u32;
        let prompt = (0..len as u64).map(token);
        // The end tokens are banned, so that every job generates its maximum of tokens. Those
        // beyond the vocabulary of the measured model would be refused.
        let ends = self.tokenizer.end_of_generation().iter().map(|id| (*id, f32::NEG_INFINITY));
        let logit_bias = ends.filter(|(id, _)| u64::from(*id) < self.vocab).collect();
        let sampling = SamplingParams { logit_bias, ..SamplingParams::greedy() };
        let request =
            Request { prompt: prompt.collect(), sampling, max_tokens: Some(tokens), ..Request::default() };
        Job { request, ..Job::default() }
    }

    /// Times between the tokens of jobs that decode, without and with a concurrent long prompt.
    fn under_a_long_prompt(&self, decoding: u32) -> BenchResult<()> {
        let mut scheduler = self.scheduler(SchedulerOptions::default())?;
        for kind in 0..decoding {
            scheduler.submit(self.job(kind, 64, 100_000))?;
        }
        let first = JobId(0);
        let mut before: Option<Instant> = None;
        // Runs a step. Returns whether the job `wanted` got a token.
        let mut step = |scheduler: &mut Scheduler, gaps: &mut Vec<f64>, wanted: JobId| -> BenchResult<bool> {
            let (mut came, mut over) = (false, false);
            scheduler.step(&mut |id, event| {
                let token = matches!(event, JobEvent::Token(_));
                came |= token && id == wanted;
                over |= event.is_last() && id == wanted;
                if token && id == first {
                    let now = Instant::now();
                    let gap = before.replace(now).map(|before| (now - before).as_secs_f64() * 1e3);
                    gaps.extend(gap);
                }
            })?;
            if over && !came { Err("a job ended without a token".into()) } else { Ok(came) }
        };
        let mut usual = Vec::new();
        for _ in 0..200 {
            step(&mut scheduler, &mut usual, first)?;
        }
        let long = scheduler.submit(self.job(99, self.long, 2))?;
        let (mut under, start) = (Vec::new(), Instant::now());
        while !step(&mut scheduler, &mut under, long)? {}
        let took = start.elapsed().as_secs_f64();
        println!(
            "{decoding} decoding: ms between two tokens (median / 99th percentile / largest) {} alone, {} during the prompt of {} tokens, which took \
             {took:.1} s ({} preemptions)",
            // The first 20 times are left out: they include the prompts of the decoding jobs.
            percentiles(usual.split_off(20)),
            percentiles(under),
            self.long,
            scheduler.stats().preemptions,
        );
        Ok(())
    }

    /// Tokens per second of one client and of sixteen.
    fn clients(&self) -> BenchResult<()> {
        for clients in [1, 16] {
            let mut scheduler = self.scheduler(SchedulerOptions::default())?;
            for kind in 0..clients {
                scheduler.submit(self.job(kind, 32, 150))?;
            }
            let start = Instant::now();
            while scheduler.step(&mut |_, _| {})? {}
            let stats = scheduler.stats();
            let seconds = start.elapsed().as_secs_f64();
            println!(
                "{clients} clients, prompts of 32 and answers of 150 tokens: {:.0} tokens/s of answers, {} steps of {:.2} ms, {:.3} ms between two steps",
                stats.tokens_out as f64 / seconds,
                stats.steps,
                stats.step_time.as_secs_f64() * 1e3 / stats.steps as f64,
                (seconds - stats.step_time.as_secs_f64()) * 1e3 / stats.steps as f64,
            );
        }
        Ok(())
    }

    /// Time to the first token of a prompt: cold, from memory, and from disk after a restart.
    fn cached(&self, folder: &Path) -> BenchResult<()> {
        let disk = DiskCache { path: folder.join("prefixes"), max_bytes: 8 << 30 };
        let options = SchedulerOptions { disk: Some(disk), ..SchedulerOptions::default() };
        let first = |scheduler: &mut Scheduler, kind| -> BenchResult<Duration> {
            let job = self.job(kind, self.prefix, 1);
            let (start, mut took) = (Instant::now(), None);
            scheduler.submit(job)?;
            while scheduler.step(&mut |_, event| {
                if matches!(event, JobEvent::Token(_)) {
                    took = Some(start.elapsed());
                }
            })? && took.is_none()
            {}
            took.ok_or_else(|| "a job ended without a token".into())
        };
        let mut scheduler = self.scheduler(options.clone())?;
        // Not measured: warms up the engine.
        first(&mut scheduler, 1)?;
        let cold = first(&mut scheduler, 2)?;
        let memory = first(&mut scheduler, 2)?;
        let start = Instant::now();
        scheduler.flush_disk();
        let written = scheduler.stats().disk;
        println!(
            "prefix cache on disk: {} blocks of 64 tokens, {:.1} MB, written in {:.2?}",
            written.blocks_written,
            written.bytes as f64 / 1e6,
            start.elapsed()
        );
        drop(scheduler);
        let mut scheduler = self.scheduler(options)?;
        first(&mut scheduler, 3)?;
        let disk = first(&mut scheduler, 2)?;
        let part = |time: Duration| 100.0 * time.as_secs_f64() / cold.as_secs_f64();
        println!(
            "time to the first token of a prompt of {} tokens: cold {cold:.1?}, prefix in memory {memory:.1?} ({:.1} %), on disk {disk:.1?} ({:.1} %)",
            self.prefix,
            part(memory),
            part(disk)
        );
        Ok(())
    }
}

/// Median, 99th percentile and maximum, or "none" without values.
fn percentiles(mut values: Vec<f64>) -> String {
    if values.is_empty() {
        return "none".into();
    }
    values.sort_by(f64::total_cmp);
    let at = |part: f64| values[((values.len() - 1) as f64 * part) as usize];
    format!("{:.2} / {:.2} / {:.2}", at(0.5), at(0.99), at(1.0))
}
