"""Clients that people have, unchanged, against the real server: over engines that play scripts, and over a real model."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio
from openai.types.chat import ChatCompletion, ChatCompletionFunctionToolParam

from relaygen.api import Options, Relay
from relaygen.errors import EngineCutError
from tests.serving import SCRIPT, THINKING, THOUGHT, Player, Served, ask, served, serving

QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
TOOL: ChatCompletionFunctionToolParam = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
CALL = ["I add.", "\n", "<tool_call>", '\n{"name": "add", "argu', 'ments": {"a": 2}}\n', "</tool_call>"]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "sure": {"type": "boolean"}},
    "required": ["city", "sure"],
    "additionalProperties": False,
}


@pytest_asyncio.fixture
async def thinking() -> AsyncGenerator[Served]:
    async with serving(Player(THOUGHT), Player(THOUGHT), profile=THINKING) as gateway:
        yield gateway


@pytest_asyncio.fixture
async def real(smollm2: Path) -> AsyncGenerator[Served]:
    options = Options(context_tokens=1024, num_slots=2, threads=1)
    async with Relay(smollm2, smollm2, options=options) as relay, served(relay, slots=2) as gateway:
        yield gateway


def client(gateway: Served, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="none-needed", max_retries=0, **options)


# --- openai


async def test_openai_streams_thinking_answer_and_usage(thinking: Served) -> None:
    async with client(thinking) as api:
        stream = await api.chat.completions.create(
            model="relaygen", messages=QUESTION, stream=True, stream_options={"include_usage": True}
        )
        thought = answer = ""
        usage = None
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                thought += getattr(choice.delta, "reasoning_content", None) or ""
                answer += choice.delta.content or ""
        assert (thought, answer) == ("Let me see. Therefore, 5.", "The sum is 5.")
        assert usage
        assert usage.completion_tokens_details
        assert usage.completion_tokens_details.reasoning_tokens == 11
        assert (usage.model_extra or {})["relaygen"]["small_tokens"] > 0


async def test_openai_synchronous(thinking: Served) -> None:
    def talk() -> tuple[list[str], str]:
        with openai.OpenAI(base_url=thinking.url + "/v1", api_key="x") as api:
            names = [model.id for model in api.models.list()]
            answer = api.chat.completions.create(model="relaygen", messages=QUESTION).choices[0].message
            text = api.completions.create(model="relaygen", prompt="<think>", max_tokens=2).choices[0].text
            # As people do: the message goes back into the conversation as it is.
            again: list[Any] = [*QUESTION, answer.model_dump(), {"role": "user", "content": "Sure?"}]
            api.chat.completions.create(model="relaygen", messages=again)
            return names, (answer.content or "") + text

    names, text = await asyncio.to_thread(talk)
    assert "relaygen:small" in names
    assert text == "The sum is 5.<think>\n"


@pytest.mark.parametrize("stream", [False, True])
async def test_openai_calls_a_tool_and_goes_on(stream: bool) -> None:
    engines = Player(CALL), Player(CALL)
    async with serving(*engines) as gateway, client(gateway) as api:
        if stream:
            async with api.chat.completions.stream(
                model="relaygen", messages=QUESTION, tools=[TOOL]
            ) as events:
                choice = (await events.get_final_completion()).choices[0]
        else:
            choice = (
                await api.chat.completions.create(model="relaygen", messages=QUESTION, tools=[TOOL])
            ).choices[0]
        calls = choice.message.tool_calls or []
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I add.")
        assert [
            (c.function.name, json.loads(c.function.arguments)) for c in calls if c.type == "function"
        ] == [("add", {"a": 2})]
        back: list[Any] = [
            *QUESTION,
            choice.message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": calls[0].id, "content": "4"},
        ]
        if stream:
            back[1]["tool_calls"][0]["function"].pop("parsed_arguments", None)
            back[1].pop("parsed", None)
        await api.chat.completions.create(model="relaygen", messages=back, tools=[TOOL])
        assert [m.role for m in engines[0].rendered[-1][0]] == ["user", "assistant", "tool"]


async def test_openai_is_told_of_failures() -> None:
    error = EngineCutError("the large model broke off", engine="x")
    async with serving(Player(fail_at=2, error=error, failures=9)) as gateway, client(gateway) as api:
        stream = await api.chat.completions.create(model="relaygen", messages=QUESTION, stream=True)
        text = ""
        with pytest.raises(openai.APIError, match="broke off"):
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
        assert text == "First we"
        with pytest.raises(openai.InternalServerError, match="broke off"):
            await api.chat.completions.create(model="relaygen", messages=QUESTION)
        with pytest.raises(openai.BadRequestError, match="presence_penalty") as caught:
            await api.chat.completions.create(model="relaygen", messages=QUESTION, presence_penalty=1)
        assert caught.value.param == "presence_penalty"
        with pytest.raises(openai.NotFoundError, match="gpt-4"):
            await api.chat.completions.create(model="gpt-4", messages=QUESTION)


async def test_openai_and_keys() -> None:
    async with serving(keys=["a-long-key"]) as gateway, client(gateway) as api:
        with pytest.raises(openai.AuthenticationError, match="missing or wrong"):
            await api.models.list()


# --- others


@pytest.mark.slow
async def test_litellm(thinking: Served) -> None:
    """In a process of its own: it does much when it is imported, and warns of itself."""
    script = f"""
import litellm
kwargs = dict(model="openai/relaygen", api_base="{thinking.url}/v1", api_key="x",
              messages=[{{"role": "user", "content": "?"}}], user="me", metadata={{"a": "b"}})
whole = litellm.completion(**kwargs)
chunks = litellm.completion(**kwargs, stream=True, stream_options={{"include_usage": True}})
parts = [c.choices[0].delta for c in chunks if c.choices]
try:
    litellm.completion(**kwargs, presence_penalty=1.5)
except litellm.BadRequestError as error:
    refused = str(error)
import json
print("RESULT " + json.dumps(dict(
    whole=whole.choices[0].message.content, thought=whole.choices[0].message.reasoning_content,
    streamed="".join(p.content or "" for p in parts), refused=refused, usage=whole.usage.completion_tokens,
    streamed_thought="".join(getattr(p, "reasoning_content", None) or "" for p in parts))))
"""
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "ignore", "-c", script, env=environment, stdout=-1, stderr=-1
    )
    out, err = await process.communicate()
    lines = [line for line in out.decode().splitlines() if line.startswith("RESULT ")]
    assert lines, err.decode()
    found = json.loads(lines[0].removeprefix("RESULT "))
    assert found["whole"] == found["streamed"] == "The sum is 5."
    assert found["thought"] == found["streamed_thought"] == "Let me see. Therefore, 5."
    assert found["usage"] == len(THOUGHT)
    assert "presence_penalty" in found["refused"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
async def test_langchain() -> None:
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    http = httpx.AsyncClient()

    def model(gateway: Served) -> Any:
        address = gateway.url + "/v1"
        return ChatOpenAI(
            model="relaygen", base_url=address, api_key=SecretStr("x"), max_retries=0, http_async_client=http
        )

    async with http:
        async with serving() as gateway:
            answer = await model(gateway).ainvoke("2 + 3?")
            streamed = [chunk.text async for chunk in model(gateway).astream("2 + 3?")]
        assert answer.text == "".join(streamed) == "".join(SCRIPT)
        assert answer.usage_metadata["input_tokens"] == 1
        async with serving(Player(CALL), Player(CALL)) as gateway:
            called = await model(gateway).bind_tools([TOOL]).ainvoke("2 + 3?")
            chunks = [chunk async for chunk in model(gateway).bind_tools([TOOL]).astream("2 + 3?")]
        assert [(c["name"], c["args"]) for c in called.tool_calls] == [("add", {"a": 2})]
        assert [c["name"] for chunk in chunks for c in chunk.tool_call_chunks] == ["add"]
        script = ['{"city": "Paris", ', '"sure": true}']
        async with serving(Player(script), Player(script)) as gateway:
            shaped = model(gateway).with_structured_output(
                {"title": "Answer", **SCHEMA}, method="json_schema"
            )
            assert await shaped.ainvoke("?") == {"city": "Paris", "sure": True}


async def test_curl(thinking: Served) -> None:
    process = await asyncio.create_subprocess_exec(
        *("curl", "-sN", thinking.url + "/v1/chat/completions", "-H", "Content-Type: application/json"),
        *("-d", json.dumps(ask(stream=True))),
        stdout=-1,
    )
    out, _ = await process.communicate()
    assert out.startswith(b"data: {")
    assert out.endswith(b"data: [DONE]\n\n")


# --- a real model, relayed with itself


@pytest.mark.weights
@pytest.mark.slow
async def test_a_real_answer_is_the_same_streamed_or_not(real: Served) -> None:
    async with client(real) as api:
        options: dict[str, Any] = {
            "model": "relaygen",
            "messages": QUESTION,
            "temperature": 0,
            "max_tokens": 40,
        }
        create: Any = api.chat.completions.create
        whole: ChatCompletion = await create(**options)
        assert whole.usage
        text = whole.choices[0].message.content or ""
        parts = [chunk.choices[0].delta.content or "" async for chunk in await create(**options, stream=True)]
        stop = text.split()[4]
        cut: ChatCompletion = await create(**options, stop=[stop])
    assert "".join(parts) == text
    assert len(parts) > 1
    assert whole.usage.prompt_tokens > 20
    assert cut.choices[0].message.content == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


@pytest.mark.weights
@pytest.mark.slow
async def test_a_real_answer_follows_a_schema_and_tells_its_log_probabilities(real: Served) -> None:
    shape: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    async with client(real) as api:
        for author in ("large", "small"):
            answer = await api.chat.completions.create(
                model="relaygen",
                messages=QUESTION,
                response_format=shape,
                max_tokens=100,
                extra_body={"relaygen": {"answer_by": author, "segments": True}},
            )
            found = json.loads(answer.choices[0].message.content or "")
            assert set(found) == {"city", "sure"}
            segments = (answer.model_extra or {})["relaygen"]["segments"]
            assert {segment["author"] for segment in segments if segment["text"]} == {author}
        rated = await api.chat.completions.create(
            model="relaygen", messages=QUESTION, logprobs=True, top_logprobs=3, temperature=0, max_tokens=8
        )
        with pytest.raises(openai.BadRequestError, match="tool_call"):  # its template knows of no tools
            await api.chat.completions.create(model="relaygen", messages=QUESTION, tools=[TOOL])
    logprobs = rated.choices[0].logprobs
    assert logprobs
    content = logprobs.content or []
    assert "".join(entry.token for entry in content) == rated.choices[0].message.content
    for entry in content:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token  # greedy
        assert entry.logprob <= 0


@pytest.mark.weights
@pytest.mark.slow
async def test_the_same_seed_gives_the_same_real_answer(real: Served) -> None:
    async with client(real) as api:

        async def answer(seed: int, n: int = 1) -> list[str | None]:
            found = await api.chat.completions.create(
                model="relaygen", messages=QUESTION, temperature=1.5, top_p=1, seed=seed, max_tokens=16, n=n
            )
            return [choice.message.content for choice in found.choices]

        first = await answer(7)
        assert first == await answer(7)
        one, other = await answer(7, n=2)
    assert one != other
