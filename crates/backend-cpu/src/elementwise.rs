//! Operations that work row by row: each thread takes its share of the rows.

use crate::compile::Slot;
use crate::run::Thread;
use crate::scratch::{WorkerScratch, resize_scratch};
use latent_backend::SeqSpan;
use latent_backend::{KV_BLOCK, slot};
use latent_graph::ir::AttentionPath;

/// Cached rows that lie in one node's memory: the least that a thread attends to in one piece.
const HOME_ROWS: usize = 2 * KV_BLOCK;

impl Thread<'_> {
    pub(crate) fn embed(&self, weight: usize, scale: f32, out: &Slot, local: &mut WorkerScratch) {
        let rows = self.model.weights[weight].matrix(0);
        for row in self.my_rows(out) {
            let line = self.row_mut(out, row);
            latent_kernels::decode_row(&rows, self.batch.tokens[row] as usize, line, &mut local.bytes);
            if scale != 1.0 {
                latent_kernels::scale(line, scale);
            }
        }
    }

    pub(crate) fn rms_norm(&self, input: &Slot, weight: usize, out: &Slot) {
        if let Some((weight, eps)) = self.norm(Some(weight)) {
            for row in self.my_rows(out) {
                latent_kernels::rms_norm(self.row(input, row), weight, eps, self.row_mut(out, row));
            }
        }
    }

    pub(crate) fn rope(&self, input: &Slot, out: &Slot, path: AttentionPath) {
        let in_place = (input.base, input.offset) == (out.base, out.offset);
        for span in self.batch.on_path(path) {
            for row in self.worker.share(span.rows.len(), 1) {
                let row = span.rows.start + row;
                for head in 0..out.heads {
                    let numbers = self.head_mut(out, row, head);
                    if !in_place {
                        numbers.copy_from_slice(self.head(input, row, head));
                    }
                    self.rotate(numbers, row);
                }
            }
        }
    }

    /// Rows of a span, counted from its first, that this thread writes to a stream of the cache. Runs of [`HOME_ROWS`] positions are dealt to the nodes
    /// in turn: their pages lie where they are written first, so that the cache fills all nodes' memory evenly and reading it
    /// uses all of them at once, also when one row is written at a time. Each stream begins with another node, because a large page
    /// lies whole where its first row is written.
    pub(crate) fn stored_rows(
        &self,
        span: &SeqSpan,
        kv_layer: usize,
    ) -> impl Iterator<Item = usize> + use<'_> {
        let (worker, first) = (self.worker, span.first);
        (0..span.rows.len())
            .filter(move |row| worker.is_dealt((first + row) / HOME_ROWS + kv_layer, first + row))
    }

    pub(crate) fn latent_store(
        &self,
        latent: &Slot,
        norm: Option<usize>,
        key: &Slot,
        rotate: bool,
        kv_layer: usize,
        local: &mut WorkerScratch,
    ) {
        let index = kv_layer;
        let (kv_layer, memory) = &self.kv.kv_layers()[index];
        let (stored, line) =
            (kv_layer.row(self.kv.cache_type()), resize_scratch(&mut local.results, kv_layer.width));
        for span in &self.batch.spans {
            for row in self.stored_rows(span, index) {
                let position = span.first + row;
                let row = span.rows.start + row;
                let (content, rotated) = line.split_at_mut(latent.width);
                match self.norm(norm) {
                    Some((weight, eps)) => {
                        latent_kernels::rms_norm(self.row(latent, row), weight, eps, content)
                    }
                    None => content.copy_from_slice(self.row(latent, row)),
                }
                rotated.copy_from_slice(self.row(key, row));
                if rotate {
                    self.rotate(rotated, row);
                }
                let place = slot(&span.block_table, position);
                latent_kernels::store_row(stored, line, self.cache_row(memory, place));
            }
        }
    }

    pub(crate) fn silu_mul(&self, gate: &Slot, up: &Slot, out: &Slot) {
        for row in self.my_rows(out) {
            let line = self.row_mut(out, row);
            line.copy_from_slice(self.row(up, row));
            latent_kernels::silu_mul(self.row(gate, row), line);
        }
    }

    pub(crate) fn relu2(&self, input: &Slot, out: &Slot) {
        for row in self.my_rows(out) {
            let line = self.row_mut(out, row);
            line.copy_from_slice(self.row(input, row));
            latent_kernels::relu2(line);
        }
    }

    pub(crate) fn add(&self, term: &Slot, scale: f32, out: &Slot) {
        for row in self.my_rows(out) {
            latent_kernels::axpy(self.row_mut(out, row), scale, self.row(term, row));
        }
    }

    pub(crate) fn scale(&self, by: f32, out: &Slot) {
        for row in self.my_rows(out) {
            latent_kernels::scale(self.row_mut(out, row), by);
        }
    }

    pub(crate) fn gather_rows(&self, out: &Slot) {
        let hidden = Slot { base: crate::compile::Base::Hidden, offset: 0, ..*out };
        for row in self.my_rows(out) {
            self.row_mut(out, row).copy_from_slice(self.row(&hidden, self.batch.wanted[row] as usize));
        }
    }
}
