"""What can go wrong. Every message says what, where, the value, and what can be done."""

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
    """Any error of Latent."""


class ArgumentError(LatentError, ValueError):
    """An argument or option that cannot be."""


class TooLongError(ArgumentError):
    """The prompt does not fit into the context."""


class TextError(ArgumentError):
    """A chat template or a text that cannot be rendered or encoded."""


class FileError(LatentError, OSError):
    """The model's file cannot be read, or is malformed."""


class ModelNotFoundError(FileError, FileNotFoundError):
    """The model's file is not there."""


class UnsupportedError(LatentError, NotImplementedError):
    """The model's architecture or tokenizer is not known."""


class OutOfMemoryError(LatentError, MemoryError):
    """The model does not fit into memory; the message says what it needs."""


class StoppedError(LatentError, RuntimeError):
    """The work was stopped."""


class ForkedError(LatentError, RuntimeError):
    """This process was forked from the one that loaded the model, whose threads are not here."""


class EngineError(LatentError, RuntimeError):
    """The engine failed, which is an error of Latent or of the machine: load the model again."""
