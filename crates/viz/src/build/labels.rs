//! Labels of values, weights and operations.

use crate::data::{OperationPort, WeightInfo};
use latent_graph::ir::{AttentionPath, Epilogue, Ir, KvLayerKind, Node, RowCount, ValueId, ValueStorage};

pub(crate) fn weight_line(card: &WeightInfo) -> String {
    let shape = match card.shape[..] {
        [width] => width.to_string(),
        // Shapes are stored outputs first; the arrow follows the computation.
        [outputs, inputs] => format!("{inputs} → {outputs}"),
        _ => card.shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" × "),
    };
    let formats: Vec<&str> = card.formats.iter().map(|f| f.format).collect();
    format!("{}  {shape}  {}", card.slot, formats.join("/"))
}

/// `q [128×192]`.
pub(crate) fn edge_label(ir: &Ir, id: ValueId) -> String {
    format!("{} {}", ir.value(id).name, shape(ir, id))
}

pub(crate) fn shape(ir: &Ir, id: ValueId) -> String {
    let value = ir.value(id);
    let mut parts = Vec::new();
    // Rows per token, such as the activations of selected experts.
    if let RowCount::Times(n) = value.rows {
        parts.push(n.to_string());
    }
    if value.heads > 1 {
        parts.push(value.heads.to_string());
    }
    parts.push(value.width.to_string());
    format!("[{}]", parts.join("×"))
}

pub(crate) fn port(ir: &Ir, id: ValueId) -> OperationPort {
    let value = ir.value(id);
    let rows = match value.rows {
        RowCount::Rows => "rows".to_owned(),
        RowCount::Times(n) => format!("rows × {n}"),
        RowCount::AtMost(n) => format!("rows (at most {n})"),
    };
    let heads = if value.heads > 1 { format!(" × {}", value.heads) } else { String::new() };
    let place = match value.storage {
        ValueStorage::Tokens => "the batch".to_owned(),
        ValueStorage::Hidden => "residual stream".to_owned(),
        ValueStorage::Logits => "logits".to_owned(),
        ValueStorage::Own => "arena".to_owned(),
        ValueStorage::View { of, offset: 0 } => match ir.value(ir.root(of)).storage {
            ValueStorage::Hidden => "residual stream".to_owned(),
            _ => format!("in {}", ir.value(of).name),
        },
        ValueStorage::View { of, offset } => format!("in {}, from {offset} of each head", ir.value(of).name),
    };
    OperationPort { name: value.name.clone(), shape: format!("{rows}{heads} × {}", value.width), place }
}

pub(crate) fn port_shape(ir: &Ir, id: ValueId) -> String {
    port(ir, id).shape
}

pub(crate) fn prologue_lines(ir: &Ir, node: &Node) -> Vec<String> {
    let mut words = Vec::new();
    if let Some(norm) = node.prologue.norm {
        words.push(format!("rms_norm {}", ir.weight(norm).slot));
    }
    if node.prologue.rope {
        // The rotated value is the last input, except for the residual of an addition.
        let adds = usize::from(matches!(node.epilogue, Epilogue::AddTo(_)));
        let rotated = &node.inputs[node.inputs.len() - 1 - adds];
        words.push(format!("rope {}", ir.value(*rotated).name));
    }
    if node.prologue.kv_splits {
        words.push("combine KV splits".into());
    }
    words
}

pub(crate) fn epilogue_lines(node: &Node) -> Vec<String> {
    match node.epilogue {
        Epilogue::None => Vec::new(),
        Epilogue::SiluMul => vec!["silu(gate) ⊙ up".into()],
        Epilogue::Relu2 => vec!["relu²".into()],
        Epilogue::KvSplits => vec!["KV splits".into()],
        Epilogue::AddTo(1.0) => vec!["+ residual".into()],
        Epilogue::AddTo(factor) => vec![format!("× {factor:.4} + residual")],
    }
}

pub(crate) fn path_word(path: AttentionPath) -> Option<&'static str> {
    match path {
        AttentionPath::All => None,
        AttentionPath::Absorbed => Some("absorbed"),
        AttentionPath::Naive => Some("naive"),
    }
}

pub(crate) fn kv_layer_word(kind: KvLayerKind) -> &'static str {
    kind.name()
}

pub(crate) fn family(node: &Node) -> &'static str {
    let slot = node.weights.first().map_or("", |(slot, _)| slot.as_str());
    family_of(node.op.word(), slot)
}

/// The family of an operation, which sets its colour.
pub(crate) fn family_of(word: &str, slot: &str) -> &'static str {
    match word {
        "embed" | "gather_rows" | "send_rows" | "receive_rows" => "io",
        "rms_norm" | "l2_norm" | "gated_norm" => "norm",
        // A tied head uses the slot of the embedding.
        "linear" | "mlp" if slot == "head" || slot == "embed" => "io",
        "linear" | "mlp" if slot == "router" || slot.starts_with("shared") => "experts",
        "rope" | "split" | "partial_rope_concat" => "position",
        "short_conv" | "delta_rule" | "mla_attention" | "absorb_k" | "absorb_v" | "attend_latent"
        | "attend_separate" | "attend_expanded" | "index_select" | "kv_lora_decompress" => "attention",
        "latent_store" | "expanded_store" | "key_value_store" | "index_store" => "cache",
        "route" | "expert_mlp" | "expert_gate_up" | "expert_down" => "experts",
        "softplus_decay" | "bounded_decay" | "silu" | "silu_mul" | "sigmoid_mul" | "relu2" | "add"
        | "bias" | "scale" | "all_reduce" => "sum",
        _ => "linear",
    }
}
