"""From scored traces to a profile with its evidence. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from typing import Any, Literal

from relaygen.analyse import mine, select
from relaygen.analyse.margins import MarginTable, Objective, collect
from relaygen.analyse.scored import ScoredTrace
from relaygen.analyse.select import PAPER_CANDIDATES, Expected, Selection
from relaygen.errors import UserError
from relaygen.profile import Profile

Method = Literal["paper", "ci", "budget"]
MIN_PROBLEMS = 10
GOOD_PROBLEMS = 40
HELD_OUT = (
    "Held out: the same choice was made again on one half of the problems, and its cues tried on the other half. The"
    " profile's own cues come from all of them."
)


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be chosen: `share` is of the small model and for `budget` alone."""

    method: Method = "budget"
    share: float = 0.4
    objective: Objective = "margin"
    mine: bool = True


@dataclass(frozen=True, slots=True)
class Calibration:
    """`selection` was made on all traces. `tried` is the same choice made on half of the problems, with what it does to the
    other half (`held_out`): that is what the method is worth on problems it has not seen. `mined` are the candidates that
    the traces suggested."""

    table: MarginTable
    selection: Selection
    tried: Selection
    mined: tuple[str, ...]
    warnings: tuple[str, ...]


def choose(scored: Sequence[ScoredTrace], base: Profile, question: Question) -> Calibration:
    """`base` gives the limits, and what ends the reasoning. UserError where there is too little to choose from."""
    problems = len({trace.problem for trace in scored})
    if problems < MIN_PROBLEMS:
        raise UserError(
            f"the traces are of {problems} problems, too few to tell cues apart: calibrate on {MIN_PROBLEMS} or more,"
            f" better {GOOD_PROBLEMS}"
        )
    is_paper = question.method == "paper"
    mined = mine.candidates(scored) if question.mine and not is_paper else ()
    candidates = (
        PAPER_CANDIDATES if is_paper else tuple(dict.fromkeys((*PAPER_CANDIDATES, *base.cues, *mined)))
    )
    table = collect(
        scored,
        candidates,
        plain=is_paper,
        ends=(*base.answer_cues, *((base.think.close,) if base.think else ())),
        max_small_tokens=base.limits.max_small_tokens,
    )
    warnings: list[str] = []
    if problems < GOOD_PROBLEMS:
        warnings.append(
            f"only {problems} problems: the intervals are wide; {GOOD_PROBLEMS} or more are better"
        )
    if not table.stats.keys() & set(PAPER_CANDIDATES):
        advice = "use --select ci or budget" if is_paper else "all cues are mined ones"
        warnings.append(f"none of the paper's cues stands in the traces; is their language English? {advice}")
    selection = _select(table, base, question)
    if not selection.cues:
        raise UserError(
            "no cue passed: the scorer is nowhere surely better than elsewhere. More problems narrow the intervals; or take"
            " --select budget"
        )
    if signs := [cue for cue in selection.cues if not any(char.isalpha() for char in cue)]:
        # docs/results/gsm8k-50.md: such cues cost the default pair 24 points.
        warnings.append(
            f"{' '.join(map(repr, signs))} open formulas, lists or code: a margin there is that of a reader who sees what the"
            " large model chose to write. See what they do to answers (relaygen eval) before you use them"
        )
    half, rest = table.halves()
    floor = base.limits.min_large_tokens
    tried = select.hold_out(_select(half, base, question), rest, min_large_tokens=floor)
    return Calibration(table, selection, tried, mined, (*warnings, *selection.warnings))


def _select(table: MarginTable, base: Profile, question: Question) -> Selection:
    floor = base.limits.min_large_tokens
    match question.method:
        case "paper":
            return select.paper(table, min_large_tokens=floor)
        case "ci":
            return select.ci(table, objective=question.objective, min_large_tokens=floor)
        case "budget":
            return select.budget(table, question.share, objective=question.objective, min_large_tokens=floor)


def both(first: Sequence[ScoredTrace], second: Sequence[ScoredTrace]) -> list[ScoredTrace]:
    """The same traces as two scorers together see them: as sure as the less sure of the two, and agreed where both agree."""
    joined: list[ScoredTrace] = []
    for a, b in zip(first, second, strict=True):
        if a.token_ids != b.token_ids:
            raise UserError(
                "the two models have different vocabularies, so their margins are of different tokens: choose one scorer"
            )
        joined.append(
            replace(
                a,
                scorer=f"{a.scorer} and {b.scorer}",
                margins=tuple(map(min, a.margins, b.margins)),
                agree=tuple(map(min, a.agree, b.agree)),
                logprobs=(None,) * len(a.logprobs),
            )
        )
    return joined


# --- the profile


def as_profile(
    found: Calibration,
    base: Profile,
    question: Question,
    *,
    name: str,
    scored: Sequence[ScoredTrace],
    data: str,
    day: date,
) -> Profile:
    """`base` with the cues that were found and what they rest on. `data` says where the problems come from."""
    large, scorer = scored[0].model, scored[0].scorer
    own = {"large": (_stem(large),)} if not base.large else {}
    return base.model_copy(
        update={
            **own,
            "name": name,
            "about": f"calibrated by {question.method} on {len(scored)} traces",
            "cues": found.selection.cues,
            "evidence": evidence(found, question, data=data, large=large, scorer=scorer, day=day),
        }
    )


def _stem(model: str) -> str:
    return model.rsplit("/", 1)[-1].removesuffix(".gguf")


def evidence(
    found: Calibration, question: Question, *, data: str, large: str, scorer: str, day: date
) -> dict[str, Any]:
    table, chosen = found.table, found.selection
    by_budget = {"share_wanted": question.share} if question.method == "budget" else {}
    return {
        "source": f"relaygen calibrate, on {data}",
        "date": day,
        "calibrated": True,
        "written_by": large,
        "scored_by": scorer,
        "problems": len(set(table.traces.problem.tolist())),
        "traces": len(table.traces.tokens),
        "tokens": table.num_tokens,
        "select": question.method,
        **by_budget,
        "objective": chosen.objective,
        "all_tokens": {
            "margin": _round(table.overall("margin").value),
            "agreement": _round(table.overall("agreement").value),
            "figures": _round(table.overall("figures").value),
        },
        "expected": _expected(chosen.expected),
        "held_out": {
            "note": HELD_OUT,
            "cues": list(found.tried.cues),
            "chosen_on": _expected(found.tried.expected),
            "held_back": _expected(found.tried.held_out),
        },
        "cues": _cues(table, chosen.cues),
    }


def _cues(table: MarginTable, cues: Sequence[str]) -> Mapping[str, Any]:
    """Of each cue, wherever it stands: where a longer one that was not chosen begins with it, it hands over too."""
    rows: dict[str, Any] = {
        "columns": ["times", "traces", "tokens", "margin", "low", "high", "agreement", "figures"]
    }
    rows_of = dict(zip(table.cues, table.rows_of, strict=True))
    for cue in cues:
        if len(rows_of[cue]):
            one = table.of(cue, rows_of[cue])
            margin = one.margin
            means = (margin.value, margin.low, margin.high, one.agreement.value, one.figures.value)
            rows[cue] = [one.occurrences, one.traces, one.tokens, *map(_round, means)]
    return rows


def _expected(found: Expected | None) -> dict[str, Any]:
    if found is None:
        return {}
    figures = asdict(found)
    del figures["cues"]
    return {name: _round(value) if isinstance(value, float) else value for name, value in figures.items()}


def _round(value: float) -> float:
    return round(value, 4)
