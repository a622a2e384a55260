"""The endpoints, over engines that play scripts: what is answered, streamed and not."""

from __future__ import annotations

from typing import Any

import pytest

from relaygen.errors import EngineCutError, EngineOverloadedError
from relaygen.types import Author
from tests.serving import PLAIN, SCRIPT, THINKING, THOUGHT, Player, ask, serving

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}


def joined(events: list[Any], field: str = "content", index: int = 0) -> str:
    deltas = [c["delta"] for e in events if e != "[DONE]" for c in e["choices"] if c["index"] == index]
    return "".join(delta.get(field) or "" for delta in deltas)


async def test_the_answer_of_two_models() -> None:
    async with serving() as gateway:
        status, body = await gateway.post(ask())
    assert status == 200
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"]["content"] == "".join(SCRIPT)
    assert body["choices"][0]["finish_reason"] == "stop"
    usage = body["usage"]
    assert usage["prompt_tokens"] == 1
    assert usage["relaygen"]["small_tokens"] > 0
    counted = usage["relaygen"]["large_tokens"] + usage["relaygen"]["small_tokens"]
    assert usage["completion_tokens"] == counted == usage["total_tokens"] - 1
    assert "relaygen" not in body


async def test_a_stream_gives_the_same() -> None:
    async with serving() as gateway:
        events = await gateway.stream(ask(stream_options={"include_usage": True}))
        bare = await gateway.stream(ask())
        _, body = await gateway.post(ask())
    assert events[-1] == bare[-1] == "[DONE]"
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert joined(events) == joined(bare) == "".join(SCRIPT)
    assert events[-3]["choices"][0]["finish_reason"] == "stop"
    assert (events[-2]["choices"], events[-2]["usage"]) == ([], body["usage"])
    assert {e["id"] for e in events[:-1]} == {events[0]["id"]}
    assert not any("relaygen" in e or "usage" in e for e in bare[:-1])


async def test_segments_on_request() -> None:
    async with serving() as gateway:
        _, body = await gateway.post(ask(relaygen={"segments": True}))
        events = await gateway.stream(ask(relaygen={"segments": True}))
    segments = body["relaygen"]["segments"]
    assert "".join(s["text"] for s in segments) == "".join(SCRIPT)
    assert [s["author"] for s in segments] == ["large", "small", "large"]
    assert (segments[0]["cue"], segments[0]["reason"]) == ("Therefore,", "cue")
    ours = [e["relaygen"] for e in events[1:-1]]
    by_author = {"large": "", "small": ""}
    for event in events[1:-1]:
        if author := event["relaygen"].get("author"):
            by_author[author] += event["choices"][0]["delta"]["content"]
    for author, text in by_author.items():
        assert text == "".join(s["text"] for s in segments if s["author"] == author)
    switches = [o["switch"] for o in ours if "switch" in o]
    assert switches[0] == {
        "author": "large",
        "to": "small",
        "reason": "cue",
        "cue": "Therefore,",
        "tokens": len(segments[0]["token_ids"]),
    }
    assert ours[-1]["finish"] == {"author": "large", "reason": "eos", "tokens": segments[-1]["tokens"]}
    assert [s["tokens"] for s in segments] == [len(s["token_ids"]) for s in segments]
    assert ours[-1]["usage"] == body["usage"]["relaygen"]
    assert ours[-1]["timings"]["large"]["requests"] == 2
    assert ours[-1]["warnings"] == []


async def test_thinking_goes_by_both_names() -> None:
    async with serving(Player(THOUGHT), Player(THOUGHT), profile=THINKING) as gateway:
        _, body = await gateway.post(ask())
        events = await gateway.stream(ask())
    message = body["choices"][0]["message"]
    assert message["reasoning_content"] == message["reasoning"] == "Let me see. Therefore, 5."
    assert message["content"] == "The sum is 5."
    assert joined(events, "reasoning_content") == joined(events, "reasoning") == message["reasoning"]
    assert joined(events) == "The sum is 5."
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 11


@pytest.mark.parametrize("stream", [False, True])
async def test_stop_strings_end_the_answer_and_the_work(stream: bool) -> None:
    large, small = Player(THOUGHT), Player(THOUGHT)
    async with serving(large, small, profile=THINKING) as gateway:
        body = ask(stop=["sum is", "see"])  # "see" is in the thinking, where it does not count
        if stream:
            events = await gateway.stream(body)
            content, finish = joined(events), events[-2]["choices"][0]["finish_reason"]
        else:
            choice = (await gateway.post(body))[1]["choices"][0]
            content, finish = choice["message"]["content"], choice["finish_reason"]
    assert (content, finish) == ("The ", "stop")
    assert large.open_writes == small.open_writes == 0
    assert large.closed_early + small.closed_early >= 1


async def test_the_budget() -> None:
    async with serving() as gateway:
        for name in ("max_tokens", "max_completion_tokens"):
            _, body = await gateway.post({**ask(), name: 3})
            assert body["choices"][0]["message"]["content"] == "First we add"
            assert body["choices"][0]["finish_reason"] == "length"
            assert body["usage"]["completion_tokens"] == 3


async def test_several_choices() -> None:
    large = Player()
    async with serving(large) as gateway:
        _, body = await gateway.post(ask(n=3, seed=5, max_tokens=3, relaygen={"segments": True}))
        seeds = {request.seed for request in large.requests}
        events = await gateway.stream(ask(n=2, stream_options={"include_usage": True}))
    assert [c["index"] for c in body["choices"]] == [0, 1, 2]
    assert len(seeds) == 3
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (1, 9)
    assert all("segments" in c["relaygen"] for c in body["choices"])
    assert joined(events, index=0) == joined(events, index=1) == "".join(SCRIPT)
    assert events[-2]["usage"]["completion_tokens"] > len(SCRIPT)


async def test_sampling_goes_to_the_engines() -> None:
    large = Player()
    given: dict[str, Any] = {
        "temperature": 0.25,
        "top_p": 0.5,
        "top_k": 7,
        "min_p": 0.125,
        "repetition_penalty": 1.5,
    }
    async with serving(large) as gateway:
        await gateway.post(ask(**given, seed=-1))
        await gateway.post(ask(top_k=-1))
    sampling = large.requests[0].sampling
    assert sampling.temperature == 0.25
    assert (sampling.top_p, sampling.top_k, sampling.min_p, sampling.repeat_penalty) == (0.5, 7, 0.125, 1.5)
    assert sampling.seed == 2**63 - 1
    assert large.requests[-1].sampling.top_k == 0


async def test_log_probabilities() -> None:
    async with serving(Player(THOUGHT), Player(THOUGHT), profile=THINKING) as gateway:
        _, body = await gateway.post(ask(logprobs=True, top_logprobs=2))
        events = await gateway.stream(ask(logprobs=True))
        _, without = await gateway.post(ask())
    content = body["choices"][0]["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content) == "The sum is 5."
    assert content[0]["logprob"] == -0.5
    assert content[0]["bytes"] == list(b"The")
    assert [entry["token"] for entry in content[0]["top_logprobs"]] == ["The", "~1"]
    chunks = [e["choices"][0]["logprobs"] for e in events[:-1]]
    streamed = [entry for chunk in chunks if chunk for entry in chunk["content"]]
    assert [(e["token"], e["top_logprobs"]) for e in streamed] == [(e["token"], []) for e in content]
    assert without["choices"][0]["logprobs"] is None


# --- models, profiles, policies


async def test_models_by_name() -> None:
    async with serving() as gateway, gateway.http.get(gateway.url + "/v1/models") as response:
        names = [model["id"] for model in (await response.json())["data"]]
        assert names[:3] == ["relaygen", "relaygen:large", "relaygen:small"]
        assert "relaygen:plain" in names
        assert "relaygen:qwen3-32b+qwen3-1.7b" in names
        for name, authors in (("relaygen:large", {"large"}), ("relaygen:small", {"small"})):
            _, body = await gateway.post(ask(model=name, relaygen={"segments": True}) | {"model": name})
            assert {s["author"] for s in body["relaygen"]["segments"]} == authors
            assert body["model"] == name
        async with gateway.http.get(gateway.url + "/v1/models/relaygen:plain") as one:
            assert (await one.json())["id"] == "relaygen:plain"
        status, body = await gateway.post({**ask(), "model": "gpt-4"})
    assert (status, body["error"]["code"], body["error"]["param"]) == (404, "model_not_found", "model")


async def test_a_request_may_choose_its_profile_and_policy() -> None:
    async with serving(Player(THOUGHT), Player(THOUGHT)) as gateway:
        _, alone = await gateway.post(ask(relaygen={"policy": "small", "segments": True}))
        _, thinking = await gateway.post(
            ask(relaygen={"profile": "generic", "answer_by": "large", "segments": True})
        )
        status, wrong = await gateway.post(ask(relaygen={"profile": "../../etc/passwd"}))
        other, clash = await gateway.post({**ask(relaygen={"policy": "small"}), "model": "relaygen:large"})
    assert {s["author"] for s in alone["relaygen"]["segments"]} == {"small"}
    assert thinking["choices"][0]["message"]["reasoning"]
    assert thinking["relaygen"]["segments"][-1]["author"] == "large"
    assert (status, wrong["error"]["param"]) == (400, "relaygen.profile")
    assert (other, clash["error"]["param"]) == (400, "relaygen.policy")


@pytest.mark.parametrize("policy", ["random:0.3", "reflect", "margin:0.2", "segment+margin:0.2", "phase"])
async def test_a_request_may_choose_any_policy(policy: str) -> None:
    async with serving() as gateway:
        status, body = await gateway.post(ask(relaygen={"policy": policy}))
    assert status == 200, body
    assert body["usage"]["completion_tokens"] > 0


async def test_a_policy_that_needs_one_model_opens_one() -> None:
    async with serving(policy="large") as gateway:
        assert "relaygen:small" not in gateway.service.models
        status, body = await gateway.post(ask(relaygen={"policy": "segment"}))
    assert status == 400
    assert "small model" in body["error"]["message"]


# --- the conversation


async def test_the_whole_conversation_is_rendered() -> None:
    large = Player()
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    messages: list[dict[str, Any]] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "2 "}, {"type": "text", "text": "+ 3?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "reasoning": "hm"},
        {"role": "tool", "content": "5", "tool_call_id": "c1"},
    ]
    async with serving(large) as gateway:
        status, body = await gateway.post(ask(tools=[TOOL]) | {"messages": messages})
    assert status == 200, body
    rendered, tools = large.rendered[-1]
    assert [m.to_json() for m in rendered] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2 + 3?"},
        {"role": "assistant", "content": "", "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "content": "5", "tool_call_id": "c1"},
    ]
    assert list(tools) == [TOOL]


async def test_tool_calls() -> None:
    script = ["I add.", "\n", *CALL]
    async with serving(Player(script), Player(script)) as gateway:
        _, body = await gateway.post(ask(tools=[TOOL], tool_choice="auto"))
        events = await gateway.stream(ask(tools=[TOOL]))
        _, unasked = await gateway.post(ask(tools=[TOOL], tool_choice="none"))
    choice = body["choices"][0]
    assert choice["finish_reason"] == events[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == joined(events) == "I add."
    call = choice["message"]["tool_calls"][0]
    assert (call["type"], call["function"]) == ("function", {"name": "add", "arguments": '{"a":2}'})
    streamed = [c for e in events[:-1] for c in e["choices"][0]["delta"].get("tool_calls", ())]
    assert [(c["index"], c["function"]) for c in streamed] == [(0, call["function"])]
    assert unasked["choices"][0]["message"]["content"].endswith("</tool_call>")


async def test_one_tool_call_at_a_time() -> None:
    script = [*CALL, *CALL]
    async with serving(Player(script), Player(script)) as gateway:
        _, both = await gateway.post(ask(tools=[TOOL]))
        _, one = await gateway.post(ask(tools=[TOOL], parallel_tool_calls=False))
    assert len(both["choices"][0]["message"]["tool_calls"]) == 2
    assert len(one["choices"][0]["message"]["tool_calls"]) == 1
    assert one["choices"][0]["finish_reason"] == "tool_calls"
    assert one["choices"][0]["message"]["content"] is None


async def test_tools_of_another_form_are_refused() -> None:
    async with serving(Player(), Player(tools=False)) as gateway:
        status, body = await gateway.post(ask(tools=[TOOL]))
    assert (status, body["error"]["param"]) == (400, "tools")
    assert "<tool_call>" in body["error"]["message"]


# --- answers that follow a schema

SCHEMA = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "sum", "schema": SCHEMA, "strict": True}}


async def test_without_thinking_the_large_model_writes_all_of_a_json_answer() -> None:
    large, small = Player(['{"sum"', ": 5", "}"]), Player(['{"sum"', ": 5", "}"])
    async with serving(large, small) as gateway:
        _, body = await gateway.post(ask(response_format=FORMAT))
        await gateway.post(ask(response_format={"type": "json_object"}, relaygen={"answer_by": "small"}))
    assert body["choices"][0]["message"]["content"] == '{"sum": 5}'
    assert [request.schema for request in large.requests] == [SCHEMA]
    assert [request.schema for request in small.requests] == [{}]


@pytest.mark.parametrize("policy", ["segment", "phase", "large", "small"])
async def test_only_the_answer_follows_the_schema(policy: str) -> None:
    script = [*THOUGHT[: THOUGHT.index("</think>") + 1], '{"sum"', ": 5", "}"]
    engines = {Author.LARGE: Player(script), Author.SMALL: Player(script)}
    async with serving(*engines.values(), profile=THINKING, policy=policy) as gateway:
        _, body = await gateway.post(ask(response_format=FORMAT))
    message = body["choices"][0]["message"]
    assert message["content"] == '{"sum": 5}'
    assert message["reasoning"] == "Let me see. Therefore, 5."
    bound = [(num_ids, schema) for e in engines.values() for num_ids, schema in e.asked if schema]
    assert bound == [(1 + THOUGHT.index("</think>") + 1, SCHEMA)]  # prompt and thinking


async def test_a_model_that_does_not_think_after_all() -> None:
    script = ['{"sum"', ": 5", "}"]
    large, small = Player(script), Player(script)
    async with serving(large, small, profile=THINKING) as gateway:
        _, body = await gateway.post(ask(response_format=FORMAT))
    assert body["choices"][0]["message"]["content"] == '{"sum": 5}'
    assert [request.schema for request in (*large.requests, *small.requests)] == [None, SCHEMA]
    assert body["usage"]["completion_tokens"] == 3


# --- plain completions


async def test_completions() -> None:
    engines = Player(THOUGHT), Player(THOUGHT)
    async with serving(*engines, profile=THINKING) as gateway:
        body = {"prompt": "<think>", "max_tokens": 4}
        _, whole = await gateway.post(body, "/v1/completions")
        events = await gateway.stream(body | {"prompt": ["<think>"]}, "/v1/completions")
    assert whole["object"] == "text_completion"
    assert whole["choices"][0]["text"] == "<think>\nLet me"
    assert "".join(c["text"] for e in events[:-1] for c in e["choices"]) == whole["choices"][0]["text"]
    assert whole["choices"][0]["finish_reason"] == "length"
    assert not engines[0].rendered


# --- failures


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_fails_before_the_first_token(stream: bool) -> None:
    for error, status, retry in (
        (EngineCutError("the large model broke off", engine="x"), 502, None),
        (EngineOverloadedError("the large model is full", engine="x"), 503, "2"),
    ):
        async with serving(Player(fail_at=0, error=error)) as gateway:
            request = gateway.http.post(gateway.url + "/v1/chat/completions", json=ask(stream=stream))
            async with request as response:
                body = await response.json()
                assert response.status == status
                assert response.headers.get("retry-after") == retry
        assert body["error"]["message"] == str(error)
        assert body["error"]["type"] == "server_error"


async def test_an_engine_that_fails_in_the_middle_of_a_stream() -> None:
    error = EngineCutError("the large model broke off", engine="x")
    async with serving(Player(fail_at=2, error=error)) as gateway:
        events = await gateway.stream(ask())
        status, _ = await gateway.post(ask())
        async with gateway.http.get(gateway.url + "/metrics") as response:
            metrics = await response.text()
    assert joined(events[:-1]) == "First we"
    assert events[-1] == {
        "error": {
            "message": "the large model broke off",
            "type": "server_error",
            "param": None,
            "code": "engine_cut",
        }
    }
    assert status == 200  # it fails once only
    assert 'relaygen_engine_errors_total{type="EngineCutError"} 1.0' in metrics


async def test_a_small_engine_that_fails_is_told() -> None:
    error = EngineCutError("the small model broke off", engine="x")
    async with serving(small=Player(fail_at=7, error=error)) as gateway:
        _, body = await gateway.post(ask(relaygen={"segments": True}))
        async with gateway.http.get(gateway.url + "/metrics") as response:
            metrics = await response.text()
    assert body["choices"][0]["message"]["content"] == "".join(SCRIPT)
    assert "broke off" in body["relaygen"]["warnings"][0]
    assert "relaygen_failovers_total 1.0" in metrics


async def test_a_defect_says_nothing_to_the_client() -> None:
    async with serving(Player(fail_at=0, error=ZeroDivisionError("secret"), failures=2)) as gateway:
        status, body = await gateway.post(ask())
        assert status == 500
        assert "secret" not in str(body)
    async with serving(Player(fail_at=1, error=ZeroDivisionError("secret"))) as gateway:
        events = await gateway.stream(ask())
    assert events[-1]["error"]["type"] == "server_error"
    assert "secret" not in str(events)


# --- about the server


async def test_health_readiness_and_metrics() -> None:
    async with serving(profile=PLAIN) as gateway:
        await gateway.post(ask())
        for path in ("/health", "/ready"):
            async with gateway.http.get(gateway.url + path) as response:
                assert response.status == 200
        async with gateway.http.get(gateway.url + "/metrics") as response:
            lines = (await response.text()).splitlines()
    found = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    large, small = (float(found[f'relaygen_tokens_total{{author="{a}"}}']) for a in Author)
    assert found["relaygen_small_share"] == str(small / (large + small))
    assert found['relaygen_turns_total{author="large",reason="cue"}'] == "1.0"
    assert found['relaygen_handover_seconds_count{to="small"}'] == "1.0"
    assert found["relaygen_first_token_seconds_count"] == "1.0"
    assert found["relaygen_active_generations"] == found["relaygen_queued_generations"] == "0.0"
    assert found['relaygen_requests_total{path="/v1/chat/completions",status="200"}'] == "1.0"


async def test_an_engine_that_is_gone_is_not_ready() -> None:
    class Gone(Player):
        gone = False

        async def tokenize(self, text: str, *, special: bool = False) -> list[int]:
            if self.gone:
                raise EngineCutError("gone", engine="x")
            return await super().tokenize(text, special=special)

    small = Gone()
    async with serving(small=small) as gateway:
        small.gone = True
        async with gateway.http.get(gateway.url + "/ready") as response:
            assert response.status == 503
            assert (await response.json())["faults"] == {"small": "gone"}
