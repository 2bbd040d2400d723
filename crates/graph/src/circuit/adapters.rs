//! Matrices of LoRA adapters for the weights of a circuit.

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

/// Slots of the matrices in operations.
pub(crate) const LORA_A: &str = "lora_a";
pub(crate) const LORA_B: &str = "lora_b";

/// An adapter, seen as the tensors that it changes.
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
    /// The names in GGUF and in safetensors of every weight of a model that a LoRA adapter may change, layer by layer.
    pub fn adapter_names(&self, config: &ModelConfig) -> Vec<(String, String)> {
        self.names_by_rank(config, 2)
    }

    /// The same of the tensors of routed experts. Those in safetensors have the placeholder `{expert}`, or hold all experts.
    pub fn expert_adapter_names(&self, config: &ModelConfig) -> Vec<(String, String)> {
        self.names_by_rank(config, 3)
    }

    /// The names of weights with `dimensions` dimensions.
    fn names_by_rank(&self, config: &ModelConfig, dimensions: usize) -> Vec<(String, String)> {
        let mut names = Vec::new();
        for block in self.blocks.values() {
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

    /// The matrices of all adapters for a slot of a layer, whose whole shape is `[outputs, inputs]`.
    pub(crate) fn adapters_of(
        &self,
        (block, slot): (&str, &str),
        layer: Option<usize>,
        [outputs, inputs]: [usize; 2],
        tensors: &dyn TensorIndex,
    ) -> Result<Vec<AdapterMatrices>, GraphError> {
        let Some((spec, of_layer)) = self.slot(block, slot) else { return Ok(Vec::new()) };
        let layer = if of_layer { layer } else { None };
        let mut found = Vec::new();
        for (number, adapter) in tensors.adapters().iter().enumerate() {
            let targets = AdapterTargets(adapter);
            let Ok(names) = self.names(spec, slot, layer, &[outputs, inputs], &targets) else { continue };
            let [name] = &names[..] else { continue };
            let Some(pair) = targets.pair(name) else { continue };
            let weight = |slot: &str, tensor: &str, expected: [Option<usize>; 2]| {
                let (ty, shape) = tensors.find(tensor).unwrap_or((TensorType::F32, Vec::new()));
                let fits = shape.len() == 2
                    && shape
                        .iter()
                        .zip(expected)
                        .all(|(found, expected)| expected.is_none_or(|n| n == *found));
                if !fits {
                    let problem = format!(
                        "matrix {} has shape {shape:?}, but the model's tensor is [{outputs}, {inputs}]: is this adapter of another base model?",
                        if slot == LORA_A { "A" } else { "B" }
                    );
                    return Err(refused(adapter, &pair.target, problem));
                }
                let parts = vec![WeightPart { tensor: tensor.to_owned(), scale: None }];
                let of = AdapterWeight { adapter: number, factor: pair.factor };
                let (slot, adapter) = (slot.to_owned(), Some(of));
                Ok(Weight { slot, layer, ty, shape, parts, cut: None, derived: None, adapter })
            };
            let a = weight(LORA_A, &pair.a, [None, Some(inputs)])?;
            let b = weight(LORA_B, &pair.b, [Some(outputs), None])?;
            found.push(AdapterMatrices { a, b });
        }
        Ok(found)
    }
}

/// Checks that the stages with these weights use every matrix of the adapters.
pub(crate) fn check_all_used<'w>(
    weights: impl Iterator<Item = &'w Weight>,
    tensors: &dyn TensorIndex,
    drafting: std::ops::Range<usize>,
) -> Result<(), GraphError> {
    if tensors.adapters().is_empty() {
        return Ok(());
    }
    let used: std::collections::HashSet<&str> =
        weights.filter(|weight| weight.adapter.is_some()).map(Weight::key).collect();
    // layers behind the last one draft tokens, if they are loaded
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
    if has(&["_exps", ".experts."]) {
        "adapters of experts are not applied while a model runs; merge it with `latent quantize --merge-lora`"
            .into()
    } else if has(&["token_embd", "embed_tokens", "word_embeddings"]) {
        "adapters of the embedding are not applied while a model runs; merge it with `latent quantize --merge-lora`".into()
    } else if has(&["attn_k_b", "attn_v_b"]) {
        "adapters of the halves of kv_b are not supported; convert the adapter from PEFT with `latent convert`, which keeps kv_b whole"
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
