"""Compares the grammars of tool calls with xgrammar's structural tags for the same models.

    tool_grammars.py EXAMPLE      a program from `cargo build --release -p latent-grammar --example tool_calls`

CASES has valid and invalid texts, which follow the models' chat templates. DIFFERENCES lists the cases in which
xgrammar differs, with reasons. Any other difference is a failure, and so is a listed one that does not occur.
"""

import json
import subprocess
import sys
import types
from unittest import mock

# xgrammar imports PyTorch and transformers, but these tests do not use them: replace them by stubs.
try:
    import tvm_ffi  # noqa: F401  (before the stub of torch, which it would take for the real one)

    class Stub(types.ModuleType):
        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return mock.MagicMock()

    for package in ("torch", "transformers"):
        sys.modules[package] = Stub(package)
    for tokenizer in ("PreTrainedTokenizerBase", "PreTrainedTokenizerFast"):
        setattr(sys.modules["transformers"], tokenizer, type(tokenizer, (), {}))
    import xgrammar
    from xgrammar import structural_tag as tags
    from xgrammar.builtin_structural_tag import get_model_structural_tag
    from xgrammar.testing import _is_grammar_accept_string
except ImportError as error:
    print(f"SKIPPED: xgrammar does not install ({error})")
    sys.exit(0)

WEATHER = {
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "share": {"type": "number"},
            "now": {"type": "boolean"},
            "at": {"type": "array", "items": {"type": "integer"}},
            "place": {
                "type": "object",
                "properties": {"lat": {"type": "number"}, "tags": {"type": "array", "items": {"type": "string"}}},
                "required": ["lat"],
                "additionalProperties": False,
            },
            "unit": {"type": "string", "enum": ["C", "F"]},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
TIME = {"name": "get_time", "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]}}
TOOLS = [WEATHER, TIME]


def dump(value):
    return json.dumps(value, ensure_ascii=False)


def structural_tag(begin, end, style="json", trigger=None, separator=""):
    """Returns a structural tag for models that xgrammar does not know. `NAME` stands for the tool's name.

    Triggered tags allow any text between and after calls.
    """

    def made(tools, choice, parallel):
        def call(tool):
            content = tags.JSONSchemaFormat(json_schema=tool["parameters"], style=style)
            return tags.TagFormat(begin=begin.replace("NAME", tool["name"]), content=content, end=end)

        calls = [call(tool) for tool in tools if choice in ("auto", "required", tool["name"])]
        if choice == "auto":
            format = tags.TriggeredTagsFormat(triggers=[trigger or begin], tags=calls, stop_after_first=not parallel)
        elif choice == "required":
            format = tags.TagsWithSeparatorFormat(tags=calls, separator=separator, at_least_one=True, stop_after_first=not parallel)
        else:
            [format] = calls
        return tags.StructuralTag(format=format)

    return made


class Json:
    """Arguments as one JSON object. `xgrammar`: its name for the model, or a function that returns a structural tag."""

    def __init__(self, xgrammar, open, name_close, close, section=("", ""), separator="", controls=()):
        self.xgrammar, self.open, self.name_close, self.close = xgrammar, open, name_close, close
        self.section, self.separator, self.controls = section, separator, controls
        self.outer = ("", "")

    def call(self, index, name, arguments):
        return self.open + name + self.name_close.replace("INDEX", str(index)) + dump(arguments) + self.close

    def calls(self, calls):
        written = [self.call(index, *call) for index, call in enumerate(calls)]
        return self.section[0] + self.separator.join(written) + self.section[1]


class Tagged(Json):
    """Arguments one by one; `argument` gets key, type and text of the value."""

    def __init__(self, xgrammar, open, name_close, close, argument, outer=("", ""), between="", **others):
        super().__init__(xgrammar, open, name_close, close, **others)
        self.argument, self.outer, self.between = argument, outer, between

    def call(self, index, name, arguments):
        def written(key, value):
            kinds = {str: "string", bool: "boolean", int: "number", float: "number", list: "array", dict: "object"}
            return self.argument(key, kinds[type(value)], value if isinstance(value, str) else dump(value))

        inner = [written(*item) for item in arguments.items()]
        return self.open + name + self.name_close.replace("INDEX", str(index + 1)) + self.between.join(inner) + self.close


def dsml(xgrammar, section, space):
    def argument(key, kind, value):
        string = "true" if kind == "string" else "false"
        return f'<｜DSML｜{space}parameter name="{key}" string="{string}">{value}</｜DSML｜{space}parameter>\n'

    return Tagged(
        xgrammar, f'<｜DSML｜{space}invoke name="', '">\n', f"</｜DSML｜{space}invoke>", argument, separator="\n",
        section=(f"\n\n<｜DSML｜{section}>\n", f"\n</｜DSML｜{section}>"), controls=("｜DSML｜",),
    )


DEEPSEEK = {
    "section": ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    "controls": ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"),
}
GLM = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")


def GLM_ARGUMENT(key, _, value):
    return f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>"


FORMATS = {
    "deepseek-r1": Json(
        "deepseek_r1", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>", separator="\n", **DEEPSEEK
    ),
    "deepseek-v3.1": Json("deepseek_v3_1", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", **DEEPSEEK),
    "deepseek-v3.2": dsml("deepseek_v3_2", "function_calls", ""),
    "deepseek-v4": dsml("deepseek_v4", "tool_calls", ""),
    "deepseek-v4.1": dsml("deepseek_v4_1", " calls", " "),
    "kimi-k2": Json(
        "kimi", "<|tool_call_begin|>functions.", ":INDEX<|tool_call_argument_begin|>", "<|tool_call_end|>",
        section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        controls=(
            "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
        ),
    ),
    "kimi-k3": Tagged(
        "kimi_k3", '<|open|>call tool="', '" index="INDEX"<|sep|>', "<|close|>call<|sep|>",
        lambda key, kind, value: f'<|open|>argument key="{key}" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>',
        section=("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"), controls=("<|open|>", "<|close|>", "<|sep|>"),
        # The end of the answer, before the calls, and the end of the message.
        outer=("<|close|>response<|sep|>", "<|close|>message<|sep|>"),
    ),
    "glm-4.7": Tagged(
        "glm_4_7", "<tool_call>", "", "</tool_call>", lambda key, _, value: f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>", controls=GLM
    ),
    "glm-4.5": Tagged(
        structural_tag("<tool_call>NAME\n", "</tool_call>", style="glm_xml", trigger="<tool_call>", separator="\n"),
        "<tool_call>", "\n", "\n</tool_call>", GLM_ARGUMENT, between="\n", separator="\n", controls=GLM,
    ),
    "ling-3": Tagged(
        structural_tag("<tool_call>NAME\n", "\n</tool_call>", style="glm_xml", trigger="<tool_call>", separator="\n"),
        "<tool_call>", "\n", "\n</tool_call>", GLM_ARGUMENT, separator="\n", controls=GLM,
    ),
    "gigachat-3": Json(
        structural_tag(
            '<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "NAME", "arguments": ', "}<|message_sep|>", trigger="<|message_sep|>"
        ),
        '<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "', '", "arguments": ', "}<|message_sep|>",
        controls=("<|message_sep|>", "<|role_sep|>"),
    ),
    "mistral": Json(
        structural_tag("[TOOL_CALLS]NAME[ARGS]", "", trigger="[TOOL_CALLS]"),
        "[TOOL_CALLS]", "[ARGS]", "", controls=("[TOOL_CALLS]", "[ARGS]"),
    ),
    "hermes": Json(
        "qwen_3", '<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", separator="\n", controls=("<tool_call>", "</tool_call>")
    ),
}

FEW = {"city": "Bonn", "days": 3}
ALL = {
    "city": "Köln \"am\" Rhein <b>", "days": -3, "share": 0.5, "now": True, "at": [1, 2],
    "place": {"lat": 50.75, "tags": ["a", "b\n\""]}, "unit": "F",
}


def weather(**others):
    return ("get_weather", {**FEW, **others})


def without(key):
    return ("get_weather", {name: value for name, value in FEW.items() if name != key})


TEXTS = {
    "nothing": "",
    "text": "It rains, 日本.",
    "text that looks like JSON": '{"city": 1}\n',
    "text with tags": "\n\n<b>x</b>\n\n<",
}
ZONE = ("get_time", {"zone": "Europe/Berlin"})
# case: calls, and whether they are valid. An empty list of calls is an empty text.
CALLS = {
    "required arguments": ([weather()], True),
    "all types": ([("get_weather", ALL)], True),
    "an empty string": ([weather(city="")], True),
    "a string of several lines": ([weather(city="a\nb\n")], True),
    "a string with tags": ([weather(city="<b>x</b>\n</")], True),
    "a string that looks like a number": ([weather(city="12")], True),
    "an empty list": ([weather(at=[])], True),
    "nested object without what is optional": ([weather(place={"lat": -1})], True),
    "two calls": ([weather(), ZONE], True),
    "three calls": ([ZONE, ZONE, weather(now=False)], True),
    "a name that is not a tool's": ([("get_rain", FEW)], False),
    "a name that goes on": ([("get_weather2", FEW)], False),
    "a name that is cut": ([("get_weathe", FEW)], False),
    "an empty name": ([("", FEW)], False),
    "another tool's arguments": ([("get_time", FEW)], False),
    "no arguments where some are required": ([("get_weather", {})], False),
    "the first required argument is missing": ([without("city")], False),
    "the last required argument is missing": ([without("days")], False),
    "a number that is a word": ([weather(days="three")], False),
    "an integer with a fraction": ([weather(days=1.5)], False),
    "a boolean that is a number": ([weather(now=1)], False),
    "a list that is an object": ([weather(at={"a": 1})], False),
    "a list with a wrong element": ([weather(at=[1, "x"])], False),
    "a nested object that lacks something": ([weather(place={"tags": []})], False),
    "a nested object with something else": ([weather(place={"lat": 1, "x": 1})], False),
    "a value that is not in the list": ([weather(unit="K")], False),
    "an argument that nobody knows": ([weather(colour="red")], False),
    "a wrong second call": ([weather(), ("get_time", {})], False),
}


def cases(format):
    """Name, choice of tools, text before the calls, text from the first of them on, whether it is right."""
    yield from unmarked(format)
    if not any(format.outer):
        return
    for name, choice, before, calls, right in list(unmarked(format)):
        if choice.removesuffix(ALONE) == "auto":
            yield name + MARKED, choice, before + format.outer[0], calls or format.outer[1], right


def unmarked(format):
    """Cases without the markers of the answer."""
    for name, (calls, right) in CALLS.items():
        text = format.calls(calls)
        yield name, "required", "", text, right
        yield name, "auto", "", text, right
        yield name, "get_weather", "", text, right and len(calls) == 1
        for choice in ("auto", "required"):
            yield name, choice + ALONE, "", text, right and len(calls) == 1
    one = format.calls([weather()])
    yield "another tool than the named", "get_weather", "", format.calls([ZONE]), False
    yield "the named tool", "get_time", "", format.calls([ZONE]), True
    for name, text in TEXTS.items():
        yield name, "auto", text, "", True
        yield name, "required", text, "", False
        yield name, "get_weather", text, "", False
        if text:
            yield name + " before a call", "auto", text, one, True
            yield name + " before a call", "required", text, one, False
    for choice in ("auto", "required", "auto" + ALONE, "required" + ALONE):
        yield "text behind a call", choice, "", one + " Done.", False
        yield "the last letter is missing", choice, "", one[:-1], False
        if format.section[0]:
            yield "a section without calls", choice, "", "".join(format.section), False
    yield "half a call", "required", "", one[: len(one) // 2], False


# A tool choice without parallel calls.
ALONE = " alone"
# Cases with the markers that end the answer and, without calls, the message.
MARKED = ", with the answer's end"
# (formats, case, choice): the reason why xgrammar differs.
BEHIND = "the chat templates end the assistant's turn behind its calls; triggered tags let text follow"
WHOLE_MESSAGE = "the tag is of the whole message, with the answer that stands before the calls; ours begins with the calls"
DIFFERENCES = {
    (
        "deepseek-r1 deepseek-v3.1 deepseek-v3.2 deepseek-v4 deepseek-v4.1 kimi-k2 glm-4.5 ling-3 gigachat-3 mistral",
        "text behind a call", "auto",
    ): BEHIND,
    ("glm-4.7 hermes", "text behind a call", "auto required"): BEHIND,
    ("kimi-k3", "text before a call", "required"): WHOLE_MESSAGE,
    ("kimi-k3", "text that looks like JSON before a call", "required"): WHOLE_MESSAGE,
    ("kimi-k3", "text with tags before a call", "required"): WHOLE_MESSAGE,
}


def differs(format, case, choice):
    for (formats, of, choices), reason in DIFFERENCES.items():
        if case == of and format in formats.split() and choice in choices.split():
            return reason
    return None


def xgrammar_admits(format, grammars, choice, before, calls):
    if choice not in grammars:
        wanted, parallel = choice.removesuffix(ALONE), not choice.endswith(ALONE)
        if callable(format.xgrammar):
            tag = format.xgrammar(TOOLS, wanted, parallel)
        else:
            tools = [{"type": "function", "function": {**tool, "strict": True}} for tool in TOOLS]
            named = wanted if wanted in ("auto", "required") else {"type": "function", "function": {"name": wanted}}
            tag = get_model_structural_tag(
                format.xgrammar, tools=tools, tool_choice=named, reasoning="disabled", parallel_tool_calls=parallel
            )
        grammars[choice] = xgrammar.Grammar.from_structural_tag(tag)
    # xgrammar's tag describes the whole message.
    answer, message = format.outer
    before = before.removesuffix(answer) + answer
    return _is_grammar_accept_string(grammars[choice], before + calls.removesuffix(message) + message)


def main(program):
    every = [(name, *case) for name, format in FORMATS.items() for case in cases(format)]
    lines = [
        {
            "format": name, "controls": controls, "tools": TOOLS, "tool_choice": choice.removesuffix(ALONE),
            "parallel": not choice.endswith(ALONE), "text": before + calls,
        }
        for name, _, choice, before, calls, _ in every
        for controls in (FORMATS[name].controls, [])
    ]
    ran = subprocess.run([program], input="\n".join(map(dump, lines)), capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        sys.exit(f"{program}: {ran.stderr}")
    ours = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(ours) == 2 * len(every)
    failures, differences, grammars = 0, 0, {name: {} for name in FORMATS}
    for index, (name, case, choice, before, calls, right) in enumerate(every):
        theirs = xgrammar_admits(FORMATS[name], grammars[name], choice, before, calls)
        reason = differs(name, case, choice)
        problems = [
            f"ours{kind} {'refuses it from byte ' + str(verdict['at']) if right else 'admits it'}"
            for kind, verdict in zip(("", " with markers that are text"), ours[2 * index : 2 * index + 2])
            if verdict["admitted"] != right
        ]
        if theirs != right and reason is None:
            problems.append(f"xgrammar {'admits' if theirs else 'refuses'} it, without a reason in DIFFERENCES")
        if theirs == right and reason is not None:
            problems.append("xgrammar decides alike, though DIFFERENCES has a reason")
        differences += theirs != right
        if problems:
            failures += 1
            print(f"FAILED {name}, {choice}, {case}: {'; '.join(problems)}\n  {before + calls!r}")
    print(f"{len(every)} texts in {len(FORMATS)} formats: xgrammar decides {differences} otherwise; {failures} failures")
    sys.exit(failures != 0)


main(sys.argv[1])
