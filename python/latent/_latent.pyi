from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal, TypeAlias, final, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

__version__: str

# Token ids: a sequence or an array of integers. Any also admits tensors of other libraries with
# DLPack support.
Tokens: TypeAlias = Sequence[int] | NDArray[np.integer[Any]]
Messages: TypeAlias = Sequence[Mapping[str, Any]]
Logprob: TypeAlias = tuple[int, float, list[tuple[int, float]]]

@final
class Model:
    """A loaded language model.

    Create it with `Model.load`. A model can be used from several threads at the same time;
    concurrent generations are batched. It is a context manager that closes the model on exit.
    """

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
        """Load a model from a local file.

        `path` is a GGUF file, any shard of a split GGUF file, a directory with safetensors files,
        or a packed file. None loads the built-in demo model.

        `lora` is a LoRA adapter (a GGUF file or a PEFT directory), or a list of adapters and of
        (adapter, scale) pairs. The default scale is 1. `lora` of `generate` overrides the scales.
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
        """Generate an answer, and wait until it is complete.

        `prompt` is a text to continue, token ids, or the messages of a conversation. Options that
        are None have the values that the model recommends, otherwise Latent's defaults. The seed
        is random by default.
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
        """Generate an answer, and return an iterator over its text.

        The arguments are those of `generate`. The model generates tokens ahead of the reader.
        """

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
        """Generate the next message of a conversation with the chat template of the model.

        `messages` is a list of messages, or the text of a single user message. `variables` are
        variables of the chat template, such as `enable_thinking` or `tools`.
        """

    def render(self, messages: str | Messages, *, variables: Mapping[str, Any] | None = None) -> str:
        """Render a conversation with the chat template of the model."""

    def logits(self, tokens: Tokens | Any, *, all: bool = False) -> NDArray[np.float32]:
        """Compute logits after the last token, or after each token if `all` is True.

        The shape is (vocab_size,), or (len(tokens), vocab_size) if `all` is True.
        """

    def embed(self, texts: str | Sequence[str]) -> NDArray[np.float32]:
        """Compute embeddings, normalized to a Euclidean length of 1.

        The shape is (hidden_size,) for a single text, or (len(texts), hidden_size).
        """

    def plan(self, rows: int = 1) -> Plan:
        """Return the execution plan of a step of `rows` tokens."""

    def profile(self, prompt: int = 256, decode: int = 32) -> dict[str, Any]:
        """Measure the time per phase of processing `prompt` tokens and decoding `decode` tokens.

        Returns the data of `latent profile --json`.
        """

    def close(self) -> None:
        """Release the model. Its memory is freed once its streams and tokenizers are gone too."""

    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def chat_template(self) -> str | None:
        """Source of the chat template, or None if the model has none."""
    @property
    def description(self) -> dict[str, Any]:
        """Description of the model and its configuration."""
    @property
    def name(self) -> str: ...
    @property
    def context(self) -> int:
        """Maximum length of a sequence in tokens."""
    @property
    def vocab_size(self) -> int:
        """Vocabulary size, which is the number of logits per token."""
    @property
    def hidden_size(self) -> int:
        """Number of elements of an embedding."""
    def __enter__(self) -> Model: ...
    def __exit__(self, *exception: type[BaseException] | BaseException | TracebackType | None) -> None: ...

@final
class Answer:
    """A finished answer. `str(answer)` is its content."""

    @property
    def text(self) -> str: ...
    @property
    def tokens(self) -> list[int]:
        """Generated token ids, including an end token."""
    @property
    def stop(self) -> Literal["end", "stop_string", "length", "context", "interrupted"]:
        """Reason why the generation ended."""
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int:
        """Number of prompt tokens that were reused from the prefix cache."""
    @property
    def prompt_seconds(self) -> float: ...
    @property
    def generate_seconds(self) -> float: ...
    @property
    def message(self) -> dict[str, Any] | None:
        """The answer as a message. None if the prompt was not a conversation."""
    @property
    def content(self) -> str:
        """Text without reasoning and tool calls.

        The whole text if the prompt was not a conversation.
        """
    @property
    def reasoning(self) -> str:
        """Reasoning of the model. Empty if the prompt was not a conversation."""
    @property
    def logprobs(self) -> list[Logprob]:
        """For each token its id, its log-probability, and those of the most probable tokens.

        Natural logarithms. Empty unless `logprobs` was set.
        """

@final
class Stream(Iterator[str]):
    """Iterator over the text of an answer while it is generated.

    A stream can be read by one thread at a time. Closing or deleting it ends the generation.
    """

    def __iter__(self) -> Stream: ...
    def __next__(self) -> str: ...
    @property
    def answer(self) -> Answer:
        """The finished answer. Available once the stream was read to its end or closed."""
    def close(self) -> None:
        """End the generation. `answer` has the text that was read so far."""
    def __enter__(self) -> Stream: ...
    def __exit__(self, *exception: type[BaseException] | BaseException | TracebackType | None) -> None: ...

@final
class Tokenizer:
    """Tokenizer of a model. `len(tokenizer)` is the vocabulary size."""

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Convert text to token ids.

        `add_special` adds the tokens that begin (and end) a prompt. `parse_special` converts names
        of control tokens to these tokens; do not use it for untrusted text.
        """

    def decode(self, tokens: Tokens | Any, *, special: bool = False) -> str:
        """Convert token ids to text. `special` includes the names of control tokens."""

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token."""

    def token_text(self, token: int) -> str:
        """Return the text of a token in the vocabulary."""

    def token_id(self, text: str) -> int | None:
        """Return the id of the token with this text in the vocabulary, or None."""

    def is_control(self, token: int) -> bool: ...
    @property
    def bos(self) -> int | None: ...
    @property
    def eos(self) -> int | None: ...
    @property
    def end_of_generation(self) -> list[int]:
        """Ids of the tokens that end an answer."""
    def __len__(self) -> int: ...

@final
class Plan:
    """Execution plan of a step.

    `str(plan)` has one line per operation, and a notebook shows a drawing.
    """

    @property
    def operations(self) -> list[Operation]: ...
    @property
    def phases(self) -> int:
        """Number of phases, which are separated by barriers."""
    @property
    def arena_bytes(self) -> int:
        """Size of the memory for activations, in bytes."""
    def to_dict(self) -> dict[str, Any]:
        """Return the plan as a dict: the data of `latent graph plan --json`."""
    def svg(self) -> str: ...
    def html(self) -> str:
        """Return the page of `latent graph --html`, a self-contained HTML document."""
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
        """Index of the phase in which it runs."""
    @property
    def kernels(self) -> list[str]: ...
    @property
    def weights(self) -> list[tuple[str, str]]:
        """(slot, storage format) tuples."""

@final
class File:
    """A memory-mapped GGUF file, or set of shards. `file[name]` is a tensor."""

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata. Arrays of numbers are NumPy arrays, and arrays of strings are lists."""
    @property
    def tensors(self) -> dict[str, Tensor]: ...
    def __getitem__(self, name: str) -> Tensor: ...
    def __len__(self) -> int: ...

@final
class Tensor:
    """A tensor of a GGUF file. It keeps the file mapped.

    The process ends with SIGBUS if the file is truncated meanwhile.
    """

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]:
        """Shape, outermost dimension first."""
    @property
    def nbytes(self) -> int: ...
    @property
    def data(self) -> NDArray[np.uint8]:
        """Bytes of the tensor: a read-only array over the mapped file, without a copy."""
    def view(self) -> NDArray[Any] | None:
        """Return the elements as an array over the mapped file, without a copy.

        Returns None if NumPy lacks the element type.
        """
    def decode(self) -> NDArray[np.float32]: ...
    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]: ...

def read(path: str | PathLike[str] | None = None) -> File:
    """Open a GGUF file, or a set of shards by any of them. None opens the built-in demo model."""

def decode(data: Tensor | Any, type: str | None = None, *, shape: Sequence[int] | None = None) -> NDArray[np.float32]:
    """Decode a tensor, or bytes of a given type such as "Q4_K", to float32.

    Bytes must be whole blocks: a uint8 array, a buffer, or a tensor with DLPack support.
    """

@overload
def pack_fp4_weights(w: NDArray[Any] | Any, group_size: int = 32, *, device: str) -> DeviceWeight: ...
@overload
def pack_fp4_weights(w: NDArray[Any] | Any, group_size: int = 32, device: None = None) -> tuple[NDArray[np.uint32], NDArray[np.float16]]:
    """Quantize a weight of shape (K, N) to FP4 (E2M1).

    Returns words of shape (K / 8, N), with eight codes along K each, the first in the lowest bits,
    and scales of shape (K / group_size, N). A scale is the largest magnitude of its group / 6.
    With a `device` ("gpu", "gpu:N"), returns a `DeviceWeight`.
    """

@overload
def pack_u4_weights(w: NDArray[Any] | Any, group_size: int = 32, *, device: str) -> DeviceWeight: ...
@overload
def pack_u4_weights(
    w: NDArray[Any] | Any, group_size: int = 32, device: None = None
) -> tuple[NDArray[np.uint32], NDArray[np.float16], NDArray[np.uint8]]:
    """Quantize a weight of shape (K, N) to unsigned 4-bit integers with zero points.

    Returns words, scales, and zero points of shape (K / group_size, N). value = (code - zero point)
    * scale. The scale of a group is (largest - smallest) / 15 of its values and 0.
    """

@overload
def pack_u4_sym_weights(w: NDArray[Any] | Any, group_size: int = 32, *, device: str) -> DeviceWeight: ...
@overload
def pack_u4_sym_weights(w: NDArray[Any] | Any, group_size: int = 32, device: None = None) -> tuple[NDArray[np.uint32], NDArray[np.float16]]:
    """Quantize a weight of shape (K, N) to unsigned 4-bit integers with the zero point 8.

    Returns words and scales. value = (code - 8) * scale. The scale of a group is its largest
    magnitude / 7.
    """

def device_name(device: str) -> str | None:
    """Open a device, and return its name "gpu:N".

    Returns None for the CPU: for "cpu", and for "auto" on a machine without a GPU.
    """

@final
class DeviceArray:
    """Array of float32 or float16 in the memory of a GPU, for inputs and results of products.

    `DeviceArray(x, "gpu:0")` copies an array to the GPU. bfloat16 is converted to float32, and so
    is float16 if the last dimension is odd. Arrays and weights of one device can be combined.
    """

    def __new__(cls, x: NDArray[Any] | Any, device: str = "gpu") -> DeviceArray: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def device(self) -> str:
        """Name of the device, such as "gpu:0"."""
    def to_numpy(self) -> NDArray[Any]:
        """Wait until the device has computed the array, and copy it to a NumPy array."""
    def astype(self, dtype: DTypeLike) -> DeviceArray:
        """Return a copy as float32 or float16 (rounded to nearest even), on the device."""

@final
class DeviceWeight:
    """4-bit weight of shape (K, N) in the memory of a GPU, for `quantized_linear(x, weight)`.

    With an `order`, row k of the weight is multiplied by input `order[k]`.
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
        """Shape of the weight: (K, N)."""
    @property
    def quant_type(self) -> str: ...
    @property
    def group_size(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Size of codes, scales and zero points, in bytes."""
    @property
    def device(self) -> str:
        """Name of the device, such as "gpu:0"."""
    def kernel(self, rows: int) -> tuple[str, int]:
        """Return the name of the kernel for `rows` rows, and its number of slices of K."""
    def dequantize(self, dtype: DTypeLike | None = None) -> DeviceArray:
        """Decode the weight to float32 or float16. Rows have the order in which they are stored."""

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
    """Compute x @ W + bias for a 4-bit weight W of shape (K, N).

    `x` has the shape (..., K) and type float32, float16 or bfloat16. The result has the shape
    (..., N) and type float32; it is a `DeviceArray` if `x` is one.

    `quant_type` is "int4" by default if `zeros` is set, otherwise "fp4". Scales are float16, or
    codes of E8M0 (MXFP4) or E4M3 (NVFP4, multiplied by `tensor_scale`). The kernel is chosen by
    the shape. The results have the same bits for any number of threads.

    With a `device` ("gpu", "gpu:N"), the weight is copied there for this product. A `DeviceWeight`
    stays there and includes its scales.
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
    """Compute x @ W + bias with the striped kernel.

    It splits K into `parallel` slices and adds their partial sums in a fixed order. The other
    arguments are those of `quantized_linear`.
    """

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
    """Decode a packed weight to an array of shape (K, N).

    `dtype` is float32 (default), or float16, which is rounded to nearest even.
    """
