//! Costs of steps, and profiles of an engine.

use crate::averaged_timeline;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::profile::{self, RankProfile, Roofline, StepProfile, StepSize, TimedPlan};
use crate::timeline::{self, PhaseIndex, StepTimeline};
use latent_backend::{Instant, PeakRates, PhaseSpan};
use latent_graph::ir::{NodeCost, Op, StepWorkload as CostStep};
use latent_graph::passes::BatchBucket;
use latent_graph::stage_index::{self, LAYERS, LM_HEAD, MTP, MTP_HEAD};
use latent_graph::{LM_HEAD_ROWS, Plan};

/// Bytes that a step moves, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RoutedBytes {
    /// All weights except those of routed experts. Every step reads them, regardless of its rows.
    pub dense: f64,
    /// Weights of the selected experts, each counted once.
    pub experts: f64,
    /// Rows of the KV cache.
    pub cache: f64,
}

impl RoutedBytes {
    /// The sum.
    pub fn total(&self) -> f64 {
        self.dense + self.experts + self.cache
    }
}

impl Engine {
    /// The plans that a step runs. Each has its index among all plans of all stages, and the
    /// workload for its costs.
    fn plans_of(&self, size: StepSize) -> Vec<(usize, &Plan, CostStep)> {
        let stages = self.model.stages();
        let cache = self.options.stages.bind.cache;
        let StepSize { sequences, rows, cached, wanted, mtp } = size;
        let (layers, head) = if mtp { (MTP, MTP_HEAD) } else { (LAYERS, LM_HEAD) };
        // A larger step than the engine can run is counted as the largest one.
        let rows = sequences.saturating_mul(rows).min(self.max_batch_tokens());
        let (sequences, wanted) = (sequences.min(rows), wanted.min(rows));
        // A token and its draft attend in the formulation of one row.
        let path = self.path(cached, if size == StepSize::verify(sequences, cached) { 1 } else { size.rows });
        let step = CostStep { rows, sequences, past_len: cached, cache, path };
        let bucket = BatchBucket::of(rows) as usize;
        let place = |stage: usize, bucket: usize| stage * BatchBucket::ALL.len() + bucket;
        let mut plans = Vec::new();
        if stages.len() <= head || (mtp && stage_index::mtp(stages).is_none()) {
            return plans;
        }
        // With offload, the first layers are a stage of their own. It does not run in MTP steps.
        for layers in (!mtp).then(|| stage_index::front(stages)).flatten().into_iter().chain([layers]) {
            plans.push((place(layers, bucket), &stages[layers].plans[bucket], step));
        }
        // The head runs in passes of at most LM_HEAD_ROWS rows.
        for first in (0..wanted).step_by(LM_HEAD_ROWS) {
            let rows = LM_HEAD_ROWS.min(wanted - first);
            let bucket = BatchBucket::of(rows) as usize;
            plans.push((place(head, bucket), &stages[head].plans[bucket], CostStep { rows, ..step }));
        }
        plans
    }

    /// Bytes and operations of a step.
    pub fn cost(&self, size: StepSize) -> NodeCost {
        let mut cost = NodeCost::default();
        self.plans_of(size).into_iter().for_each(|(_, plan, step)| cost += plan.cost(step));
        cost
    }

    /// Bytes of weights and cache that a step moves if its rows select `distinct(layer)` different
    /// experts in a layer, each read once.
    pub fn routed_bytes(&self, size: StepSize, distinct: &dyn Fn(usize) -> f64) -> RoutedBytes {
        let mut bytes = RoutedBytes::default();
        for (_, plan, step) in self.plans_of(size) {
            for node in &plan.ir.nodes {
                let cost = node.cost(&plan.ir, step);
                bytes.cache += cost.cache_bytes;
                match (node.op, node.layer) {
                    (Op::ExpertMlp | Op::ExpertGateUp | Op::ExpertDown, Some(layer)) => {
                        let weights = node.weights.iter().map(|(_, id)| plan.ir.weight(*id));
                        let expert: f64 = weights.map(|w| w.bytes() as f64 / w.stacked().max(1) as f64).sum();
                        bytes.experts += distinct(layer) * expert;
                    }
                    _ => bytes.dense += cost.weight_bytes,
                }
            }
        }
        bytes
    }

    /// The minimum time that the machine's limits allow for consecutive steps.
    pub fn roofline(&self, sizes: &[StepSize], limits: &PeakRates) -> Roofline {
        let mut roofline = Roofline::default();
        let front = self.first_front_plan();
        for size in sizes {
            let (before, behind): (Vec<_>, Vec<_>) =
                self.plans_of(*size).into_iter().partition(|(at, ..)| *at >= front);
            // With offload, the sides run one after the other, so their times add up.
            for (plans, limits) in [(before, self.front_limits(limits)), (behind, *limits)] {
                if !plans.is_empty() {
                    roofline.add(plans.into_iter(), &*self.model, &limits);
                }
            }
        }
        roofline
    }

    /// The index of the first plan of the front's stage, or `usize::MAX` without a front.
    fn first_front_plan(&self) -> usize {
        stage_index::front(self.model.stages()).map_or(usize::MAX, |stage| stage * BatchBucket::ALL.len())
    }

    /// Measured limits of the front's device. `limits` without a front, or if measuring fails.
    fn front_limits(&self, limits: &PeakRates) -> PeakRates {
        // Measured at the first use and kept, since it takes time.
        let Some(front) = &self.front else { return *limits };
        let measure = || {
            let tier = self.summary.front.as_ref().map_or(self.summary.tier, |front| front.tier);
            front.backend.limits(&self.summary.placement, tier).ok()
        };
        front.limits.get_or_init(measure).unwrap_or(*limits)
    }

    /// Measures the time of each phase while `work` runs steps of these sizes. If `repeated`, the
    /// steps are repetitions of one step, and the profile is their average. Otherwise it is their
    /// sum.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn profile(
        &mut self,
        sizes: &[StepSize],
        repeated: bool,
        limits: &PeakRates,
        work: &mut dyn FnMut(&mut Engine) -> Result<(), EngineError>,
    ) -> Result<StepProfile, EngineError> {
        self.model.start_rank_times()?;
        self.model.start_profile();
        self.model.start_timeline(Instant::now());
        let done = work(self);
        // Recording ends before an error of `work` is returned.
        let times = self.model.stop_profile();
        let spans = self.model.stop_timeline();
        done?;
        let ranks = self.model.stop_rank_times()?;
        let mut timed: Vec<TimedPlan<'_>> = Vec::new();
        let plans = self.model.stages().iter().flat_map(|stage| &stage.plans);
        let front = self.first_front_plan();
        for (place, (plan, times)) in plans.zip(times).enumerate() {
            let ran = sizes.iter().flat_map(|size| self.plans_of(*size));
            let steps = ran.filter(|(at, ..)| *at == place).map(|(.., step)| step).collect();
            let limits = if place >= front { self.front_limits(limits) } else { *limits };
            timed.push(TimedPlan { place, plan, times, steps, limits });
        }
        // The front's plans are the last ones in the list, but run first.
        let behind = front.min(timed.len());
        timed.rotate_left(behind);
        let share = if repeated { 1.0 / sizes.len().max(1) as f64 } else { 1.0 };
        let ranks = ranks.into_iter().map(|times| RankProfile::new(times, share)).collect();
        let (profile, index) = profile::report(&*self.model, &timed, sizes, repeated);
        let timeline = self.timeline_of(&profile, &spans, sizes, &index);
        Ok(StepProfile { timeline, ranks, ..profile })
    }

    /// The timeline of the step with the median time, of the steps with the most rows.
    fn timeline_of(
        &self,
        profile: &StepProfile,
        spans: &[PhaseSpan],
        sizes: &[StepSize],
        phases: &PhaseIndex,
    ) -> StepTimeline {
        let rows = |size: &&StepSize| (size.mtp == profile.mtp).then_some(size.rows);
        let most = sizes.iter().filter_map(|size| rows(&size)).max();
        let largest = sizes.iter().filter(|size| rows(size) == most);
        let plans = |size: &StepSize| self.plans_of(*size).into_iter().map(|(place, ..)| place).collect();
        let steps: Vec<Vec<usize>> = largest.map(plans).collect();
        let slices = timeline::measured(spans, &steps, phases);
        StepTimeline {
            title: profile.title(),
            measured: slices.is_some(),
            slices: slices.unwrap_or_else(|| averaged_timeline::averaged(&profile.phases)),
        }
    }
}
