"""LoRA adapters: scales at load and per answer."""

import json

import numpy as np
import pytest

import latent
from latent import _safetensors
from latent.errors import ArgumentError, LatentError


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """An adapter of the demo model, as PEFT writes one."""
    outputs, inputs = latent.gguf.read()["blk.0.attn_output.weight"].shape
    folder, generator = tmp_path_factory.mktemp("adapter"), np.random.default_rng(0)
    name = "base_model.model.model.layers.0.self_attn.o_proj.lora_{}.weight"
    tensors = {
        name.format("A"): generator.standard_normal((4, inputs), dtype=np.float32),
        name.format("B"): generator.standard_normal((outputs, 4), dtype=np.float32),
    }
    _safetensors.write(folder / "adapter_model.safetensors", tensors, {})
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 4, "target_modules": ["o_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def load(**options):
    return latent.Model.load(ctx_size=256, threads=1, precision="exact", **options)


def tokens(model, **options):
    return model.generate("Once upon a time", max_tokens=12, temperature=0, **options).tokens


def test_scales_at_load_and_of_an_answer(adapter):
    base = tokens(load())
    model = load(lora=[(adapter, 0)])
    assert model.description["adapters"] == [{"path": str(adapter), "scale": 0.0}]
    assert tokens(model) == base
    changed = tokens(model, lora=[1.0])
    assert changed != base and tokens(model) == base
    # A path without a scale has scale 1, and several adapters are added.
    whole = load(lora=str(adapter))
    assert tokens(whole) == changed and tokens(whole, lora=[0]) == base
    both = load(lora=[(adapter, 0.25), (str(adapter), 0.75)])
    assert tokens(both) == changed
    assert tokens(both, lora=[0, 0]) == base


@pytest.mark.parametrize(
    ("lora", "words"),
    [
        (3, "lora is 3, expected a path, or a list"),
        ([("a", "b")], "expected a path, or a list of paths or of pairs"),
        ([("a", float("nan"))], "the scale of a is NaN, expected a finite number"),
    ],
)
def test_what_is_no_adapter_is_refused(lora, words):
    with pytest.raises(ArgumentError, match=words):
        load(lora=lora)


def test_scales_that_do_not_match_the_adapters_are_refused(adapter):
    with pytest.raises(LatentError, match="no-adapter"):
        load(lora="/no-adapter")
    model = load(lora=adapter)
    with pytest.raises(ArgumentError, match="2 adapter scales were given, but the model has 1 adapters"):
        tokens(model, lora=[1, 1])
    with pytest.raises(ArgumentError, match="finite"):
        tokens(model, lora=[float("inf")])
    with pytest.raises(ArgumentError, match="lora is 'x'|expected a list with the scale of each adapter"):
        tokens(model, lora="x")
