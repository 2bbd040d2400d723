//! The reference of operations, `docs/ir.md`, written from the operations' files.

use super::{NodeMaker, Op, Operation, Outputs, PARTIALS, Port, SplitFold};
use std::fmt::Write;

/// What the names in shapes and costs mean.
pub(super) const NAMES: &[(&str, &str)] = &[
    ("rows", "rows of the step: new tokens of all sequences (in the lm_head: rows whose logits are wanted)"),
    ("past_len", "rows that a sequence has in the KV cache before the step"),
    ("kv_len", "past_len + rows: rows that attention reads"),
    ("pairs", "query-key pairs: rows · past_len + rows · (rows + 1) / 2"),
    ("vocab, hidden", "tokens of the vocabulary; elements per residual row"),
    ("width, inputs, outputs", "elements per row; elements that a matrix takes and gives"),
    ("part", "elements per head of a part"),
    ("heads", "query heads"),
    ("splits", "most KV splits of a row, as the target has it"),
    (
        "split rows",
        "rows of the step, where they are few enough that workers share their KV splits; else none",
    ),
    ("nope, rope, v", "elements per head: its key without position, its rotated key, its value"),
    ("kv_lora", "elements per latent"),
    ("ffn", "elements between the projections of an MLP"),
    ("experts, num_experts_per_tok", "routed experts; experts that a row is routed to"),
    (
        "own_experts",
        "routed experts whose weights this rank has: all of them, unless several ranks share the model",
    ),
    ("moe_ffn", "elements between the projections of an expert"),
    (
        "reached",
        "experts that the rows reach if routing is uniform: experts · (1 − (1 − num_experts_per_tok / experts)^rows)",
    ),
    ("weights", "elements of the node's weights"),
    ("weight_bytes", "bytes of the node's weights, as stored"),
    ("row_bytes", "bytes per row of the embedding, as stored"),
    ("expert_weights, expert_bytes", "the same per expert"),
    (
        "kv_row_bytes",
        "bytes per row of the node's KV layer: kv_lora + rope elements (with `int8`, and a scale), or heads · (nope + rope + v)",
    ),
    ("W", "a weight; its rows are outputs"),
    ("⊙", "elementwise product"),
    ("[a | b]", "a and b in one row"),
    ("c, k_rope", "the latent and the rotated key of a token, which the KV cache holds"),
    ("q̃, õ", "a query and an attention result in latent space"),
    ("R(p)", "rotation of each pair of elements by the angles of position p"),
    ("s", "scale of the scores, with YaRN's and the temperature's factors"),
];

/// The whole reference as Markdown: `docs/ir.md`.
pub fn reference_markdown() -> String {
    let mut text = INTRODUCTION.to_owned();
    text.push_str("\n## Names\n\n| name | meaning |\n|---|---|\n");
    for (name, meaning) in NAMES {
        let _ = writeln!(text, "| {} | {} |", cell(name), cell(meaning));
    }
    text.push_str("\n## All operations\n\n| operation | made by | computes |\n|---|---|---|\n");
    for op in Op::ALL {
        let spec = op.spec();
        let made_by = match spec.made_by() {
            NodeMaker::Circuit => "circuit".to_owned(),
            NodeMaker::CircuitMlp => "circuit, in `mlp`".to_owned(),
            NodeMaker::Pass(pass) => format!("`{pass}`"),
        };
        let word = spec.name();
        let _ = writeln!(text, "| [`{word}`](#{word}) | {made_by} | {} |", cell(spec.reference().formula));
    }
    for op in Op::ALL {
        entry(&mut text, op.spec());
    }
    text
}

/// One operation.
fn entry(text: &mut String, spec: &dyn Operation) {
    let of = spec.reference();
    let _ = write!(text, "\n## {}\n\n{}\n\n    {}\n\n| | |\n|---|---|\n", spec.name(), of.what, of.formula);
    let mut line = |what: &str, about: String| {
        let _ = writeln!(text, "| {what} | {} |", cell(&about));
    };
    line("source", of.source.to_owned());
    let port = |port: &Port| {
        let dtype = if port.dtype == latent_types::ValueType::F32 {
            String::new()
        } else {
            format!(", {}", port.dtype)
        };
        let left_out = if port.optional { ", left out where it has no elements" } else { "" };
        format!("{}: {}{dtype}{}{left_out}", port.name, shown(port.shape), note(port.note))
    };
    spec.inputs().iter().for_each(|input| line("in", port(input)));
    if spec.folds().sum {
        line("in", "residual: rows × outputs, with the epilogue `add`".to_owned());
    }
    if spec.folds().kv_splits == SplitFold::Combines {
        line("in", format!("{}, with the prologue `combined`", port(&PARTIALS)));
    }
    if spec.kv().attends && !spec.kv().layers.is_empty() {
        line("in", format!("(KV layer): {}", spec.kv().row));
    }
    match spec.outputs() {
        Outputs::Ports(ports) => ports.iter().for_each(|output| line("out", port(output))),
        Outputs::PerWeight(each) => {
            line("out", format!("{}, one per weight (with `silu·up` one for both)", port(&each)));
        }
        Outputs::PerPart(each) => line("out", port(&each)),
    }
    if spec.folds().kv_splits == SplitFold::Leaves {
        line("out", format!("{}, with the epilogue `KV splits`", port(&PARTIALS)));
    }
    if spec.kv().stores && !spec.kv().layers.is_empty() {
        line("out", format!("(KV layer): {}", spec.kv().row));
    }
    for slot in spec.slots() {
        line("weight", format!("{}: {}{}", slot.name, shown(slot.shape), note(slot.note)));
    }
    for (what, cost) in [
        ("bytes of weights", of.weight_bytes),
        ("bytes of cache", of.cache_bytes),
        ("FLOPs", of.flops),
        ("bytes to each other rank", of.link_bytes),
    ] {
        if cost != "0" {
            line(what, cost.replace('*', " · ").replace('+', " + "));
        }
    }
}

fn note(note: &str) -> String {
    if note.is_empty() { String::new() } else { format!(", {note}") }
}

/// A shape with the multiplication sign of formulas.
fn shown(shape: &str) -> String {
    shape.replace('*', "·")
}

/// Text in a cell of a table: a bar would end it.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

const INTRODUCTION: &str = "# Operations of the IR

Written from the code (`crates/graph/src/ops`, a file per operation) by a test; another holds every cost below equal to what plans,
drawings and the profiler count. After a change: `UPDATE_DOCS=1 cargo test --release -p latent-graph reference`.

A model's circuit (`crates/graph/circuits/*.json`) names operations; [`Ir::build`](../crates/graph/src/ir/build.rs) makes one node of
each for every layer (an `mlp` becomes two or three matmuls with the activation between, a `route` a matmul and the top-k selection);
passes then lower and fuse them. `latent graph ir` prints the first form of a model, or with `--after PASS` a later one; `latent graph
plan` prints the last.

* A **value** is a matrix of rows × heads × width elements of one dtype: f32, or u32 for ids of tokens and experts. It has a buffer of
  its own, or is a view: a part of another, or the whole of it overwritten. The residual stream and the logits are stored outside of the
  plan's arena.
* An **attention path** says which rows a node works on: all, or the rows of sequences that run absorbed or naive. One plan holds both.
* A **prologue** comes before the operation, on its first input: RMSNorm, or the rotation of its last; `combined`: its first input is
  combined from KV splits, where attention left them.
* An **epilogue** comes after it, before results are stored: `silu·up`, `relu²`, `add` (in place, times a factor); `KV splits`: of a step
  with few rows, the partial results of each split are stored instead.
* A **KV layer** is what one layer keeps in the KV cache per token: `[latent | rope key]`, or expanded keys and values.

Bytes are what has to come from memory in a step, each weight once; values between operations are small and stay in the caches of the
processor. Operations that only pass over rows count as free.
";
