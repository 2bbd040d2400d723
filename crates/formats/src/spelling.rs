//! Tensors of Kimi-Linear and Ling-3.0 under other names, which are converted to those of the
//! published files.
//!
//! Transformers and vLLM join the convolutions of queries, keys and values, and may save folders in
//! that form. A joined tensor has the rows of its three parts one after another, so each part is a
//! range of its bytes.

use crate::builder::by_name;
use crate::checkpoint::{Checkpoint, CheckpointSource};
use crate::family_names::{BAILING_NAMES, KIMI_LINEAR_NAMES, NameReplacements};
use crate::tensor::{TensorInfo, TensorLocation};
use latent_types::TensorType;
use serde_json::{Map, Value};
use std::collections::HashSet;

/// `model_type`, prefix of the class's name, and the names of the published files.
const FAMILIES: [(&str, &str, NameReplacements); 2] =
    [("bailing_hybrid", "Bailing", BAILING_NAMES), ("kimi_linear", "KimiLinear", KIMI_LINEAR_NAMES)];

/// A module in Transformers that the published files lack.
const FORGET_GATE: &str = ".forget_gate.";

/// Joined tensors and their three parts.
const JOINED: [(&str, [&str; 3]); 4] = [
    (".qkv_conv1d.weight", [".q_conv1d.weight", ".k_conv1d.weight", ".v_conv1d.weight"]),
    (".conv1d.weight", [".q_conv1d.weight", ".k_conv1d.weight", ".v_conv1d.weight"]),
    (".qkv_proj.weight", [".q_proj.weight", ".k_proj.weight", ".v_proj.weight"]),
    (".query_key_value.weight", [".q_proj.weight", ".k_proj.weight", ".v_proj.weight"]),
];

/// Names of a family's tensors.
pub(crate) struct Spelling(NameReplacements);

/// The name of a tensor in published files.
pub(crate) enum PublishedName {
    Whole(String),
    /// Names of the thirds of its rows.
    Thirds([String; 3]),
}

impl Spelling {
    /// The names of the family in config.json; `None` for other families.
    pub(crate) fn of(config: &Map<String, Value>) -> Option<Spelling> {
        let ty = config.get("model_type").and_then(Value::as_str);
        let class = config.get("architectures").and_then(|names| names.get(0)).and_then(Value::as_str);
        let family = FAMILIES.iter().find(|(name, start, _)| {
            // The class decides only if `model_type` is missing.
            ty == Some(name) || ty.is_none() && class.is_some_and(|class| class.starts_with(start))
        });
        family.map(|(_, _, replaced)| Spelling(replaced))
    }

    pub(crate) fn published(&self, name: &str, ty: TensorType, shape: &[usize]) -> PublishedName {
        let name =
            // The module's part is removed first: published names have its tensors directly in the
            // attention.
            self.0.iter().fold(name.replace(FORGET_GATE, "."), |name, (from, to)| name.replace(from, to));
        // Quantized weights have scales, which would have to be split too.
        let splits = matches!(ty, TensorType::F32 | TensorType::F16 | TensorType::BF16)
            && shape.first().is_some_and(|rows| *rows > 0 && rows.is_multiple_of(3));
        let joined = JOINED.iter().find_map(|(end, ends)| Some((name.strip_suffix(end)?, ends)));
        match joined.filter(|_| splits) {
            Some((start, ends)) => PublishedName::Thirds(ends.map(|end| format!("{start}{end}"))),
            None => PublishedName::Whole(name),
        }
    }
}

/// Gives the tensors of a folder their published names. A name that is in use already is not given
/// again.
pub(crate) fn respell(checkpoint: &mut Checkpoint) {
    let CheckpointSource::HuggingFace(source) = checkpoint.source() else { return };
    let Some(spelling) = Spelling::of(&source.config) else { return };
    let stored: HashSet<&str> = checkpoint.tensors.iter().map(|info| info.name.as_str()).collect();
    let mut respelled = Vec::with_capacity(checkpoint.tensors.len());
    let mut changed = false;
    for info in &checkpoint.tensors {
        match (spelling.published(&info.name, info.ty, &info.shape), info.place) {
            (PublishedName::Whole(name), _) if name != info.name && !stored.contains(name.as_str()) => {
                respelled.push(TensorInfo { name, ..info.clone() });
                changed = true;
            }
            (PublishedName::Thirds(names), TensorLocation::File { file, start })
                // If one part is also stored separately, splitting would give two tensors the same
                // name.
                if !names.iter().any(|name| stored.contains(name.as_str())) =>
            {
                // Rows are outermost, so a third of the rows is a contiguous third of the bytes.
                respelled.extend(names.into_iter().enumerate().map(|(third, name)| {
                    let (mut shape, bytes) = (info.shape.clone(), info.bytes / 3);
                    shape[0] /= 3;
                    let place = TensorLocation::File { file, start: start + third * bytes };
                    TensorInfo { name, shape, bytes, place, ..info.clone() }
                }));
                changed = true;
            }
            _ => respelled.push(info.clone()),
        }
    }
    if changed {
        checkpoint.by_name = by_name(&respelled);
        checkpoint.tensors = respelled;
    }
}
