//! Collectives: exchanges of values with other ranks. The first worker communicates while the other
//! workers wait at the end of the phase.

use crate::context::WorkerContext;
use crate::program::{CollectiveKind, RankCollective};
use crate::scratch::{WorkerScratch, resize_scratch};

impl RankCollective {
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>, scratch: &mut WorkerScratch) {
        let Some(links) = ctx.links.filter(|_| ctx.worker.index == 0) else { return };
        // `CpuModel::collect` receives the rows of a submitted step.
        if matches!(self.kind, CollectiveKind::ReceiveRows) && links.leaves_returned() {
            return;
        }
        let value = &self.value;
        let width = value.heads * value.width;
        let values = resize_scratch(&mut scratch.results, ctx.rows * width);
        if !matches!(self.kind, CollectiveKind::ReceiveRows) {
            for (row, values) in values.chunks_exact_mut(width).enumerate() {
                values.copy_from_slice(ctx.row(value, row));
            }
        }
        let done = match self.kind {
            CollectiveKind::AllReduce => links.all_reduce(values),
            CollectiveKind::SendRows => links.send_rows(values),
            CollectiveKind::ReceiveRows => links.receive_rows(values),
        };
        if let Err(error) = done {
            return ctx.fail(error);
        }
        if matches!(self.kind, CollectiveKind::SendRows) {
            return;
        }
        for (row, values) in values.chunks_exact(width).enumerate() {
            // SAFETY: only the first worker uses the value in this phase.
            unsafe { ctx.row_mut(value, row) }.copy_from_slice(values);
        }
    }
}
