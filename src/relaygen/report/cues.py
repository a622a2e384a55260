"""How a cue is shown to people."""

from __future__ import annotations

from relaygen.report.terminal import printable


def shown(cue: str) -> str:
    """With its line breaks and the blanks at its ends visible."""
    inner = cue.strip(" ")
    before = cue[: len(cue) - len(cue.lstrip(" "))]
    after = cue[len(before) + len(inner) :]
    return printable("␣" * len(before) + inner.replace("\n", "⏎") + "␣" * len(after))
