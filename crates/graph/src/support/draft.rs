//! Drafts a circuit for an unknown architecture: the closest known circuit, with notes on what is
//! certain and what is open.

use super::closest::{self, Similarity};
use super::read;
use crate::circuit::{Circuit, DraftNote, DraftState, TensorNaming};
use crate::error::{CircuitError, GraphError};
use crate::tensors::naming_of;
use latent_formats::Outline;

/// The circuit of the most similar known model, renamed. Its notes say for every weight slot,
/// tensor and key whether it is certain, or what is left to find out.
pub fn draft_circuit(outline: &Outline) -> Result<Circuit, GraphError> {
    let naming = naming_of(outline.source());
    let (config, ranked) = read(outline, naming);
    let name = config.architecture;
    let Some(best) = ranked.first() else {
        let problem = "the architecture is known: `latent graph circuit` prints its circuit".to_owned();
        return Err(GraphError::Circuit {
            circuit: name,
            problem: Box::new(CircuitError::Contradiction(problem)),
        });
    };
    let mut circuit = Circuit::named(&best.circuit)?.clone();
    circuit.about = format!("Draft for {name}, from {}: {}", circuit.name, circuit.about);
    circuit.name.clone_from(&name);
    (circuit.gguf_architectures, circuit.hf_model_types) = match naming {
        TensorNaming::Gguf => (vec![name], Vec::new()),
        TensorNaming::HuggingFace => (Vec::new(), vec![name]),
    };
    // The names in slots are resolved already; the scheme would replace them again.
    circuit.hf_names = None;
    let mut notes = vec![DraftNote::open(
        "blocks",
        format!(
            "operations are those of {} ({:.0} % alike): compare each with the model's published code",
            best.name,
            (best.score * 100.0).floor()
        ),
    )];
    of_slots(&circuit, outline, naming, &mut notes);
    of_keys(best, &config.unread, &mut notes);
    circuit.draft = notes;
    Ok(circuit)
}

/// Notes on weight slots and the file's tensors.
fn of_slots(circuit: &Circuit, outline: &Outline, naming: TensorNaming, notes: &mut Vec<DraftNote>) {
    let tensors = closest::patterns(outline, naming);
    if tensors.is_empty() {
        let why = "the file lists no tensors: names and shapes of weights are those of the closest circuit; run `latent check` on the whole model";
        notes.push(DraftNote::open("weights", why.to_owned()));
        return;
    }
    let embed = circuit.blocks.values().filter_map(|block| block.weights.get("embed"));
    let names = |slot: &crate::circuit::SlotSpec| match naming {
        TensorNaming::Gguf => vec![slot.gguf.clone()],
        TensorNaming::HuggingFace => vec![slot.hf.clone(), slot.hf_stacked.clone()],
    };
    let hidden = embed.flat_map(names).flatten().find_map(|name| tensors.get(&name)?.last().copied());
    let mut known = Vec::new();
    for (block, spec) in &circuit.blocks {
        for (slot, spec) in &spec.weights {
            let names: Vec<String> = names(spec).into_iter().flatten().collect();
            let at = format!("blocks.{block}.weights.{slot}");
            let found = names.iter().find_map(|name| tensors.get_key_value(name));
            known.extend(names.iter().cloned());
            let Some((name, shape)) = found else {
                let name = names.first().map_or("a name", String::as_str);
                let when = match &spec.when[..] {
                    [] if spec.optional => " (the slot is optional)".to_owned(),
                    [] => String::new(),
                    when => format!(" (the slot is for models with {})", when.join(", ")),
                };
                let why = format!("no tensor {name}{when}: rename the slot, or remove it with what reads it");
                notes.push(DraftNote::open(&at, why));
                continue;
            };
            let stacked = usize::from(name.contains("{expert}"));
            // The number of dimensions, apart from those of size 1.
            let dimensions = spec.shape.len() == shape.len() + stacked
                || shape.iter().filter(|n| **n != 1).count()
                    == spec.shape.len() - stacked.min(spec.shape.len());
            // Only the residual stream's width is compared. Other sizes differ between models of
            // one circuit.
            let width = spec.shape.iter().position(|size| size == "hidden").filter(|at| *at >= stacked);
            let agrees = match (width, hidden) {
                (Some(at), Some(hidden)) => shape.get(at - stacked) == Some(&hidden),
                _ => true,
            };
            notes.push(if dimensions && agrees {
                DraftNote::certain(&at, format!("{name} has the shape {shape:?}"))
            } else {
                let expected = spec.shape.join(", ");
                DraftNote::open(&at, format!("{name} has the shape {shape:?}, the slot [{expected}]"))
            });
        }
    }
    for (name, shape) in tensors.iter().filter(|(name, _)| !known.contains(name)) {
        let why = format!("{name} {shape:?} has no slot: add one, and the operation that reads it");
        notes.push(DraftNote::open("weights", why));
    }
}

/// Notes on keys that differ from the known model's.
fn of_keys(best: &Similarity, unread: &[String], notes: &mut Vec<DraftNote>) {
    for key in &best.keys_missing {
        let why = format!("{key} is missing, which {} has: find its value or its replacement", best.name);
        notes.push(DraftNote::open("keys", why));
    }
    for choice in &best.choices_other {
        let why = format!("{choice} selects a different computation than that of {}", best.name);
        notes.push(DraftNote::open("keys", why));
    }
    for key in unread {
        notes.push(DraftNote::open("keys", format!("{key} is not read: it may require another operation")));
    }
}

/// Number of open notes of a draft.
pub fn open_notes(circuit: &Circuit) -> usize {
    circuit.draft.iter().filter(|note| note.state == DraftState::Open).count()
}
