import pathlib

import pytest

import latent
from latent.errors import ArgumentError, FileError, LatentError, ModelNotFoundError


def test_the_demo_model_says_what_it_is(model):
    assert model.context == 512 and model.vocab_size > 100 and model.hidden_size > 10
    about = model.description
    assert about["threads"] == 2 and about["parameters"] > 5_000_000 and about["warnings"] == []
    assert model.name in repr(model) and "512 tokens of context" in repr(model)


def test_a_model_is_not_made_by_its_class():
    with pytest.raises(TypeError, match="latent.Model.load"):
        latent.Model("model.gguf")


def test_a_path_may_be_a_text_or_a_path():
    demo = pathlib.Path(__file__).parents[2] / "models" / "mla-demo-Q4_K_M.gguf"
    for path in [demo, str(demo)]:
        with latent.Model.load(path, ctx_size=64, cache_type="int8", precision="default") as model:
            assert model.description["cache_type"] == "int8"


def test_a_wrong_path_is_not_found(tmp_path):
    with pytest.raises(FileNotFoundError, match="no-model.gguf: No such file or directory"):
        latent.Model.load(tmp_path / "no-model.gguf")
    with pytest.raises(ModelNotFoundError, match="latent pull hf:owner/name"):
        latent.Model.load("hf:owner/name")


def test_a_file_that_is_no_model_is_named(tmp_path, truncated):
    for content in [b"", b"hello", b"PK\x03\x04" + bytes(100)]:
        path = tmp_path / "other.gguf"
        path.write_bytes(content)
        with pytest.raises(FileError, match="other.gguf"):
            latent.Model.load(path)
    with pytest.raises(OSError, match="truncated.gguf"):
        latent.Model.load(truncated)
    with pytest.raises(LatentError, match=str(tmp_path)):
        latent.Model.load(tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cache_type": "int7"}, "int8"),
        ({"device": "tpu"}, "cpu, reference"),
        ({"threads": 0}, "threads is 0, expected at least 1"),
        ({"ctx_size": "many"}, "ctx_size is 'many', expected a count"),
        ({"ctx_size": 10**9}, "ctx_size 1000000000"),
        ({"ctxsize": 7}, "unknown option \"ctxsize\"; expected one of ctx_size"),
    ],
)
def test_options_that_cannot_be_are_named(options, words):
    with pytest.raises(ArgumentError, match=words):
        latent.Model.load(**options)


def test_the_reference_backend_is_reached():
    with latent.Model.load(device="reference", ctx_size=32) as model:
        assert model.description["device"] == "reference"
        assert model.generate("Once", temperature=0, max_tokens=2).tokens
