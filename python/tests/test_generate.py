import threading
import time

import numpy as np
import pytest

import latent
from latent.errors import ArgumentError, LatentError, TooLongError

GREEDY = {"temperature": 0, "max_tokens": 24}


def test_a_text_is_gone_on_with(model):
    answer = model.generate("Once upon a time", **GREEDY)
    assert len(answer.tokens) == 24 and answer.stop == "length"
    assert len(answer.text.split()) > 8
    assert model.generate("Once upon a time", **GREEDY).text == answer.text
    assert str(answer) == answer.text and answer.message is None
    assert "stop=\"length\"" in repr(answer)
    assert answer.prompt_tokens == len(model.tokenizer.encode("Once upon a time"))


def test_a_stream_gives_the_same_text_in_pieces(model):
    whole = model.generate("Once upon a time", **GREEDY)
    stream = model.stream("Once upon a time", **GREEDY)
    with pytest.raises(ArgumentError, match="has not ended"):
        stream.answer
    pieces = list(stream)
    assert len(pieces) > 5 and "".join(pieces) == whole.text
    assert stream.answer.tokens == whole.tokens
    assert list(stream) == []


def test_a_stream_that_is_closed_ends_where_its_reader_is(model):
    with model.stream("Once upon a time", temperature=0) as stream:
        pieces = [next(stream) for _ in range(3)]
    assert stream.answer.stop == "interrupted" and stream.answer.text.startswith("".join(pieces))
    assert len(stream.answer.text) < 100
    # A dropped stream releases its blocks for other answers.
    model.stream("Once upon a time", temperature=0)
    assert model.generate("The", **GREEDY).stop == "length"


def test_prompts_are_texts_tokens_arrays_or_conversations(model):
    ids = model.tokenizer.encode("Once upon a time")
    expected = model.generate("Once upon a time", **GREEDY).text
    for prompt in [ids, tuple(ids), iter(ids), np.array(ids), np.array(ids, dtype=np.uint16)]:
        assert model.generate(prompt, **GREEDY).text == expected
    messages = [{"role": "user", "content": "Tell me a story about a fox and a lantern."}]
    assert model.generate(messages, **GREEDY).text == model.chat(messages, **GREEDY).text


def test_a_conversation_goes_on(model):
    messages = [{"role": "user", "content": "Tell me a story about a fox and a lantern."}]
    answer = model.chat(messages, temperature=0, max_tokens=80)
    assert answer.message == {"role": "assistant", "content": answer.content}
    assert answer.content == answer.text.strip() and answer.reasoning == ""
    assert model.chat(messages[0]["content"], temperature=0, max_tokens=80).text == answer.text
    messages += [answer.message, {"role": "user", "content": "And then?"}]
    rendered = model.render(messages)
    assert answer.content in rendered and "And then?" in rendered
    assert model.chat(messages, temperature=0, max_tokens=4).cached_tokens > 0
    assert model.render(messages, variables={"add_generation_prompt": False}) != rendered
    assert "{%" in model.chat_template


def test_options_of_sampling_are_heard(model):
    stopped = model.generate("Once upon a time", temperature=0, stop=" the", max_tokens=200)
    assert stopped.stop == "stop_string" and " the" not in stopped.text
    seeded = [model.generate("Once", seed=7, temperature=1.0, max_tokens=16).text for _ in range(2)]
    assert seeded[0] == seeded[1]
    first = model.generate("Once upon a time", temperature=0, max_tokens=1, logprobs=3)
    [(token, own, top)] = first.logprobs
    assert token == first.tokens[0] == top[0][0] and own == top[0][1] < 0 and len(top) == 3
    banned = model.generate("Once upon a time", temperature=0, max_tokens=1, logit_bias={token: float("-inf")})
    assert banned.tokens[0] == top[1][0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": "hot"}, "temperature is 'hot', expected a number"),
        ({"temprature": 1}, "unknown option \"temprature\"; expected one of max_tokens"),
        ({"max_tokens": -1}, "max_tokens is -1"),
        ({"stop": 7}, "stop is 7"),
        ({"logit_bias": {10**9: 1.0}}, "logit bias 1 for token 1000000000"),
    ],
)
def test_options_that_cannot_be_are_named(model, options, words):
    with pytest.raises(ArgumentError, match=words):
        model.generate("Once", **options)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], "no tokens"),
        ([-1], "invalid token ID -1 at index 0"),
        ([1, 2**40], "at index 1"),
        ([10**9], "out of range"),
        (["a"], "expected token ids"),
        ([True], "expected token ids"),
        (3.5, "expected token ids"),
        ({1: 2}, "expected token ids"),
        (np.ones(3), "expected token ids"),
        ([{"content": "x"}], "has no role"),
        ([{"role": "user", "content": object()}], "not JSON serializable"),
    ],
)
def test_prompts_that_cannot_be_are_named(model, prompt, words):
    with pytest.raises(ArgumentError, match=words):
        model.generate(prompt)


def test_variables_are_for_conversations(model):
    with pytest.raises(ArgumentError, match="not a conversation"):
        model.generate("Once", variables={"enable_thinking": False})


def test_a_prompt_that_is_too_long_says_how_long(model):
    with pytest.raises(TooLongError, match="600 tokens, but the context holds 512"):
        model.generate([1] * 600)


def test_threads_share_the_model(model):
    expected = model.generate("Once upon a time", **GREEDY).text
    texts = []
    threads = [
        threading.Thread(target=lambda: texts.append(model.generate("Once upon a time", **GREEDY).text))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [expected] * 4


def test_python_runs_while_the_model_does(model):
    # `profile` runs for some tenths of a second, since it measures the machine.
    thread = threading.Thread(target=lambda: model.profile(64, 4))
    thread.start()
    rounds = 0
    while thread.is_alive():
        rounds += 1
        time.sleep(0.001)
    assert rounds > 10


def test_a_stream_has_one_reader_at_a_time(model):
    stream = model.stream([20] * 400, temperature=0, max_tokens=100)
    problems = []

    def read():
        try:
            list(stream)
        except RuntimeError as error:
            problems.append(str(error))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The second thread is refused, or finds the stream at its end.
    assert all("another thread reads this stream" in problem for problem in problems)
    assert stream.answer.tokens


def test_a_closed_model_refuses():
    with latent.Model.load(ctx_size=64) as own:
        tokenizer = own.tokenizer
        stream = own.stream("Once", temperature=0, max_tokens=4)
    with pytest.raises(LatentError, match="was closed"):
        own.generate("Once")
    own.close()
    # Objects obtained from the model before it was closed remain usable.
    assert tokenizer.decode(tokenizer.encode("a fox")) and "".join(stream)
