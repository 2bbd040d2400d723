//! Cases of the delta rule: one head, from a state of zeros.

use super::job::RecordedJob;
use crate::GpuError;
use crate::buffers::{Buffer, float_bytes, floats, word_bytes};
use crate::commands::Commands;
use crate::device::Device;
use crate::ops::delta_rule::{DeltaCall, DeltaShaders, MAX_WIDTH};
use crate::state_runs::{DeltaRound, add_rounds};
use latent_backend::{SeqSpan, SpanState};
use latent_conformance::{RowCase, RowOp, RowOperands};
use latent_graph::ir::AttentionPath;
use std::sync::Arc;

pub(super) fn serves(case: &RowCase) -> bool {
    matches!(case.op, RowOp::DeltaRule | RowOp::DeltaChunks) && case.width <= MAX_WIDTH
}

/// Rows of one sequence, in chunks or one after the other.
pub(super) struct DeltaJob {
    device: Arc<Device>,
    elements: usize,
    shaders: DeltaShaders,
    rounds: Vec<DeltaRound>,
    call: DeltaCall,
    y: Buffer,
    /// Buffers that the call reads. They are kept as long as the call.
    _inputs: Vec<Buffer>,
}

impl DeltaJob {
    pub(super) fn new(
        device: &Arc<Device>,
        case: &RowCase,
        operands: &RowOperands,
        chunked: bool,
    ) -> Result<DeltaJob, GpuError> {
        let (rows, width) = (case.rows, case.width);
        // Drafted rows run one after the other, other rows in chunks.
        let state = SpanState { from: None, to: 0, kept: Vec::new(), drafted: !chunked };
        let span = SeqSpan {
            rows: 0..rows,
            first: 0,
            block_table: Vec::new(),
            path: AttentionPath::All,
            state: Some(state),
        };
        let mut words = Vec::new();
        let rounds = add_rounds(&mut words, std::iter::once(&span));
        let (mut values, mut decays, mut betas) = (Vec::new(), Vec::new(), Vec::new());
        for (q, k) in operands.x.chunks_exact(width).zip(operands.y.chunks_exact(width)) {
            let (decay, beta) = RowCase::decays(q, k);
            values.extend(q.iter().rev());
            decays.extend(decay);
            betas.push(beta);
        }
        let inputs = [&operands.x, &operands.y, &values, &decays, &betas]
            .map(|input| Buffer::with(device, "inputs", &float_bytes(input)));
        let [q, k, v, g, beta] = inputs;
        let (q, k, v, g, beta) = (q?, k?, v?, g?, beta?);
        let step = Buffer::with(device, "step", &word_bytes(&words))?;
        let y = Buffer::new(device, "y", 4 * (rows * width) as u64)?;
        let states = Buffer::new(device, "states", 4 * (width * width) as u64)?;
        let scores = Buffer::new(device, "scores", DeltaShaders::score_bytes(rows, 1))?;
        let bound = |buffer: &Buffer| (buffer.into(), [0, width as u32, width as u32]);
        let call = DeltaCall {
            step: (&step).into(),
            inputs: [&q, &k, &v, &g].map(bound),
            beta: ((&beta).into(), [0, 1]),
            y: bound(&y),
            heads: 1,
            states: (&states).into(),
            scores: (&scores).into(),
        };
        Ok(DeltaJob {
            device: Arc::clone(device),
            elements: rows * width,
            shaders: DeltaShaders::new(device, width)?,
            rounds,
            call,
            y,
            _inputs: vec![step, q, k, v, g, beta, states, scores],
        })
    }
}

impl RecordedJob for DeltaJob {
    fn device(&self) -> &Arc<Device> {
        &self.device
    }

    fn record(&self, commands: &mut Commands, _: usize) -> Result<(), GpuError> {
        self.shaders.record(commands, &self.call, &self.rounds);
        Ok(())
    }

    fn read(&self) -> Result<Vec<f32>, GpuError> {
        Ok(floats(&self.y.read("y", 0..4 * self.elements as u64)?))
    }
}
