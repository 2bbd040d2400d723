//! Portions: the submissions of a step. Drivers reset a GPU that works for seconds on one
//! submission, and a user may cancel a long prompt between two portions.

use crate::commands::Commands;
use crate::device::Device;
use crate::observe::StepObserver;
use crate::ready::QueueSubmission;
use latent_backend::{BackendError, Batch, CancelToken};
use latent_graph::Plan;
use latent_graph::ir::{Node, Op, StepWorkload};
use latent_graph::passes::BatchBucket;
use latent_types::CacheType;
use std::sync::Arc;

/// Arithmetic operations per portion.
// Some tenths of a second on the slowest GPUs that run models, a tenth of the time that Windows
// allows (TDR). Indivisible work may exceed it: one pass of experts, expanded keys, and products of
// one weight.
pub(crate) const PORTION: f64 = (1u64 << 36) as f64;

/// Calls of a step's first submission.
// The device starts on it while the host records the rest.
const FIRST_CALLS: usize = 32;

/// The commands of a step that are not submitted yet.
pub(crate) struct PendingCommands<'c> {
    pub(crate) commands: Commands,
    /// Maximum arithmetic operations of a portion.
    max_work: f64,
    /// Arithmetic operations since the last portion.
    work: f64,
    /// Number of calls after which the commands are submitted early. It doubles each time.
    early: usize,
    /// The last submitted portion. The device works on it while the host records the next one.
    before: Option<QueueSubmission>,
    cancel: &'c CancelToken,
}

impl<'c> PendingCommands<'c> {
    pub(crate) fn new(device: &Arc<Device>, max_work: f64, cancel: &'c CancelToken) -> PendingCommands<'c> {
        let (commands, early) = (Commands::new(device), FIRST_CALLS);
        PendingCommands { commands, max_work, work: 0.0, early, before: None, cancel }
    }

    /// Called before an operation of `work` arithmetic operations. Submits the pending commands if
    /// both together exceed a portion, or if they are enough calls to keep the device busy.
    ///
    /// # Errors
    /// [`BackendError::Cancelled`]: the rest is not submitted. The device completes what was
    /// submitted, which writes only slots of the step's rows.
    pub(crate) fn before(&mut self, work: f64, observer: &mut StepObserver) -> Result<(), BackendError> {
        // A single operation that exceeds a portion must not be preceded by an empty submission.
        if self.work > 0.0 && self.work + work > self.max_work {
            let device = Arc::clone(self.commands.device());
            let submitted = observer.submit_portion(self.take())?;
            // Waits for the portion before the one just submitted: the device always has work, and
            // a cancelled step ends after at most two portions.
            if let Some(before) = std::mem::replace(&mut self.before, submitted) {
                device.wait_for(before)?;
            }
            if self.cancel.is_cancelled() {
                return Err(BackendError::Cancelled);
            }
        } else if self.commands.len() >= self.early && !observer.is_active() {
            // Without an observer only: an active one submits operations itself, or just lists
            // them.
            self.early *= 2;
            let next = Commands::new(self.commands.device());
            std::mem::replace(&mut self.commands, next).submit(&[])?;
        }
        self.work += work;
        Ok(())
    }

    /// Takes the commands that are not submitted yet.
    pub(crate) fn take(&mut self) -> Commands {
        self.work = 0.0;
        let next = Commands::new(self.commands.device());
        std::mem::replace(&mut self.commands, next)
    }
}

/// Estimates the time of a node in a step of this batch, in arithmetic operations.
pub(crate) fn work(plan: &Plan, node: &Node, batch: &Batch, rows: usize, cache: CacheType) -> f64 {
    let attends = matches!(node.op, Op::AttendLatent | Op::AttendSeparate | Op::AttendExpanded);
    // With few rows, products take as long as reading their weights, which is short. Then only
    // attention counts, since its cache may be long.
    if BatchBucket::of(rows) != BatchBucket::Prefill && !attends {
        return 0.0;
    }
    let sequences = batch.spans.len().max(1);
    let past_len = batch.spans.iter().map(|span| span.first).sum::<usize>() / sequences;
    // Rows on other paths are counted too. Usually all rows of a step take one path.
    node.cost(&plan.ir, StepWorkload { rows, sequences, past_len, cache, path: node.path }).flops
}
