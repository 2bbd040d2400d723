//! The router: selects the top-k experts of each row.

use crate::context::WorkerContext;
use crate::program::Route;
use crate::scratch::{WorkerScratch, grown_to, resize_scratch};
use latent_kernels::RouteSpec;

impl Route {
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>, scratch: &mut WorkerScratch) {
        let Some(spec) = ctx.model.route else { return };
        let spec = RouteSpec { bias: self.bias.map(|w| ctx.model.weights[w].vector()), ..spec };
        if self.in_every_worker {
            return self.route_all(ctx, &spec, scratch);
        }
        for row in ctx.own_rows(&self.topk_ids) {
            // SAFETY: shares of rows are disjoint, and `row` is in this worker's.
            let ids = unsafe { ctx.ids_mut(&self.topk_ids, row) };
            // SAFETY: as above; ids and weights are different values.
            let weights = unsafe { ctx.row_mut(&self.topk_weights, row) };
            latent_kernels::route(ctx.row(&self.logits, row), &spec, ids, weights, &mut scratch.route);
        }
    }

    /// Routes all rows in this worker and sorts them for the experts of this phase, which saves a
    /// barrier. Later phases read the shared values, to which each worker writes its own rows only.
    fn route_all(&self, ctx: &WorkerContext<'_>, spec: &RouteSpec<'_>, scratch: &mut WorkerScratch) {
        let own = ctx.own_rows(&self.topk_ids);
        let used = self.topk_ids.width;
        let WorkerScratch { route, topk_ids, topk_weights, experts, .. } = scratch;
        let all_ids = grown_to(topk_ids, ctx.rows * used, 0);
        let all_weights = resize_scratch(topk_weights, ctx.rows * used);
        for row in 0..ctx.rows {
            let (ids, weights) = (&mut all_ids[row * used..][..used], &mut all_weights[row * used..][..used]);
            latent_kernels::route(ctx.row(&self.logits, row), spec, ids, weights, route);
            if own.contains(&row) {
                // SAFETY: shares of rows are disjoint, and `row` is in this worker's.
                unsafe { ctx.ids_mut(&self.topk_ids, row) }.copy_from_slice(ids);
                // SAFETY: as above.
                unsafe { ctx.row_mut(&self.topk_weights, row) }.copy_from_slice(weights);
            }
        }
        experts.sort(ctx.model.config.own_experts().range(), ctx.rows, |row| &all_ids[row * used..][..used]);
    }
}
