//! The timelines of profiled steps in the Trace Event Format, which Perfetto (ui.perfetto.dev) opens. The page of
//! `latent graph --html` writes the same from the JSON of a profile (crates/viz/assets/timeline.js).

use latent_engine::{StepProfile, TimelineSlice};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// A process per profile; in it a thread per thread of the backend, with a slice per phase. In that are slices of its operations, and
/// of the wait at the barrier.
pub(super) fn timeline(profiles: &[StepProfile]) -> Value {
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
