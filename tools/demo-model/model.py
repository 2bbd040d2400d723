"""The model: DeepSeek-V3's decoder with latent attention, sigmoid-routed experts and an MTP layer.

Initial values are drawn in a fixed order, so a seed gives one model. Rotary rows of the projections are kept
as an even half and an odd half, which is faster to rotate; export.py puts them back into interleaved pairs.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ops
from autograd import CausalAttention, GroupedLinear, ToExpertOrder, ToTokenOrder
from config import DEMO, ModelConfig

# The MTP layer is trained on one of this many rows of a batch, to save time.
MTP_ROW_SHARE = 4


def ones(size: int) -> nn.Parameter:
    """A norm's weight."""
    return nn.Parameter(torch.ones(size))


def normal(*shape: int, std: float | None = None) -> nn.Parameter:
    """A normally distributed matrix; by default such that it keeps the variance of its input."""
    return nn.Parameter(torch.randn(*shape) * (std or shape[-1] ** -0.5))


def route(hidden: Tensor, gate: Tensor, bias: Tensor, config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Weights and indices, both (T, k), of the experts each token goes to.

    Scores are sigmoids. The choice is made on score plus bias, among the best groups; the weights are of the
    scores alone. A group's score is the sum of its two best experts', here of all, as a group has two.
    """
    scores = F.linear(hidden, gate).sigmoid()
    group_size = config.n_routed_experts // config.n_group
    with torch.no_grad():
        biased = scores + bias
        group_scores = biased.view(-1, config.n_group, group_size).sum(-1)
        best_groups = group_scores.topk(config.topk_group, dim=-1)[1]
        allowed = (
            torch.zeros_like(group_scores).scatter_(1, best_groups, 1.0).repeat_interleave(group_size, 1)
        )
        indices = biased.masked_fill(allowed == 0, float("-inf")).topk(config.num_experts_per_tok, dim=-1)[1]
    weights = scores.gather(1, indices)
    return weights / (weights.sum(-1, keepdim=True) + 1e-20) * config.routed_scaling_factor, indices


class Block(nn.Module):
    """A decoder layer. `load` counts the tokens each expert got since it was last set to zero."""

    bias: Tensor
    load: Tensor

    def __init__(self, config: ModelConfig, has_experts: bool) -> None:
        super().__init__()
        self.config = config
        hidden, heads = config.hidden_size, config.num_attention_heads
        query_rank, latent_rank, rope = config.q_lora_rank, config.kv_lora_rank, config.qk_rope_head_dim
        attended = heads * config.v_head_dim
        self.input_norm, self.ffn_norm = ones(hidden), ones(hidden)
        self.query_norm, self.latent_norm = ones(query_rank), ones(latent_rank)
        self.down = normal(query_rank + latent_rank + rope, hidden)
        self.query_up = normal(heads * config.qk_head_dim, query_rank)
        self.key_value_up = normal(heads * (config.qk_nope_head_dim + config.v_head_dim), latent_rank)
        # Projections into the residual stream start with smaller weights in deeper models.
        residual = (2 * config.num_hidden_layers) ** -0.5
        self.output = normal(hidden, attended, std=residual * attended**-0.5)
        self.has_experts = has_experts
        width = config.moe_intermediate_size if has_experts else config.intermediate_size
        # The shared expert, or the feed-forward part of a dense layer.
        self.gate_up, self.ffn_down = (
            normal(2 * width, hidden),
            normal(hidden, width, std=residual * width**-0.5),
        )
        if has_experts:
            experts = config.n_routed_experts
            self.router = normal(experts, hidden, std=0.02)
            self.expert_gate_up = normal(experts, 2 * width, hidden)
            self.expert_down = normal(experts, hidden, width, std=residual * width**-0.5)
            self.register_buffer("bias", torch.zeros(experts))
            self.register_buffer("load", torch.zeros(experts), persistent=False)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], dtype: torch.dtype) -> Tensor:
        """The residual stream (B, L, hidden) after this layer."""
        norms = self.input_norm, self.query_norm, self.latent_norm
        weights = self.down, self.query_up, self.key_value_up
        q, k, v = ops.attention_inputs(x, norms, weights, rotary, self.config, dtype)
        attended = CausalAttention.apply(q, k, v)
        x, hidden = ops.attention_output(x, attended, self.output, self.ffn_norm, self.config, dtype)
        narrow = hidden.to(dtype)
        dense = F.linear(ops.swiglu(F.linear(narrow, self.gate_up.to(dtype))), self.ffn_down.to(dtype))
        if not self.has_experts:
            return x + dense.float().view_as(x)
        shares, indices = route(hidden, self.router, self.bias, self.config)
        return ops.add_experts(x, self.experts(narrow, indices), shares, dense)

    def experts(self, hidden: Tensor, indices: Tensor) -> Tensor:
        """Each token (T, hidden) through each of its experts: (T k, hidden)."""
        per_token = indices.shape[1]
        flat = indices.reshape(-1)
        order = flat.argsort(stable=True)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(len(order))
        counts = torch.bincount(flat, minlength=self.config.n_routed_experts)
        if self.training:
            self.load += counts
        sizes = counts.tolist()
        rows = ToExpertOrder.apply(hidden, order, inverse, per_token)
        rows = GroupedLinear.apply(rows, self.expert_gate_up.to(hidden.dtype), sizes)
        rows = GroupedLinear.apply(ops.swiglu(rows), self.expert_down.to(hidden.dtype), sizes)
        return ToTokenOrder.apply(rows, order, inverse)


class Model(nn.Module):
    """Embedding, layers, head, and an MTP layer that guesses the token after the next."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig = DEMO) -> None:
        super().__init__()
        self.config = config
        hidden = config.hidden_size
        self.embedding = normal(config.vocab_size, hidden, std=0.5)
        self.head = normal(config.vocab_size, hidden, std=0.02)
        self.norm = ones(hidden)
        dense = config.first_k_dense_replace
        self.layers = nn.ModuleList([Block(config, i >= dense) for i in range(config.num_hidden_layers)])
        self.mtp = Block(config, has_experts=True)
        self.mtp_embedding_norm, self.mtp_hidden_norm, self.mtp_norm = (
            ones(hidden),
            ones(hidden),
            ones(hidden),
        )
        self.mtp_projection = normal(hidden, 2 * hidden)
        width = config.qk_rope_head_dim
        frequencies = 1.0 / (config.rope_theta ** (torch.arange(0, width, 2).float() / width))
        angles = torch.arange(config.max_position_embeddings).float()[:, None] * frequencies
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def blocks(self) -> list[Block]:
        """The layers and then the MTP layer, as a checkpoint numbers them."""
        return [*self.layers, self.mtp]

    def trunk(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """The residual stream after the last layer (B, L, hidden), not normed, of ids (B, L)."""
        x = F.embedding(ids, self.embedding)
        for block in self.layers:
            x = block(x, (self.cos, self.sin), dtype)
        return x

    def mtp_trunk(self, x: Tensor, next_ids: Tensor, dtype: torch.dtype) -> Tensor:
        """The MTP layer's output for the trunk's output `x` and the tokens one position further on.

        It reads the hidden state after the model's output norm, as the programs that run such models have it.
        """
        embedded = ops.rms_norm(F.embedding(next_ids, self.embedding), self.mtp_embedding_norm)
        hidden = ops.rms_norm(ops.rms_norm(x, self.norm), self.mtp_hidden_norm)
        joined = F.linear(torch.cat([embedded, hidden], -1).to(dtype), self.mtp_projection.to(dtype)).float()
        return self.mtp(joined, (self.cos, self.sin), dtype)

    def loss(self, ids: Tensor, weights: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Mean weighted loss of the next token, and of the MTP layer's guess on a part of the rows."""
        x = self.trunk(ids[:, :-1], dtype)
        loss = self.mean_loss(x, self.norm, ids[:, 1:], weights[:, 1:], dtype)
        rows = -(-len(ids) // MTP_ROW_SHARE)
        x, ids, weights = x[:rows], ids[:rows], weights[:rows]
        guess = self.mtp_trunk(x[:, :-1], ids[:, 1:-1], dtype)
        return loss, self.mean_loss(guess, self.mtp_norm, ids[:, 2:], weights[:, 2:], dtype)

    def mean_loss(
        self, x: Tensor, norm: Tensor, targets: Tensor, weights: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """Cross entropy of `targets`, averaged with `weights`."""
        weights = weights.reshape(-1)
        hidden = x.reshape(-1, self.config.hidden_size)
        total = ops.weighted_cross_entropy(hidden, norm, self.head, targets.reshape(-1), weights, dtype)
        return total / weights.sum()

    def logits(self, ids: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Logits (B, L, vocabulary) in float32."""
        return F.linear(
            ops.rms_norm(self.trunk(ids, dtype), self.norm).to(dtype), self.head.to(dtype)
        ).float()
