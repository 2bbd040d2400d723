//! The lightning indexer of sparse attention (DeepSeek-V3.2-Exp): writes its keys to the KV cache,
//! scores the cached tokens and selects the best.

use crate::interpret::{Interpreter, internal};
use crate::products::dot;
use latent_backend::{BackendError, slot};
use latent_graph::config::INDEX_NORM_EPS;
use latent_graph::ir::Node;

impl Interpreter<'_> {
    /// cache[position] ← the LayerNorm of the key, with its first elements rotated.
    pub(super) fn index_store(&mut self, node: &Node) -> Result<(), BackendError> {
        let Some(layer) = node.kv_layer else { return internal("a store without a KV layer".into()) };
        let vector = |slot: &str| match node.weight(slot) {
            Some(id) => self.weights.vector(self.ir().weight(id)),
            None => internal(format!("index_store has no {slot}")),
        };
        let (weight, bias) = (vector("index_k_norm")?, vector("index_k_norm_bias")?);
        let keys = self.input(node, 0)?.clone();
        for span in &self.batch.spans {
            for row in span.rows.clone() {
                let position = self.batch.positions[row];
                let mut key = layer_norm(&keys[row * weight.len()..(row + 1) * weight.len()], &weight, &bias);
                self.rotation.rotate_index(&mut key, position);
                let slot = slot(&span.block_table, position);
                self.kv.row_mut(self.first_kv_layer + layer.0, slot).copy_from_slice(&key);
            }
        }
        Ok(())
    }

    /// Selects the positions that each row attends to.
    pub(super) fn index_select(&mut self, node: &Node) -> Result<(), BackendError> {
        let Some(layer) = node.kv_layer else { return internal("an indexer without a KV layer".into()) };
        let Some(indexer) = self.config.attention.indexer else {
            return internal("index_select in a model without an indexer".into());
        };
        let (mut queries, weights) = (self.input(node, 0)?.clone(), self.input(node, 1)?.clone());
        let mut selected = vec![0; self.rows * indexer.topk];
        for span in &self.batch.spans {
            for row in span.rows.clone() {
                let position = self.batch.positions[row];
                if position < indexer.topk {
                    continue; // The row attends to all tokens up to itself: see `attended`.
                }
                let all = indexer.heads * indexer.width;
                let query = &mut queries[row * all..(row + 1) * all];
                query
                    .chunks_exact_mut(indexer.width)
                    .for_each(|head| self.rotation.rotate_index(head, position));
                let weights = &weights[row * indexer.heads..(row + 1) * indexer.heads];
                let score = |at: usize| {
                    let key = self.kv.row(self.first_kv_layer + layer.0, slot(&span.block_table, at));
                    let heads = query.chunks_exact(indexer.width).zip(weights);
                    // Models scale scores, for example by 1 / √(width · heads). Such a factor is
                    // the same for all tokens, so the selection does not need it.
                    // `fold` from 0.0, so that a sum of zeros is +0: `sum` begins with −0, which
                    // `total_cmp` orders below +0.
                    heads.map(|(q, weight)| weight * dot(q, key).max(0.0)).fold(0.0, |sum, term| sum + term)
                };
                let scores: Vec<f32> = (0..=position).map(score).collect();
                selected[row * indexer.topk..(row + 1) * indexer.topk]
                    .copy_from_slice(&largest(&scores, indexer.topk));
            }
        }
        self.ids.insert(node.outputs[0], selected);
        Ok(())
    }

    /// The positions that a row attends to, ascending: the selected ones, or all up to its own.
    pub(super) fn attended(&self, node: &Node, row: usize) -> impl Iterator<Item = usize> + use<'_> {
        let position = self.batch.positions[row];
        let topk = self.config.attention.indexer.map_or(usize::MAX, |indexer| indexer.topk);
        let selected = node.input_at("selected").and_then(|id| self.ids.get(&id));
        let chosen = selected.filter(|_| position >= topk).map(|ids| &ids[row * topk..(row + 1) * topk]);
        let all = if chosen.is_some() { 0..0 } else { 0..position + 1 };
        chosen.into_iter().flatten().map(|at| *at as usize).chain(all)
    }
}

/// (x − mean x) / √(var x + ε) · w + b.
fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f32> {
    let count = x.len() as f64;
    let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
    let variance = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / count;
    let factor = 1.0 / (variance + INDEX_NORM_EPS).sqrt();
    let normed = x.iter().map(|x| ((f64::from(*x) - mean) * factor) as f32);
    normed.zip(weight).zip(bias).map(|((x, w), b)| x * w + b).collect()
}

/// The positions of the `count` largest scores, ascending. Of equal scores the earlier ones win.
fn largest(scores: &[f32], count: usize) -> Vec<u32> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    // `sort_by` is stable: equal scores stay in the order of their positions.
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    let mut chosen: Vec<u32> = order[..count].iter().map(|at| *at as u32).collect();
    chosen.sort_unstable();
    chosen
}
