//! Ranks known circuits by their similarity to an unknown model: keys and their values, names of
//! tensors, and dimensions.

use super::fill_missing;
use crate::circuit::{Circuit, HF_PREFIXES, TensorNaming};
use crate::config::{ArchitectureProfile, MetadataKeys, MetadataValue, OutlineFile, profiles};
use latent_formats::Outline;
use serde::Serialize;
use std::collections::BTreeMap;

/// The similarity of a model to a known one.
#[derive(Clone, Debug, Serialize)]
pub struct Similarity {
    /// `general.architecture` or `model_type` of the known one.
    pub name: String,
    /// The circuit that runs it.
    pub circuit: String,
    /// From 0 to 1: the mean of those fractions below that can be compared. 1 means that no
    /// difference was found.
    pub score: f64,
    /// Keys of the known one: how many the model has, and their total.
    pub keys: (usize, usize),
    /// Keys of the known one that the model lacks.
    pub keys_missing: Vec<String>,
    /// Keys with a word or a flag that select a computation (activation, router, biases, kind of
    /// scaling): how many agree with the known one, and their total. Unreadable values count too.
    pub choices: (usize, usize),
    /// Keys that select another computation, with their values.
    pub choices_other: Vec<String>,
    /// Keys of the model: how many are read for the known one, and their total.
    pub read: (usize, usize),
    /// Weight slots of the circuit: how many the model's tensors fill, and their total.
    pub slots: (usize, usize),
    /// Kinds of tensors of the model: how many have a slot in the circuit, and their total.
    pub tensors: (usize, usize),
    /// Kinds of tensors without a slot.
    pub tensors_unknown: Vec<String>,
    /// Filled slots: how many agree with the residual stream's width, and how many could be
    /// compared.
    pub dimensions: (usize, usize),
}

/// Known models of this kind of file, the most similar first.
pub(super) fn rank(outline: &Outline, naming: TensorNaming, architecture: &str) -> Vec<Similarity> {
    let keys = OutlineFile(outline);
    let patterns = patterns(outline, naming);
    let mut list: Vec<Similarity> = profiles(naming == TensorNaming::Gguf)
        .iter()
        .filter_map(|profile| {
            let circuit = Circuit::named(profile.circuit).ok()?;
            // The keys of a vision-language model's text part.
            let nested = matches!(keys.field("text_config"), Some(MetadataValue::Object(_)));
            let spelled = |key: &str| match naming {
                TensorNaming::Gguf => format!("{architecture}.{key}"),
                TensorNaming::HuggingFace if nested => format!("text_config.{key}"),
                TensorNaming::HuggingFace => key.to_owned(),
            };
            let lacks = |key: &&&str| !keys.mentions(&spelled(key));
            let missing: Vec<String> =
                profile.keys.iter().filter(lacks).map(|key| (*key).to_owned()).collect();
            let read = fill_missing::read_as(outline, naming, Some(profile.name));
            let other = other_choices(profile, &read, &|key| keys.field(&spelled(key)), &spelled);
            // Values out of range are compared too, although they select nothing.
            let compared = read.choices + read.wrong.iter().filter(|(_, chooses)| !chooses).count();
            let mut similarity = Similarity {
                name: profile.name.to_owned(),
                circuit: profile.circuit.to_owned(),
                score: 0.0,
                keys: (profile.keys.len() - missing.len(), profile.keys.len()),
                keys_missing: missing,
                choices: (compared.saturating_sub(other.len()), compared),
                choices_other: other,
                read: (read.asked, read.asked + read.unread.len()),
                slots: (0, 0),
                tensors: (0, patterns.len()),
                tensors_unknown: Vec::new(),
                dimensions: (0, 0),
            };
            similarity.compare(circuit, naming, &patterns);
            similarity.score();
            Some(similarity)
        })
        .collect();
    // Equal scores: the longest common prefix of the names wins, then the order of the profiles.
    let common = |name: &str| name.bytes().zip(architecture.bytes()).take_while(|(a, b)| a == b).count();
    list.sort_by(|a, b| b.score.total_cmp(&a.score).then(common(&b.name).cmp(&common(&a.name))));
    list
}

impl Similarity {
    /// Compares slots with tensors.
    fn compare(&mut self, circuit: &Circuit, naming: TensorNaming, patterns: &BTreeMap<String, Vec<usize>>) {
        let embed =
            if naming == TensorNaming::Gguf { "token_embd.weight" } else { "model.embed_tokens.weight" };
        let hidden = patterns.get(embed).and_then(|shape| shape.last().copied());
        let mut known: Vec<&str> = Vec::new();
        let layers = &circuit.layers;
        let conditional = |block: &str| {
            let mut rules = layers.attention.iter().chain(&layers.feed_forward);
            rules.any(|rule| rule.block == block && !rule.when.is_empty())
        };
        let slots = circuit.blocks.iter().flat_map(|(block, spec)| {
            let conditional = conditional(block);
            spec.weights.values().map(move |slot| (slot, conditional || !slot.when.is_empty()))
        });
        for (spec, conditional) in slots {
            let name = if naming == TensorNaming::Gguf { &spec.gguf } else { &spec.hf };
            let Some(name) = name else { continue };
            known.push(name);
            // Conditional slots are alternatives, so not all of them can be filled.
            if !conditional {
                self.slots.1 += 1;
                self.slots.0 += usize::from(patterns.contains_key(name));
            }
            let Some((shape, hidden)) = patterns.get(name).zip(hidden) else { continue };
            let stacked = usize::from(name.contains("{expert}"));
            if let Some(at) = spec.shape.iter().position(|size| size == "hidden")
                && at >= stacked
            {
                self.dimensions.1 += 1;
                // Only the residual stream's width: other dimensions differ between models of one
                // circuit.
                let agrees =
                    shape.len() + stacked == spec.shape.len() && shape.get(at - stacked) == Some(&hidden);
                self.dimensions.0 += usize::from(agrees);
            }
        }
        let (found, unknown): (Vec<&String>, Vec<&String>) =
            patterns.keys().partition(|name| known.contains(&name.as_str()));
        self.tensors.0 = found.len();
        self.tensors_unknown = unknown.into_iter().cloned().collect();
    }

    fn score(&mut self) {
        // A config.json alone fills no slots, which means nothing.
        let slots = if self.tensors.1 > 0 { self.slots } else { (0, 0) };
        let shares = [self.keys, self.choices, self.read, slots, self.tensors, self.dimensions];
        let shares: Vec<f64> =
            shares.iter().filter(|share| share.1 > 0).map(|share| share.0 as f64 / share.1 as f64).collect();
        self.score = shares.iter().sum::<f64>() / shares.len().max(1) as f64;
    }
}

/// Keys that select another computation than the known model's: unreadable values, and words that
/// its files do not have.
fn other_choices(
    profile: &ArchitectureProfile,
    read: &fill_missing::RecoveredConfig,
    field: &dyn Fn(&str) -> Option<MetadataValue>,
    spelled: &dyn Fn(&str) -> String,
) -> Vec<String> {
    let mut other: Vec<String> = read.wrong.iter().map(|(shown, _)| shown.clone()).collect();
    for (key, known) in &profile.words {
        if let Some(MetadataValue::Text(word)) = field(key)
            && !known.contains(&word.as_str())
        {
            let shown = format!("{} = {}", spelled(key), MetadataValue::Text(word));
            if !other.contains(&shown) {
                other.push(shown);
            }
        }
    }
    other
}

/// Names of tensors with `{layer}` and `{expert}` instead of indices, each with the shape of its
/// first tensor.
pub(super) fn patterns(outline: &Outline, naming: TensorNaming) -> BTreeMap<String, Vec<usize>> {
    let mut patterns = BTreeMap::new();
    for tensor in outline.tensors() {
        let mut name = tensor.name.as_str();
        if naming == TensorNaming::HuggingFace {
            let prefix = HF_PREFIXES.iter().rev().find(|prefix| name.starts_with(**prefix));
            name = &name[prefix.map_or(0, |prefix| prefix.len())..];
        }
        let mut before = "";
        let parts: Vec<&str> = name
            .split('.')
            .map(|part| {
                let number = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
                let shown = match (number, before) {
                    (true, "experts") => "{expert}",
                    (true, _) => "{layer}",
                    _ => part,
                };
                before = part;
                shown
            })
            .collect();
        patterns.entry(parts.join(".")).or_insert_with(|| tensor.shape.clone());
    }
    patterns
}
