//! Layer kinds, experts and router of config.json.

use super::error::ConfigError;
use super::families::RouterDefaults;
use super::hf_file::HfConfig;
use super::limits;
use super::source::MetadataValue;
use super::{Gating, GroupScore, LayerKind, MoeShape, RouterSpec};
use super::{keys, moe};

/// Lower bound of the sum of weights before the division.
// Transformers adds it to the sum instead. Sums of published routers are so far above it that both
// give the same result.
const NORM_FLOOR: f64 = 1e-20;

/// Number of routed experts by config.json; `None` for dense models.
fn experts(config: &HfConfig<'_>) -> Result<Option<usize>, ConfigError> {
    if config.family.router.is_none() {
        return Ok(None);
    }
    Ok(config.text.get(&keys::EXPERTS)?.filter(|experts| *experts > 0))
}

/// Kinds of decoder layers by the keys, and of MTP layers by their tensors.
pub(super) fn layer_kinds(
    config: &HfConfig<'_>,
    layers: usize,
    mtp_layers: usize,
) -> Result<Vec<LayerKind>, ConfigError> {
    let mut kinds = match (&config.family.router, experts(config)?) {
        (Some(defaults), Some(_)) => sparse_kinds(config, defaults, layers)?,
        _ => vec![LayerKind::Dense; layers],
    };
    for layer in layers..layers + mtp_layers {
        let routed = config.tensors.has(&config.layer_tensor(layer, "mlp.gate.weight"));
        kinds.push(if routed { LayerKind::Moe } else { LayerKind::Dense });
    }
    Ok(kinds)
}

fn sparse_kinds(
    config: &HfConfig<'_>,
    defaults: &RouterDefaults,
    layers: usize,
) -> Result<Vec<LayerKind>, ConfigError> {
    let text = &config.text;
    // Transformers 5 writes a list of kinds; the models' own code has `first_k_dense_replace` and
    // `moe_layer_freq`.
    if let Some(field) = text.field("mlp_layer_types") {
        let expected = format!("a list of {layers} strings, each \"dense\" or \"sparse\"");
        let MetadataValue::List(names) = &field else {
            return Err(text.wrong("mlp_layer_types", field, expected));
        };
        let kinds: Option<Vec<LayerKind>> = names.iter().map(kind_of).collect();
        return kinds
            .filter(|kinds| kinds.len() == layers)
            .ok_or_else(|| text.wrong("mlp_layer_types", &field, expected));
    }
    let first = text.size("first_k_dense_replace", 0..=layers)?.unwrap_or(defaults.first_dense.min(layers));
    // DeepSeek's code: after the first dense layers, every n-th layer has experts.
    let every = text.size("moe_layer_freq", 1..=*limits::LAYERS.end())?.unwrap_or(1);
    let kind = |layer| if layer >= first && layer % every == 0 { LayerKind::Moe } else { LayerKind::Dense };
    Ok((0..layers).map(kind).collect())
}

fn kind_of(name: &MetadataValue) -> Option<LayerKind> {
    match name {
        MetadataValue::Text(name) if name == "dense" => Some(LayerKind::Dense),
        MetadataValue::Text(name) if name == "sparse" => Some(LayerKind::Moe),
        _ => None,
    }
}

/// The experts and their router, if some decoder layer has them.
pub(super) fn read(
    config: &HfConfig<'_>,
    kinds: &[LayerKind],
    hidden: usize,
) -> Result<Option<MoeShape>, ConfigError> {
    // A config may claim experts and still have dense layers only.
    let (Some(defaults), Some(experts)) = (&config.family.router, experts(config)?) else { return Ok(None) };
    let Some(layer) = kinds.iter().position(|kind| *kind == LayerKind::Moe) else { return Ok(None) };
    let text = &config.text;
    check_router(config, layer, experts, hidden)?;
    let used = text.need(&keys::EXPERTS_USED)?;
    let intermediate = text.need(&keys::EXPERT_WIDTH)?;
    let shared = text.get(&keys::SHARED_EXPERTS)?.unwrap_or(0);
    let shape = MoeShape {
        experts,
        num_experts_per_tok: used,
        intermediate,
        // Every row takes all shared experts, so they are one wide block.
        shared_intermediate: shared * intermediate,
        router: router(config, defaults, layer)?,
        // No key. Mistral Small 4 stores all experts in one tensor, gate rows first.
        fused_gate_up: config.tensors.has(&config.layer_tensor(layer, "mlp.experts.gate_up_proj")),
    };
    moe::check(text, &shape)?;
    Ok(Some(shape))
}

fn check_router(
    config: &HfConfig<'_>,
    layer: usize,
    experts: usize,
    hidden: usize,
) -> Result<(), ConfigError> {
    let name = config.layer_tensor(layer, "mlp.gate.weight");
    match config.tensors.shape(&name) {
        None => {
            let hint = format!("layer {layer} is the first with experts, which need a router");
            Err(config.text.missing_tensor(&name, hint))
        }
        Some(shape) if shape != [experts, hidden] => {
            let expected = format!("[{experts}, {hidden}]: n_routed_experts and hidden_size");
            Err(config.text.wrong_shape(&name, &shape, expected))
        }
        Some(_) => Ok(()),
    }
}

fn router(config: &HfConfig<'_>, defaults: &RouterDefaults, layer: usize) -> Result<RouterSpec, ConfigError> {
    let text = &config.text;
    let scoring = text.text("scoring_func")?;
    let gating = match scoring.as_deref() {
        None => defaults.gating,
        Some("softmax") => Gating::Softmax,
        Some("sigmoid") => Gating::Sigmoid,
        Some(other) => {
            return Err(text.not_computed("scoring_func", format!("{other:?}"), "softmax or sigmoid"));
        }
    };
    let (bias, grouped) = selection(config, defaults, layer, gating)?;
    let (groups, groups_used) = if grouped { groups(config, defaults)? } else { (1, 1) };
    let normalise = text.flag("norm_topk_prob")?;
    let scale = text.get(&keys::EXPERT_SCALE)?;
    // Both keys are required if the family's defaults differ between versions of its code
    // (DeepSeek-V3).
    let (normalise, scale) = match (normalise, scale, defaults.weights) {
        (Some(normalise), Some(scale), _) => (normalise, scale),
        (normalise, scale, Some(default)) => (normalise.unwrap_or(default.0), scale.unwrap_or(default.1)),
        (None, _, None) => {
            return Err(text.missing(
                "norm_topk_prob",
                "it determines whether expert weights are normalized to a sum of 1",
            ));
        }
        (_, None, None) => {
            return Err(text.missing_key(&keys::EXPERT_SCALE));
        }
    };
    Ok(RouterSpec {
        gating,
        bias,
        groups,
        groups_used,
        // Routers with a bias (`noaux_tc`) score a group by its two best experts.
        group_score: if bias { GroupScore::TopTwoSum } else { defaults.group_score },
        group_mask: defaults.group_mask,
        normalise,
        norm_floor: NORM_FLOOR,
        // DeepSeek-V2's code; DeepSeek-VL2 has a bias and does both.
        scale: if normalise && defaults.scales_or_normalises && !bias { 1.0 } else { scale },
    })
}

/// Whether the selection uses a bias, and whether it uses groups.
///
/// `topk_method` decides, and requires the bias to be stored or absent. Mistral Large 3 has softmax
/// scores and no method, and other families' code does not read the key. There the stored tensors
/// decide.
fn selection(
    config: &HfConfig<'_>,
    defaults: &RouterDefaults,
    layer: usize,
    gating: Gating,
) -> Result<(bool, bool), ConfigError> {
    let text = &config.text;
    let tensor = config.layer_tensor(layer, "mlp.gate.e_score_correction_bias");
    let stored = config.tensors.has(&tensor);
    let named = text.text("topk_method")?;
    if defaults.method.is_none() {
        return Ok((stored, true));
    }
    // The family's default method belongs to its default scores. Mistral Large 3 is of family
    // deepseek_v3 with softmax scores, and has no bias.
    let implied = defaults.method.filter(|_| gating == defaults.gating);
    match named.as_deref().or(implied) {
        None => Ok((stored, true)),
        Some("noaux_tc") if stored => Ok((true, true)),
        Some("noaux_tc") => {
            Err(text.missing_tensor(&tensor, "topk_method noaux_tc chooses experts with this bias"))
        }
        // DeepSeek's configuration class spells its default "gready".
        Some(name @ ("greedy" | "gready" | "group_limited_greedy")) if !stored => {
            Ok((false, name == "group_limited_greedy"))
        }
        Some(name @ ("greedy" | "gready" | "group_limited_greedy")) => Err(text.wrong(
            "topk_method",
            format!("{name:?}"),
            format!("\"noaux_tc\": tensor {tensor} is stored"),
        )),
        Some(other) => {
            let expected = "greedy, group_limited_greedy or noaux_tc";
            Err(text.not_computed("topk_method", format!("{other:?}"), expected))
        }
    }
}

fn groups(config: &HfConfig<'_>, defaults: &RouterDefaults) -> Result<(usize, usize), ConfigError> {
    let text = &config.text;
    let count = text.get(&keys::GROUPS)?;
    // null means no groups. Only a missing key means the family's default.
    let default = if text.mentions("n_group") { (1, 1) } else { defaults.groups };
    let groups = count.unwrap_or(default.0);
    let used = text.get(&keys::GROUPS_USED)?;
    match used {
        Some(used) => Ok((groups, used)),
        // With a stated number of groups, the number of selected ones is required.
        None if count.is_none() || groups == 1 => Ok((groups, default.1.min(groups))),
        None => Err(text.missing_key(&keys::GROUPS_USED)),
    }
}
