//! Runs a program: one worker's part of one step. Only this file dispatches on all instructions.

use crate::context::WorkerContext;
use crate::input_products::ProductRecorder;
use crate::input_recorder::InputRecorder;
use crate::program::{Instruction, Program, ProgramStep};
use crate::scratch::WorkerScratch;
use crate::timeline::TimelineRun;
use crate::trace::ProgramProbes;
use latent_backend::{CancelToken, PlanTimes};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// Sums of nanoseconds of a plan while a profile is taken. Only the first worker writes them.
pub(crate) struct PhaseClock {
    /// Time of each phase.
    pub phases: Vec<AtomicU64>,
    /// Time of the first worker's part of each node.
    pub nodes: Vec<AtomicU64>,
}

impl PhaseClock {
    /// Creates a clock for this number of phases and nodes.
    pub(crate) fn new(phases: usize, nodes: usize) -> PhaseClock {
        let zeros = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
        PhaseClock { phases: zeros(phases), nodes: zeros(nodes) }
    }

    pub(crate) fn finish(self) -> PlanTimes {
        let sums = |clocks: Vec<AtomicU64>| clocks.into_iter().map(AtomicU64::into_inner).collect();
        PlanTimes { phases: sums(self.phases), nodes: sums(self.nodes) }
    }
}

/// A run of a program, shared by all workers.
pub(crate) struct ProgramRun<'a> {
    pub program: &'a Program,
    /// Set while a profile is taken.
    pub clock: Option<&'a PhaseClock>,
    /// Set while a timeline is recorded.
    pub timeline: Option<TimelineRun<'a>>,
    /// Set while activations are traced.
    pub recording: Option<ProgramProbes<'a>>,
    /// Set while the squares of inputs are summed.
    pub inputs: Option<&'a InputRecorder>,
    /// Set while the products of inputs are summed.
    pub products: Option<&'a ProductRecorder>,
    pub cancel: &'a CancelToken,
    /// The phase after which a cancelled step ends.
    pub last_phase: &'a AtomicUsize,
}

impl ProgramRun<'_> {
    /// Runs all phases as one worker of the thread pool.
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>, scratch: &mut WorkerScratch) {
        let first_worker = ctx.worker.index == 0;
        let clock = self.clock.filter(|_| first_worker);
        let mut start = clock.map(|_| Instant::now());
        let mut spans = self.timeline.map(|timeline| timeline.worker(ctx.worker.index));
        for (phase, &number) in self.program.phases.iter().zip(&self.program.numbers) {
            let mut last = start;
            if let Some(spans) = &mut spans {
                spans.begin(number);
            }
            for step in phase {
                execute(step, ctx, scratch);
                if let Some(spans) = &mut spans {
                    spans.finish_node(step.node);
                }
                if let (Some(clock), Some(last)) = (clock, &mut last) {
                    add_since(&clock.nodes[step.node], last);
                }
            }
            if first_worker {
                ctx.beat();
            }
            // Only the first worker checks: workers that each read the token could see different
            // values, leave after different phases, and wait for each other at a barrier forever.
            // It stores the result before the barrier, which makes it visible to all (so relaxed
            // suffices).
            if first_worker && (self.cancel.is_cancelled() || ctx.has_failed()) {
                self.last_phase.fetch_min(number, Ordering::Relaxed);
            }
            if let Some(spans) = &mut spans {
                spans.arrive();
            }
            ctx.barrier();
            if let Some(spans) = &mut spans {
                spans.end();
            }
            // Compared with this phase's number: a fast first worker may already have stored that
            // of the next phase, which this worker must still run.
            if self.last_phase.load(Ordering::Relaxed) <= number {
                return;
            }
            if let Some(recording) = &self.recording {
                recording.record(ctx, number);
            }
            if let Some(inputs) = self.inputs {
                inputs.record(phase, ctx, &scratch.experts);
            }
            if let Some(products) = self.products {
                products.record(phase, ctx, &scratch.experts);
            }
            if let (Some(clock), Some(start)) = (clock, &mut start) {
                add_since(&clock.phases[number], start);
            }
        }
    }
}

/// Adds the time since `start`, and sets `start` to now.
fn add_since(sum: &AtomicU64, start: &mut Instant) {
    let end = Instant::now();
    sum.fetch_add((end - *start).as_nanos() as u64, Ordering::Relaxed);
    *start = end;
}

fn execute(step: &ProgramStep, ctx: &WorkerContext<'_>, scratch: &mut WorkerScratch) {
    match &step.instruction {
        Instruction::Embed(op) => op.run(ctx, scratch),
        Instruction::RmsNorm(op) => op.run(ctx),
        Instruction::Linear(op) => op.run(ctx, scratch),
        Instruction::Rope(op) => op.run(ctx, step.path),
        Instruction::LatentStore(op) => op.run(ctx, scratch),
        Instruction::ExpandedStore(op) => op.run(ctx, scratch),
        Instruction::IndexStore(op) => op.run(ctx, scratch),
        Instruction::IndexSelect(op) => op.run(ctx, scratch),
        Instruction::AbsorbK(op) => op.run(ctx, step.path, scratch),
        Instruction::AttendLatent(op) => op.run(ctx, step.path, scratch),
        Instruction::AbsorbV(op) => op.run(ctx, step.path, scratch),
        Instruction::AttendExpanded(op) => op.run(ctx, step.path, scratch),
        Instruction::Route(op) => op.run(ctx, scratch),
        Instruction::ExpertGateUp(op) => op.run(ctx, scratch),
        Instruction::ExpertDown(op) => op.run(ctx, scratch),
        Instruction::Elementwise(op) => op.run(ctx),
        Instruction::Concat(op) => op.run(ctx),
        Instruction::Bias(op) => op.run(ctx),
        Instruction::ShortConv(op) => op.run(ctx, scratch),
        Instruction::L2Norm(op) => op.run(ctx),
        Instruction::LogDecay(op) => op.run(ctx),
        Instruction::DeltaRule(op) => op.run(ctx, scratch),
        Instruction::GatedNorm(op) => op.run(ctx),
        Instruction::GatherRows(op) => op.run(ctx),
        Instruction::AdapterSum(op) => op.run(ctx, scratch),
        Instruction::AdapterHeads(op) => op.run(ctx, scratch),
        Instruction::Collective(op) => op.run(ctx, scratch),
    }
}
