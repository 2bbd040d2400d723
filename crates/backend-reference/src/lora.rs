//! Low-rank terms of LoRA adapters, from their definitions. In the formulas s is the scale that a
//! row asks for, and f the adapter's own factor.

use crate::interpret::{Interpreter, internal};
use crate::products::{dot, product};
use latent_backend::BackendError;
use latent_graph::circuit::Weight;
use latent_graph::ir::Node;
use latent_graph::ops::adapted_slot;

impl Interpreter<'_> {
    fn matrix(&self, node: &Node, slot: &str) -> Result<&Weight, BackendError> {
        let weight = node.weight(slot).map(|id| self.ir().weight(id));
        weight.map_or_else(|| internal(format!("{} without {slot}", node.op.word())), Ok)
    }

    /// The factor s · f of an adapter's term in a row; 0 if the row does not use the adapter.
    fn factor(&self, b: &Weight, row: usize) -> f64 {
        b.adapter.map_or(0.0, |of| f64::from(self.batch.adapter_scale(row, of.adapter)) * of.factor)
    }

    /// base + s · f · B · low, where low = A · x is computed by an earlier node.
    pub(super) fn lora_add(&mut self, node: &Node) -> Result<(), BackendError> {
        let b = self.matrix(node, "lora_b")?;
        let outputs = b.outputs();
        let terms = product(self.weights, b, 0, 0..outputs, self.input(node, 1)?)?;
        let mut made = self.input(node, 0)?.clone();
        for (row, (sums, terms)) in
            made.chunks_exact_mut(outputs).zip(terms.chunks_exact(outputs)).enumerate()
        {
            let factor = self.factor(b, row) as f32;
            // Rows without the adapter keep their bits, even if the term is infinite or NaN.
            if factor != 0.0 {
                sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += factor * term);
            }
        }
        self.set(node, 0, made);
        Ok(())
    }

    /// Adds s · f · Bₑ · (Aₑ · x) of each adapter of an experts' weight to `sums`, which are the
    /// outputs from `from` on.
    pub(super) fn add_expert_terms(
        &self,
        node: &Node,
        slot: &str,
        (expert, row): (usize, usize),
        from: usize,
        x: &[f32],
        sums: &mut [f32],
    ) -> Result<(), BackendError> {
        let matrices = node.weights.iter().filter(|(name, _)| adapted_slot(name) == Some(slot));
        let matrices: Vec<&Weight> = matrices.map(|(_, id)| self.ir().weight(*id)).collect();
        // A node lists the matrices of each adapter as a pair: A, then B.
        for pair in matrices.chunks_exact(2) {
            let (a, b) = (pair[0], pair[1]);
            let factor = self.factor(b, row) as f32;
            // As in `lora_add`, rows without the adapter keep their bits.
            if factor != 0.0 {
                let low = product(self.weights, a, expert, 0..a.outputs(), x)?;
                let terms = product(self.weights, b, expert, from..from + sums.len(), &low)?;
                sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += factor * term);
            }
        }
        Ok(())
    }

    /// q̃ + s · f · Aᵀ · (B_UKᵀ · q_nope), for each head. The rope part does not change, because
    /// the adapted weight does not make the rotated key.
    pub(super) fn lora_absorb_k(&mut self, node: &Node) -> Result<(), BackendError> {
        let attention = self.config.attention;
        let (nope, latent) = (attention.nope, attention.kv_lora_rank);
        let (a, b) = (self.matrix(node, "lora_a")?, self.matrix(node, "lora_b")?);
        let (rank, matrix) = (a.outputs(), self.weights.rows(a, 0, 0..a.outputs())?);
        let (mut made, queries) = (self.input(node, 0)?.clone(), self.input(node, 1)?);
        for head in 0..attention.heads {
            let first = head * (nope + attention.v);
            let of_head = self.weights.rows(b, 0, first..first + nope)?;
            for row in 0..self.rows {
                let (at, factor) = (row * attention.heads + head, self.factor(b, row));
                // As in `lora_add`, rows without the adapter keep their bits.
                if factor == 0.0 {
                    continue;
                }
                let q = &queries[at * nope..(at + 1) * nope];
                let column = |r: usize| (0..nope).map(|i| of_head[i * rank + r]).collect::<Vec<_>>();
                let low: Vec<f32> = (0..rank).map(|r| dot(&column(r), q)).collect();
                let query = &mut made[at * attention.latent_width()..][..latent];
                for (i, out) in query.iter_mut().enumerate() {
                    let column: Vec<f32> = (0..rank).map(|r| matrix[r * latent + i]).collect();
                    *out += factor as f32 * dot(&column, &low);
                }
            }
        }
        self.set(node, 0, made);
        Ok(())
    }

    /// o + s · f · B_UV · (A · õ), for each head.
    pub(super) fn lora_absorb_v(&mut self, node: &Node) -> Result<(), BackendError> {
        let attention = self.config.attention;
        let (v, latent) = (attention.v, attention.kv_lora_rank);
        let (a, b) = (self.matrix(node, "lora_a")?, self.matrix(node, "lora_b")?);
        let (mut made, mixes) = (self.input(node, 0)?.clone(), self.input(node, 1)?);
        for head in 0..attention.heads {
            let first = head * (attention.nope + v) + attention.nope;
            for row in 0..self.rows {
                let (at, factor) = (row * attention.heads + head, self.factor(b, row) as f32);
                if factor == 0.0 {
                    continue;
                }
                let low =
                    product(self.weights, a, 0, 0..a.outputs(), &mixes[at * latent..(at + 1) * latent])?;
                let terms = product(self.weights, b, 0, first..first + v, &low)?;
                made[at * v..(at + 1) * v].iter_mut().zip(terms).for_each(|(o, term)| *o += factor * term);
            }
        }
        self.set(node, 0, made);
        Ok(())
    }
}
