//! `latent profile`: the time of each phase of decode and prefill, compared with the machine's
//! limits, which are measured in the same run.

use super::batched::{BatchedSequences, context, fit};
use super::limit_samples::LimitSamples;
use super::simulation;
use crate::args::ProfileArgs;
use crate::{model, output, target};
use anyhow::Result;
use latent_engine::{
    Engine, EngineError, LogitsRequest, PeakRates, PhaseProfile, ProfileClock, RankProfile, StepProfile,
    StepSize, TimelineSlice,
};
use latent_formats::output_file;
use latent_graph::ModelConfig;
use serde_json::{Value, json};
use std::collections::BTreeSet;

pub(super) fn run(args: &ProfileArgs) -> Result<()> {
    if let Some(out) = &args.trace {
        target::check(out, args.model.engine.force)?;
    }
    let checkpoint = model::open_shared(&args.model)?;
    let count = usize::from(args.sequences);
    let mut engine_args = args.model.engine.clone();
    // Verification and drafting read tokens after the last decoded one.
    let length = args.n_depth + args.n_prompt.max(args.n_gen + 2);
    let limit = ModelConfig::before_loading(&checkpoint)?.context_length;
    fit(&mut engine_args, context(count, length), limit)?;
    let mut engine = model::load(&checkpoint, &engine_args, args.json)?;
    // The thread that reads weights ahead would compete for memory bandwidth.
    engine.wait_for_weights();
    let mut samples = LimitSamples::default();
    samples.measure(&engine, &args.model.engine)?;
    let limits = samples.median();
    let mut batch = BatchedSequences::new(&engine, count, length);
    batch.fill(&mut engine, args.n_depth)?;
    let mut profiles = Vec::new();
    if args.n_gen > 0 {
        let sizes: Vec<StepSize> =
            (0..args.n_gen).map(|i| StepSize::decode(count, args.n_depth + i)).collect();
        profiles.push(measure(&mut engine, &mut batch, args.n_depth, &sizes, &limits)?);
        if engine.drafts() {
            let cached = |i: usize| args.n_depth + i;
            let verify: Vec<StepSize> = (0..args.n_gen).map(|i| StepSize::verify(count, cached(i))).collect();
            profiles.push(measure(&mut engine, &mut batch, args.n_depth, &verify, &limits)?);
            let draft: Vec<StepSize> =
                (0..args.n_gen).map(|i| StepSize::draft(count, cached(i + 1))).collect();
            profiles.push(measure(&mut engine, &mut batch, args.n_depth, &draft, &limits)?);
        }
    }
    if args.n_prompt > 0 {
        // The prompt is profiled with one sequence.
        let chunk = engine.chunk_for(args.n_prompt);
        let mut sizes: Vec<_> = StepSize::prompt(args.n_prompt, args.n_depth, chunk).collect();
        if engine.drafts() {
            sizes.extend(mtp_of_prompt(&sizes, args.n_depth));
        }
        batch.keep(&mut engine, 1);
        profiles.push(measure(&mut engine, &mut batch, args.n_depth, &sizes, &limits)?);
    }
    batch.release(&mut engine);
    samples.measure(&engine, &args.model.engine)?;
    if let Some(out) = &args.trace {
        output_file::write(out, timeline(&profiles).to_string().as_bytes())?;
        output::note(&format!("{}: open it in ui.perfetto.dev", out.display()));
    }
    let simulated = match &args.simulate {
        Some(machine) => simulation::of_profiles(&profiles, machine, &limits)?,
        None => Vec::new(),
    };
    if args.json {
        let noisy = samples.are_noisy();
        let mut result = json!({ "limits": limits, "too_noisy": noisy, "steps": profiles });
        if let Some(machine) = &args.simulate {
            result["simulation"] =
                json!({ "machine": machine, "method": simulation::METHOD, "steps": simulated });
        }
        return output::json(&result);
    }
    output::line(&samples.text_of(&model::measured(engine.summary()), "before the steps", &limits))?;
    match profiles.first().map(|profile| profile.clock) {
        None | Some(ProfileClock::HostThread) => {}
        Some(ProfileClock::Timestamps) => output::line(
            "times are the device's timestamps around each operation; all operations of a step are submitted \
             together",
        )?,
        Some(ProfileClock::OneByOne) => output::line(
            "the device has no timestamps: operations run one at a time, and times include the round trip",
        )?,
    }
    profiles.iter().try_for_each(print)?;
    match &args.simulate {
        Some(machine) => simulation::print(machine, &profiles, &simulated),
        None => Ok(()),
    }
}

/// Runs steps of these sizes after `depth` tokens, once as a warm-up and once measured.
fn measure(
    engine: &mut Engine,
    batch: &mut BatchedSequences,
    depth: usize,
    sizes: &[StepSize],
    limits: &PeakRates,
) -> Result<StepProfile> {
    let mut once = |engine: &mut Engine| -> Result<(), EngineError> {
        batch.truncate(engine, depth)?;
        let mut first = depth;
        for size in sizes {
            match (size.mtp, size.rows, size.wanted) {
                // The MTP layer drafts after a row of the model, which is not measured.
                (true, 1, 1..) => {
                    batch.step(engine, first..first + 1, LogitsRequest::Nothing)?;
                    batch.draft(engine, first + 1)?;
                    first += 1;
                }
                // The MTP rows of a prompt run as part of its steps.
                (true, ..) => {}
                (false, 2, 2..) => {
                    batch.verify(engine, first..first + 2)?;
                    batch.truncate(engine, first)?;
                }
                (false, rows, wanted) => {
                    let wanted = if wanted > 0 { LogitsRequest::Last } else { LogitsRequest::Nothing };
                    batch.step(engine, first..first + rows, wanted)?;
                    first += rows;
                }
            }
        }
        Ok(())
    };
    once(engine)?;
    // Decode steps are alike, so their average is shown. The steps of a prompt are summed.
    let repeated = sizes.iter().all(|size| size.rows <= 2 && size.wanted >= size.rows);
    let profile = engine.profile(sizes, repeated, limits, &mut once)?;
    batch.truncate(engine, depth)?;
    Ok(profile)
}

/// Steps of the MTP layer during a prompt. It needs the next token, so it is one row behind.
fn mtp_of_prompt(sizes: &[StepSize], depth: usize) -> Vec<StepSize> {
    let of = |size: &StepSize| {
        let behind = usize::from(size.cached == 0 && depth == 0);
        StepSize { rows: size.rows - behind, wanted: 0, mtp: true, ..*size }
    };
    sizes.iter().map(of).filter(|size| size.rows > 0).collect()
}

fn print(step: &StepProfile) -> Result<()> {
    let what = step.title();
    output::line("")?;
    output::line(&format!("{what}, {:.1} t/s;", step.tokens_per_s))?;
    output::line(&format!("{} phases and barriers, {} kernels per step", step.barriers, step.kernels))?;
    output::line(&format!(
        "{:<8}{:<26}{:>8}{:>4}{:>7}{:>6} {:>7} {:<6}{:>6}",
        "layers", "phase", "µs", "×", "time", "GB/s", "GFLOP/s", "limit", "of it"
    ))?;
    for phase in &step.phases {
        for (i, operation) in phase.operations.iter().enumerate() {
            output::line(&if i == 0 { row(phase, operation) } else { format!("{:8}{operation}", "") })?;
        }
        for kernel in &phase.kernels {
            output::line(&format!("{:10}{kernel}", ""))?;
        }
        if let Some(times) = of_operations(phase) {
            output::line(&format!("{:10}{times}", ""))?;
        }
    }
    step.ranks.iter().try_for_each(rank)?;
    let mut costly: Vec<&PhaseProfile> = step.phases.iter().collect();
    costly.sort_by(|a, b| b.share.total_cmp(&a.share));
    output::line("costliest:")?;
    for phase in costly.iter().take(3) {
        output::line(&format!(
            "  {:>4.1} %  {} ({})",
            100.0 * phase.share,
            phase.operations.join(", "),
            layers(phase)
        ))?;
    }
    Ok(())
}

/// Prints another rank's time.
fn rank(rank: &RankProfile) -> Result<()> {
    let RankProfile { rank, host, millis, idle_millis, collective_millis, operations } = rank;
    output::line(&format!(
        "rank {rank} on {host}: {millis:.2} ms, including {collective_millis:.2} ms waiting in collectives; \
         {idle_millis:.2} ms waiting for the next step"
    ))?;
    let each: Vec<String> = operations.iter().map(|(word, millis)| format!("{word} {millis:.3}")).collect();
    if each.is_empty() {
        Ok(())
    } else {
        output::line(&format!("{:10}first thread, ms: {}", "", each.join(", ")))
    }
}

/// The first thread's time per operation of a phase, and its wait for other threads; `None` for a
/// single operation.
fn of_operations(phase: &PhaseProfile) -> Option<String> {
    let times = &phase.operation_micros;
    if times.len() < 2 {
        return None;
    }
    let each =
        phase.operations.iter().zip(times).map(|(operation, micros)| format!("{operation} {micros:.1}"));
    let waiting = (phase.micros - times.iter().sum::<f64>()).max(0.0);
    Some(format!("first thread: {}, waiting {waiting:.1} µs", each.collect::<Vec<_>>().join(", ")))
}

fn layers(phase: &PhaseProfile) -> String {
    match phase.layers {
        Some((first, last)) if first == last => format!("L{first}"),
        Some((first, last)) => format!("L{first}–{last}"),
        None => "–".into(),
    }
}

fn row(phase: &PhaseProfile, operation: &str) -> String {
    let short: String = operation.chars().take(25).collect();
    let limit = if phase.bound == "memory" { "memory" } else { "arith." };
    format!(
        "{:<8}{short:<26}{:>8.1}{:>4}{:>5.1} %{:>6.1} {:>7.0} {limit:<6}{:>4.0} %",
        layers(phase),
        phase.micros,
        phase.count,
        100.0 * phase.share,
        phase.gb_per_s,
        phase.gflop_per_s,
        100.0 * phase.of_limit
    )
}

/// The profile in the Trace Event Format, which Perfetto (ui.perfetto.dev) opens.
// One process per profile, one thread per thread of the backend, one slice per phase. Within a
// phase are slices of its operations and of the wait at the barrier. The page of `latent graph
// --html` writes the same format from a profile's JSON (crates/viz/assets/timeline.js): keep both
// in step.
fn timeline(profiles: &[StepProfile]) -> Value {
    let mut events = Vec::new();
    for (pid, profile) in profiles.iter().enumerate() {
        let timeline = &profile.timeline;
        let named = |name: &str, tid: usize, value: String| json!({"ph": "M", "name": name, "pid": pid, "tid": tid, "args": {"name": value}});
        events.push(named("process_name", 0, timeline.title.clone()));
        let threads: BTreeSet<usize> = timeline.slices.iter().map(|slice| slice.thread).collect();
        events.extend(threads.into_iter().map(|thread| {
            let name = if timeline.measured { format!("thread {thread}") } else { "averages".into() };
            named("thread_name", thread, name)
        }));
        for slice in &timeline.slices {
            slice_events(pid, profile, slice, &mut events);
        }
    }
    json!({"displayTimeUnit": "ns", "traceEvents": events})
}

fn slice_events(pid: usize, profile: &StepProfile, slice: &TimelineSlice, events: &mut Vec<Value>) {
    let TimelineSlice { thread, phase, layer, begin, work, wait, operations } = slice;
    let phase = &profile.phases[*phase];
    let mut add = |name: &str, category: &str, start: f64, micros: f64, args: Value| {
        events.push(json!({
            "ph": "X", "name": name, "cat": category, "pid": pid, "tid": thread, "ts": start, "dur": micros, "args": args
        }));
    };
    let args = json!({
        "layer": layer, "rows": phase.rows, "kernels": phase.kernels, "bound": phase.bound,
        "of_limit": phase.of_limit, "gb_per_s": phase.gb_per_s, "gflop_per_s": phase.gflop_per_s,
    });
    add(&phase.operations.join(", "), "phase", *begin, work + wait, args);
    let mut start = *begin;
    for (operation, micros) in phase.operations.iter().zip(operations) {
        add(operation, "operation", start, *micros, json!({}));
        start += micros;
    }
    if *wait > 0.0 {
        add("wait at the barrier", "wait", begin + work, *wait, json!({}));
    }
}
