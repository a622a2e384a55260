"""SGLang, a version of mid 2026 or newer (token ids in /v1/completions, chat messages in /tokenize).

Text is not in step with ids: while the end of the text may begin a stop string, or a character is incomplete, a part of it is
held back. Up to 32 stop strings. A prompt and max_tokens that do not fit together are refused, not shortened; the driver asks
for no more than `context_tokens`, which is the server's own limit for input (a few tokens under the model's).

Its log probabilities are those after the temperature, unless it runs with SGLANG_RETURN_ORIGINAL_LOGPROB=1; and candidates come
without ids, those of equal text as one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from relaygen.engines.answers import count
from relaygen.engines.base import EngineInfo
from relaygen.engines.completions import CompletionsEngine
from relaygen.engines.http import Http
from relaygen.errors import EngineRefusedError

_MAX_STOPS = 32


class SglangEngine(CompletionsEngine):
    dialect = "SGLang"
    in_step = False
    detokenized = "text"
    stop_field = "matched_stop"
    keep_stop: ClassVar[Mapping[str, bool]] = {"no_stop_trim": True}

    @classmethod
    async def open(cls, http: Http, model: Mapping[str, Any]) -> Self:
        server = await server_info(http)
        context = count(server.get("max_req_input_len") or model["max_model_len"])
        info = EngineInfo(str(model["id"]), http.endpoint.address, cls.dialect, context)
        return cls(http, info, _MAX_STOPS)


async def server_info(http: Http) -> Mapping[str, Any]:
    try:
        return await http.get("/server_info")
    except EngineRefusedError:  # its older name
        return await http.get("/get_server_info")
