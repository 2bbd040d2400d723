"""A pytest plugin that runs llama.cpp's server tests against `latent serve`.

It replaces the model in the server's command line by the demo model, and records the outcome of each test for run.py.
"""

import json
import os
import random
import re
import socket
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import hub
from model import with_gaps

LATENT = os.environ["LATENT"]
OUTCOMES = os.environ["LATENT_OUTCOMES"]
HERE = Path(__file__).resolve().parent
MODEL = str(HERE.parents[1] / "models" / "mla-demo-Q4_K_M.gguf")
INFILL_MODEL = Path(OUTCOMES).parent / f"infill-{os.getpid()}.gguf"
ARGUMENTS = tomllib.loads((HERE / "adapted.toml").read_text())["arguments"]

# Flags that name llama.cpp's test models.
MODEL_FLAGS = {"--model", "--model-url", "--hf-repo", "--hf-file"}
# Flags that are dropped: the draft model, downloads and images.
LEFT_OUT = MODEL_FLAGS | {"--model-draft", "--offline", "--media-path"}
# Chat templates that llama-server has built in.
TEMPLATES = {"llama3", "command-r"}
# The running test, without the number of its parameter set.
current = {"test": ""}
# Environment variables for router tests: a separate cache and a hub on loopback.
router = {}


def options(arguments):
    """The arguments as [option, value or None] pairs."""
    pairs = []
    for argument in arguments:
        if argument.startswith("-") and not argument[1:].isdigit():
            pairs.append([argument, None])
        else:
            pairs[-1][1] = argument
    return pairs


def command_line(arguments):
    """Translates the arguments of llama-server to those of `latent serve`."""
    model = MODEL
    if current["test"].startswith("infill::"):
        model = str(INFILL_MODEL)
        if not INFILL_MODEL.exists():
            INFILL_MODEL.write_bytes(with_gaps(Path(MODEL).read_bytes()))
    pairs = options(arguments)
    given = dict(pairs)
    models = ["--model", model] if given.keys() & MODEL_FLAGS else ["--models-cache"]
    pairs = [pair for pair in pairs if pair[0] not in LEFT_OUT]
    # llama-server divides its context among its slots, unless they share it. `latent serve` gives
    # each request the whole --ctx-size.
    if "--ctx-size" in given and "--parallel" in given and "--kv-unified" not in given:
        for pair in pairs:
            if pair[0] == "--ctx-size":
                pair[1] = str(int(pair[1]) // int(given["--parallel"]))
    for pair in pairs:
        if pair[0] == "--chat-template" and pair[1] in TEMPLATES:
            pair[1] = str(HERE / "templates" / f"{pair[1]}.jinja")
        elif pair[0] == "--chat-template" and " " in pair[1] and "{" not in pair[1]:
            # Without a placeholder the text could be the name of a file.
            pair[1] = "{# #}" + pair[1]
        # llama-server's default is to think, whatever the default of the template.
        if pair == ["--reasoning", "auto"]:
            pair[1] = "on"
        # Instead of a second model, the demo model's MTP layer drafts.
        if pair == ["--spec-type", "draft-simple"]:
            pair[1] = "draft-mtp"
    for name, value in options(ARGUMENTS.get(current["test"], [])):
        pairs = [pair for pair in pairs if pair[0] != name] + [[name, value]]
    return [word for pair in pairs for word in pair if word is not None] + models


def router_variables():
    """Returns the variables. The first call starts the hub and fills the cache."""
    if not router:
        cache = Path(OUTCOMES).parent / f"cache-{os.getpid()}"
        router.update(HF_ENDPOINT=hub.start(Path(MODEL).read_bytes()), LATENT_CACHE=str(cache), NO_PROXY="127.0.0.1")
        for repository in hub.CACHED:
            command = [LATENT, "pull", "--quiet", f"hf:{repository}"]
            subprocess.run(command, env={**os.environ, **router}, check=True, timeout=60)
    return router


class Subprocess(types.ModuleType):
    """The module `subprocess` with a `Popen` that starts `latent serve` in place of llama-server."""

    def __getattr__(self, name):
        return getattr(subprocess, name)

    @staticmethod
    def Popen(command, **options):
        command = [LATENT, "serve", "--threads", "2", "--stop-at-eof", *command_line(command[1:])]
        if "--models-cache" in command:
            options["env"] = {**options["env"], **router_variables()}
        print("started:", *command)
        # With --stop-at-eof the server ends when this pipe closes, even if this process is killed.
        return subprocess.Popen(command, stdin=subprocess.PIPE, **options)


def free_port():
    """A free port outside of the ephemeral range, from which outgoing connections take their ports."""
    while True:
        port = random.randrange(20000, 30000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


# `utils` imports wget for downloads, which these tests do not make.
sys.modules["wget"] = types.ModuleType("wget")


def pytest_configure(config):
    import utils

    utils.subprocess = Subprocess("subprocess")
    utils.ServerPreset.load_all = staticmethod(lambda: None)
    utils.download_file = lambda url, output_file_path=None: MODEL
    # llama.cpp's conftest.py uses ports from 8080 on.
    initialise, port = utils.ServerProcess.__init__, free_port()

    def with_port(server):
        initialise(server)
        server.server_port = port

    utils.ServerProcess.__init__ = with_port


keys = {}


def pytest_collection_modifyitems(items):
    """Names each test `file::test`, or `file::test[3]` with the number of its parameter set."""
    numbers = {}
    for item in items:
        name = re.sub(r"^unit/test_(\w+)\.py", r"\1", item.nodeid).partition("[")[0]
        numbers[name] = numbers.get(name, -1) + 1
        keys[item.nodeid] = f"{name}[{numbers[name]}]" if hasattr(item, "callspec") else name


def pytest_runtest_setup(item):
    current["test"] = keys[item.nodeid].partition("[")[0]


def pytest_runtest_logreport(report):
    # With pytest-xdist only the workers have `keys` and record outcomes.
    if report.nodeid not in keys or (report.when != "call" and report.passed):
        return
    line = {"test": keys[report.nodeid], "outcome": report.outcome, "seconds": round(report.duration, 2)}
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        line["error"] = crash.message if crash else str(report.longrepr)
    with open(OUTCOMES, "a") as file:
        file.write(json.dumps(line) + "\n")
