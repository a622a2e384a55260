"""What a model thinks of text that is already written (teacher forcing), in each dialect's own way:

llama-server  tells no probabilities of a prompt. So it writes the text once more, under a grammar that allows one token
              at each place; the probabilities it tells are of before the grammar. One request a text, and the texts in
              its slots are computed as one batch.
vLLM          `prompt_logprobs`: the whole text in one request, which reads all of the prompt anew.
SGLang        /generate with `logprob_start_len`: the same, but what comes before is read from the prefix cache.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from math import nan
from typing import Any

from relaygen.engines.answers import ODD, unknown_shape
from relaygen.engines.base import Engine
from relaygen.engines.llamacpp import LlamaCppEngine, LlamaCppSession
from relaygen.engines.sglang import SglangEngine
from relaygen.engines.vllm import VllmEngine
from relaygen.errors import ContextOverflowError, EngineProtocolError, UserError
from relaygen.types import Candidate, TokenLogprob

_CANDIDATES = 2  # a margin needs two
_SEARCHED = 100  # candidates among which a written token is looked for, where only candidates are told
_CHAR_TOKENS = 4  # the most that one character takes, of bytes
_REPLACEMENT = "\ufffd"


async def score(engine: Engine, ids: Sequence[int], start: int) -> list[TokenLogprob]:
    """Of each of `ids[start:]`, given all before it: its log probability (nan where the server does not tell) and the two
    likeliest tokens at its place. `start` is 1 or more. UserError from an engine that cannot."""
    info = engine.info
    if len(ids) >= info.context_tokens:
        raise ContextOverflowError(
            f"a trace is {len(ids)} tokens long with its prompt, and {info} holds {info.context_tokens}: give it a longer context"
        )
    try:
        match engine:
            case LlamaCppEngine():
                async with engine.session() as session:
                    return await _rewrite(engine, session, ids, start)
            case VllmEngine():
                return await _vllm(engine, ids, start)
            case SglangEngine():
                return await _sglang(engine, ids, start)
            case _:
                raise UserError(f"{info} cannot score text: use one llama-server, vLLM or SGLang address")
    except ODD as error:
        raise unknown_shape(info, "scored in", error) from None


async def token_texts(engine: Engine, ids: Sequence[int]) -> list[str]:
    """The text of each id. Of a character in several tokens the last one has it all, the others have none."""
    texts: list[str] = []
    async for text, num_ids in _characters(engine, ids):
        texts += [""] * (num_ids - 1) + [text]
    return texts


async def _characters(engine: Engine, ids: Sequence[int]) -> AsyncGenerator[tuple[str, int]]:
    """`ids` in the shortest stretches that are whole characters: the text, and the number of ids."""
    if not isinstance(engine, LlamaCppEngine | VllmEngine | SglangEngine):
        raise UserError(f"{engine.info} cannot tell the text of token ids")
    held: list[int] = []
    for number, token_id in enumerate(ids, 1):
        held.append(token_id)
        text = await engine.spell(held)
        if _REPLACEMENT not in text or len(held) == _CHAR_TOKENS or number == len(ids):
            yield text, len(held)
            held = []


# --- llama-server


async def _rewrite(
    engine: LlamaCppEngine, session: LlamaCppSession, ids: Sequence[int], start: int
) -> list[TokenLogprob]:
    """In stretches between characters of several tokens: of such a token the server tells nothing, and its grammar loses
    count there. Each of them is asked for by itself."""
    found: list[TokenLogprob] = []
    begin = end = start
    async for _, num_ids in _characters(engine, ids[start:]):
        if num_ids > 1:
            found += await _stretch(engine, session, ids[:begin], ids[begin:end])
            begin = end + num_ids
            found += [await score_next(engine, session, ids[:at], ids[at]) for at in range(end, begin)]
        end += num_ids
    return found + await _stretch(engine, session, ids[:begin], ids[begin:end])


async def _stretch(
    engine: LlamaCppEngine, session: LlamaCppSession, before: Sequence[int], written: Sequence[int]
) -> list[TokenLogprob]:
    if not written:
        return []
    answer = await _write(engine, session, before, written, _CANDIDATES)
    rows = answer["completion_probabilities"]
    if answer["tokens"] != list(written) or [row["id"] for row in rows] != list(written):
        raise EngineProtocolError(
            f"{engine.info} wrote other tokens than it was told to: is it a llama-server of 2026?",
            engine=engine.info.model,
        )
    return [TokenLogprob(float(row["logprob"]), _candidates(row["top_logprobs"])) for row in rows]


async def score_next(
    engine: LlamaCppEngine, session: LlamaCppSession, ids: Sequence[int], token_id: int
) -> TokenLogprob:
    """Of `token_id` behind `ids` alone, one request: the slow way. nan where it is not among the likeliest 100."""
    whole = (await engine.tokenize("a"))[:1]  # any that ends no text and no half of a character
    answer = await _write(engine, session, ids, whole, _SEARCHED)
    tops = _candidates(answer["completion_probabilities"][0]["top_logprobs"], _SEARCHED)
    logprob = next((top.logprob for top in tops if top.token_id == token_id), nan)
    return TokenLogprob(logprob, tops[:_CANDIDATES])


async def _write(
    engine: LlamaCppEngine,
    session: LlamaCppSession,
    ids: Sequence[int],
    written: Sequence[int],
    num_probs: int,
) -> Any:
    body: dict[str, Any] = {
        "prompt": ids,
        "n_predict": len(written),
        "grammar": f"root ::= {' '.join(f'<[{token_id}]>' for token_id in written)}",
        "n_probs": num_probs,
        "post_sampling_probs": False,
        "temperature": 0,
        "repeat_penalty": 1.0,
        "return_tokens": True,
        "cache_prompt": True,
        "stream": False,
        **session.place,
    }
    return await engine.http.post("/completion", body)


def _candidates(tops: Iterable[Mapping[str, Any]], num: int = _CANDIDATES) -> tuple[Candidate, ...]:
    found = [Candidate(str(top["token"]), float(top["logprob"]), int(top["id"])) for top in tops]
    return tuple(sorted(found, key=lambda candidate: -candidate.logprob)[:num])


# --- vLLM and SGLang


async def _vllm(engine: VllmEngine, ids: Sequence[int], start: int) -> list[TokenLogprob]:
    body = {
        "model": engine.info.model,
        "prompt": ids,
        "max_tokens": 1,
        "temperature": 0,
        "prompt_logprobs": _CANDIDATES,
    }
    answer = await engine.http.post("/v1/completions", body)
    rows: list[dict[str, Any]] = answer["choices"][0]["prompt_logprobs"][start:]
    found: list[TokenLogprob] = []
    for token_id, row in zip(ids[start:], rows, strict=True):
        tops = [
            {"token": one["decoded_token"], "logprob": one["logprob"], "id": key} for key, one in row.items()
        ]
        found.append(TokenLogprob(float(row[str(token_id)]["logprob"]), _candidates(tops)))
    return found


async def _sglang(engine: SglangEngine, ids: Sequence[int], start: int) -> list[TokenLogprob]:
    body = {
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": 1, "temperature": 0},
        "return_logprob": True,
        "logprob_start_len": start - 1,  # of the first one nothing is told
        "top_logprobs_num": _CANDIDATES,
        "stream": False,
    }
    meta: dict[str, Any] = (await engine.http.post("/generate", body))["meta_info"]
    rows = zip(meta["input_token_logprobs"][1:], meta["input_top_logprobs"][1:], strict=True)
    found: list[TokenLogprob] = []
    for token_id, (own, tops) in zip(ids[start:], rows, strict=True):
        if own[1] != token_id:
            raise ValueError("token out of place")
        named = [{"token": text or "", "logprob": value, "id": key} for value, key, text in tops]
        found.append(TokenLogprob(float(own[0]), _candidates(named)))
    return found
