"""What a replay found, as rows for people."""

from __future__ import annotations

from relaygen.analyse.tally import Replay
from relaygen.report.summary import Row
from relaygen.types import Author, Reason


def rows(found: Replay) -> list[Row]:
    tally, unit = found.whole, found.whole.unit
    mean, deviation = found.mean_and_deviation()
    by_trace = "" if deviation is None else f"; by trace {mean:.1%} +- {deviation:.1%}"
    large = tally.by_author[Author.LARGE]
    out = [
        ("traces", f"{tally.num_traces:,}, {tally.total.size(unit):,} {unit}"),
        ("large share", f"{tally.share(large):.1%} of the {unit}{by_trace}"),
        ("turns", f"{tally.total.turns:,}, with {tally.handovers:,} hand-overs"),
    ]
    if tally.mean_segment is not None:
        value = f"{tally.segments.turns:,}, {tally.mean_segment:.0f} {unit} long on average"
        out.append(("small segments", value))
    if tally.answers.turns:
        out.append(
            ("answer stage", f"in {tally.answers.turns:,}, {tally.share(tally.answers):.1%} of the {unit}")
        )
    for author in Author:
        if ends := tally.ends[author].most_common():
            value = ", ".join(f"{end_name(reason)} {count:,}" for reason, count in ends)
            out.append((f"{author} turns ended by", value))
    if time := tally.time:
        per_share = time.break_even_share
        even = f"break-even from a small share of {per_share:.0%} on" if per_share else "no share breaks even"
        out.append(("predicted", f"{time.speedup:.2f}x the speed of the large model alone; {even}"))
    return out


def end_name(reason: Reason | None) -> str:
    return "end of text" if reason is None else reason.value
