"""Callbacks that use the model, races between threads, forks during a step, pipes as files, full disks."""

import gc
import itertools
import os
import signal
import threading
import time

import numpy as np
import pytest

import latent
from latent.errors import ArgumentError, FileError, LatentError
from test_process import posix, run


class CallsBack:
    """A sequence that uses the model whenever a method reads an element."""

    def __init__(self, items, work):
        self.items, self.work = items, work

    def __iter__(self):
        for item in self.items:
            self.work()
            yield item

    def __len__(self):
        self.work()
        return 10**15

    def __getitem__(self, at):
        self.work()
        return self.items[at]

    def __index__(self):
        self.work()
        return 10**30

    def __str__(self):
        self.work()
        return "\ud800"


HOSTILE = [
    None,
    object(),
    -1,
    2**70,
    float("nan"),
    "\ud800",
    b"\xff",
    [None],
    [[1]],
    [2**70],
    [-1],
    [float("nan")],
    {"role": "user"},
    [{"role": object()}],
    np.zeros((2, 2)),
    np.array([object()]),
    np.arange(9, dtype=">u4")[::-2],
    range(10**12),
    type,
]


def refused_or_answered(work):
    """Run a call that may fail with an ordinary error. A panic or an exit is not caught."""
    try:
        work()
    except (LatentError, TypeError, ValueError, OverflowError, MemoryError, UnicodeError, AttributeError) as error:
        assert str(error)


def test_hostile_values_are_refused_wherever_they_are_given(model):
    tokenizer = model.tokenizer
    recursive = []
    recursive.append(recursive)
    for value in [*HOSTILE, recursive]:
        for work in [
            lambda value: model.generate(value, max_tokens=1),
            lambda value: next(iter(model.stream(value, max_tokens=1))),
            lambda value: model.chat(value, max_tokens=1),
            lambda value: model.render(value),
            lambda value: model.logits(value),
            lambda value: model.embed(value),
            lambda value: model.plan(value),
            lambda value: model.generate("Once", max_tokens=value),
            lambda value: model.generate("Once", max_tokens=1, temperature=value),
            lambda value: model.generate("Once", max_tokens=1, stop=value),
            lambda value: model.generate("Once", max_tokens=1, seed=value),
            lambda value: model.generate("Once", max_tokens=1, logit_bias=value),
            lambda value: model.generate("Once", max_tokens=1, logit_bias={1: value}),
            lambda value: model.render([{"role": "user", "content": "x"}], variables=value),
            lambda value: model.render([{"role": "user", "content": "x"}], variables={"tools": value}),
            lambda value: tokenizer.encode(value),
            lambda value: tokenizer.decode(value),
            lambda value: latent.Model.load(value) if not isinstance(value, (str, type(None))) else None,
            lambda value: latent.Model.load(ctx_size=value) if value is not None else None,
            lambda value: latent.gguf.read(value) if value is not None else None,
            lambda value: latent.quantized_linear(value, value, value),
            lambda value: latent.MarlinLinear.load(value) if not isinstance(value, int) else None,
        ]:
            refused_or_answered(lambda work=work, value=value: work(value))
    assert len(model.generate("Once", max_tokens=2, temperature=0).tokens) == 2


def test_what_never_ends_is_refused(model):
    for call in [
        lambda: model.generate(itertools.repeat(5), max_tokens=1),
        lambda: model.generate("Once", max_tokens=1, stop=itertools.repeat("x")),
        lambda: model.embed(itertools.repeat("x")),
        lambda: model.tokenizer.decode(itertools.repeat(5)),
    ]:
        with pytest.raises(ArgumentError):
            call()


def test_what_is_read_may_call_back(model):
    def work():
        model.generate("The", max_tokens=1)
        model.tokenizer.encode("fox")
        gc.collect()

    expected = model.generate([1, 20, 30], max_tokens=4, temperature=0).text
    answers = []
    refused_or_answered(
        lambda: answers.append(model.generate(CallsBack([1, 20, 30], work), max_tokens=4, temperature=0).text)
    )
    assert answers in ([], [expected])
    for call in [
        lambda value: model.logits(value),
        lambda value: model.embed(value),
        lambda value: model.chat(value, max_tokens=1),
        lambda value: model.generate("Once", max_tokens=value),
        lambda value: model.generate("Once", max_tokens=1, stop=value),
        lambda value: model.tokenizer.decode(value),
    ]:
        refused_or_answered(lambda call=call: call(CallsBack([1, 2], work)))
    # An exception of the callback is raised, and the model remains usable.
    def fails():
        raise ZeroDivisionError

    for call in [model.logits, model.embed, lambda value: model.generate(value, max_tokens=1)]:
        with pytest.raises((ZeroDivisionError, ArgumentError, TypeError)):
            call(CallsBack([1, 2], fails))
    assert model.generate([1, 20, 30], max_tokens=4, temperature=0).text == expected


def test_a_stream_is_read_while_its_reader_asks_for_more(model):
    expected = list(model.stream("Once upon a time", max_tokens=6, temperature=0))
    seen = []
    for piece in model.stream("Once upon a time", max_tokens=6, temperature=0):
        seen.append(piece)
        inner = model.stream("The", max_tokens=2, temperature=0)
        next(inner)
        # Drop the stream during a step; the garbage collector frees the cycle.
        cycle = [inner]
        cycle.append(cycle)
        del inner, cycle
        gc.collect()
        model.chat([{"role": "user", "content": "Hello"}], max_tokens=1)
        model.logits([1, 2])
    assert seen == expected


def test_a_model_is_closed_while_others_use_it():
    for _ in range(3):
        model = latent.Model.load(ctx_size=256, threads=2)
        model.generate("Once", max_tokens=1)
        begun, outcomes = threading.Barrier(4), []

        def use():
            begun.wait()
            try:
                while True:
                    model.generate("Once upon a time", max_tokens=8)
                    model.tokenizer.encode("fox")
            except (LatentError, ValueError, RuntimeError) as error:
                outcomes.append(str(error))

        users = [threading.Thread(target=use) for _ in range(3)]
        for user in users:
            user.start()
        begun.wait()
        model.close()
        model.close()
        for user in users:
            user.join(60)
            assert not user.is_alive()
        assert len(outcomes) == 3 and all(outcomes)


@posix
def test_forks_while_threads_generate(model):
    stop = threading.Event()

    def use():
        while not stop.is_set():
            model.generate("Once upon a time", max_tokens=4)

    users = [threading.Thread(target=use) for _ in range(2)]
    for user in users:
        user.start()
    try:
        for _ in range(5):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    model.generate("Once", max_tokens=1)
                except latent.errors.ForkedError:
                    code = 0 if model.tokenizer.decode(model.tokenizer.encode("fox")) == "fox" else 2
                finally:
                    os._exit(code)
            deadline = time.monotonic() + 60
            while not (done := os.waitpid(pid, os.WNOHANG))[0]:
                if time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    pytest.fail("the child hangs")
                time.sleep(0.01)
            assert os.waitstatus_to_exitcode(done[1]) == 0
    finally:
        stop.set()
        for user in users:
            user.join(60)
    assert not any(user.is_alive() for user in users)


def test_arrays_that_change_their_shape_or_lie_where_no_element_can():
    w = np.random.default_rng(1).standard_normal((64, 24), dtype=np.float32)
    packed, scales = latent.pack_fp4_weights(w)
    x = np.ones((3, 64), np.float32)
    good = latent.quantized_linear(x, packed, scales)
    odd = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(3, 64)
    for hostile in [
        odd,
        x[::-1],
        x[:, ::-1],
        np.broadcast_to(x[0], (3, 64)),
        np.lib.stride_tricks.as_strided(x, (3, 64), (0, 4)),
        x.astype(">f4"),
        x[:0],
        x.reshape(3, 1, 64),
        np.ma.masked_array(x),
        np.memmap,
    ]:
        refused_or_answered(lambda hostile=hostile: latent.quantized_linear(hostile, packed, scales))
        refused_or_answered(lambda hostile=hostile: latent.quantized_linear(x, hostile, scales))
        refused_or_answered(lambda hostile=hostile: latent.quantized_linear(x, packed, hostile))
    assert np.array_equal(latent.quantized_linear(x, packed, scales), good)


@posix
def test_a_pipe_is_not_waited_for(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for work in [latent.Model.load, latent.gguf.read, latent.MarlinLinear.load]:
        found = []

        def wait(work=work, found=found):
            try:
                work(pipe)
            except FileError as error:
                found.append(str(error))

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        waiting.join(60)
        assert len(found) == 1 and "pipe" in found[0], found


@posix
def test_a_file_without_room_is_an_error_and_leaves_nothing(tmp_path):
    code = f"""
        import os, resource, signal
        import numpy as np
        import latent
        layer = latent.MarlinLinear.from_dense(np.ones((256, 64), np.float32))
        os.chdir({str(tmp_path)!r})
        open("old", "w").write("old")
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))
        for name in ["new", "old"]:
            try:
                layer.save(name)
            except latent.errors.FileError as error:
                print(name, "File too large" in str(error) and name in str(error))
        print(sorted(os.listdir()), open("old").read())
    """
    done = run(code)
    assert (done.returncode, done.stdout) == (0, "new True\nold True\n['old'] old\n"), done.stderr
