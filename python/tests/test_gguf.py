import gc
import pathlib

import numpy as np
import pytest

from latent import gguf
from latent.errors import ArgumentError, FileError

DEMO = pathlib.Path(__file__).parents[2] / "models" / "mla-demo-Q4_K_M.gguf"


@pytest.fixture(scope="module")
def file():
    return gguf.read(DEMO)


def test_metadata_are_objects_of_python(file):
    metadata = file.metadata
    assert metadata["general.architecture"] == "deepseek2"
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list) and isinstance(tokens[0], str)
    kinds = metadata["tokenizer.ggml.token_type"]
    assert kinds.dtype == np.int32 and len(kinds) == len(tokens)
    assert gguf.read().metadata.keys() == metadata.keys()


def test_tensors_are_views_of_the_file(file):
    tensors = file.tensors
    assert len(tensors) == len(file) > 10 and list(tensors)[0] in repr(list(tensors.values())[0])
    tensor = next(tensor for tensor in tensors.values() if tensor.type == "F32")
    name = tensor.name
    assert tensor.data.dtype == np.uint8 and tensor.data.nbytes == tensor.nbytes
    assert not tensor.data.flags.writeable
    with pytest.raises(ValueError):
        tensor.data[0] = 1
    with pytest.raises(ValueError):
        tensor.data.flags.writeable = True
    view = file[name].view()
    assert view.shape == tensor.shape and view.dtype == np.float32
    np.testing.assert_array_equal(view, tensor.decode())
    np.testing.assert_array_equal(np.asarray(tensor), view)
    # The array keeps the file mapped.
    data = gguf.read(DEMO)[name].data
    gc.collect()
    np.testing.assert_array_equal(data, tensor.data)
    assert np.shares_memory(data, data.view("<f4"))
    with pytest.raises(KeyError):
        file["no such tensor"]


def q8_0(blocks):
    """Blocks of Q8_0 as ggml defines them: a scale in f16, and 32 numbers of 8 bits."""
    scales = blocks[:, :2].copy().view("<f2").astype(np.float32)
    return scales * blocks[:, 2:].view(np.int8).astype(np.float32)


def test_blocks_are_decoded_as_their_format_says():
    generator = np.random.default_rng(1)
    blocks = generator.integers(0, 256, (12, 34), dtype=np.uint8)
    blocks[:, :2] = generator.normal(size=12).astype("<f2").view(np.uint8).reshape(12, 2)
    expected = q8_0(blocks)
    flat = blocks.reshape(-1)
    np.testing.assert_array_equal(gguf.decode(flat, "Q8_0").reshape(12, 32), expected)
    for data in [blocks, blocks.tobytes(), memoryview(blocks.tobytes()), bytearray(blocks.tobytes())]:
        np.testing.assert_array_equal(gguf.decode(data, "Q8_0", shape=(12, 32)), expected)
    halves = np.arange(8, dtype="<f2")
    np.testing.assert_array_equal(gguf.decode(halves.tobytes(), "F16"), halves.astype(np.float32))


def test_quantized_tensors_are_decoded(file):
    quantized = [tensor for tensor in file.tensors.values() if tensor.view() is None]
    assert quantized
    for tensor in quantized[:4]:
        values = gguf.decode(tensor)
        assert values.shape == tensor.shape and values.dtype == np.float32 and np.isfinite(values).all()
        np.testing.assert_array_equal(gguf.decode(tensor.data, tensor.type, shape=tensor.shape), values)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((b"1234", None), "need a type"),
        ((b"1234", "Q9_9"), "Q9_9"),
        ((b"1234", "Q8_0"), "4 bytes are not a multiple of the Q8_0 block size"),
        ((np.ones(34, dtype=np.float32), "Q8_0"), "float32, expected uint8"),
        ((np.zeros((34, 2), dtype=np.uint8)[:, 0], "Q8_0"), "not contiguous"),
        ((np.zeros((34, 2), dtype=np.uint8, order="F"), "Q8_0"), "not contiguous"),
    ],
)
def test_bytes_that_are_no_blocks_are_refused(arguments, words):
    with pytest.raises(ArgumentError, match=words):
        gguf.decode(*arguments)


def test_a_shape_must_fit(file):
    with pytest.raises(ArgumentError, match="do not match the shape"):
        gguf.decode(bytes(34), "Q8_0", shape=(5, 5))


def test_files_that_are_none_are_named(tmp_path, truncated):
    with pytest.raises(FileNotFoundError, match="none.gguf"):
        gguf.read(tmp_path / "none.gguf")
    with pytest.raises(FileError, match="truncated.gguf"):
        gguf.read(truncated)
    half = tmp_path / "half.gguf"
    half.write_bytes(DEMO.read_bytes()[:100_000])
    with pytest.raises(FileError, match="half.gguf"):
        gguf.read(half)
