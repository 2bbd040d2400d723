//! What each family of config.json implies where it leaves keys out.

use super::{FfnActivation, Gating, GroupMask, GroupScore, OutputGate, RopePairs};
use crate::naming::{self, NamingScheme};

/// Models whose published code shares its defaults.
pub(super) struct ModelFamily {
    /// `model_type` of config.json.
    pub(super) model_type: &'static str,
    /// Names in `architectures`.
    pub(super) classes: &'static [&'static str],
    /// The circuit that runs it.
    pub(super) circuit: &'static str,
    /// `general.architecture` of its GGUF files; none where such files are neither read nor written.
    pub(super) gguf: Option<&'static str>,
    /// Defaults of its router; none where the family has no experts.
    pub(super) router: Option<RouterDefaults>,
    /// θ where config.json has none; a family whose models differ in it has no default.
    pub(super) rope_base: Option<f64>,
    /// Whether it rotates the shared key by position, unless `mla_use_nope` says otherwise.
    pub(super) rotates: bool,
    /// The norms' epsilon where config.json has none.
    pub(super) rms_eps: Option<f64>,
    /// The epsilon of the norms of latents, which published code leaves at its class's default; none: that of the other norms (ADR 9).
    pub(super) latent_eps: Option<f64>,
    /// How rotated elements pair up, unless `rope_interleave` says otherwise.
    pub(super) pairs: RopePairs,
    /// The same in the indexer of sparse attention, unless `indexer_rope_interleave` says otherwise.
    pub(super) index_pairs: RopePairs,
    /// Activation of its feed-forward blocks.
    pub(super) activation: FfnActivation,
    /// Whether it scales embedding, residual stream and final row.
    pub(super) scaled: bool,
    /// The gate on attention's output, unless `mla_use_output_gate` says otherwise.
    pub(super) gate: Option<OutputGate>,
    /// Whether the gate is made of the query's latent, by the matrix that makes the queries.
    pub(super) query_gate: bool,
    /// Rank of the gates of its layers' norms, unless `gated_norm_rank` says otherwise; none where its norms have no gates.
    pub(super) norm_rank: Option<usize>,
    /// Defaults of its layers with a recurrent state; none where the family has no such layers.
    pub(super) kda: Option<KdaDefaults>,
    /// Keys that it spells in another way: as most families have them, and as this one does.
    pub(super) keys: &'static [(&'static str, &'static str)],
    /// How its tensors are called.
    pub(super) names: &'static NamingScheme,
}

/// Defaults of a family's layers with a recurrent state.
pub(super) struct KdaDefaults {
    /// Where `kda_lower_bound` is missing, unless `kda_safe_gate` says that the decay has no bound.
    pub(super) lower_bound: Option<f64>,
    /// Whether the projections to decay and output gate are of low rank where `no_kda_lora` is missing. Tensors decide, where they are known.
    pub(super) low_rank: bool,
}

/// Defaults of a family's router.
pub(super) struct RouterDefaults {
    /// Where `scoring_func` is missing.
    pub(super) gating: Gating,
    /// Where `topk_method` is missing. None: the published code does not read the key, and whether a bias is stored decides.
    pub(super) method: Option<&'static str>,
    /// What groups are judged by where the router has no bias.
    pub(super) group_score: GroupScore,
    /// What experts of other groups count as.
    pub(super) group_mask: GroupMask,
    /// Where `n_group` and `topk_group` are missing.
    pub(super) groups: (usize, usize),
    /// Where `first_k_dense_replace` is missing.
    pub(super) first_dense: usize,
    /// Where `norm_topk_prob` and `routed_scaling_factor` are missing; none where different versions of the code differ.
    pub(super) weights: Option<(bool, f64)>,
    /// DeepSeek-V2's code scales the top-k weights only where it does not normalize them. (DeepSeek-VL2's, whose router has a bias, does both.)
    pub(super) scales_or_normalises: bool,
}

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

/// As transformers' classes have it.
const LATENT_EPS: Option<f64> = Some(1e-6);

/// How Ling-3.0 and Kimi-Linear spell keys.
const HYBRID_KEYS: &[(&str, &str)] = &[
    ("max_position_embeddings", "model_max_length"),
    ("n_routed_experts", "num_experts"),
    ("num_experts_per_tok", "num_experts_per_token"),
    ("n_shared_experts", "num_shared_experts"),
    ("n_group", "num_expert_group"),
    ("norm_topk_prob", "moe_renormalize"),
    ("scoring_func", "moe_router_activation_func"),
];

const YOUTU: ModelFamily = ModelFamily {
    model_type: "youtu",
    classes: &["YoutuForCausalLM"],
    router: None,
    rope_base: None,
    ..DEEPSEEK
};

/// How the published config.json of Sarvam spells keys.
const SARVAM_KEYS: &[(&str, &str)] =
    &[("n_routed_experts", "num_experts"), ("n_shared_experts", "num_shared_experts")];

pub(super) static FAMILIES: [ModelFamily; 16] = [
    ModelFamily {
        model_type: "deepseek_v2",
        classes: &["DeepseekV2ForCausalLM"],
        router: Some(V2_ROUTER),
        // DeepSeek-VL2 leaves it out
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
        model_type: "mistral4",
        classes: &["Mistral4ForCausalLM"],
        gguf: Some("mistral4"),
        router: Some(MISTRAL4_ROUTER),
        ..DEEPSEEK
    },
    ModelFamily {
        model_type: "axk1",
        classes: &["AXK1ForCausalLM"],
        circuit: "axk1",
        gguf: Some("axk1"),
        router: Some(AXK1_ROUTER),
        ..DEEPSEEK
    },
    ModelFamily {
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
        model_type: "kimi_k2",
        classes: &["KimiK2ForCausalLM"],
        router: Some(RouterDefaults { groups: (1, 1), first_dense: 0, ..V3_ROUTER }),
        ..DEEPSEEK
    },
    ModelFamily {
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
        model_type: "bailing_hybrid",
        classes: &["BailingHybridForCausalLM", "BailingMoeV3ForCausalLM"],
        circuit: "bailing_hybrid",
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

/// Vision-language models whose language model ([`NESTED`]) may be one of the families.
const SEEING: [&str; 4] = ["kimi_vl", "kimi_k25", "mistral3", "deepseek_vl_v2"];

/// Where such models keep the keys of their language model.
pub(super) const NESTED: [&str; 2] = ["text_config", "language_config"];

pub(super) fn by_model_type(name: &str) -> Option<&'static ModelFamily> {
    FAMILIES.iter().find(|family| family.model_type == name)
}

pub(super) fn by_class(name: &str) -> Option<&'static ModelFamily> {
    FAMILIES.iter().find(|family| family.classes.contains(&name))
}

pub(super) fn known_model_types() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.model_type).chain(SEEING)
}

/// What known architectures need that no circuit has, under the names of both kinds of file.
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
