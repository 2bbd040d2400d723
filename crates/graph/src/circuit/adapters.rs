//! LoRA adapter matrices for the weights of a circuit.

use super::form::Circuit;
use super::weights::{AdapterWeight, TensorIndex, Weight, WeightPart};
use crate::config::ModelConfig;
use crate::error::GraphError;
use crate::naming::TensorNaming;
use latent_formats::{AdapterNaming, AttachedAdapter, AttachedPair};
use latent_types::TensorType;

/// A and B of one adapter for one weight.
pub(crate) struct AdapterMatrices {
    pub a: Weight,
    pub b: Weight,
}

/// Slots of the matrices in operations with one weight.
pub(crate) const LORA_A: &str = "lora_a";
pub(crate) const LORA_B: &str = "lora_b";

/// Slots of the matrices for a weight of routed experts. An operation reads several such weights,
/// so the slot names the weight: see [`adapted_slot`](crate::ops::adapted_slot).
fn expert_slots(slot: &str) -> [String; 2] {
    [LORA_A, LORA_B].map(|side| format!("{slot}_{side}"))
}

/// An adapter as an index of the tensors that it changes, so that `Circuit::names` resolves its
/// naming and prefixes too.
struct AdapterTargets<'a>(&'a AttachedAdapter);

impl AdapterTargets<'_> {
    fn pair(&self, target: &str) -> Option<&AttachedPair> {
        self.0.pairs.iter().find(|pair| pair.target == target)
    }
}

impl TensorIndex for AdapterTargets<'_> {
    fn naming(&self) -> TensorNaming {
        match self.0.naming {
            AdapterNaming::Gguf => TensorNaming::Gguf,
            AdapterNaming::HuggingFace => TensorNaming::HuggingFace,
        }
    }

    fn find(&self, name: &str) -> Option<(TensorType, Vec<usize>)> {
        self.pair(name).map(|_| (TensorType::F32, Vec::new()))
    }

    fn all(&self) -> Vec<(&str, TensorType, &[usize])> {
        self.0.pairs.iter().map(|pair| (pair.target.as_str(), TensorType::F32, &[][..])).collect()
    }

    fn file(&self) -> String {
        self.0.path.display().to_string()
    }
}

impl Circuit {
    /// The names in GGUF and safetensors of every weight that a LoRA adapter may change, layer by
    /// layer.
    pub fn adapter_names(&self, config: &ModelConfig) -> Vec<(String, String)> {
        self.names_by_rank(config, 2)
    }

    /// The same for tensors of routed experts. Safetensors names contain `{expert}`, or are those
    /// of one tensor for all experts.
    pub fn expert_adapter_names(&self, config: &ModelConfig) -> Vec<(String, String)> {
        self.names_by_rank(config, 3)
    }

    /// The names of weights with this number of dimensions.
    fn names_by_rank(&self, config: &ModelConfig, dimensions: usize) -> Vec<(String, String)> {
        let mut names = Vec::new();
        for block in self.blocks.values() {
            // A block outside of layers is visited once; its names have no `{layer}`.
            let layers = if block.kind.of_layer() { 0..config.all_layers() } else { 0..1 };
            for (layer, slot) in
                layers.flat_map(|layer| block.weights.values().map(move |slot| (layer, slot)))
            {
                if let (Some(gguf), Some(hf)) = (&slot.gguf, &slot.hf)
                    && slot.shape.len() == dimensions
                {
                    let of_layer = |name: &str| name.replace("{layer}", &layer.to_string());
                    names.push((of_layer(gguf), of_layer(hf)));
                }
            }
        }
        names
    }

    /// The matrices of all adapters for a slot of a layer. `shape` is the whole shape: `[outputs,
    /// inputs]` or `[experts, outputs, inputs]`.
    pub(crate) fn adapters_of(
        &self,
        (block, slot): (&str, &str),
        layer: Option<usize>,
        shape: &[usize],
        tensors: &dyn TensorIndex,
    ) -> Result<Vec<AdapterMatrices>, GraphError> {
        let Some((spec, of_layer)) = self.slot(block, slot) else { return Ok(Vec::new()) };
        let layer = if of_layer { layer } else { None };
        let mut found = Vec::new();
        for (number, adapter) in tensors.adapters().iter().enumerate() {
            let targets = AdapterTargets(adapter);
            // The adapter's naming convention has no name for this slot, so it cannot change it.
            let Ok(names) = self.names(spec, slot, layer, shape, &targets) else { continue };
            let pairs: Vec<Option<&AttachedPair>> = names.iter().map(|name| targets.pair(name)).collect();
            // Some experts but not all is an error below: the kernel for adapted experts needs a
            // pair for each.
            if pairs.iter().all(Option::is_none) {
                continue;
            }
            let pairs = pairs.into_iter().zip(&names).map(|(pair, name)| {
                let problem = "the adapter changes other experts of the layer, but not this one; merge it with `latent quantize --merge-lora`";
                pair.ok_or_else(|| refused(adapter, name, problem.into()))
            });
            let pairs = pairs.collect::<Result<Vec<_>, _>>()?;
            let [a, b] = AdapterPairs { adapter, number, pairs }.matrices(slot, layer, shape, tensors)?;
            found.push(AdapterMatrices { a, b });
        }
        Ok(found)
    }
}

/// An adapter's pair of matrices for one weight, or one pair per expert.
struct AdapterPairs<'a> {
    adapter: &'a AttachedAdapter,
    /// Index of the adapter.
    number: usize,
    pairs: Vec<&'a AttachedPair>,
}

impl AdapterPairs<'_> {
    /// A and B for a weight of this shape.
    fn matrices(
        &self,
        slot: &str,
        layer: Option<usize>,
        shape: &[usize],
        tensors: &dyn TensorIndex,
    ) -> Result<[Weight; 2], GraphError> {
        let Some((experts, [outputs, inputs])) = shape.split_last_chunk::<2>() else {
            let problem = format!("an adapter of a weight of shape {shape:?}");
            return Err(GraphError::Internal { pass: "build", problem });
        };
        let first = self.pairs[0];
        // Experts are stacked in one tensor, or have a tensor each.
        let stacked: &[usize] = if self.pairs.len() > 1 { &[] } else { experts };
        let slots = if experts.is_empty() { [LORA_A, LORA_B].map(str::to_owned) } else { expert_slots(slot) };
        // The rank is the number of columns of B. A and B of every expert must agree with it.
        let rank = tensors.find(&first.b).and_then(|(_, shape)| shape.last().copied()).unwrap_or(0);
        let weight = |is_a: bool, slot: String| {
            let sizes = if is_a { [rank, *inputs] } else { [*outputs, rank] };
            let expected = [stacked, &sizes].concat();
            let mut parts = Vec::with_capacity(self.pairs.len());
            let mut ty = None;
            for pair in &self.pairs {
                let tensor = if is_a { &pair.a } else { &pair.b };
                let (found, shape) = tensors.find(tensor).unwrap_or((TensorType::F32, Vec::new()));
                if shape != expected {
                    let problem = format!(
                        "matrix {} has shape {shape:?}, but the model's tensor needs {expected:?}: is this adapter of another base model?",
                        if is_a { "A" } else { "B" }
                    );
                    return Err(refused(self.adapter, &pair.target, problem));
                }
                // Experts are multiplied in one grouped operation, so type and factor must agree.
                if *ty.get_or_insert(found) != found || pair.factor != first.factor {
                    let problem = "its matrices differ in type, rank or alpha from those of the layer's \
                                   first expert; merge it with `latent quantize --merge-lora`";
                    return Err(refused(self.adapter, &pair.target, problem.into()));
                }
                parts.push(WeightPart { tensor: tensor.clone(), scale: None });
            }
            let ty = ty.unwrap_or(TensorType::F32);
            let shape = [experts, &sizes].concat();
            let adapter = Some(AdapterWeight { adapter: self.number, factor: first.factor });
            Ok(Weight { slot, layer, ty, shape, parts, cut: None, derived: None, adapter })
        };
        let [slot_a, slot_b] = slots;
        Ok([weight(true, slot_a)?, weight(false, slot_b)?])
    }
}

/// Checks that the stages with these weights use every adapter matrix. An ignored matrix would
/// change the model's answers without a message.
pub(crate) fn check_all_used<'w>(
    weights: impl Iterator<Item = &'w Weight>,
    tensors: &dyn TensorIndex,
    drafting: std::ops::Range<usize>,
) -> Result<(), GraphError> {
    if tensors.adapters().is_empty() {
        return Ok(());
    }
    let used: std::collections::HashSet<&str> = weights
        .filter(|weight| weight.adapter.is_some())
        .flat_map(|weight| &weight.parts)
        .map(|part| part.tensor.as_str())
        .collect();
    // Layers after the last one draft tokens, and are not loaded unless drafts are enabled.
    // The layer's number is the first number in either naming.
    let drafts = |target: &str| {
        let layer = target.split('.').find_map(|word| word.parse::<usize>().ok());
        layer.is_some_and(|layer| drafting.contains(&layer))
    };
    for adapter in tensors.adapters() {
        let unused = |pair: &&AttachedPair| !used.contains(pair.a.as_str()) && !drafts(&pair.target);
        if let Some(pair) = adapter.pairs.iter().find(unused) {
            return Err(refused(adapter, &pair.target, why_unused(&pair.target, tensors)));
        }
    }
    Ok(())
}

fn why_unused(target: &str, tensors: &dyn TensorIndex) -> String {
    let has = |words: &[&str]| words.iter().any(|word| target.contains(word));
    if has(&["token_embd", "embed_tokens", "word_embeddings"]) {
        "adapters of the embedding are not applied while a model runs; merge it with `latent quantize --merge-lora`".into()
    } else if has(&["attn_k_b", "attn_v_b"]) {
        "adapters of the halves of kv_b are not supported; convert the adapter from PEFT with `latent \
         convert`, which does not split kv_b"
            .into()
    } else if tensors.find(target).is_some() {
        "no matmul of the model reads this tensor; remove it from the adapter".into()
    } else {
        "the model has no such tensor: is this adapter of another base model?".into()
    }
}

fn refused(adapter: &AttachedAdapter, target: &str, problem: String) -> GraphError {
    GraphError::Adapter { file: adapter.path.display().to_string(), tensor: target.to_owned(), problem }
}
