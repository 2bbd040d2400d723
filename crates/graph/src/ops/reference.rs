//! Writes the reference of operations, `docs/ir.md`, from the operations' constants.

use super::{NodeMaker, Op, Operation, Outputs, PARTIALS, Port, SplitFold};
use std::fmt::Write;

/// Meanings of the names in shapes and costs.
pub(super) const NAMES: &[(&str, &str)] = &[
    ("rows", "new tokens of all sequences of the step (in the lm_head: rows whose logits are wanted)"),
    ("past_len", "rows of a sequence in the KV cache before the step"),
    ("kv_len", "past_len + rows: rows that attention reads"),
    ("pairs", "query-key pairs: rows · past_len + rows · (rows + 1) / 2"),
    ("vocab, hidden", "tokens of the vocabulary; elements per residual row"),
    ("width, inputs, outputs", "elements per row; inputs and outputs of a matrix"),
    ("part", "elements per head of a part"),
    ("heads", "query heads"),
    ("splits", "maximum KV splits per row"),
    ("split rows", "rows of the step if few enough to be split among threads, else 0"),
    ("nope, rope, v", "elements per head: key without position, rotated key, value"),
    ("kv_lora", "elements per latent"),
    ("lora_rank", "rank of an adapter"),
    (
        "index_heads, index_width, index_topk",
        "heads of an indexer, elements of each, and tokens that it selects",
    ),
    ("kda_heads, kda_width", "heads of the delta rule; elements per query, key and value of a head"),
    ("taps, past_taps", "tokens that a short convolution sees; the earlier ones"),
    ("sequences", "sequences of the step"),
    ("ffn, moe_ffn", "elements between the projections of an MLP; of an expert"),
    ("experts, num_experts_per_tok", "routed experts; experts per row"),
    ("own_experts", "routed experts of this rank: all, unless several ranks share the model"),
    (
        "reached",
        "experts that uniform routing reaches: experts · (1 − (1 − num_experts_per_tok / experts)^rows)",
    ),
    ("weights, weight_bytes", "elements and stored bytes of the node's weights"),
    ("row_bytes", "stored bytes per row of the embedding"),
    ("expert_weights, expert_bytes", "elements and stored bytes per expert"),
    (
        "kv_row_bytes",
        "bytes per row of the KV layer: kv_lora + rope elements (quantized types: and scales), or heads · (nope + rope + v); bytes of a recurrent state",
    ),
    ("W", "a weight; its rows are outputs"),
    ("⊙", "elementwise product"),
    ("[a | b]", "a and b in one row"),
    ("c, k_rope", "latent and rotated key of a token"),
    ("q̃, õ", "query and attention result in latent space"),
    ("R(p)", "rotation of pairs of elements by the angles of position p"),
    ("s", "scale of the scores, with the factors of YaRN and of the temperature"),
];

/// Maximum columns of a line of prose.
const COLUMNS: usize = 100;

/// The reference as Markdown: `docs/ir.md`.
pub fn reference_markdown() -> String {
    let mut text = INTRODUCTION.to_owned();
    text.push_str("\n## Names\n\n| name | meaning |\n|---|---|\n");
    for (name, meaning) in NAMES {
        let _ = writeln!(text, "| {} | {} |", cell(name), cell(meaning));
    }
    for op in Op::ALL {
        entry(&mut text, op.spec());
    }
    list(&mut text, "Sources", Op::ALL.iter().map(|op| op.reference().source.to_owned()));
    text
}

/// Writes a section that lists distinct properties with their operations.
fn list(text: &mut String, title: &str, of_each: impl Iterator<Item = String>) {
    let _ = writeln!(text, "\n## {title}\n");
    let mut items: Vec<(String, Vec<String>)> = Vec::new();
    for (op, item) in Op::ALL.iter().zip(of_each) {
        let word = format!("`{}`", op.word());
        match items.iter_mut().find(|(known, _)| *known == item) {
            Some((_, words)) => words.push(word),
            None => items.push((item, vec![word])),
        }
    }
    for (item, words) in items {
        wrap(text, &format!("* {item}: {}", words.join(", ")), "  ");
    }
}

fn entry(text: &mut String, spec: &Operation) {
    let of = spec.reference;
    let maker = match spec.made_by {
        NodeMaker::Circuit => String::new(),
        NodeMaker::CircuitMlp => " Part of `mlp` in circuits.".to_owned(),
        NodeMaker::Pass(pass) => format!(" Made by `{pass}`."),
    };
    let _ = write!(text, "\n## {}\n\n", spec.name);
    wrap(text, &format!("{}{maker}", of.what), "");
    let _ = write!(text, "\n    {}\n\n", of.formula);
    let port = |port: &Port| {
        let float = port.dtype == latent_types::ValueType::F32;
        let dtype = if float { String::new() } else { format!(", {}", port.dtype) };
        let optional = if port.optional { ", optional" } else { "" };
        format!("`{}` {}{dtype}{}{optional}", port.name, shown(port.shape), note(port.note))
    };
    let kv_layer = || format!("KV layer: {}", spec.kv.row);
    let mut inputs: Vec<String> = spec.inputs.iter().map(port).collect();
    if spec.folds.sum {
        inputs.push("`residual` rows × outputs (`add`)".to_owned());
    }
    if spec.folds.kv_splits == SplitFold::Combines {
        inputs.push(format!("{} (`combined`)", port(&PARTIALS)));
    }
    if spec.kv.attends && !spec.kv.layers.is_empty() {
        inputs.push(kv_layer());
    }
    let mut outputs: Vec<String> = match spec.outputs {
        Outputs::Ports(ports) => ports.iter().map(port).collect(),
        Outputs::PerWeight(each) => {
            vec![format!("{}, one per weight (with `silu·up` one for both)", port(&each))]
        }
        Outputs::PerPart(each) => vec![port(&each)],
    };
    if spec.folds.kv_splits == SplitFold::Leaves {
        outputs.push(format!("{} (`KV splits`)", port(&PARTIALS)));
    }
    match (spec.kv.stores && !spec.kv.layers.is_empty(), spec.kv.attends) {
        (true, true) => outputs.push("the KV layer".to_owned()),
        (true, false) => outputs.push(kv_layer()),
        (false, _) => {}
    }
    let slots = spec.slots.iter();
    let weights = slots.map(|slot| format!("`{}` {}{}", slot.name, shown(slot.shape), note(slot.note)));
    let costs = [
        ("weight bytes", of.weight_bytes),
        ("cache bytes", of.cache_bytes),
        ("FLOPs", of.flops),
        ("bytes to each other rank", of.link_bytes),
    ];
    let costs = costs.iter().filter(|(_, cost)| *cost != "0");
    let costs =
        costs.map(|(what, cost)| format!("{what} = {}", cost.replace('*', " · ").replace('+', " + ")));
    for (what, items) in
        [("in", inputs), ("out", outputs), ("weights", weights.collect()), ("cost", costs.collect())]
    {
        if !items.is_empty() {
            wrap(text, &format!("* {what}: {}", items.join("; ")), "  ");
        }
    }
}

/// Writes a paragraph in lines of at most 100 columns. `indent` precedes all lines but the first.
fn wrap(text: &mut String, paragraph: &str, indent: &str) {
    let mut width = 0;
    for word in paragraph.split(' ') {
        // Characters and not bytes, because the texts contain `·`, `×` and `²`.
        let length = word.chars().count();
        if width > 0 && width + 1 + length > COLUMNS {
            text.push('\n');
            text.push_str(indent);
            width = indent.len();
        } else if width > 0 {
            text.push(' ');
            width += 1;
        }
        text.push_str(word);
        width += length;
    }
    text.push('\n');
}

fn note(note: &str) -> String {
    if note.is_empty() { String::new() } else { format!(", {note}") }
}

/// A shape with the multiplication sign of formulas.
fn shown(shape: &str) -> String {
    shape.replace('*', "·")
}

/// Escapes text for a table cell, which a bar would end.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

const INTRODUCTION: &str = "# Operations of the IR

Generated from `crates/graph/src/ops`; a test compares costs with those of plans and the profiler.
After a change: `UPDATE_DOCS=1 cargo test --release -p latent-graph reference`.

A [circuit](adding-a-model.md#3-the-circuit) names operations.
[`Ir::build`](../crates/graph/src/ir/build.rs) makes a node of each for every layer: of an `mlp` two
or three matmuls and an activation, of a `route` a matmul and the top-k selection. Passes lower and
fuse nodes. `latent graph ir` prints the IR before all passes, `--after PASS` after one, and
`latent graph plan` after all.

* A **value** is a matrix of rows × heads × width elements: f32, or u32 for ids. It has a buffer, or
  is a view of another value. The residual stream and the logits are outside of the plan's arena.
* An **attention path** selects the rows of a node: all, absorbed, or naive.
* A **prologue** is applied to the first input: RMSNorm, or the rotation of its last elements;
  `combined` combines KV splits.
* An **epilogue** is applied to the result: `silu·up`, `relu²`, `add` (in place, times a factor);
  `KV splits` stores the partial results of each split if a step has few rows.
* A **KV layer** is what a layer stores: per token `[latent | rope key]`, or expanded keys and
  values; per sequence a recurrent state.

*Optional* inputs are omitted if they have no elements. Bytes are those read from memory in a step,
each weight once; other values stay in the processor's caches. Operations without a cost only pass
over rows.
";
