"""OpenAI's request bodies -> values, and errors -> OpenAI's error bodies. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from relaygen.errors import ContextOverflowError, RelayError, UserError, one_line
from relaygen.gateway.schema import ChatBody, ChatMessage, CompletionBody, Generate
from relaygen.types import Author, Message

B = TypeVar("B", ChatBody, CompletionBody)
MODEL = "relaygen"
RETRY_LATER = {"retry-after": "2"}  # seconds


class RefusedError(UserError):
    """The request cannot be served. `param` names the field, `code` is for programs."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.param, self.code, self.status, self.headers = param, code, status, headers or {}


@dataclass(frozen=True, slots=True)
class Job:
    """A request, checked as far as its body goes. None: as the profile or the settings say.

    `sampling` has the fields of Sampling that were given. `top_logprobs` and `schema` are the engines' Request's.
    """

    model: str
    prompt: tuple[Message, ...] | str
    stream: bool
    include_usage: bool
    max_tokens: int | None
    max_tokens_param: str
    sampling: Mapping[str, Any]
    stops: tuple[str, ...]
    num_choices: int
    profile: str | None
    policy: str | None
    answer_by: Author | None
    segments: bool
    tools: tuple[Mapping[str, Any], ...] = ()
    max_calls: int | None = None
    top_logprobs: int | None = None
    schema: Mapping[str, Any] | None = None

    @property
    def chat(self) -> bool:
        return not isinstance(self.prompt, str)


def chat_job(data: object, *, max_messages: int) -> Job:
    """`data` is the body as bytes, or as the value that it is the JSON of."""
    body = _body(data, ChatBody)
    if len(body.messages) > max_messages:
        raise RefusedError(
            f"messages: {len(body.messages)} of them; {max_messages} are allowed", param="messages"
        )
    if not any(_text(m).strip() for m in body.messages if m.role not in ("system", "developer")):
        raise RefusedError("messages: there is nothing to answer: all of them are empty", param="messages")
    max_tokens, param = body.max_tokens, "max_tokens"
    if body.max_completion_tokens is not None:
        if max_tokens not in (None, body.max_completion_tokens):
            raise RefusedError("max_tokens and max_completion_tokens differ: give one", param="max_tokens")
        max_tokens, param = body.max_completion_tokens, "max_completion_tokens"
    tools = (
        tuple(t.model_dump(exclude_none=True) for t in body.tools or ()) if body.tool_choice != "none" else ()
    )
    schema = _schema(body)
    if tools and schema is not None:
        raise RefusedError(
            "response_format cannot be had together with tools: a tool call would not follow it",
            param="response_format",
        )
    return Job(
        prompt=tuple(_message(m, i) for i, m in enumerate(body.messages)),
        max_tokens=max_tokens,
        max_tokens_param=param,
        tools=tools,
        max_calls=1 if body.parallel_tool_calls is False else None,
        top_logprobs=_top_logprobs(body),
        schema=schema,
        **_common(body),
    )


def completion_job(data: object) -> Job:
    """`data` as for chat_job."""
    body = _body(data, CompletionBody)
    prompt = body.prompt if isinstance(body.prompt, str) else body.prompt[0]
    return Job(prompt=prompt, max_tokens=body.max_tokens, max_tokens_param="max_tokens", **_common(body))


def error_body(error: RelayError) -> dict[str, Any]:
    """As OpenAI has it: {"error": {"message", "type", "param", "code"}}."""
    param = error.param if isinstance(error, RefusedError) else None
    match error:
        case RefusedError():
            code = error.code
        case ContextOverflowError():
            code = "context_length_exceeded"
        case _:
            code = _snake(type(error).__name__.removesuffix("Error"))
    kind = "invalid_request_error" if status_of(error) < 500 else "server_error"
    return {"error": {"message": str(error), "type": kind, "param": param, "code": code}}


def status_of(error: RelayError) -> int:
    return error.status if isinstance(error, RefusedError) else error.http_status


def headers_of(error: RelayError) -> Mapping[str, str]:
    if isinstance(error, RefusedError):
        return error.headers
    return RETRY_LATER if status_of(error) == 503 else {}


# --- parts of a body


def _body(data: object, model: type[B]) -> B:
    try:
        value = orjson.loads(data) if isinstance(data, bytes) else data
    except orjson.JSONDecodeError as error:
        raise RefusedError(
            f"the body is not JSON: {error.msg} (line {error.lineno}, column {error.colno})"
        ) from None
    if not isinstance(value, dict):
        raise RefusedError("the body is not a JSON object")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        param, message = _explain(error.errors(include_url=False))
        raise RefusedError(f"{param}: {message}" if param else message, param=param or None) from None


def _explain(errors: Sequence[ErrorDetails]) -> tuple[str, str]:
    """The field at fault and what is wrong with it. Of a field that may be one thing or another, the deepest fault tells
    which was meant."""
    paths = [_path(error) for error in errors]
    top = paths[0][:1]
    same = [(path, e) for path, e in zip(paths, errors, strict=True) if path[:1] == top]
    path = max((path for path, _ in same), key=len)
    found = [e for p, e in same if p == path]
    if found[0]["type"] == "extra_forbidden":
        return _dotted(path), "this field is not known"
    return _dotted(path), " or ".join(dict.fromkeys(_words(e) for e in found))


def _path(error: ErrorDetails) -> tuple[str | int, ...]:
    """Without pydantic's names of the alternatives."""
    return tuple(
        p
        for p in error["loc"]
        if isinstance(p, int) or (p not in ("str", "constrained-str") and "[" not in p)
    )


def _dotted(path: tuple[str | int, ...]) -> str:
    """On one line: a client's own words may be among them."""
    dotted = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).removeprefix(".")[:200]
    return one_line(dotted)


def _words(error: ErrorDetails) -> str:
    return error["msg"].replace("Input should be", "must be").replace("Field required", "must be given")


def _common(body: Generate) -> dict[str, Any]:
    ours = body.relaygen
    options = body.stream_options
    if options and not body.stream:
        raise RefusedError("stream_options: only with stream", param="stream_options")
    sampling = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k and max(0, body.top_k),  # -1 is another way to say off
        "min_p": body.min_p,
        "repeat_penalty": body.repetition_penalty,
        "seed": body.seed and body.seed % 2**63,
    }
    stop = body.stop or ()
    return {
        "model": body.model,
        "stream": bool(body.stream),
        "include_usage": bool(options and options.include_usage),
        "sampling": {name: value for name, value in sampling.items() if value is not None},
        "stops": (stop,) if isinstance(stop, str) else tuple(stop),
        "num_choices": body.n or 1,
        "profile": ours.profile if ours else None,
        "policy": ours.policy if ours else None,
        "answer_by": Author(ours.answer_by) if ours and ours.answer_by else None,
        "segments": bool(ours and ours.segments),
    }


def _message(message: ChatMessage, index: int) -> Message:
    if message.content is None and not message.tool_calls:
        param = f"messages[{index}].content"
        raise RefusedError(f"{param}: must be given", param=param)
    extra: dict[str, Any] = {}
    if message.name is not None:
        extra["name"] = message.name
    if message.tool_calls:
        extra["tool_calls"] = [call.model_dump(exclude_none=True) for call in message.tool_calls]
    if message.tool_call_id is not None:
        extra["tool_call_id"] = message.tool_call_id
    if (thinking := message.reasoning_content or message.reasoning) is not None:
        extra["reasoning_content"] = thinking
    role = "system" if message.role == "developer" else message.role
    return Message(role, _text(message), extra)


def _text(message: ChatMessage) -> str:
    content = message.content
    return content or "" if not isinstance(content, list) else "".join(part.text for part in content)


def _top_logprobs(body: ChatBody) -> int | None:
    if body.top_logprobs is not None and not body.logprobs:
        raise RefusedError("top_logprobs: only with logprobs", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


def _schema(body: ChatBody) -> Mapping[str, Any] | None:
    wanted = body.response_format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return {}
    if wanted.json_schema is None or wanted.json_schema.schema_ is None:
        param = "response_format.json_schema"
        raise RefusedError(f"{param}: a schema must be given", param=param)
    return wanted.json_schema.schema_


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
