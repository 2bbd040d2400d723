//! The hyper-parameters of a model.

use super::part::RankPart;
use super::rope::{RopePairs, RopeSpec};

/// Every hyper-parameter that a plan depends on.
///
/// Every field has been checked: dimensions are positive and bounded, products do not overflow, `num_experts_per_tok` is at most
/// `experts`, the rope size is even (or 0), the vocabulary agrees with the embedding.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct ModelConfig {
    /// Name of the circuit that runs it (a file of `graph/circuits`): `deepseek2`, `axk1`, `minicpm3` or `plm`.
    pub circuit: String,
    /// What the file calls its architecture: `general.architecture`, or `model_type` of config.json.
    pub architecture: String,
    /// The model's own name, where the file has one.
    pub name: Option<String>,
    /// Tokens in the vocabulary: rows of the embedding.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Decoder layers that a forward pass runs (multi-token-prediction layers not counted).
    pub layers: usize,
    /// Multi-token-prediction layers that follow them in the file; the first drafts where that is asked for.
    pub mtp_layers: usize,
    /// The longest context that the model was made for, in tokens.
    pub context_length: usize,
    /// The epsilon of RMSNorms; that of latents may differ: see [`norm_eps`](Self::norm_eps).
    pub rms_eps: f64,
    /// Shape and scale of the attention.
    pub attention: AttentionShape,
    /// Whether the projections to the latents and the output projection add a bias (`attention_bias`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub attention_bias: bool,
    /// Where the model was trained with sparse attention: to how many tokens each attends (`index_topk`), which an indexer chooses. Attention
    /// to all tokens is the same up to this many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index_topk: Option<usize>,
    /// Which of the `layers + mtp_layers` layers have an indexer of their own, where attention is sparse ([`AttentionShape::indexer`]); the
    /// others attend to the tokens that the nearest such layer before them has chosen.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub full_indexers: Vec<bool>,
    /// Layers with a recurrent state (Kimi Delta Attention), if the model has any in addition to those with latent attention.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kda: Option<Box<KdaShape>>,
    /// Rotary embedding of the rope parts.
    pub rope: RopeSpec,
    /// Which feed-forward block each of the `layers + mtp_layers` layers has.
    pub layer_kinds: Vec<LayerKind>,
    /// Width of the dense feed-forward block (0 where no layer is dense).
    pub intermediate_size: usize,
    /// Activation of the feed-forward blocks.
    pub activation: FfnActivation,
    /// Mixture of experts, where some layer has it.
    pub moe: Option<MoeShape>,
    /// Factor on embedding rows (1 where the model has none; MiniCPM3: 12).
    pub embedding_scale: f64,
    /// Factor on what each block adds to the residual stream (MiniCPM3: 1.4 / √layers).
    pub residual_scale: f64,
    /// Factor on the final hidden row before the lm_head (MiniCPM3: 256 / hidden_size).
    pub logits_scale: f64,
    /// Whether the lm_head is the embedding (tied).
    pub tied_embeddings: bool,
    /// How W_UK and W_UV are stored.
    pub kv_form: KvForm,
    /// How the projections to queries and to the output gate are stored, where the gate is made of the query's latent (A.X-K2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query_gate: Option<QueryGate>,
    /// Rank of the gates of the layers' norms, where they have such gates (A.X-K2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub norm_rank: Option<usize>,
    /// Which part of the model this is, where several ranks share it: heads and widths are then this rank's.
    #[serde(skip)]
    pub part: Option<Box<RankPart>>,
}

/// Sizes of Multi-head Latent Attention.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct AttentionShape {
    /// Query heads (as many as key and value heads when expanded).
    pub heads: usize,
    /// Rank of the query's low-rank projection; none where queries are projected directly.
    pub q_lora_rank: Option<usize>,
    /// Width of the latent: the cached part that keys and values are expanded from.
    pub kv_lora_rank: usize,
    /// Width of a head's part without position (`qk_nope_head_dim`).
    pub nope: usize,
    /// Width of a head's part whose key all heads share (`qk_rope_head_dim`): the one that is rotated, where the model rotates
    /// ([`RopeSpec::dims`]); 0 where it has none.
    pub rope: usize,
    /// Width of a head's value (`v_head_dim`).
    pub v: usize,
    /// Factor on q·k before softmax: 1/√(nope + rope), times YaRN's mscale² where the model has it. Never from the cached width.
    pub softmax_scale: f64,
    /// Attention temperature that grows with position (Mistral Large 3, Mistral Small 4), where the model has it.
    pub temperature: Option<Temperature>,
    /// The gate on the heads' results before the output projection, where the model has one.
    pub output_gate: Option<OutputGate>,
    /// The indexer of sparse attention; none where every row attends to all tokens before it.
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

    /// The kind of gate that a projection with this number of outputs computes.
    pub(super) fn gate_of(&self, outputs: Option<usize>) -> Result<OutputGate, String> {
        let of = |gate| AttentionShape { output_gate: Some(gate), ..*self }.gate_width();
        let kinds = [OutputGate::PerHead, OutputGate::PerElement];
        kinds.into_iter().find(|kind| outputs.is_some() && of(*kind) == outputs).ok_or_else(|| {
            let (heads, elements) = (self.heads, self.heads * self.v);
            format!("{heads} outputs: a gate for each head, or {elements}: for each element of its value")
        })
    }

    /// Elements of one expanded row, all heads: `heads · (nope + rope + v)`.
    pub fn expanded_width(&self) -> usize {
        self.heads * (self.nope + self.rope + self.v)
    }
}

/// Sizes of the indexer that chooses the tokens which sparse attention reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct IndexerShape {
    /// Heads of its query.
    pub heads: usize,
    /// Elements of a head, and of the key that all heads share.
    pub width: usize,
    /// How many tokens each row attends to (`index_topk`).
    pub topk: usize,
    /// How the first elements of a head, as many as the model rotates, pair up.
    pub pairs: RopePairs,
}

/// Sizes of Kimi Delta Attention, and the layers that have it in place of latent attention.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct KdaShape {
    /// Heads, each with a state of `width` × `width` elements.
    pub heads: usize,
    /// Elements of a head's query, key and value.
    pub width: usize,
    /// Tokens that the convolution of a channel sees, its own included (`short_conv_kernel_size`).
    pub taps: usize,
    /// Rank of the projections to decay and output gate; none where each is one matrix (`no_kda_lora`).
    pub rank: Option<usize>,
    /// The lower bound of the log decay (`kda_lower_bound`); none where the decay is `−exp(A_log) · softplus`.
    pub lower_bound: Option<f64>,
    /// How files store the rate of the decay.
    pub rate: DecayRate,
    /// Of every layer, multi-token-prediction layers included: whether it has a recurrent state.
    pub layers: Vec<bool>,
}

/// How a file stores the rate of a head's decay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DecayRate {
    /// As its logarithm, `A_log`: safetensors.
    Log,
    /// Itself, of either sign: `ssm_a` of GGUF files.
    Plain,
}

impl KdaShape {
    /// Elements of a row of queries, keys or values: all heads.
    pub fn channels(&self) -> usize {
        self.heads * self.width
    }

    /// Bytes of the state of one layer and sequence: that of each head, and the inputs of the convolutions of queries, keys and values.
    pub fn layer_bytes(&self) -> usize {
        size_of::<f32>() * self.channels() * (self.width + 3 * self.past())
    }

    /// Earlier inputs that a convolution keeps.
    pub fn past(&self) -> usize {
        self.taps - 1
    }
}

/// The gate on attention's output: `o ⊙ sigmoid(W_G x)`, x the normalized input of the attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputGate {
    /// One for each head (Ling-3.0).
    PerHead,
    /// One for each element of each head's value (Hy4, Kimi-K3).
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
        1.0 + self.scale * ((position / self.length) as f64 + 1.0).ln()
    }
}

/// The feed-forward block of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerKind {
    /// One MLP of `intermediate_size`.
    Dense,
    /// Routed experts, and shared ones where the model has them.
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
    /// One `attn_kv_b` [heads · (nope + v), kv_lora]: legacy GGUF files and every safetensors file.
    Combined,
}

/// How the projections from the query's latent to queries and output gates are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum QueryGate {
    /// As one matrix: it takes the normalized latent and the latent before its norm, and makes query and gate of each head.
    Fused,
    /// As two: of the normalized latent the queries, of the latent before its norm the gates.
    Separate,
}

/// Sizes of the mixture of experts and its router.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct MoeShape {
    /// Routed experts of a layer.
    pub experts: usize,
    /// How many of them a row goes to (top-k).
    pub num_experts_per_tok: usize,
    /// Width of one routed expert.
    pub intermediate: usize,
    /// Width of the shared expert, all shared ones together (0: none).
    pub shared_intermediate: usize,
    /// How rows are routed.
    pub router: RouterSpec,
    /// Whether gate and up of the experts are one tensor (`ffn_gate_up_exps`: gate rows first).
    pub fused_gate_up: bool,
}

/// How a router turns logits into experts and weights.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct RouterSpec {
    /// From logits to scores.
    pub gating: Gating,
    /// Whether a bias (`exp_probs_b`) is added for choosing; the weights use the scores without it.
    pub bias: bool,
    /// Groups that the experts are cut into (1: no groups).
    pub groups: usize,
    /// Groups that stay in the choice.
    pub groups_used: usize,
    /// What a group is judged by.
    pub group_score: GroupScore,
    /// What experts of other groups count as.
    #[serde(skip_serializing_if = "GroupMask::is_excluded")]
    pub group_mask: GroupMask,
    /// Whether the chosen weights are divided by their sum.
    pub normalise: bool,
    /// The sum is at least this before dividing (llama.cpp 6.103515625e-5; HF adds 1e-20).
    pub norm_floor: f64,
    /// Factor on the weights (`routed_scaling_factor`; 1: none).
    pub scale: f64,
}

/// From router logits to scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Gating {
    /// Softmax over all experts.
    Softmax,
    Sigmoid,
    /// Choose by the logits, then softmax over the chosen.
    SoftmaxOfSelected,
    SqrtSoftplus,
}

/// What a group of experts is judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupScore {
    /// The sum of its two best experts (models with a bias: DeepSeek-V3).
    TopTwoSum,
    /// Its best expert (DeepSeek-V2).
    Max,
}

/// What the experts of groups that do not stay in the choice count as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupMask {
    /// −∞: none of them is chosen.
    Excluded,
    /// 0, which is chosen before negative scores (A.X-K2).
    Zero,
}

impl GroupMask {
    fn is_excluded(&self) -> bool {
        *self == GroupMask::Excluded
    }
}

impl ModelConfig {
    /// Whether a layer has a recurrent state in place of latent attention.
    pub fn is_recurrent(&self, layer: usize) -> bool {
        self.kda.as_ref().and_then(|kda| kda.layers.get(layer)).copied().unwrap_or(false)
    }

    /// The same as files say it that store the rates of recurrent layers' decay so.
    #[must_use]
    pub fn with_rates(mut self, rate: DecayRate) -> ModelConfig {
        if let Some(kda) = &mut self.kda {
            kda.rate = rate;
        }
        self
    }

    /// Layers with latent attention that a forward pass runs.
    pub fn latent_layers(&self) -> usize {
        (0..self.layers).filter(|layer| !self.is_recurrent(*layer)).count()
    }

    /// Bytes of the recurrent state of one sequence, all layers together; 0 of models without.
    pub fn state_bytes(&self) -> usize {
        let layers = self.layers - self.latent_layers();
        self.kda.as_ref().map_or(0, |kda| layers * kda.layer_bytes())
    }

    /// All layers that the file holds: decoder layers, then multi-token-prediction layers.
    pub fn all_layers(&self) -> usize {
        self.layers + self.mtp_layers
    }

    /// The same model with attention to every token.
    #[must_use]
    pub fn without_indexer(&self) -> ModelConfig {
        let attention = AttentionShape { indexer: None, ..self.attention };
        ModelConfig { attention, full_indexers: Vec::new(), ..self.clone() }
    }

    /// Whether attention is sparse, and this layer chooses the tokens of its rows itself.
    pub fn has_indexer(&self, layer: usize) -> bool {
        self.attention.indexer.is_some() && self.full_indexers.get(layer).copied().unwrap_or(true)
    }
}
