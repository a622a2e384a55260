"""The report of an evaluation: complete, nothing of a model runs in it, and the filters work in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from relaygen.analyse.evaluate import Evaluation, Prices, evaluate
from relaygen.analyse.grade import Grade, Verdict
from relaygen.cli.made import command
from relaygen.report.evaluation_page import page
from tests.browser import chromium, page_at
from tests.test_replay import Seen

EVIL = "<script>alert(1)</script>&amp;<img src=x onerror=alert(2)>\"'|$x_"
GRADES = {
    "right": Grade(Verdict.RIGHT, "18"),
    "wrong": Grade(Verdict.WRONG, "17"),
    "none": Grade(Verdict.NONE),
    "timeout": Grade(Verdict.TIMEOUT),
}


def judge(answer: str, _: str) -> Grade:
    return GRADES.get(answer, Grade(Verdict.WRONG, answer))


def line(
    strategy: str, problem: str, answer: str, *, text: str = "x", sample: int = 0, **more: Any
) -> dict[str, Any]:
    segments = [
        {"author": "large", "text": f"{text} So,", "reason": "cue", "cue": "so,"},
        {"author": "small", "text": f" {text}\n", "reason": "sentence", "cue": None},
        {"author": "large", "text": "end", "reason": "eos", "cue": None},
    ]
    return {
        "strategy": strategy, "policy": strategy, "id": problem, "sample": sample, "problem": f"What? {text}",
        "reference": "18", "text": answer, "reasoning": "", "answer": answer, "finish_reason": "stop", "segments": segments,
        "usage": {"large_tokens": 6, "small_tokens": 4}, "timings": {"total_ms": 500.0}, "warnings": [], **more,
    }  # fmt: skip


def html_of(found: Evaluation, **options: Any) -> tuple[str, Seen]:
    given: dict[str, Any] = {"title": "t", "facts": [], "made": [], **options}
    html = "".join(page(found, **given))
    seen = Seen()
    seen.feed(html)
    return html, seen


def test_nothing_of_a_model_or_a_file_runs() -> None:
    lines = [
        line(s, EVIL, EVIL, text=EVIL, reference=EVIL, warnings=[EVIL]) for s in ("large", EVIL, "random")
    ]
    found = evaluate(lines, judge, prices=Prices(1, 1))
    html, seen = html_of(found, title=EVIL, facts=[(EVIL, EVIL)], made=[(EVIL, EVIL)], failures=[EVIL])
    assert seen.tags.count("script") == 1
    assert "img" not in seen.tags
    assert "<script>alert" not in html
    assert seen.texts == [f"{EVIL} So, {EVIL}\nend"] * 3
    assert "http" not in html.replace("http-equiv", "").replace("http://www.w3.org/", "")
    assert "#0101" not in html  # every colour is the page's


def test_each_verdict_is_told() -> None:
    lines = [line("large", name, name) for name in GRADES]
    lines += [line("relay", name, "wrong", finish_reason="length") for name in GRADES]
    html, _ = html_of(evaluate(lines, judge))
    for told in (
        "✓ right",
        "✗ wrong",
        "– no answer found",
        "? the grader took too long",
        "cut at the budget",
    ):
        assert told in html
    assert 'data-told="timeout|cut wrong"' in html
    assert "answer 18" in html
    assert "40% by the small model, 2 hand-overs" in html


def test_samples_of_a_problem_are_counted() -> None:
    lines = [line("large", "a", verdict, sample=n) for n, verdict in enumerate(["right", "wrong", "right"])]
    html, _ = html_of(evaluate(lines, judge))
    assert "2/3</span>" in html
    assert "sample 3" in html
    assert 'data-told="right wrong"' in html


def test_a_run_without_answers() -> None:
    html, seen = html_of(evaluate([], judge), failures=["large, a: refused"])
    assert "There are no answers." in html
    assert "large, a: refused" in html
    assert "svg" not in seen.tags
    html, seen = html_of(evaluate([line("large", "a", "right"), line("relay", "b", "right")], judge))
    assert "2 problems are left out, since not every strategy has answered them: a, b" in html
    assert seen.texts == []


def test_a_password_in_an_address_is_not_told() -> None:
    told = command(["eval", "--large", "http://me:secret@host:1/v1", "--prompt", "a b"])
    assert told == "relaygen eval --large http://host:1/v1 --prompt 'a b'"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_filters_in_a_browser(tmp_path: Path, scheme: str) -> None:
    lines = [line("large", f"p{n}", "right" if n < 3 else "wrong") for n in range(5)]
    lines += [line("relay", f"p{n}", "right" if n in (0, 3) else "none", text=EVIL) for n in range(5)]
    file = tmp_path / "report.html"
    file.write_text(html_of(evaluate(lines, judge))[0], encoding="utf-8")
    with chromium() as browser, page_at(browser, file.as_uri(), color_scheme=scheme) as tab:
        problems, count = tab.locator(".problem:visible"), tab.locator("output")
        expect(problems).to_have_count(5)
        tab.get_by_label("large").select_option("right")
        expect(count).to_have_text("3 of 5 problems")
        tab.get_by_label("relay").select_option("no answer found")
        expect(problems).to_have_count(2)
        tab.get_by_text("Ready-made filters").click()
        tab.get_by_role("button", name="relay right, large wrong").click()
        expect(problems).to_have_count(1)
        expect(problems).to_contain_text("p3")
        problems.locator("summary").click()
        assert problems.locator(".text").nth(1).text_content() == f"{EVIL} So, {EVIL}\nend"
        ink, small = (
            problems.locator(f".text .{author}").last.evaluate("e => getComputedStyle(e).color")
            for author in ("large", "small")
        )
        assert ink != small
        tab.get_by_role("button", name="Show all").click()
        expect(count).to_have_text("5 of 5 problems")


def test_all_is_there_without_scripts_and_on_a_phone(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    lines = [line(s, f"p{n}", "right", text=EVIL * 3) for s in ("large", "relay") for n in range(3)]
    file.write_text(html_of(evaluate(lines, judge))[0], encoding="utf-8")
    phone: dict[str, Any] = {"java_script_enabled": False, "viewport": {"width": 360, "height": 700}}
    with chromium() as browser, page_at(browser, file.as_uri(), **phone) as tab:
        expect(tab.locator(".problem:visible")).to_have_count(3)
        expect(tab.locator("form")).to_be_hidden()
        tab.locator("summary", has_text="p0").click()
        expect(tab.locator("article:visible")).to_have_count(2)
        box = tab.locator("main").bounding_box()
        assert box
        assert box["width"] <= 360  # nothing makes the page wider than the screen
