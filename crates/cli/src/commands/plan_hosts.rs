//! `latent plan-hosts`: which layers each of several hosts should run, and how fast the model is then.

use crate::args::PlanHostsArgs;
use crate::exit::Usage;
use crate::{exit, model, output};
use anyhow::{Context, Result};
use latent_engine::EngineOptions;
use latent_formats::input_file;
use latent_hosts::predict::{self, Host, Link, ModelLoad, Prediction};
use serde::Deserialize;
use serde_json::json;

/// Most bytes of a list of hosts.
const MAX_FILE_BYTES: u64 = 1 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostsFile {
    link: LinkEntry,
    host: Vec<HostEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkEntry {
    gbit_per_s: f64,
    latency_us: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostEntry {
    name: String,
    memory_gb: f64,
    read_gb_per_s: f64,
    gflops: Option<f64>,
}

pub(super) fn run(args: &PlanHostsArgs) -> Result<()> {
    let text = input_file::read_text(&args.hosts, MAX_FILE_BYTES)?;
    let name = || args.hosts.display().to_string();
    let file: HostsFile = toml::from_str(&text).with_context(name)?;
    file.check().with_context(name)?;
    let model = model::describe(args.model.model.as_deref(), args.model.engine.circuit.as_deref())?;
    let options = EngineOptions {
        circuit: Some(std::sync::Arc::new(model.circuit.clone().into_owned())),
        ..args.model.engine.options()
    };
    let backend = args.model.engine.backend()?;
    let resolved = options.resolve(&*backend, &model.config).map_err(exit::usage_of)?;
    let stages = resolved.stages(&model.config, model.tensors())?;
    let context = options.context.unwrap_or(model.config.context_length);
    let cache = resolved.options.stages.bind.cache;
    // half of the context is what a long conversation attends to on the way
    let load = ModelLoad::of_stages(&stages, model.config.hidden_size, cache, context / 2);
    let hosts: Vec<Host> = file.host.iter().map(HostEntry::host).collect();
    let link = Link { bandwidth: file.link.gbit_per_s * 1e9 / 8.0, latency: file.link.latency_us / 1e6 };
    let found = predict::propose(&load, &hosts, link, (context, args.n_prompt))?;
    if args.json {
        output::json(&object(&found, context, args.n_prompt))
    } else {
        print(&found, context, args.n_prompt)
    }
}

impl HostsFile {
    fn check(&self) -> Result<()> {
        let wrong = |what: &str, value: f64| {
            Err(Usage(format!("{what} = {value}: expected a number above 0")).into())
        };
        let positive = |value: f64| value.is_finite() && value > 0.0;
        if !positive(self.link.gbit_per_s) {
            return wrong("gbit_per_s", self.link.gbit_per_s);
        }
        if !(self.link.latency_us.is_finite() && self.link.latency_us >= 0.0) {
            return wrong("latency_us", self.link.latency_us);
        }
        for host in &self.host {
            let numbers = [
                ("memory_gb", Some(host.memory_gb)),
                ("read_gb_per_s", Some(host.read_gb_per_s)),
                ("gflops", host.gflops),
            ];
            for (what, value) in numbers {
                if let Some(value) = value.filter(|value| !positive(*value)) {
                    return wrong(&format!("host {}: {what}", host.name), value);
                }
            }
        }
        Ok(())
    }
}

impl HostEntry {
    fn host(&self) -> Host {
        Host {
            name: self.name.clone(),
            memory: self.memory_gb * 1e9,
            bandwidth: self.read_gb_per_s * 1e9,
            flops: self.gflops.map(|gflops| gflops * 1e9),
        }
    }
}

fn object(found: &Prediction, context: usize, prompt: usize) -> serde_json::Value {
    let rank = |rank: &predict::RankPrediction| {
        json!({
            "host": rank.host,
            "layers": [rank.layers.start, rank.layers.end],
            "memory_bytes": rank.memory,
            "seconds_per_step": rank.seconds,
        })
    };
    json!({
        "predicted": true,
        "partition": found.partition.to_string(),
        "context": context,
        "tokens_per_second": 1.0 / found.step,
        "link_seconds_per_step": found.links,
        "prompt": prompt,
        "first_token_seconds": found.first_token,
        "ranks": found.ranks.iter().map(rank).collect::<Vec<_>>(),
    })
}

fn print(found: &Prediction, context: usize, prompt: usize) -> Result<()> {
    output::line("| rank | host | layers | memory | ms per step |")?;
    output::line("|---|---|---|---|---|")?;
    for (number, rank) in found.ranks.iter().enumerate() {
        let (first, last) = (rank.layers.start, rank.layers.end - 1);
        let (memory, seconds) = (rank.memory / 1e9, 1e3 * rank.seconds);
        output::line(&format!(
            "| {number} | {} | {first} to {last} | {memory:.1} GB | {seconds:.2} |",
            rank.host
        ))?;
    }
    let links = 1e3 * found.links;
    output::line(&format!(
        "predicted with {context} tokens of context: {:.2} tokens/s ({:.2} ms per step, {links:.2} ms of them on links)",
        1.0 / found.step,
        1e3 * found.step,
    ))?;
    if let Some(seconds) = found.first_token {
        output::line(&format!("first token of a prompt of {prompt}: {seconds:.2} s"))?;
    }
    let ranks = found.ranks.len();
    output::line(&format!("mpirun -n {ranks} latent run -m MODEL --partition {}", found.partition))
}
