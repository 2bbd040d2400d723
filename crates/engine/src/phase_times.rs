//! Time per phase of running steps, without costs or limits.

use crate::engine::Engine;
use latent_graph::Plan;

/// Total time of all phases with the same operations, over all layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseTime {
    /// The names of the operations, with the slots of their weights.
    pub name: String,
    /// Nanoseconds, summed over the steps.
    pub nanos: u64,
}

impl Engine {
    /// Starts to time each phase.
    pub fn start_phase_times(&mut self) {
        self.model.start_profile();
    }

    /// Stops timing, and returns the times since the start, in the order of the plans. Phases that
    /// did not run are omitted.
    pub fn take_phase_times(&mut self) -> Vec<PhaseTime> {
        let times = self.model.stop_profile();
        let mut sums: Vec<PhaseTime> = Vec::new();
        let plans = self.model.stages().iter().flat_map(|stage| &stage.plans);
        for (plan, of_plan) in plans.zip(times) {
            for (phase, nanos) in of_plan.phases.into_iter().enumerate().filter(|(_, nanos)| *nanos > 0) {
                let name = name(plan, phase);
                match sums.iter_mut().find(|time| time.name == name) {
                    Some(time) => time.nanos += nanos,
                    None => sums.push(PhaseTime { name, nanos }),
                }
            }
        }
        sums
    }
}

/// The names of a phase's operations, without duplicates.
fn name(plan: &Plan, phase: usize) -> String {
    let mut words: Vec<String> = Vec::new();
    for (node, _) in plan.ir.nodes.iter().zip(&plan.phases).filter(|(_, at)| **at == phase) {
        let slots: Vec<&str> = node.weights.iter().map(|(slot, _)| slot.as_str()).collect();
        let word = if slots.is_empty() {
            node.op.word().to_owned()
        } else {
            format!("{} {}", node.op.word(), slots.join("+"))
        };
        if !words.contains(&word) {
            words.push(word);
        }
    }
    words.join(", ")
}
