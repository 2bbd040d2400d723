//! Commands from rank 0 to the other ranks, as bytes.

use crate::wire::{Reader, Writer};
use latent_backend::{Batch, InputRow, InputRows};
use latent_graph::ir::AttentionPath;

/// What followers do next.
#[derive(Debug)]
pub(crate) enum Command {
    /// Run a step.
    Step(Batch),
    /// Replace the KV store with one of `blocks` blocks.
    NewStore { blocks: u32 },
    /// Copy a block of the store.
    CopyBlock { from: u32, to: u32 },
    /// Answer with as many rows, from a slot on.
    ReadRows { layer: usize, first: usize, count: usize },
    /// Write rows, from a slot on.
    WriteRows { layer: usize, first: usize, rows: Vec<u8> },
    /// Move a token's rows.
    ShiftToken { from: usize, to: usize, distance: i64 },
    /// Take the times of steps.
    StartTimes,
    /// Answer with them.
    StopTimes,
    /// The model is no longer needed.
    End,
}

const STEP: u8 = 1;
const NEW_STORE: u8 = 2;
const COPY_BLOCK: u8 = 3;
const READ_ROWS: u8 = 4;
const WRITE_ROWS: u8 = 5;
const SHIFT_TOKEN: u8 = 6;
const END: u8 = 7;
const START_TIMES: u8 = 8;
const STOP_TIMES: u8 = 9;

/// A step as a message, so that its sender need not give the batch away.
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
        out.usize(span.rows.len());
        let mut embeddings = Vec::new();
        let mut tokens = Vec::new();
        for row in span.rows.clone() {
            match batch.input(row) {
                InputRow::Token(token) => tokens.push(token),
                InputRow::Embedding(elements) => embeddings.extend(elements.iter().map(|x| x.to_bits())),
            }
        }
        out.u32s(&tokens);
        out.u32s(&embeddings);
    }
    out.u32s(&batch.wanted);
    out.0
}

impl Command {
    pub(crate) fn message(&self) -> Vec<u8> {
        let mut out = Writer::default();
        match self {
            Command::Step(batch) => return step_message(batch),
            Command::NewStore { blocks } => {
                out.0.push(NEW_STORE);
                out.u32(*blocks);
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
            NEW_STORE => Command::NewStore { blocks: from.u32()? },
            COPY_BLOCK => Command::CopyBlock { from: from.u32()?, to: from.u32()? },
            READ_ROWS => {
                Command::ReadRows { layer: from.usize()?, first: from.usize()?, count: from.usize()? }
            }
            WRITE_ROWS => Command::WriteRows {
                layer: from.usize()?,
                first: from.usize()?,
                rows: from.bytes()?.to_vec(),
            },
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
        let rows = from.usize()?;
        let tokens = from.u32s()?;
        let embeddings: Vec<f32> = from.u32s()?.into_iter().map(f32::from_bits).collect();
        let inputs = if embeddings.is_empty() {
            InputRows::Tokens(&tokens)
        } else {
            InputRows::Embeddings { values: &embeddings, width: embeddings.len() / rows.max(1) }
        };
        if inputs.len() != rows {
            return None;
        }
        batch.push(inputs, first, &table, path);
    }
    batch.wanted = from.u32s()?;
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
        batch.push(InputRows::Embeddings { values: &values, width: 2 }, 0, &[0], AttentionPath::Naive);
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
            Command::NewStore { blocks: 12 },
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
}
