"""Operations with a hand-written backward, because PyTorch's own are slow on a CPU at this size.

Attention: the flash kernel's bfloat16 backward is slower than plain blocked products. Experts: a gather's
backward scatters with additions, but a permutation's can be a gather as well; and the products of all experts
write into one tensor, with no copies to join them.
"""

from typing import Any

import torch
from torch import Tensor

import ops

ATTENTION_BLOCK = 256


class CausalAttention(torch.autograd.Function):
    """Attention in blocks of rows that skip the keys after them: q, k (N, L, qk width), v (N, L, v width)."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        length, head_dim = q.shape[1:]
        output = torch.empty_like(v)
        probabilities = []
        for start in range(0, length, ATTENTION_BLOCK):
            end = min(start + ATTENTION_BLOCK, length)
            scores = torch.bmm(q[:, start:end], k[:, :end].transpose(1, 2))
            bias = torch.full((end - start, end), float("-inf")).triu(start + 1)
            block = ops.causal_softmax(scores, bias, head_dim)
            output[:, start:end] = torch.bmm(block, v[:, :end])
            probabilities.append(block)
        ctx.save_for_backward(q, k, v, output, *probabilities)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, output, *probabilities = ctx.saved_tensors
        length, head_dim = q.shape[1:]
        gradient = gradient.contiguous()
        delta = (gradient.float() * output.float()).sum(-1, keepdim=True)
        # Keys and values gather from several blocks: in float32.
        dq, dk, dv = torch.empty_like(q), torch.zeros(k.shape), torch.zeros(v.shape)
        for start, block in zip(range(0, length, ATTENTION_BLOCK), probabilities):
            end = min(start + ATTENTION_BLOCK, length)
            rows = gradient[:, start:end]
            d_block = torch.bmm(rows, v[:, :end].transpose(1, 2))
            d_scores = ops.causal_softmax_gradient(block, d_block, delta[:, start:end], head_dim)
            dq[:, start:end] = torch.bmm(d_scores, k[:, :end])
            dk[:, :end] += torch.bmm(d_scores.transpose(1, 2), q[:, start:end])
            dv[:, :end] += torch.bmm(block.transpose(1, 2), rows)
        return dq, dk.to(q.dtype), dv.to(q.dtype)


class ToExpertOrder(torch.autograd.Function):
    """Rows of x (T, width) for the T k pairs of token and expert, in the order of the experts.

    `order` lists the pairs by expert (pair = token k + slot), `inverse` is where each pair went.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor, per_token: int) -> Tensor:
        ctx.save_for_backward(inverse)
        ctx.per_token = per_token
        return x[order // per_token]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (inverse,) = ctx.saved_tensors
        return gradient[inverse].view(-1, ctx.per_token, gradient.shape[1]).sum(1), None, None, None


class ToTokenOrder(torch.autograd.Function):
    """Rows in the order of the experts back into the order of the pairs."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(order)
        return y[inverse]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (order,) = ctx.saved_tensors
        return gradient[order], None, None


class GroupedLinear(torch.autograd.Function):
    """y = x w[e]^T for the rows of each expert e: x (rows, in) sorted by expert, w (experts, out, in)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, counts: list[int]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.counts = counts
        y = x.new_empty(x.shape[0], weight.shape[1])
        start = 0
        for expert, count in enumerate(counts):
            end = start + count
            torch.mm(x[start:end], weight[expert].t(), out=y[start:end])
            start = end
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        gradient = gradient.contiguous()
        dx, d_weight = torch.empty_like(x), torch.empty_like(weight)
        start = 0
        for expert, count in enumerate(ctx.counts):
            end = start + count
            torch.mm(gradient[start:end], weight[expert], out=dx[start:end])
            torch.mm(gradient[start:end].t(), x[start:end], out=d_weight[expert])
            start = end
        return dx, d_weight, None
