"""Which cues to hand over at: three ways to choose, from the same table. Pure.

`paper` keeps every cue whose mean margin is above that of the rest; `ci` only those that are surely above; `budget` fills a
wanted share with the surest ones. What a set is worth is found by letting a relay run over the traces (`expected`): segments
within one another and the floor of a large turn are then counted as they will be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from relaygen.analyse.figures import num_changed
from relaygen.analyse.margins import CueStats, MarginTable, Objective
from relaygen.errors import UserError

MIN_OCCURRENCES = 10
# Student's t with 4 degrees of freedom reaches 2.8 standard errors instead of 2; below, intervals say little, and a mean
# of few bounded values is far from normal.
MIN_TRACES = 5
_MAX_NAMES = 12  # in a warning

_BOTH = "Similarly Also Alternatively Wait Hmm But However Hence Another Oh Maybe Other Again Now Ah Any Specifically"
PAPER_CANDIDATES: tuple[str, ...] = (
    *("Therefore", "Therefore,", "Thus", "Thus,", "So,", "So "),
    *("therefore", "therefore,", "thus", "thus,", "so,", "so "),
    *(form for word in _BOTH.split() for base in (word, word.lower()) for form in (base, f"{base},")),
    *("check", "double-check", "verify"),
    *("then", "then,", "Then", "Then,", "next", "next,", "Next", "Next,"),
)


@dataclass(frozen=True, slots=True)
class Expected:
    """What a relay with these cues would do to the traces, were the small model's words the large model's. `share` is of all
    tokens; margin, agreement and figures are means over the tokens handed over (without any 0, and 1 for figures)."""

    cues: tuple[str, ...]
    share: float
    margin: float
    agreement: float
    figures: float
    segments: int
    segment_tokens: float  # mean length

    def of(self, objective: Objective) -> float:
        return getattr(self, objective)

    @property
    def changed_figures(self) -> float:
        """In 1,000 tokens of the whole text."""
        return self.share * num_changed(self.figures)


@dataclass(frozen=True, slots=True)
class Selection:
    """`curve`: the sets that `budget` chooses from, by rising share."""

    method: str
    objective: Objective
    expected: Expected
    warnings: tuple[str, ...] = ()
    curve: tuple[Expected, ...] = ()
    held_out: Expected | None = None

    @property
    def cues(self) -> tuple[str, ...]:
        return self.expected.cues


def paper(
    table: MarginTable, candidates: Collection[str] = PAPER_CANDIDATES, *, min_large_tokens: int = 5
) -> Selection:
    """The released procedure, exactly so on a table of `collect(..., plain=True)`."""
    kept = [cue for cue, stats in table.stats.items() if cue in candidates and stats.margin_delta.value > 0]
    warnings = [*_seldom(table, candidates), *_shadows(table, kept)]
    return Selection("paper", "margin", expected(table, kept, min_large_tokens), tuple(warnings))


def ci(
    table: MarginTable,
    *,
    objective: Objective = "margin",
    min_occurrences: int = MIN_OCCURRENCES,
    min_traces: int = MIN_TRACES,
    min_large_tokens: int = 5,
) -> Selection:
    """Keeps a cue if the lower bound of its delta is above 0. The longest are judged first: where `So,` is not kept, `So`
    will hand over in its place, so `So` is judged on those places too."""
    kept: list[str] = []
    taken = np.zeros(int(table.found.place[-1]) + 1 if len(table.found) else 0, bool)
    rows_of = dict(zip(table.cues, table.rows_of, strict=True))
    for cue in sorted(table.cues, key=len, reverse=True):
        rows = rows_of[cue]
        rows = rows[~taken[table.found.place[rows]]]
        if len(rows) < min_occurrences:
            continue
        stats = table.of(cue, rows)
        if stats.traces >= min_traces and stats.delta(objective).low > 0:
            kept.append(cue)
            taken[table.found.place[rows]] = True
    kept = [cue for cue in table.cues if cue in kept]
    warnings = _seldom(table, table.cues, min_occurrences, min_traces)
    return Selection("ci", objective, expected(table, kept, min_large_tokens), tuple(warnings))


def budget(
    table: MarginTable,
    share: float,
    *,
    objective: Objective = "margin",
    min_occurrences: int = MIN_OCCURRENCES,
    min_traces: int = MIN_TRACES,
    min_large_tokens: int = 5,
) -> Selection:
    """The surest cues that together hand over `share` of the tokens.

    Cues are taken in the order of the lower bound of their mean, and the relay is run over the traces after each. Filling a
    knapsack by value per weight is optimal but for the last item; a full forward search gains no more than that, at a run
    for each pair of cues, and would choose the luckiest cue of many, where a lower bound asks for evidence.
    """
    if not 0 < share < 1:
        raise UserError(f"the wanted share of the small model must be between 0 and 1, not {share:g}")
    order = _by_lower_bound(table, objective, min_occurrences, min_traces)
    curve = _chain(table, order, 1.0, min_large_tokens)
    fitting = max((e for e in curve if e.share <= share), key=lambda e: e.share)
    left = order[order.index(fitting.cues[-1]) + 1 :] if fitting.cues else order
    within = _chain(table, left, share, min_large_tokens, fitting)
    best = min((*curve, *within), key=lambda e: (abs(e.share - share), -e.of(objective)))
    warnings = _seldom(table, table.cues, min_occurrences, min_traces)
    if curve[-1].share < share:
        warnings.insert(
            0,
            f"all {len(curve[-1].cues)} cues together reach a share of {curve[-1].share:.0%}, not {share:.0%}: mine more cues",
        )
    elif abs(best.share - share) > 0.05:
        warnings.insert(
            0, f"the set nearest to a share of {share:.0%} has {best.share:.0%}: the cues are few or frequent"
        )
    average = table.overall(objective).value
    unsure = [
        cue for cue in best.cues if (one := table.stats.get(cue)) and one.mean(objective).value < average
    ]
    if unsure:
        warnings.append(
            f"taken for the wanted share, though less sure than the average token: {_names(unsure)}"
        )
    return Selection("budget", objective, best, tuple(warnings), tuple(curve))


def hold_out(selection: Selection, table: MarginTable, *, min_large_tokens: int = 5) -> Selection:
    """The selection with what it does to other traces, and a warning for each cue that does not keep its promise there."""
    found = expected(table, selection.cues, min_large_tokens)
    fallen = [
        cue
        for cue in selection.cues
        if (stats := table.stats.get(cue)) and stats.delta(selection.objective).value <= 0
    ]
    warnings = list(selection.warnings)
    if fallen and selection.method != "budget":
        warnings.append(f"not above the rest on the held-out problems: {_names(fallen)}")
    return replace(selection, held_out=found, warnings=tuple(warnings))


def expected(table: MarginTable, cues: Iterable[str], min_large_tokens: int = 5) -> Expected:
    """By running the relay over the traces: it hands over at the first cue of a large turn that ends beyond the turn's first
    `min_large_tokens` tokens, and the next large turn begins where the segment ends."""
    cues = tuple(cues)
    fired = _fired(table, cues, min_large_tokens)
    found = table.found
    tokens = int((found.stop - found.start)[fired].sum())
    sums: list[float] = (found.after - found.before)[fired].sum(axis=0).tolist()
    margin, agreement, figures = (one / tokens for one in sums) if tokens else (0.0, 0.0, 1.0)
    return Expected(
        cues, tokens / table.num_tokens, margin, agreement, figures, len(fired), tokens / max(1, len(fired))
    )


def _fired(table: MarginTable, cues: Collection[str], floor: int) -> list[int]:
    """The rows of the table that hand over, one after the other."""
    found = table.found
    if not cues or not len(found):
        return []
    wanted = np.isin(table.cues, list(cues))[found.cue]
    rows = np.flatnonzero(wanted & (found.last >= table.traces.begin[found.trace] + floor))
    first, last, stop = found.first[rows], found.last[rows], found.stop[rows]
    # Of each row, the one that would hand over next: the first that lies beyond its segment, and beyond the floor.
    following = np.maximum(
        np.searchsorted(np.maximum.accumulate(first), stop),
        np.searchsorted(np.maximum.accumulate(last), stop + floor),
    )
    early = np.flatnonzero(following < len(rows))
    while len(early):
        at, to = following[early], stop[early]
        early = early[(first[at] < to) | (last[at] < to + floor)]
        following[early] += 1
        early = early[following[early] < len(rows)]
    steps: list[int] = following.tolist()
    path: list[int] = []
    at = 0
    while at < len(steps):
        path.append(at)
        at = steps[at]
    return rows[path].tolist()


def _chain(
    table: MarginTable, order: Sequence[str], limit: float, floor: int, start: Expected | None = None
) -> list[Expected]:
    """The sets that come of adding one cue after the other; one that adds nothing, or too much, is left out."""
    chain = [start or expected(table, (), floor)]
    for cue in order:
        more = expected(table, (*chain[-1].cues, cue), floor)
        if chain[-1].share < more.share <= limit:
            chain.append(more)
    return chain


def _by_lower_bound(
    table: MarginTable, objective: Objective, min_occurrences: int, min_traces: int
) -> list[str]:
    """Without the cues seen too seldom. A cue that begins a longer one is as good as the worse of two figures: where it
    counts by itself, and wherever it stands, since without the longer one it hands over there too."""
    bounds: dict[str, float] = {}
    for cue, rows in zip(table.cues, table.rows_of, strict=True):
        if len(rows) < min_occurrences:
            continue
        alone, own = table.of(cue, rows), table.stats.get(cue)
        if alone.traces >= min_traces:
            bounds[cue] = min(_low(stats, objective) for stats in (alone, own) if stats)
    return sorted(bounds, key=lambda cue: -bounds[cue])


def _low(stats: CueStats, objective: Objective) -> float:
    """Of the mean. Where no figure was changed at all the interval has no width; then up to 3 in as many tokens are as likely
    as 5 % (the rule of three: Hanley and Lippman-Hand, JAMA 1983)."""
    low = stats.mean(objective).low
    return min(low, 1 - 3 / max(3, stats.tokens)) if objective == "figures" else low


# --- warnings


def _seldom(
    table: MarginTable, cues: Collection[str], min_occurrences: int = 1, min_traces: int = 1
) -> list[str]:
    out: list[str] = []
    never = [cue for cue in table.cues if cue in cues and cue not in table.stats]
    few = [
        cue
        for cue, stats in table.stats.items()
        if cue in cues and (stats.occurrences < min_occurrences or stats.traces < min_traces)
    ]
    if never:
        out.append(f"never seen in these traces: {_names(never)}")
    if few:
        out.append(
            f"seen fewer than {min_occurrences} times or in fewer than {min_traces} traces: {_names(few)}"
        )
    return out


def _shadows(table: MarginTable, kept: Collection[str]) -> list[str]:
    if table.plain:
        return []
    return [
        f"{short!r} also hands over where {cue!r} stands, which was not kept"
        for short in kept
        for cue in table.stats
        if cue not in kept and cue != short and cue.startswith(short)
    ]


def _names(cues: Sequence[str]) -> str:
    more = f" and {len(cues) - _MAX_NAMES} more" if len(cues) > _MAX_NAMES else ""
    return " ".join(map(repr, cues[:_MAX_NAMES])) + more
