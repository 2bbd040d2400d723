//! Rules for tensors: every tensor of the file is used once or declared unused, and every slot is
//! filled once, in its layer and order.

use super::findings::Findings;
use super::rules::Code;
use crate::circuit::{
    Circuit, ConfigVars, DerivedWeight, HF_PREFIXES, LayerGroup, OpSpec, TensorIndex, TensorNaming, Weight,
    fits,
};
use crate::config::ModelConfig;
use crate::ir::{Ir, ModelSpan};
use latent_types::TensorType;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// A tensor that no operation reads, with the declared reason.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct UnusedTensor {
    /// Name of the tensor.
    pub tensor: String,
    /// Why nothing reads it.
    pub why: String,
}

/// A30, A31 and A36: the tensors of the file against the weights of all stages.
pub(super) fn check_file(
    circuit: &Circuit,
    config: &ModelConfig,
    tensors: &dyn TensorIndex,
    irs: &[&Ir],
    found: &mut Findings<'_>,
) {
    let mut stored = AuditedTensors::new(tensors);
    irs.iter().flat_map(|ir| &ir.weights).for_each(|weight| stored.read(weight, found));
    let kept = UnusedAllowance::new(circuit, config, irs);
    for name in stored.unread() {
        if kept.declared(tensors.naming(), name).is_none() {
            found.add(Code::A30, None, Some(format!("tensor {name}")), "nothing reads it".into());
        }
    }
}

/// The tensors of a file that no weight of `irs` uses: those declared unused, and the others, each
/// sorted by name.
pub fn unused(
    circuit: &Circuit,
    config: &ModelConfig,
    tensors: &dyn TensorIndex,
    irs: &[&Ir],
) -> (Vec<UnusedTensor>, Vec<String>) {
    let mut stored = AuditedTensors::new(tensors);
    let mut found = Findings::new("file");
    irs.iter().flat_map(|ir| &ir.weights).for_each(|weight| stored.read(weight, &mut found));
    let kept = UnusedAllowance::new(circuit, config, irs);
    let mut names: Vec<&str> = stored.unread().collect();
    // `TensorIndex::all` is unordered, and reports show these lists.
    names.sort_unstable();
    let (mut unused, mut unread) = (Vec::new(), Vec::new());
    for name in names {
        match kept.declared(tensors.naming(), name) {
            Some(why) => unused.push(UnusedTensor { tensor: name.to_owned(), why }),
            None => unread.push(name.to_owned()),
        }
    }
    (unused, unread)
}

/// The tensors of a file with the weight that reads each.
// MoE checkpoints can have a hundred thousand tensors, and every load checks all of them. So there
// is one table with a fast hash (seeded, because names come from files) and one lookup per weight
// part.
struct AuditedTensors<'a> {
    tensors: Vec<AuditedTensor<'a>>,
    places: HashMap<&'a str, usize, foldhash::fast::RandomState>,
}

/// A tensor and its reader, in one struct so that a lookup reads adjacent memory.
struct AuditedTensor<'a> {
    name: &'a str,
    ty: TensorType,
    shape: &'a [usize],
    elements: usize,
    reader: Option<&'a Weight>,
}

impl<'a> AuditedTensors<'a> {
    fn new(index: &'a dyn TensorIndex) -> AuditedTensors<'a> {
        let tensor = |(name, ty, shape): (&'a str, TensorType, &'a [usize])| AuditedTensor {
            name,
            ty,
            shape,
            elements: shape.iter().product(),
            reader: None,
        };
        let tensors: Vec<AuditedTensor<'_>> = index.all().into_iter().map(tensor).collect();
        let mut places =
            HashMap::with_capacity_and_hasher(tensors.len(), foldhash::fast::RandomState::default());
        places.extend(tensors.iter().enumerate().map(|(i, tensor)| (tensor.name, i)));
        AuditedTensors { tensors, places }
    }

    /// The tensors without a reader.
    fn unread(&self) -> impl Iterator<Item = &'a str> {
        self.tensors.iter().filter(|tensor| tensor.reader.is_none()).map(|tensor| tensor.name)
    }

    /// Marks the tensors of a weight as read. A36 if the file's tensor differs from the weight; A31
    /// if another slot has read it.
    fn read(&mut self, weight: &'a Weight, found: &mut Findings<'_>) {
        // The file has the weight that a derived one comes from.
        let weight = weight.stored();
        if weight.slot == "kv_b"
            && let Some(part) = weight.parts.first()
        {
            // Packed files also contain the derived halves.
            for slot in ["k_b", "v_b"] {
                if let Some(place) = self.places.get(DerivedWeight::name(&part.tensor, slot).as_str()) {
                    self.tensors[*place].reader.get_or_insert(weight);
                }
            }
        }
        let each: usize =
            if weight.parts.len() > 1 { weight.shape[1..].iter().product() } else { weight.elements() };
        for part in &weight.parts {
            let problem = match self.take(weight, &part.tensor, found) {
                None => "it is not in the file".to_owned(),
                Some(tensor) if tensor.ty != weight.ty => {
                    format!("it is stored as {}, but the weight has type {}", tensor.ty, weight.ty)
                }
                Some(tensor) if tensor.elements != each => {
                    format!("its shape is {:?}, but {} has {each} elements", tensor.shape, weight.label())
                }
                Some(_) => continue,
            };
            found.add(Code::A36, weight.layer, Some(format!("tensor {}", part.tensor)), problem);
        }
        for scale in weight.parts.iter().filter_map(|part| part.scale.as_ref()) {
            if self.take(weight, scale, found).is_none() {
                let problem = "the scales are not in the file".into();
                found.add(Code::A36, weight.layer, Some(format!("tensor {scale}")), problem);
            }
        }
    }

    /// Marks a tensor as read by a weight; A31 if another slot has read it.
    fn take(
        &mut self,
        weight: &'a Weight,
        name: &str,
        found: &mut Findings<'_>,
    ) -> Option<&AuditedTensor<'a>> {
        let tensor = &mut self.tensors[*self.places.get(name)?];
        let first = *tensor.reader.get_or_insert(weight);
        // The head of a tied model reads the embedding: one slot, used in two spans.
        if (&first.slot, first.layer) != (&weight.slot, weight.layer) {
            let problem = format!("{} is made of it, but so is slot {}", weight.label(), first.slot);
            found.add(Code::A31, weight.layer, Some(format!("tensor {name}")), problem);
        }
        Some(tensor)
    }
}

/// The name of an adapter's matrix in the adapter's own file.
fn of_adapter(name: &str) -> Option<&str> {
    let (_, name) = name.strip_prefix("adapter.")?.split_once('.')?;
    Some(name.strip_prefix("base_model.model.").unwrap_or(name))
}

/// The declarations that allow tensors to be unused.
struct UnusedAllowance<'a> {
    circuit: &'a Circuit,
    vars: ConfigVars,
    /// MTP layers that do not run.
    layers: Range<usize>,
}

impl<'a> UnusedAllowance<'a> {
    fn new(circuit: &'a Circuit, config: &ModelConfig, irs: &[&Ir]) -> UnusedAllowance<'a> {
        let drafts = irs.iter().flat_map(|ir| &ir.nodes).any(|node| node.layer == Some(config.layers));
        // At most the first MTP layer runs; files may contain more.
        let layers = config.layers + usize::from(drafts)..config.all_layers();
        UnusedAllowance { circuit, vars: ConfigVars::of(config, None), layers }
    }

    /// The reason why no node reads a tensor, if it is declared.
    fn declared(&self, naming: TensorNaming, name: &str) -> Option<String> {
        let prefixes: &[&str] = if naming == TensorNaming::HuggingFace { &HF_PREFIXES } else { &[""] };
        let name = of_adapter(name).unwrap_or(name);
        // Longest prefix first: every name also starts with the empty one.
        prefixes.iter().rev().filter_map(|prefix| name.strip_prefix(prefix)).find_map(|name| {
            let index = |start: &str| name.strip_prefix(start)?.split('.').next()?.parse::<usize>().ok();
            let layer = index("blk.").or_else(|| index("model.layers."));
            if let Some(layer) = layer.filter(|layer| self.layers.contains(layer)) {
                return Some(format!("layer {layer} is an MTP layer, which is kept but not run"));
            }
            self.circuit.unused.iter().find_map(|spec| {
                let pattern = if naming == TensorNaming::Gguf { &spec.gguf } else { &spec.hf };
                let holds = || self.vars.hold(&spec.when, &self.circuit.name).ok();
                let fits = fits(pattern.as_deref()?, name) && holds()?;
                fits.then(|| spec.why.clone())
            })
        })
    }
}

/// A32 to A35 and A37 to A39: weights against nodes, layers and the circuit.
pub(super) fn check_ir(
    ir: &Ir,
    circuit: &Circuit,
    span: &ModelSpan,
    config: &ModelConfig,
    found: &mut Findings<'_>,
) {
    let mut read = vec![false; ir.weights.len()];
    for (n, node) in ir.nodes.iter().enumerate() {
        for (slot, id) in &node.weights {
            let weight = ir.weight(*id);
            read[id.0] = true;
            if weight.slot != *slot {
                let problem = format!("it was filled by {}", weight.label());
                found.at(Code::A34, ir, n, Some(slot.clone()), problem);
            }
            of_layer(ir, n, weight, found);
        }
        if let Some(id) = node.prologue.norm {
            read[id.0] = true;
            of_layer(ir, n, ir.weight(id), found);
        }
        in_order(circuit, ir, n, found);
    }
    let mut filled = HashSet::new();
    for (weight, read) in ir.weights.iter().zip(read) {
        let slot = Some(weight.slot.clone());
        // An unused weight would still be loaded and take memory.
        if !read {
            found.add(Code::A33, weight.layer, slot, "no node uses this weight".into());
            continue;
        }
        if weight.parts.len() != 1 && (weight.shape.len() != 3 || weight.parts.len() != weight.shape[0]) {
            let problem = format!("{} tensors make a weight of shape {:?}", weight.parts.len(), weight.shape);
            found.add(Code::A37, weight.layer, slot.clone(), problem);
        }
        // Several slots of a layer have adapter matrices, all named `lora_a` and `lora_b`.
        let name = if weight.adapter.is_some() { weight.key() } else { weight.slot.as_str() };
        if !filled.insert((name, weight.layer)) {
            found.add(Code::A39, weight.layer, slot, "the slot is filled twice".into());
        }
        // The stored weight of a derived one fills the slot that the circuit names.
        let stored = weight.stored();
        filled.insert((stored.slot.as_str(), stored.layer));
    }
    needed(circuit, span, config, &filled, found);
}

/// A32: a node of a layer uses weights of that layer.
fn of_layer(ir: &Ir, n: usize, weight: &Weight, found: &mut Findings<'_>) {
    if weight.layer.is_some() && weight.layer != ir.nodes[n].layer {
        found.at(Code::A32, ir, n, Some(weight.slot.clone()), format!("the weight is {}", weight.label()));
    }
}

/// A35: weights of a node are in the order of the circuit's operation.
fn in_order(circuit: &Circuit, ir: &Ir, n: usize, found: &mut Findings<'_>) {
    let weights = &ir.nodes[n].weights;
    for pair in weights.windows(2) {
        let mut specs = circuit.blocks.values().flat_map(|block| &block.ops);
        let place = |spec: &OpSpec, i: usize| spec.weights.iter().position(|slot| *slot == pair[i].0);
        // Kernels take weights by position: gate and up swapped would still fit every shape.
        let swapped = specs.any(|spec| place(spec, 0).zip(place(spec, 1)).is_some_and(|(a, b)| a > b));
        if swapped {
            let problem = format!("the circuit lists {} before it", pair[1].0);
            found.at(Code::A35, ir, n, Some(pair[0].0.clone()), problem);
        }
    }
}

/// A38: every slot of an operation in the span whose conditions hold is filled.
fn needed(
    circuit: &Circuit,
    span: &ModelSpan,
    config: &ModelConfig,
    filled: &HashSet<(&str, Option<usize>)>,
    found: &mut Findings<'_>,
) {
    let mut wanted = |block: &str, vars: &ConfigVars, layers: &[Option<usize>]| {
        let holds = |when: &[String]| vars.hold(when, &circuit.name).unwrap_or(false);
        let ops = circuit.blocks.get(block).into_iter().flat_map(|block| &block.ops);
        for slot in ops.filter(|op| holds(&op.when)).flat_map(|op| &op.weights) {
            let Some((spec, of_layer)) = circuit.slot(block, slot) else { continue };
            if spec.optional || !holds(&spec.when) {
                continue;
            }
            for layer in layers {
                let layer = layer.filter(|_| of_layer);
                if !filled.contains(&(slot.as_str(), layer)) {
                    let problem = "its conditions hold, but no node uses it".into();
                    found.add(Code::A38, layer, Some(slot.clone()), problem);
                }
            }
        }
    };
    // Otherwise A80 was reported.
    let Ok(stages) = circuit.stage_pair(span.mtp) else { return };
    let Ok(groups) = circuit.layer_groups(config, span.layers.clone()) else { return };
    // The blocks before and after an MTP layer have weights of that layer.
    let outer_layer = span.mtp.then_some(config.layers);
    let whole = ConfigVars::of(config, outer_layer);
    if span.embed {
        stages.before.iter().for_each(|block| wanted(block, &whole, &[outer_layer]));
    }
    for LayerGroup { layers, vars, spec } in &groups {
        let layers: Vec<Option<usize>> = layers.iter().copied().map(Some).collect();
        spec.blocks().into_iter().for_each(|block| wanted(block, vars, &layers));
    }
    if span.head {
        stages.head_blocks.iter().for_each(|block| wanted(block, &whole, &[outer_layer]));
    }
}
