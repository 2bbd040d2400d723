//! The shapes of public models, and toy sizes of the same wiring.

use latent_graph::config::{
    AttentionShape, FfnActivation, Gating, GroupScore, KvForm, LayerKind, ModelConfig, MoeShape, OutputGate,
    RopePairs, RopeScaling, RopeSpec, RouterSpec, Temperature,
};

/// Names of all shapes.
pub fn shapes() -> impl Iterator<Item = &'static str> {
    SHAPES.iter().map(|shape| shape.name)
}

/// The sizes that make a shape.
#[derive(Clone, Copy)]
pub(crate) struct ModelSizes {
    pub(crate) name: &'static str,
    circuit: &'static str,
    /// What GGUF files and config.json call the architecture, where that is not the circuit's name and DeepSeek's.
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
    /// factor, original context, mscale_all_dim
    yarn: Option<(f64, usize, f64)>,
    /// Tokens that sparse attention reads, where the model was trained with it; the indexer, which nothing reads, is not written.
    index_topk: Option<usize>,
    /// β of the attention temperature, over YaRN's original context.
    temperature: Option<f64>,
}

#[derive(Clone, Copy)]
struct MoeSizes {
    experts: usize,
    used: usize,
    shared: usize,
    ffn: usize,
    dense_lead: usize,
    sigmoid: bool,
    /// Whether sigmoid scores are chosen by without a bias.
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
    index_topk: None,
    temperature: None,
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

/// Few experts of toy size.
const TINY_EXPERTS: MoeSizes =
    MoeSizes { experts: 16, used: 4, shared: 1, ffn: 256, sigmoid: true, norm: true, scale: 2.5, ..EXPERTS };

const SHAPES: [ModelSizes; 21] = [
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
        index_topk: Some(2048),
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
        index_topk: Some(2048),
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
        index_topk: Some(2048),
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
        name: "tiny-minicpm3",
        circuit: "minicpm3",
        nope: 64,
        rope: 32,
        v: 64,
        tied: true,
        eps: 1e-5,
        ..PLAIN
    },
    // as Ling-3.0 has it: a gate for each head
    ModelSizes { name: "tiny-gate", q_lora: 0, gate: Some(OutputGate::PerHead), ..PLAIN },
    // as Kimi-K3 and GLM-5.3-Flash have them: a gate for each element, no rope
    ModelSizes { name: "tiny-nope", rope: 0, gate: Some(OutputGate::PerElement), ..PLAIN },
    ModelSizes { name: "tiny-plm", circuit: "plm", q_lora: 0, tied: true, ..PLAIN },
];

pub(crate) fn named(name: &str) -> Option<&'static ModelSizes> {
    SHAPES.iter().find(|shape| shape.name == name)
}

impl ModelSizes {
    /// The config of this shape, as read from a file of this kind.
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
            magnitude: 1.0,
        };
        let scaling = self.yarn.map_or(RopeScaling::None, yarn);
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
            },
            rope: RopeSpec {
                base: if self.rope > 0 { self.theta } else { RopeSpec::none().base },
                pairs: if scaled { RopePairs::NeoX } else { RopePairs::Interleaved },
                dims: self.rope,
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
            moe: moe.map(MoeSizes::shape),
            embedding_scale: 1.0,
            residual_scale: 1.0,
            logits_scale: 1.0,
            tied_embeddings: self.tied,
            attention_bias: false,
            index_topk: self.index_topk,
            kv_form: if matches!(self.circuit, "deepseek2" | "axk1") { kv_form } else { KvForm::Combined },
            part: None,
        }
    }

    /// Leading dense layers, of `layers`.
    pub(crate) fn dense_lead(&self, layers: usize) -> usize {
        self.moe.map_or(layers, |m| m.dense_lead)
    }

    /// Shared experts.
    pub(crate) fn shared_experts(&self) -> usize {
        self.moe.map_or(0, |m| m.shared)
    }

    /// `model_type` of config.json, where the shape has one of its own.
    pub(crate) fn model_type(&self) -> Option<&'static str> {
        self.names.map(|(_, hf)| hf)
    }

    /// YaRN: factor, original context, mscale_all_dim.
    pub(crate) fn yarn(&self) -> Option<(f64, usize, f64)> {
        self.yarn
    }
}

impl MoeSizes {
    fn shape(self) -> MoeShape {
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
                group_score: if self.sigmoid { GroupScore::TopTwoSum } else { GroupScore::Max },
                normalise: self.norm,
                norm_floor: 0.0,
                scale: self.scale,
            },
            fused_gate_up: false,
        }
    }
}
