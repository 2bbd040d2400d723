//! Kimi Delta Attention (Kimi Linear, arXiv:2510.26692): a recurrence whose state is one matrix per
//! head.

use crate::interpret::{Interpreter, internal, rms_norm, sigmoid, silu};
use crate::products::dot;
use latent_backend::{BackendError, SpanState};
use latent_graph::ir::Node;

/// Added to the square of a head's length, so that a head of zeros is not divided by zero.
const L2_EPS: f64 = 1e-6;

impl Interpreter<'_> {
    /// The layer of the cache whose state a node changes.
    fn state_layer(&self, node: &Node) -> Result<usize, BackendError> {
        match node.kv_layer {
            Some(layer) => Ok(self.first_kv_layer + layer.0),
            None => internal(format!("{} without a state", node.op.word())),
        }
    }

    /// Runs a recurrence over the rows of every span. `advance` updates the state with one row of
    /// the batch.
    fn recurrence(
        &mut self,
        node: &Node,
        mut advance: impl FnMut(&mut [f32], usize),
    ) -> Result<(), BackendError> {
        let layer = self.state_layer(node)?;
        let Some(shape) = node.kv_layer.and_then(|id| self.ir().kv_layers[id.0].state) else {
            return internal(format!("{} changes a layer of rows", node.op.word()));
        };
        for span in &self.batch.spans {
            let Some(SpanState { from, to, kept, .. }) = &span.state else {
                return internal("a span without state".into());
            };
            // A sequence starts with a state of zeros. The state `from` is copied, not changed,
            // because other sequences may continue from it too.
            let zero = || vec![0.0; shape.elements()];
            let mut state = from.map_or_else(zero, |slot| self.kv.state(layer, slot).to_vec());
            for (done, row) in span.rows.clone().enumerate() {
                advance(&mut state, row);
                for (_, slot) in kept.iter().filter(|(rows, _)| *rows == done + 1) {
                    self.kv.state_mut(layer, *slot).copy_from_slice(&state);
                }
            }
            self.kv.state_mut(layer, *to).copy_from_slice(&state);
        }
        Ok(())
    }

    /// y[t] = silu(Σⱼ w[j] · x[t − taps + 1 + j]), for queries, keys and values. The state has the
    /// previous taps − 1 inputs, oldest first: first those of queries, then of keys, then of
    /// values.
    pub(super) fn short_conv(&mut self, node: &Node) -> Result<(), BackendError> {
        let mut inputs = Vec::new();
        let mut weights = Vec::new();
        for (i, (_, id)) in node.weights.iter().enumerate() {
            inputs.push(self.input(node, i)?.clone());
            let weight = self.ir().weight(*id);
            weights.push((self.weights.rows(weight, 0, 0..weight.outputs())?, weight.inputs()));
        }
        let mut made: Vec<Vec<f32>> = inputs.iter().map(|x| vec![0.0; x.len()]).collect();
        self.recurrence(node, |state, row| {
            let parts = state.len() / inputs.len();
            for (((x, (taps, count)), y), past) in
                inputs.iter().zip(&weights).zip(&mut made).zip(state.chunks_exact_mut(parts))
            {
                let channels = taps.len() / count;
                let now = &x[row * channels..(row + 1) * channels];
                for c in 0..channels {
                    let inputs: Vec<f32> =
                        past.chunks_exact(channels).map(|row| row[c]).chain([now[c]]).collect();
                    y[row * channels + c] = silu(dot(&taps[c * count..(c + 1) * count], &inputs));
                }
                // The oldest input makes room for the newest.
                past.rotate_left(channels);
                let last = past.len() - channels;
                past[last..].copy_from_slice(now);
            }
        })?;
        for (i, made) in made.into_iter().enumerate() {
            self.set(node, i, made);
        }
        Ok(())
    }

    /// s · x / √(Σ x² + ε), for each head.
    pub(super) fn l2_norm(&mut self, node: &Node, scale: f64) -> Result<(), BackendError> {
        let width = self.ir().value(node.inputs[0]).width;
        let heads = self.input(node, 0)?.chunks_exact(width);
        let made = heads.flat_map(|head| {
            let squares: f64 = head.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
            let factor = scale / (squares + L2_EPS).sqrt();
            head.iter().map(move |x| (f64::from(*x) * factor) as f32).collect::<Vec<f32>>()
        });
        let made = made.collect();
        self.set(node, 0, made);
        Ok(())
    }

    /// −a · softplus(z + bias), or bound · σ(a · (z + bias)).
    pub(super) fn log_decay(&mut self, node: &Node, bound: Option<f64>) -> Result<(), BackendError> {
        let vector = |i: usize| self.weights.vector(self.ir().weight(node.weights[i].1));
        let (rates, bias) = (vector(0)?, vector(1)?);
        // Some files store ln a, others a, with either sign.
        let log = node.weights[0].0 == "a_log";
        let rate = |head: usize| {
            let rate = f64::from(rates[head]);
            if log { rate.exp() } else { rate.abs() }
        };
        let width = bias.len() / rates.len();
        let made = self.input(node, 0)?.iter().enumerate().map(|(i, z)| {
            let channel = i % bias.len();
            let (z, a) = (f64::from(*z) + f64::from(bias[channel]), rate(channel / width));
            let log_decay = match bound {
                Some(bound) => bound / (1.0 + (-a * z).exp()),
                // softplus(z) = max(z, 0) + ln(1 + e^−|z|), which does not overflow for a large z.
                None => -a * (z.max(0.0) + (-z.abs()).exp().ln_1p()),
            };
            log_decay as f32
        });
        let made = made.collect();
        self.set(node, 0, made);
        Ok(())
    }

    /// S ← diag(e^g) S; u = β · (v − Sᵀk); S ← S + k uᵀ; o = Sᵀq, for each head.
    pub(super) fn delta_rule(&mut self, node: &Node) -> Result<(), BackendError> {
        let shape = self.ir().value(node.inputs[0]);
        let (heads, width) = (shape.heads, shape.width);
        let inputs: Vec<Vec<f32>> = (0..4).map(|i| self.input(node, i).cloned()).collect::<Result<_, _>>()?;
        let beta = self.input(node, 4)?.clone();
        let mut made = vec![0.0; inputs[0].len()];
        self.recurrence(node, |state, row| {
            for (head, s) in state.chunks_exact_mut(width * width).enumerate() {
                let at = (row * heads + head) * width;
                let [q, k, v, g] = [0, 1, 2, 3].map(|i| &inputs[i][at..at + width]);
                for (row, g) in s.chunks_exact_mut(width).zip(g) {
                    row.iter_mut().for_each(|s| *s *= g.exp());
                }
                let column =
                    |s: &[f32], j: usize| -> Vec<f32> { s.chunks_exact(width).map(|row| row[j]).collect() };
                let b = sigmoid(beta[row * heads + head]);
                let u: Vec<f32> = (0..width).map(|j| b * (v[j] - dot(k, &column(s, j)))).collect();
                for (row, k) in s.chunks_exact_mut(width).zip(k) {
                    row.iter_mut().zip(&u).for_each(|(s, u)| *s += k * u);
                }
                for (j, o) in made[at..at + width].iter_mut().enumerate() {
                    *o = dot(q, &column(s, j));
                }
            }
        })?;
        self.set(node, 0, made);
        Ok(())
    }

    /// x / √(mean x² + ε) ⊙ w ⊙ σ(gate), for each head.
    pub(super) fn gated_norm(&mut self, node: &Node) -> Result<(), BackendError> {
        let weight = self.weights.vector(self.ir().weight(node.weights[0].1))?;
        let heads = self.input(node, 0)?.chunks_exact(weight.len());
        let gates = self.input(node, 1)?.chunks_exact(weight.len());
        let eps = self.config.rms_eps;
        let gated = |(x, gate): (&[f32], &[f32])| -> Vec<f32> {
            rms_norm(x, &weight, eps).iter().zip(gate).map(|(x, gate)| x * sigmoid(*gate)).collect()
        };
        let made = heads.zip(gates).flat_map(gated).collect();
        self.set(node, 0, made);
        Ok(())
    }
}
