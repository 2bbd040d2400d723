"""Effects on the whole process: signals, forks, exit."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from latent.errors import ForkedError

posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


# Not in python/, where Python would import the sources instead of the installed package.
HERE = os.path.dirname(__file__)


def run(code):
    """Run a program in a new process."""
    program = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(program, capture_output=True, text=True, timeout=60, cwd=HERE)


@posix
@pytest.mark.parametrize(
    "work",
    [
        "model.generate('Once upon a time')",
        "list(model.stream('Once upon a time'))",
        "model.logits([20] * 2000, all=True)",
        "model.embed(['word ' * 200] * 20)",
        "model.profile(1000, 1000)",
        "latent.Model.load()",
    ],
)
def test_ctrl_c_ends_what_runs(work):
    # The reference backend is slow, and finished work starts again, so a call runs on any machine
    # when the signal arrives.
    code = f"""
        import latent
        model = latent.Model.load(device="reference")
        print("ready", flush=True)
        try:
            while True:
                {work}
        except KeyboardInterrupt:
            # the model goes on
            answer = model.generate("Once", max_tokens=1, temperature=0)
            print("stopped", len(answer.tokens), flush=True)
    """
    program = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, cwd=HERE) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.5)
        start = time.perf_counter()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "stopped 1\n"
        assert time.perf_counter() - start < 20
        assert process.wait(20) == 0


def test_nothing_is_installed_in_the_process():
    code = """
        import signal, threading
        signals = [s for s in signal.valid_signals() if s not in (signal.SIGKILL, signal.SIGSTOP)]
        def disposition():
            with open("/proc/self/status") as status:
                return [line for line in status if line.startswith(("SigCgt", "SigIgn", "SigBlk"))]
        import numpy
        # the C library takes a signal of its own when the first thread begins
        threading.Thread(target=int).start()
        before = disposition(), [signal.getsignal(s) for s in signals]
        import latent
        model = latent.Model.load(ctx_size=64)
        model.generate("Once", max_tokens=2)
        assert (disposition(), [signal.getsignal(s) for s in signals]) == before
    """
    if not os.path.exists("/proc/self/status"):
        pytest.skip("no /proc")
    done = run(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@posix
def test_a_forked_child_is_refused_and_ends(model):
    stream = model.stream("Once upon a time", temperature=0)
    next(stream)
    pid = os.fork()
    if pid == 0:
        try:
            refused = 0
            for work in [
                lambda: model.generate("Once"),
                lambda: model.logits([1, 2]),
                lambda: model.embed("a fox"),
                lambda: model.profile(1, 1),
                lambda: next(stream),
            ]:
                try:
                    work()
                except ForkedError as error:
                    refused += "load the model in the child" in str(error)
            read = model.tokenizer.decode(model.tokenizer.encode("a fox")) == "a fox"
            del stream
            import latent

            own = latent.Model.load(ctx_size=64)
            answered = len(own.generate("Once", max_tokens=2, temperature=0).tokens) == 2
            os._exit(0 if refused == 5 and read and answered else 10 + refused)
        finally:
            os._exit(99)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        time.sleep(0.01)
    else:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        pytest.fail("the child hangs")
    assert os.waitstatus_to_exitcode(status) == 0
    assert "".join(stream)


@posix
def test_a_forked_child_multiplies_with_threads_of_its_own():
    code = """
        import os, threading, warnings
        import numpy as np
        import latent
        warnings.simplefilter("ignore")
        w, x = np.ones((512, 512), np.float32), np.ones((64, 512), np.float32)
        packed, scales = latent.pack_fp4_weights(w)
        product = lambda: latent.quantized_linear(x, packed, scales)
        expected = product()
        stop = threading.Event()
        def work():
            while not stop.is_set():
                product()
        worker = threading.Thread(target=work)
        worker.start()
        for _ in range(5):
            pid = os.fork()
            if pid == 0:
                os._exit(0 if np.array_equal(product(), expected) else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        stop.set()
        worker.join()
        print("done")
    """
    done = run(code)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@posix
def test_a_child_of_multiprocessing_can_close_what_it_inherited():
    code = """
        import multiprocessing, warnings, latent
        warnings.simplefilter("ignore")
        model = latent.Model.load(ctx_size=64)
        def child(queue):
            try:
                model.generate("Once")
            except latent.errors.ForkedError:
                queue.put("refused")
            model.close()
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        print(queue.get(timeout=30))
        process.join(30)
        assert process.exitcode == 0
    """
    done = run(code)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr


def test_a_program_ends_while_answers_run():
    code = """
        import threading, latent
        model = latent.Model.load(device="reference")
        threading.Thread(target=lambda: model.generate("Once upon a time"), daemon=True).start()
        stream = model.stream("The")
        next(stream)
    """
    done = run(code)
    assert done.returncode == 0, done.stderr
