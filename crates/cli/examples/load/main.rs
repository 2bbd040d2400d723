//! Load test: many concurrent clients of a server's `/completion`. Measures what they get, how
//! fast, and whether the server leaks memory.
//!
//! ```text
//! cargo run --release -p latent-cli --example load -- --serve target/release/latent --clients 64 --seconds 600 --mixed
//! cargo run --release -p latent-cli --example load -- --url http://127.0.0.1:8080 --clients 16 --prompt 256 --answer 128
//! cargo run --release -p latent-cli --example load -- --serve target/release/latent --hostile --seconds 12
//! ```
//!
//! With `--hostile` it attacks the server. It fails if plain requests become more than five times
//! as slow, if the server ends, or if it takes more memory than allowed. Otherwise it measures
//! throughput.
//!
//! It uses llama.cpp's API, so that llama-server can be measured with the same clients. Prompts are
//! random token IDs. A client sends its next request when the last one has ended. When the time is
//! over it abandons the running one, whose tokens so far count. The exit code is 1 if a request
//! failed (429 and 503 do not count), if blocks of the KV cache are still held at the end, or if
//! resident memory after the warm-up varied by more than `--memory-spread`.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a program for the terminal")]

mod client;
mod figures;
mod hostile;
mod plan;
mod serve;
mod watch;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use client::LoadClient;
use figures::LoadFigures;
use plan::ClientPlan;
use serve::LoadServer;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use watch::MemoryWatch;

#[derive(Parser)]
struct Args {
    /// The server's address
    #[arg(long, required_unless_present = "serve", conflicts_with = "serve")]
    url: Option<String>,
    /// A program whose `serve` is started, watched, and told to stop at the end
    #[arg(long, value_name = "PROGRAM")]
    serve: Option<PathBuf>,
    /// The model for --serve, in place of the demo
    #[arg(long, short, requires = "serve")]
    model: Option<PathBuf>,
    /// Clients at once
    #[arg(long, default_value_t = 16)]
    clients: usize,
    /// Seconds to go on for
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Tokens of each prompt
    #[arg(long, default_value_t = 256)]
    prompt: usize,
    /// Tokens of each answer
    #[arg(long, default_value_t = 128)]
    answer: usize,
    /// Short and long prompts and answers mixed, some with a common beginning, some given up in the
    /// middle
    #[arg(long)]
    mixed: bool,
    /// Longest prompt with its answer, for --mixed
    #[arg(long, default_value_t = 2000)]
    context: usize,
    /// Token ids of prompts, the highest one excluded
    #[arg(long, num_args = 2, value_names = ["LOWEST", "HIGHEST"], default_values_t = [300, 1000])]
    ids: Vec<u32>,
    /// Of the random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The process of --url, whose resident memory is watched
    #[arg(long, conflicts_with = "serve")]
    pid: Option<u32>,
    /// Seconds before memory counts
    #[arg(long, default_value_t = 60)]
    warm_up: u64,
    /// Attack the server, and compare the latency of plain requests with and without
    #[arg(long)]
    hostile: bool,
    /// Most resident memory under attack, in MiB, for --hostile
    #[arg(long, default_value_t = 2048)]
    memory_limit: u64,
    /// The server's certificate, for --serve; SSL_CERT_FILE lets the clients trust it
    #[arg(long, requires = "serve", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key of the certificate
    #[arg(long, requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Largest allowed spread of resident memory, as a share of its mean
    #[arg(long, default_value_t = 0.02)]
    memory_spread: f64,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let tls = args.tls_cert.as_deref().zip(args.tls_key.as_deref());
    let start = |program| LoadServer::start(program, args.model.as_deref(), tls);
    let serving = args.serve.as_deref().map(start).transpose()?;
    let url = serving
        .as_ref()
        .map(LoadServer::url)
        .or(args.url.as_deref())
        .context("no address")?
        .trim_end_matches('/');
    let pid = args.pid.or(serving.as_ref().map(LoadServer::pid));
    if args.hostile {
        let memory = args.memory_limit << 20;
        hostile::run(&hostile::AttackTarget { url, pid, memory, seconds: args.seconds })?;
        return serving.map_or(Ok(()), LoadServer::stop);
    }
    ensure!(args.ids[0] < args.ids[1], "--ids: the first id must be below the second");
    let begin = Instant::now();
    let end = begin + Duration::from_secs(args.seconds);
    let memory = pid.map(|pid| MemoryWatch::watch(pid, begin + Duration::from_secs(args.warm_up)));
    let figures = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..args.clients)
            .map(|index| {
                let plan = ClientPlan::new(&args, args.seed.wrapping_mul(1 << 20).wrapping_add(index as u64));
                scope.spawn(move || LoadClient::new(url).work(plan, end))
            })
            .collect();
        clients.into_iter().map(|client| client.join().expect("a client does not panic")).fold(
            LoadFigures::default(),
            |mut all, own| {
                all.add(own);
                all
            },
        )
    });
    println!("{}", figures.report(args.seconds as f64));
    let kept = watch::blocks_after_all(url).context("reading /metrics")?;
    let spread = memory.map(MemoryWatch::stop).transpose()?;
    if let Some(spread) = &spread {
        println!("{spread}");
    }
    match kept {
        Some(blocks) => println!("blocks held after all had ended: {blocks}"),
        None => println!("(the server does not tell which blocks are held)"),
    }
    serving.map(LoadServer::stop).transpose()?;
    ensure!(figures.errors.is_empty(), "{} requests failed", figures.errors.values().sum::<usize>());
    ensure!(kept.unwrap_or(0) == 0, "blocks are still held");
    ensure!(figures.answered > 0, "no request was answered");
    if let Some(spread) = spread {
        ensure!(spread.share() <= args.memory_spread, "memory spread by more than {}", args.memory_spread);
    }
    Ok(())
}
