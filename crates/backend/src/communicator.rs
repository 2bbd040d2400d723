//! What ranks of one model say to each other, and how values that they share are added up.

use latent_graph::ModelConfig;
use latent_graph::config::{Part, Wire};
use latent_types::TensorType;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Messages between the ranks that share a model. Those from one rank on one channel arrive in the order in which they were sent; a message is never lost
/// without an error.
pub trait Communicator: Send + Sync {
    /// This rank.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn ranks(&self) -> usize;

    /// The host that a rank runs on, as errors name it.
    fn host(&self, rank: usize) -> String;

    /// Sends a message. It does not wait until somebody receives it.
    ///
    /// # Errors
    /// [`RankError`] when a rank is gone.
    fn send(&self, to: usize, channel: Channel, message: &[u8]) -> Result<(), RankError>;

    /// Waits for the next message of a rank, which takes the place of what `message` held.
    ///
    /// # Errors
    /// [`RankError`] when a rank, this one or another, is gone or says that it has failed.
    fn receive(&self, from: usize, channel: Channel, message: &mut Vec<u8>) -> Result<(), RankError>;

    /// Tells all others that this rank ends, and why, so that none waits for it.
    fn fail(&self, cause: &str);
}

/// What a message is about: messages of one channel do not overtake each other, those of different ones may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Channel {
    /// Values of a step.
    Values,
    /// What rank 0 tells others to do.
    Commands,
    /// What they answer.
    Answers,
}

impl Channel {
    /// Every channel.
    pub const ALL: [Channel; 3] = [Channel::Values, Channel::Commands, Channel::Answers];
}

/// Another rank does not do its part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RankError {
    /// It is gone, or does not answer.
    #[error("rank {rank} on host {host} is gone: {cause}")]
    Lost {
        /// The rank.
        rank: usize,
        /// Where it ran.
        host: String,
        /// How that was noticed.
        cause: String,
    },
    /// It has ended as it should, and does not answer any more.
    #[error("rank {rank} on host {host} has ended")]
    Ended {
        /// The rank.
        rank: usize,
        /// Where it ran.
        host: String,
    },
    /// It said that it cannot go on.
    #[error("rank {rank} on host {host} failed: {cause}")]
    Failed {
        /// The rank.
        rank: usize,
        /// Where it runs.
        host: String,
        /// What it said.
        cause: String,
    },
    /// Ranks do not fit together.
    #[error(transparent)]
    Differs(Box<Difference>),
    /// A message is not what this rank waits for: an error of Latent.
    #[error("rank {rank} on host {host} sent {problem} (please report this)")]
    Message {
        /// The rank.
        rank: usize,
        /// Where it runs.
        host: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The machinery between ranks cannot be started, or not used as asked.
    #[error("{0}")]
    Setup(String),
}

/// Something in which a rank differs from rank 0, and must not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank} on host {host} differs from rank 0 in {what}: {found}, there {expected}; {advice}")]
pub struct Difference {
    /// The rank.
    pub rank: usize,
    /// Where it runs.
    pub host: String,
    /// What differs.
    pub what: String,
    /// What it has.
    pub found: String,
    /// What rank 0 has.
    pub expected: String,
    /// What to do.
    pub advice: String,
}

/// The collectives of a rank's plans: what [`Part`] says whom to speak to, and a [`Communicator`] carries.
pub struct Links {
    communicator: Arc<dyn Communicator>,
    part: Part,
    buffers: Mutex<Buffers>,
    /// Whether returned rows are received apart from the step.
    later: AtomicBool,
}

/// The bytes of a message that is sent, those of one that came, and its values.
#[derive(Default)]
struct Buffers {
    sent: Vec<u8>,
    came: Vec<u8>,
    values: Vec<f32>,
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Links").field("part", &self.part).finish_non_exhaustive()
    }
}

/// Elements up to which every rank of a group sends all others everything; of more, each adds up a stretch and sends the sum.
const DIRECT: usize = 1 << 14;

impl Links {
    /// For the plans of this part.
    pub fn new(communicator: Arc<dyn Communicator>, part: Part) -> Links {
        Links { communicator, part, buffers: Mutex::default(), later: AtomicBool::new(false) }
    }

    /// How many steps this rank can have begun before it needs the first one's result: as many as the pipeline has stretches of layers. 1 on every rank to which
    /// no rows are returned.
    pub fn steps_in_flight(&self) -> usize {
        self.part.returned_by.map_or(1, |_| self.part.ranks / self.part.members.len().max(1))
    }

    /// Says whether the steps to come leave the rows that are returned to who calls [`receive_rows`](Self::receive_rows) later.
    pub fn leave_returned(&self, later: bool) {
        self.later.store(later, Ordering::Relaxed);
    }

    /// Whether the operation that waits for returned rows has nothing to do in this step.
    pub fn leaves_returned(&self) -> bool {
        self.part.returned_by.is_some() && self.later.load(Ordering::Relaxed)
    }

    /// Of a model that is loaded; none where one rank has all of it.
    pub fn of(communicator: Option<Arc<dyn Communicator>>, config: &ModelConfig) -> Option<Links> {
        Some(Links::new(communicator?, config.part.as_deref()?.clone()))
    }

    /// Adds up `values` over the ranks that share the layers. Every element is summed in the order of the ranks, whatever their number of elements, so that all
    /// of them end with the same bits. Terms cross as [`Part::wire`] says, also the rank's own is rounded; sums cross as they are.
    ///
    /// # Errors
    /// As for [`Communicator::receive`].
    pub fn all_reduce(&self, values: &mut [f32]) -> Result<(), RankError> {
        let (members, wire) = (self.part.members.clone(), self.part.wire);
        let (count, own) = (members.len(), self.part.rank - members.start);
        let len = values.len();
        if wire != Wire::F32 {
            self.round(values)?;
        }
        if len <= DIRECT || count == 2 {
            for to in members.clone().filter(|to| *to != self.part.rank) {
                self.send(to, values, wire)?;
            }
            return self.sum(values);
        }
        let stretch = |member: usize| len * member / count..len * (member + 1) / count;
        for (member, to) in members.clone().enumerate().filter(|(member, _)| *member != own) {
            self.send(to, &values[stretch(member)], wire)?;
        }
        self.sum(&mut values[stretch(own)])?;
        for to in members.clone().filter(|to| *to != self.part.rank) {
            self.send(to, &values[stretch(own)], Wire::F32)?;
        }
        for (member, from) in members.enumerate().filter(|(member, _)| *member != own) {
            let values = &mut values[stretch(member)];
            self.receive(from, values, Wire::F32, |value, received| *value = received)?;
        }
        Ok(())
    }

    /// Adds what each other member sends to what this one has, in the order of the ranks.
    fn sum(&self, values: &mut [f32]) -> Result<(), RankError> {
        let mut sums = vec![0.0; values.len()];
        for rank in self.part.members.clone() {
            if rank == self.part.rank {
                sums.iter_mut().zip(values.iter()).for_each(|(sum, value)| *sum += value);
            } else {
                self.receive(rank, &mut sums, self.part.wire, |sum, received| *sum += received)?;
            }
        }
        values.copy_from_slice(&sums);
        Ok(())
    }

    /// Sends rows of the residual stream on.
    ///
    /// # Errors
    /// As for [`Communicator::send`].
    pub fn send_rows(&self, rows: &[f32]) -> Result<(), RankError> {
        self.part.sends_to.map_or(Ok(()), |to| self.send(to, rows, self.part.wire))
    }

    /// Waits for as many rows of the residual stream as `rows` has room for.
    ///
    /// # Errors
    /// As for [`Communicator::receive`].
    pub fn receive_rows(&self, rows: &mut [f32]) -> Result<(), RankError> {
        let Some(from) = self.part.receives_from.or(self.part.returned_by) else { return Ok(()) };
        self.receive(from, rows, self.part.wire, |value, received| *value = received)
    }

    fn buffers(&self) -> MutexGuard<'_, Buffers> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes values what other ranks get of them.
    fn round(&self, values: &mut [f32]) -> Result<(), RankError> {
        let bytes = &mut self.buffers().sent;
        encode(self.part.wire, values, bytes)?;
        decode(self.part.wire, bytes, values)
    }

    fn send(&self, to: usize, values: &[f32], wire: Wire) -> Result<(), RankError> {
        let message = &mut self.buffers().sent;
        encode(wire, values, message)?;
        self.communicator.send(to, Channel::Values, message)
    }

    /// Puts each number of a message where it belongs, which must be as many as `values`.
    fn receive(
        &self,
        from: usize,
        values: &mut [f32],
        wire: Wire,
        put: impl Fn(&mut f32, f32),
    ) -> Result<(), RankError> {
        let Buffers { came, values: received, .. } = &mut *self.buffers();
        self.communicator.receive(from, Channel::Values, came)?;
        let expected = wire.bytes() * values.len();
        if came.len() != expected {
            let problem = format!("{} bytes of values, expected {expected}", came.len());
            return Err(RankError::Message { rank: from, host: self.communicator.host(from), problem });
        }
        received.resize(values.len(), 0.0);
        decode(wire, came, received)?;
        values.iter_mut().zip(received).for_each(|(value, received)| put(value, *received));
        Ok(())
    }
}

fn tensor_type(wire: Wire) -> TensorType {
    match wire {
        Wire::F32 => TensorType::F32,
        Wire::Bf16 => TensorType::BF16,
    }
}

fn encode(wire: Wire, values: &[f32], bytes: &mut Vec<u8>) -> Result<(), RankError> {
    bytes.resize(wire.bytes() * values.len(), 0);
    latent_quant::encode(tensor_type(wire), values, bytes)
        .map_err(|error| RankError::Setup(error.to_string()))
}

fn decode(wire: Wire, bytes: &[u8], values: &mut [f32]) -> Result<(), RankError> {
    latent_quant::decode(tensor_type(wire), bytes, values)
        .map_err(|error| RankError::Setup(error.to_string()))
}
