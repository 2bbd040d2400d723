"""The optimisers: Muon for the matrices, AdamW for everything else, over several processes.

Muon takes the momentum of a matrix and replaces it by (about) the nearest orthogonal matrix, found with a few
Newton-Schulz steps. Matrices of one shape are worked on as one batched product. The shapes are shared out
over the processes, and the updates meet in shared memory.
"""

from collections.abc import Iterable
from threading import Barrier
from typing import NamedTuple

import torch
from torch import Tensor, nn

Shape = tuple[int, int]
# The quintic x <- a x + (b (x x^T) + c (x x^T)^2) x that pulls all singular values towards 1.
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5


class Team(NamedTuple):
    """The processes that train together: this one's number, how many, and where they meet."""

    rank: int
    size: int
    updates: Tensor
    barrier: Barrier


def orthogonalised(matrices: Tensor) -> Tensor:
    """The matrices (N, m, n) with their singular values pulled to about 1; computed in bfloat16."""
    wide = matrices if matrices.shape[1] <= matrices.shape[2] else matrices.transpose(1, 2)
    a, b, c = NEWTON_SCHULZ
    x = (wide / (wide.norm(dim=(1, 2), keepdim=True) + 1e-7)).bfloat16().contiguous()
    for _ in range(NEWTON_SCHULZ_STEPS):
        square = torch.bmm(x, x.transpose(1, 2))
        polynomial = torch.baddbmm(square, square, square, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x if wide is matrices else x.transpose(1, 2)


def share_out(shapes: dict[Shape, list[Tensor]], size: int) -> dict[Shape, int]:
    """Which process works on which shape: the costliest first, each to the process with the least to do."""
    cost = {shape: sum(p.numel() for p in params) * min(shape) for shape, params in shapes.items()}
    busy, owner = [0] * size, {}
    for shape in sorted(cost, key=lambda shape: (-cost[shape], shape)):
        owner[shape] = busy.index(min(busy))
        busy[owner[shape]] += cost[shape]
    return owner


class Muon(torch.optim.Optimizer):
    """Momentum (Nesterov's), orthogonalised; weight decay is decoupled. Stacked matrices count one by one."""

    def __init__(
        self, params: Iterable[Tensor], lr: float, team: Team, momentum: float = 0.95, decay: float = 0.1
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": decay})
        self.team = team

    def lookahead(self, param: Tensor, momentum: float) -> Tensor:
        """The gradient moved towards its running mean, which it is added to first."""
        state = self.state[param]
        if "mean" not in state:
            state["mean"] = torch.zeros_like(param)
        state["mean"].lerp_(param.grad, 1 - momentum)
        return torch.lerp(param.grad, state["mean"], momentum).view(-1, *param.shape[-2:])

    @torch.no_grad()
    def step(self) -> None:
        """One step: every process computes its shapes' updates, waits for the others', applies all."""
        for group in self.param_groups:
            shapes: dict[Shape, list[Tensor]] = {}
            for param in group["params"]:
                shapes.setdefault(tuple(param.shape[-2:]), []).append(param)
            owner = share_out(shapes, self.team.size)
            in_order = [param for params in shapes.values() for param in params]
            sizes = [param.numel() for param in in_order]
            updates = dict(zip(in_order, self.team.updates[: sum(sizes)].split(sizes)))
            for shape, params in shapes.items():
                if owner[shape] != self.team.rank:
                    continue
                matrices = torch.cat([self.lookahead(param, group["momentum"]) for param in params])
                scale = max(1, shape[0] / shape[1]) ** 0.5
                results = orthogonalised(matrices).split(
                    [param.numel() // (shape[0] * shape[1]) for param in params]
                )
                for param, result in zip(params, results):
                    updates[param].view(-1, *shape).copy_(result).mul_(scale)
            self.team.barrier.wait()
            for param, update in updates.items():
                param.mul_(1 - group["lr"] * group["decay"]).add_(
                    update.view(param.shape), alpha=-group["lr"]
                )


def make_optimizers(
    model: nn.Module, kind: str, lr: float, muon_lr: float, team: Team
) -> list[torch.optim.Optimizer]:
    """AdamW alone ("adamw"), or "muon" for matrices other than embedding, head and routers."""
    matrices, decayed, plain = [], [], []
    for name, param in model.named_parameters():
        if param.ndim < 2:
            plain.append(param)
        elif kind == "muon" and name not in ("embedding", "head") and not name.endswith("router"):
            matrices.append(param)
        else:
            decayed.append(param)
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-10, fused=True)
    ]
    if matrices:
        optimizers.append(Muon(matrices, muon_lr, team))
    return optimizers
