//! Copies activations out of a step. After each phase with probes, the first worker copies their
//! values while the other workers wait.

use crate::compile;
use crate::context::WorkerContext;
use crate::program::OperandView;
use latent_backend::{ActivationTrace, BackendError};
use latent_graph::activations::{ActivationSource, Activations};
use latent_graph::ir::AttentionPath;
use latent_graph::{Plan, Stage};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// The probes of every plan, and the trace that they fill.
pub(crate) struct TraceRecorder {
    /// Per plan (stage after stage), per phase.
    probes: Vec<Vec<Vec<TraceProbe>>>,
    trace: Mutex<ActivationTrace>,
}

/// The part of a [`TraceRecorder`] that one program needs.
#[derive(Clone, Copy)]
pub(crate) struct ProgramProbes<'a> {
    probes: &'a [Vec<TraceProbe>],
    trace: &'a Mutex<ActivationTrace>,
}

/// An activation and the location of its elements in a plan.
struct TraceProbe {
    activation: usize,
    /// The attention path whose rows have it.
    path: AttentionPath,
    source: ProbeSource,
    /// The operation with its kernels, as a plan prints it.
    made_by: String,
}

enum ProbeSource {
    Value { operand: OperandView, columns: Range<usize> },
    Cache { kv_layer: usize, columns: Range<usize> },
    Routing { topk_ids: OperandView, topk_weights: OperandView },
}

impl TraceRecorder {
    /// Finds the activations of `trace` in each plan.
    pub(crate) fn new(
        stages: &[Stage],
        activations: &Activations,
        trace: ActivationTrace,
    ) -> Result<TraceRecorder, BackendError> {
        let of_plan = |plan: &Plan, first_kv_layer: usize| -> Result<Vec<Vec<TraceProbe>>, BackendError> {
            let mut phases: Vec<Vec<TraceProbe>> = (0..plan.phase_count()).map(|_| Vec::new()).collect();
            for probe in activations.probes(plan).into_iter().filter(|probe| trace.wants(probe.activation)) {
                let source = match probe.source {
                    ActivationSource::Value { value, columns } => {
                        ProbeSource::Value { operand: compile::operand(plan, value)?, columns }
                    }
                    ActivationSource::Cache { kv_layer, columns } => {
                        ProbeSource::Cache { kv_layer: first_kv_layer + kv_layer.0, columns }
                    }
                    ActivationSource::Routing { topk_ids, topk_weights } => ProbeSource::Routing {
                        topk_ids: compile::operand(plan, topk_ids)?,
                        topk_weights: compile::operand(plan, topk_weights)?,
                    },
                };
                let made_by = plan.ir.line(&plan.ir.nodes[probe.node]);
                let (activation, path) = (probe.activation, probe.path);
                phases[probe.phase].push(TraceProbe { activation, path, source, made_by });
            }
            Ok(phases)
        };
        // Plans number the KV layers of their own stage; the cache has those of all stages.
        let (mut probes, mut first_kv_layer) = (Vec::new(), 0);
        for stage in stages {
            for plan in &stage.plans {
                probes.push(of_plan(plan, first_kv_layer)?);
            }
            first_kv_layer += stage.kv_layers().len();
        }
        Ok(TraceRecorder { probes, trace: Mutex::new(trace) })
    }

    /// The probes of the plan at `index`.
    pub(crate) fn of(&self, index: usize) -> ProgramProbes<'_> {
        ProgramProbes { probes: &self.probes[index], trace: &self.trace }
    }

    /// The filled trace.
    pub(crate) fn finish(self) -> ActivationTrace {
        self.trace.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProgramProbes<'_> {
    /// Copies the results of `phase`. Every worker calls it and waits until the first has read
    /// them: the next phase may overwrite them.
    pub(crate) fn record(&self, ctx: &WorkerContext<'_>, phase: usize) {
        let probes = &self.probes[phase];
        if probes.is_empty() {
            return;
        }
        if ctx.worker.index == 0 {
            let mut trace = self.trace.lock().unwrap_or_else(PoisonError::into_inner);
            for probe in probes {
                probe.record(ctx, &mut trace);
            }
        }
        ctx.barrier();
    }
}

impl TraceProbe {
    fn record(&self, ctx: &WorkerContext<'_>, trace: &mut ActivationTrace) {
        // A trace follows one sequence. The batch of `lm_head` has no spans: its rows are all
        // traced.
        let span = ctx.batch.spans.first();
        if span.is_some_and(|span| !self.path.meets(span.path)) {
            return;
        }
        let mut elements = Vec::new();
        for (row, &position) in ctx.batch.positions.iter().enumerate().take(ctx.rows) {
            let out = trace.row(self.activation, position, &self.made_by);
            match &self.source {
                ProbeSource::Value { operand, columns } => {
                    for (head, out) in out.chunks_exact_mut(columns.len()).enumerate() {
                        out.copy_from_slice(&ctx.head(operand, row, head)[columns.clone()]);
                    }
                }
                ProbeSource::Cache { kv_layer, columns } => {
                    let Some(span) = span else { return };
                    elements.resize(ctx.kv.kv_layer(*kv_layer).0.width, 0.0);
                    let cached = ctx.kv_row(span, *kv_layer, position);
                    latent_kernels::load_row(ctx.kv_format(*kv_layer), cached, &mut elements);
                    out.copy_from_slice(&elements[columns.clone()]);
                }
                ProbeSource::Routing { topk_ids, topk_weights } => {
                    out.fill(0.0);
                    let weights = ctx.row(topk_weights, row);
                    for (id, weight) in ctx.ids(topk_ids, row).iter().zip(weights) {
                        out[*id as usize] = *weight;
                    }
                }
            }
        }
    }
}
