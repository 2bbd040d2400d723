//! Rank 0's view of a KV cache whose layers are on several ranks.

use crate::command::Command;
use crate::guard::Guard;
use crate::wrong_message;
use latent_backend::{BackendError, Channel, Communicator, KvLayout, KvStore};
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

/// A stretch of layers and the ranks that have it.
#[derive(Clone, Debug)]
pub(crate) struct RankStretch {
    pub(crate) layers: Range<usize>,
    /// Each of these ranks has rows of all of the layers.
    pub(crate) ranks: Range<usize>,
}

/// Rank 0's store, and access to the other ranks' stores by commands.
pub(crate) struct SharedStore {
    pub(crate) own: Box<dyn KvStore>,
    pub(crate) communicator: Arc<dyn Communicator>,
    /// The layout of all layers.
    pub(crate) layout: KvLayout,
    pub(crate) stretches: Vec<RankStretch>,
    pub(crate) guard: Arc<Guard>,
}

/// Sends a command to all followers.
pub(crate) fn broadcast(communicator: &dyn Communicator, message: &[u8]) -> Result<(), BackendError> {
    for to in 1..communicator.ranks() {
        communicator.send(to, Channel::Commands, message)?;
    }
    Ok(())
}

impl SharedStore {
    /// The ranks that have a layer, and its index on them.
    fn place(&self, layer: usize) -> Result<(Range<usize>, usize), BackendError> {
        let stretch = self.stretches.iter().find(|stretch| stretch.layers.contains(&layer));
        let found = stretch.map(|stretch| (stretch.ranks.clone(), layer - stretch.layers.start));
        found.ok_or_else(|| BackendError::Unsupported(format!("the KV cache has no layer {layer}")))
    }

    /// Reads bytes of a layer from the first rank that has it: with `read` on this rank, or by
    /// `command` on another one.
    fn read(
        &self,
        layer: usize,
        bytes: &mut [u8],
        command: impl FnOnce(usize) -> Command,
        read: impl FnOnce(&dyn KvStore, usize, &mut [u8]) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let (ranks, layer) = self.place(layer)?;
        // No other rank takes part, so the guard is not needed: a local failure does not
        // desynchronize the ranks.
        if ranks.contains(&0) {
            return read(&*self.own, layer, bytes);
        }
        self.guard.run(|| {
            let communicator = &*self.communicator;
            communicator.send(ranks.start, Channel::Commands, &command(layer).message())?;
            let mut answer = Vec::new();
            communicator.receive(ranks.start, Channel::Answers, &mut answer)?;
            if answer.len() != bytes.len() {
                let problem = format!("{} bytes of the cache, expected {}", answer.len(), bytes.len());
                return Err(wrong_message(communicator, ranks.start, problem).into());
            }
            bytes.copy_from_slice(&answer);
            Ok(())
        })
    }

    /// Writes bytes of a layer on every rank that has it.
    fn write(
        &mut self,
        layer: usize,
        command: impl FnOnce(usize) -> Command,
        write: impl FnOnce(&mut dyn KvStore, usize) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let (ranks, layer) = self.place(layer)?;
        // Ranks that share a layer by heads or experts all cache its whole rows, so each gets them.
        let message = command(layer).message();
        let SharedStore { own, communicator, guard, .. } = self;
        guard.run(|| {
            for to in ranks.clone().filter(|rank| *rank > 0) {
                communicator.send(to, Channel::Commands, &message)?;
            }
            if ranks.contains(&0) { write(&mut **own, layer) } else { Ok(()) }
        })
    }
}

impl KvStore for SharedStore {
    fn layout(&self) -> &KvLayout {
        &self.layout
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), BackendError> {
        let SharedStore { own, communicator, guard, .. } = self;
        // Followers do not answer: they execute commands in order, so the next step finds the copy.
        guard.run(|| {
            broadcast(&**communicator, &Command::CopyBlock { from, to }.message())?;
            own.copy_block(from, to)
        })
    }

    fn read_rows(&self, layer: usize, first: usize, rows: &mut [u8]) -> Result<(), BackendError> {
        let count = rows.len() / self.layout.row(layer).bytes();
        let command = |layer| Command::ReadRows { layer, first, count };
        self.read(layer, rows, command, |own, layer, rows| own.read_rows(layer, first, rows))
    }

    fn write_rows(&mut self, layer: usize, first: usize, rows: &[u8]) -> Result<(), BackendError> {
        let command = |layer| Command::WriteRows { layer, first, rows: rows.to_vec() };
        self.write(layer, command, |own, layer| own.write_rows(layer, first, rows))
    }

    fn read_state(&self, layer: usize, slot: u32, state: &mut [u8]) -> Result<(), BackendError> {
        let command = |layer| Command::ReadState { layer, slot };
        self.read(layer, state, command, |own, layer, state| own.read_state(layer, slot, state))
    }

    fn write_state(&mut self, layer: usize, slot: u32, state: &[u8]) -> Result<(), BackendError> {
        let command = |layer| Command::WriteState { layer, slot, state: state.to_vec() };
        self.write(layer, command, |own, layer| own.write_state(layer, slot, state))
    }

    fn shift_token(&mut self, from: usize, to: usize, distance: i64) -> Result<(), BackendError> {
        let SharedStore { own, communicator, guard, .. } = self;
        guard.run(|| {
            broadcast(&**communicator, &Command::ShiftToken { from, to, distance }.message())?;
            own.shift_token(from, to, distance)
        })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
