//! Copying values out of a step: the first thread reads what a phase has made while the others wait.

use super::compile::{self, Slot};
use super::run::Thread;
use crate::cache::PAGE_ROWS;
use crate::error::EngineError;
use crate::trace::Trace;
use graph::Plan;
use graph::ir::Lane;
use graph::points::{Points, Source};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// What to copy after each phase of every plan, and where to.
pub struct Recorder {
    /// For each plan, trunk and then head, for each of its phases.
    taps: Vec<Vec<Vec<Tap>>>,
    trace: Mutex<Trace>,
}

/// The part of a [`Recorder`] that one program needs.
#[derive(Clone, Copy)]
pub struct Recording<'a> {
    taps: &'a [Vec<Tap>],
    trace: &'a Mutex<Trace>,
}

/// A point, the rows that have it, and where its numbers lie.
struct Tap {
    point: usize,
    lane: Lane,
    place: Place,
    /// The operation with its kernels, as a plan prints it.
    made_by: String,
}

enum Place {
    Value { slot: Slot, columns: Range<usize> },
    Cache { stream: usize, columns: Range<usize> },
    Routing { chosen: Slot, mix: Slot },
}

impl Recorder {
    /// Finds the points that `trace` wants in each plan.
    ///
    /// # Errors
    /// When a plan gives a value no place: an error of Latent.
    pub fn new<'p>(
        plans: impl Iterator<Item = &'p Plan>,
        points: &Points,
        trace: Trace,
    ) -> Result<Recorder, EngineError> {
        let of_plan = |plan: &Plan| -> Result<Vec<Vec<Tap>>, EngineError> {
            let mut phases: Vec<Vec<Tap>> = (0..plan.phase_count()).map(|_| Vec::new()).collect();
            for tap in points.taps(plan).into_iter().filter(|tap| trace.wants(tap.point)) {
                let place = match tap.source {
                    Source::Value { value, columns } => {
                        Place::Value { slot: compile::slot(plan, value)?, columns }
                    }
                    Source::Cache { stream, columns } => Place::Cache { stream: stream.0, columns },
                    Source::Routing { chosen, mix } => Place::Routing {
                        chosen: compile::slot(plan, chosen)?,
                        mix: compile::slot(plan, mix)?,
                    },
                };
                let made_by = plan.ir.line(&plan.ir.nodes[tap.node]);
                phases[tap.phase].push(Tap { point: tap.point, lane: tap.lane, place, made_by });
            }
            Ok(phases)
        };
        let taps = plans.map(of_plan).collect::<Result<_, _>>()?;
        Ok(Recorder { taps, trace: Mutex::new(trace) })
    }

    /// What the plan at `index` copies.
    pub fn of(&self, index: usize) -> Recording<'_> {
        Recording { taps: &self.taps[index], trace: &self.trace }
    }

    /// What was copied.
    pub fn finish(self) -> Trace {
        self.trace.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Thread<'_> {
    /// Copies what `phase` has made. Every thread calls it, and none goes on before the first has read.
    pub(super) fn record(&self, recording: &Recording<'_>, phase: usize) {
        let taps = &recording.taps[phase];
        if taps.is_empty() {
            return;
        }
        if self.member.index == 0 {
            let mut trace = recording.trace.lock().unwrap_or_else(PoisonError::into_inner);
            for tap in taps {
                self.record_tap(tap, &mut trace);
            }
        }
        self.member.barrier();
    }

    fn record_tap(&self, tap: &Tap, trace: &mut Trace) {
        // a trace follows one sequence; the head's batch has no segments, and all of its rows
        let segment = self.batch.segments.first();
        if segment.is_some_and(|segment| !tap.lane.meets(segment.lane)) {
            return;
        }
        let mut line = Vec::new();
        for (row, &position) in self.batch.positions.iter().enumerate().take(self.rows) {
            let out = trace.row(tap.point, position, &tap.made_by);
            match &tap.place {
                Place::Value { slot, columns } => {
                    for (head, out) in out.chunks_exact_mut(columns.len()).enumerate() {
                        out.copy_from_slice(&self.head(slot, row, head)[columns.clone()]);
                    }
                }
                Place::Cache { stream, columns } => {
                    let Some(segment) = segment else { return };
                    let (stream, memory) = &self.pool.streams()[*stream];
                    let place =
                        segment.pages[position / PAGE_ROWS] as usize * PAGE_ROWS + position % PAGE_ROWS;
                    line.resize(stream.width, 0.0);
                    kernels::load_row(stream.row(self.pool.cache_type()), memory.row(place), &mut line);
                    out.copy_from_slice(&line[columns.clone()]);
                }
                Place::Routing { chosen, mix } => {
                    out.fill(0.0);
                    let ids = super::experts::as_ids(self.row(chosen, row));
                    for (id, weight) in ids.iter().zip(self.row(mix, row)) {
                        out[*id as usize] = *weight;
                    }
                }
            }
        }
    }
}
