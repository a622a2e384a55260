"""Which server is it? Found by asking for what only that one has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

from relaygen.engines.http import Endpoint, Http
from relaygen.errors import (
    EngineError,
    EngineOverloadedError,
    EngineProtocolError,
    EngineUnreachableError,
)

Dialect = Literal["llamacpp", "vllm", "sglang", "ollama", "text"]

_READ_S = 20.0

# In this order: Ollama and SGLang answer /v1/models too, and some put themselves in place of others.
_SIGNS: tuple[tuple[str, str, Dialect], ...] = (
    ("/props", "default_generation_settings", "llamacpp"),
    ("/server_info", "max_req_input_len", "sglang"),
    ("/get_server_info", "max_req_input_len", "sglang"),
)


async def probe(endpoint: Endpoint) -> Dialect:
    """Raises when nobody answers there, when the key is refused, or when it is none of them."""
    http = Http(endpoint, read_s=_READ_S)
    try:
        for path, field, dialect in _SIGNS:
            if field in await _ask(http, path):
                return dialect
        models = (await _ask(http, "/v1/models")).get("data")
        models = cast("list[Any]", models) if isinstance(models, list) else None
        owners = {str(_object(model).get("owned_by")) for model in models or ()}
        if owners == {"vllm"}:
            return "vllm"
        if owners == {"llamacpp"}:  # it shows this without a key, and /props only with the right one
            return "llamacpp"
        if "version" in await _ask(http, "/api/version"):
            return "ollama"
        if models is not None:
            return "text"
        await http.get("/v1/models")  # for its error
    finally:
        await http.close()
    raise EngineProtocolError(
        f"{endpoint.name} at {endpoint.address} is no server that is known here (llama-server, vLLM, SGLang, Ollama,"
        " or OpenAI-compatible)",
        engine=endpoint.name,
    )


# Where a server says which version it is, by the name of its dialect.
_VERSIONS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "vLLM": (("/version", "version"),),
    "SGLang": (("/server_info", "version"), ("/get_server_info", "version")),
    "llama-server": (("/props", "build_info"),),
    "Ollama": (("/api/version", "version"),),
}


async def version(http: Http, dialect: str) -> str | None:
    """The server's version as it puts it; None where it does not say."""
    for path, field in _VERSIONS.get(dialect, ()):
        if found := (await _ask(http, path)).get(field):
            return str(found)
    return None


async def keeps_connections(http: Http) -> bool:
    """Whether requests one after the other can share a connection. Three, since a server may close one after a number of
    requests."""
    before = http.num_connections
    for _ in range(3):
        await _ask(http, "/v1/models")
    return http.num_connections - before < 2


async def _ask(http: Http, path: str) -> dict[str, Any]:
    """The object at `path`; an empty one where there is none."""
    try:
        return _object(await http.get(path))
    except (EngineUnreachableError, EngineOverloadedError):
        raise
    except EngineError:
        return {}


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, Mapping) else {}
