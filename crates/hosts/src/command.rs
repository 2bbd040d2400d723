//! Commands from rank 0 to the other ranks, and their encoding.

use crate::wire::{Reader, Writer};
use latent_backend::{Batch, InputRow, InputRows, LayerState, RecurrentLayer, SpanState};
use latent_graph::circuit::StateShape;
use latent_graph::ir::{AttentionPath, KvLayer, KvLayerKind};

/// A command to followers.
#[derive(Debug)]
pub(crate) enum Command {
    /// Run a step.
    Step(Batch),
    /// Replace the KV store by one with these sizes, and answer with its layers.
    NewStore { blocks: u32, state_slots: u32 },
    /// Copy a block of the store.
    CopyBlock { from: u32, to: u32 },
    /// Answer with `count` rows from slot `first`.
    ReadRows { layer: usize, first: usize, count: usize },
    /// Write rows from slot `first`.
    WriteRows { layer: usize, first: usize, rows: Vec<u8> },
    /// Answer with the recurrent state of a layer.
    ReadState { layer: usize, slot: u32 },
    /// Write the recurrent state of a layer.
    WriteState { layer: usize, slot: u32, state: Vec<u8> },
    /// Move a token's rows.
    ShiftToken { from: usize, to: usize, distance: i64 },
    /// Start to measure times.
    StartTimes,
    /// Stop, and answer with the times.
    StopTimes,
    /// End the loop: the model is no longer needed.
    End,
}

// These numbers may change between versions: all ranks have checked at startup that they run the
// same one.
const STEP: u8 = 1;
const NEW_STORE: u8 = 2;
const COPY_BLOCK: u8 = 3;
const READ_ROWS: u8 = 4;
const WRITE_ROWS: u8 = 5;
const SHIFT_TOKEN: u8 = 6;
const END: u8 = 7;
const START_TIMES: u8 = 8;
const STOP_TIMES: u8 = 9;
const READ_STATE: u8 = 10;
const WRITE_STATE: u8 = 11;

/// A span that begins without a state. Slots are u32, so no slot has this number.
const NO_SLOT: u64 = u64::MAX;

/// Encodes a step from a borrowed batch. [`Command::Step`] would need an owned one.
pub(crate) fn step_message(batch: &Batch) -> Vec<u8> {
    let mut out = Writer(vec![STEP]);
    out.usize(batch.spans.len());
    for span in &batch.spans {
        out.usize(span.first);
        out.u32s(&span.block_table);
        out.0.push(match span.path {
            AttentionPath::All => 0,
            AttentionPath::Absorbed => 1,
            AttentionPath::Naive => 2,
        });
        write_state(&mut out, span.state.as_ref());
        out.usize(span.rows.len());
        let mut embeddings = Vec::new();
        let mut tokens = Vec::new();
        for row in span.rows.clone() {
            match batch.input(row) {
                InputRow::Token(token) => tokens.push(token),
                // As bits, since all ranks must compute with the same values, −0 and NaN included.
                InputRow::Embedding(elements) => embeddings.extend(elements.iter().map(|x| x.to_bits())),
            }
        }
        out.u32s(&tokens);
        out.u32s(&embeddings);
    }
    out.u32s(&batch.wanted);
    out.0
}

fn write_state(out: &mut Writer, state: Option<&SpanState>) {
    out.0.push(state.is_some().into());
    let Some(state) = state else { return };
    out.u64(state.from.map_or(NO_SLOT, u64::from));
    out.u32(state.to);
    out.0.push(state.drafted.into());
    out.usize(state.kept.len());
    for (rows, slot) in &state.kept {
        out.usize(*rows);
        out.u32(*slot);
    }
}

/// `None` for malformed bytes.
fn read_state(from: &mut Reader<'_>) -> Option<Option<SpanState>> {
    if from.u8()? == 0 {
        return Some(None);
    }
    let slot = match from.u64()? {
        NO_SLOT => None,
        slot => Some(u32::try_from(slot).ok()?),
    };
    let (to, drafted) = (from.u32()?, from.u8()? == 1);
    let mut kept = Vec::new();
    for _ in 0..from.usize()? {
        kept.push((from.usize()?, from.u32()?));
    }
    Some(Some(SpanState { from: slot, to, kept, drafted }))
}

/// Encodes the layers of a rank's cache.
pub(crate) fn layers_message(layers: &[LayerState]) -> Vec<u8> {
    let mut out = Writer::default();
    out.usize(layers.len());
    for layer in layers {
        match layer {
            LayerState::PerToken(rows) => {
                let kind = KvLayerKind::ALL.iter().position(|kind| *kind == rows.kind);
                // 0 marks a recurrent layer.
                out.0.push(kind.unwrap_or_default() as u8 + 1);
                [rows.layer, rows.width, rows.rope].into_iter().for_each(|size| out.usize(size));
            }
            LayerState::Recurrent(RecurrentLayer { layer, shape }) => {
                out.0.push(0);
                [*layer, shape.heads, shape.rows, shape.columns].into_iter().for_each(|size| out.usize(size));
            }
        }
    }
    out.0
}

/// Parses [`layers_message`]; `None` for malformed bytes.
pub(crate) fn read_layers(message: &[u8]) -> Option<Vec<LayerState>> {
    let mut from = Reader(message);
    let mut layers = Vec::new();
    for _ in 0..from.usize()? {
        layers.push(match from.u8()?.checked_sub(1) {
            Some(kind) => {
                let kind = *KvLayerKind::ALL.get(usize::from(kind))?;
                LayerState::PerToken(KvLayer::of_rows(kind, from.usize()?, from.usize()?, from.usize()?))
            }
            None => {
                let layer = from.usize()?;
                let (heads, rows, columns) = (from.usize()?, from.usize()?, from.usize()?);
                LayerState::Recurrent(RecurrentLayer { layer, shape: StateShape { heads, rows, columns } })
            }
        });
    }
    from.is_done().then_some(layers)
}

impl Command {
    pub(crate) fn message(&self) -> Vec<u8> {
        let mut out = Writer::default();
        match self {
            Command::Step(batch) => return step_message(batch),
            Command::NewStore { blocks, state_slots } => {
                out.0.push(NEW_STORE);
                out.u32(*blocks);
                out.u32(*state_slots);
            }
            Command::CopyBlock { from, to } => {
                out.0.push(COPY_BLOCK);
                out.u32(*from);
                out.u32(*to);
            }
            Command::ReadRows { layer, first, count } => {
                out.0.push(READ_ROWS);
                out.usize(*layer);
                out.usize(*first);
                out.usize(*count);
            }
            Command::WriteRows { layer, first, rows } => {
                out.0.push(WRITE_ROWS);
                out.usize(*layer);
                out.usize(*first);
                out.bytes(rows);
            }
            Command::ReadState { layer, slot } => {
                out.0.push(READ_STATE);
                out.usize(*layer);
                out.u32(*slot);
            }
            Command::WriteState { layer, slot, state } => {
                out.0.push(WRITE_STATE);
                out.usize(*layer);
                out.u32(*slot);
                out.bytes(state);
            }
            Command::ShiftToken { from, to, distance } => {
                out.0.push(SHIFT_TOKEN);
                out.usize(*from);
                out.usize(*to);
                out.u64(distance.cast_unsigned());
            }
            Command::StartTimes => out.0.push(START_TIMES),
            Command::StopTimes => out.0.push(STOP_TIMES),
            Command::End => out.0.push(END),
        }
        out.0
    }

    /// Parses a command; `None` for malformed bytes.
    pub(crate) fn read(message: &[u8]) -> Option<Command> {
        let mut from = Reader(message);
        let command = match from.u8()? {
            STEP => Command::Step(batch(&mut from)?),
            NEW_STORE => Command::NewStore { blocks: from.u32()?, state_slots: from.u32()? },
            COPY_BLOCK => Command::CopyBlock { from: from.u32()?, to: from.u32()? },
            READ_ROWS => {
                Command::ReadRows { layer: from.usize()?, first: from.usize()?, count: from.usize()? }
            }
            WRITE_ROWS => Command::WriteRows {
                layer: from.usize()?,
                first: from.usize()?,
                rows: from.bytes()?.to_vec(),
            },
            READ_STATE => Command::ReadState { layer: from.usize()?, slot: from.u32()? },
            WRITE_STATE => {
                Command::WriteState { layer: from.usize()?, slot: from.u32()?, state: from.bytes()?.to_vec() }
            }
            SHIFT_TOKEN => Command::ShiftToken {
                from: from.usize()?,
                to: from.usize()?,
                distance: from.u64()?.cast_signed(),
            },
            START_TIMES => Command::StartTimes,
            STOP_TIMES => Command::StopTimes,
            END => Command::End,
            _ => return None,
        };
        from.is_done().then_some(command)
    }
}

fn batch(from: &mut Reader<'_>) -> Option<Batch> {
    let mut batch = Batch::default();
    for _ in 0..from.usize()? {
        let first = from.usize()?;
        let table = from.u32s()?;
        let path = match from.u8()? {
            0 => AttentionPath::All,
            1 => AttentionPath::Absorbed,
            2 => AttentionPath::Naive,
            _ => return None,
        };
        let state = read_state(from)?;
        let rows = from.usize()?;
        let tokens = from.u32s()?;
        let embeddings: Vec<f32> = from.u32s()?.into_iter().map(f32::from_bits).collect();
        // A span has either tokens or embeddings. An empty one counts as tokens.
        let inputs = if embeddings.is_empty() {
            InputRows::Tokens(&tokens)
        } else {
            InputRows::Embeddings { values: &embeddings, width: embeddings.len() / rows.max(1) }
        };
        if inputs.len() != rows {
            return None;
        }
        batch.push(inputs, first, &table, path).state = state;
    }
    batch.wanted = from.u32s()?;
    // A row that does not exist is malformed, too.
    batch.wanted.iter().all(|row| (*row as usize) < batch.rows()).then_some(batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_arrives_as_it_was_sent() {
        let mut batch = Batch::default();
        batch.push(InputRows::Tokens(&[7, 9, 11]), 64, &[3, 1], AttentionPath::Absorbed);
        let values = [0.5, -0.0, f32::MIN_POSITIVE, 4.0];
        let kept = vec![(1, 7), (5, 0)];
        batch
            .push(InputRows::Embeddings { values: &values, width: 2 }, 0, &[0], AttentionPath::Naive)
            .state = Some(SpanState { from: None, to: 3, kept, drafted: true });
        let state = SpanState { from: Some(u32::MAX), to: 4, kept: Vec::new(), drafted: false };
        batch.push(InputRows::Tokens(&[2]), 1, &[5], AttentionPath::Absorbed).state = Some(state);
        batch.wanted = vec![2, 4];
        let message = step_message(&batch);
        let Some(Command::Step(arrived)) = Command::read(&message) else { panic!("no step") };
        assert_eq!(
            (&arrived.positions, &arrived.spans, &arrived.wanted),
            (&batch.positions, &batch.spans, &batch.wanted)
        );
        let rows = |batch: &Batch| {
            (0..batch.rows()).map(|row| format!("{:?}", batch.input(row))).collect::<Vec<_>>()
        };
        assert_eq!(rows(&arrived), rows(&batch));
        for len in 0..message.len() {
            assert!(Command::read(&message[..len]).is_none(), "{len} bytes of {}", message.len());
        }
    }

    #[test]
    fn commands_arrive_as_they_were_sent() {
        let commands = [
            Command::NewStore { blocks: 12, state_slots: 5 },
            Command::ReadState { layer: 2, slot: 9 },
            Command::WriteState { layer: 2, slot: 0, state: vec![0, 1, 255, 7] },
            Command::CopyBlock { from: 1, to: 2 },
            Command::ReadRows { layer: 3, first: 400, count: 64 },
            Command::WriteRows { layer: 3, first: 5, rows: vec![1, 2, 255] },
            Command::ShiftToken { from: 9, to: 2, distance: -7 },
            Command::StartTimes,
            Command::StopTimes,
            Command::End,
        ];
        for command in commands {
            let arrived = Command::read(&command.message()).unwrap();
            assert_eq!(format!("{arrived:?}"), format!("{command:?}"));
        }
        assert!(
            Command::read(&[]).is_none()
                && Command::read(&[99]).is_none()
                && Command::read(&[END, 0]).is_none()
        );
    }

    #[test]
    fn layers_arrive_as_they_were_sent() {
        let shape = StateShape { heads: 3, rows: 18, columns: 16 };
        let layers = [
            LayerState::PerToken(KvLayer::of_rows(KvLayerKind::Index, 4, 128, 0)),
            LayerState::PerToken(KvLayer::of_rows(KvLayerKind::Latent, 4, 576, 64)),
            LayerState::Recurrent(RecurrentLayer { layer: 5, shape }),
        ];
        let message = layers_message(&layers);
        assert_eq!(read_layers(&message).unwrap(), layers);
        for len in 0..message.len() {
            assert!(read_layers(&message[..len]).is_none(), "{len} bytes of {}", message.len());
        }
        let mut wrong = message;
        wrong[8] = 99;
        assert!(read_layers(&wrong).is_none());
    }
}
