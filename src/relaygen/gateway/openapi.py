"""The OpenAPI document at /openapi.json. Requests are described by the models that check them."""

from __future__ import annotations

from typing import Any

import orjson

from relaygen import __version__
from relaygen.gateway.schema import ChatBody, CompletionBody

_STRING: dict[str, Any] = {"type": "string"}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}


def document() -> bytes:
    schemas: dict[str, Any] = dict(_RESPONSES)
    for body in (ChatBody, CompletionBody):
        schema = body.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {})
        schemas[body.__name__] = schema
    return orjson.dumps(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "RelayGen",
                "version": __version__,
                "description": "One answer, two models: OpenAI's API, with who wrote what on request.",
            },
            "security": [{}, {"key": []}],
            "paths": {
                "/v1/chat/completions": {"post": _generation("Answer a chat", "ChatBody", "ChatCompletion")},
                "/v1/completions": {"post": _generation("Continue a text", "CompletionBody", "Completion")},
                "/v1/models": {"get": _asking("What may stand in `model`", "ModelList")},
                "/v1/models/{model}": {"get": _asking("One of them", "Model", parameter="model")},
                "/health": {"get": _asking("Is the process alive?", "Status")},
                "/ready": {"get": _asking("Do the engines answer?", "Status", also="503")},
                "/metrics": {"get": _text("For Prometheus", "text/plain")},
            },
            "components": {
                "schemas": schemas,
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            },
        }
    )


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(description: str, name: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": _ref(name)}}}


def _refusals(*statuses: str) -> dict[str, Any]:
    return {status: _json("Refused or failed; `error.message` says why", "Error") for status in statuses}


def _generation(summary: str, body: str, answer: str) -> dict[str, Any]:
    done = _json("The answer; with `stream`, chunks of it as server-sent events", answer)
    done["content"]["text/event-stream"] = {"schema": {}}
    statuses = (
        "400",
        "401",
        "403",
        "404",
        "408",
        "413",
        "415",
        "429",
        "431",
        "500",
        "502",
        "503",
        "504",
        "507",
    )
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": _ref(body)}}},
        "responses": {"200": done, **_refusals(*statuses)},
    }


def _asking(
    summary: str, answer: str, *, parameter: str | None = None, also: str | None = None
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": summary,
        "responses": {"200": _json("Yes", answer), **_refusals("400", "401", "403", "404", "431")},
    }
    if also:
        operation["responses"][also] = _json("No", answer)
    if parameter:
        operation["parameters"] = [{"name": parameter, "in": "path", "required": True, "schema": _STRING}]
    return operation


def _text(summary: str, kind: str) -> dict[str, Any]:
    return {
        "summary": summary,
        "responses": {
            "200": {"description": "Text", "content": {kind: {"schema": _STRING}}},
            **_refusals("403", "431"),
        },
    }


def _object(required: str = "", **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required.split()}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _or_null(kind: str) -> dict[str, Any]:
    return {"type": [kind, "null"]}


def _completion(kind: str, choice: dict[str, Any]) -> dict[str, Any]:
    return _object(
        "id object created model choices usage",
        id=_STRING,
        object={"const": kind},
        created=_COUNT,
        model=_STRING,
        choices=_list(choice),
        usage=_ref("Usage"),
        relaygen=_object("segments usage timings warnings"),
    )


_FINISH = {"enum": ["stop", "length", "tool_calls"]}
_RESPONSES: dict[str, Any] = {
    "Error": _object(
        "error",
        error=_object(
            "message type param code",
            message=_STRING,
            type={"enum": ["invalid_request_error", "server_error"]},
            param=_or_null("string"),
            code=_or_null("string"),
        ),
    ),
    "Status": _object("status", status=_STRING, faults={"type": "object"}),
    "Model": _object(
        "id object created owned_by",
        id=_STRING,
        object={"const": "model"},
        created=_COUNT,
        owned_by=_STRING,
    ),
    "ModelList": _object("object data", object={"const": "list"}, data=_list(_ref("Model"))),
    "Usage": _object(
        "prompt_tokens completion_tokens total_tokens completion_tokens_details relaygen",
        prompt_tokens=_COUNT,
        completion_tokens=_COUNT,
        total_tokens=_COUNT,
        completion_tokens_details=_object("reasoning_tokens", reasoning_tokens=_COUNT),
        relaygen=_object(
            "large_tokens small_tokens small_share",
            large_tokens=_COUNT,
            small_tokens=_COUNT,
            small_share={"type": "number", "minimum": 0, "maximum": 1},
        ),
    ),
    "Message": _object(
        "role content",
        role={"const": "assistant"},
        content=_or_null("string"),
        refusal={"type": "null"},
        reasoning_content=_STRING,
        reasoning=_STRING,
        tool_calls=_list({"type": "object"}),
    ),
    "ChatCompletion": _completion(
        "chat.completion",
        _object(
            "index message finish_reason logprobs",
            index=_COUNT,
            message=_ref("Message"),
            finish_reason=_FINISH,
            logprobs=_or_null("object"),
        ),
    ),
    "Completion": _completion(
        "text_completion",
        _object(
            "index text finish_reason logprobs",
            index=_COUNT,
            text=_STRING,
            finish_reason=_FINISH,
            logprobs=_or_null("object"),
        ),
    ),
}
