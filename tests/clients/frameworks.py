"""Tests the server with LiteLLM, LangChain and the `ollama` package, through each API they support.

    frameworks.py LATENT      starts `LATENT serve` with the demo model, and stops it
"""

import json
import os
import sys
import urllib.error
import urllib.request

# Otherwise LiteLLM downloads a table of prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
import ollama
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from litellm.litellm_core_utils.exception_mapping_utils import ExceptionCheckers
from server import serving

# Suppress LiteLLM's hints on expected errors.
litellm.suppress_debug_info = True
CONTEXT = 1024
QUESTION = "Tell me a story about a fox and a lantern."
MESSAGES = [{"role": "user", "content": QUESTION}]
LONG = [{"role": "user", "content": QUESTION * 400}]


def providers(url):
    """LiteLLM's providers for the server's APIs."""
    return {
        "openai": {"model": "openai/demo", "api_base": f"{url}/v1", "api_key": "unused"},
        "anthropic": {"model": "anthropic/demo", "api_base": url, "api_key": "unused"},
        "ollama": {"model": "ollama/demo", "api_base": url},
        "ollama_chat": {"model": "ollama_chat/demo", "api_base": url},
        # Providers for llama-server and other servers with OpenAI's API.
        "llamafile": {"model": "llamafile/demo", "api_base": f"{url}/v1"},
        "hosted_vllm": {"model": "hosted_vllm/demo", "api_base": f"{url}/v1"},
    }


def litellm_answers(url):
    for name, provider in providers(url).items():
        whole = litellm.completion(**provider, messages=MESSAGES, max_tokens=12, temperature=0)
        text = whole.choices[0].message.content
        assert len(text) > 5 and whole.usage.completion_tokens == 12, (name, whole)
        chunks = litellm.completion(**provider, messages=MESSAGES, max_tokens=12, temperature=0, stream=True)
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert streamed == text, (name, streamed, text)


def litellm_overflow(url):
    """A too long prompt raises the error after which agents shorten their history."""
    for name, provider in providers(url).items():
        for stream in (False, True):
            # For Ollama LiteLLM has no special error, but it recognizes the text of the message.
            expected = litellm.BadRequestError if "ollama" in name else litellm.ContextWindowExceededError
            try:
                list(litellm.completion(**provider, messages=LONG, max_tokens=5, stream=stream, num_retries=0))
            except expected as error:
                assert ExceptionCheckers.is_error_str_context_window_exceeded(str(error)), (name, error)
            else:
                raise AssertionError(f"{name}: no {expected.__name__}")
    for path, body in [
        ("/completion", {"prompt": LONG[0]["content"], "n_predict": 5}),
        ("/v1/completions", {"prompt": LONG[0]["content"], "max_tokens": 5}),
        ("/v1/responses", {"input": LONG[0]["content"]}),
    ]:
        try:
            urllib.request.urlopen(urllib.request.Request(url + path, json.dumps(body).encode()))
        except urllib.error.HTTPError as error:
            text = error.read().decode()
            assert error.code == 400 and ExceptionCheckers.is_error_str_context_window_exceeded(text), (path, text)
        else:
            raise AssertionError(f"{path}: no error")


@tool
def weather(days: int) -> str:
    """The weather of the next days."""
    return f"sun for {days} days"


def langchain_models(url):
    return [
        ChatOpenAI(
            model="demo",
            base_url=f"{url}/v1",
            api_key="unused",
            max_tokens=120,
            temperature=0,
            max_retries=0,
            stream_usage=True,
        ),
        ChatOpenAI(
            model="demo",
            base_url=f"{url}/v1",
            api_key="unused",
            max_tokens=120,
            temperature=0,
            max_retries=0,
            use_responses_api=True,
        ),
        ChatAnthropic(model="demo", base_url=url, api_key="unused", max_tokens=120, temperature=0, max_retries=0),
        ChatOllama(model="demo", base_url=url, num_predict=120, temperature=0),
    ]


def langchain(url):
    for model in langchain_models(url):
        name = type(model).__name__
        whole = model.invoke(QUESTION)
        assert len(whole.text) > 20 and whole.usage_metadata["output_tokens"] > 10, (name, whole)
        streamed = None
        for chunk in model.stream(QUESTION):
            streamed = chunk if streamed is None else streamed + chunk
        assert streamed.text == whole.text, (name, streamed, whole)
        assert streamed.usage_metadata["input_tokens"] == whole.usage_metadata["input_tokens"], (name, streamed)


def langchain_tools(url):
    # Ollama's API has no tool choice.
    for model in langchain_models(url)[:3]:
        bound = model.bind_tools([weather], tool_choice="any", parallel_tool_calls=False)
        called = bound.invoke(QUESTION)
        call = called.tool_calls[0]
        assert call["name"] == "weather" and isinstance(call["args"]["days"], int), called
        result = weather.invoke(call)
        assert isinstance(result, ToolMessage)
        assert model.invoke([HumanMessage(QUESTION), called, result]).usage_metadata["output_tokens"] > 0


def langchain_embeddings(url):
    of = [
        OpenAIEmbeddings(model="demo", base_url=f"{url}/v1", api_key="unused", check_embedding_ctx_length=False),
        OllamaEmbeddings(model="demo", base_url=url),
    ]
    vectors = [embeddings.embed_documents(["A fox", "A lantern"]) for embeddings in of]
    for one, other in zip(*vectors):
        assert abs(sum(a * b for a, b in zip(one, other)) - 1) < 1e-3


def ollama_package(url):
    client = ollama.Client(host=url)
    name = client.list().models[0].model
    whole = client.chat(model=name, messages=MESSAGES, options={"num_predict": 12, "temperature": 0})
    text = whole.message.content
    assert len(text) > 5 and whole.done_reason == "length" and whole.eval_count == 12, whole
    parts = client.chat(model=name, messages=MESSAGES, options={"num_predict": 12, "temperature": 0}, stream=True)
    assert "".join(part.message.content or "" for part in parts) == text
    assert client.generate(model=name, prompt=QUESTION, options={"num_predict": 5}).eval_count == 5
    assert client.show(name).details is not None
    assert len(client.embed(model=name, input=["A fox", "A lantern"]).embeddings) == 2
    try:
        client.chat(model=name, messages=LONG)
    except ollama.ResponseError as error:
        assert "exceeds the available context size" in error.error, error
    else:
        raise AssertionError("no ResponseError")


def main(latent):
    with serving(latent, "--ctx-size", str(CONTEXT), "--temp", "0") as url:
        for part in (litellm_answers, litellm_overflow, langchain, langchain_tools, langchain_embeddings, ollama_package):
            part(url)
            print(f"{part.__name__}: ok", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
