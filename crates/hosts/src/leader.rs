//! Rank 0: a model that forwards every step to the other ranks.

use crate::command::{Command, read_layers, step_message};
use crate::guard::Guard;
use crate::store::{RankStretch, SharedStore, broadcast};
use crate::{Hosts, times, wrong_message};
use latent_backend::{
    ActivationTrace, BackendError, BackendModel, Batch, CancelToken, Channel, HiddenSink, Instant, KvLayout,
    KvStore, LayerState, ModelStep, PhaseSpan, PlanTimes, ProfileClock, RankTimes,
};
use latent_graph::activations::Activations;
use latent_graph::{ModelConfig, Stage};
use std::sync::Arc;

/// Rank 0's part of a model. To its caller it looks like the whole model.
pub struct Leader {
    own: Box<dyn BackendModel>,
    hosts: Hosts,
    /// The config of the whole model.
    config: ModelConfig,
    /// Wraps all collective operations.
    guard: Arc<Guard>,
}

impl Leader {
    /// Creates a model from rank 0's part `own`. `config` is that of the whole model.
    pub fn new(own: Box<dyn BackendModel>, hosts: Hosts, config: ModelConfig) -> Leader {
        let guard = Arc::new(Guard::new(hosts.communicator.clone()));
        Leader { own, hosts, config, guard }
    }

    /// Receives the cache layers of the other ranks, in order of rank.
    fn other_layers(&self) -> Result<Vec<Vec<LayerState>>, BackendError> {
        let communicator = &*self.hosts.communicator;
        let mut answer = Vec::new();
        let of = |rank: usize| {
            communicator.receive(rank, Channel::Answers, &mut answer)?;
            let wrong = || wrong_message(communicator, rank, "an unknown list of cache layers".into()).into();
            read_layers(&answer).ok_or_else(wrong)
        };
        (1..communicator.ranks()).map(of).collect()
    }

    fn run(&mut self, step: ModelStep<'_>) -> Result<(), BackendError> {
        let ModelStep { batch, kv, cancel, on_logits, on_hidden } = step;
        let kv = shared_store(kv)?;
        // The last chance to cancel. Other ranks cannot be stopped within a step, and if this one
        // ended early, they would wait for it in a collective.
        if cancel.is_cancelled() {
            return Err(BackendError::Cancelled);
        }
        // Sent before this rank computes: its first collective waits for ranks that this command
        // starts.
        broadcast(&*self.hosts.communicator, &step_message(batch))?;
        let never = CancelToken::new();
        let guard = &*self.guard;
        let mut on_logits = |at: usize, logits: &[f32]| guard.outside(|| on_logits(at, logits));
        let on_logits = &mut on_logits;
        let on_hidden = on_hidden.map(|sink| sink as HiddenSink<'_>);
        self.own.step(ModelStep { batch, kv: &mut *kv.own, cancel: &never, on_logits, on_hidden })?;
        // All ranks have finished the step, so they stay in agreement. Only its result is unwanted.
        if cancel.is_cancelled() { Err(BackendError::Cancelled) } else { Ok(()) }
    }

    /// Runs a collective operation. If it fails, the other ranks receive the reason, and later
    /// operations are refused.
    fn guarded(
        &mut self,
        run: impl FnOnce(&mut Leader) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let guard = Arc::clone(&self.guard);
        guard.run(|| run(self))
    }
}

fn shared_store(kv: &mut dyn KvStore) -> Result<&mut SharedStore, BackendError> {
    kv.as_any_mut().downcast_mut().ok_or(BackendError::ForeignStore)
}

impl BackendModel for Leader {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The stages of this rank.
    fn stages(&self) -> &[Stage] {
        self.own.stages()
    }

    fn new_kv_store(&self, blocks: u32, state_slots: u32) -> Result<Box<dyn KvStore>, BackendError> {
        let (own, others) = self.guard.run(|| {
            // Followers allocate their stores while this rank allocates its own.
            broadcast(&*self.hosts.communicator, &Command::NewStore { blocks, state_slots }.message())?;
            let own = self.own.new_kv_store(blocks, state_slots)?;
            Ok((own, self.other_layers()?))
        })?;
        // All ranks of a stretch have the same layers, so the first one's list stands for all.
        let members = self.hosts.partition.members();
        let (mut layers, mut stretches) = (Vec::new(), Vec::new());
        for first in (0..=others.len()).step_by(members) {
            let of_rank = first.checked_sub(1).map_or(&own.layout().layers, |other| &others[other]);
            let start = layers.len();
            layers.extend(of_rank.iter().cloned());
            stretches.push(RankStretch { layers: start..layers.len(), ranks: first..first + members });
        }
        let layout = KvLayout { layers, ..own.layout().clone() };
        let (communicator, guard) = (self.hosts.communicator.clone(), Arc::clone(&self.guard));
        Ok(Box::new(SharedStore { own, communicator, layout, stretches, guard }))
    }

    /// A step that is cancelled while it runs still runs to its end.
    fn step(&mut self, step: ModelStep<'_>) -> Result<(), BackendError> {
        self.guarded(|leader| leader.run(step))
    }

    fn steps_in_flight(&self) -> usize {
        self.own.steps_in_flight()
    }

    fn submit(&mut self, batch: &Batch, kv: &mut dyn KvStore) -> Result<(), BackendError> {
        self.guarded(|leader| {
            let kv = shared_store(kv)?;
            broadcast(&*leader.hosts.communicator, &step_message(batch))?;
            leader.own.submit(batch, &mut *kv.own)
        })
    }

    fn collect(&mut self, step: ModelStep<'_>) -> Result<(), BackendError> {
        self.guarded(|leader| {
            let ModelStep { batch, kv, cancel, on_logits, on_hidden } = step;
            let kv = shared_store(kv)?;
            let on_hidden = on_hidden.map(|sink| sink as HiddenSink<'_>);
            let guard = &*leader.guard;
            let mut on_logits = |at: usize, logits: &[f32]| guard.outside(|| on_logits(at, logits));
            let on_logits = &mut on_logits;
            leader.own.collect(ModelStep { batch, kv: &mut *kv.own, cancel, on_logits, on_hidden })
        })
    }

    fn wait_for_weights(&mut self) {
        self.own.wait_for_weights();
    }

    fn parallel(&mut self, tasks: usize, job: &(dyn Fn(usize) + Sync)) {
        self.own.parallel(tasks, job);
    }

    fn profile_clock(&self) -> ProfileClock {
        self.own.profile_clock()
    }

    /// Profiles this rank only.
    fn start_profile(&mut self) {
        self.own.start_profile();
    }

    fn stop_profile(&mut self) -> Vec<PlanTimes> {
        self.own.stop_profile()
    }

    fn start_timeline(&mut self, origin: Instant) {
        self.own.start_timeline(origin);
    }

    fn stop_timeline(&mut self) -> Vec<PhaseSpan> {
        self.own.stop_timeline()
    }

    fn start_rank_times(&mut self) -> Result<(), BackendError> {
        self.guarded(|leader| broadcast(&*leader.hosts.communicator, &Command::StartTimes.message()))
    }

    fn stop_rank_times(&mut self) -> Result<Vec<RankTimes>, BackendError> {
        let mut ranks = Vec::new();
        self.guarded(|leader| {
            let communicator = &*leader.hosts.communicator;
            broadcast(communicator, &Command::StopTimes.message())?;
            let mut message = Vec::new();
            for rank in 1..communicator.ranks() {
                communicator.receive(rank, Channel::Answers, &mut message)?;
                let times = times::read((rank, communicator.host(rank)), &message);
                let wrong = || wrong_message(communicator, rank, "truncated times".into());
                ranks.push(times.ok_or_else(wrong)?);
            }
            Ok(())
        })?;
        Ok(ranks)
    }

    fn start_trace(
        &mut self,
        _activations: &Activations,
        _trace: ActivationTrace,
    ) -> Result<(), BackendError> {
        let problem = "activations of a model shared by several ranks are not recorded: run it on one host";
        Err(BackendError::Unsupported(problem.into()))
    }

    fn start_input_squares(&mut self) -> Result<(), BackendError> {
        let problem = "importances of a model shared by several ranks are not collected: run it on one host";
        Err(BackendError::Unsupported(problem.into()))
    }

    fn stop_trace(&mut self) -> Option<ActivationTrace> {
        None
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        let communicator = &*self.hosts.communicator;
        // The followers may be in the middle of a step, where they would not read a command.
        if std::thread::panicking() {
            communicator.fail("it panicked");
        } else {
            // An error means that a rank is gone, which does not matter any more.
            let _ = self.guard.run(|| broadcast(communicator, &Command::End.message()));
        }
    }
}
