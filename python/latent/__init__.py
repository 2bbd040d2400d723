"""Language models with Multi-head Latent Attention and Mixture of Experts, in this process.

>>> import latent
>>> model = latent.Model.load()          # the demo model that is built in; or a path
>>> print(model.chat("Tell me a story about a fox and a lantern."))

Products with 4-bit weights: `pack_fp4_weights`, `quantized_linear` and their kin, and the layer `MarlinLinear`. See docs/python.md.
"""

from typing import TYPE_CHECKING

from latent import errors, gguf
from latent._latent import (
    Answer,
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
    from latent.linear import MarlinLinear

__all__ = [
    "Answer",
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
    "quantized_linear",
    "quantized_linear_striped",
]


def __getattr__(name: str) -> object:
    # not before it is asked for: it imports torch, which takes seconds
    if name == "MarlinLinear":
        from latent.linear import MarlinLinear

        globals()[name] = MarlinLinear
        return MarlinLinear
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
