//! Measures hosts by running a part of the model, and the links between them.

use crate::args::PlanHostsArgs;
use crate::commands::batched::BatchedSequences;
use crate::commands::median::median;
use crate::hosts_file::HostsFile;
use crate::{model, ranks};
use anyhow::Result;
use latent_backend::{Channel, Communicator};
use latent_engine::{Engine, EngineOptions, LogitsRequest, StepSize, memory};
use latent_formats::Checkpoint;
use latent_graph::ModelConfig;
use latent_graph::config::LayerKind;
use latent_hosts::agree::on_least;
use latent_hosts::predict::{Host, HostSpeed, NetworkLink};
use latent_hosts::slowest_link;
use std::sync::Arc;
use std::time::Instant;

/// MoE layers to run, if memory allows.
// Fewer could stay in the caches between two steps.
const MAX_MOE_LAYERS: usize = 4;

/// Timed steps of one row.
const TIMED_STEPS: usize = 64;

/// Timed repetitions of the prompt.
const TIMED_PROMPTS: usize = 2;

/// Measures the hosts of all ranks and the links between them. Only rank 0 returns a result.
pub(super) fn all_ranks(args: &PlanHostsArgs) -> Result<Option<HostsFile>> {
    let checkpoint = model::open(args.model.model.as_deref())?;
    let Some(hosts) = ranks::hosts(None)? else {
        // Without MPI, only this machine.
        let host = this_host(args, &checkpoint, "this host".into(), &|| Ok(()))?;
        return Ok(Some(HostsFile::alone(host)));
    };
    let communicator = &*hosts.communicator;
    let (rank, count) = (communicator.rank(), communicator.ranks());
    let name = communicator.host(rank);
    // A collective operation waits for all ranks. Its result is not needed.
    let barrier = || Ok(on_least(communicator, 0).map(|_| ())?);
    // Ranks measure one after the other, because several may share a host. Each rank passes `count`
    // barriers: as many before its turn as its number, the rest after it.
    (0..rank).try_for_each(|_| barrier())?;
    let mut own = this_host(args, &checkpoint, name.clone(), &|| Ok(()))?;
    (rank..count).try_for_each(|_| barrier())?;
    if args.at_once {
        own.at_once = Some(this_host(args, &checkpoint, name, &barrier)?.speed);
    }
    let link = slowest_link(&hosts.communicator)?;
    collect(communicator, own, link)
}

/// Collects all measurements on rank 0.
fn collect(
    communicator: &dyn Communicator,
    own: Host,
    link: Option<NetworkLink>,
) -> Result<Option<HostsFile>> {
    let of = |speed: HostSpeed| [speed.bandwidth, speed.flops.unwrap_or_default()];
    // `None` is sent as zero.
    let at_once = own.at_once.map_or([0.0; 2], of);
    let numbers = [&[own.memory], of(own.speed).as_slice(), &at_once].concat();
    if communicator.rank() > 0 {
        let message: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        communicator.send(0, Channel::Answers, &message)?;
        return Ok(None);
    }
    let mut file = HostsFile { link: link.unwrap_or(HostsFile::alone(own.clone()).link), hosts: vec![own] };
    let mut message = Vec::new();
    for from in 1..communicator.ranks() {
        communicator.receive(from, Channel::Answers, &mut message)?;
        let numbers: Vec<f64> =
            message.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
        let [memory, bandwidth, flops, read_at_once, flops_at_once] = numbers[..] else {
            anyhow::bail!("rank {from} sent {} bytes of measurements, expected 40", message.len());
        };
        let speed = |bandwidth, flops| HostSpeed { bandwidth, flops: Some(flops) };
        let at_once = (read_at_once > 0.0).then(|| speed(read_at_once, flops_at_once));
        file.hosts.push(Host {
            name: communicator.host(from),
            memory,
            speed: speed(bandwidth, flops),
            at_once,
        });
    }
    Ok(Some(file))
}

/// Measures this host. `barrier` is called before each timed part.
fn this_host(
    args: &PlanHostsArgs,
    checkpoint: &Arc<Checkpoint>,
    name: String,
    barrier: &dyn Fn() -> Result<()>,
) -> Result<Host> {
    // Unknown memory does not limit the layers.
    let memory = memory::available().map_or(f64::INFINITY, |free| free.bytes as f64);
    let config = ModelConfig::from_checkpoint(checkpoint)?;
    let weights: usize = checkpoint.tensors().iter().map(|tensor| tensor.bytes).sum();
    let first_layers = Some(layers(&config, memory, weights as f64));
    let prompt = args.n_prompt.min(config.context_length.saturating_sub(TIMED_STEPS + 1)).max(1);
    let context = Some(prompt + TIMED_STEPS + 1);
    let options = EngineOptions { first_layers, context, ..args.model.engine.options() };
    let mut engine = Engine::load(&*args.model.engine.backend()?, checkpoint, &options, &mut |_, _| {})?;
    engine.wait_for_weights();
    let (bandwidth, flops) = speeds(&mut engine, prompt, barrier)?;
    Ok(Host { name, memory, speed: HostSpeed { bandwidth, flops: Some(flops) }, at_once: None })
}

/// Number of first layers to run: the dense ones and some MoE layers. Fewer if they would take half
/// of the memory.
fn layers(config: &ModelConfig, memory: f64, weights: f64) -> usize {
    let dense = config.layer_kinds.iter().take_while(|kind| **kind != LayerKind::Moe).count();
    let wanted = if dense < config.layers { dense + MAX_MOE_LAYERS } else { MAX_MOE_LAYERS };
    let room = (memory / 2.0 / (weights / config.layers.max(1) as f64)) as usize;
    wanted.min(config.layers).min(room).max(1)
}

/// Bytes per second of decode steps, and operations per second of prompts.
fn speeds(engine: &mut Engine, prompt: usize, barrier: &dyn Fn() -> Result<()>) -> Result<(f64, f64)> {
    let mut sequences = BatchedSequences::new(engine, 1, prompt + TIMED_STEPS + 1);
    let mut prompts = Vec::new();
    barrier()?;
    for _ in 0..=TIMED_PROMPTS {
        sequences.truncate(engine, 0)?;
        let start = Instant::now();
        sequences.prompt(engine, 0..prompt)?;
        prompts.push(start.elapsed().as_secs_f64());
    }
    let mut steps = Vec::new();
    barrier()?;
    for at in prompt..=prompt + TIMED_STEPS {
        let start = Instant::now();
        // Without logits: in a pipeline only the last rank has an lm_head, and the predictor adds
        // it.
        sequences.step(engine, at..at + 1, LogitsRequest::Nothing)?;
        steps.push(start.elapsed().as_secs_f64());
    }
    sequences.release(engine);
    let chunk = engine.chunk_for(prompt);
    let flops: f64 = StepSize::prompt(prompt, 0, chunk).map(|step| engine.cost(step).flops).sum();
    let step = StepSize { wanted: 0, ..StepSize::decode(1, prompt + TIMED_STEPS / 2) };
    let cost = engine.cost(step);
    // The first of each is a warm-up.
    Ok(((cost.weight_bytes + cost.cache_bytes) / median(&steps[1..]), flops / median(&prompts[1..])))
}
