"""Two workers with the demo model behind Dynamo's frontend: answers, prefix affinity, abort, drain, a killed worker.

    cargo build                                           in integrations/dynamo, once
    PYTHON tests/frontend.py [WORKER]                     PYTHON has ai-dynamo==1.6.1 (see requirements.txt)

WORKER is target/debug/latent-dynamo. Takes about a minute; leaves nothing behind.
"""

import contextlib
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
DEMO = HERE / "../../../models/mla-demo-Q4_K_M.gguf"
MODEL = "demo"
# Tokens per block of the KV cache.
BLOCK = 64


def free_port():
    """A free port. Dynamo accepts system ports only up to 32767."""
    while True:
        port = random.randrange(10_000, 32_768)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def wait(what, condition, seconds=60, needed=()):
    """Waits until the condition returns a true value, and returns it. Fails if a needed process ends."""
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            found = condition()
            if found:
                return found
        ended = [process.name for process in needed if process.process.poll() is not None]
        assert not ended, f"{what}: {ended} ended"
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.1)


class Process:
    """A program with a log, which is printed if the test fails."""

    def __init__(self, name, command, environment, folder):
        self.name, self.log = name, folder / f"{name}.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def metric(self, name, *labels):
        """The sum of a metric over all series with these labels."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        found = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", text, re.MULTILINE)
        return sum(float(value) for own, value in found if all(label in own for label in labels))

    def tail(self):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])


class Worker(Process):
    GENERATE = 'dynamo_endpoint="generate"'

    def __init__(self, name, program, environment, folder):
        self.port = free_port()
        own = {"DYN_SYSTEM_PORT": str(self.port), "DYN_SYSTEM_HOST": "127.0.0.1"}
        flags = ["--model", str(DEMO), "--served-model-name", MODEL, "--threads", "1", "--precision", "exact", "--parallel", "32"]
        super().__init__(name, [program, *flags], environment | own, folder)

    def requests(self):
        return int(self.metric("dynamo_component_requests_total", self.GENERATE))

    def running(self):
        return int(self.metric("dynamo_component_inflight_requests", self.GENERATE))


class Frontend(Process):
    def __init__(self, environment, folder):
        self.port = free_port()
        command = [sys.executable, "-m", "dynamo.frontend", "--http-port", str(self.port), "--router-mode", "kv", "--migration-limit", "3"]
        super().__init__("frontend", command, environment, folder)

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", path)
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return answer

    def open(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("POST", path, json.dumps({"model": MODEL} | body), {"content-type": "application/json"})
        return connection, connection.getresponse()

    def ask(self, path, body, status=200):
        connection, response = self.open(path, body)
        text = response.read().decode()
        connection.close()
        assert response.status == status, f"{path}: status {response.status}: {text}"
        return json.loads(text)

    def events(self, kind, *labels):
        """Number of block events that the router has processed."""
        return int(self.metric("dynamo_component_kv_cache_events_applied", f'event_type="{kind}"', *labels))

    def moved(self):
        """Number of answers that another worker has continued."""
        return int(self.metric("dynamo_frontend_model_migration_total", 'migration_type="ongoing_request"'))

    def workers(self):
        """Number of workers that the frontend has discovered."""
        instances = self.get("/health").get("instances", [])
        return len({i["instance_id"] for i in instances if i.get("endpoint") == "generate"})


class Stream(threading.Thread):
    """A streamed completion, read while it is generated."""

    def __init__(self, frontend, body):
        super().__init__(daemon=True)
        self.frontend, self.body = frontend, {"stream": True, "stream_options": {"include_usage": True}} | body
        self.text, self.usage, self.finish, self.problem = "", None, None, None
        self.begun, self.leave = threading.Event(), threading.Event()
        self.start()

    def run(self):
        try:
            connection, response = self.frontend.open("/v1/completions", self.body)
            assert response.status == 200, f"status {response.status}: {response.read().decode()}"
            for line in response:
                if self.leave.is_set():
                    connection.sock.shutdown(socket.SHUT_RDWR)
                    connection.close()
                    return
                self.line(line.decode().strip())
        except Exception as error:
            if not self.leave.is_set():
                self.problem = repr(error)
        finally:
            self.begun.set()

    def line(self, line):
        assert not line.startswith("event: error"), "an error in the stream"
        if not line.startswith("data: ") or line == "data: [DONE]":
            return
        part = json.loads(line.removeprefix("data: "))
        assert "error" not in part, part
        self.usage = part.get("usage") or self.usage
        for choice in part.get("choices", []):
            self.text += choice.get("text") or ""
            self.finish = choice.get("finish_reason") or self.finish
            if choice.get("text"):
                self.begun.set()


def words(kind, count):
    """A different text for each kind."""
    names = ["fox", "lantern", "river", "pony", "garden", "moon", "bell", "cloud", "stone", "boat", "bird"]
    return " ".join(names[(i * i + i * kind + kind * 3) % len(names)] for i in range(count))


def long_answer(prompt, tokens):
    return {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}


def answers(frontend):
    story = {"messages": [{"role": "user", "content": "Tell me a story about a fox and a lantern."}], "temperature": 0, "max_tokens": 60}
    chat = frontend.ask("/v1/chat/completions", story | {"logprobs": True, "top_logprobs": 3})
    choice = chat["choices"][0]
    assert len(choice["message"]["content"].split()) > 10, chat
    told = choice["logprobs"]["content"]
    assert len(told) > 20 and all(len(token["top_logprobs"]) == 3 and token["logprob"] <= 0 for token in told), told[:2]
    word = choice["message"]["content"].split()[5]
    stopped = frontend.ask("/v1/chat/completions", story | {"stop": [word]})["choices"][0]
    assert word not in stopped["message"]["content"] and stopped["finish_reason"] == "stop", stopped
    schema = {"type": "object", "properties": {"red": {"type": "boolean"}}, "required": ["red"], "additionalProperties": False}
    shape = {"type": "json_schema", "json_schema": {"name": "colour", "schema": schema, "strict": True}}
    guided = frontend.ask("/v1/chat/completions", story | {"response_format": shape})["choices"][0]
    assert isinstance(json.loads(guided["message"]["content"])["red"], bool), guided
    refused = frontend.ask("/v1/completions", {"prompt": "a", "max_tokens": 1, "guided_regex": "("}, status=400)
    assert "regular expression" in json.dumps(refused), refused
    streamed = Stream(frontend, {"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0})
    streamed.join()
    assert streamed.problem is None and streamed.usage["completion_tokens"] == 20, streamed.problem
    print("answers: chat, log-probabilities, stop, a JSON schema, a refusal, a stream")


def prefix_affinity(frontend, workers):
    """A prompt that extends an earlier one is routed to the worker with the cached prefix."""
    before, events = [worker.requests() for worker in workers], frontend.events("stored")
    prompts = [words(kind, 320) for kind in range(8)]
    first = [frontend.ask("/v1/completions", {"prompt": prompt, "max_tokens": 2}) for prompt in prompts]
    lengths = [answer["usage"]["prompt_tokens"] for answer in first]
    assert min(lengths) > 4 * BLOCK, lengths
    # The router learns of new blocks with a short delay.
    wait("the router hears of the blocks", lambda: frontend.events("stored") >= events + len(prompts))
    assert frontend.events("stored") == frontend.events("stored", 'status="ok"'), "events that the router cannot place"
    hits = total = 0
    for ending in ["The end.", "And then", "But no."]:
        for prompt, length in zip(prompts, lengths):
            usage = frontend.ask("/v1/completions", {"prompt": f"{prompt} {ending}", "max_tokens": 2})["usage"]
            total += 1
            hits += usage["prompt_tokens_details"]["cached_tokens"] >= length // BLOCK * BLOCK - BLOCK
    served = [worker.requests() - then for worker, then in zip(workers, before)]
    assert hits == total, f"{hits} of {total} prompts found their prefix; requests by worker: {served}"
    assert all(served), f"one worker has answered everything: {served}"
    print(f"prefix affinity: {hits} of {total} prompts found their prefix; requests by worker: {served}")


def namespaces(frontend):
    """Requests with a cache_salt use only prefixes with the same salt, on the worker that has them."""
    found = []
    for salt in ["alice", "bob"]:
        for prompt in [words(kind, 320) for kind in range(4)]:
            body = {"prompt": prompt, "max_tokens": 2, "nvext": {"cache_salt": salt}}
            events = frontend.events("stored")
            first = frontend.ask("/v1/completions", body)["usage"]
            wait("the router hears of the blocks", lambda: frontend.events("stored") > events)
            again = frontend.ask("/v1/completions", body)["usage"]
            found.append((first["prompt_tokens_details"]["cached_tokens"], again["prompt_tokens_details"]["cached_tokens"]))
    # The first token of all prompts is the same, so prompts with one salt share it.
    assert all(first < BLOCK and again >= 4 * BLOCK for first, again in found), found
    print("namespaces: 8 prompts found nothing of others', and then their own")


def abort(frontend, workers):
    streams = [Stream(frontend, long_answer(words(20 + kind, 30), 1900)) for kind in range(8)]
    for stream in streams:
        assert stream.begun.wait(60) and stream.problem is None, stream.problem
    assert sum(worker.running() for worker in workers) > 0
    for stream in streams:
        stream.leave.set()
    seconds = time.monotonic()
    wait("aborted requests end", lambda: all(worker.running() == 0 for worker in workers), 10)
    seconds = time.monotonic() - seconds
    wait("their blocks are given back", lambda: all(worker.metric("dynamo_component_gpu_cache_usage_percent") == 0 for worker in workers), 10)
    assert all(stream.finish is None for stream in streams), "an answer was read to its end"
    print(f"abort: 8 streams were left, and ended within {seconds:.1f} s")


TOKENS = 400


def begin(frontend, count):
    """Streams on all workers, with the expected answers."""
    prompts = [words(40 + kind, 40 + kind) for kind in range(count)]
    whole = [frontend.ask("/v1/completions", long_answer(prompt, TOKENS))["choices"][0]["text"] for prompt in prompts]
    streams = [Stream(frontend, long_answer(prompt, TOKENS)) for prompt in prompts]
    for stream in streams:
        assert stream.begun.wait(60) and stream.problem is None, stream.problem
    return streams, whole


def complete(streams, whole):
    same = 0
    for stream, text in zip(streams, whole):
        stream.join(120)
        assert not stream.is_alive() and stream.problem is None, stream.problem
        assert stream.finish == "length" and stream.text, (stream.finish, stream.text)
        same += stream.text == text
    return same


def drain(frontend, leaving):
    streams, whole = begin(frontend, 12)
    running = leaving.running()
    leaving.process.send_signal(signal.SIGTERM)
    # Requests that arrive meanwhile must also be accepted.
    late = [frontend.ask("/v1/completions", long_answer(words(kind, 20), 4)) for kind in range(6)]
    same = complete(streams, whole)
    code = leaving.process.wait(60)
    assert running > 0, "nothing ran on the worker that was to end"
    assert code == 0, f"the worker ended with {code}"
    assert all(answer["usage"]["completion_tokens"] == 4 for answer in late)
    assert same == len(streams), f"{same} of {len(streams)} answers are as they were"
    assert frontend.moved() == 0, "the worker did not end its own requests"
    removed = frontend.events("removed")
    assert removed > 0 and removed == frontend.events("removed", 'status="ok"'), "blocks that are given up"
    print(f"drain: {running} requests ran on the worker that was told to end, which it has answered; all 12 answers are whole, 6 new ones were taken")


def killed(frontend, victim):
    streams, whole = begin(frontend, 12)
    running = victim.running()
    victim.process.kill()
    same = complete(streams, whole)
    assert running > 0, "nothing ran on the worker that was killed"
    assert same == len(streams), f"{same} of {len(streams)} answers are as they were"
    assert frontend.moved() > 0, "no answer had to move"
    print(f"killed: {running} requests ran on the worker that was killed, {frontend.moved()} answers moved; all 12 answers are whole and the same")


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else str(HERE / "../target/debug/latent-dynamo")
    with tempfile.TemporaryDirectory(prefix="latent-dynamo-test-") as folder, contextlib.ExitStack() as ending:
        folder = Path(folder)
        own = {
            "DYN_FILE_KV": str(folder / "discovery"),
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_REQUEST_PLANE": "tcp",
            "DYN_EVENT_PLANE": "zmq",
            "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS": "1",
            "DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT": "40",
            "DYN_LOG": "warn,dynamo_llm::http=error",
            "HF_HUB_OFFLINE": "1",
            "HOME": str(folder),
        }
        environment = os.environ | own
        processes = []

        def start(process):
            processes.append(process)
            ending.callback(process.end)
            return process

        def worker(name):
            return start(Worker(name, program, environment, folder))

        try:
            workers = [worker("first"), worker("second")]
            frontend = start(Frontend(environment, folder))
            wait("the frontend finds two workers", lambda: frontend.workers() == 2, needed=processes)
            wait("the model can be asked", lambda: frontend.get("/v1/models")["data"], needed=processes)
            answers(frontend)
            prefix_affinity(frontend, workers)
            namespaces(frontend)
            abort(frontend, workers)
            drain(frontend, workers[0])
            third = worker("third")
            wait("the frontend finds the new worker", lambda: frontend.workers() == 2 and third.metric("dynamo_component_total_blocks"))
            killed(frontend, workers[1])
        except BaseException:
            for process in processes:
                print(f"--- {process.name}\n{process.tail()}", file=sys.stderr)
            raise


if __name__ == "__main__":
    main()
