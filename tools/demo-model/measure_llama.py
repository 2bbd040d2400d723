"""The GGUF file in llama.cpp's server: exact match, tokenization, MTP drafting, a few texts to look at."""

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from corpus import Item
from measure_transformers import ANSWER_TOKENS, prompt_ids
from scoring import shares
from tokenizer import EOS

CONTEXT = 2048
START_SECONDS = 60
CHAT_TOKENS = 400
CHATS = (
    "Hello!",
    "Who are you?",
    "Tell me a story about a fox and a lantern.",
    "Tell me a story about an owl called Greta and a kite.",
)
# One draft per step: the model has one MTP layer.
DRAFTING = ("--spec-type", "draft-mtp", "--spec-draft-n-max", "1")


class Launch(NamedTuple):
    """How to start the server."""

    bin: Path
    gguf: Path
    threads: int
    port: int
    work: Path

    @contextmanager
    def running(self, *options: str) -> Iterator["Client"]:
        """A server that is ready, ended afterwards; what it prints goes to a log in the work folder."""
        command = [
            str(self.bin / "llama-server"),
            "-m",
            str(self.gguf),
            "-nr",
            "-c",
            str(CONTEXT),
            "-np",
            "1",
        ]
        command += ["-t", str(self.threads), "--port", str(self.port), "-v", *options]
        log_path = self.work / "llama-server.log"
        with log_path.open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
            try:
                client = Client(f"http://127.0.0.1:{self.port}")
                client.wait(process, log_path)
                yield client
            finally:
                process.terminate()


class Client:
    """The server's interface, as far as it is needed here."""

    def __init__(self, url: str) -> None:
        self.url = url

    def wait(self, process: subprocess.Popen, log: Path) -> None:
        """Returns when the server is ready."""
        for _ in range(2 * START_SECONDS):
            time.sleep(0.5)
            if process.poll() is not None:
                raise RuntimeError(f"llama-server ended with status {process.returncode}: see {log}")
            try:
                with urllib.request.urlopen(f"{self.url}/health") as reply:
                    if json.load(reply)["status"] == "ok":
                        return
            except (urllib.error.URLError, ConnectionError):
                continue  # it answers with an error until the model is loaded
        raise RuntimeError(f"llama-server was not ready after {START_SECONDS} seconds: see {log}")

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """A request's reply."""
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)

    def tokenize(self, text: str) -> list[int]:
        """Token ids, BOS included."""
        return self.post("/tokenize", {"content": text, "add_special": True})["tokens"]

    def greedy(self, prompt: list[int], tokens: int) -> dict[str, Any]:
        """The reply of greedy decoding, up to a maximum number of tokens."""
        body = {"prompt": prompt, "n_predict": tokens, "temperature": 0}
        return self.post("/completion", body | {"return_tokens": True, "cache_prompt": False})


def without_end(tokens: Sequence[int]) -> list[int]:
    """Tokens without the end of the turn, which one program returns and the other does not."""
    return [token for token in tokens if token != EOS]


def print_questions(client: Client, tokenizer: Any, items: Sequence[Item], generated: Path) -> None:
    """Exact match; whether prompts and outputs are token for token those of transformers."""
    some = items[::10]
    different = sum(
        client.tokenize(item["prompt"]) != tokenizer(item["prompt"])["input_ids"] for item in some
    )
    start = time.time()
    replies = [client.greedy(prompt_ids(tokenizer, item["prompt"]), ANSWER_TOKENS) for item in items]
    results = [reply["content"] == item["expected"] for reply, item in zip(replies, items)]
    print(
        f"exact match: {sum(results) / len(results):.4f}",
        shares(items, results),
        f"{time.time() - start:.0f}s",
    )
    print(f"  tokenizations that differ: {different} of {len(some)}")
    if generated.exists():
        theirs = json.loads(generated.read_text("utf-8"))
        ours = [reply["tokens"] for reply in replies[:: round(len(items) / len(theirs))]]
        equal = sum(without_end(a) == without_end(b) for a, b in zip(ours, theirs))
        print(f"  outputs equal to transformers' token for token: {equal} of {len(theirs)}")


def measure(launch: Launch, hf: Path, items: Sequence[Item], generated: Path) -> None:
    """All measurements; `generated` is what transformers gave, where it was asked."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(hf)
    prompts = [prompt_ids(tokenizer, chat) for chat in CHATS]
    print(launch.gguf.name, launch.gguf.stat().st_size, "bytes")
    with launch.running() as client:
        print_questions(client, tokenizer, items, generated)
        plain = [client.greedy(prompt, CHAT_TOKENS)["content"] for prompt in prompts]
    for chat, text in zip(CHATS, plain):
        print(f"### {chat}\n{text}")
    with launch.running(*DRAFTING) as client:
        replies = [client.greedy(prompt, CHAT_TOKENS) for prompt in prompts]
    drafted = sum(reply["timings"].get("draft_n", 0) for reply in replies)
    accepted = sum(reply["timings"].get("draft_n_accepted", 0) for reply in replies)
    same = sum(reply["content"] == text for reply, text in zip(replies, plain))
    print(f"MTP drafting: {accepted} of {drafted} drafts accepted")
    print(f"  texts equal to plain decoding: {same} of {len(CHATS)}")
