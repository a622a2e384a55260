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


Ids = list[list[int]]
Reading = tuple[Ids, Ids]


async def reading(engine: Engine, extra: Sequence[str] = ()) -> Reading | None:
    """The ids of the probe texts, and of the special tokens (and of `extra`). None from a text-only engine."""
    if engine.info.text_only:
        return None
    plain = [await engine.tokenize(text) for text in PROBES]
    return plain, [await engine.tokenize(text, special=True) for text in (*SPECIALS, *extra)]


async def translation(reader: Engine, writer: Engine, extra: Sequence[str] = ()) -> Mapping[int, int] | None:
    """How `reader` is to read the ids of `writer`: {} as they are; a mapping for special tokens that have other ids;
    None when the vocabularies differ and only text can pass. `extra` are further special tokens to compare."""
    if reader.info.text_only or writer.info.text_only:
        return None
    read, written = await asyncio.gather(reading(reader, extra), reading(writer, extra))
    if not read or not written or read[0] != written[0]:
        return None
    pairs = zip(written[1], read[1], strict=True)
    return {w[0]: r[0] for w, r in pairs if len(w) == len(r) == 1 and w != r}
