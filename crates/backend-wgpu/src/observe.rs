//! Timing, tracing and listing of operations. A device with timestamps times all operations of a
//! list. Without timestamps, each operation is submitted and waited for separately, as is each
//! traced operation.

use crate::buffers::floats;
use crate::commands::{Commands, ReadbackCopy};
use crate::device::Device;
use crate::error::GpuError;
use crate::ready::QueueSubmission;
use crate::run::StageRun;
use crate::values::{ShaderOperand, ValueRegisters};
use latent_backend::{ActivationTrace, BackendError, Instant, KvStore, NodeCalls, PlanTimes};
use latent_graph::Plan;
use latent_graph::activations::{ActivationSource, Probe};
use latent_graph::ir::ValueId;
use latent_graph::passes::BatchBucket;
use latent_types::{CacheRow, CacheType, TensorType};
use std::sync::Arc;

/// Observers of a step. All are off by default.
#[derive(Default)]
pub(crate) struct StepObserver {
    /// Profile: nanoseconds of each phase of each plan.
    clocks: Option<Vec<Vec<u64>>>,
    /// Start of the current operation, on devices without timestamps.
    started: Option<Instant>,
    /// Plan and phase of each operation that was recorded since the last submission.
    timed: Vec<(usize, usize)>,
    /// Listing: the calls of each node so far, and the number of commands before the current node.
    listing: Option<(Vec<NodeCalls>, usize)>,
    /// Trace: the activations, and the probes of each plan.
    trace: Option<(ActivationTrace, Vec<Vec<Probe>>)>,
}

impl StepObserver {
    pub(crate) fn start_profile(&mut self, phases: impl Iterator<Item = usize>) {
        self.clocks = Some(phases.map(|phases| vec![0; phases]).collect());
        self.timed.clear();
    }

    pub(crate) fn stop_profile(&mut self) -> Vec<PlanTimes> {
        let clocks = self.clocks.take().unwrap_or_default();
        clocks.into_iter().map(|phases| PlanTimes { phases, nodes: Vec::new() }).collect()
    }

    /// Starts a listing: operations are recorded, but not submitted.
    pub(crate) fn start_listing(&mut self) {
        self.listing = Some((Vec::new(), 0));
    }

    pub(crate) fn stop_listing(&mut self) -> Vec<NodeCalls> {
        self.listing.take().map(|(calls, _)| calls).unwrap_or_default()
    }

    pub(crate) fn start_trace(&mut self, probes: Vec<Vec<Probe>>, trace: ActivationTrace) {
        self.trace = Some((trace, probes));
    }

    pub(crate) fn stop_trace(&mut self) -> Option<ActivationTrace> {
        self.trace.take().map(|(trace, _)| trace)
    }

    /// Submits a list. While a profile is taken, its times are added.
    pub(crate) fn submit(
        &mut self,
        commands: Commands,
        results: &[ReadbackCopy<'_>],
    ) -> Result<(), GpuError> {
        let timestamps = commands.device().description.timestamps;
        // Without timestamps, `before` and `after_part` measure by the host's clock.
        let Some(clocks) = self.clocks.as_mut().filter(|_| timestamps) else {
            return commands.submit(results);
        };
        for (operation, nanos) in commands.submit_timed(results)? {
            let (plan, phase) = self.timed[operation];
            clocks[plan][phase] += nanos;
        }
        self.timed.clear();
        Ok(())
    }

    /// Submits a portion of a step, which can be waited for. None if a profile has already waited
    /// for it.
    pub(crate) fn submit_portion(&mut self, commands: Commands) -> Result<Option<QueueSubmission>, GpuError> {
        if self.clocks.is_some() {
            return self.submit(commands, &[]).map(|()| None);
        }
        commands.submit_portion().map(Some)
    }

    pub(crate) fn is_active(&self) -> bool {
        self.clocks.is_some() || self.listing.is_some() || self.trace.is_some()
    }

    /// Whether operations are listed instead of submitted.
    pub(crate) fn lists(&self) -> bool {
        self.listing.is_some()
    }

    /// Called before an operation is recorded. `place` is its plan and phase.
    pub(crate) fn before(
        &mut self,
        run: &mut StageRun<'_>,
        device: &Arc<Device>,
        place: (usize, usize),
    ) -> Result<(), BackendError> {
        if let Some((_, first)) = &mut self.listing {
            *first = run.commands.len();
        }
        if self.clocks.is_none() {
            return Ok(());
        }
        if device.description.timestamps {
            run.commands.timed(self.timed.len());
            self.timed.push(place);
        } else {
            // The clock of the host must not measure earlier operations too.
            finish(run.commands, device)?;
            self.started = Some(Instant::now());
        }
        Ok(())
    }

    /// Called after a part of an operation is recorded.
    pub(crate) fn after_part(
        &mut self,
        run: &mut StageRun<'_>,
        device: &Arc<Device>,
        (plan, phase): (usize, usize),
    ) -> Result<(), BackendError> {
        // `started` is set only on devices without timestamps.
        if let (Some(clocks), Some(started)) = (&mut self.clocks, self.started.take()) {
            finish(run.commands, device)?;
            clocks[plan][phase] += started.elapsed().as_nanos() as u64;
        }
        Ok(())
    }

    /// Called after an operation is recorded. It is a node of the plan with this number.
    pub(crate) fn after(
        &mut self,
        run: &mut StageRun<'_>,
        device: &Arc<Device>,
        plan: &Plan,
        registers: &ValueRegisters,
        (number, node): (usize, usize),
    ) -> Result<(), BackendError> {
        if let Some((calls, first)) = &mut self.listing {
            let stage = number / BatchBucket::ALL.len();
            calls.push(NodeCalls { stage, node, kernels: run.commands.kernels(*first) });
        }
        self.after_part(run, device, (number, plan.phases[node]))?;
        if let Some((trace, probes)) = &mut self.trace {
            let mut here = probes[number].iter().filter(|probe| probe.node == node).peekable();
            // Values are read before later operations run, which may overwrite their registers.
            if here.peek().is_some() {
                finish(run.commands, device)?;
            }
            here.try_for_each(|probe| record(run, plan, registers, probe, trace))?;
        }
        Ok(())
    }
}

/// Submits the commands and waits for them.
fn finish(commands: &mut Commands, device: &Arc<Device>) -> Result<(), GpuError> {
    std::mem::replace(commands, Commands::new(device)).submit(&[])?;
    device.wait()
}

/// Reads the words of a value's rows, from its first element on.
fn words(run: &StageRun<'_>, operand: &ShaderOperand) -> Result<Vec<u8>, GpuError> {
    let buffer = run.memory.of(operand.home);
    let first = 4 * u64::from(operand.offset);
    let end = first + 4 * run.rows as u64 * u64::from(operand.row_stride);
    // A view begins at an offset, so the stride of its last row may end beyond the buffer.
    buffer.read("an activation", first..end.min(buffer.bytes()))
}

/// Copies a node's activation into the trace.
fn record(
    run: &StageRun<'_>,
    plan: &Plan,
    registers: &ValueRegisters,
    probe: &Probe,
    trace: &mut ActivationTrace,
) -> Result<(), BackendError> {
    // Traced steps have one sequence, so its first span decides which path was taken.
    let span = run.batch.spans.first();
    if !trace.wants(probe.activation) || span.is_some_and(|span| !probe.path.meets(span.path)) {
        return Ok(());
    }
    let made_by = plan.ir.line(&plan.ir.nodes[probe.node]);
    let operand = |id: ValueId| registers.operand(plan, id);
    let mut keep = |row: usize, elements: &mut dyn Iterator<Item = (usize, f32)>| {
        let out = trace.row(probe.activation, run.position(row), &made_by);
        // The experts that a row does not use keep a weight of 0.
        out.fill(0.0);
        for (i, element) in elements {
            if let Some(out) = out.get_mut(i) {
                *out = element;
            }
        }
    };
    match &probe.source {
        ActivationSource::Value { value, columns } => {
            let at = operand(*value)?;
            let elements = floats(&words(run, &at)?);
            for row in 0..run.rows {
                let heads =
                    (0..at.heads).map(|head| (row as u32 * at.row_stride + head * at.head_stride) as usize);
                let elements = heads.flat_map(|first| &elements[first + columns.start..first + columns.end]);
                keep(row, &mut elements.copied().enumerate());
            }
        }
        ActivationSource::Cache { kv_layer, columns } => {
            let Some(span) = span else { return Ok(()) };
            let layer = run.first_kv_layer + kv_layer.0;
            let layout = run.kv.layout().row(layer);
            let (mut bytes, mut elements) = (vec![0; layout.bytes()], vec![0.0; layout.width()]);
            for row in 0..run.rows {
                let slot = latent_backend::slot(&span.block_table, run.position(row));
                run.kv.read_rows(layer, slot, &mut bytes)?;
                decode(layout, &bytes, &mut elements)?;
                keep(row, &mut elements[columns.clone()].iter().copied().enumerate());
            }
        }
        ActivationSource::Routing { topk_ids, topk_weights } => {
            let (ids, weights) = (operand(*topk_ids)?, operand(*topk_weights)?);
            let used = ids.row_width() as usize;
            let ids: Vec<u32> =
                words(run, &ids)?.as_chunks().0.iter().map(|id| u32::from_le_bytes(*id)).collect();
            let weights = floats(&words(run, &weights)?);
            for row in 0..run.rows {
                let here = row * used..(row + 1) * used;
                let chosen = ids[here.clone()].iter().map(|id| *id as usize);
                keep(row, &mut chosen.zip(weights[here].iter().copied()));
            }
        }
    }
    Ok(())
}

/// Decodes a row of the KV cache.
fn decode(row: CacheRow, bytes: &[u8], elements: &mut [f32]) -> Result<(), BackendError> {
    let decoded = match row.ty {
        CacheType::F32 => latent_quant::decode(TensorType::F32, bytes, elements),
        CacheType::Bf16 => latent_quant::decode(TensorType::BF16, bytes, elements),
        CacheType::F16 => latent_quant::decode(TensorType::F16, bytes, elements),
        CacheType::Int8 => {
            let (quants, rest) = bytes.split_at(row.content);
            let (rope, scale) = rest.split_at(rest.len() - size_of::<f32>());
            let scale = floats(scale)[0];
            let (content, rotated) = elements.split_at_mut(row.content);
            // Quants are bytes biased by 128, as `store_int8.wgsl` writes them.
            for (element, quant) in content.iter_mut().zip(quants) {
                *element = (f32::from(*quant) - 128.0) * scale;
            }
            latent_quant::decode(TensorType::F16, rope, rotated)
        }
        ty => return Err(crate::cache::unsupported(ty)),
    };
    decoded.map_err(|error| BackendError::Decode { file: "the KV cache".into(), error })
}
