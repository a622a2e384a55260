"""Scored traces made up for tests: of given tokens, or of sentences whose margins have known means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from relaygen.analyse.scored import ScoredTrace


def scored(
    texts: Sequence[str],
    margins: Sequence[float] | None = None,
    agree: Sequence[int] | None = None,
    *,
    id: str = "t",
    problem: str = "",
) -> ScoredTrace:
    size = len(texts)
    return ScoredTrace(
        id=id,
        problem=problem,
        model="L",
        scorer="S",
        text="".join(texts),
        token_ids=tuple(range(size)),
        token_texts=tuple(texts),
        margins=tuple([0.5] * size if margins is None else margins),
        agree=tuple([1] * size if agree is None else agree),
        logprobs=(None,) * size,
    )


def corpus(
    openers: Mapping[str, float],
    *,
    traces: int = 40,
    sentences: int = 60,
    rest: float = 0.7,
    seed: int = 0,
    words: Iterable[str] = (" the", " sum", " is", " x", " of", " it"),
    end: str = ".",
    gap: str = " ",
) -> list[ScoredTrace]:
    """Sentences that open with any of `openers` (tokens parted by `|`) or with none, two traces a problem. The margins behind
    an opener have its mean, all others `rest`; a trace as a whole is easier or harder by 0.05."""
    rng = np.random.default_rng(seed)
    words, names = list(words), [*openers, ""]
    out: list[ScoredTrace] = []
    for number in range(traces):
        texts: list[str] = []
        means: list[float] = []
        for opener in rng.choice(names, sentences):
            opening = [part for part in str(opener).split("|") if part]
            numbers: list[int] = rng.integers(0, len(words), rng.integers(4, 12)).tolist()
            body = [words[n] for n in numbers]
            texts += [*opening, *body, end + gap]
            means += [rest] * len(opening) + [openers.get(str(opener), rest)] * len(body) + [rest]
        values = np.array(means) + rng.normal(0, 0.05) + rng.normal(0, 0.1, len(means))
        margins = np.clip(values, 0, 1)
        agree = (rng.random(len(means)) < margins).astype(int)
        out.append(
            scored(texts, margins.tolist(), agree.tolist(), id=f"t{number}", problem=f"p{number // 2}")
        )
    return out
