"""Downloads llama.cpp's server tests with pip, unpacks them, and adapts them to the demo model.

`fetch` downloads the source package of llama-cpp-python, which vendors llama.cpp. `unpack` extracts the tests and their
chat templates. `adapt` applies the replacements of adapted.toml: texts and token counts of llama.cpp's test models.
"""

import ast
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
REQUIREMENT = HERE / "source.txt"
TESTS = "tools/server/tests/"
WANTED = (TESTS, "models/templates/")


def fetch(cache):
    """Downloads the source package into the folder `cache`, once. Returns its path, or None if pip fails."""
    name, version, digest = re.search(r"^([\w-]+)==([\d.]+) --hash=sha256:(\w+)", REQUIREMENT.read_text(), re.M).groups()
    package = Path(cache) / f"{name.replace('-', '_')}-{version}.tar.gz"
    if not package.exists():
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            # pip only asks the package for its metadata, which compiles nothing.
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
            command += ["--no-binary", name, "--require-hashes", "-r", str(REQUIREMENT), "-d", folder]
            if subprocess.run(command, timeout=280).returncode:
                return None
            shutil.move(Path(folder) / package.name, package)
    with package.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != digest:
        package.unlink()
        raise SystemExit(f"{package} had the SHA-256 {found}, expected {digest}: deleted, run this again")
    return package


def unpack(package, folder):
    """Extracts the wanted files of llama.cpp into `folder`, and returns the folder of the tests."""
    with tarfile.open(package) as archive:
        for member in archive:
            path = member.name.partition("/vendor/llama.cpp/")[2]
            if member.isfile() and path.startswith(WANTED):
                target = folder / path
                if not target.resolve().is_relative_to(folder.resolve()):
                    raise SystemExit(f"{package}: {member.name} leaves the folder")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.extractfile(member).read())
    return folder / TESTS


def expression(text):
    """The syntax tree of an expression as text, which does not depend on the layout."""
    return ast.dump(ast.parse(text.strip(), mode="eval").body)


def replaced(source, rules, name):
    """Returns `source` with the expressions of `rules` replaced. A rule without a match is an error."""
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    tree = ast.parse(source)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    edits = {}
    for rule in rules:
        wanted, count = expression(rule["from"]), 0
        if unknown := [test for test in rule.get("tests", []) if test not in functions]:
            raise SystemExit(f"adapted.toml: {name} has no test {unknown[0]}")
        for root in [functions[test] for test in rule["tests"]] if "tests" in rule else [tree]:
            for node in ast.walk(root):
                if isinstance(node, ast.expr) and ast.dump(node) == wanted:
                    start = starts[node.lineno - 1] + node.col_offset
                    edits[start] = (starts[node.end_lineno - 1] + node.end_col_offset, rule["to"])
                    count += 1
        if not count:
            raise SystemExit(f"adapted.toml: {rule['from']} does not occur in {name} {rule.get('tests', '')}")
    data, done, result = source.encode(), 0, b""
    for start, (end, text) in sorted(edits.items()):
        # Nested within an expression that is replaced.
        if start < done:
            continue
        result += data[done:start] + text.encode()
        done = end
    return (result + data[done:]).decode()


def adapt(tests):
    """Applies adapted.toml to the unpacked tests. Returns the names of the adapted ones, as `file::function`."""
    rules = tomllib.loads((HERE / "adapted.toml").read_text())
    touched = set()
    for name, own in rules.items():
        if name == "arguments":
            continue
        path = tests / (f"unit/test_{name}.py" if name != "utils" else "utils.py")
        path.write_text(replaced(path.read_text(), own, path.name))
        touched.update(f"{name}::{test}" for rule in own for test in rule.get("tests", []))
    return touched
