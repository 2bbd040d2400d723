//! Timeline recorder: the times at which each worker begins and ends each phase.

use latent_backend::PhaseSpan;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Maximum number of recorded spans, which bounds the memory of a long recording.
const MAX_SPANS: usize = 1 << 20;

/// The recorded spans of all workers.
pub(crate) struct TimelineRecorder {
    origin: Instant,
    /// Number of program runs so far.
    runs: usize,
    /// Number of spans that may still be recorded.
    room: usize,
    /// Each worker locks its own list only.
    workers: Vec<Mutex<Vec<PhaseSpan>>>,
}

impl TimelineRecorder {
    /// Creates a recorder for this number of workers.
    pub(crate) fn new(origin: Instant, workers: usize) -> TimelineRecorder {
        let workers = (0..workers).map(|_| Mutex::default()).collect();
        TimelineRecorder { origin, runs: 0, room: MAX_SPANS, workers }
    }

    /// Begins a run of a plan with this number of phases. None if it would exceed [`MAX_SPANS`].
    pub(crate) fn begin(&mut self, plan: usize, phases: usize) -> Option<TimelineRun<'_>> {
        self.runs += 1;
        // At 0 it stays there: a short run after an omitted long one would leave a gap in the
        // timeline.
        self.room = self.room.saturating_sub(phases * self.workers.len());
        (self.room > 0).then_some(TimelineRun { recorder: self, plan, run: self.runs })
    }

    /// The spans, worker by worker.
    pub(crate) fn finish(self) -> Vec<PhaseSpan> {
        let own = |spans: Mutex<Vec<PhaseSpan>>| spans.into_inner().unwrap_or_else(PoisonError::into_inner);
        self.workers.into_iter().flat_map(own).collect()
    }
}

/// A run of a plan that is recorded.
#[derive(Clone, Copy)]
pub(crate) struct TimelineRun<'a> {
    recorder: &'a TimelineRecorder,
    plan: usize,
    run: usize,
}

impl<'a> TimelineRun<'a> {
    /// One worker's part of the run.
    pub(crate) fn worker(self, thread: usize) -> SpanWriter<'a> {
        let spans = self.recorder.workers[thread].lock().unwrap_or_else(PoisonError::into_inner);
        let mut writer = SpanWriter { run: self, thread, spans, begin: 0 };
        writer.begin = writer.now();
        writer
    }
}

/// Records the spans of one worker in one run.
pub(crate) struct SpanWriter<'a> {
    run: TimelineRun<'a>,
    thread: usize,
    spans: MutexGuard<'a, Vec<PhaseSpan>>,
    /// End of the last phase, in nanoseconds since the origin.
    begin: u64,
}

impl SpanWriter<'_> {
    fn now(&self) -> u64 {
        self.run.recorder.origin.elapsed().as_nanos() as u64
    }

    /// Begins a phase at the time at which the last one ended, so that phases leave no gaps.
    pub(crate) fn begin(&mut self, phase: usize) {
        let (TimelineRun { plan, run, .. }, thread, begin) = (self.run, self.thread, self.begin);
        self.spans.push(PhaseSpan { plan, run, phase, thread, begin, arrived: 0, end: 0, nodes: Vec::new() });
    }

    /// Called when a node of the phase is finished.
    pub(crate) fn finish_node(&mut self, node: usize) {
        let now = self.now();
        if let Some(span) = self.spans.last_mut() {
            span.nodes.push((node, now));
        }
    }

    /// Called when the worker arrives at the barrier.
    pub(crate) fn arrive(&mut self) {
        let now = self.now();
        if let Some(span) = self.spans.last_mut() {
            span.arrived = now;
        }
    }

    /// Called when the worker has passed the barrier.
    pub(crate) fn end(&mut self) {
        self.begin = self.now();
        let end = self.begin;
        if let Some(span) = self.spans.last_mut() {
            span.end = end;
        }
    }
}
