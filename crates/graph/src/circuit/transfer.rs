//! Maps the tensors of a file to those of the same model in the other kind of file (GGUF or
//! safetensors): names, shapes and origins.

use super::block::{BlockKind, SlotSpec};
use super::form::Circuit;
use super::pattern::{fits, renamed};
use super::vars::ConfigVars;
use super::weights::{TensorIndex, WeightPart};
use crate::config::ModelConfig;
use crate::error::GraphError;
use crate::naming::{HF_PREFIXES, TensorNaming};
use std::collections::{BTreeMap, HashSet};

/// A tensor of the target file.
#[derive(Clone, Debug, PartialEq)]
pub struct Transfer {
    pub name: String,
    /// Its shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// The tensors that it is computed from.
    pub from: TensorOrigin,
}

/// The origin of a tensor of the target file.
#[derive(Clone, Debug, PartialEq)]
pub enum TensorOrigin {
    /// Tensors one after another: one, or one per index of the outermost dimension.
    Stacked(Vec<WeightPart>),
    /// One matrix of a stacked tensor.
    Matrix {
        part: WeightPart,
        /// Index of the matrix.
        index: usize,
    },
    /// W_UK of a `kv_b`: the first `nope` rows of each head, transposed.
    Uk(WeightPart),
    /// W_UV of a `kv_b`: the last `v` rows of each head.
    Uv(WeightPart),
    /// Decay rates, from their logarithms.
    Rates {
        part: WeightPart,
        /// Whether the rates are negated (Kimi-Linear).
        negative: bool,
    },
    /// Logarithms of decay rates, from rates of either sign.
    LogRates(WeightPart),
    /// The queries of a matrix that computes queries and output gates from two latents (A.X-K2):
    /// the first rows of each head, and the first half of each row.
    Queries(WeightPart),
    /// The gates of such a matrix: the last `v` rows of each head, and the second half of each row.
    Gates(WeightPart),
    /// Such a matrix from two. Queries get zeros for the second latent, and gates for the first.
    QueriesAndGates { queries: WeightPart, gates: WeightPart },
    /// A `kv_b`: for each head the rows of W_UK, which is stored transposed, then those of W_UV.
    Joined {
        /// `k_b`.
        uk: WeightPart,
        /// `v_b`.
        uv: WeightPart,
    },
}

/// The mapping of all tensors of a file.
#[derive(Debug, Default)]
pub struct Transfers {
    /// The tensors of the target file, in its order.
    pub tensors: Vec<Transfer>,
    /// Tensors without a place in the target file, with the reason.
    pub dropped: Vec<(String, String)>,
    /// Tensors that the circuit does not declare.
    pub unknown: Vec<String>,
}

impl Circuit {
    /// Maps the tensors of the file `index` to a file of the other kind. `source` is the model's
    /// config, and `target` the same config for the target file, which may store W_UK and W_UV
    /// differently.
    pub fn transfers(
        &self,
        source: &ModelConfig,
        target: &ModelConfig,
        index: &dyn TensorIndex,
    ) -> Result<Transfers, GraphError> {
        let stacked = target.moe.is_some_and(|moe| moe.fused_gate_up);
        let mut sorting = TransferSorter {
            circuit: self,
            configs: [source, target],
            index,
            stacked,
            read: HashSet::new(),
            found: Transfers::default(),
        };
        // Embedding, layers, head: the order of the target file.
        let of_kind = |kind| self.model_blocks().filter(move |(_, block)| block.kind == kind);
        for (name, block) in of_kind(BlockKind::Embed) {
            sorting.slots(name, &block.weights, None)?;
        }
        for (layer, made_of) in self.layer_specs(source)?.iter().enumerate() {
            for name in made_of.blocks() {
                if let Some(block) = self.blocks.get(name) {
                    sorting.slots(name, &block.weights, Some(layer))?;
                }
            }
            // MTP layers follow the decoder's. `mtp_weights` belong to the layer, and no block
            // declares them.
            if layer >= source.layers {
                sorting.slots("", &self.mtp_weights, Some(layer))?;
            }
        }
        for (name, block) in of_kind(BlockKind::Head) {
            sorting.slots(name, &block.weights, None)?;
        }
        sorting.rest()?;
        Ok(sorting.found)
    }
}

/// State of the mapping.
struct TransferSorter<'a> {
    circuit: &'a Circuit,
    /// Configs of the source and of the target file.
    configs: [&'a ModelConfig; 2],
    index: &'a dyn TensorIndex,
    /// Whether the safetensors have one tensor for all experts of a layer.
    stacked: bool,
    /// Source tensors that are used.
    read: HashSet<String>,
    found: Transfers,
}

impl TransferSorter<'_> {
    /// Transfers the slots of a block.
    fn slots(
        &mut self,
        block: &str,
        slots: &BTreeMap<String, SlotSpec>,
        layer: Option<usize>,
    ) -> Result<(), GraphError> {
        let [here, there] = self.configs.map(|config| ConfigVars::of(config, layer));
        let circuit = &self.circuit.name;
        for (slot, spec) in slots {
            // Conditions of the target: it may store W_UK and W_UV in another form.
            if !there.hold(&spec.when, circuit)? {
                continue;
            }
            let Some(pattern) = self.pattern(spec) else { continue };
            let shape = there.stored_shape(slot, spec, circuit)?;
            let pattern =
                layer.map_or_else(|| pattern.clone(), |l| pattern.replace("{layer}", &l.to_string()));
            if here.hold(&spec.when, circuit)? && self.names_here(spec) {
                if let Some(weight) = self.circuit.fill((block, slot), layer, &here, self.index)? {
                    self.weight(&pattern, shape, weight.parts);
                }
                continue;
            }
            let mut other = |slot| -> Result<Option<WeightPart>, GraphError> {
                let weight = self.circuit.fill((block, slot), layer, &here, self.index)?;
                // These weights have one tensor each.
                let part = weight.and_then(|weight| weight.parts.into_iter().next());
                part.iter().for_each(|part| note(&mut self.read, part));
                Ok(part)
            };
            let from = match slot.as_str() {
                // Only GGUF has `ssm_a`: rates instead of logarithms, with a sign by architecture.
                "a_rate" => {
                    let negative = self.configs[1].negative_rates();
                    other("a_log")?.map(|part| TensorOrigin::Rates { part, negative })
                }
                "a_log" => other("a_rate")?.map(TensorOrigin::LogRates),
                // A.X-K2: safetensors have one matrix for queries and gates, GGUF has two.
                "q_b" => other("q_gate")?.map(TensorOrigin::Queries),
                "attn_gate" => other("q_gate")?.map(TensorOrigin::Gates),
                "q_gate" => other("q_b")?
                    .zip(other("attn_gate")?)
                    .map(|(queries, gates)| TensorOrigin::QueriesAndGates { queries, gates }),
                // Safetensors always have `kv_b`; GGUF files of most architectures have its halves.
                "k_b" => other("kv_b")?.map(TensorOrigin::Uk),
                "v_b" => other("kv_b")?.map(TensorOrigin::Uv),
                "kv_b" => other("k_b")?.zip(other("v_b")?).map(|(uk, uv)| TensorOrigin::Joined { uk, uv }),
                _ => None,
            };
            if let Some(from) = from {
                self.found.tensors.push(Transfer { name: pattern, shape, from });
            }
        }
        Ok(())
    }

    /// The name of a slot in the target file.
    fn pattern<'s>(&self, spec: &'s SlotSpec) -> Option<&'s String> {
        match self.index.naming() {
            TensorNaming::HuggingFace => spec.gguf.as_ref(),
            TensorNaming::Gguf => spec.hf_stacked.as_ref().filter(|_| self.stacked).or(spec.hf.as_ref()),
        }
    }

    /// Whether the source file's naming has a name for a slot.
    fn names_here(&self, spec: &SlotSpec) -> bool {
        match self.index.naming() {
            TensorNaming::HuggingFace => spec.hf.is_some(),
            TensorNaming::Gguf => spec.gguf.is_some(),
        }
    }

    /// Adds a weight of the target file: one tensor, or one per expert.
    fn weight(&mut self, pattern: &str, shape: Vec<usize>, parts: Vec<WeightPart>) {
        parts.iter().for_each(|part| note(&mut self.read, part));
        if !pattern.contains("{expert}") {
            let from = TensorOrigin::Stacked(parts);
            self.found.tensors.push(Transfer { name: pattern.to_owned(), shape, from });
            return;
        }
        for index in 0..shape[0] {
            let name = pattern.replace("{expert}", &index.to_string());
            let from = match parts.as_slice() {
                [part] => TensorOrigin::Matrix { part: part.clone(), index },
                parts => TensorOrigin::Stacked(parts.get(index).cloned().into_iter().collect()),
            };
            self.found.tensors.push(Transfer { name, shape: shape[1..].to_vec(), from });
        }
    }

    /// Maps the tensors that no slot uses: copied, dropped with a reason, or unknown.
    fn rest(&mut self) -> Result<(), GraphError> {
        let naming = self.index.naming();
        let prefixes: &[&str] = if naming == TensorNaming::HuggingFace { &HF_PREFIXES } else { &[""] };
        let vars = ConfigVars::of(self.configs[0], None);
        let mut left: Vec<_> = self.index.all();
        left.retain(|(name, ..)| !self.read.contains(*name));
        // `all` is unordered; the target file must be the same for every conversion.
        left.sort_unstable_by_key(|(name, ..)| *name);
        for (tensor, _, shape) in left {
            let mut kept = None;
            let mut why = None;
            for spec in &self.circuit.unused {
                let (Some(pattern), other) = (match naming {
                    TensorNaming::Gguf => (&spec.gguf, &spec.hf),
                    TensorNaming::HuggingFace => (&spec.hf, &spec.gguf),
                }) else {
                    continue;
                };
                if !vars.hold(&spec.when, &self.circuit.name)? {
                    continue;
                }
                // Longest prefix first: every name also starts with the empty one.
                let mut names = prefixes.iter().rev().filter_map(|prefix| tensor.strip_prefix(prefix));
                let Some(name) = names.find(|name| fits(pattern, name)) else { continue };
                kept = other.as_ref().and_then(|other| renamed(pattern, other, name));
                why = Some(&spec.why);
                break;
            }
            match (kept, why) {
                (Some(name), _) => {
                    let part = WeightPart { tensor: tensor.to_owned(), scale: None };
                    let from = TensorOrigin::Stacked(vec![part]);
                    self.found.tensors.push(Transfer { name, shape: shape.to_vec(), from });
                }
                (None, Some(why)) => self.found.dropped.push((tensor.to_owned(), why.clone())),
                (None, None) => self.found.unknown.push(tensor.to_owned()),
            }
        }
        Ok(())
    }
}

/// Marks a part and its scales as used.
fn note(read: &mut HashSet<String>, part: &WeightPart) {
    read.insert(part.tensor.clone());
    read.extend(part.scale.clone());
}
