"""Runs llama-benchy, a third-party load generator, against the server.

Prompts run alone and concurrently, with and without a cached context.

    benchy.py LATENT LLAMA_BENCHY      starts `LATENT serve` with the demo model, and stops it

Speeds are only printed. A failed request, an answer of another length, or a missing figure is an error.
"""

import functools
import http.server
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

from server import serving

TOKENIZER = pathlib.Path(__file__).parents[2] / "crates/text/tests/data/demo"
BOOK = "The fox went over the hill with the lantern, and the old miller saw a light between the trees. " * 2000
PROMPTS, ANSWERS, DEPTHS, TOGETHER, RUNS = [64, 256], [32], [0, 512], [1, 8], 2


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def measure(url, benchy, folder):
    (folder / "book.txt").write_text(BOOK)
    handler = functools.partial(Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as books:
        threading.Thread(target=books.serve_forever, daemon=True).start()
        lists = [("--pp", PROMPTS), ("--tg", ANSWERS), ("--depth", DEPTHS), ("--concurrency", TOGETHER)]
        result = folder / "result.json"
        command = [
            *[benchy, "--base-url", f"{url}/v1", "--model", "demo", "--tokenizer", TOKENIZER, "--runs", str(RUNS)],
            *["--book-url", f"http://127.0.0.1:{books.server_port}/book.txt", "--exact-tg", "--exit-on-first-fail"],
            # The demo model cannot answer the questions of the coherence check.
            *["--skip-coherence", "--enable-prefix-caching", "--format", "json", "--save-result", result],
            *[word for name, values in lists for word in [name, *map(str, values)]],
        ]
        try:
            # Keep its cache in this folder, and its libraries off the network.
            own = {"HOME": str(folder), "HF_HUB_OFFLINE": "1"}
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | own, timeout=180)
        finally:
            books.shutdown()
    return json.loads(result.read_text())["benchmarks"]


def check(runs):
    # With a context, llama-benchy also measures the context alone.
    expected = len(PROMPTS) * len(ANSWERS) * len(TOGETHER) * sum(1 if depth == 0 else 2 for depth in DEPTHS)
    assert len(runs) == expected, f"{len(runs)} results, {expected} expected"
    for run in runs:
        # A speed is missing if a short prompt takes less than the subtracted round trip, or if the
        # client receives a whole answer in one read.
        times = [run[name] for name in ("ttfr", "e2e_ttft")]
        assert all(time and len(time["values"]) >= RUNS and time["mean"] > 0 for time in times), run
        speed = f"{run['tg_throughput']['mean']:.0f} tokens/s in answers" if run["tg_throughput"] else "answers in one read"
        context = "the context itself" if run["is_context_prefill_phase"] else f"a prompt of {run['prompt_size']}"
        print(
            f"{run['concurrency']} together, {context}, context {run['context_size']}: "
            f"{run['e2e_ttft']['mean']:.1f} ms to the first token, {speed}"
        )


def main():
    latent, benchy = sys.argv[1:]
    with serving(latent, "--alias", "demo") as url, tempfile.TemporaryDirectory() as folder:
        check(measure(url, benchy, pathlib.Path(folder)))


if __name__ == "__main__":
    main()
