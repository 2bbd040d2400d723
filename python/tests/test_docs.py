"""Runs the programs in docs/ and the cells of the notebook."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]


def programs(path, section=None):
    text = (ROOT / path).read_text(encoding="utf-8")
    if section is not None:
        text = text.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    ("path", "section", "count"),
    [("python/README.md", None, 1), ("docs/python.md", None, 10), ("docs/tutorial.md", None, 1)],
)
def test_the_programs_of_a_document_run(path, section, count, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = programs(path, section)
    assert len(found) >= count
    names = {}
    for program in found:
        exec(compile(program, path, "exec"), names)
    # The programs print stories.
    assert len(capsys.readouterr().out.split()) > 30


def test_the_notebook_runs_and_shows_what_it_says(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.read(ROOT / "docs/python.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = {}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            [name] = cell.metadata.tags
            shown[name] = "".join(
                output.get("text", "") + "".join(output.get("data", {}).values()) for output in cell.outputs
            )
    assert len(shown["stream"].split()) > 20
    assert len(shown["chat"].split()) > 20
    assert re.search(r"\d\.\d+", shown["logits"])
    assert "<img" in shown["plan"] and "image/svg+xml" in shown["plan"]
    assert "GB/s" in shown["profile"]
    assert "token_embd.weight" in shown["gguf"]
    assert "7.1 times smaller" in shown["gemm"] and "(1, 1024)" in shown["gemm"]
