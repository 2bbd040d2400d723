//! Model families of config.json, and the defaults of their published code for missing keys.

use super::{FfnActivation, Gating, GroupMask, GroupScore, OutputGate, RopePairs};
use crate::naming::{self, NamingScheme};

/// Models whose published code has the same defaults.
pub(super) struct ModelFamily {
    /// `model_type` of config.json.
    pub(super) model_type: &'static str,
    /// Names in `architectures`.
    pub(super) classes: &'static [&'static str],
    /// The circuit that runs it.
    pub(super) circuit: &'static str,
    /// `general.architecture` of its GGUF files; `None` if Latent neither reads nor writes them.
    pub(super) gguf: Option<&'static str>,
    /// Defaults of its router; `None` for families without experts.
    pub(super) router: Option<RouterDefaults>,
    /// θ if config.json has none; `None` if models of the family differ in it.
    pub(super) rope_base: Option<f64>,
    /// Whether it rotates the shared key by position, unless `mla_use_nope` is set.
    pub(super) rotates: bool,
    /// Epsilon of the norms if config.json has none.
    pub(super) rms_eps: Option<f64>,
    /// Epsilon of the latents' norms, if the published code does not take it from `rms_norm_eps`
    /// (ADR 9).
    pub(super) latent_eps: Option<f64>,
    /// Pairing of rotated elements, unless `rope_interleave` is set.
    pub(super) pairs: RopePairs,
    /// Pairing in the indexer, unless `indexer_rope_interleave` is set.
    pub(super) index_pairs: RopePairs,
    /// Activation of its feed-forward blocks.
    pub(super) activation: FfnActivation,
    /// Whether it scales embedding, residual stream and final row (`scale_emb`, `scale_depth`,
    /// `dim_model_base`: MiniCPM3).
    pub(super) scaled: bool,
    /// The gate on attention's output, unless `mla_use_output_gate` is set.
    pub(super) gate: Option<OutputGate>,
    /// Whether the gate is computed from the query's latent by the matrix of the queries (A.X-K2).
    pub(super) query_gate: bool,
    /// Rank of the gates of its norms, unless `gated_norm_rank` is set; `None` for norms without
    /// gates.
    pub(super) norm_rank: Option<usize>,
    /// Defaults of its layers with a recurrent state; `None` for families without such layers.
    pub(super) kda: Option<KdaDefaults>,
    /// Keys with another name in this family: the usual name, and the family's.
    pub(super) keys: &'static [(&'static str, &'static str)],
    /// Naming scheme of its tensors.
    pub(super) names: &'static NamingScheme,
}

/// Defaults of a family's layers with a recurrent state.
pub(super) struct KdaDefaults {
    /// Default of `kda_lower_bound`, unless `kda_safe_gate` is false.
    pub(super) lower_bound: Option<f64>,
    /// Whether the projections to decay and output gate are of low rank if `no_kda_lora` is
    /// missing. Used for a config.json without tensors.
    pub(super) low_rank: bool,
}

/// Defaults of a family's router.
pub(super) struct RouterDefaults {
    /// Default of `scoring_func`.
    pub(super) gating: Gating,
    /// Default of `topk_method`. `None` if the published code does not read the key; then a stored
    /// bias decides.
    pub(super) method: Option<&'static str>,
    /// Score of a group if the router has no bias.
    pub(super) group_score: GroupScore,
    /// Scores of experts in other groups.
    pub(super) group_mask: GroupMask,
    /// Defaults of `n_group` and `topk_group`.
    pub(super) groups: (usize, usize),
    /// Default of `first_k_dense_replace`.
    pub(super) first_dense: usize,
    /// Defaults of `norm_topk_prob` and `routed_scaling_factor`; `None` if versions of the code
    /// differ.
    pub(super) weights: Option<(bool, f64)>,
    /// Whether weights are scaled only if they are not normalized, as in DeepSeek-V2's code.
    /// DeepSeek-VL2, whose router has a bias, does both.
    pub(super) scales_or_normalises: bool,
}

// DeepSeek-V2, V2.5 and V2-Lite: softmax scores without a bias. V2 selects groups by their best
// expert (`group_limited_greedy`); V2-Lite has no groups (`greedy`).
const V2_ROUTER: RouterDefaults = RouterDefaults {
    gating: Gating::Softmax,
    method: Some("greedy"),
    group_score: GroupScore::Max,
    group_mask: GroupMask::Excluded,
    groups: (1, 1),
    first_dense: 0,
    weights: Some((false, 1.0)),
    scales_or_normalises: true,
};

// DeepSeek-V3 and R1: sigmoid scores, a selection bias, 4 of 8 groups, three dense layers first.
const V3_ROUTER: RouterDefaults = RouterDefaults {
    gating: Gating::Sigmoid,
    method: Some("noaux_tc"),
    group_score: GroupScore::Max,
    group_mask: GroupMask::Excluded,
    groups: (8, 4),
    first_dense: 3,
    weights: None,
    scales_or_normalises: false,
};

/// A.X-K1's code adds a bias that its files do not store.
const AXK1_ROUTER: RouterDefaults =
    RouterDefaults { method: None, group_score: GroupScore::TopTwoSum, first_dense: 1, ..V3_ROUTER };

/// A.X-K2's code does not read `topk_method`; A.X-K2-Light has no groups.
const AXK2_ROUTER: RouterDefaults =
    RouterDefaults { group_mask: GroupMask::Zero, groups: (1, 1), weights: Some((true, 2.5)), ..AXK1_ROUTER };

// Mistral Small 4: softmax scores without a bias or groups, and experts in every layer.
const MISTRAL4_ROUTER: RouterDefaults = RouterDefaults {
    gating: Gating::Softmax,
    method: None,
    group_score: GroupScore::TopTwoSum,
    group_mask: GroupMask::Excluded,
    groups: (1, 1),
    first_dense: 0,
    weights: Some((true, 1.0)),
    scales_or_normalises: false,
};

// The base of all families. Also Moonlight, GigaChat3 and Kanana-2, whose `model_type` is
// `deepseek_v3`, and Mistral Large 3, which has the class but DeepSeek-V3's keys.
const DEEPSEEK: ModelFamily = ModelFamily {
    model_type: "deepseek_v3",
    classes: &["DeepseekV3ForCausalLM", "MistralLarge3ForCausalLM"],
    circuit: "deepseek2",
    gguf: Some("deepseek2"),
    router: Some(V3_ROUTER),
    rope_base: Some(10_000.0),
    rotates: true,
    rms_eps: None,
    latent_eps: None,
    pairs: RopePairs::Interleaved,
    index_pairs: RopePairs::NeoX,
    activation: FfnActivation::SiluGated,
    scaled: false,
    gate: None,
    query_gate: false,
    norm_rank: None,
    kda: None,
    keys: &[],
    names: &naming::PLAIN,
};

/// The default of Transformers' RMSNorm classes, used where published code passes no epsilon.
const LATENT_EPS: Option<f64> = Some(1e-6);

/// Key names of Ling-3.0 and Kimi-Linear.
const HYBRID_KEYS: &[(&str, &str)] = &[
    // Latent asks for the left name. If the file has the right one, that one is read.
    ("max_position_embeddings", "model_max_length"),
    ("n_routed_experts", "num_experts"),
    ("num_experts_per_tok", "num_experts_per_token"),
    ("n_shared_experts", "num_shared_experts"),
    ("n_group", "num_expert_group"),
    ("norm_topk_prob", "moe_renormalize"),
    ("scoring_func", "moe_router_activation_func"),
];

// Youtu-LLM: dense and tied, under two names of `model_type`.
const YOUTU: ModelFamily = ModelFamily {
    model_type: "youtu",
    classes: &["YoutuForCausalLM"],
    router: None,
    rope_base: None,
    ..DEEPSEEK
};

/// Key names of Sarvam's published config.json.
const SARVAM_KEYS: &[(&str, &str)] =
    &[("n_routed_experts", "num_experts"), ("n_shared_experts", "num_shared_experts")];

pub(super) static FAMILIES: [ModelFamily; 16] = [
    ModelFamily {
        model_type: "deepseek_v2",
        classes: &["DeepseekV2ForCausalLM"],
        router: Some(V2_ROUTER),
        // DeepSeek-VL2's language model is of this family, and its config omits the key.
        rms_eps: Some(1e-6),
        ..DEEPSEEK
    },
    DEEPSEEK,
    ModelFamily {
        model_type: "deepseek_v32",
        classes: &["DeepseekV32ForCausalLM"],
        gguf: Some("deepseek32"),
        latent_eps: LATENT_EPS,
        ..DEEPSEEK
    },
    ModelFamily {
        // GLM-5. One group of experts, and θ in `rope_parameters`.
        model_type: "glm_moe_dsa",
        classes: &["GlmMoeDsaForCausalLM"],
        gguf: Some("glm-dsa"),
        index_pairs: RopePairs::Interleaved,
        router: Some(RouterDefaults { groups: (1, 1), ..V3_ROUTER }),
        rope_base: None,
        latent_eps: LATENT_EPS,
        ..DEEPSEEK
    },
    ModelFamily {
        // Mistral Small 4, usually as `text_config` of `mistral3`.
        model_type: "mistral4",
        classes: &["Mistral4ForCausalLM"],
        gguf: Some("mistral4"),
        router: Some(MISTRAL4_ROUTER),
        ..DEEPSEEK
    },
    ModelFamily {
        // A.X-K1: DeepSeek-V3 with one more norm after the experts.
        model_type: "axk1",
        classes: &["AXK1ForCausalLM"],
        circuit: "axk1",
        gguf: Some("axk1"),
        router: Some(AXK1_ROUTER),
        ..DEEPSEEK
    },
    ModelFamily {
        // A.X-K2: sparse attention, gated norms, and an output gate from the query's latent.
        model_type: "axk2",
        classes: &["AXK2ForCausalLM"],
        circuit: "axk2",
        gguf: Some("axk2"),
        router: Some(AXK2_ROUTER),
        rms_eps: Some(1e-6),
        gate: Some(OutputGate::PerElement),
        query_gate: true,
        norm_rank: Some(16),
        latent_eps: LATENT_EPS,
        ..DEEPSEEK
    },
    ModelFamily {
        // Kimi-K2's published code is DeepSeek-V3's, with 384 experts in one group.
        model_type: "kimi_k2",
        classes: &["KimiK2ForCausalLM"],
        router: Some(RouterDefaults { groups: (1, 1), first_dense: 0, ..V3_ROUTER }),
        ..DEEPSEEK
    },
    ModelFamily {
        // Sarvam: DeepSeek-V3 without groups, and with other key names.
        model_type: "sarvam_mla",
        classes: &["SarvamMLAForCausalLM"],
        router: Some(RouterDefaults {
            groups: (1, 1),
            first_dense: 1,
            weights: Some((true, 2.5)),
            ..V3_ROUTER
        }),
        keys: SARVAM_KEYS,
        latent_eps: LATENT_EPS,
        ..DEEPSEEK
    },
    ModelFamily {
        // GLM-4.7-Flash: one dense layer and no groups. θ differs between models, so it is
        // required.
        model_type: "glm4_moe_lite",
        classes: &["Glm4MoeLiteForCausalLM"],
        router: Some(RouterDefaults { groups: (1, 1), first_dense: 1, ..V3_ROUTER }),
        rope_base: None,
        ..DEEPSEEK
    },
    YOUTU,
    ModelFamily { model_type: "youtu_llm", ..YOUTU },
    ModelFamily {
        model_type: "minicpm3",
        classes: &["MiniCPM3ForCausalLM"],
        circuit: "minicpm3",
        gguf: Some("minicpm3"),
        router: None,
        pairs: RopePairs::NeoX,
        scaled: true,
        ..DEEPSEEK
    },
    ModelFamily {
        // Ling-3.0: Kimi Delta Attention, and latent attention with a gate per head.
        model_type: "bailing_hybrid",
        classes: &["BailingHybridForCausalLM", "BailingMoeV3ForCausalLM"],
        circuit: "bailing_hybrid",
        // Ling-3.0. The code of this class states θ = 6e6 and a decay bound of −5 as defaults.
        gguf: Some("bailingmoe3"),
        router: Some(RouterDefaults { first_dense: 2, weights: Some((true, 2.5)), ..V3_ROUTER }),
        rope_base: Some(6_000_000.0),
        gate: Some(OutputGate::PerHead),
        kda: Some(KdaDefaults { lower_bound: Some(-5.0), low_rank: false }),
        keys: HYBRID_KEYS,
        names: &naming::BAILING,
        latent_eps: LATENT_EPS,
        ..DEEPSEEK
    },
    ModelFamily {
        // Kimi-Linear: Kimi Delta Attention, and latent attention that never rotates (NoPE).
        model_type: "kimi_linear",
        classes: &["KimiLinearForCausalLM"],
        circuit: "kimi_linear",
        gguf: Some("kimi-linear"),
        router: Some(RouterDefaults { groups: (1, 1), first_dense: 1, ..V3_ROUTER }),
        rotates: false,
        kda: Some(KdaDefaults { lower_bound: None, low_rank: true }),
        keys: HYBRID_KEYS,
        names: &naming::KIMI_LINEAR,
        latent_eps: LATENT_EPS,
        ..DEEPSEEK
    },
    ModelFamily {
        // PLM-1.8B: dense, with a squared ReLU instead of a gated SiLU.
        model_type: "plm",
        classes: &["PLMForCausalLM", "PlmForCausalLM"],
        circuit: "plm",
        gguf: Some("plm"),
        router: None,
        rope_base: None,
        activation: FfnActivation::ReluSquared,
        ..DEEPSEEK
    },
];

/// Vision-language models whose language model ([`NESTED`]) may belong to one of the families.
const VISION_LANGUAGE: [&str; 4] = ["kimi_vl", "kimi_k25", "mistral3", "deepseek_vl_v2"];

/// Objects with the keys of their language model: `text_config`, or `language_config` of
/// DeepSeek-VL2.
pub(super) const NESTED: [&str; 2] = ["text_config", "language_config"];

pub(super) fn by_model_type(name: &str) -> Option<&'static ModelFamily> {
    FAMILIES.iter().find(|family| family.model_type == name)
}

pub(super) fn by_class(name: &str) -> Option<&'static ModelFamily> {
    FAMILIES.iter().find(|family| family.classes.contains(&name))
}

pub(super) fn known_model_types() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.model_type).chain(VISION_LANGUAGE)
}

/// Features of known but unsupported architectures, by their names in both kinds of file.
const LACKS: [(&[&str], &str); 4] = [
    (&["hy_v4", "hy-v4"], "hyper-connections, attention sinks and sparse attention"),
    (
        &["kimi_k3", "kimi-k3"],
        "linear attention (KDA), attention residuals between layers and latent experts",
    ),
    (
        &["glm5_next", "glm5-next", "glm5next"],
        "linear attention (KDA), hyper-connections and sparse attention",
    ),
    (&["deepseek_v4", "deepseek4"], "compressed attention and hyper-connections"),
];

/// `, which needs X`, for an architecture of which that is known.
pub(crate) fn lacks(architecture: &str) -> String {
    let found = LACKS.iter().find(|(names, _)| names.contains(&architecture));
    found.map_or_else(String::new, |(_, lacks)| format!(": it needs {lacks}"))
}
