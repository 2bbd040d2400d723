#!/usr/bin/env python3
"""Render the templates beside this file with Jinja2, set up as Hugging Face transformers sets it up, into golden.json.

    python make.py      (jinja2 3.1)

The templates are those that the models' publishers ship. golden.json holds the conversations and, for each template and
conversation, the text or null where the template raises.
"""

import datetime
import json
import pathlib

from jinja2.exceptions import TemplateError
from jinja2.ext import loopcontrols
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


def environment():
    def raise_exception(message):
        raise TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
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
                # tojson of a generator: a limit of Jinja2's own filters that templates do not mean to rely on
                pass
    (HERE / "golden.json").write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
