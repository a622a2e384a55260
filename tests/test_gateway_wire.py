"""What is refused, and how: the field is named, and no body whatever is a fault of the server."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relaygen.gateway.wire import RefusedError, chat_job, completion_job, error_body
from tests.serving import ask, serving

TOOL = {"type": "function", "function": {"name": "f"}}


def refusal(body: Any) -> dict[str, Any]:
    with pytest.raises(RefusedError) as caught:
        chat_job(body if isinstance(body, bytes) else json.dumps(body).encode(), max_messages=5)
    return error_body(caught.value)["error"]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"logit_bias": {"5": 1}}, "logit_bias", "not supported"),
    ({"presence_penalty": 0.5}, "presence_penalty", "repetition_penalty"),
    ({"frequency_penalty": False}, "frequency_penalty", "not supported"),
    ({"modalities": ["text", "audio"]}, "modalities", "text"),
    ({"audio": {"voice": "x"}}, "audio", "text"),
    ({"reasoning_effort": "low"}, "reasoning_effort", "not supported"),
    ({"functions": [{}]}, "functions", "use tools"),
    ({"store": True}, "store", "stored"),
    ({"tool_choice": "required"}, "tool_choice", "auto and none"),
    (
        {"tools": [{**TOOL, "function": {"name": "f", "strict": True}}]},
        "tools[0].function.strict",
        "as the model",
    ),
    ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "response_format", "tools"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "schema"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "json_object"),
    ({"foo": 1}, "foo", "not known"),
    ({"relaygen": {"polcy": "large"}}, "relaygen.polcy", "not known"),
    (
        {"relaygen": {"policy": "medium"}},
        "relaygen.policy",
        "choose one of segment, phase, large, small, random:SHARE",
    ),
    ({"relaygen": {"policy": "margin"}}, "relaygen.policy", "needs a number between 0 and 1, as margin:0.4"),
    ({"relaygen": {"policy": "large:1"}}, "relaygen.policy", "takes no number"),
    ({"relaygen": {"policy": 3}}, "relaygen.policy", "string"),
    ({"temperature": -1}, "temperature", "greater than or equal to 0"),
    ({"temperature": "hot"}, "temperature", "number"),
    ({"top_p": 0}, "top_p", "greater than 0"),
    ({"n": 0}, "n", "greater"),
    ({"max_tokens": 0}, "max_tokens", "greater"),
    ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "differ"),
    ({"stop": ["a", 3]}, "stop[1]", "string"),
    ({"stop": ""}, "stop", "at least 1 character"),
    ({"seed": 2**64}, "seed", ""),
    ({"top_logprobs": 3}, "top_logprobs", "only with logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "only with stream"),
    ({"messages": []}, "messages", "at least 1"),
    ({"messages": "hi"}, "messages", "list"),
    ({"messages": [{"role": "user", "content": "x"}] * 6}, "messages", "5 are allowed"),
    ({"messages": [{"role": "user", "content": " "}]}, "messages", "nothing to answer"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "user"),
    (
        {"messages": [{"role": "user", "content": "x"}, {"role": "assistant"}]},
        "messages[1].content",
        "given",
    ),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "string"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[0].content[0].type",
        "'text'",
    ),
]


@pytest.mark.parametrize(("fields", "param", "words"), REFUSED)
def test_what_cannot_be_honoured_is_named(fields: dict[str, Any], param: str, words: str) -> None:
    error = refusal({**ask(), **fields})
    assert error["param"] == param
    assert words in error["message"]
    assert error["message"].startswith(param) or error["message"].startswith("max_tokens")
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"},
        {
            "parallel_tool_calls": True,
            "n": 1,
            "logit_bias": {},
            "presence_penalty": 0,
            "frequency_penalty": 0.0,
        },
        {"stop": None, "seed": None, "max_tokens": None, "temperature": None, "stream": None, "tools": None},
        {"modalities": ["text"], "response_format": {"type": "text"}, "tool_choice": "auto"},
    ],
)
def test_what_clients_say_of_their_own_accord_is_taken(fields: dict[str, Any]) -> None:
    assert chat_job(orjson.dumps({**ask(), **fields}), max_messages=5).num_choices == 1


def test_completions_refuse_in_the_same_way() -> None:
    for fields, param in (
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": 1}, "logprobs"),
        ({"prompt": [1, 2]}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
    ):
        with pytest.raises(RefusedError) as caught:
            completion_job(orjson.dumps({"prompt": "x", **fields}))
        assert caught.value.param == param


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"\xff", b'{"a": "\\ud800"}', b"[" * 100_000, b'{"messages": NaN}']
)
def test_what_is_no_json_object(body: bytes) -> None:
    assert "the body is not" in refusal(body)["message"]


def test_deep_definitions_are_refused() -> None:
    deep: Any = {}
    for _ in range(200):
        deep = {"properties": {"a": deep}}
    tool = {"type": "function", "function": {"name": "f", "parameters": deep}}
    assert "nested deeper" in refusal(ask(tools=[tool]))["message"]
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": deep}}
    assert "nested deeper" in refusal(ask(response_format=schema))["message"]


# --- any body at all

FIELDS = sorted(
    {
        *ask(),
        *("max_tokens", "stop", "tools", "response_format", "relaygen", "n", "stream", "seed", "logprobs"),
        *("temperature", "stream_options", "tool_choice", "top_k"),
    }
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(st.characters(), max_size=20)
    | st.sampled_from(["relaygen", "user", "text", "\x00", "json_object", "relaygen:large", "x" * 10_000])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "function", "name", "policy"]), inner)
    ),
    max_leaves=12,
)
bodies = st.dictionaries(st.sampled_from(FIELDS), values, max_size=6)


@settings(deadline=None, max_examples=300)
@given(bodies, st.booleans())
def test_any_body_is_taken_or_refused(body: dict[str, Any], valid: bool) -> None:
    data = json.dumps(
        {**ask(), **body} if valid else body
    ).encode()  # escapes lone surrogates, as JavaScript does
    for parse in (partial(chat_job, max_messages=5), completion_job):
        try:
            parse(data)
        except RefusedError as error:
            orjson.dumps(error_body(error))


@pytest.mark.slow
async def test_the_server_never_fails_on_a_body() -> None:
    async with serving() as gateway:
        examples: list[dict[str, Any]] = []

        @settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.nested_given])
        @given(bodies, st.booleans())
        def collect(body: dict[str, Any], valid: bool) -> None:
            examples.append({**ask(max_tokens=2), **body} if valid else body)

        collect()
        for body in examples:
            for path in ("/v1/chat/completions", "/v1/completions"):
                async with gateway.http.post(
                    gateway.url + path,
                    data=json.dumps(body),
                    headers={"Content-Type": "application/json"},
                ) as response:
                    assert response.status < 500, (body, await response.text())
                    await response.read()
