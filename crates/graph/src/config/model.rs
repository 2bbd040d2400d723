//! The hyper-parameters of a model.

use super::part::RankPart;
use super::rope::{RopePairs, RopeSpec};

/// Every hyper-parameter that a plan depends on.
///
/// All fields are checked: dimensions are positive and bounded, products do not overflow,
/// `num_experts_per_tok` is at most `experts`, the rope size is even (or 0), and the vocabulary
/// agrees with the embedding.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct ModelConfig {
    /// Name of the circuit that runs it, a file of `graph/circuits` such as `deepseek2`.
    pub circuit: String,
    /// Architecture by the file: `general.architecture` of GGUF, or `model_type` of config.json.
    pub architecture: String,
    /// The model's name, if the file has one.
    pub name: Option<String>,
    /// Size of the vocabulary, which is the number of rows of the embedding.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Decoder layers of a forward pass, without MTP layers.
    pub layers: usize,
    /// MTP layers after them in the file. Only the first one is used, for drafts.
    pub mtp_layers: usize,
    /// Maximum context of the model in tokens.
    pub context_length: usize,
    /// Epsilon of RMSNorms. That of the latents' norms may differ: see
    /// [`norm_eps`](Self::norm_eps).
    pub rms_eps: f64,
    /// Shape and scale of the attention.
    pub attention: AttentionShape,
    /// Whether the projections to latents and the output projection have biases (`attention_bias`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub attention_bias: bool,
    /// Number of tokens to which each token attends, chosen by an indexer; `None` for models with
    /// dense attention. Dense attention gives the same results up to this many tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index_topk: Option<usize>,
    /// Whether each of the `layers + mtp_layers` layers has its own indexer, if attention is sparse
    /// ([`AttentionShape::indexer`]). The others attend to the selection of the nearest earlier
    /// layer with one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub full_indexers: Vec<bool>,
    /// Layers with a recurrent state (Kimi Delta Attention), if the model has any next to those
    /// with latent attention.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kda: Option<Box<KdaShape>>,
    /// Rotary embedding of the rope parts.
    pub rope: RopeSpec,
    /// Feed-forward block of each of the `layers + mtp_layers` layers.
    pub layer_kinds: Vec<LayerKind>,
    /// Width of the dense feed-forward block; 0 if no layer is dense.
    pub intermediate_size: usize,
    /// Activation of the feed-forward blocks.
    pub activation: FfnActivation,
    /// Mixture of experts, if some layer has it.
    pub moe: Option<MoeShape>,
    /// Factor on embedding rows (MiniCPM3: 12; 1 otherwise).
    pub embedding_scale: f64,
    /// Factor on each block's addition to the residual stream (MiniCPM3: 1.4 / √layers).
    pub residual_scale: f64,
    /// Factor on the final row before the lm_head (MiniCPM3: 256 / hidden_size).
    pub logits_scale: f64,
    /// Whether the lm_head is the embedding (tied).
    pub tied_embeddings: bool,
    /// How W_UK and W_UV are stored.
    pub kv_form: KvForm,
    /// How the projections to queries and output gate are stored, if the gate is computed from the
    /// query's latent (A.X-K2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query_gate: Option<QueryGate>,
    /// Rank of the gates of the layers' norms, if they have gates (A.X-K2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub norm_rank: Option<usize>,
    /// The rank's part of the model, if several ranks share it. Heads and widths are then those of
    /// the rank.
    #[serde(skip)]
    pub part: Option<Box<RankPart>>,
}

/// Sizes of Multi-head Latent Attention.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct AttentionShape {
    /// Query heads. Expanded keys and values have the same number of heads.
    pub heads: usize,
    /// Rank of the query's low-rank projection; `None` if queries are projected directly.
    pub q_lora_rank: Option<usize>,
    /// Width of the latent: the cached vector from which keys and values are expanded.
    pub kv_lora_rank: usize,
    /// Width of a head's part without position information (`qk_nope_head_dim`).
    pub nope: usize,
    /// Width of a head's part whose key all heads share (`qk_rope_head_dim`), 0 if it has none. It
    /// is rotated by position if the model rotates ([`RopeSpec::dims`]).
    pub rope: usize,
    /// Width of a head's value (`v_head_dim`).
    pub v: usize,
    /// Factor on q·k before softmax: 1/√(nope + rope), times YaRN's mscale² if the model has it. It
    /// never depends on the cached width.
    pub softmax_scale: f64,
    /// Attention temperature that grows with position (Mistral Large 3, Mistral Small 4).
    pub temperature: Option<Temperature>,
    /// The gate on the heads' results before the output projection, if any.
    pub output_gate: Option<OutputGate>,
    /// The indexer of sparse attention; `None` if every row attends to all earlier tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub indexer: Option<IndexerShape>,
}

impl AttentionShape {
    /// Elements of a cached latent row: `kv_lora_rank + rope`.
    pub fn latent_width(&self) -> usize {
        self.kv_lora_rank + self.rope
    }

    /// Elements of a row of the output gate; `None` without a gate.
    pub fn gate_width(&self) -> Option<usize> {
        self.output_gate.map(|gate| match gate {
            OutputGate::PerHead => self.heads,
            OutputGate::PerElement => self.heads * self.v,
        })
    }

    /// The kind of gate that a projection with `outputs` outputs computes.
    pub(super) fn gate_of(&self, outputs: Option<usize>) -> Result<OutputGate, String> {
        let of = |gate| AttentionShape { output_gate: Some(gate), ..*self }.gate_width();
        let kinds = [OutputGate::PerHead, OutputGate::PerElement];
        kinds.into_iter().find(|kind| outputs.is_some() && of(*kind) == outputs).ok_or_else(|| {
            let (heads, elements) = (self.heads, self.heads * self.v);
            format!("{heads} outputs: a gate for each head, or {elements}: for each element of its value")
        })
    }

    /// Elements of one expanded row over all heads: `heads · (nope + rope + v)`.
    pub fn expanded_width(&self) -> usize {
        self.heads * (self.nope + self.rope + self.v)
    }
}

/// Sizes of the indexer that selects tokens for sparse attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct IndexerShape {
    /// Heads of its query.
    pub heads: usize,
    /// Elements of a head, and of the key that all heads share.
    pub width: usize,
    /// Number of tokens to which each row attends (`index_topk`).
    pub topk: usize,
    /// Pairing of a head's first elements, which are rotated.
    pub pairs: RopePairs,
}

/// Sizes of Kimi Delta Attention, and the layers that have it instead of latent attention.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct KdaShape {
    /// Heads, each with a state of `width` × `width` elements.
    pub heads: usize,
    /// Elements of a head's query, key and value.
    pub width: usize,
    /// Taps of the short convolution, including the current token (`short_conv_kernel_size`).
    pub taps: usize,
    /// Rank of the projections to decay and output gate; `None` if each is one matrix
    /// (`no_kda_lora`, Ling-3.0).
    pub rank: Option<usize>,
    /// Lower bound of the log decay (`kda_lower_bound`, Ling-3.0); `None` if the decay is
    /// `−exp(A_log) · softplus` (Kimi-Linear).
    pub lower_bound: Option<f64>,
    /// How the file stores the rate of the decay.
    pub rate: DecayRate,
    /// Whether each layer, MTP layers included, has a recurrent state.
    pub layers: Vec<bool>,
}

/// How a file stores the rate of a head's decay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DecayRate {
    /// As a logarithm, `A_log`, in safetensors.
    Log,
    /// As itself, with either sign: `ssm_a` of GGUF files.
    Plain,
}

impl KdaShape {
    /// Elements of a row of queries, keys or values over all heads.
    pub fn channels(&self) -> usize {
        self.heads * self.width
    }

    /// Bytes of the state of one layer and sequence: the heads' matrices, and the past inputs of
    /// the convolutions of queries, keys and values.
    pub fn layer_bytes(&self) -> usize {
        // Per channel: a row of the head's matrix, and past inputs of three convolutions.
        size_of::<f32>() * self.channels() * (self.width + 3 * self.past())
    }

    /// Past inputs that a convolution stores.
    pub fn past(&self) -> usize {
        self.taps - 1
    }
}

/// The gate on attention's output: `o ⊙ sigmoid(W_G x)`, with x the normalized input of the
/// attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputGate {
    /// One gate per head (Ling-3.0).
    PerHead,
    /// One gate per element of each head's value (A.X-K2, Hy4, Kimi-K3).
    PerElement,
}

/// `q *= 1 + scale · ln(1 + ⌊position / length⌋)`, on the whole query after rope.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Temperature {
    /// The factor β.
    pub scale: f64,
    /// Positions over which the factor is constant.
    pub length: usize,
}

impl Temperature {
    /// The factor on a query at `position`.
    pub fn factor(&self, position: usize) -> f64 {
        // Integer division is the floor of the formula.
        1.0 + self.scale * ((position / self.length) as f64 + 1.0).ln()
    }
}

/// The feed-forward block of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerKind {
    /// One MLP of `intermediate_size`.
    Dense,
    /// Routed experts, and shared experts if the model has them.
    Moe,
}

/// The activation between the projections of a feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FfnActivation {
    /// down(silu(gate(x)) · up(x))
    SiluGated,
    /// down(relu(up(x))²), without a gate (PLM)
    ReluSquared,
}

/// How the two halves of `kv_b_proj` are stored in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KvForm {
    /// `attn_k_b` [heads, kv_lora, nope] (transposed) and `attn_v_b` [heads, v, kv_lora].
    Separate,
    /// One `attn_kv_b` [heads · (nope + v), kv_lora]: GGUF files from before April 2025, MiniCPM3
    /// and PLM files, and all safetensors.
    Combined,
}

/// How the projections from the query's latent to queries and output gates are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum QueryGate {
    /// As one matrix over the normalized latent and the latent before its norm, with query and gate
    /// of each head as outputs (safetensors).
    Fused,
    /// As two matrices: queries from the normalized latent, gates from the latent before its norm
    /// (GGUF).
    Separate,
}

/// Sizes of the mixture of experts and its router.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct MoeShape {
    /// Routed experts per layer.
    pub experts: usize,
    /// Experts per row (top-k).
    pub num_experts_per_tok: usize,
    /// Width of one routed expert.
    pub intermediate: usize,
    /// Width of all shared experts together; 0 if there are none. They are stored as one wide MLP.
    pub shared_intermediate: usize,
    /// The router.
    pub router: RouterSpec,
    /// Whether gate and up of the experts are one tensor, gate rows first (`ffn_gate_up_exps` of
    /// GGUF, Mistral Small 4).
    pub fused_gate_up: bool,
}

/// How a router turns logits into experts and weights.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct RouterSpec {
    /// Function from logits to scores.
    pub gating: Gating,
    /// Whether a bias (`exp_probs_b`) is added for the selection. The weights use the scores
    /// without it (DeepSeek-V3's balancing without an auxiliary loss).
    pub bias: bool,
    /// Number of groups of experts; 1 without groups.
    pub groups: usize,
    /// Number of groups from which experts are selected.
    pub groups_used: usize,
    /// Score of a group.
    pub group_score: GroupScore,
    /// Scores of experts in the other groups.
    #[serde(skip_serializing_if = "GroupMask::is_excluded")]
    pub group_mask: GroupMask,
    /// Whether the weights of the selected experts are divided by their sum.
    pub normalise: bool,
    /// Lower bound of the sum before the division (llama.cpp: 6.103515625e-5; Transformers adds
    /// 1e-20).
    pub norm_floor: f64,
    /// Factor on the weights (`routed_scaling_factor`).
    pub scale: f64,
}

/// The function from router logits to scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Gating {
    /// Softmax over all experts.
    Softmax,
    Sigmoid,
    /// Selection by logits, then softmax over the selected experts.
    SoftmaxOfSelected,
    SqrtSoftplus,
}

/// The score of a group of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupScore {
    /// The sum of its two best experts (models with a bias, such as DeepSeek-V3).
    TopTwoSum,
    /// The score of its best expert (DeepSeek-V2).
    Max,
}

/// The scores of experts in groups that are not selected (ADR 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupMask {
    /// −∞: these experts are never selected.
    Excluded,
    /// 0, which ranks above negative scores (A.X-K2).
    Zero,
}

impl GroupMask {
    fn is_excluded(&self) -> bool {
        *self == GroupMask::Excluded
    }
}

impl ModelConfig {
    /// Whether a layer has a recurrent state instead of latent attention.
    pub fn is_recurrent(&self, layer: usize) -> bool {
        self.kda.as_ref().and_then(|kda| kda.layers.get(layer)).copied().unwrap_or(false)
    }

    /// The same model, as in files that store the decay rates of recurrent layers in this form.
    #[must_use]
    pub fn with_rates(mut self, rate: DecayRate) -> ModelConfig {
        if let Some(kda) = &mut self.kda {
            kda.rate = rate;
        }
        self
    }

    /// Number of decoder layers with latent attention.
    pub fn latent_layers(&self) -> usize {
        (0..self.layers).filter(|layer| !self.is_recurrent(*layer)).count()
    }

    /// Bytes of the recurrent state of one sequence over all layers; 0 without recurrent layers.
    pub fn state_bytes(&self) -> usize {
        let layers = self.layers - self.latent_layers();
        self.kda.as_ref().map_or(0, |kda| layers * kda.layer_bytes())
    }

    /// Number of layers in the file: decoder layers, then MTP layers.
    pub fn all_layers(&self) -> usize {
        self.layers + self.mtp_layers
    }

    /// The same model with dense attention.
    #[must_use]
    pub fn without_indexer(&self) -> ModelConfig {
        let attention = AttentionShape { indexer: None, ..self.attention };
        ModelConfig { attention, full_indexers: Vec::new(), ..self.clone() }
    }

    /// Whether attention is sparse and this layer selects the tokens itself.
    pub fn has_indexer(&self, layer: usize) -> bool {
        self.attention.indexer.is_some() && self.full_indexers.get(layer).copied().unwrap_or(true)
    }
}
