//! Weights with LoRA adapters merged into them: W + scale · factor · B · A, row by row.
//!
//! An adapter changes a matrix; all experts of a tensor (llama.cpp's `…_exps.weight` with matrices per expert); one expert (PEFT's names); or `kv_b`, whose halves
//! the model may store apart.

use crate::error::ConvertError;
use crate::quantize::shape::columns_rows_matrices;
use crate::quantize::weights::{SourceTensor, WeightRowReader, Weights};
use latent_formats::gguf::Metadata;
use latent_formats::identity::{FNV_START, Identity, fnv};
use latent_formats::{AdapterFile, AdapterNaming, LowRankPair, TensorInfo};
use latent_graph::{Circuit, ModelConfig};
use latent_types::TensorType;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// The weights of a model with adapters merged into them.
pub struct MergedWeights<'a> {
    base: &'a dyn Weights,
    tensors: Vec<SourceTensor>,
    /// What is added, by the index of a tensor.
    terms: BTreeMap<usize, Vec<MergedTerm>>,
    identity: Identity,
}

/// B · A times a number, for the rows of one tensor.
struct MergedTerm {
    rows: AdaptedRows,
    /// `[rank, inputs]`, of each matrix.
    a: Vec<f32>,
    /// `[outputs, rank]`, of each matrix.
    b: Vec<f32>,
    rank: usize,
    scale: f64,
}

/// Which rows of a tensor an adapter changes, and by which rows of B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AdaptedRows {
    /// Those of all matrices, each with its own A and B.
    All,
    /// Those of one expert.
    Expert(usize),
    /// W_UK of a `kv_b` with `nope` and `v` rows per head: the tensor holds it transposed.
    Keys { nope: usize, v: usize },
    /// W_UV.
    Values { nope: usize, v: usize },
}

impl<'a> MergedWeights<'a> {
    /// Merges adapters with their scales, in this order. `names` says what a PEFT adapter's tensors are called in GGUF.
    ///
    /// # Errors
    /// A tensor that the model does not have, or that has another shape; one that is quantized, unless `allow_requantize` is set.
    pub fn new(
        base: &'a dyn Weights,
        adapters: &[(AdapterFile, f32)],
        names: &AdapterNames,
        allow_requantize: bool,
    ) -> Result<MergedWeights<'a>, ConvertError> {
        let tensors = base.tensors();
        let index: BTreeMap<&str, usize> =
            tensors.iter().enumerate().map(|(i, tensor)| (tensor.name.as_str(), i)).collect();
        let mut terms: BTreeMap<usize, Vec<MergedTerm>> = BTreeMap::new();
        let mut identity = base.identity();
        for (adapter, scale) in adapters {
            let of_adapter = [adapter.fingerprint().to_le_bytes().as_slice(), &scale.to_le_bytes()].concat();
            identity.sample = fnv(fnv(FNV_START, &identity.sample.to_le_bytes()), &of_adapter);
            for pair in &adapter.pairs {
                let refused = |problem: String| ConvertError::Adapter {
                    path: adapter.path().to_owned(),
                    tensor: pair.target.clone(),
                    problem,
                };
                let (name, expert) = names.gguf(adapter.naming, pair);
                let places = places(&tensors, &index, &name, expert).map_err(refused)?;
                for (at, rows) in places {
                    let tensor = &tensors[at];
                    fits(tensor, rows, pair).map_err(refused)?;
                    if tensor.ty.is_quantized() && !allow_requantize {
                        let (from, to) = (tensor.ty, tensor.kept);
                        return Err(ConvertError::Requantize { tensor: tensor.name.clone(), from, to });
                    }
                    let matrix = |info: &TensorInfo| {
                        let mut numbers = vec![0.0; info.shape.iter().product()];
                        latent_quant::decode(info.ty, adapter.data(info), &mut numbers)?;
                        Ok::<_, ConvertError>(numbers)
                    };
                    terms.entry(at).or_default().push(MergedTerm {
                        rows,
                        a: matrix(&pair.a)?,
                        b: matrix(&pair.b)?,
                        rank: pair.rank(),
                        scale: f64::from(*scale) * pair.factor,
                    });
                }
            }
        }
        Ok(MergedWeights { base, tensors, terms, identity })
    }

    /// How many tensors the adapters change.
    pub fn changed(&self) -> usize {
        self.terms.len()
    }
}

/// Names of tensors in GGUF by those of PEFT.
#[derive(Debug, Default)]
pub struct AdapterNames {
    whole: BTreeMap<String, String>,
    experts: BTreeMap<String, (String, usize)>,
}

impl AdapterNames {
    /// The names of a model's tensors.
    pub fn new(circuit: &Circuit, config: &ModelConfig) -> AdapterNames {
        let whole = circuit.adapter_names(config).into_iter().map(|(gguf, hf)| (hf, gguf)).collect();
        let count = config.moe.map_or(0, |moe| moe.experts);
        let mut experts = BTreeMap::new();
        for (gguf, hf) in circuit.expert_adapter_names(config) {
            for expert in 0..count {
                experts.insert(hf.replace("{expert}", &expert.to_string()), (gguf.clone(), expert));
            }
        }
        AdapterNames { whole, experts }
    }

    /// The tensor in GGUF, and the expert if it is of one.
    fn gguf(&self, naming: AdapterNaming, pair: &LowRankPair) -> (String, Option<usize>) {
        if naming == AdapterNaming::Gguf {
            return (pair.target.clone(), None);
        }
        let plain = pair.plain_target();
        match (self.whole.get(plain), self.experts.get(plain)) {
            (Some(name), _) => (name.clone(), None),
            (_, Some((name, expert))) => (name.clone(), Some(*expert)),
            _ => (pair.target.clone(), None),
        }
    }
}

/// The tensors that an adapter of `name` changes.
fn places(
    tensors: &[SourceTensor],
    index: &BTreeMap<&str, usize>,
    name: &str,
    expert: Option<usize>,
) -> Result<Vec<(usize, AdaptedRows)>, String> {
    if let Some(at) = index.get(name) {
        return Ok(vec![(*at, expert.map_or(AdaptedRows::All, AdaptedRows::Expert))]);
    }
    let half = |half: &str| index.get(name.replace("attn_kv_b", half).as_str()).copied();
    if name.contains("attn_kv_b")
        && let (Some(keys), Some(values)) = (half("attn_k_b"), half("attn_v_b"))
    {
        let ([_, _, nope], [_, v, _]) = (&tensors[keys].shape[..], &tensors[values].shape[..]) else {
            return Err("the halves of kv_b have not three dimensions".into());
        };
        let (nope, v) = (*nope, *v);
        return Ok(vec![(keys, AdaptedRows::Keys { nope, v }), (values, AdaptedRows::Values { nope, v })]);
    }
    Err("the model has no such tensor: is this adapter of another base model?".into())
}

/// Whether A and B have the shapes that the tensor needs.
fn fits(tensor: &SourceTensor, rows: AdaptedRows, pair: &LowRankPair) -> Result<(), String> {
    let (columns, outputs, matrices) = columns_rows_matrices(&tensor.shape);
    let rank = pair.rank();
    let (count, outputs, inputs) = match rows {
        AdaptedRows::All if matrices > 1 => (Some(matrices), outputs, columns),
        AdaptedRows::All => (None, outputs, columns),
        AdaptedRows::Expert(expert) if expert >= matrices => {
            return Err(format!("expert {expert} is not one of the {matrices} of {}", tensor.name));
        }
        AdaptedRows::Expert(_) => (None, outputs, columns),
        AdaptedRows::Keys { nope, v } => (None, matrices * (nope + v), outputs),
        AdaptedRows::Values { nope, v } => (None, matrices * (nope + v), columns),
    };
    let shape = |of: [usize; 2]| count.into_iter().chain(of).collect::<Vec<_>>();
    let (a, b) = (shape([rank, inputs]), shape([outputs, rank]));
    if pair.a.shape == a && pair.b.shape == b {
        return Ok(());
    }
    Err(format!(
        "its matrices A and B have shapes {:?} and {:?}, but {} needs {a:?} and {b:?}: is this adapter of another base model?",
        pair.a.shape, pair.b.shape, tensor.name
    ))
}

impl MergedTerm {
    /// Adds to row `row` of the tensor, counted through its matrices, which have `rows` rows.
    fn add(&self, (row, rows): (usize, usize), sums: &mut [f64]) {
        let (matrix, row, columns, rank) = (row / rows, row % rows, sums.len(), self.rank);
        let (first_a, row_b) = match self.rows {
            AdaptedRows::All => (matrix * rank * columns, matrix * rows + row),
            AdaptedRows::Expert(expert) if expert != matrix => return,
            AdaptedRows::Expert(_) => (0, row),
            AdaptedRows::Values { nope, v } => (0, matrix * (nope + v) + nope + row),
            AdaptedRows::Keys { nope, v } => {
                // column n of latent `row`: row n of the head in B · A, at column `row`
                let inputs = self.a.len() / rank;
                for (n, sum) in sums.iter_mut().enumerate() {
                    let b = &self.b[(matrix * (nope + v) + n) * rank..][..rank];
                    let term = b.iter().enumerate().map(|(k, b)| {
                        f64::from(*b) * f64::from(self.a.get(k * inputs + row).copied().unwrap_or(0.0))
                    });
                    *sum += self.scale * term.sum::<f64>();
                }
                return;
            }
        };
        let a = &self.a[first_a..first_a + rank * columns];
        for (b, a) in self.b[row_b * rank..][..rank].iter().zip(a.chunks_exact(columns)) {
            let factor = self.scale * f64::from(*b);
            sums.iter_mut().zip(a).for_each(|(sum, a)| *sum += factor * f64::from(*a));
        }
    }
}

impl Weights for MergedWeights<'_> {
    fn display_name(&self) -> String {
        self.base.display_name()
    }

    fn path(&self) -> &Path {
        self.base.path()
    }

    fn metadata(&self) -> Result<&Metadata, ConvertError> {
        self.base.metadata()
    }

    fn tensors(&self) -> Vec<SourceTensor> {
        self.tensors.clone()
    }

    fn identity(&self) -> Identity {
        self.identity
    }

    fn rows_together(&self, tensor: usize) -> usize {
        self.base.rows_together(tensor)
    }

    fn rows(&self, tensor: usize) -> Result<Box<dyn WeightRowReader + '_>, ConvertError> {
        let base = self.base.rows(tensor)?;
        let Some(terms) = self.terms.get(&tensor) else { return Ok(base) };
        let (columns, rows, _) = columns_rows_matrices(&self.tensors[tensor].shape);
        Ok(Box::new(MergedRows { base, terms, columns, rows }))
    }
}

/// Rows of a tensor that adapters change.
struct MergedRows<'a> {
    base: Box<dyn WeightRowReader + 'a>,
    terms: &'a [MergedTerm],
    columns: usize,
    rows: usize,
}

impl WeightRowReader for MergedRows<'_> {
    fn read(&self, first: usize, out: &mut [f32]) -> Result<(), ConvertError> {
        self.base.read(first, out)?;
        let mut sums = vec![0.0; self.columns];
        for (row, out) in (first..).zip(out.chunks_exact_mut(self.columns.max(1))) {
            sums.iter_mut().zip(&*out).for_each(|(sum, value)| *sum = f64::from(*value));
            self.terms.iter().for_each(|term| term.add((row, self.rows), &mut sums));
            out.iter_mut().zip(&sums).for_each(|(out, sum)| *out = *sum as f32);
        }
        Ok(())
    }

    fn stored(&self, _ty: TensorType, _rows: Range<usize>) -> Option<Cow<'_, [u8]>> {
        None
    }

    fn release(&self, rows: Range<usize>) {
        self.base.release(rows);
    }
}
