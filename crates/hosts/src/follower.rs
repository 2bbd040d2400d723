//! The command loop of ranks other than 0.

use crate::command::{Command, layers_message};
use crate::{times, wrong_message};
use latent_backend::{
    BackendError, BackendModel, Batch, CancelToken, Channel, Communicator, KvStore, LayerState, ModelStep,
    RankTimes,
};
use latent_types::panic_text;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

/// Executes the commands of rank 0 on this rank's part of the model, until rank 0 ends.
///
/// # Errors
/// A lost or failed rank, or a step that fails here. The other ranks receive its error.
///
/// # Panics
/// If a step panics. The other ranks receive the message.
pub fn follow(model: &mut dyn BackendModel, communicator: &dyn Communicator) -> Result<(), BackendError> {
    let pulse = communicator.pulse();
    // Counts as working for the hang detection, except in `receive`, which pauses it.
    let work = pulse.as_ref().map(|pulse| pulse.work());
    // A panic must be reported, or the other ranks would wait for this one until it counts as lost.
    let result = catch_unwind(AssertUnwindSafe(|| run(model, communicator)));
    drop(work);
    match &result {
        Ok(Ok(())) => {}
        Ok(Err(error)) => communicator.fail(&error.to_string()),
        Err(panic) => communicator.fail(&format!("it panicked: {}", panic_text(&**panic))),
    }
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

fn run(model: &mut dyn BackendModel, communicator: &dyn Communicator) -> Result<(), BackendError> {
    let mut following = FollowerSession { model, communicator, store: None, idle: Duration::ZERO };
    let mut message = Vec::new();
    loop {
        let waiting = Instant::now();
        communicator.receive(0, Channel::Commands, &mut message)?;
        following.idle += waiting.elapsed();
        let Some(command) = Command::read(&message) else {
            let problem = format!("an invalid command of {} bytes", message.len());
            return Err(wrong_message(communicator, 0, problem).into());
        };
        if following.execute(command)?.is_break() {
            return Ok(());
        }
    }
}

/// The state of a following rank.
struct FollowerSession<'f> {
    model: &'f mut dyn BackendModel,
    communicator: &'f dyn Communicator,
    store: Option<Box<dyn KvStore>>,
    /// Time spent waiting for commands since [`Command::StartTimes`].
    idle: Duration,
}

impl FollowerSession<'_> {
    /// Executes a command. Breaks after the last one.
    fn execute(&mut self, command: Command) -> Result<ControlFlow<()>, BackendError> {
        match command {
            Command::End => return Ok(ControlFlow::Break(())),
            Command::StartTimes => {
                self.idle = Duration::ZERO;
                self.model.start_profile();
            }
            Command::StopTimes => self.stop_times()?,
            Command::NewStore { blocks, state_slots } => {
                // The old store is freed first, since both may not fit into memory.
                self.store = None;
                let store = self.store.insert(self.model.new_kv_store(blocks, state_slots)?);
                self.communicator.send(0, Channel::Answers, &layers_message(&store.layout().layers))?;
            }
            Command::Step(batch) => self.step(batch)?,
            Command::CopyBlock { from, to } => self.store()?.copy_block(from, to)?,
            Command::ReadRows { layer, first, count } => {
                let store = self.store()?;
                let mut rows = vec![0; count * store.layout().row(layer).bytes()];
                store.read_rows(layer, first, &mut rows)?;
                self.communicator.send(0, Channel::Answers, &rows)?;
            }
            Command::WriteRows { layer, first, rows } => self.store()?.write_rows(layer, first, &rows)?,
            Command::ReadState { layer, slot } => {
                let store = self.store()?;
                let shape = store.layout().layers.get(layer).and_then(LayerState::recurrent);
                let mut state = vec![0; shape.map_or(0, |layer| layer.shape.bytes())];
                store.read_state(layer, slot, &mut state)?;
                self.communicator.send(0, Channel::Answers, &state)?;
            }
            Command::WriteState { layer, slot, state } => self.store()?.write_state(layer, slot, &state)?,
            Command::ShiftToken { from, to, distance } => self.store()?.shift_token(from, to, distance)?,
        }
        Ok(ControlFlow::Continue(()))
    }

    fn store(&mut self) -> Result<&mut dyn KvStore, BackendError> {
        stored(&mut self.store, self.communicator)
    }

    fn step(&mut self, mut batch: Batch) -> Result<(), BackendError> {
        // Only rank 0 has `lm_head`.
        batch.wanted.clear();
        // Only rank 0 cancels, and only before it sends the step. See `Leader::run`.
        let (cancel, kv) = (CancelToken::new(), stored(&mut self.store, self.communicator)?);
        let on_logits = &mut |_: usize, _: &[f32]| {};
        self.model.step(ModelStep { batch: &batch, kv, cancel: &cancel, on_logits, on_hidden: None })
    }

    fn stop_times(&mut self) -> Result<(), BackendError> {
        let (rank, measured) = (self.communicator.rank(), self.model.stop_profile());
        let (host, idle) = (self.communicator.host(rank), self.idle.as_nanos() as u64);
        let times = RankTimes::new((rank, host), self.model.stages(), &measured, idle);
        Ok(self.communicator.send(0, Channel::Answers, &times::message(&times))?)
    }
}

fn stored<'s>(
    store: &'s mut Option<Box<dyn KvStore>>,
    communicator: &dyn Communicator,
) -> Result<&'s mut dyn KvStore, BackendError> {
    match store {
        Some(store) => Ok(&mut **store),
        None => Err(wrong_message(communicator, 0, "a step before creating a KV cache".into()).into()),
    }
}
