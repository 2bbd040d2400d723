//! Circuit files: values, slots, sizes and conditions, for the layers of one config.

use super::findings::Findings;
use super::rules::Code;
use crate::circuit::{Circuit, ConfigVars, OP_WORDS, OpSpec, SlotSpec};
use crate::config::{LayerKind, ModelConfig};
use crate::ops::{MadeBy, Op, Outputs};
use std::collections::{BTreeMap, HashMap};

pub(super) fn check(circuit: &Circuit, config: &ModelConfig, found: &mut Findings<'_>) {
    let whole = ConfigVars::of(config, None);
    slots(circuit, &circuit.model_weights, false, &whole, found);
    run(circuit, &circuit.embed, &whole, ("tokens", "h"), found);
    let mut used = vec![(&circuit.embed, &whole), (&circuit.head, &whole)];
    unused_slots(circuit, &circuit.model_weights, &used, &whole, found);
    for kind in [LayerKind::Dense, LayerKind::Moe] {
        if !config.layer_kinds[..config.layers].contains(&kind) {
            continue;
        }
        let vars = ConfigVars::of(config, Some(kind));
        slots(circuit, &circuit.layer_weights, true, &vars, found);
        run(circuit, &circuit.layer, &vars, ("h", "h"), found);
        used = vec![(&circuit.layer, &vars)];
        unused_slots(circuit, &circuit.layer_weights, &used, &vars, found);
    }
    run(circuit, &circuit.head, &whole, ("h", "logits"), found);
}

/// Whether conditions hold; A08 where a word of them is unknown.
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

/// A08 of sizes, and A07: names of the slots that exist together.
fn slots(
    circuit: &Circuit,
    specs: &BTreeMap<String, SlotSpec>,
    of_layer: bool,
    vars: &ConfigVars,
    found: &mut Findings<'_>,
) {
    let mut names: HashMap<(&str, &str), &str> = HashMap::new();
    for (slot, spec) in specs {
        if !holds(circuit, &spec.when, vars, slot, found) {
            continue;
        }
        if let Err(error) = vars.shape(spec, &circuit.name) {
            found.add(Code::A08, None, Some(slot.clone()), error.to_string());
        }
        if spec.gguf.is_none() && spec.hf.is_none() {
            found.add(Code::A07, None, Some(slot.clone()), "it has a name in no kind of file".into());
        }
        for (kind, name) in [("GGUF", &spec.gguf), ("safetensors", &spec.hf)] {
            let Some(name) = name else { continue };
            if name.contains("{layer}") != of_layer {
                let problem =
                    format!("its name {name:?} {} {{layer}}", if of_layer { "lacks" } else { "holds" });
                found.add(Code::A07, None, Some(slot.clone()), problem);
            }
            if let Some(other) = names.insert((kind, name), slot) {
                let problem = format!("slot {other} is called {name:?} too in {kind} files");
                found.add(Code::A07, None, Some(slot.clone()), problem);
            }
        }
    }
}

/// A06: slots that exist and that no operation uses.
fn unused_slots(
    circuit: &Circuit,
    specs: &BTreeMap<String, SlotSpec>,
    users: &[(&Vec<OpSpec>, &ConfigVars)],
    vars: &ConfigVars,
    found: &mut Findings<'_>,
) {
    for (slot, spec) in specs {
        if !vars.hold(&spec.when, &circuit.name).unwrap_or(false) {
            continue; // A08 has been said
        }
        let uses = |(ops, vars): &(&Vec<OpSpec>, &ConfigVars)| {
            let holds = |op: &&OpSpec| vars.hold(&op.when, &circuit.name).unwrap_or(false);
            ops.iter().filter(holds).any(|op| op.weights.contains(slot))
        };
        if !users.iter().any(uses) {
            found.add(Code::A06, None, Some(slot.clone()), "no operation uses it".into());
        }
    }
}

/// Inputs and outputs of an operation of a circuit; of a split as many outputs as it has sizes.
fn arity(spec: &OpSpec) -> Option<(usize, usize)> {
    // several operations in one word
    if spec.op == "mlp" {
        return Some((1, 1));
    }
    let op =
        Op::ALL.iter().map(Op::spec).find(|op| op.name() == spec.op && op.made_by() == MadeBy::Circuit)?;
    let outputs = match op.outputs() {
        Outputs::Ports(ports) => ports.len(),
        Outputs::PerWeight(_) => 1,
        Outputs::PerPart(_) => spec.sizes.len().max(1),
    };
    Some((op.inputs().len(), outputs))
}

/// A01 to A05, A08 and A09: walks a part of the circuit from value `first` to value `last`.
fn run(
    circuit: &Circuit,
    ops: &[OpSpec],
    vars: &ConfigVars,
    (first, last): (&str, &str),
    found: &mut Findings<'_>,
) {
    // what each name means now: the operation that made it, and whether anything has read it
    let mut made: HashMap<&str, (&str, bool)> = HashMap::from([(first, ("", true))]);
    let mut ends = false;
    for op in ops {
        let place = format!("{} {:?}", op.op, op.outputs);
        if !holds(circuit, &op.when, vars, &place, found) {
            continue;
        }
        words(circuit, op, vars, &place, found);
        for input in &op.inputs {
            match made.get_mut(input.as_str()) {
                Some((_, read)) => *read = true,
                None => {
                    let problem = format!("it reads {input:?}, which nothing has made");
                    found.add(Code::A01, None, Some(place.clone()), problem);
                }
            }
        }
        for out in &op.outputs {
            if let Some((maker, false)) = made.insert(out, (&op.op, false)) {
                let problem = format!("what {maker} made under this name is never read");
                found.add(Code::A02, None, Some(out.clone()), problem);
            }
            ends |= out == last;
        }
    }
    if !ends {
        found.add(Code::A09, None, Some(last.to_owned()), format!("no operation from {first:?} on makes it"));
    }
    let mut unread: Vec<(&str, &str)> = made
        .iter()
        .filter(|(name, (_, read))| !read && **name != last)
        .map(|(n, (op, _))| (*n, *op))
        .collect();
    unread.sort_unstable();
    for (name, maker) in unread {
        found.add(Code::A02, None, Some(name.to_owned()), format!("nothing reads what {maker} makes"));
    }
}

/// A03 to A05, and A08 of an operation's sizes and factor.
fn words(circuit: &Circuit, op: &OpSpec, vars: &ConfigVars, place: &str, found: &mut Findings<'_>) {
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
    for slot in op.weights.iter().filter(|slot| circuit.slot(slot).is_none()) {
        add(Code::A05, format!("weight slot {slot:?} is not declared"));
    }
    let sizes = op.heads.iter().chain(&op.sizes).map(|size| vars.size(size, &circuit.name).map(|_| ()));
    for error in sizes.chain([vars.factor(op, &circuit.name).map(|_| ())]).filter_map(Result::err) {
        add(Code::A08, error.to_string());
    }
}
