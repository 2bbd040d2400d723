"""Inference of language models with Multi-head Latent Attention and Mixture of Experts.

>>> import latent
>>> model = latent.Model.load()          # the built-in demo model, or a path
>>> print(model.chat("Tell me a story about a fox and a lantern."))

`pack_fp4_weights`, `quantized_linear` and related functions, and the layer `MarlinLinear`, compute
products with 4-bit weights on the CPU or on a GPU. See docs/python.md.
"""

from typing import TYPE_CHECKING

from latent import errors, gguf
from latent._latent import (
    Answer,
    DeviceArray,
    DeviceWeight,
    Model,
    Operation,
    Plan,
    Stream,
    Tokenizer,
    __version__,
    dequantize,
    pack_fp4_weights,
    pack_u4_sym_weights,
    pack_u4_weights,
    quantized_linear,
    quantized_linear_striped,
)

if TYPE_CHECKING:
    from latent.linear import MarlinLinear, quantize_model

__all__ = [
    "Answer",
    "DeviceArray",
    "DeviceWeight",
    "MarlinLinear",
    "Model",
    "Operation",
    "Plan",
    "Stream",
    "Tokenizer",
    "__version__",
    "dequantize",
    "errors",
    "gguf",
    "pack_fp4_weights",
    "pack_u4_sym_weights",
    "pack_u4_weights",
    "quantize_model",
    "quantized_linear",
    "quantized_linear_striped",
]


def __getattr__(name: str) -> object:
    # Imported on first access: latent.linear imports torch, which takes seconds.
    if name in ("MarlinLinear", "quantize_model"):
        from latent import linear

        globals()[name] = getattr(linear, name)
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
