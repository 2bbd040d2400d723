"""Linear layer with 4-bit weights: a torch.nn.Module if torch is installed, otherwise over NumPy.

>>> layer = latent.MarlinLinear.from_linear(torch.nn.Linear(4096, 4096), device="gpu:0")
>>> layer(torch.randn(1, 4096)).shape
>>> model = latent.quantize_model(model, skip=("lm_head",))
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from latent import _safetensors
from latent._latent import (
    DeviceArray,
    DeviceWeight,
    dequantize,
    device_name,
    pack_fp4_weights,
    pack_u4_sym_weights,
    pack_u4_weights,
    quantized_linear,
)
from latent.errors import ArgumentError, FileError

try:
    import torch
except ImportError:
    torch = None

__all__ = ["MarlinLinear", "quantize_model"]

PACK = {"fp4": pack_fp4_weights, "int4": pack_u4_weights, "int4_sym": pack_u4_sym_weights}
NAMES = ("packed", "scales", "zeros", "order", "bias")
SHIFTS = 4 * np.arange(8, dtype=np.uint32)
# Which of eight consecutive outputs each position of an AWQ word holds, lowest bits first.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


class Layer:
    """The methods of torch.nn.Module that `MarlinLinear` uses, if torch is not installed."""

    def register_buffer(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    register_parameter = register_buffer

    def __call__(self, x: Any) -> Any:
        return self.forward(x)

    def forward(self, x: Any) -> Any:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return the arrays of the layer by name."""
        arrays = {name: getattr(self, name) for name in NAMES}
        return {name: array for name, array in arrays.items() if array is not None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy arrays into the layer. Names, shapes and types must match those of the layer."""
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
    # Whether the base is torch.nn.Module is known only at run time.
    from typing import Any as Base
else:
    Base = Layer if torch is None else torch.nn.Module


class MarlinLinear(Base):
    """Linear layer y = x @ W + bias with a 4-bit weight W of shape (in_features, out_features).

    The weights of a new layer are zero. `from_linear`, `from_dense`, `from_gptq`, `from_awq` and
    `from_compressed_tensors` create a layer from weights, and `load` from a file.

    With a `device`, the first product copies the weight to the GPU, where it stays. The weight is
    copied again after the state was replaced; writes into a NumPy array are not detected. If the
    input is a `DeviceArray`, so is the result.

    With torch, results have the type of the inputs. Inputs and bias receive gradients; weights do
    not. Converting the module to another type converts the bias only.

    Parameters
    ----------
    in_features, out_features : int
        Size of the inputs and of the results.
    bias : bool, default True
        Whether the layer has a bias.
    quant_type : {"fp4", "int4", "int4_sym"}
        Type of the codes.
    group_size : int, default 32
        Number of consecutive inputs that share a scale.
    act_order : bool, default False
        Whether the layer permutes its inputs, so that the inputs of a group are consecutive.
    device : str, optional
        "gpu", "gpu:N", "auto" or "cpu". By default the CPU.

    Attributes
    ----------
    packed : uint32 array (int32 with torch) of shape (in_features / 8, out_features)
    scales : array of shape (in_features / group_size, out_features)
    zeros : uint8 array of the shape of `scales`, or None
        Zero points of "int4".
    order : int32 array of shape (in_features,), or None
        Order in which inputs are read.
    bias : array of shape (out_features,), or None
    """

    packed: Any
    scales: Any
    zeros: Any
    order: Any
    bias: Any
    # The weight and the bias on the device, with the arrays that they were copied from.
    _sent: Any = None
    _sent_bias: Any = None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        quant_type: str = "fp4",
        group_size: int = 32,
        act_order: bool = False,
        device: str | None = None,
    ) -> None:
        super().__init__()
        if quant_type not in PACK:
            raise ArgumentError(f"quant_type {quant_type!r}: expected {', '.join(PACK)}")
        # Packing a weight without columns only validates the sizes.
        PACK[quant_type](np.zeros((in_features, 0), np.float32), group_size)
        self.in_features, self.out_features = in_features, out_features
        self.quant_type, self.group_size = quant_type, group_size
        self.scale_type, self.tensor_scale = "f16", None
        self.to_device(device)
        groups = (in_features // group_size, out_features)
        zeros = np.zeros(groups, np.uint8) if quant_type == "int4" else None
        self._set_weight(np.zeros((in_features // 8, out_features), np.uint32), np.zeros(groups, np.float16), zeros)
        self._set_order(np.arange(in_features, dtype=np.int32) if act_order else None)
        self._set_bias(np.zeros(out_features, np.float32) if bias else None)

    @classmethod
    def from_linear(
        cls, linear: Any, quant_type: str = "fp4", group_size: int = 32, device: str | None = None
    ) -> MarlinLinear:
        """Create a layer from a dense layer such as torch.nn.Linear.

        `linear.weight` has the shape (out_features, in_features). `linear.bias` may be None.
        """
        weight = linear.weight
        return cls.from_dense(_detached(weight).T, getattr(linear, "bias", None), quant_type, group_size, device)

    @classmethod
    def from_dense(
        cls,
        weight: Any,
        bias: Any = None,
        quant_type: str = "fp4",
        group_size: int = 32,
        device: str | None = None,
    ) -> MarlinLinear:
        """Create a layer from a dense weight of shape (in_features, out_features)."""
        weight = _detached(weight)
        if weight.ndim != 2:
            raise ArgumentError(f"weight has {weight.ndim} dimensions, expected 2: (in_features, out_features)")
        weight = weight.contiguous() if hasattr(weight, "contiguous") else np.ascontiguousarray(weight)
        in_features, out_features = weight.shape
        layer = cls(in_features, out_features, bias is not None, quant_type, group_size, device=device)
        layer._set_weight(*PACK[quant_type](weight, group_size))
        layer._take_bias(bias)
        return layer

    @classmethod
    def from_gptq(
        cls,
        qweight: Any,
        qzeros: Any = None,
        scales: Any = None,
        g_idx: Any = None,
        bias: Any = None,
        zero_offset: int = 1,
        prefix: str = "",
        device: str | None = None,
    ) -> MarlinLinear:
        """Create a layer from the 4-bit tensors of a GPTQ checkpoint.

        Parameters
        ----------
        qweight : int32 array of shape (K / 8, N), module, or mapping
            A module or a state dict contains all tensors; the other tensors are then ignored.
        qzeros : int32 array of shape (groups, N / 8)
        scales : array of shape (groups, N)
        g_idx : int array of shape (K,), optional
            Group of each input.
        bias : array of shape (N,), optional
        zero_offset : int, default 1
            Value to add to the stored zero points. 0 if `checkpoint_format` is "gptq_v2".
        prefix : str
            Prefix of the names in a state dict.
        device : str, optional
            As for `MarlinLinear`.
        """
        names = ("qweight", "qzeros", "scales", "g_idx", "bias")
        tensors = _tensors(qweight, names, prefix, (qweight, qzeros, scales, g_idx, bias))
        words, zeros, scales, g_idx, bias = (tensors[name] for name in names)
        words, zeros, scales = _matrices({"qweight": words, "qzeros": zeros, "scales": scales})
        rows, n = words.shape
        k = 8 * rows if g_idx is None else len(g_idx)
        if 32 * rows != 4 * k:
            raise ArgumentError(f"qweight {words.shape} holds {32 * rows / max(k, 1):g} bits for each of {k} inputs, expected 4")
        groups = _groups("scales", scales, k, n)
        if zeros.shape != (groups, n // 8) or n % 8:
            raise ArgumentError(f"qzeros has the shape {zeros.shape}, expected ({groups}, {n} / 8)")
        zeros = (_unsigned(zeros)[:, :, None] >> SHIFTS) & 15
        zeros = (zeros.reshape(groups, n) + zero_offset).astype(np.uint8)
        codes = ((_unsigned(words)[:, None] >> SHIFTS[:, None]) & 15).reshape(k, n)
        return cls._of_codes(codes, scales, zeros, g_idx, bias, device)

    @classmethod
    def from_awq(
        cls,
        qweight: Any,
        qzeros: Any = None,
        scales: Any = None,
        bias: Any = None,
        prefix: str = "",
        device: str | None = None,
    ) -> MarlinLinear:
        """Create a layer from the 4-bit tensors of an AWQ checkpoint of version "gemm".

        Parameters
        ----------
        qweight : int32 array of shape (K, N / 8), module, or mapping
            A module or a state dict contains all tensors; the other tensors are then ignored.
        qzeros : int32 array of shape (groups, N / 8)
        scales : array of shape (groups, N)
        bias : array of shape (N,), optional
        prefix : str
            Prefix of the names in a state dict.
        device : str, optional
            As for `MarlinLinear`.
        """
        names = ("qweight", "qzeros", "scales", "bias")
        tensors = _tensors(qweight, names, prefix, (qweight, qzeros, scales, bias))
        words, zeros, scales, bias = (tensors[name] for name in names)
        words, zeros, scales = _matrices({"qweight": words, "qzeros": zeros, "scales": scales})
        k, n = words.shape[0], 8 * words.shape[1]
        groups = _groups("scales", scales, k, n)
        if zeros.shape != (groups, words.shape[1]):
            raise ArgumentError(f"qzeros has the shape {zeros.shape}, expected ({groups}, {words.shape[1]})")
        places = np.argsort(AWQ_ORDER)

        def codes(packed: Any) -> Any:
            return ((_unsigned(packed)[:, :, None] >> SHIFTS[places]) & 15).reshape(len(packed), n)

        return cls._of_codes(codes(words), scales, codes(zeros).astype(np.uint8), None, bias, device)

    @classmethod
    def from_compressed_tensors(
        cls,
        weight_packed: Any,
        weight_scale: Any = None,
        weight_zero_point: Any = None,
        weight_g_idx: Any = None,
        weight_global_scale: Any = None,
        bias: Any = None,
        prefix: str = "",
        device: str | None = None,
    ) -> MarlinLinear:
        """Create a layer from the tensors of a compressed-tensors checkpoint.

        The format is "pack-quantized" (4 bits), "nvfp4-pack-quantized" or "mxfp4-pack-quantized".

        Parameters
        ----------
        weight_packed : array, module, or mapping
            int32 of shape (N, K / 8) for integers, uint8 of shape (N, K / 2) for FP4. A module or
            a state dict contains all tensors; the other tensors are then ignored.
        weight_scale : array of shape (N, groups)
        weight_zero_point : array, optional
            int32 of shape (N / 8, groups), or int8 of shape (N, groups).
        weight_g_idx : int array of shape (K,), optional
            Group of each input.
        weight_global_scale : array of one element, optional
            Divisor of the scales, for NVFP4.
        bias : array of shape (N,), optional
        prefix : str
            Prefix of the names in a state dict.
        device : str, optional
            As for `MarlinLinear`.
        """
        names = ("weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx", "weight_global_scale", "bias")
        given = (weight_packed, weight_scale, weight_zero_point, weight_g_idx, weight_global_scale, bias)
        tensors = _tensors(weight_packed, names, prefix, given)
        words, scales, zeros, g_idx, divisor, bias = (tensors[name] for name in names)
        scale_type = _byte_scales(scales)
        if scale_type == "e8m0" and divisor is not None:
            # uint8 from a reader without E4M3: only NVFP4 has a global scale, MXFP4 has none.
            scale_type = "e4m3"
        words, scales = _matrices({"weight_packed": words, "weight_scale": scales})
        n = len(words)
        if words.dtype == np.uint8:
            if scale_type is None or zeros is not None or g_idx is not None:
                raise ArgumentError(
                    f"weight_packed is FP4 and weight_scale {scales.dtype}, expected float8_e4m3fn (NVFP4) or uint8 (MXFP4) and neither zero points nor g_idx"
                )
            k = 2 * words.shape[1]
            codes = np.stack([words & 15, words >> 4], -1).reshape(n, k).T.astype(np.uint32)
            groups = _groups("weight_scale", scales.T, k, n, transposed=True)
            if scale_type == "e4m3":
                if divisor is None:
                    raise ArgumentError("weight_global_scale is missing, which NVFP4 has")
                tensor_scale = 1 / float(_host(divisor).reshape(-1)[0])
                if not 0 < tensor_scale < np.inf:
                    raise ArgumentError(f"weight_global_scale is {_host(divisor)}, expected a positive number")
            else:
                tensor_scale = None
            layer = cls(k, n, bias is not None, "fp4", k // groups, device=device)
            layer.scale_type, layer.tensor_scale = scale_type, tensor_scale
            layer._set_weight(_words(codes), np.ascontiguousarray(scales.T))
            layer._take_bias(bias)
            return layer
        k = 8 * words.shape[1]
        groups = _groups("weight_scale", scales.T, k, n, transposed=True)
        codes = ((_unsigned(words)[:, :, None] >> SHIFTS) & 15).reshape(n, k).T
        if zeros is not None:
            zeros = _host(zeros)
            rows = n if zeros.dtype == np.int8 else -(-n // 8)
            if zeros.shape != (rows, groups):
                raise ArgumentError(f"weight_zero_point has the shape {zeros.shape}, expected ({rows}, {groups})")
            if zeros.dtype == np.int8:
                # Signed: 8 was added to the stored integers, but not to these zero points.
                zeros = zeros.astype(np.int16) + 8
                if zeros.min() < 0 or zeros.max() > 16:
                    raise ArgumentError(f"weight_zero_point is from {zeros.min() - 8} to {zeros.max() - 8}, expected -8 to 8")
            else:
                zeros = ((_unsigned(zeros)[:, None] >> SHIFTS[:, None]) & 15).reshape(8 * rows, groups)[:n]
            zeros = np.ascontiguousarray(zeros.T).astype(np.uint8)
        return cls._of_codes(codes, np.ascontiguousarray(scales.T), zeros, g_idx, bias, device)

    @classmethod
    def _of_codes(
        cls, codes: Any, scales: Any, zeros: Any, g_idx: Any, bias: Any, device: str | None
    ) -> MarlinLinear:
        """Create a layer from codes of shape (K, N). `zeros` is None for a zero point of 8."""
        (k, n), groups = codes.shape, len(scales)
        order = None if g_idx is None else _order(_host(g_idx), k, groups)
        kind = "int4_sym" if zeros is None else "int4"
        layer = cls(k, n, bias is not None, kind, k // groups, order is not None, device)
        with np.errstate(over="ignore"):
            halves = scales.astype(np.float16)
        wrong = np.argwhere(~np.isfinite(halves))
        if len(wrong):
            group, column = wrong[0]
            raise ArgumentError(f"the scale of group {group} and column {column} is {scales[group, column]}, beyond f16")
        layer._set_weight(_words(codes if order is None else codes[order]), halves, zeros)
        layer._set_order(order)
        layer._take_bias(bias)
        return layer

    def _set_weight(self, packed: Any, scales: Any, zeros: Any = None) -> None:
        if torch is not None:
            # Many operations of torch do not support uint32.
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
        """Return the arguments of `quantized_linear` that describe the weight."""
        names = {"packed": self.packed, "scales": self.scales, "group_size": self.group_size}
        if self.scale_type != "f16":
            names |= {"scale_type": self.scale_type, "tensor_scale": self.tensor_scale}
        return names | {"zeros": self.zeros, "quant_type": self.quant_type}

    def to_device(self, device: str | None) -> MarlinLinear:
        """Set the device of products: "gpu", "gpu:N" or "auto". "cpu" or None is the CPU."""
        if device is not None and not isinstance(device, str):
            raise ArgumentError(f"device is {device!r}, expected cpu, auto, gpu or gpu:N")
        # Raises ArgumentError for an unknown name.
        self.device = None if device is None else device_name(device)
        self._sent = self._sent_bias = None
        return self

    def _resident(self) -> Any:
        """Return the weight on the device. Copy it there if it has changed since the last copy."""
        arrays = tuple(getattr(self, name) for name in NAMES[:4])
        state = [(array, getattr(array, "_version", 0)) for array in arrays]
        same = self._sent is not None and all(
            one is other and version == known
            for (one, version), (other, known) in zip(state, self._sent[1], strict=True)
        )
        if not same:
            weight = {name: _detached(value) for name, value in self._weight().items() if value is not None}
            order = None if self.order is None else _detached(self.order)
            self._sent = (DeviceWeight(**weight, order=order, device=self.device), state)
        return self._sent[0]

    def _resident_bias(self, device: str) -> Any:
        """Return the bias on the device. Copy it there if it has changed since the last copy."""
        if self.bias is None:
            return None
        bias = np.asarray(_host(self.bias), np.float32)
        if self._sent_bias is None or self._sent_bias[0] != device or not np.array_equal(self._sent_bias[1], bias):
            self._sent_bias = (device, bias.copy(), DeviceArray(bias, device))
        return self._sent_bias[2]

    def _device_product(self, x: Any) -> Any:
        weight = self._resident()
        return quantized_linear(x, weight, bias=self._resident_bias(weight.device))

    def __getstate__(self) -> dict[str, Any]:
        # A copied or unpickled layer copies its weight to the device again.
        return {name: value for name, value in self.__dict__.items() if name not in ("_sent", "_sent_bias")}

    def forward(self, x: Any) -> Any:
        """Compute x @ W + bias.

        Returns a torch tensor of the same type, a `DeviceArray`, or a float32 array, by the type
        of `x`.
        """
        if isinstance(x, DeviceArray) and self.device is None:
            raise ArgumentError(f"x is on {x.device} and the layer on the CPU: layer.to_device({x.device!r}) has it there too")
        if torch is not None and isinstance(x, torch.Tensor):
            reordered = self.order is not None and self.device is None
            return Product.apply(x.index_select(-1, self.order) if reordered else x, self.bias, self)
        if self.device is not None:
            return self._device_product(x)
        if self.order is not None:
            x = np.take(x, np.asarray(self.order), -1)
        return quantized_linear(x, bias=_detached(self.bias), **self._weight())

    def dequantize(self) -> Any:
        """Return the weight as a float32 array of shape (in_features, out_features)."""
        values = dequantize(**self._weight())
        return values if self.order is None else values[np.argsort(np.asarray(self.order))]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the layer to a safetensors file. `load` reads it, with or without torch."""
        state = {name: _detached(array) for name, array in self.state_dict().items()}
        if torch is not None:
            state = {name: (array.float() if name == "bias" else array).cpu().numpy() for name, array in state.items()}
        metadata = {"quant_type": self.quant_type, "group_size": str(self.group_size)}
        if self.scale_type != "f16":
            metadata["scale_type"] = self.scale_type
        if self.tensor_scale is not None:
            metadata["tensor_scale"] = float(self.tensor_scale).hex()
        _safetensors.write(path, state, metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: str | None = None) -> MarlinLinear:
        """Create a layer from a safetensors file that `save` has written."""
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
            layer._set_scales(metadata.get("scale_type", "f16"), metadata.get("tensor_scale"))
            if "order" in state and not np.array_equal(np.sort(state["order"]), np.arange(8 * rows)):
                raise ValueError(f"order is not a permutation of {8 * rows} inputs")
            words = np.int32 if torch is not None else np.uint32
            state["packed"] = state["packed"].view(words)
            if torch is not None:
                state = {name: torch.from_numpy(array) for name, array in state.items()}
            layer.load_state_dict(state)
        except (ValueError, OverflowError, RuntimeError) as error:
            raise FileError(f"{os.fspath(path)}: {error}") from error
        return layer.to_device(device)

    def _set_scales(self, scale_type: str, tensor_scale: str | None) -> None:
        """Set the format of the scales from the metadata of a file."""
        if scale_type == "f16" and tensor_scale is None:
            return
        if scale_type not in ("e8m0", "e4m3") or (tensor_scale is not None) != (scale_type == "e4m3"):
            raise ValueError(f"scale_type {scale_type!r} with tensor_scale {tensor_scale}")
        self.scale_type = scale_type
        self.tensor_scale = None if tensor_scale is None else float.fromhex(tensor_scale)
        scales = np.zeros(tuple(self.scales.shape), np.uint8)
        self.scales = scales if torch is None else torch.from_numpy(scales)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Convert tensors for `.to()`, `.half()` and the like. Scales keep their type."""
        scales = self.scales
        super()._apply(fn, recurse)
        if self.scales.dtype != scales.dtype:
            self.scales = scales.to(self.scales.device)
        return self

    def extra_repr(self) -> str:
        """Return the text between the parentheses of `repr`."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        kind = f"quant_type={self.quant_type!r}, group_size={self.group_size}"
        rest = ", act_order=True" if self.order is not None else ""
        rest += f", device={self.device!r}" if self.device is not None else ""
        return f"{sizes}, bias={self.bias is not None}, {kind}{rest}"

    if torch is None:

        def __repr__(self) -> str:
            return f"MarlinLinear({self.extra_repr()})"


def quantize_model(
    module: Any,
    skip: Iterable[str] = ("lm_head",),
    quant_type: str = "fp4",
    group_size: int = 32,
    device: str | None = None,
) -> Any:
    """Replace every torch.nn.Linear in a module by a `MarlinLinear`.

    Subclasses of torch.nn.Linear are not replaced. A layer with several names is quantized once.

    Parameters
    ----------
    module : torch.nn.Module
        Modified in place.
    skip : iterable of str
        Layers to keep: full names ("model.layers.0.mlp.gate"), components of names ("lm_head"), or
        names of enclosing modules.
    quant_type, group_size, device
        As for `MarlinLinear`.

    Returns
    -------
    torch.nn.Module
        `module`, or the new layer if `module` is a torch.nn.Linear.

    Raises
    ------
    latent.errors.ArgumentError
        If the sizes of a layer do not suit `group_size`. No layer is replaced then.
    """
    if torch is None:
        raise ArgumentError("quantize_model needs torch, which is not installed")
    if not isinstance(module, torch.nn.Module):
        raise ArgumentError(f"module is a {type(module).__name__}, expected a torch.nn.Module")
    if quant_type not in PACK:
        raise ArgumentError(f"quant_type {quant_type!r}: expected {', '.join(PACK)}")
    skipped = {skip} if isinstance(skip, str) else set(skip)
    if type(module) is torch.nn.Linear:
        return MarlinLinear.from_linear(module, quant_type, group_size, device)
    found = []
    for name, parent in module.named_modules(remove_duplicate=False):
        for child_name, child in parent.named_children():
            whole = f"{name}.{child_name}" if name else child_name
            parts = whole.split(".")
            around = {".".join(parts[:end]) for end in range(1, len(parts) + 1)} | set(parts)
            if type(child) is not torch.nn.Linear or around & skipped:
                continue
            try:
                # Packing a weight without columns only validates the sizes.
                PACK[quant_type](np.zeros((child.in_features, 0), np.float32), group_size)
            except ArgumentError as error:
                raise ArgumentError(f"{whole}: {error}; leave it as it is with skip=({child_name!r},)") from error
            found.append((whole, parent, child_name, child))
    layers: dict[Any, MarlinLinear] = {}
    for whole, parent, child_name, child in found:
        if child not in layers:
            try:
                layers[child] = MarlinLinear.from_linear(child, quant_type, group_size, device)
            except ArgumentError as error:
                raise ArgumentError(f"{whole}: {error}") from error
        setattr(parent, child_name, layers[child])
    return module


def _tensors(source: Any, names: tuple[str, ...], prefix: str, given: tuple[Any, ...]) -> dict[str, Any]:
    """Return tensors by name, from a state dict or a module, or `given` if `source` is a tensor."""
    first = names[0]
    if isinstance(source, Mapping):
        found = {name: source.get(prefix + name) for name in names}
        if found[first] is None:
            raise ArgumentError(f"the state has no {prefix}{first}; {_some(source)}")
        return found
    if hasattr(source, first):
        return {name: getattr(source, name, None) for name in names}
    if prefix:
        raise ArgumentError(f"prefix {prefix!r} belongs to a state dict, but {first} is a {type(source).__name__}")
    return dict(zip(names, given, strict=True))


def _some(state: Mapping[str, Any]) -> str:
    names = [str(name) for name in state]
    return f"it has {', '.join(names[:8])}{' …' if len(names) > 8 else ''}" if names else "it is empty"


def _matrices(tensors: dict[str, Any]) -> list[Any]:
    """Convert two-dimensional tensors to arrays."""
    found = []
    for name, tensor in tensors.items():
        if tensor is None:
            raise ArgumentError(f"{name} is missing")
        array = _host(tensor)
        if array.ndim != 2 or not array.size:
            raise ArgumentError(f"{name} has the shape {array.shape}, expected two dimensions")
        found.append(array)
    return found


def _groups(name: str, scales: Any, k: int, n: int, transposed: bool = False) -> int:
    """Return the number of groups of scales of shape (groups, N)."""
    groups = len(scales)
    if k % groups or scales.shape[1] != n:
        expected = f"({n}, groups)" if transposed else f"(groups, {n})"
        found = scales.shape[::-1] if transposed else scales.shape
        raise ArgumentError(f"{name} has the shape {found}, expected {expected} with groups that divide {k}")
    return groups


def _byte_scales(scales: Any) -> str | None:
    """Return the format of 8-bit scales, or None for other types."""
    kind = str(getattr(scales, "dtype", "")).removeprefix("torch.")
    return {"float8_e4m3fn": "e4m3", "float8_e8m0fnu": "e8m0", "uint8": "e8m0"}.get(kind)


def _host(tensor: Any) -> Any:
    """Convert a tensor to an array: bfloat16 to float32, 8-bit floats to their bits as uint8."""
    tensor = _detached(tensor)
    kind = str(getattr(tensor, "dtype", "")).removeprefix("torch.")
    if torch is not None and isinstance(tensor, torch.Tensor):
        tensor = tensor.cpu()
        if kind == "bfloat16":
            tensor = tensor.float()
    elif kind == "bfloat16":
        tensor = tensor.astype(np.float32)
    if kind in ("float8_e4m3fn", "float8_e8m0fnu"):
        tensor = tensor.view(np.uint8 if isinstance(tensor, np.ndarray) else torch.uint8)
    return np.asarray(tensor)


def _words(codes: Any) -> Any:
    """Pack eight codes along K per word, the first in the lowest bits."""
    k, n = codes.shape
    eights = np.ascontiguousarray(codes, np.uint32).reshape(k // 8, 8, n)
    return np.bitwise_or.reduce(eights << SHIFTS[:, None], axis=1)


def _unsigned(words: Any) -> Any:
    """Reinterpret int32 words as uint32."""
    if words.dtype not in (np.int32, np.uint32):
        raise ArgumentError(f"packed integers are an array of {words.dtype}, expected int32")
    return np.ascontiguousarray(words).view(np.uint32)


def _order(g_idx: Any, k: int, groups: int) -> Any:
    """Return the order that makes inputs of a group consecutive, or None if they already are."""
    if g_idx.shape != (k,):
        raise ArgumentError(f"g_idx has the shape {g_idx.shape}, expected ({k},)")
    wrong = np.flatnonzero((g_idx < 0) | (g_idx >= groups))
    if wrong.size:
        at = wrong[0]
        raise ArgumentError(f"g_idx: input {at} belongs to group {g_idx[at]}, of {groups} groups")
    members = np.bincount(g_idx, minlength=groups)
    if (members != k // groups).any():
        group = np.flatnonzero(members != k // groups)[0]
        raise ArgumentError(f"g_idx: group {group} has {members[group]} inputs, expected {k // groups}")
    order = np.argsort(g_idx, kind="stable").astype(np.int32)
    return None if np.array_equal(order, np.arange(k)) else order


def _detached(array: Any) -> Any:
    """Detach a torch tensor from its gradient. Return other objects unchanged."""
    return array.detach() if hasattr(array, "detach") else array


if torch is not None:

    class Product(torch.autograd.Function):
        """The product with gradients for inputs and bias."""

        @staticmethod
        def forward(ctx: Any, x: Any, bias: Any, layer: Any) -> Any:
            ctx.layer = layer
            ctx.bias_type = None if bias is None else bias.dtype
            x = x.detach().contiguous()
            if layer.device is not None:
                return torch.from_numpy(layer._device_product(x)).to(x.dtype)
            y = quantized_linear(x, bias=_detached(bias), **layer._weight())
            return torch.from_numpy(y).to(x.dtype)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            of_x = of_bias = None
            if ctx.needs_input_grad[0]:
                layer = ctx.layer
                # On a device, the GPU permutes the inputs, so the gradient needs the natural order.
                weight = dequantize(**layer._weight()) if layer.device is None else layer.dequantize()
                of_x = gradient @ torch.from_numpy(weight).to(gradient.dtype).T
            if ctx.needs_input_grad[1]:
                of_bias = gradient.reshape(-1, gradient.shape[-1]).sum(0).to(ctx.bias_type)
            return of_x, of_bias, None
