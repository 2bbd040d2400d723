"""Runs llama.cpp's server tests against `latent serve` with the demo model.

    run.py LATENT                  all tests that are not marked slow; fails if an outcome differs from expected.toml
    run.py LATENT -k EXPRESSION    some of them, with the output of failing tests

The tests come from the source package of llama-cpp-python, which pip downloads once (76 MB) into the folder for
temporary files; this repository does not contain them. adapted.toml lists replaced texts and token counts.
"""

import collections
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import source

HERE = Path(__file__).resolve().parent
# Omitted: images, tools run by the server, MCP servers, requests of Vertex AI.
FILES = """basic chat_completion compat_anthropic compat_oai_responses completion ctx_shift embedding ignore_eos infill kv_keep_only_active
    lora metrics proxy rerank router security sleep slot_save speculative stream template tokenize tool_call""".split()
# Time limit of all tests. They take 2 minutes on two cores.
SECONDS = 420


def run(tests, latent, options):
    """Runs pytest in the folder of the tests. Returns the last outcome of each test, with the error of those that fail."""
    outcomes = tests / "outcomes"
    # The tests write to tmp/.
    (tests / "tmp").mkdir()
    environment = {**os.environ, "LATENT": str(Path(latent).resolve()), "LATENT_OUTCOMES": str(outcomes)}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), str(tests)])
    command = [sys.executable, "-m", "pytest", "-p", "plugin", "-m", "not slow", "--tb=short", "-q", "-p", "no:cacheprovider", *options]
    command += [f"unit/test_{name}.py" for name in FILES]
    # The servers end with pytest, which closes their standard input.
    done = subprocess.run(command, cwd=tests, env=environment, timeout=SECONDS, stdout=None if options[:1] == ["-k"] else subprocess.PIPE)
    if done.returncode not in (0, 1):
        sys.stdout.buffer.write(done.stdout or b"")
        raise SystemExit(f"pytest ended with {done.returncode}")
    found = {}
    for line in outcomes.read_text().splitlines():
        report = json.loads(line)
        # A failure in the teardown of a test counts, too.
        if found.get(report["test"], {}).get("outcome") != "failed":
            found[report["test"]] = report
    return found


def compare(found):
    """The differences between the outcomes and expected.toml, as lines of text."""
    expected = tomllib.loads((HERE / "expected.toml").read_text())
    listed = {test: reason for reason in expected["reason"] for test in reason["tests"]}
    if twice := [t for t, n in collections.Counter(t for r in expected["reason"] for t in r["tests"]).items() if n > 1]:
        yield f"expected.toml lists {twice[0]} twice"
    for test in listed:
        if test not in found:
            yield f"expected.toml lists {test}, which was not run"
    for test, report in sorted(found.items()):
        if report["outcome"] == "failed" and test not in listed:
            yield f"{test} fails: {report['error'][:400]}"
        elif report["outcome"] == "passed" and test in listed:
            yield f"{test} passes: remove it from expected.toml"
    if len(found) != expected["tests"]:
        yield f"{len(found)} tests were run, expected {expected['tests']}"


def main(latent, *options):
    package = source.fetch(tempfile.gettempdir())
    if package is None:
        print("SKIPPED: pip cannot get the source package of llama-cpp-python")
        return
    with tempfile.TemporaryDirectory(prefix="latent-llama-server-") as folder:
        tests = source.unpack(package, Path(folder))
        adapted = source.adapt(tests)
        found = run(tests, latent, options or ("-n", "2"))
    counts = collections.Counter(report["outcome"] for report in found.values())
    touched = sum(name.partition("[")[0] in adapted for name, report in found.items() if report["outcome"] == "passed")
    print(f"{counts['passed']} of {len(found)} tests pass ({touched} adapted), {counts['failed']} fail, {counts['skipped']} are skipped")
    if options:
        return
    if differences := list(compare(found)):
        raise SystemExit("\n".join(differences))


main(*sys.argv[1:])
