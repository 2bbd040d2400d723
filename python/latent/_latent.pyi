from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal, TypeAlias, final, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

__version__: str

# Token ids: a sequence or an array of integers; a tensor of another library that speaks DLPack is one of Any.
Tokens: TypeAlias = Sequence[int] | NDArray[np.integer[Any]]
Messages: TypeAlias = Sequence[Mapping[str, Any]]
Logprob: TypeAlias = tuple[int, float, list[tuple[int, float]]]

@final
class Model:
    """A loaded model. Any threads may use it at the same time: their answers share its steps."""

    @staticmethod
    def load(
        path: str | PathLike[str] | None = None,
        *,
        ctx_size: int | None = None,
        cache_tokens: int | None = None,
        threads: int | None = None,
        batch_size: int | None = None,
        cache_type: Literal["f32", "f16", "bf16", "int8"] | None = None,
        precision: Literal["default", "exact"] | None = None,
        device: str | None = None,
        draft: Literal["none", "ngram", "mtp", "all"] | None = None,
        mla: Literal["auto", "absorbed", "naive", "separate"] | None = None,
        sparse_attention: Literal["on", "off"] | None = None,
        isa: Literal["auto", "portable", "avx2", "avx512", "amx"] | None = None,
        pin: Literal["auto", "off", "cores", "nodes"] | None = None,
        force: bool | None = None,
        lora: str | PathLike[str] | Sequence[str | PathLike[str] | tuple[str | PathLike[str], float]] | None = None,
    ) -> Model:
        """Loads a model: a GGUF file, any of its shards, a folder of safetensors, a packed file; None is the demo model that is built in.

        `lora` has LoRA adapters, GGUF files or folders of PEFT, with their scales (1 if there is none); that of an answer has a scale for each of them.
        """

    def generate(
        self,
        prompt: str | Tokens | Messages,
        *,
        variables: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
        logprobs: int | None = None,
        seed: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        typical_p: float | None = None,
        repeat_penalty: float | None = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        repeat_last_n: int | None = None,
        dry_multiplier: float | None = None,
        dry_base: float | None = None,
        dry_allowed_length: int | None = None,
        dry_penalty_last_n: int | None = None,
        xtc_probability: float | None = None,
        xtc_threshold: float | None = None,
        top_n_sigma: float | None = None,
        dynatemp_range: float | None = None,
        dynatemp_exponent: float | None = None,
        mirostat: int | None = None,
        mirostat_eta: float | None = None,
        mirostat_tau: float | None = None,
        adaptive_target: float | None = None,
        adaptive_decay: float | None = None,
        min_keep: int | None = None,
        logit_bias: Mapping[int, float] | None = None,
        lora: Sequence[float] | None = None,
    ) -> Answer:
        """Answers a prompt: a text to go on with, token ids, or the messages of a conversation.

        What is not given is as the model recommends it, else as Latent's own, with a fresh seed.
        """

    def stream(
        self,
        prompt: str | Tokens | Messages,
        *,
        variables: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
        logprobs: int | None = None,
        seed: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        typical_p: float | None = None,
        repeat_penalty: float | None = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        repeat_last_n: int | None = None,
        dry_multiplier: float | None = None,
        dry_base: float | None = None,
        dry_allowed_length: int | None = None,
        dry_penalty_last_n: int | None = None,
        xtc_probability: float | None = None,
        xtc_threshold: float | None = None,
        top_n_sigma: float | None = None,
        dynatemp_range: float | None = None,
        dynatemp_exponent: float | None = None,
        mirostat: int | None = None,
        mirostat_eta: float | None = None,
        mirostat_tau: float | None = None,
        adaptive_target: float | None = None,
        adaptive_decay: float | None = None,
        min_keep: int | None = None,
        logit_bias: Mapping[int, float] | None = None,
        lora: Sequence[float] | None = None,
    ) -> Stream:
        """The same as an iterator over the pieces of the text. The model computes ahead of its reader."""

    def chat(
        self,
        messages: str | Messages,
        *,
        variables: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
        logprobs: int | None = None,
        seed: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        typical_p: float | None = None,
        repeat_penalty: float | None = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        repeat_last_n: int | None = None,
        dry_multiplier: float | None = None,
        dry_base: float | None = None,
        dry_allowed_length: int | None = None,
        dry_penalty_last_n: int | None = None,
        xtc_probability: float | None = None,
        xtc_threshold: float | None = None,
        top_n_sigma: float | None = None,
        dynatemp_range: float | None = None,
        dynatemp_exponent: float | None = None,
        mirostat: int | None = None,
        mirostat_eta: float | None = None,
        mirostat_tau: float | None = None,
        adaptive_target: float | None = None,
        adaptive_decay: float | None = None,
        min_keep: int | None = None,
        logit_bias: Mapping[int, float] | None = None,
        lora: Sequence[float] | None = None,
    ) -> Answer:
        """Answers a conversation: a list of messages, or one question.

        `variables` are those of the chat template (`enable_thinking`, …), among them `tools`.
        """

    def render(self, messages: str | Messages, *, variables: Mapping[str, Any] | None = None) -> str:
        """A conversation as the model reads it, by its chat template."""

    def logits(self, tokens: Tokens | Any, *, all: bool = False) -> NDArray[np.float32]:
        """Logits after the last of some tokens, or with `all` a row after each of them."""

    def embed(self, texts: str | Sequence[str]) -> NDArray[np.float32]:
        """The embedding of a text, of length 1, or one row for each of several."""

    def plan(self, rows: int = 1) -> Plan:
        """The plan of a step of `rows` tokens."""

    def profile(self, prompt: int = 256, decode: int = 32) -> dict[str, Any]:
        """Time per phase of a prompt of `prompt` tokens and of `decode` tokens after it: the JSON of `latent profile --json`."""

    def close(self) -> None:
        """Gives the model's memory back, as soon as its streams and tokenizers have gone, too."""

    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def chat_template(self) -> str | None:
        """The source of the chat template, None if the model has none."""
    @property
    def description(self) -> dict[str, Any]:
        """What was loaded, and how it runs."""
    @property
    def name(self) -> str: ...
    @property
    def context(self) -> int:
        """Tokens of context."""
    @property
    def vocab_size(self) -> int:
        """Logits per token."""
    @property
    def hidden_size(self) -> int:
        """Elements of an embedding."""
    def __enter__(self) -> Model: ...
    def __exit__(self, *exception: type[BaseException] | BaseException | TracebackType | None) -> None: ...

@final
class Answer:
    """A finished answer. `str(answer)` is its content."""

    @property
    def text(self) -> str: ...
    @property
    def tokens(self) -> list[int]:
        """Its tokens, the one that ended it included."""
    @property
    def stop(self) -> Literal["end", "stop_string", "length", "context", "interrupted"]:
        """Why it ended."""
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that were in the prefix cache."""
    @property
    def prompt_seconds(self) -> float: ...
    @property
    def generate_seconds(self) -> float: ...
    @property
    def message(self) -> dict[str, Any] | None:
        """The message of an answer to a conversation, to append to its messages; None for other answers."""
    @property
    def content(self) -> str:
        """What it says, without reasoning and calls: the whole text if it answers no conversation."""
    @property
    def reasoning(self) -> str:
        """What the model thought."""
    @property
    def logprobs(self) -> list[Logprob]:
        """Of each token its id, ln of its probability, and the likeliest tokens with theirs; empty unless asked for."""

@final
class Stream(Iterator[str]):
    """An iterator over the pieces of an answer's text. Dropped or closed, it ends the answer."""

    def __iter__(self) -> Stream: ...
    def __next__(self) -> str: ...
    @property
    def answer(self) -> Answer:
        """The answer, once the last piece was taken."""
    def close(self) -> None:
        """Ends the answer where its reader is: its answer is what was read."""
    def __enter__(self) -> Stream: ...
    def __exit__(self, *exception: type[BaseException] | BaseException | TracebackType | None) -> None: ...

@final
class Tokenizer:
    """From text to token ids and back."""

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """The token ids of a text.

        With `add_special` those that begin (and end) a prompt are added; with `parse_special` names of control tokens become those tokens, which is
        not for text that others have written.
        """

    def decode(self, tokens: Tokens | Any, *, special: bool = False) -> str:
        """The text of token ids; with `special` control tokens stand there by their names."""

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for."""

    def token_text(self, token: int) -> str:
        """A token's text in the vocabulary."""

    def token_id(self, text: str) -> int | None:
        """The id of a token by its text in the vocabulary, None if there is none."""

    def is_control(self, token: int) -> bool: ...
    @property
    def bos(self) -> int | None: ...
    @property
    def eos(self) -> int | None: ...
    @property
    def end_of_generation(self) -> list[int]:
        """Tokens that end an answer."""
    def __len__(self) -> int: ...

@final
class Plan:
    """What a step computes. A notebook shows its drawing; `str(plan)` has a line per operation."""

    @property
    def operations(self) -> list[Operation]: ...
    @property
    def phases(self) -> int:
        """Phases between barriers."""
    @property
    def arena_bytes(self) -> int:
        """Bytes of its activations."""
    def to_dict(self) -> dict[str, Any]:
        """All of it, as `latent graph plan --json` prints it."""
    def svg(self) -> str: ...
    def html(self) -> str:
        """The page of `latent graph --html`: one file with everything in it."""
    def _repr_html_(self) -> str: ...
    def __len__(self) -> int: ...

@final
class Operation:
    """An operation of a plan."""

    @property
    def op(self) -> str: ...
    @property
    def layer(self) -> int | None: ...
    @property
    def phase(self) -> int:
        """Between which barriers it runs, counted from 0."""
    @property
    def kernels(self) -> list[str]: ...
    @property
    def weights(self) -> list[tuple[str, str]]:
        """Slot, and how the weights are stored."""

@final
class File:
    """A GGUF file, or a set of shards, checked and mapped."""

    @property
    def metadata(self) -> dict[str, Any]:
        """Arrays of numbers are NumPy arrays, those of strings lists."""
    @property
    def tensors(self) -> dict[str, Tensor]: ...
    def __getitem__(self, name: str) -> Tensor: ...
    def __len__(self) -> int: ...

@final
class Tensor:
    """A tensor of a GGUF file. It keeps the file mapped; a file that shrinks meanwhile ends the process."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]:
        """Outermost dimension first."""
    @property
    def nbytes(self) -> int: ...
    @property
    def data(self) -> NDArray[np.uint8]:
        """Its bytes over the mapped file, without a copy; they cannot be written."""
    def view(self) -> NDArray[Any] | None:
        """Its elements over the mapped file, without a copy; None if NumPy has no such type."""
    def decode(self) -> NDArray[np.float32]: ...
    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]: ...

def read(path: str | PathLike[str] | None = None) -> File:
    """Opens a GGUF file, or any shard of a set; None is the demo model that is built in."""

def decode(data: Tensor | Any, type: str | None = None, *, shape: Sequence[int] | None = None) -> NDArray[np.float32]:
    """The values of a tensor, or of bytes of a type (`"Q4_K"`), as f32.

    Bytes are whole blocks: an array of uint8, anything with a buffer, or a tensor of another library by DLPack.
    """

@overload
def pack_fp4_weights(w: NDArray[Any] | Any, group_size: int = 32, *, device: str) -> DeviceWeight: ...
@overload
def pack_fp4_weights(w: NDArray[Any] | Any, group_size: int = 32, device: None = None) -> tuple[NDArray[np.uint32], NDArray[np.float16]]:
    """Packs a weight `[K, N]` to FP4 (E2M1).

    Words `[K/8, N]` hold eight codes along K, the first in the lowest bits; scales `[K/group_size, N]` are the largest magnitude of the group / 6. With
    a `device` (`gpu`, `gpu:N`) the result is a `DeviceWeight`, which stays there.
    """

@overload
def pack_u4_weights(w: NDArray[Any] | Any, group_size: int = 32, *, device: str) -> DeviceWeight: ...
@overload
def pack_u4_weights(
    w: NDArray[Any] | Any, group_size: int = 32, device: None = None
) -> tuple[NDArray[np.uint32], NDArray[np.float16], NDArray[np.uint8]]:
    """Packs a weight `[K, N]` to unsigned 4-bit integers: words, scales, and zero points `[K/group_size, N]`.

    value = (code - zero point) * scale, with scale = (largest - smallest) / 15 of the group and 0.
    """

@overload
def pack_u4_sym_weights(w: NDArray[Any] | Any, group_size: int = 32, *, device: str) -> DeviceWeight: ...
@overload
def pack_u4_sym_weights(w: NDArray[Any] | Any, group_size: int = 32, device: None = None) -> tuple[NDArray[np.uint32], NDArray[np.float16]]:
    """Packs a weight `[K, N]` to unsigned 4-bit integers with the zero point 8: value = (code - 8) * scale, with scale = largest magnitude / 7."""

def device_name(device: str) -> str | None:
    """What a name of a device means: `gpu:N`, which is opened, or None for the CPU (`cpu`, and `auto` on a machine without a GPU)."""

@final
class DeviceArray:
    """An array of float32 or float16 in the memory of a GPU: inputs and results of products there.

    `DeviceArray(x, "gpu:0")` sends an array; bf16 becomes float32. All arrays and weights of one device work together.
    """

    def __new__(cls, x: NDArray[Any] | Any, device: str = "gpu") -> DeviceArray: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def device(self) -> str:
        """`gpu:0`."""
    def to_numpy(self) -> NDArray[Any]:
        """Copies it to the host, once the device has computed it."""
    def astype(self, dtype: DTypeLike) -> DeviceArray:
        """Its elements in float32 or float16 (rounded to nearest even), on the device."""

@final
class DeviceWeight:
    """A packed weight `[K, N]` in the memory of a GPU, for `quantized_linear(x, weight)`.

    With an `order`, row k of the weight is multiplied with input `order[k]`.
    """

    def __new__(
        cls,
        packed: NDArray[np.uint32] | Any,
        scales: NDArray[Any] | Any,
        group_size: int = 32,
        device: str = "gpu",
        *,
        zeros: NDArray[np.uint8] | Any | None = None,
        quant_type: Literal["fp4", "int4", "int4_sym"] | None = None,
        scale_type: Literal["f16", "e8m0", "e4m3"] | None = None,
        tensor_scale: float | None = None,
        order: NDArray[np.int32] | Any | None = None,
    ) -> DeviceWeight: ...
    @property
    def shape(self) -> tuple[int, int]:
        """(K, N)."""
    @property
    def quant_type(self) -> str: ...
    @property
    def group_size(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Bytes of words, scales and zero points."""
    @property
    def device(self) -> str:
        """`gpu:0`."""
    def kernel(self, rows: int) -> tuple[str, int]:
        """The name of the kernel that multiplies so many rows, and its slices of K."""
    def dequantize(self, dtype: DTypeLike | None = None) -> DeviceArray:
        """Its values `[K, N]` in float32 or float16, in the order in which rows are stored."""

@overload
def quantized_linear(
    x: DeviceArray,
    packed: NDArray[np.uint32] | DeviceWeight | Any,
    scales: NDArray[Any] | Any | None = None,
    group_size: int = 32,
    **options: Any,
) -> DeviceArray: ...
@overload
def quantized_linear(
    x: NDArray[Any] | Any,
    packed: NDArray[np.uint32] | DeviceWeight | Any,
    scales: NDArray[Any] | Any | None = None,
    group_size: int = 32,
    *,
    zeros: NDArray[np.uint8] | Any | None = None,
    quant_type: Literal["fp4", "int4", "int4_sym"] | None = None,
    scale_type: Literal["f16", "e8m0", "e4m3"] | None = None,
    tensor_scale: float | None = None,
    bias: NDArray[Any] | Any | None = None,
    activations: Literal["auto", "bf16", "int8"] | None = None,
    kernel: Literal["auto", "gemm", "fused", "striped"] | None = None,
    isa: Literal["auto", "portable", "avx2", "avx512", "amx"] | None = None,
    threads: int | None = None,
    device: str | None = None,
) -> NDArray[np.float32]:
    """x · W + bias for a packed weight W `[K, N]`: inputs `[…, K]` of f32, f16 or bf16, results `[…, N]` of f32.

    The weight is `int4` with zero points and `fp4` without, unless `quant_type` says otherwise. Scales are f16, or codes of E8M0 (MXFP4) or E4M3
    (NVFP4, times `tensor_scale`). The kernel is chosen by the shape; results have the same bits for any number of threads. With a `device` (`gpu`, `gpu:N`)
    the weight is sent there for this product; as a `DeviceWeight` it stays there and has its own scales. A `DeviceArray` has a `DeviceArray` as its result.
    """

@overload
def quantized_linear_striped(
    x: DeviceArray,
    packed: NDArray[np.uint32] | Any,
    scales: NDArray[Any] | Any,
    group_size: int,
    parallel: int,
    **options: Any,
) -> DeviceArray: ...
@overload
def quantized_linear_striped(
    x: NDArray[Any] | Any,
    packed: NDArray[np.uint32] | Any,
    scales: NDArray[Any] | Any,
    group_size: int,
    parallel: int,
    *,
    zeros: NDArray[np.uint8] | Any | None = None,
    quant_type: Literal["fp4", "int4", "int4_sym"] | None = None,
    scale_type: Literal["f16", "e8m0", "e4m3"] | None = None,
    tensor_scale: float | None = None,
    bias: NDArray[Any] | Any | None = None,
    activations: Literal["auto", "bf16", "int8"] | None = None,
    isa: Literal["auto", "portable", "avx2", "avx512", "amx"] | None = None,
    threads: int | None = None,
    device: str | None = None,
) -> NDArray[np.float32]:
    """The same by tiles of the results, with K split into `parallel` slices whose partial sums are reduced in a fixed order."""

def dequantize(
    packed: NDArray[np.uint32] | Any,
    scales: NDArray[Any] | Any,
    group_size: int = 32,
    *,
    zeros: NDArray[np.uint8] | Any | None = None,
    quant_type: Literal["fp4", "int4", "int4_sym"] | None = None,
    scale_type: Literal["f16", "e8m0", "e4m3"] | None = None,
    tensor_scale: float | None = None,
    dtype: DTypeLike = ...,
    threads: int | None = None,
    device: str | None = None,
) -> NDArray[Any]:
    """The values of a packed weight, `[K, N]`, as f32, or as f16 rounded to nearest even."""
