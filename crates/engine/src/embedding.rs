//! Embeddings of texts: pooled last hidden states.

use latent_formats::Checkpoint;
use latent_graph::{Stage, stage_index};

/// How the hidden states of a text are pooled into its embedding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// The mean over all tokens, normalized to length 1.
    #[default]
    Mean,
    /// The state of the last token, normalized to length 1.
    Last,
    /// The state of the first token, normalized to length 1.
    First,
    /// The states of all tokens, concatenated, without normalization.
    None,
}

/// The pooled hidden states of rows that have run.
///
/// A hidden state is the residual stream after the last layer and the final norm with its gain. It
/// is the input of `lm_head`, and the `last_hidden_state` of Hugging Face.
#[derive(Clone, Debug, Default)]
pub(crate) struct Embedding {
    pooling: Pooling,
    /// The sum of states, or the selected state. In f64, so that the sum over a long text keeps its
    /// digits.
    pooled: Vec<f64>,
    /// Number of states in the sum.
    count: usize,
    /// All states, without pooling.
    rows: Vec<f32>,
}

impl Embedding {
    pub(crate) fn new(pooling: Pooling) -> Embedding {
        Embedding { pooling, ..Embedding::default() }
    }

    /// Adds rows of the residual stream.
    pub(crate) fn add(&mut self, norm: &FinalNorm, residual: &[f32]) {
        let width = norm.gain.len();
        match self.pooling {
            Pooling::Mean => {
                self.pooled.resize(width, 0.0);
                self.count += residual.len() / width;
                for row in residual.chunks_exact(width) {
                    self.pooled.iter_mut().zip(norm.apply(row)).for_each(|(sum, element)| *sum += element);
                }
            }
            Pooling::Last => {
                if let Some(row) = residual.chunks_exact(width).last() {
                    self.pooled = norm.apply(row).collect();
                }
            }
            Pooling::First => {
                // Only the first chunk of the prompt has the first token.
                if let Some(row) = residual.chunks_exact(width).next().filter(|_| self.pooled.is_empty()) {
                    self.pooled = norm.apply(row).collect();
                }
            }
            Pooling::None => {
                let rows = residual.chunks_exact(width).flat_map(|row| norm.apply(row));
                self.rows.extend(rows.map(|element| element as f32));
            }
        }
    }

    /// The length of the pooled state before its normalization. 1 without pooling.
    pub(crate) fn length(&self) -> f32 {
        match self.pooling {
            Pooling::None => 1.0,
            _ => (self.pooled_length() / self.count.max(1) as f64) as f32,
        }
    }

    fn pooled_length(&self) -> f64 {
        self.pooled.iter().map(|element| element * element).sum::<f64>().sqrt()
    }

    /// The pooled state, normalized to length 1, or zeros if its length is 0. Without pooling, all
    /// states.
    pub(crate) fn values(&self) -> Vec<f32> {
        if self.pooling == Pooling::None {
            return self.rows.clone();
        }
        let length = self.pooled_length();
        // Dividing by 0 would return NaN.
        let factor = if length > 0.0 { length.recip() } else { 0.0 };
        self.pooled.iter().map(|element| (element * factor) as f32).collect()
    }
}

/// The norm before `lm_head`.
#[derive(Clone, Debug)]
pub(crate) struct FinalNorm {
    gain: Vec<f32>,
    eps: f64,
}

impl FinalNorm {
    /// The hidden state of a row of the residual stream.
    fn apply<'a>(&'a self, row: &'a [f32]) -> impl Iterator<Item = f64> + 'a {
        // In f64, like the sum of the states to which these elements are added.
        let squares: f64 = row.iter().map(|element| f64::from(*element).powi(2)).sum();
        let factor = (squares / row.len() as f64 + self.eps).sqrt().recip();
        row.iter().zip(&self.gain).map(move |(element, gain)| f64::from(*element) * factor * f64::from(*gain))
    }

    /// Reads the gain. `None` if these stages have no such norm, or its gain cannot be decoded.
    pub(crate) fn of(checkpoint: &Checkpoint, stages: &[Stage], eps: f64) -> Option<FinalNorm> {
        let mut weights = stages.get(stage_index::LM_HEAD)?.weights().iter();
        let weight = weights.find(|weight| weight.slot == "final_norm")?;
        let tensor = checkpoint.tensor(&weight.parts.first()?.tensor)?;
        let mut gain = vec![0.0; weight.shape.iter().product()];
        latent_quant::decode(tensor.info.ty, tensor.data, &mut gain).ok()?;
        Some(FinalNorm { gain, eps })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_of_normed_rows_has_length_one() {
        let norm = FinalNorm { gain: vec![1.0, 2.0], eps: 0.0 };
        let mut embedding = Embedding::default();
        assert!(embedding.values().is_empty());
        embedding.add(&norm, &[3.0, 3.0, 0.0, 5.0]);
        // The rows become (1, 2) and (0, 2√2).
        let expected = [1.0f64, 2.0 + 8.0f64.sqrt()];
        let length = (expected[0].powi(2) + expected[1].powi(2)).sqrt();
        for (found, expected) in embedding.values().iter().zip(expected) {
            assert!((f64::from(*found) - expected / length).abs() < 1e-6);
        }
    }

    #[test]
    fn other_poolings_take_one_row_or_all_of_them() {
        let norm = FinalNorm { gain: vec![1.0, 2.0], eps: 0.0 };
        let embedded = |pooling| {
            let mut embedding = Embedding::new(pooling);
            // Two steps, the first with two rows.
            embedding.add(&norm, &[3.0, 3.0, 0.0, 5.0]);
            embedding.add(&norm, &[2.0, 0.0]);
            embedding.values()
        };
        let close = |found: Vec<f32>, expected: &[f64]| {
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(expected) {
                assert!((f64::from(*found) - expected).abs() < 1e-6, "{found} {expected}");
            }
        };
        close(embedded(Pooling::First), &[5.0f64.sqrt().recip(), 2.0 / 5.0f64.sqrt()]);
        close(embedded(Pooling::Last), &[1.0, 0.0]);
        close(embedded(Pooling::None), &[1.0, 2.0, 0.0, 8.0f64.sqrt(), 2.0f64.sqrt(), 0.0]);
    }
}
