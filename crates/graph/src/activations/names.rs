//! Names of activations, as `latent dump` writes and `latent diff` reads them.

use crate::ir::Op;

/// Names of circuit values in the words of other programs; a value that is not here keeps its own.
const NAMES: [(&str, &str); 11] = [
    ("x", "attn_norm"),
    ("q_low_raw", "q_a"),
    ("q_low", "q_a_norm"),
    ("kv", "kv_a"),
    ("attn_delta", "attn_out"),
    ("h_mid", "attn_residual"),
    ("y", "ffn_norm"),
    ("gate", "ffn_gate"),
    ("up", "ffn_up"),
    ("activated", "ffn_act"),
    ("shared_delta", "shared_out"),
];

/// The public name of a circuit's value. `last` says whether no later operation of the layer makes one of the same name.
pub(super) fn public(value: &str, op: Op, layer: Option<usize>, last: bool) -> String {
    let name = match (value, layer) {
        ("h", None) => "embed",
        ("h", Some(_)) => "residual",
        ("ffn_delta", _) if last => "ffn_out",
        ("ffn_delta", _) => "experts_out",
        ("final", _) if matches!(op, Op::Scale { .. }) => "final_scaled",
        ("final", _) => "final_norm",
        // a bias is added to it, and the sum has the name
        _ if !last => return format!("{}_unbiased", public(value, op, layer, true)),
        _ => NAMES.iter().find(|(circuit, _)| *circuit == value).map_or(value, |(_, public)| public),
    };
    name.to_owned()
}

/// The error for a name that no activation has, with those of `names` that come close.
pub(super) fn unknown<'n>(name: &str, layers: usize, names: impl Iterator<Item = &'n str>) -> String {
    let part = name.strip_prefix("layers.").and_then(|rest| rest.split_once('.'));
    let Some((layer, rest)) = part else {
        let outside: Vec<&str> = names.filter(|name| !name.starts_with("layers.")).collect();
        return format!(
            "unknown activation {name}; expected one of {}, or one of a layer, such as layers.0.latent",
            outside.join(", ")
        );
    };
    match layer.parse::<usize>() {
        Ok(number) if number < layers => {
            let prefix = format!("layers.{number}.");
            let names: Vec<&str> = names.filter_map(|name| name.strip_prefix(&prefix)).collect();
            format!("layer {number} has no activation {rest:?}; it has {}", names.join(", "))
        }
        _ => format!("layer {layer} does not exist; the model has layers 0 to {}", layers.saturating_sub(1)),
    }
}
