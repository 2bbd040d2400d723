"""The model's elementwise and small operations as pure functions, in one place so that they can be compiled.

`compile_all` has PyTorch fuse each of them. Callers therefore name them through this module (`ops.swiglu`),
never by import of the name.

Shapes: B rows of a batch, L positions, T = B L tokens, k experts a token. Weights are float32 and are cast to
the type of the computation (bfloat16 in training) where they are used; norms, softmax and the residual stream
stay in float32.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from config import RMS_NORM_EPS, ModelConfig

COMPILED = (
    "attention_inputs",
    "attention_output",
    "causal_softmax",
    "causal_softmax_gradient",
    "swiglu",
    "add_experts",
    "weighted_cross_entropy",
)


def compile_all() -> None:
    """Replaces functions of this module by compiled ones; shapes are dynamic, as lengths vary by batch."""
    functions = globals()
    for name in COMPILED:
        functions[name] = torch.compile(functions[name], dynamic=True)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """`x` over its root mean square along the last axis, times `weight`; float32."""
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + RMS_NORM_EPS) * weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates pairs that lie half the width apart: x (B, L, heads, width), cos and sin (L, width / 2)."""
    half = x.shape[-1] // 2
    first, second = x[..., :half].float(), x[..., half:].float()
    cos, sin = cos[: x.shape[1], None, :], sin[: x.shape[1], None, :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


def attention_inputs(
    x: Tensor,
    norms: tuple[Tensor, Tensor, Tensor],
    weights: tuple[Tensor, Tensor, Tensor],
    rotary: tuple[Tensor, Tensor],
    config: ModelConfig,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys (B H, L, qk width) and values (B H, L, v width) of multi-head latent attention.

    `norms`: of the input, of the compressed query, of the latent. `weights`: down projections stacked (query,
    latent, rotary key), query up projection, key and value up projection. The rotary key is one for all
    heads.
    """
    input_norm, query_norm, latent_norm = norms
    down, query_up, key_value_up = weights
    batch, length, _ = x.shape
    heads, nope = config.num_attention_heads, config.qk_nope_head_dim
    compressed = F.linear(rms_norm(x, input_norm).to(dtype), down.to(dtype))
    query, latent, rotary_key = compressed.split(
        [config.q_lora_rank, config.kv_lora_rank, config.qk_rope_head_dim], -1
    )
    query = F.linear(rms_norm(query, query_norm).to(dtype), query_up.to(dtype))
    query = query.view(batch, length, heads, config.qk_head_dim)
    key_value = F.linear(rms_norm(latent, latent_norm).to(dtype), key_value_up.to(dtype))
    key_value = key_value.view(batch, length, heads, nope + config.v_head_dim)
    query = torch.cat([query[..., :nope], rotate(query[..., nope:], *rotary)], -1)
    rotary_key = rotate(rotary_key[:, :, None, :], *rotary).expand(
        batch, length, heads, config.qk_rope_head_dim
    )
    key = torch.cat([key_value[..., :nope], rotary_key], -1)

    def by_head(t: Tensor) -> Tensor:
        return t.transpose(1, 2).reshape(batch * heads, length, t.shape[-1])

    return by_head(query), by_head(key), by_head(key_value[..., nope:])


def attention_output(
    x: Tensor, attended: Tensor, weight: Tensor, norm: Tensor, config: ModelConfig, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The residual stream after attention (B, L, hidden), and its norm for what follows (T, hidden)."""
    batch, length, width = x.shape
    heads, v_dim = config.num_attention_heads, config.v_head_dim
    attended = (
        attended.view(batch, heads, length, v_dim).transpose(1, 2).reshape(batch, length, heads * v_dim)
    )
    x = x + F.linear(attended, weight.to(dtype)).float()
    return x, rms_norm(x, norm).view(batch * length, width)


def causal_softmax(scores: Tensor, bias: Tensor, head_dim: int) -> Tensor:
    """Softmax of scores over the root of `head_dim`; `bias` is 0 up to a row's own position, then -inf."""
    scaled = scores.float() * head_dim**-0.5 + bias
    exponentials = (scaled - scaled.amax(-1, keepdim=True)).exp()
    return (exponentials / exponentials.sum(-1, keepdim=True)).to(scores.dtype)


def causal_softmax_gradient(probabilities: Tensor, gradient: Tensor, delta: Tensor, head_dim: int) -> Tensor:
    """Gradient of the scores; `delta` is the sum of gradient times probability over a row."""
    result = probabilities.float() * (gradient.float() - delta) * head_dim**-0.5
    return result.to(probabilities.dtype)


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) times up, the two stacked along the last axis."""
    gate, up = gate_up.chunk(2, -1)
    return (F.silu(gate.float()) * up.float()).to(gate_up.dtype)


def add_experts(x: Tensor, routed: Tensor, weights: Tensor, shared: Tensor) -> Tensor:
    """`x` plus the weighted sum of each token's experts and the shared expert; `routed` is (T k, hidden)."""
    tokens, per_token = weights.shape
    total = (routed.view(tokens, per_token, -1).float() * weights[..., None]).sum(1)
    return x + (total + shared.float()).view_as(x)


def weighted_cross_entropy(
    hidden: Tensor, norm: Tensor, head: Tensor, targets: Tensor, weights: Tensor, dtype: torch.dtype
) -> Tensor:
    """Sum over tokens of weight times -log p(target); `hidden` (T, hidden) is not normed yet."""
    logits = F.linear(rms_norm(hidden, norm).to(dtype), head.to(dtype)).float()
    loss = logits.logsumexp(-1) - logits.gather(1, targets[:, None])[:, 0]
    return (loss * weights).sum()
