#!/usr/bin/env python3
"""Render the snippets below with Jinja2, set up as Hugging Face transformers sets it up, into snippets.json.

    python make.py      (jinja2 3.1)

A case is the template, and its text, or null where Jinja2 raises. All see the same variables.
"""

import json
import pathlib

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent

VARIABLES = {
    "i": 7,
    "n": -3,
    "f": 2.5,
    "t": True,
    "no": False,
    "nil": None,
    "s": "Hello, Wörld! it's 'a' \"test\"",
    "u": "naïve ÄÖÜ ß ﬁ 日本語 🙂\u00a0x\u200b",
    "w": "  \tpadded text\n ",
    "lines": "one\ntwo\r\n\nfour\n",
    "xs": [3, 1, 2],
    "words": ["b", "A", "c", "a"],
    "empty": [],
    "d": {"b": 1, "a": [1, 2], "items": "shadow", "c d": None},
    "people": [
        {"name": "Ann", "age": 31, "tags": ["x"], "at": {"city": "Bonn"}},
        {"name": "bob", "age": 25, "tags": [], "at": {"city": "Ulm"}},
        {"name": "Cy", "age": 31, "tags": ["y", "z"], "at": {"city": "Bonn"}},
    ],
    "num": "42",
    "big": 18446744073709551615,
    "tiny": 1e-7,
    "huge": 1e22,
    "html": "<a href='x'>&\"</a>",
}

EXPRESSIONS = (HERE / "expressions.txt").read_text().splitlines()


class Generation(Extension):
    """The tag with which transformers marks text of the assistant."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_inside"), [], [], body).set_lineno(line)

    def _inside(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: f"<{form}>"
    return env


def render(template, variables):
    try:
        return environment().from_string(template).render(**json.loads(json.dumps(variables)))
    except Exception:
        return None


def main():
    cases = []
    for line in EXPRESSIONS:
        if line and not line.startswith("## "):
            # A line is an expression, or a whole template with ⏎ for line ends.
            template = line.replace("⏎", "\n") if "{{" in line or "{%" in line or "{#" in line else "{{ " + line + " }}"
            cases.append([template, render(template, VARIABLES)])
    data = {"variables": VARIABLES, "cases": cases}
    (HERE / "snippets.json").write_text(json.dumps(data, ensure_ascii=False, indent=0) + "\n")
    print(len(cases), sum(text is None for _, text in cases), "raise")


if __name__ == "__main__":
    main()
