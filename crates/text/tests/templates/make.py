#!/usr/bin/env python3
"""Render the templates of this folder with Jinja2, set up as Hugging Face transformers sets it up, into golden.json.

    python make.py      (jinja2 3.1)

The templates are those that the models' publishers ship. golden.json holds the conversations and, for each template and
conversation, the text or null where the template raises.
"""

import datetime
import json
import pathlib

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent
NOW = 1_700_000_000
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather <now> in a city & its surroundings",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1}},
                "required": ["city"],
            },
        },
    }
]


def call(arguments):
    return {"id": "functions.get_weather:0", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}


def conversations():
    user = {"role": "user", "content": "What is the weather in Zürich? <b>&\"'"}
    system = {"role": "system", "content": "Be brief."}
    answer = {"role": "assistant", "content": "<think>hm</think>Sunny."}
    again = {"role": "user", "content": "And tomorrow? 🙂"}
    result = {"role": "tool", "tool_call_id": "functions.get_weather:0", "name": "get_weather", "content": '{"sky": "clear"}'}
    objects = {"role": "assistant", "content": "", "tool_calls": [call({"city": "Zürich", "days": 2})]}
    strings = {"role": "assistant", "content": "", "tool_calls": [call('{"city": "Zürich"}')]}
    yield "plain", {"messages": [user]}
    yield "no_prompt", {"messages": [user], "add_generation_prompt": False}
    yield "system", {"messages": [system, user]}
    yield "turns", {"messages": [system, user, answer, again]}
    yield "tools", {"messages": [system, user], "tools": TOOLS}
    yield "call_objects", {"messages": [user, objects, result, again], "tools": TOOLS}
    yield "call_strings", {"messages": [user, strings, result], "tools": TOOLS}
    yield "thinking", {"messages": [user], "extra": {"enable_thinking": True, "thinking": True}}
    yield "no_thinking", {"messages": [user], "extra": {"enable_thinking": False, "thinking": False}}
    parts = {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}
    yield "parts", {"messages": [parts]}
    yield "reasoning", {"messages": [user, {"role": "assistant", "reasoning_content": "hm", "content": "Sunny."}, again]}
    think = {"enable_thinking": True, "thinking": True}
    reasoned = objects | {"reasoning_content": "  I should look.\n"}
    yield "call_thinking", {"messages": [system, user, reasoned, result], "tools": TOOLS, "extra": think}
    two = {"role": "assistant", "content": "", "tool_calls": [call({"city": "Ulm"}), call({"city": "Ö", "days": [1, None, 2.5]})]}
    yield "two_calls", {"messages": [user, two, result, result, {"role": "assistant", "content": "Done."}, again], "tools": TOOLS}
    yield "said_and_called", {"messages": [user, objects | {"content": "Let me see.\n\n"}, result, again], "tools": TOOLS}
    yield "answered", {"messages": [system, user, answer], "add_generation_prompt": False}
    odd = {"role": "user", "content": "\n <|im_end|>{{ x }}{% if %}\\n\t'\"</think> \u00a0\u200b\n"}
    yield "odd_text", {"messages": [odd, {"role": "assistant", "content": "\n\n<think>\n\nhm\n</think>\n\n  yes \n"}, odd]}
    yield "systems", {"messages": [system, user, system, answer, again], "extra": think}
    yield "empty", {"messages": [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}, again]}
    schema = {
        "type": "object",
        "properties": {
            "kind": {"type": "string", "enum": ["a", "b"], "description": "one\ntwo", "default": "a"},
            "when": {"type": "string", "format": "date-time"},
            "n": {"type": "integer", "minimum": 1, "maximum": 18446744073709551615, "enum": [1, 2]},
            "deep": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "boolean"}}, "required": ["x"]}},
            "any": {},
        },
        "additionalProperties": {"type": "string"},
    }
    deep = {"type": "function", "function": {"name": "deep", "description": "l1\n\nl2", "parameters": schema, "return_parameters": schema}}
    bare = {"type": "function", "function": {"name": "bare", "parameters": {"type": "object", "properties": {}}}}
    yield "schemas", {"messages": [system, user], "tools": [*TOOLS, deep, bare], "extra": think}
    yield "tool_parts", {"messages": [user, objects, {"role": "tool", "content": [{"type": "text", "text": "one"}, {"output": 2}, "three"]}], "tools": TOOLS}


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

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    now = datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc)
    env.globals["strftime_now"] = lambda form: now.strftime(form)
    return env


def main():
    cases = dict(conversations())
    golden = {"now": NOW, "conversations": cases, "renders": {}}
    for path in sorted(HERE.glob("*.jinja")):
        template = environment().from_string(path.read_text())
        renders = golden["renders"][path.name] = {}
        for name, case in cases.items():
            values = {
                "tools": None,
                "documents": None,
                "add_generation_prompt": True,
                "bos_token": "<bos>",
                "eos_token": "<eos>",
            } | {k: v for k, v in case.items() if k != "extra"} | case.get("extra", {})
            try:
                renders[name] = template.render(**json.loads(json.dumps(values)))
            except TemplateError:
                renders[name] = None
            except TypeError:
                # tojson of a generator fails in Jinja2. Templates do not rely on this.
                pass
    (HERE / "golden.json").write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
