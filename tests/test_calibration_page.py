"""The page of a calibration: complete, and nothing from a trace can run in it."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from relaygen.analyse import select
from relaygen.analyse.margins import MarginTable, collect
from relaygen.errors import UserError
from relaygen.report import plots
from relaygen.report.calibration import write_page
from relaygen.report.cues import shown
from tests.scored_traces import corpus, scored
from tests.test_replay import Seen

EVIL = "<script>alert(1)</script>"
OPENERS = {"So|,": 0.9, "$$": 0.8, "因此": 0.6, EVIL: 0.9}


@pytest.fixture(scope="module")
def table() -> MarginTable:
    return collect(corpus(OPENERS, traces=12, sentences=40), ["So,", "$$", "因此", EVIL, "\n- "])


def test_a_page_with_everything(table: MarginTable, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    first, second = table.halves()
    found = select.hold_out(select.budget(first, 0.3), second)
    others = [("paper", select.paper(first).expected)]
    write_page(path, first, found, title=EVIL, facts=[("large", EVIL)], others=others, made=[EVIL])
    html = path.read_text("utf-8")
    seen = Seen()
    seen.feed(html)
    assert seen.tags.count("script") == 1
    assert EVIL not in html
    assert seen.tags.count("tr") == 1 + 4  # the cues that occur
    assert "never seen in these traces" in html
    assert "http" not in html.replace("http-equiv", "").replace("http://www.w3.org/", "")
    assert "#0101" not in html  # every colour is the page's


def test_the_page_of_nothing(tmp_path: Path) -> None:
    table = collect([scored(["a", "."])], ["So,"])
    path = tmp_path / "page.html"
    write_page(path, table, select.paper(table), title="t")
    assert "None." in path.read_text("utf-8")
    with pytest.raises(UserError, match=r"cannot write .*: Is a directory"):
        write_page(tmp_path, table, select.paper(table), title="t")


def test_a_plot_is_the_same_each_time_and_stands_alone(table: MarginTable) -> None:
    found = select.budget(table, 0.3)
    svg = plots.curve(found, standalone=True)
    assert svg == plots.curve(found, standalone=True)
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert "prefers-color-scheme" in svg


def test_how_a_cue_is_shown() -> None:
    assert [shown(cue) for cue in ("So ", "\n- ", " a b", "\x1b")] == [
        "So␣",
        "⏎-␣",
        "␣a b",
        "\N{REPLACEMENT CHARACTER}",
    ]
