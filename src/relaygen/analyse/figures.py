"""Which tokens are figures: those with a digit or with the sign of an operation. Pure.

Two ways to say a thing are as good as each other, two figures seldom are. Where the small model would have written another
figure than the large one, its text says something else from there on; the mean margin of a sentence hides that one token
(docs/calibration.md).
"""

from __future__ import annotations

import re

# A sign with a letter or its own double beside it is a hyphen, a list's mark, or bold type.
_FIGURE = re.compile(r"\d|[+=/×÷]|(?<=\s)-(?!-)|(?<!\*)\*(?!\*)|times|cdot|frac|div")


def is_figure(token: str) -> bool:
    return bool(_FIGURE.search(token))


def num_changed(kept: float) -> float:
    """In 1,000 tokens, from the share that is no changed figure."""
    return 1000 * (1 - kept)
