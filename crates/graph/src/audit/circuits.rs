//! Rules for circuits: blocks, slots, sizes and conditions, for the layers of one config.

use super::findings::Findings;
use super::rules::Code;
use crate::circuit::{Block, Circuit, ConfigVars, LayerGroup, OP_WORDS, OpSpec, SlotSpec};
use crate::config::ModelConfig;
use crate::error::{CircuitError, GraphError};
use crate::ops::{Op, Outputs};
use std::collections::HashMap;

pub(super) fn check(circuit: &Circuit, config: &ModelConfig, found: &mut Findings<'_>) {
    let whole = ConfigVars::of(config, None);
    let model: Vec<(&str, &Block)> = circuit.model_blocks().collect();
    slots(circuit, &model, &whole, found);
    for part in &model {
        block(circuit, *part, &whole, found);
    }
    let decoder = match circuit.decoder() {
        Ok(decoder) => decoder,
        Err(error) => return refused(&error, None, found),
    };
    for stages in [Some(&decoder.main), decoder.mtp.as_ref()].into_iter().flatten() {
        flow(circuit, &stages.before, (&stages.input_names(), stages.residual), found);
        flow(circuit, &stages.head_blocks, (&[stages.head_input], stages.logits), found);
    }
    // Rules depend on a layer's variables only, so one layer per group is enough.
    let groups = match circuit.layer_groups(config, 0..config.layers) {
        Ok(groups) => groups,
        Err(error) => return refused(&error, None, found),
    };
    for LayerGroup { layers, vars, spec } in &groups {
        let blocks: Vec<(&str, &Block)> =
            spec.blocks().into_iter().filter_map(|name| Some((name, circuit.blocks.get(name)?))).collect();
        slots(circuit, &blocks, vars, found);
        for part in &blocks {
            block(circuit, *part, vars, found);
        }
        if let Err(error) = circuit.streams(&spec.attention, layers[0], vars) {
            refused(&error, Some(layers[0]), found);
        }
        flow(circuit, &spec.blocks(), (&[decoder.main.residual], decoder.main.residual), found);
    }
}

/// Reports an error that would also prevent an IR: A81 for the cache, A08 for words and sizes
/// without a value, otherwise A80.
fn refused(error: &GraphError, layer: Option<usize>, found: &mut Findings<'_>) {
    let problem = match error {
        GraphError::Circuit { problem, .. } => Some(&**problem),
        _ => None,
    };
    let code = match problem {
        Some(CircuitError::Cache { .. } | CircuitError::NoStream { .. }) => Code::A81,
        Some(CircuitError::Condition { .. } | CircuitError::Expression { .. }) => Code::A08,
        _ => Code::A80,
    };
    found.add(code, layer, None, error.to_string());
}

/// Whether conditions hold; A08 if one of them is unknown.
fn holds(
    circuit: &Circuit,
    when: &[String],
    vars: &ConfigVars,
    slot: &str,
    found: &mut Findings<'_>,
) -> bool {
    match vars.hold(when, &circuit.name) {
        Ok(holds) => holds,
        Err(error) => {
            found.add(Code::A08, None, Some(slot.to_owned()), error.to_string());
            false
        }
    }
}

/// A08 for sizes, A07 for names of slots that exist together, A06 for slots that exist without an
/// operation that uses them.
fn slots(circuit: &Circuit, blocks: &[(&str, &Block)], vars: &ConfigVars, found: &mut Findings<'_>) {
    let mut names: HashMap<(&str, &str), &str> = HashMap::new();
    let all = blocks.iter().flat_map(|(_, block)| block.weights.iter().map(move |slot| (block, slot)));
    for (block, (slot, spec)) in all {
        if !holds(circuit, &spec.when, vars, slot, found) {
            continue;
        }
        if let Err(error) = vars.shape(slot, spec, &circuit.name) {
            found.add(Code::A08, None, Some(slot.clone()), error.to_string());
        }
        slot_names(slot, spec, block.kind.of_layer(), &mut names, found);
        let holds = |op: &&OpSpec| vars.hold(&op.when, &circuit.name).unwrap_or(false);
        let mut ops = blocks.iter().flat_map(|(_, block)| &block.ops).filter(holds);
        if !ops.any(|op| op.weights.contains(slot)) {
            found.add(Code::A06, None, Some(slot.clone()), "no operation uses it".into());
        }
    }
}

/// A07 for one slot.
fn slot_names<'c>(
    slot: &'c str,
    spec: &'c SlotSpec,
    of_layer: bool,
    names: &mut HashMap<(&'static str, &'c str), &'c str>,
    found: &mut Findings<'_>,
) {
    if spec.gguf.is_none() && spec.hf.is_none() {
        found.add(Code::A07, None, Some(slot.to_owned()), "it has no name in any file format".into());
    }
    for (kind, name) in [("GGUF", &spec.gguf), ("safetensors", &spec.hf)] {
        let Some(name) = name else { continue };
        // Without `{layer}`, every layer would read the same tensor.
        if name.contains("{layer}") != of_layer {
            let problem = format!("its name {name:?} {} {{layer}}", if of_layer { "lacks" } else { "holds" });
            found.add(Code::A07, None, Some(slot.to_owned()), problem);
        }
        if let Some(other) = names.insert((kind, name), slot) {
            let problem = format!("slot {other} has the same name {name:?} in {kind} files");
            found.add(Code::A07, None, Some(slot.to_owned()), problem);
        }
    }
}

/// Number of inputs and outputs of an operation in a circuit. A split has as many outputs as sizes.
fn arity(spec: &OpSpec) -> Option<(usize, usize)> {
    // `mlp` stands for several operations and has no spec.
    if spec.op == "mlp" {
        return Some((1, 1));
    }
    let op = Op::of_circuits(&spec.op)?;
    let outputs = match op.spec().outputs {
        Outputs::Ports(ports) => ports.len(),
        Outputs::PerWeight(_) => 1,
        Outputs::PerPart(_) => spec.sizes.len().max(1),
    };
    Some((op.inputs_of(spec.inputs.len()).count(), outputs))
}

/// A01, A02 and A09 between blocks, which must compute the value `last` from the values `first`.
fn flow(circuit: &Circuit, blocks: &[&str], (first, last): (&[&str], &str), found: &mut Findings<'_>) {
    // Current meaning of each name: the block that produced it, and whether it was read.
    let mut made: HashMap<&str, (&str, bool)> = first.iter().map(|name| (*name, ("", true))).collect();
    for &name in blocks {
        let Some(block) = circuit.blocks.get(name) else { continue };
        for input in &block.inputs {
            match made.get_mut(input.as_str()) {
                Some((_, read)) => *read = true,
                None => {
                    let problem = format!("no earlier block makes its input {input:?}");
                    found.add(Code::A01, None, Some(format!("block {name}")), problem);
                }
            }
        }
        made.extend(block.outputs.iter().map(|out| (out.as_str(), (name, false))));
    }
    // An empty maker is an input of the stage: the result would be the input itself.
    if made.get(last).is_none_or(|(maker, _)| maker.is_empty()) {
        found.add(Code::A09, None, Some(last.to_owned()), format!("no block from {first:?} on makes it"));
    }
    unread(made.into_iter().filter(|(name, _)| *name != last), found);
}

/// A02 for names, each with its producer and whether it was read.
fn unread<'c>(made: impl Iterator<Item = (&'c str, (&'c str, bool))>, found: &mut Findings<'_>) {
    let mut unread: Vec<(&str, &str)> =
        made.filter(|(_, (_, read))| !read).map(|(name, (maker, _))| (name, maker)).collect();
    // A hash map's order would make the findings differ between runs.
    unread.sort_unstable();
    for (name, maker) in unread {
        found.add(Code::A02, None, Some(name.to_owned()), format!("nothing reads what {maker} makes"));
    }
}

/// A01 to A05, A08 and A09 inside a block, from its inputs to its outputs.
fn block(circuit: &Circuit, (name, block): (&str, &Block), vars: &ConfigVars, found: &mut Findings<'_>) {
    // Current meaning of each name: the operation that produced it, and whether it was read.
    let mut made: HashMap<&str, (&str, bool)> =
        block.inputs.iter().map(|input| (input.as_str(), ("the input of the block", false))).collect();
    // Carried values count as read: another layer may be the producer or the reader.
    made.extend(block.carried.iter().map(|value| (value.as_str(), ("an earlier layer", true))));
    let mut ends = vec![false; block.outputs.len()];
    for op in &block.ops {
        let place = format!("{} {:?}", op.op, op.outputs);
        if !holds(circuit, &op.when, vars, &place, found) {
            continue;
        }
        words(circuit, (name, op), vars, &place, found);
        for input in &op.inputs {
            match made.get_mut(input.as_str()) {
                Some((_, read)) => *read = true,
                None => {
                    let problem = format!("it reads {input:?}, which no earlier operation makes");
                    found.add(Code::A01, None, Some(place.clone()), problem);
                }
            }
        }
        for out in &op.outputs {
            // A name may be reused once its earlier value was read.
            if let Some((maker, false)) = made.insert(out, (&op.op, false)) {
                let problem = format!("what {maker} made under this name is never read");
                found.add(Code::A02, None, Some(out.clone()), problem);
            }
            ends.iter_mut()
                .zip(&block.outputs)
                .filter(|(_, last)| *last == out)
                .for_each(|(made, _)| *made = true);
        }
    }
    for (last, _) in block.outputs.iter().zip(ends).filter(|(_, made)| !made) {
        let problem = format!("no operation of block {name} makes it");
        found.add(Code::A09, None, Some(last.clone()), problem);
    }
    let leaves = |value: &str| block.outputs.iter().chain(&block.carried).any(|out| out == value);
    let inner = made.into_iter().filter(|(value, _)| !leaves(value));
    unread(inner, found);
}

/// A03 to A05 for an operation, and A08 for its sizes and factor.
fn words(
    circuit: &Circuit,
    (block, op): (&str, &OpSpec),
    vars: &ConfigVars,
    place: &str,
    found: &mut Findings<'_>,
) {
    let mut add = |code, problem| found.add(code, None, Some(place.to_owned()), problem);
    match arity(op) {
        None => add(Code::A03, format!("{:?} is not one of {}", op.op, OP_WORDS.join(", "))),
        Some((inputs, outputs)) if (op.inputs.len(), op.outputs.len()) != (inputs, outputs) => {
            let problem = format!(
                "it has {} inputs and {} outputs, expected {inputs} and {outputs}",
                op.inputs.len(),
                op.outputs.len()
            );
            add(Code::A04, problem);
        }
        Some(_) => {}
    }
    for slot in op.weights.iter().filter(|slot| circuit.slot(block, slot).is_none()) {
        add(Code::A05, format!("weight slot {slot:?} is not declared"));
    }
    let size = |text: &String| {
        vars.size(text, format_args!("block {block}, split of {:?}", op.inputs), &circuit.name).map(|_| ())
    };
    let sizes = op.heads.iter().chain(&op.sizes).map(size);
    for error in sizes.chain([vars.factor(op, &circuit.name).map(|_| ())]).filter_map(Result::err) {
        add(Code::A08, error.to_string());
    }
}
