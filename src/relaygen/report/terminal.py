"""Events on a terminal: the text as it comes, coloured by author, with a mark at each hand-over."""

from __future__ import annotations

import re

from rich.console import Console
from rich.segment import Segment, Segments
from rich.style import Style
from rich.table import Table
from rich.text import Text

from relaygen.report.summary import rows
from relaygen.types import Author, Event, Result, Switch, Token

STYLES = {Author.LARGE: "bright_cyan", Author.SMALL: "bright_yellow"}
_ROW_STYLES = {author.value: style for author, style in STYLES.items()}
MARKS = {Author.LARGE: "◀", Author.SMALL: "▶"}  # who takes over: back to the large model, on to the small one
# A model can write terminal control sequences; on a screen they are shown, not obeyed.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


class TextWriter:
    """Writes the text of a generation to `console`. Not to a terminal: the exact text and nothing else."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = "\n"

    def legend(self, models: dict[str, str]) -> None:
        if not self._console.is_terminal:
            return
        line = Text()
        for author in Author:
            if author.value in models:
                line.append(
                    f"{MARKS[author]} {author.value} {printable(models[author.value])}  ", STYLES[author]
                )
        self._console.print(line)
        self._console.print()

    def event(self, event: Event) -> None:
        match event:
            case Token():
                self._write(event.text, STYLES[event.author])
            case Switch() if event.to is not event.author and self._console.is_terminal:
                self._write(MARKS[event.to], f"bold {STYLES[event.to]}")
            case _:
                pass

    def end(self) -> None:
        if self._console.is_terminal and not self._last.endswith("\n"):
            self._console.file.write("\n")
        self._console.file.flush()

    def _write(self, text: str, style: str) -> None:
        self._last = text or self._last
        if self._console.is_terminal:
            # As a segment: rich lays out a Text, and drops a blank at the end of a line, or a tab.
            self._console.print(Segments([Segment(printable(text), Style.parse(style))]), soft_wrap=True)
        else:
            self._console.file.write(text)
        self._console.file.flush()


def summary(result: Result) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in rows(result):
        table.add_row(Text(name, "dim"), Text(value, _ROW_STYLES.get(name, "")))
    for warning in result.warnings:
        table.add_row(Text("warning", "red"), Text(printable(warning)))
    return table
