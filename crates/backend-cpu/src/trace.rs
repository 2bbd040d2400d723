//! Copying values out of a step: the first thread reads what a phase has made while the others wait.

use crate::compile::{self, Slot};
use crate::run::Thread;
use latent_backend::BackendError;
use latent_backend::Trace;
use latent_backend::slot;
use latent_graph::Plan;
use latent_graph::activations::{Activations, Source};
use latent_graph::ir::AttentionPath;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// What to copy after each phase of every plan, and where to.
pub struct Recorder {
    /// For each plan, trunk and then head, for each of its phases.
    probes: Vec<Vec<Vec<Probe>>>,
    trace: Mutex<Trace>,
}

/// The part of a [`Recorder`] that one program needs.
#[derive(Clone, Copy)]
pub struct Recording<'a> {
    probes: &'a [Vec<Probe>],
    trace: &'a Mutex<Trace>,
}

/// A point, the rows that have it, and where its numbers lie.
struct Probe {
    point: usize,
    path: AttentionPath,
    place: Place,
    /// The operation with its kernels, as a plan prints it.
    made_by: String,
}

enum Place {
    Value { slot: Slot, columns: Range<usize> },
    Cache { kv_layer: usize, columns: Range<usize> },
    Routing { chosen: Slot, mix: Slot },
}

impl Recorder {
    /// Finds the points that `trace` wants in each plan.
    ///
    /// # Errors
    /// When a plan gives a value no place: an error of Latent.
    pub fn new<'p>(
        plans: impl Iterator<Item = &'p Plan>,
        points: &Activations,
        trace: Trace,
    ) -> Result<Recorder, BackendError> {
        let of_plan = |plan: &Plan| -> Result<Vec<Vec<Probe>>, BackendError> {
            let mut phases: Vec<Vec<Probe>> = (0..plan.phase_count()).map(|_| Vec::new()).collect();
            for probe in points.probes(plan).into_iter().filter(|probe| trace.wants(probe.activation)) {
                let place = match probe.source {
                    Source::Value { value, columns } => {
                        Place::Value { slot: compile::slot(plan, value)?, columns }
                    }
                    Source::Cache { kv_layer, columns } => Place::Cache { kv_layer: kv_layer.0, columns },
                    Source::Routing { topk_ids, topk_weights } => Place::Routing {
                        chosen: compile::slot(plan, topk_ids)?,
                        mix: compile::slot(plan, topk_weights)?,
                    },
                };
                let made_by = plan.ir.line(&plan.ir.nodes[probe.node]);
                phases[probe.phase].push(Probe { point: probe.activation, path: probe.path, place, made_by });
            }
            Ok(phases)
        };
        let probes = plans.map(of_plan).collect::<Result<_, _>>()?;
        Ok(Recorder { probes, trace: Mutex::new(trace) })
    }

    /// What the plan at `index` copies.
    pub fn of(&self, index: usize) -> Recording<'_> {
        Recording { probes: &self.probes[index], trace: &self.trace }
    }

    /// What was copied.
    pub fn finish(self) -> Trace {
        self.trace.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Thread<'_> {
    /// Copies what `phase` has made. Every thread calls it, and none goes on before the first has read.
    pub(crate) fn record(&self, recording: &Recording<'_>, phase: usize) {
        let probes = &recording.probes[phase];
        if probes.is_empty() {
            return;
        }
        if self.worker.index == 0 {
            let mut trace = recording.trace.lock().unwrap_or_else(PoisonError::into_inner);
            for probe in probes {
                self.record_tap(probe, &mut trace);
            }
        }
        self.worker.barrier();
    }

    fn record_tap(&self, probe: &Probe, trace: &mut Trace) {
        // a trace follows one sequence; the head's batch has no spans, and all of its rows
        let span = self.batch.spans.first();
        if span.is_some_and(|span| !probe.path.meets(span.path)) {
            return;
        }
        let mut line = Vec::new();
        for (row, &position) in self.batch.positions.iter().enumerate().take(self.rows) {
            let out = trace.row(probe.point, position, &probe.made_by);
            match &probe.place {
                Place::Value { slot, columns } => {
                    for (head, out) in out.chunks_exact_mut(columns.len()).enumerate() {
                        out.copy_from_slice(&self.head(slot, row, head)[columns.clone()]);
                    }
                }
                Place::Cache { kv_layer, columns } => {
                    let Some(span) = span else { return };
                    let (kv_layer, memory) = &self.kv.kv_layers()[*kv_layer];
                    let place = slot(&span.block_table, position);
                    line.resize(kv_layer.width, 0.0);
                    latent_kernels::load_row(
                        kv_layer.row(self.kv.cache_type()),
                        memory.row(place),
                        &mut line,
                    );
                    out.copy_from_slice(&line[columns.clone()]);
                }
                Place::Routing { chosen, mix } => {
                    out.fill(0.0);
                    let ids = crate::experts::as_ids(self.row(chosen, row));
                    for (id, weight) in ids.iter().zip(self.row(mix, row)) {
                        out[*id as usize] = *weight;
                    }
                }
            }
        }
    }
}
