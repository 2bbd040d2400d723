//! The timeline for backends that record no threads: the averages of a profile's phases, in the
//! order in which they run.

use crate::profile::PhaseProfile;
use crate::timeline::TimelineSlice;

/// The averages of the phases in the order in which they run, on one thread.
pub(crate) fn averaged(phases: &[PhaseProfile]) -> Vec<TimelineSlice> {
    let mut begin = 0.0;
    let slice = |(layer, phase): (Option<usize>, usize)| {
        let PhaseProfile { micros, operation_micros, .. } = &phases[phase];
        let known: f64 = operation_micros.iter().sum();
        let work = if operation_micros.is_empty() { *micros } else { known.min(*micros) };
        let own = operation_micros.len() > 1 && known <= *micros;
        let operations = if own { operation_micros.clone() } else { Vec::new() };
        let slice = TimelineSlice { thread: 0, phase, layer, begin, work, wait: micros - work, operations };
        begin += micros;
        slice
    };
    sequence(phases).into_iter().map(slice).collect()
}

/// The phases in the order in which they run, each with its layer. A phase of a range of layers
/// appears once per layer.
fn sequence(phases: &[PhaseProfile]) -> Vec<(Option<usize>, usize)> {
    let mut ordered = Vec::new();
    let mut at = 0;
    while let Some(phase) = phases.get(at) {
        let Some((mut first, mut last)) = phase.layers else {
            ordered.extend((0..phase.count).map(|_| (None, at)));
            at += 1;
            continue;
        };
        // Phases with overlapping ranges of layers alternate, layer by layer.
        let mut end = at;
        while let Some((from, to)) = phases.get(end).and_then(|phase| phase.layers) {
            if from > last || to < first {
                break;
            }
            (first, last) = (first.min(from), last.max(to));
            end += 1;
        }
        for layer in first..=last {
            for (index, phase) in phases.iter().enumerate().take(end).skip(at) {
                let Some((from, to)) = phase.layers.filter(|(from, to)| (*from..=*to).contains(&layer))
                else {
                    continue;
                };
                let (place, layers) = (layer - from, to - from + 1);
                // Distributes `count` occurrences evenly over the layers.
                let times = (place + 1) * phase.count / layers - place * phase.count / layers;
                ordered.extend((0..times).map(|_| (Some(layer), index)));
            }
        }
        at = end;
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(name: &str, layers: Option<(usize, usize)>, count: usize) -> PhaseProfile {
        PhaseProfile {
            layers,
            count,
            operations: vec![name.to_owned()],
            operation_micros: Vec::new(),
            kernels: Vec::new(),
            rows: 1,
            micros: 2.0,
            share: 0.1,
            bytes: 0.0,
            gb_per_s: 0.0,
            gflop_per_s: 0.0,
            bound: "memory",
            of_limit: 1.0,
            arithmetic_micros: 0.0,
            product_columns: 0,
        }
    }

    #[test]
    fn averaged_phases_of_a_range_alternate_layer_by_layer() {
        let phases = [
            phase("embed", None, 1),
            phase("a", Some((0, 0)), 1),
            phase("b", Some((1, 3)), 3),
            phase("c", Some((2, 3)), 4),
            phase("head", None, 1),
        ];
        let slices = averaged(&phases);
        let order: Vec<String> = slices
            .iter()
            .map(|slice| {
                let layer = slice.layer.map_or(String::new(), |layer| layer.to_string());
                format!("{}{layer}", phases[slice.phase].operations[0])
            })
            .collect();
        assert_eq!(order.join(" "), "embed a0 b1 b2 c2 c2 b3 c3 c3 head");
        for (i, slice) in slices.iter().enumerate() {
            assert_eq!((slice.begin, slice.work, slice.wait), (2.0 * i as f64, 2.0, 0.0));
        }
    }

    #[test]
    fn an_average_shows_the_wait_of_the_first_thread() {
        let two = PhaseProfile { operation_micros: vec![0.5, 1.0], ..phase("a", None, 1) };
        let slices = averaged(&[two]);
        assert_eq!((slices[0].work, slices[0].wait), (1.5, 0.5));
        assert_eq!(slices[0].operations, [0.5, 1.0]);
    }
}
