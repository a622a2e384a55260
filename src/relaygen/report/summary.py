"""What a finished generation cost, as rows for people."""

from __future__ import annotations

from relaygen.types import Author, EngineTimings, Result

Row = tuple[str, str]


def large_alone_ms(result: Result) -> float | None:
    """Estimate of the time the large model would have taken for the same text by itself: its own reading of the prompt, and
    its own measured time a token for every token. None when it wrote too little to measure."""
    large = result.timings.large
    per_token = large.decode_ms_per_token
    if per_token is None:
        return None
    return (
        large.prefill_ms - large.handover_prefill_ms + per_token * max(0, result.usage.completion_tokens - 1)
    )


def lost_at_handovers_ms(result: Result) -> float:
    """Reading the other model's text (and the small model's first reading of the prompt), and our own time."""
    timings = result.timings
    return timings.large.handover_prefill_ms + timings.small.handover_prefill_ms + timings.own_ms


def rows(result: Result) -> list[Row]:
    usage, timings = result.usage, result.timings
    turns = {author: [s for s in result.segments if s.author is author] for author in Author}
    out: list[Row] = []
    for author, tokens, engine in (
        (Author.LARGE, usage.large_tokens, timings.large),
        (Author.SMALL, usage.small_tokens, timings.small),
    ):
        if turns[author]:
            share = tokens / usage.completion_tokens if usage.completion_tokens else 0.0
            out.append((author.value, f"{tokens} tokens, {share:.0%}{_speed(engine)}"))
    small = turns[Author.SMALL]
    if len(result.segments) > 1:
        mean = (
            f", the small model's {usage.small_tokens / len(small):.0f} tokens long on average"
            if small
            else ""
        )
        out.append(("turns", f"{len(result.segments)}{mean}"))
    out.append(("time", _seconds(timings.total_ms)))
    if result.handovers:
        lost = lost_at_handovers_ms(result)
        own = f"of which ours {timings.own_ms:.0f} ms"
        out.append(
            ("lost at hand-overs", f"{_seconds(lost)} ({lost / max(1.0, timings.total_ms):.0%}), {own}")
        )
        alone = large_alone_ms(result)
        if alone:
            ratio = alone / max(1.0, timings.total_ms)
            word = f"{ratio:.2f}x as fast" if ratio >= 1 else f"relaying was slower, {ratio:.2f}x"
            out.append(("large alone", f"{_seconds(alone)} estimated ({word})"))
    for author, engine in ((Author.LARGE, timings.large), (Author.SMALL, timings.small)):
        if engine.draft_tokens:
            rate = engine.draft_accepted_tokens / engine.draft_tokens
            out.append(
                (
                    f"{author} drafts",
                    f"{engine.draft_accepted_tokens} of {engine.draft_tokens} accepted ({rate:.0%})",
                )
            )
    out.append(("ended", _ENDED[result.finish_reason]))
    return out


_ENDED = {
    "stop": "by the model",
    "length": "at the token budget: give a larger --max-tokens for more",
    "stopped": "stopped",
    "error": "by an error",
}


def _speed(engine: EngineTimings) -> str:
    per_token = engine.decode_ms_per_token
    return f", {1000 / per_token:.1f} tokens/s" if per_token else ""


def _seconds(ms: float) -> str:
    return f"{ms / 1000:.1f} s"
