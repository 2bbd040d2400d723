//! Fills weight slots with tensors of a file, and checks names, shapes and types.

use super::block::SlotSpec;
use super::form::Circuit;
use super::vars::ConfigVars;
use crate::config::RankShare;
use crate::error::{CircuitError, GraphError};
use crate::naming::{HF_PREFIXES, TensorNaming};
use crate::partition::PartitionError;
use latent_formats::{AttachedAdapter, ScaleGrid, TensorPart};
use latent_types::{Setting, TensorType};

/// The tensors of a file by name. Implemented for checkpoints, and for configs without a file.
pub trait TensorIndex {
    /// How the file names tensors.
    fn naming(&self) -> TensorNaming;
    /// Type and shape (outermost first) of the tensor of this name.
    fn find(&self, name: &str) -> Option<(TensorType, Vec<usize>)>;
    /// Name, type and shape of every tensor, unordered.
    fn all(&self) -> Vec<(&str, TensorType, &[usize])>;
    /// Name of the file in messages.
    fn file(&self) -> String;
    /// Adapters whose matrices are among the tensors.
    fn adapters(&self) -> &[AttachedAdapter] {
        &[]
    }
}

/// A filled weight slot: the tensors that contain the weight.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Weight {
    /// The slot's name in the circuit.
    pub slot: String,
    /// The layer that it belongs to; `None` for weights of the whole model.
    pub layer: Option<usize>,
    /// The format in which it is stored.
    #[serde(serialize_with = "type_name")]
    pub ty: TensorType,
    /// The shape, outermost first: `[experts, outputs, inputs]`, `[outputs, inputs]` or `[width]`.
    pub shape: Vec<usize>,
    /// The tensors: one, or one per index of the outermost dimension.
    pub parts: Vec<WeightPart>,
    /// This rank's share of each dimension of the file's shape; `None` if the rank has the whole
    /// weight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<Vec<RankShare>>,
    /// What the weight is computed from while loading, if no tensor of the file holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub derived: Option<Box<DerivedWeight>>,
    /// The adapter of this matrix; `None` for the model's own weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<AdapterWeight>,
}

/// The adapter of a matrix, and its factor.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct AdapterWeight {
    /// Index of the adapter.
    pub adapter: usize,
    /// alpha / rank, a factor on B · A in addition to the scale of the row's sequence.
    pub factor: f64,
}

/// A weight that is computed while loading. Its only part has a name that the file need not
/// contain.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct DerivedWeight {
    /// The weight of the file: a joined `kv_b` of shape `[heads · (nope + v), kv_lora]`.
    pub from: Weight,
    pub half: KvHalf,
    /// Rows of a head that belong to W_UK.
    pub nope: usize,
    /// Rows of a head that belong to W_UV.
    pub v: usize,
}

impl DerivedWeight {
    /// The name of a derived half in `slot`, as in files with separate halves:
    /// `blk.0.attn_k_b.weight` for `blk.0.attn_kv_b.weight`.
    pub fn name(tensor: &str, slot: &str) -> String {
        match tensor.rfind("kv_b") {
            Some(at) => format!("{}{slot}{}", &tensor[..at], &tensor[at + "kv_b".len()..]),
            None => format!("{tensor}.{slot}"),
        }
    }
}

/// A half of a joined `kv_b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KvHalf {
    /// W_UK, transposed: `[heads, kv_lora, nope]`.
    Uk,
    /// W_UV: `[heads, v, kv_lora]`.
    Uv,
}

/// One tensor of a weight.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct WeightPart {
    /// The tensor's name in the file.
    pub tensor: String,
    /// A tensor of scales that multiply this one: `.scale` of NVFP4 files (one, or one per expert)
    /// or `weight_scale_inv` of FP8 folders (one per matrix, row or block).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<String>,
}

fn type_name<S: serde::Serializer>(ty: &TensorType, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(ty.name())
}

/// The product of dimensions. Saturating, because a user's circuit may have any dimensions. The
/// loader compares sizes with the available memory.
fn product(dimensions: &[usize]) -> usize {
    dimensions.iter().fold(1, |product, dimension| product.saturating_mul(*dimension))
}

impl Weight {
    /// Outputs of one matrix: the second dimension from the inside; 1 for a vector.
    pub fn outputs(&self) -> usize {
        if self.shape.len() < 2 { 1 } else { self.shape[self.shape.len() - 2] }
    }

    /// Inputs: the innermost dimension.
    pub fn inputs(&self) -> usize {
        self.shape.last().copied().unwrap_or(0)
    }

    /// Matrices that are stacked (experts, heads): 1 for a plain matrix.
    pub fn stacked(&self) -> usize {
        if self.shape.len() == 3 { self.shape[0] } else { 1 }
    }

    /// Number of matrices, whether in a tensor each or stacked in one tensor.
    pub fn matrices(&self) -> usize {
        if self.parts.len() > 1 { self.parts.len() } else { self.stacked() }
    }

    /// The name of its first tensor, which identifies the weight within a model.
    pub fn key(&self) -> &str {
        self.parts.first().map_or("", |part| &part.tensor)
    }

    /// The weight in the file: itself, or the weight that it is derived from.
    pub fn stored(&self) -> &Weight {
        self.derived.as_ref().map_or(self, |derived| &derived.from)
    }

    /// Bytes in the file, or of the derived weight.
    pub fn bytes(&self) -> usize {
        let rows = product(&self.shape[..self.shape.len() - 1]);
        self.ty.row_bytes(self.inputs()).unwrap_or(0).saturating_mul(rows)
    }

    pub fn elements(&self) -> usize {
        product(&self.shape)
    }

    /// Whether other ranks have the other inputs. Matmuls with this weight are then terms of a sum
    /// over ranks.
    pub fn gives_terms(&self) -> bool {
        self.shape.len() > 1
            && self.cut.as_ref().and_then(|cut| cut.last()).is_some_and(|share| !share.is_all())
    }

    /// The parts of its tensors and scale tensors that this rank reads. `scale_block` is the block
    /// of an FP8 matrix with one scale: rows and columns.
    pub fn tensor_parts(
        &self,
        index: &dyn TensorIndex,
        scale_block: (usize, usize),
    ) -> Result<Vec<TensorPart>, PartitionError> {
        if let Some(derived) = &self.derived {
            return derived.from.tensor_parts(index, scale_block);
        }
        // Normalized to three dimensions: matrices, rows, columns.
        let mut shares: Vec<RankShare> = match &self.cut {
            Some(cut) => cut.clone(),
            None => self.shape.iter().copied().map(RankShare::all).collect(),
        };
        if self.parts.len() > 1 {
            // One tensor per matrix: `parts` lists only this rank's tensors, so the outer dimension
            // is done.
            shares.remove(0);
        }
        while shares.len() < 3 {
            shares.insert(0, RankShare::all(1));
        }
        let of = |tensor: &str, shares: [RankShare; 3]| TensorPart {
            tensor: tensor.to_owned(),
            whole: shares.map(|share| share.of),
            matrices: shares[0].range(),
            rows: shares[1].range(),
            columns: shares[2].range(),
        };
        let mut parts = Vec::new();
        for part in &self.parts {
            parts.push(of(&part.tensor, [shares[0], shares[1], shares[2]]));
            let Some(scale) = &part.scale else { continue };
            let shape = index.find(scale).map_or(vec![1], |(_, shape)| shape);
            let elements = shape.iter().product();
            let whole = [shares[0].of, shares[1].of, shares[2].of];
            parts.push(match ScaleGrid::of(&shape, whole, scale_block) {
                Some(ScaleGrid::Rows) => of(scale, [shares[0], shares[1], RankShare::all(1)]),
                Some(ScaleGrid::Blocks { .. }) => {
                    let blocks = |share: RankShare, block: usize| {
                        let end = share.range().end;
                        let inside = |at: &usize| !at.is_multiple_of(block) && *at < share.of;
                        if let Some(at) = [share.from, end].into_iter().find(inside) {
                            return Err(PartitionError::ScaleBlock {
                                tensor: part.tensor.clone(),
                                at,
                                block,
                            });
                        }
                        // The cut is at a block border or at the end of the matrix, whose last
                        // block may be partial.
                        let from = share.from / block;
                        Ok(RankShare { from, len: end.div_ceil(block) - from, of: share.of.div_ceil(block) })
                    };
                    let (rows, columns) =
                        (blocks(shares[1], scale_block.0)?, blocks(shares[2], scale_block.1)?);
                    of(scale, [shares[0], rows, columns])
                }
                // One scale per matrix (NVFP4 experts in GGUF), or one for all of them.
                _ if elements == shares[0].of => of(scale, [RankShare::all(1), RankShare::all(1), shares[0]]),
                _ => TensorPart::all(scale, [1, 1, elements]),
            });
        }
        Ok(parts)
    }

    /// `L3.q_b` or `embed`.
    pub fn label(&self) -> String {
        match self.layer {
            Some(layer) => format!("L{layer}.{}", self.slot),
            None => self.slot.clone(),
        }
    }
}

impl Circuit {
    /// Fills the slot that operations of `block` call `slot`. `None` if its conditions do not hold,
    /// or if it is optional and absent.
    pub fn fill(
        &self,
        (block, slot): (&str, &str),
        layer: Option<usize>,
        vars: &ConfigVars,
        index: &dyn TensorIndex,
    ) -> Result<Option<Weight>, GraphError> {
        let Some((spec, of_layer)) = self.slot(block, slot) else {
            let problem = format!("block {block} has no weight slot {slot:?}");
            return Err(self.error(CircuitError::Contradiction(problem)));
        };
        if !vars.hold(&spec.when, &self.name)? {
            return Ok(None);
        }
        let layer = if of_layer { layer } else { None };
        let mut shares = vars.shares(slot, spec, &self.name)?;
        let whole: Vec<usize> = shares.iter().map(|share| share.of).collect();
        let mut names = self.names(spec, slot, layer, &whole, index)?;
        let stacked = names.len() > 1;
        if stacked {
            // One tensor per expert: a rank's share selects names, and the share itself becomes the
            // whole.
            names = names[shares[0].range()].to_vec();
            shares[0] = RankShare::all(shares[0].len);
        }
        // All and not any: an incomplete set of experts is an error, not an absent slot.
        if spec.optional && names.iter().all(|name| index.find(name).is_none()) {
            return Ok(None);
        }
        let part_shape = if stacked { &whole[1..] } else { &whole[..] };
        let mut ty = None;
        let mut parts = Vec::with_capacity(names.len());
        for name in names {
            let found = check_part(&name, part_shape, index)?;
            // One kernel serves all experts of a layer, so they need one format.
            if *ty.get_or_insert(found) != found {
                return Err(GraphError::MixedTypes {
                    file: index.file(),
                    tensor: name,
                    ty: found,
                    first: ty.unwrap_or(found),
                });
            }
            let scale = scale_of(&name, index);
            parts.push(WeightPart { tensor: name, scale });
        }
        // Unreachable: `names` has at least one name.
        let ty = ty.unwrap_or(TensorType::F32);
        let shape = shares.iter().map(|share| share.len).collect();
        let cut = shares.iter().any(|share| !share.is_all()).then_some(shares);
        Ok(Some(Weight { slot: slot.to_owned(), layer, ty, shape, parts, cut, derived: None, adapter: None }))
    }

    /// The names of a slot's tensors in the file.
    pub(super) fn names(
        &self,
        spec: &SlotSpec,
        slot: &str,
        layer: Option<usize>,
        shape: &[usize],
        index: &dyn TensorIndex,
    ) -> Result<Vec<String>, GraphError> {
        let pattern = match index.naming() {
            TensorNaming::Gguf => spec.gguf.as_ref(),
            TensorNaming::HuggingFace => spec.hf.as_ref(),
        };
        let pattern = pattern.ok_or_else(|| GraphError::MissingTensor {
            file: index.file(),
            tensor: slot.to_owned(),
            hint: "this file format has no name for this slot".into(),
        })?;
        let of_layer =
            |name: &String| layer.map_or_else(|| name.clone(), |l| name.replace("{layer}", &l.to_string()));
        let prefixes: &[&str] = if index.naming() == TensorNaming::Gguf { &[""] } else { &HF_PREFIXES };
        // Vision-language models store the language model under a prefix (`language_model.`).
        let found = |first: &str| prefixes.iter().find(|p| index.find(&format!("{p}{first}")).is_some());
        let pattern = of_layer(pattern);
        let first = pattern.replace("{expert}", "0");
        let stacked =
            spec.hf_stacked.as_ref().filter(|_| index.naming() == TensorNaming::HuggingFace).map(of_layer);
        if let Some((prefix, stacked)) = stacked.and_then(|name| Some((found(&name)?, name))) {
            return Ok(vec![format!("{prefix}{stacked}")]);
        }
        // If no tensor exists, the name without a prefix makes the clearest error.
        let prefix = found(&first).copied().unwrap_or("");
        if pattern.contains("{expert}") && shape.len() != 3 {
            let problem = format!(
                "slot {slot:?} has one tensor per expert, so its shape must have three dimensions, not \
                 {shape:?}"
            );
            return Err(self.error(CircuitError::Contradiction(problem)));
        }
        Ok(if pattern.contains("{expert}") {
            (0..shape[0])
                .map(|e| format!("{prefix}{}", pattern.replace("{expert}", &e.to_string())))
                .collect()
        } else {
            vec![format!("{prefix}{pattern}")]
        })
    }
}

/// Checks the shape of a tensor and returns its type. Dimensions of size 1 are ignored: converters
/// store convolutions and rates with and without them.
fn check_part(name: &str, shape: &[usize], index: &dyn TensorIndex) -> Result<TensorType, GraphError> {
    let Some((ty, found)) = index.find(name) else {
        return Err(GraphError::MissingTensor {
            file: index.file(),
            tensor: name.to_owned(),
            hint: match name.contains(".indexer.") {
                true => format!(
                    "it selects the tokens of sparse attention; the file is incomplete or was made without \
                     indexers: use another file, or set {} (the same result up to index_topk tokens)",
                    Setting::SparseAttention.to("off")
                ),
                false => {
                    "the model's hyper-parameters require it: the file is incomplete or its metadata is wrong"
                        .into()
                }
            },
        });
    };
    let without_ones = |shape: &[usize]| shape.iter().copied().filter(|&n| n != 1).collect::<Vec<_>>();
    if found != shape && without_ones(&found) != without_ones(shape) {
        return Err(GraphError::Shape {
            file: index.file(),
            tensor: name.to_owned(),
            found,
            expected: shape.to_vec(),
        });
    }
    Ok(ty)
}

/// The scale tensor of `name`, if the file has one.
fn scale_of(name: &str, index: &dyn TensorIndex) -> Option<String> {
    let stem = name.strip_suffix(".weight");
    let candidates = match index.naming() {
        // NVFP4 files of llama.cpp: `blk.0.attn_q_a.scale` next to `.weight`.
        TensorNaming::Gguf => [stem.map(|s| format!("{s}.scale")), None],
        // FP8 checkpoints as DeepSeek publishes them: `….weight_scale_inv`.
        TensorNaming::HuggingFace => [Some(format!("{name}_scale_inv")), None],
    };
    candidates.into_iter().flatten().find(|candidate| index.find(candidate).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    struct NameIndex(BTreeMap<String, (TensorType, Vec<usize>)>, TensorNaming);

    impl TensorIndex for NameIndex {
        fn naming(&self) -> TensorNaming {
            self.1
        }
        fn find(&self, name: &str) -> Option<(TensorType, Vec<usize>)> {
            self.0.get(name).cloned()
        }
        fn all(&self) -> Vec<(&str, TensorType, &[usize])> {
            self.0.iter().map(|(name, (ty, shape))| (name.as_str(), *ty, shape.as_slice())).collect()
        }
        fn file(&self) -> String {
            "test file".into()
        }
    }

    fn vars() -> ConfigVars {
        ConfigVars::of_dimensions(&[("hidden", 8), ("kv_lora", 4), ("rope", 2)])
    }

    #[test]
    fn a_slot_is_found_under_either_naming_and_its_shape_is_checked() {
        let circuit = Circuit::named("plm").unwrap();
        let tensor = |name: &str, shape: Vec<usize>, naming| {
            NameIndex([(name.to_owned(), (TensorType::F32, shape))].into(), naming)
        };
        let gguf = tensor("blk.3.attn_kv_a_mqa.weight", vec![6, 8], TensorNaming::Gguf);
        let weight = circuit.fill(("mla", "kv_a"), Some(3), &vars(), &gguf).unwrap().unwrap();
        assert_eq!((weight.outputs(), weight.inputs(), weight.bytes()), (6, 8, 192));
        let hf = "language_model.model.layers.3.self_attn.kv_a_proj_with_mqa.weight";
        let prefixed = tensor(hf, vec![6, 8], TensorNaming::HuggingFace);
        assert_eq!(
            circuit.fill(("mla", "kv_a"), Some(3), &vars(), &prefixed).unwrap().unwrap().parts[0].tensor,
            hf
        );
        let wrong = tensor("blk.3.attn_kv_a_mqa.weight", vec![8, 6], TensorNaming::Gguf);
        let message = circuit.fill(("mla", "kv_a"), Some(3), &vars(), &wrong).unwrap_err().to_string();
        assert!(message.contains("[8, 6]") && message.contains("[6, 8]"), "{message}");
        let missing = circuit.fill(("mla", "kv_a"), Some(2), &vars(), &gguf).unwrap_err().to_string();
        assert!(missing.contains("blk.2.attn_kv_a_mqa.weight"), "{missing}");
    }
}
