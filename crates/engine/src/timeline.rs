//! The timeline of one step: when each thread begins, ends and waits in each phase.

use latent_backend::PhaseSpan;
use serde::{Serialize, Serializer};
use std::collections::{BTreeMap, VecDeque};

/// The timeline of one step.
#[derive(Clone, Debug, Serialize)]
pub struct StepTimeline {
    /// The title of the profile.
    pub title: String,
    /// Whether the slices are those of one step, the one with the median time. Otherwise the
    /// backend records no threads, and the slices are the averages of the profile's phases in the
    /// order in which they run.
    pub measured: bool,
    /// Slices, by their start.
    pub slices: Vec<TimelineSlice>,
}

/// A phase on one thread. Times are in microseconds. In JSON it is an array of its fields in this
/// order.
#[derive(Clone, Debug, PartialEq)]
pub struct TimelineSlice {
    /// Index of the thread.
    pub thread: usize,
    /// Index among the phases of the profile.
    pub phase: usize,
    /// The layer, if any.
    pub layer: Option<usize>,
    /// Time from the start of the step to that of the phase.
    pub begin: f64,
    /// Time until the thread had finished its share.
    pub work: f64,
    /// Time that the thread then waited at the barrier.
    pub wait: f64,
    /// The parts of `work` by operation. Empty if the phase has only one, or they are unknown.
    pub operations: Vec<f64>,
}

impl Serialize for TimelineSlice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // An array: a step has thousands of slices, and field names would be most of the file.
        let TimelineSlice { thread, phase, layer, begin, work, wait, operations } = self;
        (thread, phase, layer, begin, work, wait, operations).serialize(serializer)
    }
}

/// A phase of a plan in the profile.
#[derive(Clone, Debug)]
pub(crate) struct ProfiledPhase {
    /// Index among the phases of the profile.
    pub index: usize,
    pub layer: Option<usize>,
    /// The node of each operation.
    pub nodes: Vec<usize>,
}

/// The profile's phases, by plan and phase of the plan.
pub(crate) type PhaseIndex = BTreeMap<(usize, usize), ProfiledPhase>;

/// The slices of the step with the median time, of the steps with complete spans. `steps` has the
/// plans of each step. `None` without a complete step.
pub(crate) fn measured(
    spans: &[PhaseSpan],
    steps: &[Vec<usize>],
    phases: &PhaseIndex,
) -> Option<Vec<TimelineSlice>> {
    let mut runs: BTreeMap<(usize, usize), Vec<&PhaseSpan>> = BTreeMap::new();
    for span in spans {
        runs.entry((span.plan, span.run)).or_default().push(span);
    }
    // The runs of each plan, in order. Each step below takes the next run of each of its plans.
    let mut queues: BTreeMap<usize, VecDeque<Vec<&PhaseSpan>>> = BTreeMap::new();
    for ((plan, _), spans) in runs {
        queues.entry(plan).or_default().push_back(spans);
    }
    let mut complete: Vec<(u64, u64, Vec<&PhaseSpan>)> = Vec::new();
    for plans in steps {
        // A device that records no spans, such as a GPU in an offloaded model, has no queue.
        let recorded = plans.iter().filter(|plan| queues.contains_key(plan)).copied().collect::<Vec<_>>();
        let runs: Option<Vec<_>> =
            recorded.iter().map(|plan| queues.get_mut(plan).and_then(VecDeque::pop_front)).collect();
        // Recording may have stopped before the last step.
        let Some(runs) = runs else { break };
        let step = runs.concat();
        let (begin, end) = (step.iter().map(|span| span.begin).min(), step.iter().map(|span| span.end).max());
        let Some((begin, end)) = begin.zip(end) else { break };
        complete.push((end - begin, begin, step));
    }
    complete.sort_by_key(|(nanos, ..)| *nanos);
    let middle = complete.len().saturating_sub(1) / 2;
    let (_, begin, step) = complete.into_iter().nth(middle)?;
    let mut slices: Vec<TimelineSlice> = step.iter().filter_map(|span| slice(span, begin, phases)).collect();
    slices.sort_by(|a, b| a.begin.total_cmp(&b.begin).then(a.thread.cmp(&b.thread)));
    Some(slices)
}

fn slice(span: &PhaseSpan, origin: u64, phases: &PhaseIndex) -> Option<TimelineSlice> {
    let micros = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e3;
    let ProfiledPhase { index, layer, nodes } = phases.get(&(span.plan, span.phase))?;
    let mut operations = Vec::new();
    let mut last = span.begin;
    for (node, end) in &span.nodes {
        if nodes.contains(node) {
            operations.push(micros(last, *end));
        }
        last = *end;
    }
    // Nodes of another attention formulation compute nothing and are not in the profile.
    if operations.len() != nodes.len() || nodes.len() < 2 {
        operations.clear();
    }
    Some(TimelineSlice {
        thread: span.thread,
        phase: *index,
        layer: *layer,
        begin: micros(origin, span.begin),
        work: micros(span.begin, span.arrived),
        wait: micros(span.arrived, span.end),
        operations,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The spans of two threads in a run of a plan that takes `nanos`.
    fn spans(plan: usize, run: usize, begin: u64, nanos: u64) -> Vec<PhaseSpan> {
        let span = |thread: usize, arrived: u64| PhaseSpan {
            plan,
            run,
            phase: 0,
            thread,
            begin,
            arrived: begin + arrived,
            end: begin + nanos,
            nodes: vec![(0, begin + 1), (1, begin + arrived)],
        };
        vec![span(0, nanos / 2), span(1, nanos)]
    }

    fn index(plans: &[usize]) -> PhaseIndex {
        let phase = |index| ProfiledPhase { index, layer: Some(4), nodes: vec![0, 1] };
        plans.iter().enumerate().map(|(index, plan)| ((*plan, 0), phase(index))).collect()
    }

    #[test]
    fn the_step_of_median_time_is_shown_with_the_wait_of_every_thread() {
        let runs = [(3, 1, 100, 20), (7, 2, 120, 10), (3, 3, 200, 60), (7, 4, 260, 10), (3, 5, 300, 8000)];
        let mut all: Vec<PhaseSpan> =
            runs.into_iter().flat_map(|(plan, run, begin, nanos)| spans(plan, run, begin, nanos)).collect();
        all.extend(spans(7, 6, 9000, 10));
        let slices = measured(&all, &[vec![3, 7], vec![3, 7], vec![3, 7]], &index(&[3, 7])).unwrap();
        let shown: Vec<_> = slices.iter().map(|s| (s.thread, s.phase, s.begin, s.work, s.wait)).collect();
        assert_eq!(
            shown,
            [
                (0, 0, 0.0, 0.03, 0.03),
                (1, 0, 0.0, 0.06, 0.0),
                (0, 1, 0.06, 0.005, 0.005),
                (1, 1, 0.06, 0.01, 0.0)
            ]
        );
        assert_eq!(slices[0].operations, [0.001, 0.029]);
    }

    #[test]
    fn incomplete_steps_are_omitted() {
        let all = [spans(3, 1, 100, 20), spans(7, 2, 120, 10), spans(3, 3, 200, 2)].concat();
        let slices = measured(&all, &[vec![3, 7], vec![3, 7]], &index(&[3, 7])).unwrap();
        assert_eq!((slices.len(), slices[1].work), (4, 0.02));
        assert!(measured(&[], &[vec![3]], &index(&[3])).is_none());
        assert!(measured(&all, &[], &index(&[3])).is_none());
    }

    #[test]
    fn runs_of_a_plan_that_alternate_with_others_stay_in_order() {
        let all: Vec<PhaseSpan> =
            [spans(3, 1, 0, 10), spans(7, 2, 10, 2), spans(3, 3, 20, 30), spans(7, 4, 50, 2)].concat();
        let slices = measured(&all, &[vec![3], vec![3], vec![7], vec![7]], &index(&[3, 7])).unwrap();
        assert!(slices.iter().all(|slice| slice.phase == 1), "the second shortest of four: {slices:?}");
        let slices = measured(&all, &[vec![3], vec![3]], &index(&[3, 7])).unwrap();
        assert_eq!(slices[1].work, 0.01);
    }
}
