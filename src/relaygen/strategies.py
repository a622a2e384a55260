"""The policies by name, with the cues and limits of a profile.

    segment               the paper's: cues hand over to the end of the sentence
    phase                 the one-way form
    large, small          one model writes everything
    random:SHARE          sentences by lot, SHARE of them to the small model (at most 0.5): what cues have to beat
    reflect               the small model leads, the large one writes what a word of doubt opens (Speculative Thinking)
    margin:M              the small model leads, the large one writes a sentence where the small one's margin is under M
    segment+margin:M      segment, and a small turn ends early where its margin is under M

The margin is p(top-1) - p(top-2) of the small model, 0 to 1.
"""

from __future__ import annotations

from relaygen.core import policy as policies
from relaygen.core.policy import Policy
from relaygen.errors import UserError
from relaygen.profile import Profile
from relaygen.types import Author

POLICIES = ("segment", "phase", "large", "small", "random:SHARE", "reflect", "margin:M", "segment+margin:M")


def make_policy(name: str, profile: Profile) -> Policy:
    """The policy `name`, one of POLICIES with a number in place of SHARE or M. UserError for any other."""
    kind, number = _parse(name)
    think = (profile.think.open, profile.think.close) if profile.think else None
    match kind:
        case "phase":
            return policies.phase(
                profile.phase.answer,
                profile.phase.consolidation,
                profile.phase.calculation,
                think=think,
                max_small_tokens=profile.limits.max_small_tokens,
            )
        case "large" | "small":
            return policies.alone(Author(kind), think=think)
        case "random":
            return policies.at_random(_segment(profile), min(number, 0.5))
        case "reflect":
            return policies.reflect(_segment(profile))
        case "margin":
            return policies.margin(_segment(profile), number)
        case "segment+margin":
            return policies.hand_back(_segment(profile), number)
        case _:
            return _segment(profile)


def check(name: str) -> None:
    """Raises UserError for a name that make_policy does not know."""
    _parse(name)


def _segment(profile: Profile) -> Policy:
    limits = profile.limits
    return policies.segment(
        profile.cues,
        answer_cues=profile.answer_cues,
        think=(profile.think.open, profile.think.close) if profile.think else None,
        answer_by=Author(profile.answer_by),
        min_large_tokens=limits.min_large_tokens,
        max_small_tokens=limits.max_small_tokens,
        max_repeats=limits.max_repeats,
    )


def _parse(name: str) -> tuple[str, float]:
    kind, colon, number = name.partition(":")
    known = {entry.partition(":")[0]: ":" in entry for entry in POLICIES}
    if kind not in known:
        raise UserError(f"unknown policy {name!r}: choose one of {', '.join(POLICIES)}")
    if not known[kind]:
        if colon:
            raise UserError(f"the policy {kind} takes no number: {name!r}")
        return kind, 0.0
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise UserError(f"the policy {kind} needs a number between 0 and 1, as {kind}:0.4, not {name!r}")
    return kind, value
