//! Layer kinds, experts and router of a GGUF file.

use super::error::ConfigError;
use super::gguf_file::{GgufConfig, first_moe};
use super::limits;
use super::{Gating, GroupScore, LayerKind, MoeShape, RouterSpec};
use super::{keys, moe};

/// Lower bound of the sum of weights before the division.
// llama.cpp clamps the sum to the smallest normal f16.
const NORM_FLOOR: f64 = 6.103_515_625e-5;

fn experts(gguf: &GgufConfig<'_>) -> Result<Option<usize>, ConfigError> {
    if !gguf.architecture.deepseek {
        return Ok(None);
    }
    Ok(gguf.keys.get(&keys::EXPERTS)?.filter(|experts| *experts > 0))
}

/// Kinds of decoder layers by the keys, checked against the stored routers.
pub(super) fn layer_kinds(
    gguf: &GgufConfig<'_>,
    layers: usize,
    mtp_layers: usize,
    blocks: usize,
) -> Result<Vec<LayerKind>, ConfigError> {
    let reader = &gguf.keys;
    let routed = |layer: usize| gguf.tensors.has(&format!("blk.{layer}.ffn_gate_inp.weight"));
    let dense = match experts(gguf)? {
        Some(_) => reader.size("leading_dense_block_count", 0..=blocks)?.unwrap_or(0),
        // `expert_count` is missing or 0: a dense model, unless routers are stored.
        None => match (0..layers).find(|layer| routed(*layer)) {
            Some(layer) => {
                let hint = format!("it is the number of experts of the router blk.{layer}.ffn_gate_inp");
                return Err(reader.missing("expert_count", hint));
            }
            None => blocks,
        },
    };
    let mut kinds = Vec::with_capacity(layers + mtp_layers);
    for layer in 0..layers + mtp_layers {
        let claimed = layer >= dense;
        // The keys describe decoder layers. The kind of an MTP layer follows from its tensors.
        let kind = if layer < layers { claimed } else { routed(layer) };
        if kind && !routed(layer) {
            let hint =
                format!("layer {layer} has experts: {} is {dense}", reader.name("leading_dense_block_count"));
            return Err(reader.missing_tensor(&format!("blk.{layer}.ffn_gate_inp.weight"), hint));
        }
        if !kind && routed(layer) {
            let expected = format!("at most {layer}: tensor blk.{layer}.ffn_gate_inp.weight is stored");
            return Err(reader.wrong("leading_dense_block_count", dense, expected));
        }
        kinds.push(if kind { LayerKind::Moe } else { LayerKind::Dense });
    }
    Ok(kinds)
}

/// Width of the dense blocks: one number, or a list in which all dense layers agree. Entries of MoE
/// layers are ignored.
pub(super) fn intermediate_size(
    gguf: &GgufConfig<'_>,
    kinds: &[LayerKind],
    blocks: usize,
) -> Result<usize, ConfigError> {
    let key = "feed_forward_length";
    let mut sizes: Vec<usize> = match gguf.keys.sizes(key, 0..=limits::INTERMEDIATE, blocks)? {
        Some(sizes) => {
            sizes.into_iter().zip(kinds).filter(|(_, k)| **k == LayerKind::Dense).map(|(s, _)| s).collect()
        }
        None if kinds.contains(&LayerKind::Dense) => {
            return Err(gguf.keys.missing(key, "it is the width of the dense feed-forward blocks"));
        }
        None => return Ok(0),
    };
    sizes.dedup();
    match sizes[..] {
        [] => Ok(0),
        [0] => Err(gguf.keys.wrong(key, 0, format!("an integer from 1 to {}", limits::INTERMEDIATE))),
        [size] => Ok(size),
        [one, other, ..] => {
            let value = format!("{one} in one dense layer and {other} in another");
            Err(gguf.keys.wrong(key, value, "the same in every dense layer"))
        }
    }
}

/// The experts and their router, if some decoder layer has them.
pub(super) fn read(
    gguf: &GgufConfig<'_>,
    kinds: &[LayerKind],
    hidden: usize,
    blocks: usize,
) -> Result<Option<MoeShape>, ConfigError> {
    let (Some(experts), Some(layer)) = (experts(gguf)?, first_moe(kinds)) else { return Ok(None) };
    let reader = &gguf.keys;
    gguf.check(
        &format!("blk.{layer}.ffn_gate_inp.weight"),
        &[experts, hidden],
        "[expert_count, embedding_length]",
    )?;
    // A list has entries for dense layers too, which may be 0.
    let at = |row: &keys::ConfigKey<usize>| -> Result<usize, ConfigError> {
        let (key, most) = (row.gguf, *row.range.end());
        let Some(values) = reader.sizes(key, 0..=most, blocks)? else {
            return Err(reader.missing_key(row));
        };
        let sparse =
            || values.iter().zip(kinds).filter(|(_, kind)| **kind == LayerKind::Moe).map(|(value, _)| *value);
        match (values[layer], sparse().find(|value| *value != values[layer])) {
            (0, _) => Err(reader.wrong(key, 0, format!("an integer from 1 to {most}"))),
            (one, Some(other)) => {
                let value = format!("{one} in one layer and {other} in another");
                Err(reader.wrong(key, value, "the same in every layer with experts"))
            }
            (one, None) => Ok(one),
        }
    };
    let num_experts_per_tok = at(&keys::EXPERTS_USED)?;
    let intermediate = at(&keys::EXPERT_WIDTH)?;
    let shape = MoeShape {
        experts,
        num_experts_per_tok,
        intermediate,
        // Every row takes all shared experts, so they are one wide block.
        shared_intermediate: shared(gguf, layer)? * intermediate,
        router: router(gguf, layer)?,
        // No key: converters may join the two tensors.
        fused_gate_up: gguf.tensors.has(&format!("blk.{layer}.ffn_gate_up_exps.weight")),
    };
    moe::check(reader, &shape)?;
    Ok(Some(shape))
}

fn shared(gguf: &GgufConfig<'_>, layer: usize) -> Result<usize, ConfigError> {
    let tensor = format!("blk.{layer}.ffn_gate_shexp.weight");
    let count = gguf.keys.get(&keys::SHARED_EXPERTS)?.unwrap_or(0);
    // A wrong count would silently drop or require the shared expert.
    if (count > 0) == gguf.tensors.has(&tensor) {
        return Ok(count);
    }
    if count > 0 {
        return Err(gguf.keys.missing_tensor(&tensor, format!("expert_shared_count is {count}")));
    }
    Err(gguf.keys.wrong("expert_shared_count", 0, format!("at least 1: tensor {tensor} is stored")))
}

fn router(gguf: &GgufConfig<'_>, layer: usize) -> Result<RouterSpec, ConfigError> {
    let reader = &gguf.keys;
    let bias = gguf.tensors.has(&format!("blk.{layer}.exp_probs_b.bias"));
    let gating = match reader.size("expert_gating_func", 0..=4)?.unwrap_or(0) {
        1 => Gating::Softmax,
        2 => Gating::Sigmoid,
        3 => Gating::SoftmaxOfSelected,
        4 => Gating::SqrtSoftplus,
        // 0 or missing: files from before the key. Only sigmoid routers have a bias, except in
        // architectures whose routers are always sigmoid.
        _ if bias || gguf.architecture.sigmoid => Gating::Sigmoid,
        _ => Gating::Softmax,
    };
    let groups = reader.size("expert_group_count", 0..=limits::EXPERTS)?.unwrap_or(0).max(1);
    let used = reader.size("expert_group_used_count", 0..=limits::EXPERTS)?;
    let groups_used = match used {
        Some(used) if groups > 1 => used,
        None if groups > 1 => {
            return Err(reader.missing_key(&keys::GROUPS_USED));
        }
        _ => 1,
    };
    // llama.cpp treats 0 as no scaling.
    let scale = reader.get(&keys::EXPERT_SCALE)?.filter(|scale| *scale != 0.0).unwrap_or(1.0);
    Ok(RouterSpec {
        gating,
        bias,
        groups,
        groups_used,
        // No key. DeepSeek-V3 has a bias and scores a group by two experts; DeepSeek-V2 has
        // neither.
        group_score: if bias { GroupScore::TopTwoSum } else { gguf.architecture.group_score },
        group_mask: gguf.architecture.group_mask,
        normalise: reader.flag("expert_weights_norm")?.unwrap_or(false),
        norm_floor: NORM_FLOOR,
        scale,
    })
}
