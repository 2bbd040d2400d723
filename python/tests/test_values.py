import json

import numpy as np
import pytest

from latent.errors import ArgumentError, TooLongError


def test_logits_are_those_that_choose(model):
    ids = model.tokenizer.encode("Once upon a time")
    logits = model.logits(ids)
    assert logits.dtype == np.float32 and logits.shape == (model.vocab_size,)
    assert logits.argmax() == model.generate(ids, temperature=0, max_tokens=1).tokens[0]
    every = model.logits(np.array(ids), all=True)
    assert every.shape == (len(ids), model.vocab_size)
    np.testing.assert_array_equal(every[-1], logits)
    with pytest.raises(ArgumentError, match="no tokens"):
        model.logits([])
    with pytest.raises(TooLongError, match="600 tokens do not fit"):
        model.logits([1] * 600)


def test_arrays_pass_to_and_from_other_libraries_by_dlpack(model):
    class Tensor:
        """A tensor of another library with DLPack support."""

        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    ids = np.array(model.tokenizer.encode("Once upon a time"))
    logits = model.logits(Tensor(ids))
    taken = np.from_dlpack(logits)
    assert np.shares_memory(taken, logits)
    np.testing.assert_array_equal(taken, model.logits(ids))


def test_embeddings_of_texts(model):
    one = model.embed("a fox")
    assert one.shape == (model.hidden_size,) and abs(float(one @ one) - 1) < 1e-4
    several = model.embed(["a fox", "a lantern", "a fox"])
    assert several.shape == (3, model.hidden_size)
    np.testing.assert_array_equal(several[0], several[2])
    assert model.embed([]).shape == (0, model.hidden_size)
    with pytest.raises(TooLongError, match="text 1: "):
        model.embed(["fine", "word " * 3000])


def test_the_tokenizer(model):
    tokenizer = model.tokenizer
    ids = tokenizer.encode("A fox, äöü 狐")
    assert tokenizer.decode(ids) == "A fox, äöü 狐"
    assert tokenizer.decode(np.array(ids)) == "A fox, äöü 狐"
    plain = tokenizer.encode("A fox", add_special=False)
    assert b"".join(tokenizer.piece(token) for token in plain) == b"A fox"
    assert tokenizer.token_id(tokenizer.token_text(plain[0])) == plain[0]
    assert tokenizer.eos in tokenizer.end_of_generation and tokenizer.is_control(tokenizer.eos)
    assert len(tokenizer) > 100
    name = tokenizer.token_text(tokenizer.eos)
    assert tokenizer.eos not in tokenizer.encode(name, add_special=False)
    assert tokenizer.encode(name, add_special=False, parse_special=True) == [tokenizer.eos]
    with pytest.raises(ArgumentError, match="out of range"):
        tokenizer.decode([10**9])
    with pytest.raises(ArgumentError, match="out of range"):
        tokenizer.piece(10**9)


def test_a_plan_is_objects_and_a_drawing(model):
    plan = model.plan()
    assert len(plan) == len(plan.operations) > 10 and plan.arena_bytes > 0
    assert max(operation.phase for operation in plan.operations) == plan.phases - 1
    multiplies = next(operation for operation in plan.operations if operation.kernels)
    assert multiplies.weights and multiplies.op in repr(multiplies)
    assert str(plan).startswith("plan for decode") and "plan for decode" in repr(plan)
    assert len(plan.to_dict()["ir"]["nodes"]) == len(plan)
    assert plan.svg().startswith("<svg") and plan.html().startswith("<!doctype html>")
    assert "<img" in plan._repr_html_() and "<script" not in plan._repr_html_()
    assert "prefill" in repr(model.plan(rows=100))
    with pytest.raises(ArgumentError, match="rows 0"):
        model.plan(rows=0)


def test_a_profile_is_that_of_the_command_line(model):
    profile = model.profile(prompt=64, decode=4)
    assert [step["rows"] for step in profile["steps"]] == [64, 1]
    assert profile["limits"]["read_bandwidth"] > 0
    assert all(phase["kernels"] is not None for phase in profile["steps"][0]["phases"])
    json.dumps(profile)
    with pytest.raises(ArgumentError, match="expected 1 to 512 tokens"):
        model.profile(prompt=500, decode=100)
