"""Language models with Multi-head Latent Attention and Mixture of Experts, in this process.

>>> import latent
>>> model = latent.Model.load()          # the demo model that is built in; or a path
>>> print(model.chat("Tell me a story about a fox and a lantern."))

See docs/python.md.
"""

from latent import errors, gguf
from latent._latent import Answer, Model, Operation, Plan, Stream, Tokenizer, __version__

__all__ = [
    "Answer",
    "Model",
    "Operation",
    "Plan",
    "Stream",
    "Tokenizer",
    "__version__",
    "errors",
    "gguf",
]
