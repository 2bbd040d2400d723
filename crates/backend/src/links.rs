//! The collectives of a rank's plans: the ranks to communicate with, and sums of values over ranks.

use crate::communicator::{Channel, Communicator, RankError};
use crate::pulse::ThreadPulse;
use latent_graph::ModelConfig;
use latent_graph::config::{RankPart, WireType};
use latent_types::TensorType;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The collectives of a rank's plans. [`RankPart`] names the other ranks; a [`Communicator`]
/// carries the messages.
pub struct RankLinks {
    communicator: Arc<dyn Communicator>,
    part: RankPart,
    buffers: Mutex<CollectiveBuffers>,
    /// Receives the progress of steps, if hangs are detected.
    pulse: Option<Arc<ThreadPulse>>,
    /// Whether returned rows are received separately from the step.
    later: AtomicBool,
}

/// Reusable buffers of collectives.
#[derive(Default)]
struct CollectiveBuffers {
    /// The bytes of a sent message.
    sent: Vec<u8>,
    /// The bytes of a received message.
    received: Vec<u8>,
    /// The values of a received message.
    values: Vec<f32>,
    /// The sums of the ranks' terms so far.
    sums: Vec<f32>,
}

impl fmt::Debug for RankLinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Links").field("part", &self.part).finish_non_exhaustive()
    }
}

/// Maximum number of elements for which every rank sends its whole vector to all others. For more
/// elements, each rank sums one part and sends the result, which sends fewer bytes but takes two
/// rounds.
pub const DIRECT_SUM: usize = 1 << 14;

/// Bytes of each rank's collective buffers, for `members` ranks per stretch of layers and
/// `stretches` stretches: see [`RankLinks::bytes`].
pub fn collective_bytes((members, stretches): (usize, usize), wire: WireType, elements: usize) -> u64 {
    if members.saturating_mul(stretches) < 2 {
        return 0;
    }
    // The copy from the arena, and the values received from another rank.
    let double = elements.saturating_mul(2);
    let mut floats = double;
    // The last message sent or received, and those in the transport's queues.
    let mut messages = double;
    if members > 1 {
        floats = floats.saturating_add(elements);
        // `at_once` is what `all_reduce` sends before it receives. Two ranks exchange all elements
        // once. More ranks send at most `DIRECT_SUM` elements to every other rank, or the terms and
        // then the sums of all stretches. The factor 2 covers the opposite direction.
        let all = DIRECT_SUM.saturating_mul(members - 1);
        let at_once = if members == 2 { elements } else { double.max(all) };
        messages = messages.saturating_add(at_once.saturating_mul(2));
    }
    if stretches > 1 {
        // Per step in flight, the rows to this rank and from it.
        messages = messages.saturating_add(double.saturating_mul(stretches));
    }
    size_of::<f32>().saturating_mul(floats).saturating_add(wire.bytes().saturating_mul(messages)) as u64
}

impl RankLinks {
    /// Creates the collectives for the plans of this part.
    pub fn new(communicator: Arc<dyn Communicator>, part: RankPart) -> RankLinks {
        let pulse = communicator.pulse();
        RankLinks { communicator, part, buffers: Mutex::default(), later: AtomicBool::new(false), pulse }
    }

    /// Maximum bytes that the collectives of a part use for values of `elements` elements: working
    /// memory and messages in flight.
    pub fn bytes(part: &RankPart, elements: usize) -> u64 {
        let members = part.members.len().max(1);
        collective_bytes((members, part.ranks / members), part.wire, elements)
    }

    /// Reports progress of a step: see [`ThreadPulse`].
    pub fn beat(&self) {
        if let Some(pulse) = &self.pulse {
            pulse.beat();
        }
    }

    /// Number of steps that this rank can begin before it needs the result of the first: the number
    /// of stretches of layers in the pipeline. 1 on ranks that receive no returned rows.
    pub fn steps_in_flight(&self) -> usize {
        self.part.returned_by.map_or(1, |_| self.part.ranks / self.part.members.len().max(1))
    }

    /// Sets whether later steps leave returned rows to a later call of
    /// [`receive_rows`](Self::receive_rows).
    pub fn leave_returned(&self, later: bool) {
        self.later.store(later, Ordering::Relaxed);
    }

    /// Whether the operation that waits for returned rows is skipped in this step.
    pub fn leaves_returned(&self) -> bool {
        self.part.returned_by.is_some() && self.later.load(Ordering::Relaxed)
    }

    /// The collectives of a loaded model; none if one rank has all of it.
    pub fn of(communicator: Option<Arc<dyn Communicator>>, config: &ModelConfig) -> Option<RankLinks> {
        Some(RankLinks::new(communicator?, config.part.as_deref()?.clone()))
    }

    /// Sums `values` over the ranks that share the layers. Every element is summed in rank order,
    /// for any number of elements, so that all ranks get the same bits. Terms, including the rank's
    /// own, are rounded to [`RankPart::wire`]; sums are sent unrounded.
    pub fn all_reduce(&self, values: &mut [f32]) -> Result<(), RankError> {
        // No ring or tree all-reduce: the order of a sum would depend on the element's position.
        // The order of MPI's own reductions is undefined.
        let (members, wire) = (self.part.members.clone(), self.part.wire);
        let (count, own) = (members.len(), self.part.rank - members.start);
        let len = values.len();
        // This rank's own terms are rounded as the other ranks receive them. Otherwise each rank
        // would add other numbers.
        if wire != WireType::F32 {
            self.round(values)?;
        }
        // With two ranks, one exchange is optimal for any size.
        if len <= DIRECT_SUM || count == 2 {
            // Sends do not wait for their receipt, so that all ranks can send before they receive.
            for to in members.clone().filter(|to| *to != self.part.rank) {
                self.send(to, values, wire)?;
            }
            return self.sum(values);
        }
        // Every rank computes the same limits. Parts differ by at most one element.
        let stretch = |member: usize| len * member / count..len * (member + 1) / count;
        for (member, to) in members.clone().enumerate().filter(|(member, _)| *member != own) {
            self.send(to, &values[stretch(member)], wire)?;
        }
        self.sum(&mut values[stretch(own)])?;
        // Sums are sent as f32. Rounded, they would differ from those of the direct exchange.
        for to in members.clone().filter(|to| *to != self.part.rank) {
            self.send(to, &values[stretch(own)], WireType::F32)?;
        }
        for (member, from) in members.enumerate().filter(|(member, _)| *member != own) {
            let values = &mut values[stretch(member)];
            self.receive(from, values, WireType::F32, |value, received| *value = received)?;
        }
        Ok(())
    }

    /// Adds the terms of the other members to this rank's, in rank order.
    fn sum(&self, values: &mut [f32]) -> Result<(), RankError> {
        // Taken out of the buffers, since `receive` locks them.
        let mut sums = std::mem::take(&mut self.buffers().sums);
        sums.clear();
        sums.resize(values.len(), 0.0);
        for rank in self.part.members.clone() {
            if rank == self.part.rank {
                sums.iter_mut().zip(values.iter()).for_each(|(sum, value)| *sum += value);
            } else {
                self.receive(rank, &mut sums, self.part.wire, |sum, received| *sum += received)?;
            }
        }
        values.copy_from_slice(&sums);
        self.buffers().sums = sums;
        Ok(())
    }

    /// Sends rows of the residual stream to the next rank.
    pub fn send_rows(&self, rows: &[f32]) -> Result<(), RankError> {
        self.part.sends_to.map_or(Ok(()), |to| self.send(to, rows, self.part.wire))
    }

    /// Waits for rows of the residual stream and fills `rows`.
    pub fn receive_rows(&self, rows: &mut [f32]) -> Result<(), RankError> {
        // Rank 0 receives what the last rank returns, every other rank what its predecessor sends.
        let Some(from) = self.part.receives_from.or(self.part.returned_by) else { return Ok(()) };
        self.receive(from, rows, self.part.wire, |value, received| *value = received)
    }

    fn buffers(&self) -> MutexGuard<'_, CollectiveBuffers> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rounds values to what other ranks receive.
    fn round(&self, values: &mut [f32]) -> Result<(), RankError> {
        let bytes = &mut self.buffers().sent;
        encode(self.part.wire, values, bytes)?;
        decode(self.part.wire, bytes, values)
    }

    fn send(&self, to: usize, values: &[f32], wire: WireType) -> Result<(), RankError> {
        let message = &mut self.buffers().sent;
        encode(wire, values, message)?;
        self.communicator.send(to, Channel::Values, message)
    }

    /// Applies `put` to each number of a message, which must have the length of `values`.
    fn receive(
        &self,
        from: usize,
        values: &mut [f32],
        wire: WireType,
        put: impl Fn(&mut f32, f32),
    ) -> Result<(), RankError> {
        let CollectiveBuffers { received, values: decoded, .. } = &mut *self.buffers();
        self.communicator.receive(from, Channel::Values, received)?;
        let expected = wire.bytes() * values.len();
        // A rank with another plan or wire type sends another length.
        if received.len() != expected {
            let problem = format!("{} bytes of values, expected {expected}", received.len());
            return Err(RankError::Message { rank: from, host: self.communicator.host(from), problem });
        }
        decoded.resize(values.len(), 0.0);
        decode(wire, received, decoded)?;
        values.iter_mut().zip(decoded).for_each(|(value, decoded)| put(value, *decoded));
        Ok(())
    }
}

fn tensor_type(wire: WireType) -> TensorType {
    match wire {
        WireType::F32 => TensorType::F32,
        WireType::Bf16 => TensorType::BF16,
    }
}

fn encode(wire: WireType, values: &[f32], bytes: &mut Vec<u8>) -> Result<(), RankError> {
    bytes.resize(wire.bytes() * values.len(), 0);
    latent_quant::encode(tensor_type(wire), values, bytes)
        .map_err(|error| RankError::Setup(error.to_string()))
}

fn decode(wire: WireType, bytes: &[u8], values: &mut [f32]) -> Result<(), RankError> {
    latent_quant::decode(tensor_type(wire), bytes, values)
        .map_err(|error| RankError::Setup(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another rank that replies to each message with as many zero bytes.
    #[derive(Default)]
    struct ZeroCommunicator(Mutex<usize>);

    impl Communicator for ZeroCommunicator {
        fn rank(&self) -> usize {
            0
        }

        fn ranks(&self) -> usize {
            2
        }

        fn host(&self, _rank: usize) -> String {
            "zeros".into()
        }

        fn send(&self, _to: usize, _channel: Channel, message: &[u8]) -> Result<(), RankError> {
            *self.0.lock().unwrap() = message.len();
            Ok(())
        }

        fn receive(&self, _from: usize, _channel: Channel, message: &mut Vec<u8>) -> Result<(), RankError> {
            *message = vec![0; *self.0.lock().unwrap()];
            Ok(())
        }

        fn fail(&self, _cause: &str) {}
    }

    fn part(ranks: usize, members: usize, wire: WireType) -> RankPart {
        let next = (members < ranks).then_some(members);
        RankPart { sends_to: next, returned_by: next, ..RankPart::bare(0, ranks, 0..members, wire) }
    }

    #[test]
    fn the_memory_of_collectives_is_counted() {
        const ELEMENTS: usize = 3000;
        for (members, wire) in [(2, WireType::F32), (2, WireType::Bf16), (1, WireType::F32)] {
            let part = part(2, members, wire);
            let counted = RankLinks::bytes(&part, ELEMENTS);
            let links = RankLinks::new(Arc::new(ZeroCommunicator::default()), part);
            let mut values = vec![1.0; ELEMENTS];
            for _ in 0..2 {
                if members == 2 {
                    links.all_reduce(&mut values).unwrap();
                } else {
                    links.send_rows(&values).unwrap();
                    links.receive_rows(&mut values).unwrap();
                }
            }
            let CollectiveBuffers { sent, received, values, sums } = &*links.buffers();
            assert_eq!(sums.len(), if members == 2 { ELEMENTS } else { 0 }, "used again");
            let held = sent.capacity() + received.capacity() + 4 * (values.capacity() + sums.capacity());
            // The copy of the value, and each message once more in the transport.
            let all = held + 4 * ELEMENTS + 2 * wire.bytes() * ELEMENTS;
            assert!(all as u64 <= counted && counted <= 2 * all as u64, "{all} bytes, {counted} counted");
        }
        assert_eq!(RankLinks::bytes(&part(1, 1, WireType::F32), ELEMENTS), 0);
    }
}
