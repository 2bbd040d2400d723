"""A linear layer with 4-bit weights: a module of torch where torch is installed, and the same over NumPy where it is not.

>>> layer = latent.MarlinLinear.from_linear(torch.nn.Linear(4096, 4096))
>>> layer(torch.randn(1, 4096)).shape
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from latent import _safetensors
from latent._latent import dequantize, pack_fp4_weights, pack_u4_sym_weights, pack_u4_weights, quantized_linear
from latent.errors import ArgumentError, FileError

try:
    import torch
except ImportError:
    torch = None

__all__ = ["MarlinLinear"]

PACK = {"fp4": pack_fp4_weights, "int4": pack_u4_weights, "int4_sym": pack_u4_sym_weights}
NAMES = ("packed", "scales", "zeros", "order", "bias")
SHIFTS = 4 * np.arange(8, dtype=np.uint32)


class Layer:
    """What this layer needs of torch.nn.Module, where that is not installed."""

    def register_buffer(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    register_parameter = register_buffer

    def __call__(self, x: Any) -> Any:
        return self.forward(x)

    def forward(self, x: Any) -> Any:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Its arrays by their names."""
        arrays = {name: getattr(self, name) for name in NAMES}
        return {name: array for name, array in arrays.items() if array is not None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes arrays over. Names, shapes and types must be those of this layer."""
        own = self.state_dict()
        if own.keys() != state.keys():
            raise ArgumentError(f"the state has {', '.join(state) or 'nothing'}, expected {', '.join(own)}")
        for name, array in own.items():
            found = np.asarray(state[name])
            if (found.shape, found.dtype) != (array.shape, array.dtype):
                raise ArgumentError(
                    f"{name} is {found.dtype} of shape {found.shape}, expected {array.dtype} of shape {array.shape}"
                )
        for name in own:
            setattr(self, name, np.array(state[name]))


if TYPE_CHECKING:
    # whether it is a module of torch is known when it runs
    from typing import Any as Base
else:
    Base = Layer if torch is None else torch.nn.Module


class MarlinLinear(Base):
    """y = x · W + bias with W `[in_features, out_features]` at 4 bits: inputs `[…, in_features]` of f32, f16 or bf16.

    A new layer's weights are zero: `from_linear`, `from_dense` and `from_gptq` make a layer of weights, `load_state_dict` and `load` of a state. The state
    has `packed` (words `[in_features / 8, out_features]`), `scales` (`[in_features / group_size, out_features]`), `zeros` for `int4`, `bias`, and with
    `act_order` the `order` in which inputs are read, so that those of a group follow one another. In torch, words are int32, results have the type of the
    inputs, gradients go to the inputs and the bias but not to the weights, and another type of the module is one of its bias alone.
    """

    packed: Any
    scales: Any
    zeros: Any
    order: Any
    bias: Any

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        quant_type: str = "fp4",
        group_size: int = 32,
        act_order: bool = False,
    ) -> None:
        super().__init__()
        if quant_type not in PACK:
            raise ArgumentError(f"quant_type {quant_type!r}: expected {', '.join(PACK)}")
        # a weight without columns says what is wrong with the sizes
        PACK[quant_type](np.zeros((in_features, 0), np.float32), group_size)
        self.in_features, self.out_features = in_features, out_features
        self.quant_type, self.group_size = quant_type, group_size
        groups = (in_features // group_size, out_features)
        zeros = np.zeros(groups, np.uint8) if quant_type == "int4" else None
        self._set_weight(np.zeros((in_features // 8, out_features), np.uint32), np.zeros(groups, np.float16), zeros)
        self._set_order(np.arange(in_features, dtype=np.int32) if act_order else None)
        self._set_bias(np.zeros(out_features, np.float32) if bias else None)

    @classmethod
    def from_linear(cls, linear: Any, quant_type: str = "fp4", group_size: int = 32) -> MarlinLinear:
        """Packs a layer with `weight` `[out_features, in_features]` and `bias`, such as torch.nn.Linear."""
        weight = linear.weight
        return cls.from_dense(_detached(weight).T, getattr(linear, "bias", None), quant_type, group_size)

    @classmethod
    def from_dense(cls, weight: Any, bias: Any = None, quant_type: str = "fp4", group_size: int = 32) -> MarlinLinear:
        """Packs a weight `[in_features, out_features]`."""
        weight = _detached(weight)
        if weight.ndim != 2:
            raise ArgumentError(f"weight has {weight.ndim} dimensions, expected 2: (in_features, out_features)")
        weight = weight.contiguous() if hasattr(weight, "contiguous") else np.ascontiguousarray(weight)
        in_features, out_features = weight.shape
        layer = cls(in_features, out_features, bias is not None, quant_type, group_size)
        layer._set_weight(*PACK[quant_type](weight, group_size))
        layer._take_bias(bias)
        return layer

    @classmethod
    def from_gptq(
        cls, qweight: Any, qzeros: Any, scales: Any, g_idx: Any = None, bias: Any = None, zero_offset: int = 1
    ) -> MarlinLinear:
        """The 4-bit tensors of a GPTQ checkpoint: `qweight` `[K/8, N]`, `qzeros` `[groups, N/8]`, `scales` `[groups, N]`, and `g_idx`, the group of each input.

        `zero_offset` is what the checkpoint leaves out of its zero points: 1, or 0 where `checkpoint_format` is `gptq_v2`.
        """
        words, zeros, scales = (np.asarray(_detached(tensor)) for tensor in (qweight, qzeros, scales))
        for name, array in (("qweight", words), ("qzeros", zeros), ("scales", scales)):
            if array.ndim != 2 or not array.size:
                raise ArgumentError(f"{name} has the shape {array.shape}, expected two dimensions")
        rows, n = words.shape
        k = 8 * rows if g_idx is None else len(g_idx)
        if 32 * rows != 4 * k:
            raise ArgumentError(f"qweight {words.shape} holds {32 * rows / max(k, 1):g} bits for each of {k} inputs, expected 4")
        groups = len(scales)
        if k % groups or scales.shape[1] != n:
            raise ArgumentError(f"scales has the shape {scales.shape}, expected (groups, {n}) with groups that divide {k}")
        if zeros.shape != (groups, n // 8) or n % 8:
            raise ArgumentError(f"qzeros has the shape {zeros.shape}, expected ({groups}, {n} / 8)")
        order = None if g_idx is None else _order(np.asarray(_detached(g_idx)), groups)
        layer = cls(k, n, bias is not None, "int4", k // groups, order is not None)
        zeros = (_unsigned(zeros)[:, :, None] >> SHIFTS) & 15
        zeros = (zeros.reshape(groups, n) + zero_offset).astype(np.uint8)
        words = _unsigned(words)
        if order is not None:
            codes = ((words[:, None] >> SHIFTS[:, None]) & 15).reshape(k, n)[order].reshape(rows, 8, n)
            words = np.bitwise_or.reduce(codes << SHIFTS[:, None], axis=1)
        layer._set_weight(words.copy(), scales.astype(np.float16), zeros)
        layer._set_order(order)
        layer._take_bias(bias)
        return layer

    def _set_weight(self, packed: Any, scales: Any, zeros: Any = None) -> None:
        if torch is not None:
            # many operations of torch know no uint32
            packed, scales = torch.from_numpy(packed.view(np.int32)), torch.from_numpy(scales)
            zeros = None if zeros is None else torch.from_numpy(zeros)
        self.register_buffer("packed", packed)
        self.register_buffer("scales", scales)
        self.register_buffer("zeros", zeros)

    def _set_order(self, order: Any) -> None:
        self.register_buffer("order", order if torch is None or order is None else torch.from_numpy(order))

    def _take_bias(self, bias: Any) -> None:
        if bias is None:
            return
        bias = _detached(bias)
        if tuple(bias.shape) != (self.out_features,):
            raise ArgumentError(f"bias has the shape {tuple(bias.shape)}, expected ({self.out_features},)")
        self._set_bias(bias.float().cpu().numpy() if hasattr(bias, "float") else bias.astype(np.float32))

    def _set_bias(self, bias: Any) -> None:
        if torch is not None and bias is not None:
            bias = torch.nn.Parameter(torch.from_numpy(bias), requires_grad=False)
        self.register_parameter("bias", bias)

    def _weight(self) -> dict[str, Any]:
        """The arguments that name the weight."""
        names = {"packed": self.packed, "scales": self.scales, "group_size": self.group_size}
        return names | {"zeros": self.zeros, "quant_type": self.quant_type}

    def forward(self, x: Any) -> Any:
        """x · W + bias: for a tensor of torch a tensor of its type, else an array of f32."""
        if torch is not None and isinstance(x, torch.Tensor):
            return Product.apply(x if self.order is None else x.index_select(-1, self.order), self.bias, self)
        if self.order is not None:
            x = np.take(x, np.asarray(self.order), -1)
        return quantized_linear(x, bias=_detached(self.bias), **self._weight())

    def dequantize(self) -> Any:
        """The weight `[in_features, out_features]` as an array of f32."""
        values = dequantize(**self._weight())
        return values if self.order is None else values[np.argsort(np.asarray(self.order))]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the state as a safetensors file, from which `load` makes the layer."""
        state = {name: _detached(array) for name, array in self.state_dict().items()}
        if torch is not None:
            state = {name: (array.float() if name == "bias" else array).cpu().numpy() for name, array in state.items()}
        _safetensors.write(path, state, {"quant_type": self.quant_type, "group_size": str(self.group_size)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> MarlinLinear:
        """A layer from a safetensors file that `save` wrote, with torch or without."""
        state, metadata = _safetensors.read(path)
        missing = [name for name in ("quant_type", "group_size") if name not in metadata]
        missing += [name for name in ("packed", "scales") if name not in state or state[name].ndim != 2]
        if missing:
            raise FileError(f"{os.fspath(path)} has no {', '.join(missing)} of a layer")
        rows, out_features = state["packed"].shape
        try:
            group_size = int(metadata["group_size"])
            layer = cls(
                8 * rows, out_features, "bias" in state, metadata["quant_type"], group_size, "order" in state
            )
            if "order" in state and not np.array_equal(np.sort(state["order"]), np.arange(8 * rows)):
                raise ValueError(f"order is not a permutation of {8 * rows} inputs")
            words = np.int32 if torch is not None else np.uint32
            state["packed"] = state["packed"].view(words)
            if torch is not None:
                state = {name: torch.from_numpy(array) for name, array in state.items()}
            layer.load_state_dict(state)
        except (ValueError, OverflowError, RuntimeError) as error:
            raise FileError(f"{os.fspath(path)}: {error}") from error
        return layer

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """What torch calls for `.to(…)`, `.half()` and the like."""
        scales = self.scales
        super()._apply(fn, recurse)
        if self.scales.dtype != scales.dtype:
            self.scales = scales.to(self.scales.device)
        return self

    def extra_repr(self) -> str:
        """What torch writes between the parentheses."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        kind = f"quant_type={self.quant_type!r}, group_size={self.group_size}"
        return f"{sizes}, bias={self.bias is not None}, {kind}{', act_order=True' if self.order is not None else ''}"

    if torch is None:

        def __repr__(self) -> str:
            return f"MarlinLinear({self.extra_repr()})"


def _unsigned(words: Any) -> Any:
    """Words as they are, without the sign that other packers' types have."""
    if words.dtype not in (np.int32, np.uint32):
        raise ArgumentError(f"packed integers are an array of {words.dtype}, expected int32")
    return np.ascontiguousarray(words).view(np.uint32)


def _order(g_idx: Any, groups: int) -> Any:
    """The inputs, group after group; None where they are stored so."""
    wrong = np.flatnonzero((g_idx < 0) | (g_idx >= groups))
    if wrong.size:
        at = wrong[0]
        raise ArgumentError(f"g_idx: input {at} belongs to group {g_idx[at]}, of {groups} groups")
    members = np.bincount(g_idx, minlength=groups)
    if (members != len(g_idx) // groups).any():
        group = np.flatnonzero(members != len(g_idx) // groups)[0]
        raise ArgumentError(f"g_idx: group {group} has {members[group]} inputs, expected {len(g_idx) // groups}")
    order = np.argsort(g_idx, kind="stable").astype(np.int32)
    return None if np.array_equal(order, np.arange(len(order))) else order


def _detached(array: Any) -> Any:
    """A tensor of torch without its gradient; others as they are."""
    return array.detach() if hasattr(array, "detach") else array


if torch is not None:

    class Product(torch.autograd.Function):
        """The product, whose weights take no gradient."""

        @staticmethod
        def forward(ctx: Any, x: Any, bias: Any, layer: Any) -> Any:
            ctx.layer = layer
            ctx.bias_type = None if bias is None else bias.dtype
            y = quantized_linear(x.detach().contiguous(), bias=_detached(bias), **layer._weight())
            return torch.from_numpy(y).to(x.dtype)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            of_x = of_bias = None
            if ctx.needs_input_grad[0]:
                of_x = gradient @ torch.from_numpy(dequantize(**ctx.layer._weight())).to(gradient.dtype).T
            if ctx.needs_input_grad[1]:
                of_bias = gradient.reshape(-1, gradient.shape[-1]).sum(0).to(ctx.bias_type)
            return of_x, of_bias, None
