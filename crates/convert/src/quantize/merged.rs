//! Weights with merged LoRA adapters: W + scale · factor · B · A, row by row.
//!
//! An adapter changes one of: a matrix; all experts of a tensor (llama.cpp's `…_exps.weight`, with
//! matrices per expert); one expert (PEFT's names); `kv_b`, whose halves the model may store
//! separately.

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

/// The weights of a model with merged adapters.
pub struct MergedWeights<'a> {
    base: &'a dyn Weights,
    tensors: Vec<SourceTensor>,
    /// Added terms by tensor index.
    terms: BTreeMap<usize, Vec<MergedTerm>>,
    identity: Identity,
}

/// B · A times `scale`, for the rows of one tensor.
struct MergedTerm {
    rows: AdaptedRows,
    /// `[rank, inputs]` per matrix.
    a: Vec<f32>,
    /// `[outputs, rank]` per matrix.
    b: Vec<f32>,
    rank: usize,
    scale: f64,
}

/// Which rows of a tensor an adapter changes, and which rows of B belong to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AdaptedRows {
    /// The rows of all matrices, each with its own A and B.
    All,
    /// The rows of one expert.
    Expert(usize),
    /// W_UK of a `kv_b` with `nope` and `v` rows per head. The tensor stores it transposed.
    Keys { nope: usize, v: usize },
    /// W_UV of such a `kv_b`.
    Values { nope: usize, v: usize },
}

impl<'a> MergedWeights<'a> {
    /// Merges adapters with their scales, in this order. `names` maps PEFT's tensor names to those
    /// of GGUF.
    ///
    /// # Errors
    /// The model lacks a tensor, or it has another shape, or it is quantized and `allow_requantize`
    /// is not set.
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
            // The adapters change the bytes, so they change the fingerprint of a resumable run.
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

    /// Number of tensors that the adapters change.
    pub fn changed(&self) -> usize {
        self.terms.len()
    }
}

/// GGUF tensor names by PEFT names.
#[derive(Debug, Default)]
pub struct AdapterNames {
    whole: BTreeMap<String, String>,
    experts: BTreeMap<String, (String, usize)>,
}

impl AdapterNames {
    /// Collects the names of a model's tensors.
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

    /// The GGUF tensor of a pair, and the expert if the pair adapts only one.
    fn gguf(&self, naming: AdapterNaming, pair: &LowRankPair) -> (String, Option<usize>) {
        // llama.cpp's adapters name the GGUF tensor itself and stack the matrices of all experts.
        if naming == AdapterNaming::Gguf {
            return (pair.target.clone(), None);
        }
        let plain = pair.plain_target();
        match (self.whole.get(plain), self.experts.get(plain)) {
            // No name is in both maps: the second has only names with an expert's number.
            (Some(name), _) => (name.clone(), None),
            (_, Some((name, expert))) => (name.clone(), Some(*expert)),
            // `places` refuses a name that the model lacks.
            _ => (pair.target.clone(), None),
        }
    }
}

/// The tensors that an adapter of `name` changes, by index.
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
    // PEFT adapts `kv_b_proj` as one matrix; GGUF models usually store its halves.
    if name.contains("attn_kv_b")
        && let (Some(keys), Some(values)) = (half("attn_k_b"), half("attn_v_b"))
    {
        let ([_, _, nope], [_, v, _]) = (&tensors[keys].shape[..], &tensors[values].shape[..]) else {
            return Err("the halves of kv_b must have three dimensions".into());
        };
        let (nope, v) = (*nope, *v);
        return Ok(vec![(keys, AdaptedRows::Keys { nope, v }), (values, AdaptedRows::Values { nope, v })]);
    }
    Err("the model has no such tensor: is this adapter of another base model?".into())
}

/// Checks the shapes of A and B against the tensor.
fn fits(tensor: &SourceTensor, rows: AdaptedRows, pair: &LowRankPair) -> Result<(), String> {
    let (columns, outputs, matrices) = columns_rows_matrices(&tensor.shape);
    let rank = pair.rank();
    let (count, outputs, inputs) = match rows {
        // A and B of stacked experts have three dimensions too, with the expert outermost.
        AdaptedRows::All if matrices > 1 => (Some(matrices), outputs, columns),
        AdaptedRows::All => (None, outputs, columns),
        AdaptedRows::Expert(expert) if expert >= matrices => {
            return Err(format!("expert {expert} is not one of the {matrices} of {}", tensor.name));
        }
        AdaptedRows::Expert(_) => (None, outputs, columns),
        // W_UK is stored transposed: its rows are the inputs of `kv_b`.
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
    /// Adds the term to row `row` of the tensor, counted through its matrices of `rows` rows.
    fn add(&self, (row, rows): (usize, usize), sums: &mut [f64]) {
        let (matrix, row, columns, rank) = (row / rows, row % rows, sums.len(), self.rank);
        let (first_a, row_b) = match self.rows {
            AdaptedRows::All => (matrix * rank * columns, matrix * rows + row),
            // The rows of the tensor's other experts stay as they are.
            AdaptedRows::Expert(expert) if expert != matrix => return,
            AdaptedRows::Expert(_) => (0, row),
            // Each head of `kv_b` has its `nope` key rows before its `v` value rows.
            AdaptedRows::Values { nope, v } => (0, matrix * (nope + v) + nope + row),
            AdaptedRows::Keys { nope, v } => {
                // The tensor is transposed: column n of row `row` is element (n, `row`) of the head
                // in B · A.
                let inputs = self.a.len() / rank;
                for (n, sum) in sums.iter_mut().enumerate() {
                    let b = &self.b[(matrix * (nope + v) + n) * rank..][..rank];
                    // `fits` has checked the shapes, so the default is never used.
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

/// Reader of a tensor that adapters change.
struct MergedRows<'a> {
    base: Box<dyn WeightRowReader + 'a>,
    terms: &'a [MergedTerm],
    columns: usize,
    rows: usize,
}

impl WeightRowReader for MergedRows<'_> {
    fn read(&self, first: usize, out: &mut [f32]) -> Result<(), ConvertError> {
        self.base.read(first, out)?;
        // Sum in f64 and round to f32 once, however many terms there are.
        let mut sums = vec![0.0; self.columns];
        for (row, out) in (first..).zip(out.chunks_exact_mut(self.columns.max(1))) {
            sums.iter_mut().zip(&*out).for_each(|(sum, value)| *sum = f64::from(*value));
            self.terms.iter().for_each(|term| term.add((row, self.rows), &mut sums));
            out.iter_mut().zip(&sums).for_each(|(out, sum)| *out = *sum as f32);
        }
        Ok(())
    }

    // The stored bytes lack the adapter's part.
    fn stored(&self, _ty: TensorType, _rows: Range<usize>) -> Option<Cow<'_, [u8]>> {
        None
    }

    fn release(&self, rows: Range<usize>) {
        self.base.release(rows);
    }
}
