"""Exceptions. Messages state what failed, where, the value, and the remedy."""

__all__ = [
    "ArgumentError",
    "EngineError",
    "FileError",
    "ForkedError",
    "LatentError",
    "ModelNotFoundError",
    "OutOfMemoryError",
    "StoppedError",
    "TextError",
    "TooLongError",
    "UnsupportedError",
]


class LatentError(Exception):
    """Base class of all exceptions of Latent."""


class ArgumentError(LatentError, ValueError):
    """An argument or option is invalid."""


class TooLongError(ArgumentError):
    """The prompt does not fit into the context."""


class TextError(ArgumentError):
    """The chat template cannot be rendered, or a text cannot be encoded."""


class FileError(LatentError, OSError):
    """A file cannot be read or is malformed."""


class ModelNotFoundError(FileError, FileNotFoundError):
    """The model file does not exist."""


class UnsupportedError(LatentError, NotImplementedError):
    """The architecture or the tokenizer of the model is not supported."""


class OutOfMemoryError(LatentError, MemoryError):
    """There is not enough memory. If a model does not fit, the message states its requirement."""


class StoppedError(LatentError, RuntimeError):
    """The operation was cancelled before it completed."""


class ForkedError(LatentError, RuntimeError):
    """The model or device was opened before a fork and cannot be used in the child."""


class EngineError(LatentError, RuntimeError):
    """The engine failed, because of a bug in Latent or a hardware fault. Load the model again."""
