//! Ranks other than 0: they do what rank 0 tells them.

use crate::command::Command;
use crate::{times, wrong_message};
use latent_backend::{BackendError, CancelToken, Channel, Communicator, KvStore, Model, RankTimes, Step};
use std::time::{Duration, Instant};

/// Runs the steps of rank 0 on this rank's part of the model until rank 0 ends.
///
/// # Errors
/// A rank that is gone or failed; a step that fails here, of which the others hear.
pub fn follow(model: &mut dyn Model, communicator: &dyn Communicator) -> Result<(), BackendError> {
    let result = run(model, communicator);
    if let Err(error) = &result {
        communicator.fail(&error.to_string());
    }
    result
}

fn run(model: &mut dyn Model, communicator: &dyn Communicator) -> Result<(), BackendError> {
    let mut store: Option<Box<dyn KvStore>> = None;
    let (mut message, mut idle) = (Vec::new(), Duration::ZERO);
    loop {
        let waiting = Instant::now();
        communicator.receive(0, Channel::Commands, &mut message)?;
        idle += waiting.elapsed();
        let Some(command) = Command::read(&message) else {
            let problem = format!("a command of {} bytes that is none", message.len());
            return Err(wrong_message(communicator, 0, problem).into());
        };
        match command {
            Command::End => return Ok(()),
            Command::StartTimes => {
                idle = Duration::ZERO;
                model.start_profile();
            }
            Command::StopTimes => {
                let (rank, measured) = (communicator.rank(), model.stop_profile());
                let (host, idle) = (communicator.host(rank), idle.as_nanos() as u64);
                let times = RankTimes::new((rank, host), model.stages(), &measured, idle);
                communicator.send(0, Channel::Answers, &times::message(&times))?;
            }
            Command::NewStore { blocks } => {
                // freed first: both together may not fit
                store = None;
                store.replace(model.new_kv_store(blocks, 0)?);
            }
            command => {
                let Some(store) = store.as_deref_mut() else {
                    return Err(wrong_message(communicator, 0, "a step before a KV cache".into()).into());
                };
                obey(command, model, store, communicator)?;
            }
        }
    }
}

fn obey(
    command: Command,
    model: &mut dyn Model,
    store: &mut dyn KvStore,
    communicator: &dyn Communicator,
) -> Result<(), BackendError> {
    match command {
        Command::Step(mut batch) => {
            // logits are rank 0's
            batch.wanted.clear();
            let cancel = CancelToken::new();
            let on_logits = &mut |_: usize, _: &[f32]| {};
            model.step(Step { batch: &batch, kv: store, cancel: &cancel, on_logits, on_hidden: None })
        }
        Command::CopyBlock { from, to } => store.copy_block(from, to),
        Command::ReadRows { layer, first, count } => {
            let mut rows = vec![0; count * store.layout().row(layer).bytes()];
            store.read_rows(layer, first, &mut rows)?;
            Ok(communicator.send(0, Channel::Answers, &rows)?)
        }
        Command::WriteRows { layer, first, rows } => store.write_rows(layer, first, &rows),
        Command::ShiftToken { from, to, distance } => store.shift_token(from, to, distance),
        Command::NewStore { .. } | Command::StartTimes | Command::StopTimes | Command::End => Ok(()),
    }
}
