"""vLLM.

Ids and text are in step as long as the stop string stays in the text; only a stop string cuts the text. Its stop strings are
capped at 4 since 0.28, unless VLLM_MAX_STOP_STRINGS is raised: the cap is found by asking for too many, which is refused
before anything is computed. Matching happens outside of vLLM's engine, which runs a step ahead: so a stop string saves the
connection and hardly more over closing the stream, and a few of them are enough. (Measured on two busy cores at 90 ms a
token: after closing, the next turn began between 18 ms earlier and 49 ms later, which is the noise of the measurement.) Stop
ids are found inside of the engine, and their number is not limited.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from relaygen.engines.answers import count
from relaygen.engines.base import EngineInfo
from relaygen.engines.completions import CompletionsEngine
from relaygen.engines.http import Http
from relaygen.engines.stops import MANY
from relaygen.errors import EngineRefusedError
from relaygen.types import Candidate

_AT_MOST = re.compile(r"at most (\d+) item")


class VllmEngine(CompletionsEngine):
    dialect = "vLLM"
    in_step = True
    detokenized = "prompt"
    stop_field = "stop_reason"
    keep_stop: ClassVar[Mapping[str, bool]] = {"include_stop_str_in_output": True}
    # As texts they would be keys of one object: of two tokens with one text (parts of characters) one would be lost.
    name_ids: ClassVar[Mapping[str, bool]] = {"return_tokens_as_token_ids": True}

    @classmethod
    async def open(cls, http: Http, model: Mapping[str, Any]) -> Self:
        name = str(model["id"])
        info = EngineInfo(name, http.endpoint.address, cls.dialect, count(model["max_model_len"]))
        return cls(http, info, await _max_stops(http, name))

    async def candidates(self, top: Mapping[str, float]) -> list[Candidate]:
        ids = [int(name.removeprefix("token_id:")) for name in top]
        texts = await asyncio.gather(*(self.spell([token_id]) for token_id in ids))
        return [
            Candidate(text, logprob, token_id)
            for text, logprob, token_id in zip(texts, top.values(), ids, strict=True)
        ]


async def _max_stops(http: Http, model: str) -> int:
    stops = [f"\x01{number}" for number in range(MANY)]
    try:
        await http.post("/v1/completions", {"model": model, "prompt": "a", "max_tokens": 1, "stop": stops})
    except EngineRefusedError as error:
        found = _AT_MOST.search(str(error))
        if not found:
            raise
        return int(found[1])
    return MANY
