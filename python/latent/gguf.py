"""GGUF files: metadata, stored tensors, and decoded values.

>>> from latent import gguf
>>> file = gguf.read("model.gguf")
>>> file.metadata["general.architecture"], file["token_embd.weight"].shape
>>> weights = gguf.decode(file["token_embd.weight"])     # an array of f32
"""

from latent._latent import File, Tensor, decode, read

__all__ = ["File", "Tensor", "decode", "read"]
