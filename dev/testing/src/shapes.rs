//! The shapes of public models, and small models with the same wiring.

use latent_graph::config::{
    AttentionShape, DecayRate, FfnActivation, Gating, GroupMask, GroupScore, IndexerShape, KdaShape, KvForm,
    LayerKind, ModelConfig, MoeShape, OutputGate, QueryGate, RopePairs, RopeScaling, RopeSpec, RouterSpec,
    Temperature,
};

/// Names of all shapes.
pub fn shapes() -> impl Iterator<Item = &'static str> {
    SHAPES.iter().map(|shape| shape.name)
}

/// The sizes of a shape.
#[derive(Clone, Copy)]
pub(crate) struct ModelSizes {
    pub(crate) name: &'static str,
    circuit: &'static str,
    /// Names of the architecture in GGUF files and in config.json. If none, GGUF files use the
    /// circuit's name and config.json uses DeepSeek's.
    names: Option<(&'static str, &'static str)>,
    layers: usize,
    hidden: usize,
    heads: usize,
    q_lora: usize,
    kv_lora: usize,
    nope: usize,
    rope: usize,
    v: usize,
    ffn: usize,
    vocab: usize,
    context: usize,
    theta: f64,
    eps: f64,
    tied: bool,
    gate: Option<OutputGate>,
    moe: Option<MoeSizes>,
    /// YaRN: factor, original context and mscale_all_dim.
    yarn: Option<(f64, usize, f64)>,
    /// The indexer of sparse attention: heads, width of a head, and number of tokens that a row
    /// attends to.
    indexer: Option<(usize, usize, usize)>,
    /// β of the attention temperature (`llama_4_scaling_beta`), for positions beyond YaRN's
    /// original context.
    temperature: Option<f64>,
    /// Whether RoPE rotates the shared key.
    rotates: bool,
    /// Rank of the gated norms, if the shape has any. The output gate of such a shape is computed
    /// from the query's latent.
    norm_rank: Option<usize>,
    /// Kimi Delta Attention, if most layers have it instead of latent attention.
    kda: Option<KdaSizes>,
}

/// Sizes of Kimi Delta Attention (KDA) layers.
#[derive(Clone, Copy)]
struct KdaSizes {
    heads: usize,
    width: usize,
    /// Every `group`th layer and the last layer have latent attention; all others have KDA.
    group: usize,
    low_rank: bool,
    bound: Option<f64>,
}

#[derive(Clone, Copy)]
struct MoeSizes {
    experts: usize,
    used: usize,
    shared: usize,
    ffn: usize,
    dense_lead: usize,
    sigmoid: bool,
    /// Whether the choice of experts by sigmoid scores adds no bias.
    unbiased: bool,
    norm: bool,
    scale: f64,
    groups: usize,
    groups_used: usize,
}

const PLAIN: ModelSizes = ModelSizes {
    name: "",
    circuit: "deepseek2",
    names: None,
    layers: 3,
    hidden: 256,
    heads: 4,
    q_lora: 256,
    kv_lora: 256,
    nope: 128,
    rope: 64,
    v: 128,
    ffn: 512,
    vocab: 512,
    context: 4096,
    theta: 10_000.0,
    eps: 1e-6,
    tied: false,
    gate: None,
    moe: None,
    yarn: None,
    indexer: None,
    temperature: None,
    rotates: true,
    norm_rank: None,
    kda: None,
};

const EXPERTS: MoeSizes = MoeSizes {
    experts: 64,
    used: 6,
    shared: 2,
    ffn: 1408,
    dense_lead: 1,
    sigmoid: false,
    unbiased: false,
    norm: false,
    scale: 1.0,
    groups: 1,
    groups_used: 1,
};

const LARGE: ModelSizes =
    ModelSizes { layers: 27, hidden: 2048, heads: 16, kv_lora: 512, context: 131_072, ..PLAIN };

/// DeepSeek-V3's experts.
const V3_EXPERTS: MoeSizes = MoeSizes {
    experts: 256,
    used: 8,
    shared: 1,
    ffn: 2048,
    dense_lead: 3,
    sigmoid: true,
    norm: true,
    scale: 2.5,
    groups: 8,
    groups_used: 4,
    ..EXPERTS
};

const V3: ModelSizes = ModelSizes {
    name: "deepseek-v3",
    layers: 61,
    hidden: 7168,
    heads: 128,
    q_lora: 1536,
    ffn: 18_432,
    vocab: 129_280,
    context: 163_840,
    moe: Some(V3_EXPERTS),
    yarn: Some((40.0, 4096, 1.0)),
    ..LARGE
};

const AXK2: ModelSizes = ModelSizes {
    name: "a.x-k2",
    circuit: "axk2",
    names: Some(("axk2", "axk2")),
    vocab: 163_840,
    context: 131_072,
    heads: 64,
    yarn: None,
    gate: Some(OutputGate::PerElement),
    norm_rank: Some(16),
    indexer: Some((64, 128, 2048)),
    moe: Some(MoeSizes { dense_lead: 1, ..V3_EXPERTS }),
    ..V3
};

/// A few small experts.
const TINY_EXPERTS: MoeSizes =
    MoeSizes { experts: 16, used: 4, shared: 1, ffn: 256, sigmoid: true, norm: true, scale: 2.5, ..EXPERTS };

/// KDA of Kimi-Linear: low-rank gates, and a decay without a lower bound.
const KIMI_KDA: KdaSizes = KdaSizes { heads: 32, width: 128, group: 4, low_rank: true, bound: None };

/// KDA of Ling-3.0: full-rank gates, and a decay with a lower bound.
const LING_KDA: KdaSizes = KdaSizes { heads: 32, width: 128, group: 6, low_rank: false, bound: Some(-5.0) };

const LING: ModelSizes = ModelSizes {
    name: "ling-3-flash",
    circuit: "bailing_hybrid",
    names: Some(("bailingmoe3", "bailing_hybrid")),
    layers: 42,
    hidden: 2560,
    heads: 32,
    q_lora: 0,
    ffn: 6144,
    vocab: 157_184,
    context: 262_144,
    theta: 6e6,
    gate: Some(OutputGate::PerHead),
    kda: Some(LING_KDA),
    moe: Some(MoeSizes {
        experts: 512,
        used: 8,
        shared: 1,
        ffn: 768,
        dense_lead: 2,
        sigmoid: true,
        norm: true,
        scale: 2.5,
        groups: 8,
        groups_used: 4,
        ..EXPERTS
    }),
    ..LARGE
};

const SHAPES: [ModelSizes; 29] = [
    ModelSizes {
        name: "youtu-llm-2b",
        layers: 32,
        q_lora: 1536,
        ffn: 6144,
        vocab: 128_256,
        theta: 1.6e6,
        tied: true,
        ..LARGE
    },
    ModelSizes {
        name: "deepseek-v2-lite",
        q_lora: 0,
        ffn: 10_944,
        vocab: 102_400,
        context: 163_840,
        moe: Some(EXPERTS),
        yarn: Some((40.0, 4096, 0.707)),
        ..LARGE
    },
    ModelSizes {
        name: "glm-4.7-flash",
        layers: 47,
        heads: 20,
        q_lora: 768,
        nope: 192,
        v: 256,
        ffn: 10_240,
        vocab: 154_880,
        context: 202_752,
        theta: 1e6,
        eps: 1e-5,
        moe: Some(MoeSizes {
            used: 4,
            shared: 1,
            ffn: 1536,
            sigmoid: true,
            norm: true,
            scale: 1.8,
            ..EXPERTS
        }),
        ..LARGE
    },
    ModelSizes {
        name: "moonlight-16b",
        q_lora: 0,
        ffn: 11_264,
        vocab: 163_840,
        context: 8192,
        theta: 50_000.0,
        eps: 1e-5,
        moe: Some(MoeSizes { sigmoid: true, norm: true, scale: 2.446, ..EXPERTS }),
        ..LARGE
    },
    V3,
    ModelSizes {
        name: "kimi-k2",
        heads: 64,
        vocab: 163_840,
        context: 131_072,
        theta: 50_000.0,
        moe: Some(MoeSizes {
            experts: 384,
            dense_lead: 1,
            scale: 2.827,
            groups: 1,
            groups_used: 1,
            ..V3_EXPERTS
        }),
        yarn: Some((32.0, 4096, 1.0)),
        ..V3
    },
    ModelSizes {
        name: "deepseek-v3.2",
        names: Some(("deepseek32", "deepseek_v32")),
        indexer: Some((64, 128, 2048)),
        ..V3
    },
    ModelSizes {
        name: "glm-5",
        names: Some(("glm-dsa", "glm_moe_dsa")),
        layers: 78,
        hidden: 6144,
        heads: 64,
        q_lora: 2048,
        nope: 192,
        v: 256,
        ffn: 12_288,
        vocab: 154_880,
        context: 202_752,
        theta: 1e6,
        eps: 1e-5,
        moe: Some(MoeSizes { groups: 1, groups_used: 1, ..V3_EXPERTS }),
        yarn: None,
        indexer: Some((32, 128, 2048)),
        ..V3
    },
    ModelSizes {
        name: "mistral-small-4",
        names: Some(("mistral4", "mistral4")),
        layers: 36,
        hidden: 4096,
        heads: 32,
        q_lora: 1024,
        kv_lora: 256,
        nope: 64,
        ffn: 12_288,
        vocab: 131_072,
        context: 1_048_576,
        moe: Some(MoeSizes {
            experts: 128,
            used: 4,
            shared: 1,
            ffn: 2048,
            dense_lead: 0,
            norm: true,
            ..EXPERTS
        }),
        yarn: Some((128.0, 8192, 1.0)),
        temperature: Some(0.1),
        ..LARGE
    },
    ModelSizes {
        name: "a.x-k1",
        circuit: "axk1",
        names: Some(("axk1", "axk1")),
        heads: 64,
        vocab: 163_840,
        context: 131_072,
        moe: Some(MoeSizes { experts: 192, dense_lead: 1, unbiased: true, ..V3_EXPERTS }),
        yarn: None,
        ..V3
    },
    ModelSizes { name: "a.x-k2", ..AXK2 },
    ModelSizes {
        name: "a.x-k2-light",
        layers: 48,
        hidden: 2048,
        heads: 32,
        q_lora: 384,
        kv_lora: 128,
        nope: 64,
        rope: 32,
        v: 64,
        ffn: 5120,
        indexer: Some((16, 128, 2048)),
        moe: Some(MoeSizes {
            experts: 128,
            ffn: 512,
            dense_lead: 1,
            groups: 1,
            groups_used: 1,
            ..V3_EXPERTS
        }),
        ..AXK2
    },
    ModelSizes {
        name: "kimi-linear",
        circuit: "kimi_linear",
        names: Some(("kimi-linear", "kimi_linear")),
        hidden: 2304,
        heads: 32,
        q_lora: 0,
        ffn: 9216,
        vocab: 163_840,
        context: 1_048_576,
        eps: 1e-5,
        rotates: false,
        kda: Some(KIMI_KDA),
        moe: Some(MoeSizes {
            experts: 256,
            used: 8,
            shared: 1,
            ffn: 1024,
            sigmoid: true,
            norm: true,
            scale: 2.446,
            ..EXPERTS
        }),
        ..LARGE
    },
    LING,
    ModelSizes {
        name: "ling-3-tiny",
        layers: 24,
        hidden: 1536,
        ffn: 4608,
        moe: Some(MoeSizes {
            experts: 128,
            used: 8,
            shared: 1,
            ffn: 512,
            sigmoid: true,
            norm: true,
            scale: 2.5,
            groups: 8,
            groups_used: 4,
            ..EXPERTS
        }),
        ..LING
    },
    ModelSizes {
        name: "small-kimi-linear",
        circuit: "kimi_linear",
        names: Some(("kimi-linear", "kimi_linear")),
        layers: 4,
        q_lora: 0,
        rotates: false,
        kda: Some(KdaSizes { heads: 3, width: 64, ..KIMI_KDA }),
        moe: Some(TINY_EXPERTS),
        ..PLAIN
    },
    ModelSizes {
        name: "small-ling-3",
        circuit: "bailing_hybrid",
        names: Some(("bailingmoe3", "bailing_hybrid")),
        layers: 4,
        q_lora: 0,
        theta: 6e6,
        gate: Some(OutputGate::PerHead),
        kda: Some(KdaSizes { heads: 2, width: 128, group: 2, ..LING_KDA }),
        moe: Some(MoeSizes { groups: 4, groups_used: 2, ..TINY_EXPERTS }),
        ..PLAIN
    },
    ModelSizes { name: "tiny-dense", ..PLAIN },
    ModelSizes {
        name: "tiny-v2",
        q_lora: 0,
        moe: Some(MoeSizes { experts: 8, used: 2, ffn: 256, ..EXPERTS }),
        yarn: Some((40.0, 256, 0.707)),
        ..PLAIN
    },
    ModelSizes {
        name: "tiny-v3",
        moe: Some(MoeSizes {
            experts: 16,
            used: 4,
            shared: 1,
            ffn: 256,
            sigmoid: true,
            norm: true,
            scale: 2.5,
            groups: 4,
            groups_used: 2,
            ..EXPERTS
        }),
        yarn: Some((40.0, 256, 1.0)),
        ..PLAIN
    },
    ModelSizes {
        name: "tiny-glm",
        heads: 5,
        nope: 192,
        v: 256,
        theta: 1e6,
        eps: 1e-5,
        moe: Some(MoeSizes {
            experts: 8,
            used: 4,
            shared: 1,
            ffn: 256,
            sigmoid: true,
            norm: true,
            scale: 1.8,
            ..EXPERTS
        }),
        ..PLAIN
    },
    ModelSizes {
        name: "tiny-glm-dsa",
        names: Some(("glm-dsa", "glm_moe_dsa")),
        theta: 1e6,
        eps: 1e-5,
        moe: Some(TINY_EXPERTS),
        indexer: Some((4, 128, 2048)),
        ..PLAIN
    },
    ModelSizes {
        name: "tiny-mistral4",
        names: Some(("mistral4", "mistral4")),
        nope: 64,
        moe: Some(MoeSizes { sigmoid: false, scale: 1.0, dense_lead: 0, ..TINY_EXPERTS }),
        yarn: Some((16.0, 256, 1.0)),
        temperature: Some(0.1),
        ..PLAIN
    },
    ModelSizes {
        name: "tiny-axk1",
        circuit: "axk1",
        names: Some(("axk1", "axk1")),
        moe: Some(MoeSizes { groups: 4, groups_used: 2, unbiased: true, ..TINY_EXPERTS }),
        ..PLAIN
    },
    ModelSizes {
        name: "tiny-axk2",
        circuit: "axk2",
        names: Some(("axk2", "axk2")),
        gate: Some(OutputGate::PerElement),
        norm_rank: Some(16),
        moe: Some(MoeSizes { groups: 4, groups_used: 2, ..TINY_EXPERTS }),
        indexer: Some((4, 128, 2048)),
        ..PLAIN
    },
    ModelSizes {
        name: "tiny-minicpm3",
        circuit: "minicpm3",
        nope: 64,
        rope: 32,
        v: 64,
        tied: true,
        eps: 1e-5,
        ..PLAIN
    },
    // An output gate per head, like Ling-3.0.
    ModelSizes { name: "tiny-gate", q_lora: 0, gate: Some(OutputGate::PerHead), ..PLAIN },
    // An output gate per element and no RoPE, like Kimi-K3 and GLM-5.3-Flash.
    ModelSizes { name: "tiny-nope", rope: 0, gate: Some(OutputGate::PerElement), ..PLAIN },
    ModelSizes { name: "tiny-plm", circuit: "plm", q_lora: 0, tied: true, ..PLAIN },
];

pub(crate) fn named(name: &str) -> Option<&'static ModelSizes> {
    SHAPES.iter().find(|shape| shape.name == name)
}

impl ModelSizes {
    /// The config of this shape, as it is read from a file that stores W_UK and W_UV in this form.
    pub(crate) fn config(&self, layers: Option<usize>, kv_form: KvForm) -> ModelConfig {
        let layers = layers.unwrap_or(self.layers);
        let moe = self.moe;
        let lead = moe.map_or(layers, |m| m.dense_lead);
        let scaled = self.circuit == "minicpm3";
        let yarn = |(factor, original, _)| RopeScaling::Yarn {
            factor,
            original,
            beta_fast: 32.0,
            beta_slow: 1.0,
            ext_factor: 1.0,
            magnitude: 1.0,
        };
        let scaling = self.yarn.map_or(RopeScaling::None, yarn);
        // DeepSeek multiplies the softmax scale by the square of YaRN's mscale.
        let growth = self.yarn.map_or(1.0, |(factor, _, mscale)| 1.0 + 0.1 * mscale * factor.ln());
        ModelConfig {
            circuit: self.circuit.into(),
            architecture: self.names.map_or(self.circuit, |(gguf, _)| gguf).into(),
            name: Some(format!("random {}", self.name)),
            vocab_size: self.vocab,
            hidden_size: self.hidden,
            layers,
            mtp_layers: 0,
            context_length: self.context,
            rms_eps: self.eps,
            attention: AttentionShape {
                heads: self.heads,
                // A rank of 0 means that queries have no latent.
                q_lora_rank: (self.q_lora > 0).then_some(self.q_lora),
                kv_lora_rank: self.kv_lora,
                nope: self.nope,
                rope: self.rope,
                v: self.v,
                softmax_scale: growth.powi(2) / ((self.nope + self.rope) as f64).sqrt(),
                temperature: self
                    .temperature
                    .and_then(|scale| Some(Temperature { scale, length: self.yarn?.1 })),
                output_gate: self.gate,
                indexer: self.indexer.map(|(heads, width, topk)| {
                    // GLM's indexer rotates interleaved pairs; DeepSeek-V3.2's and A.X-K2's rotate
                    // half-split (NeoX) pairs.
                    let halves = self.names.is_some_and(|(gguf, _)| matches!(gguf, "deepseek32" | "axk2"));
                    let pairs = if halves { RopePairs::NeoX } else { RopePairs::Interleaved };
                    IndexerShape { heads, width, topk, pairs }
                }),
            },
            kda: self.kda.map(|kda| Box::new(kda.shape(layers, kv_form))),
            rope: RopeSpec {
                base: if self.rope > 0 && self.rotates { self.theta } else { RopeSpec::none().base },
                pairs: if scaled { RopePairs::NeoX } else { RopePairs::Interleaved },
                dims: if self.rotates { self.rope } else { 0 },
                scaling,
            },
            layer_kinds: (0..layers)
                .map(|i| if i < lead { LayerKind::Dense } else { LayerKind::Moe })
                .collect(),
            intermediate_size: self.ffn,
            activation: if self.circuit == "plm" {
                FfnActivation::ReluSquared
            } else {
                FfnActivation::SiluGated
            },
            moe: moe.map(|moe| moe.shape(self.norm_rank.is_some())),
            embedding_scale: 1.0,
            residual_scale: 1.0,
            logits_scale: 1.0,
            tied_embeddings: self.tied,
            attention_bias: false,
            index_topk: self.indexer.map(|(.., topk)| topk),
            full_indexers: self.indexer.map_or_else(Vec::new, |_| vec![true; layers]),
            // llama.cpp splits kv_b only for circuits that it runs with absorbed weights; MiniCPM3
            // and PLM files hold it whole.
            kv_form: if !matches!(self.circuit, "minicpm3" | "plm") { kv_form } else { KvForm::Combined },
            query_gate: self.norm_rank.map(|_| match kv_form {
                KvForm::Separate => QueryGate::Separate,
                KvForm::Combined => QueryGate::Fused,
            }),
            norm_rank: self.norm_rank,
            part: None,
        }
    }

    /// Number of leading dense layers out of `layers`.
    pub(crate) fn dense_lead(&self, layers: usize) -> usize {
        self.moe.map_or(layers, |m| m.dense_lead)
    }

    pub(crate) fn shared_experts(&self) -> usize {
        self.moe.map_or(0, |m| m.shared)
    }

    /// `model_type` in config.json, if the shape has its own.
    pub(crate) fn model_type(&self) -> Option<&'static str> {
        self.names.map(|(_, hf)| hf)
    }

    /// YaRN: factor, original context, mscale_all_dim.
    pub(crate) fn yarn(&self) -> Option<(f64, usize, f64)> {
        self.yarn
    }
}

impl KdaSizes {
    /// The KDA shape as it is read from a file that stores W_UK and W_UV in this form.
    fn shape(self, layers: usize, kv_form: KvForm) -> KdaShape {
        let KdaSizes { heads, width, group, low_rank, bound } = self;
        KdaShape {
            heads,
            width,
            taps: 4,
            rank: low_rank.then_some(width),
            lower_bound: bound,
            // GGUF files store the decay rate itself, safetensors its logarithm. Safetensors files
            // always store the combined kv_b, so `kv_form` tells the two apart.
            rate: if kv_form == KvForm::Separate { DecayRate::Plain } else { DecayRate::Log },
            layers: (1..=layers).map(|layer| !layer.is_multiple_of(group) && layer != layers).collect(),
        }
    }
}

impl MoeSizes {
    /// With `zero_masked`, experts outside the chosen groups get the score 0 instead of being
    /// excluded.
    fn shape(self, zero_masked: bool) -> MoeShape {
        MoeShape {
            experts: self.experts,
            num_experts_per_tok: self.used,
            intermediate: self.ffn,
            shared_intermediate: self.ffn * self.shared,
            router: RouterSpec {
                gating: if self.sigmoid { Gating::Sigmoid } else { Gating::Softmax },
                bias: self.sigmoid && !self.unbiased,
                groups: self.groups,
                groups_used: self.groups_used,
                // DeepSeek-V3 scores a group by the sum of its two best experts, DeepSeek-V2 by its
                // best one.
                group_score: if self.sigmoid { GroupScore::TopTwoSum } else { GroupScore::Max },
                group_mask: if zero_masked { GroupMask::Zero } else { GroupMask::Excluded },
                normalise: self.norm,
                norm_floor: 0.0,
                scale: self.scale,
            },
            fused_gate_up: false,
        }
    }
}
