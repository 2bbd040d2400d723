"""Tests the server with the official `openai` and `anthropic` packages: typed round trips.

    clients.py LATENT      starts `LATENT serve` with the demo model, and stops it
    clients.py URL         uses a server that runs

Every event of a stream is parsed into its type by the packages; what does not fit raises.
"""

import json
import sys
import urllib.request

import anthropic
import openai
from server import serving

QUESTION = "Tell me a story about a fox and a lantern."
MESSAGES = [{"role": "user", "content": QUESTION}]
SCHEMA = {
    "type": "object",
    "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["days"],
    "additionalProperties": False,
}


def validated(value):
    """Validates an answer against its type, recursively: the packages construct objects unchecked."""
    type(value).model_validate(value.model_dump(), strict=False)
    return value


def chat(client):
    whole = validated(client.chat.completions.create(model="demo", messages=MESSAGES, max_tokens=30, temperature=0))
    text = whole.choices[0].message.content
    assert len(text) > 20 and whole.usage.completion_tokens == 30, whole
    chunks = list(
        client.chat.completions.create(
            model="demo",
            messages=MESSAGES,
            max_tokens=30,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(c.choices[0].delta.content or "" for c in map(validated, chunks) if c.choices) == text
    assert chunks[-1].usage.completion_tokens == 30

    tools = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
    called = validated(
        client.chat.completions.create(
            model="demo", messages=MESSAGES, tools=tools, tool_choice="required", max_tokens=120, parallel_tool_calls=False
        )
    )
    call = called.choices[0].message.tool_calls[0]
    assert call.function.name == "weather" and 1 <= json.loads(call.function.arguments)["days"] <= 9, called
    went_on = client.chat.completions.create(
        model="demo",
        messages=[*MESSAGES, called.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "sun"}],
        max_tokens=5,
    )
    validated(went_on)
    with client.chat.completions.stream(
        model="demo", messages=MESSAGES, tools=tools, tool_choice="required", max_tokens=120, parallel_tool_calls=False
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds, kinds
    assert final.choices[0].message.tool_calls[0].function.name == "weather"

    shaped = client.chat.completions.create(
        model="demo",
        messages=MESSAGES,
        max_tokens=60,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
    )
    assert 1 <= json.loads(shaped.choices[0].message.content)["days"] <= 9
    probable = validated(
        client.chat.completions.create(model="demo", messages=MESSAGES, max_tokens=3, logprobs=True, top_logprobs=2)
    )
    assert len(probable.choices[0].logprobs.content) == 3


def responses(client):
    whole = validated(client.responses.create(model="demo", input=QUESTION, max_output_tokens=30, temperature=0))
    assert whole.status == "incomplete" and len(whole.output_text) > 20, whole
    events = list(
        client.responses.create(model="demo", input=QUESTION, max_output_tokens=30, temperature=0, stream=True)
    )
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    for event in events:
        validated(event)
    assert events[0].type == "response.created" and events[-1].type == "response.incomplete"
    second = client.responses.create(
        model="demo", input="And then?", previous_response_id=whole.id, max_output_tokens=5
    )
    assert second.usage.input_tokens > whole.usage.input_tokens + 20
    assert client.responses.retrieve(whole.id).output_text == whole.output_text
    assert client.responses.input_items.list(whole.id).data
    client.responses.delete(whole.id)
    tools = [{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}, {"type": "web_search"}]
    with client.responses.stream(
        model="demo", input=QUESTION, tools=tools, tool_choice="required", max_output_tokens=120, parallel_tool_calls=False
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_response()
    assert "response.function_call_arguments.done" in kinds, kinds
    assert final.output[0].type == "function_call" and final.output[0].name == "weather", final


def plain(client):
    validated(client.completions.create(model="demo", prompt=["Once upon", "The lantern"], max_tokens=5, logprobs=2))
    chunks = list(client.completions.create(model="demo", prompt="Once upon", max_tokens=5, stream=True))
    # The type describes only the last chunk: before it, OpenAI itself sends null.
    validated(chunks[-1])
    assert "".join(chunk.choices[0].text for chunk in chunks)
    vectors = client.embeddings.create(model="demo", input=["A fox", "A lantern"])
    assert abs(sum(x * x for x in vectors.data[0].embedding) - 1) < 1e-3
    floats = client.embeddings.create(model="demo", input="A fox", encoding_format="float")
    assert abs(floats.data[0].embedding[0] - vectors.data[0].embedding[0]) < 1e-3
    name = validated(client.models.list().data[0]).id
    assert client.models.retrieve(name).id == name


def openai_errors(client):
    for request, error in [
        (lambda: client.chat.completions.create(model="demo", messages=[], max_tokens=1), openai.BadRequestError),
        (lambda: client.models.retrieve("no-such-model"), openai.NotFoundError),
        (lambda: client.responses.create(model="demo", input="x", background=True), openai.BadRequestError),
        (lambda: client.responses.create(model="demo", input="x", previous_response_id="resp_x"), openai.NotFoundError),
    ]:
        try:
            request()
        except error as found:
            assert found.body["message"], found
        else:
            raise AssertionError(f"no {error.__name__}")


def messages(client):
    ask = {"model": "demo", "messages": MESSAGES, "max_tokens": 30}
    whole = validated(client.messages.create(**ask))
    text = whole.content[0].text
    assert whole.stop_reason == "max_tokens" and len(text) > 20, whole
    with client.messages.stream(**ask) as stream:
        events = [validated(event).type for event in stream]
        final = stream.get_final_message()
    assert final.content[0].text == text and final.usage.output_tokens == 30, final
    assert events[0] == "message_start" and events[-1] == "message_stop", events
    counted = client.messages.count_tokens(model="demo", messages=MESSAGES)
    usage = whole.usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    tools = [{"name": "weather", "input_schema": SCHEMA}]
    choice = {"type": "any", "disable_parallel_tool_use": True}
    with client.messages.stream(**{**ask, "max_tokens": 120}, tools=tools, tool_choice=choice) as stream:
        for event in stream:
            validated(event)
        used = stream.get_final_message()
    assert used.stop_reason == "tool_use" and 1 <= used.content[0].input["days"] <= 9, used
    result = {"type": "tool_result", "tool_use_id": used.content[0].id, "content": "sun"}
    history = [*MESSAGES, {"role": "assistant", "content": used.content}, {"role": "user", "content": [result]}]
    validated(client.messages.create(model="demo", messages=history, max_tokens=5, tools=tools))
    try:
        client.messages.create(model="demo", messages=[], max_tokens=1)
    except anthropic.BadRequestError as error:
        assert error.body["error"]["type"] == "invalid_request_error", error.body
    else:
        raise AssertionError("no BadRequestError")


def run(url):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=120)
    other = anthropic.Anthropic(base_url=url, api_key="unused", max_retries=0, timeout=120)
    for part, whose in [
        (chat, client),
        (responses, client),
        (plain, client),
        (openai_errors, client),
        (messages, other),
    ]:
        part(whose)
        print(f"{part.__name__}: ok", flush=True)
    with urllib.request.urlopen(f"{url}/latent/stats") as reply:
        stats = json.load(reply)
    assert stats["running"] == 0 and stats["kv_blocks"]["used"] == 0, stats


def main():
    target = sys.argv[1]
    if target.startswith("http"):
        return run(target)
    with serving(target, "--ctx-size", "1024", "--temp", "0") as url:
        run(url)


if __name__ == "__main__":
    main()
