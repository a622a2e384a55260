"""Do two engines read the same ids the same way? Found by asking both to tokenise probe texts (engines.md, section 6)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from relaygen.engines.base import Engine

# Numbers, code, accents, scripts, emoji, runs of blanks: where tokenisers differ.
PROBES = (
    "Therefore, the 3.14159 of 271,828 is 1/2; so x = 10**-3.\n\n\n    if (a != b) { return `c`; }\t\t// ok\r\n",
    "naïve café — “quoted” … Straße ÆØÅ ñ œ  Ωμέγα Привет мир שלום مرحبا नमस्ते ไทย",
    "因此，我们得到答案。つまり、ありがとう。 그래서 😀🐉👩‍👩‍👧 ∑∫√≤≈ \\frac{1}{2}\\boxed{42}",
)
SPECIALS = (
    "<think>",
    "</think>",
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<tool_call>",
    "</tool_call>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
)


async def translation(reader: Engine, writer: Engine, extra: Sequence[str] = ()) -> Mapping[int, int] | None:
    """How `reader` is to read the ids of `writer`: {} as they are; a mapping for special tokens that have other ids;
    None when the vocabularies differ and only text can pass. `extra` are further special tokens to compare."""

    async def probe(engine: Engine) -> tuple[list[list[int]], list[list[int]]]:
        plain = [await engine.tokenize(text) for text in PROBES]
        return plain, [await engine.tokenize(text, special=True) for text in (*SPECIALS, *extra)]

    if reader.info.text_only or writer.info.text_only:
        return None
    (plain_r, special_r), (plain_w, special_w) = await asyncio.gather(probe(reader), probe(writer))
    if plain_r != plain_w:
        return None
    pairs = zip(special_w, special_r, strict=True)
    return {w[0]: r[0] for w, r in pairs if len(w) == len(r) == 1 and w != r}
