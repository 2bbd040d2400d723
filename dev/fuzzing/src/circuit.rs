//! Modified circuits, as `--circuit` would load and run them.

use crate::model::{self, SHAPES};
use crate::source::FuzzSource;
use latent_engine::cache::Sequence;
use latent_engine::{EngineOptions, LogitsRequest, SeqInput};
use latent_formats::Checkpoint;
use latent_graph::activations::Activations;
use latent_graph::circuit::Circuit;
use latent_graph::passes::FORMS;
use latent_graph::{CheckpointTensors, ModelConfig, audit};
use serde_json::Value;
use std::sync::Arc;

/// Words that occur in circuits, and some that do not.
const WORDS: [&str; 41] = [
    "",
    "h",
    "x",
    "embed",
    "rms_norm",
    "linear",
    "bias",
    "split",
    "rope",
    "mla_attention",
    "route",
    "expert_mlp",
    "mlp",
    "add",
    "scale",
    "gather_rows",
    "hidden",
    "heads",
    "kv_lora",
    "rope",
    "nope",
    "v",
    "vocab",
    "kv_lora+rope",
    "heads*(nope+rope)",
    "heads*v",
    "0",
    "-1",
    // From here on, sizes that overflow, divide by zero, nest deeply or do not parse.
    "18446744073709551615",
    "99999999999*99999999999",
    "1/0",
    "(((((((((1)))))))))",
    "a-b",
    "!moe",
    "moe",
    "latent_q",
    "token_embd.weight",
    "blk.{layer}.attn_norm.weight",
    "{expert}",
    "*",
    "attn_norm",
];

/// Changes a built-in circuit in a few places, then reads, audits, draws, plans and loads it for a
/// tiny model and runs two steps. Each of these may fail with an error, but not panic.
pub fn circuit(bytes: &[u8]) {
    let mut source = FuzzSource::new(bytes);
    let shape = source.below(SHAPES.len());
    let checkpoint = model::tiny(shape);
    let Ok(config) = ModelConfig::from_checkpoint(&checkpoint) else { return };
    // Random JSON would almost never be a circuit, so changes start from a valid one.
    let Ok(own) = Circuit::named(&config.circuit) else { return };
    let Ok(mut json) = serde_json::to_value(own) else { return };
    let (form, draws) = (source.below(FORMS.len()), source.once_in(8));
    for _ in 0..1 + source.below(4) {
        change(&mut source, &mut json);
    }
    let Ok(changed) = Circuit::parse(&json.to_string()) else { return };
    let changed = Arc::new(changed);
    inspect(&changed, &config, &checkpoint, draws);
    step(changed, &checkpoint, form);
}

/// Everything that reads a circuit without running it: the audit, the activations, the plan and the
/// drawing.
fn inspect(circuit: &Circuit, config: &ModelConfig, checkpoint: &Arc<Checkpoint>, draws: bool) {
    let tensors = CheckpointTensors(checkpoint);
    let _ = audit::circuit(circuit, config);
    let _ = Activations::of(circuit, config, &tensors);
    let backend = latent_backends::cpu();
    let options = EngineOptions {
        circuit: Some(Arc::new(circuit.clone())),
        max_batch_tokens: Some(32),
        context: Some(128),
        ..EngineOptions::default()
    };
    let Ok(resolved) = options.resolve(&*backend, config) else { return };
    let bind = resolved.options.stages.bind;
    if let Ok(stages) = resolved.stages(config, &tensors) {
        let _ = resolved.audit(config, &tensors, &stages);
    }
    if draws {
        for mtp in [false, true] {
            let options = latent_viz::Options {
                bind,
                max_batch_tokens: 32,
                layers: 0..config.layers,
                assumed: None,
                kernels: true,
                mtp,
            };
            let _ = latent_viz::Drawing::make(circuit, config, &tensors, backend.target(), &options);
        }
    }
}

/// Runs a prompt of three tokens and a decode step.
fn step(circuit: Arc<Circuit>, checkpoint: &Arc<Checkpoint>, form: usize) {
    let (mla, form) = FORMS[form];
    let options = EngineOptions { circuit: Some(circuit), mla, form, ..model::options() };
    let Ok(mut engine) = model::load(checkpoint, &options) else { return };
    let mut sequence = Sequence::default();
    for tokens in [&[256, 5, 99][..], &[7]] {
        let mut items = [SeqInput::tokens(&mut sequence, tokens, LogitsRequest::Last)];
        if engine.step(&mut items, &mut |_, _, _| {}).is_err() {
            break;
        }
    }
    engine.release(sequence);
}

/// Changes a value at a random place of the circuit.
fn change(source: &mut FuzzSource<'_>, whole: &mut Value) {
    // One value to copy, and one place to change.
    let other = descend(source, whole).clone();
    let target = descend(source, whole);
    match source.below(8) {
        0 => *target = other,
        1 => *target = Value::Null,
        2 | 3 => replace_word(source, target),
        4 => {
            if let Value::Array(list) = target {
                let from = list.get(source.below(256) % list.len().max(1)).cloned();
                let at = source.below(list.len() + 1);
                list.extend(from.clone());
                list.insert(at, from.unwrap_or(other));
            } else {
                replace_word(source, target);
            }
        }
        5 => match target {
            Value::Array(list) if !list.is_empty() => drop(list.remove(source.below(list.len()))),
            Value::Object(map) if !map.is_empty() => {
                let key = map.keys().nth(source.below(map.len())).cloned().unwrap_or_default();
                map.remove(&key);
            }
            other => replace_word(source, other),
        },
        6 => match target {
            Value::Array(list) if list.len() > 1 => {
                let (a, b) = (source.below(list.len()), source.below(list.len()));
                list.swap(a, b);
            }
            Value::Object(map) => drop(map.insert((*source.pick(&WORDS)).into(), other)),
            other => replace_word(source, other),
        },
        _ => *target = if source.once_in(2) { source.number().into() } else { source.text().into() },
    }
}

fn replace_word(source: &mut FuzzSource<'_>, target: &mut Value) {
    let word = *source.pick(&WORDS);
    *target = match target {
        Value::Array(_) => Value::from(vec![word]),
        Value::String(text) if source.once_in(2) => format!("{text}{word}").into(),
        _ => word.into(),
    };
}

/// Descends into a value, one choice per level, until a choice says to stop.
fn descend<'v>(source: &mut FuzzSource<'_>, mut at: &'v mut Value) -> &'v mut Value {
    loop {
        let children = match at {
            Value::Array(list) => list.len(),
            Value::Object(map) => map.len(),
            _ => 0,
        };
        if children == 0 || source.is_empty() || source.once_in(6) {
            return at;
        }
        let child = source.below(children);
        at = match at {
            Value::Array(list) => &mut list[child],
            Value::Object(map) => match map.values_mut().nth(child) {
                Some(value) => value,
                None => unreachable!("the child is below the count of children"),
            },
            _ => unreachable!("only lists and objects have children"),
        };
    }
}
