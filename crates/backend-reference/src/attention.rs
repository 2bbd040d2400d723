//! Writing to the KV cache, and the formulations of multi-head latent attention (DeepSeek-V2,
//! arXiv:2405.04434, section 2.1).

use crate::interpret::{Interpreter, internal};
use crate::products::dot;
use latent_backend::{BackendError, slot};
use latent_graph::circuit::Weight;
use latent_graph::ir::{KvLayerKind, Node, Op};

/// The matrices that make one head's key and value of a latent: W_UK (nope × kv_lora) and W_UV
/// (v × kv_lora).
struct HeadProjections {
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Interpreter<'_> {
    /// Decodes the projections of one head. Files have either `kv_b` (W_UK and then W_UV of each
    /// head), or `k_b` (W_UK transposed) and `v_b`.
    fn projections(&self, node: &Node, head: usize) -> Result<HeadProjections, BackendError> {
        let a = &self.config.attention;
        let weight = |slot: &str| node.weight(slot).map(|id| self.ir().weight(id));
        if let Some(both) = weight("kv_b") {
            let first = head * (a.nope + a.v);
            let keys = self.weights.rows(both, 0, first..first + a.nope)?;
            let values = self.weights.rows(both, 0, first + a.nope..first + a.nope + a.v)?;
            return Ok(HeadProjections { keys, values });
        }
        // A node needs one projection or both: the one that it does not name stays empty.
        let whole = |weight: Option<&Weight>| match weight {
            Some(weight) => self.weights.rows(weight, head, 0..weight.outputs()),
            None => Ok(Vec::new()),
        };
        let (stored, mut keys) = (whole(weight("k_b"))?, Vec::new());
        if !stored.is_empty() {
            // `k_b` is stored as kv_lora × nope.
            keys = (0..a.nope * a.kv_lora_rank)
                .map(|i| stored[i % a.kv_lora_rank * a.nope + i / a.kv_lora_rank])
                .collect();
        }
        Ok(HeadProjections { keys, values: whole(weight("v_b"))? })
    }

    /// cache[position] ← [latent | rotated key].
    pub(super) fn store(&mut self, node: &Node) -> Result<(), BackendError> {
        let a = self.config.attention;
        let (latents, keys) = (self.input(node, 0)?.clone(), self.input_at(node, "k_rope")?);
        let latent = |row: usize| &latents[row * a.kv_lora_rank..(row + 1) * a.kv_lora_rank];
        let key = |row: usize| &keys[row * a.rope..(row + 1) * a.rope];
        let rows = (0..self.rows).map(|row| [latent(row), key(row)].concat()).collect();
        self.write_rows(node, KvLayerKind::Latent, rows)
    }

    /// k_nope = W_UK · latent and value = W_UV · latent, for every head.
    pub(super) fn decompress(&mut self, node: &Node) -> Result<(), BackendError> {
        let a = self.config.attention;
        let latents = self.input(node, 0)?.clone();
        let (mut keys, mut values) =
            (vec![0.0; self.rows * a.heads * a.nope], vec![0.0; self.rows * a.heads * a.v]);
        for head in 0..a.heads {
            let projections = self.projections(node, head)?;
            for (row, latent) in latents.chunks_exact(a.kv_lora_rank).enumerate() {
                let at = row * a.heads + head;
                keys[at * a.nope..(at + 1) * a.nope].copy_from_slice(&product(&projections.keys, latent));
                values[at * a.v..(at + 1) * a.v].copy_from_slice(&product(&projections.values, latent));
            }
        }
        self.set(node, 0, keys);
        self.set(node, 1, values);
        Ok(())
    }

    /// key = [k_nope | rotated key], for every head. All heads of a token share its rotated key.
    pub(super) fn join_keys(&mut self, node: &Node) -> Result<(), BackendError> {
        let a = self.config.attention;
        let (nope, rope) = (self.input(node, 0)?.clone(), self.input_at(node, "k_rope")?);
        let heads = nope.chunks_exact(a.nope).enumerate();
        let made = heads.flat_map(|(i, nope)| {
            let row = i / a.heads;
            [nope, &rope[row * a.rope..(row + 1) * a.rope]].concat()
        });
        let made = made.collect();
        self.set(node, 0, made);
        Ok(())
    }

    /// cache[position] ← [key | value] of all heads, one head after the other.
    pub(super) fn store_expanded(&mut self, node: &Node) -> Result<(), BackendError> {
        let a = self.config.attention;
        let (keys, values) = (self.input(node, 0)?, self.input(node, 1)?);
        let heads: Vec<Vec<f32>> = keys
            .chunks_exact(a.nope + a.rope)
            .zip(values.chunks_exact(a.v))
            .map(|(key, value)| [key, value].concat())
            .collect();
        let rows = heads.chunks_exact(a.heads).map(|row| row.concat()).collect();
        self.write_rows(node, KvLayerKind::Expanded, rows)
    }

    /// Writes one row per token into the KV layer of a node, which must be of this kind.
    fn write_rows(
        &mut self,
        node: &Node,
        kind: KvLayerKind,
        rows: Vec<Vec<f32>>,
    ) -> Result<(), BackendError> {
        let Some(layer) = node.kv_layer else { return internal("a store without a KV layer".into()) };
        let found = self.ir().kv_layers[layer.0].kind;
        if found != kind {
            return internal(format!("{} into {}", node.op.word(), found.name()));
        }
        for span in &self.batch.spans {
            for row in span.rows.clone() {
                let slot = slot(&span.block_table, self.batch.positions[row]);
                self.kv.row_mut(self.first_kv_layer + layer.0, slot).copy_from_slice(&rows[row]);
            }
        }
        Ok(())
    }

    /// The query in latent space: [W_UKᵀ · q_nope | q_rope]. Since q · (W_UK · latent) = (W_UKᵀ ·
    /// q) · latent, scores can be computed from cached latents without expanding them.
    pub(super) fn absorb_query(&mut self, node: &Node) -> Result<(), BackendError> {
        let a = self.config.attention;
        let (nope, rope) = (self.input(node, 0)?.clone(), self.input_at(node, "q_rope")?);
        let mut made = vec![0.0; self.rows * a.heads * a.latent_width()];
        for head in 0..a.heads {
            let keys = self.projections(node, head)?.keys;
            for row in 0..self.rows {
                let at = row * a.heads + head;
                let query = &mut made[at * a.latent_width()..(at + 1) * a.latent_width()];
                let q = &nope[at * a.nope..(at + 1) * a.nope];
                for (i, out) in query[..a.kv_lora_rank].iter_mut().enumerate() {
                    // A column of W_UK, because the product is with its transpose.
                    let column: Vec<f32> = (0..a.nope).map(|k| keys[k * a.kv_lora_rank + i]).collect();
                    *out = dot(&column, q);
                }
                query[a.kv_lora_rank..].copy_from_slice(&rope[at * a.rope..(at + 1) * a.rope]);
            }
        }
        self.set(node, 0, made);
        Ok(())
    }

    /// Attention in latent space. All heads read the same row of each token; its first kv_lora
    /// elements are both a part of the key and the value.
    pub(super) fn attend_latent(&mut self, node: &Node) -> Result<(), BackendError> {
        let Some(layer) = node.kv_layer else { return internal("attention without a KV layer".into()) };
        let (a, queries) = (self.config.attention, self.input(node, 0)?.clone());
        let latent = a.kv_lora_rank;
        let mut made = vec![0.0; self.rows * a.heads * latent];
        for span in self.spans(node.path) {
            for row in span.rows.clone() {
                let position = self.batch.positions[row];
                let cached: Vec<&[f32]> = self
                    .attended(node, row)
                    .map(|at| self.kv.row(self.first_kv_layer + layer.0, slot(&span.block_table, at)))
                    .collect();
                for head in 0..a.heads {
                    let at = row * a.heads + head;
                    let q = &queries[at * a.latent_width()..(at + 1) * a.latent_width()];
                    let score = |k: &&[f32]| match node.op {
                        // Two sums that are rounded separately, as in DeepSeek's published code.
                        Op::AttendSeparate => {
                            dot(&q[..latent], &k[..latent]) + dot(&q[latent..], &k[latent..])
                        }
                        _ => dot(q, k),
                    };
                    let weights = softmax(cached.iter().map(score), self.score_scale(position));
                    let values = cached.iter().map(|row| &row[..latent]);
                    weighted_sum(&weights, values, &mut made[at * latent..(at + 1) * latent]);
                }
            }
        }
        self.set(node, 0, made);
        Ok(())
    }

    /// W_UV · mixed latent of every head. This is the weighted sum of the values, because W_UV is
    /// the same for all tokens.
    pub(super) fn project_value(&mut self, node: &Node) -> Result<(), BackendError> {
        let (a, mixed) = (self.config.attention, self.input(node, 0)?.clone());
        let mut made = vec![0.0; self.rows * a.heads * a.v];
        for head in 0..a.heads {
            let values = self.projections(node, head)?.values;
            for row in 0..self.rows {
                let at = row * a.heads + head;
                let latent = &mixed[at * a.kv_lora_rank..(at + 1) * a.kv_lora_rank];
                made[at * a.v..(at + 1) * a.v].copy_from_slice(&product(&values, latent));
            }
        }
        self.set(node, 0, made);
        Ok(())
    }

    /// Attention to keys and values of each head. Depending on the KV layer, these are expanded
    /// from latents or read as they were stored.
    pub(super) fn attend_expanded(&mut self, node: &Node) -> Result<(), BackendError> {
        let Some(layer) = node.kv_layer else { return internal("attention without a KV layer".into()) };
        let a = self.config.attention;
        let (nope, rope) = (self.input(node, 0)?.clone(), self.input_at(node, "q_rope")?);
        let expanded = self.ir().kv_layers[layer.0].kind == KvLayerKind::Expanded;
        let mut made = vec![0.0; self.rows * a.heads * a.v];
        for span in self.spans(node.path) {
            for head in 0..a.heads {
                let projections = self.projections(node, head)?;
                // Rows of this step are already in the cache: a plan stores before it attends.
                let rows = (0..span.first + span.rows.len()).map(|at| {
                    let row = self.kv.row(self.first_kv_layer + layer.0, slot(&span.block_table, at));
                    if expanded {
                        let head = &row[head * (a.nope + a.rope + a.v)..][..a.nope + a.rope + a.v];
                        return (head[..a.nope + a.rope].to_vec(), head[a.nope + a.rope..].to_vec());
                    }
                    let (latent, key) = row.split_at(a.kv_lora_rank);
                    (
                        [&product(&projections.keys, latent), key].concat(),
                        product(&projections.values, latent),
                    )
                });
                let rows: Vec<(Vec<f32>, Vec<f32>)> = rows.collect();
                for row in span.rows.clone() {
                    let (at, position) = (row * a.heads + head, self.batch.positions[row]);
                    let q = [&nope[at * a.nope..(at + 1) * a.nope], &rope[at * a.rope..(at + 1) * a.rope]]
                        .concat();
                    let attended: Vec<_> = self.attended(node, row).map(|at| &rows[at]).collect();
                    let weights =
                        softmax(attended.iter().map(|(key, _)| dot(&q, key)), self.score_scale(position));
                    let values = attended.iter().map(|(_, value)| &value[..]);
                    weighted_sum(&weights, values, &mut made[at * a.v..(at + 1) * a.v]);
                }
            }
        }
        self.set(node, 0, made);
        Ok(())
    }

    /// The factor on the scores of a query at this position.
    fn score_scale(&self, position: usize) -> f64 {
        let a = &self.config.attention;
        a.softmax_scale * a.temperature.map_or(1.0, |temperature| temperature.factor(position))
    }
}

/// W · x, where `rows` are the rows of W.
fn product(rows: &[f32], x: &[f32]) -> Vec<f32> {
    rows.chunks_exact(x.len()).map(|row| dot(row, x)).collect()
}

/// The softmax of scale · score.
fn softmax(scores: impl Iterator<Item = f32>, scale: f64) -> Vec<f64> {
    let scores: Vec<f64> = scores.map(|score| f64::from(score) * scale).collect();
    // The largest score is subtracted so that no power overflows. The quotients stay the same.
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

/// Writes Σ weight · value to `out`. Sums are kept in f64, so that rounding is negligible next to
/// that of the backends that are compared with this one.
fn weighted_sum<'v>(weights: &[f64], values: impl Iterator<Item = &'v [f32]>, out: &mut [f32]) {
    let mut sums = vec![0.0; out.len()];
    for (weight, value) in weights.iter().zip(values) {
        sums.iter_mut().zip(value).for_each(|(sum, value)| *sum += weight * f64::from(*value));
    }
    out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum as f32);
}
