"""The commands `replay` and `profiles`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from relaygen import cli, profile
from tests.conftest import SHARED, shared_lines

Main = Callable[..., tuple[int, str, str]]
TEXT = "Let us look at what we know. Therefore, x is 3.14 now. And so it goes on to the end."
SPEEDS = ("--speeds", "25,140", "--prefill", "900,8000")


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Main:
    """The command, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def call(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["relaygen", *args])
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1 if stop.code else 0
        out, err = capsys.readouterr()
        return code, out, err

    return call


def lines(name: str, *values: object) -> str:
    Path(name).write_text("".join(json.dumps(value) + "\n" for value in values))
    return name


def test_for_people(main: Main) -> None:
    file = lines("t.jsonl", {"text": TEXT, "id": "[red]\x1b[1m"}, {"text": TEXT})
    code, out, err = main("replay", file, *SPEEDS)
    assert (code, err) == (0, "")
    assert "generic, policy segment, match words" in out
    assert "'Therefore,'" in out
    assert "[red]\N{REPLACEMENT CHARACTER}[1m" in out
    assert "t.jsonl:2" in out
    assert "x the speed of the large model alone" in out


def test_for_machines(main: Main) -> None:
    code, out, _ = main("replay", lines("t.jsonl", {"text": TEXT, "id": "a", "model": "M"}), "--json")
    found = json.loads(out)
    assert code == 0
    small = len(" x is 3.14 now.")
    assert found["large_share"] == pytest.approx(1 - small / len(TEXT))
    assert (found["traces"], found["turns"], found["handovers"], found["unit"]) == (1, 3, 2, "characters")
    assert found["small_segments"] == {"number": 1, "mean_length": small}
    assert found["cues"] == {"Therefore,": {"count": 1, "share": pytest.approx(small / len(TEXT))}}
    assert found["ends"] == {"large": {"cue": 1, "end of text": 1}, "small": {"sentence": 1}}
    assert "So," in found["cues_unused"]
    assert [(one["id"], one["model"], one["turns"]) for one in found["each"]] == [("a", "M", 3)]
    assert "predicted" not in found


def test_plain(main: Main) -> None:
    _, out, _ = main("replay", lines("t.jsonl", {"text": TEXT}), "--match", "plain", "--json")
    assert json.loads(out)["cues"].keys() == {"now"}


def test_other_policies_and_a_profile_of_ones_own(main: Main) -> None:
    file = lines("t.jsonl", {"text": TEXT})
    Path("mine.toml").write_text('name = "mine"\ncues = ["look"]\n')
    _, out, _ = main("replay", file, "--profile", "mine.toml", "--json")
    assert json.loads(out)["profile"] == "mine"
    for policy, share in (("large", 1), ("small", 0)):
        _, out, _ = main("replay", file, "--policy", policy, "--json")
        assert json.loads(out)["large_share"] == share


def test_speeds_in_numbers_and_of_doctor(main: Main) -> None:
    file = lines("t.jsonl", {"text": TEXT * 20})
    _, out, _ = main("replay", file, *SPEEDS, "--handover-ms", "2", "--json")
    by_hand = json.loads(out)["predicted"]
    assert by_hand["speedup"] == pytest.approx(by_hand["large_alone_ms"] / by_hand["relay_ms"])
    engine = {"read_base_ms": 0, "own_ms": 2, "model": "M"}
    doctor = {
        "large": engine | {"decode_ms": 40, "read_token_ms": 1000 / 900},
        "small": engine | {"decode_ms": 1000 / 140, "read_token_ms": 0.125},
    }
    _, out, _ = main("replay", file, "--speeds", lines("doctor.json", doctor), "--json")
    assert json.loads(out)["predicted"] == pytest.approx(by_hand)


def test_a_page(main: Main) -> None:
    code, out, _ = main("replay", lines("t.jsonl", {"text": f"{TEXT}<script>"}), "--html", "o.html", "--json")
    assert (code, json.loads(out)["turns"]) == (0, 3)
    html = Path("o.html").read_text("utf-8")
    assert "&lt;script&gt;" in html
    assert html.count("<script>") == 1


@pytest.mark.parametrize("match", ["words", "plain"])
def test_the_papers_share(main: Main, match: str) -> None:
    shared_lines("traces/qwen3-32b-aime25.jsonl")
    file = str(SHARED / "traces/qwen3-32b-aime25.jsonl")
    _, out, _ = main("replay", "--profile", "qwen3-32b+qwen3-1.7b", "--match", match, file, "--json")
    assert json.loads(out)["large_share"] == pytest.approx(0.698, abs=0.036)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "a"}\n{bad\n', "t.jsonl, line 2: not JSON"),
        ('{"txt": "a"}\n', 't.jsonl, line 1: no "text" in it'),
        ('{"text": ""}\n', 't.jsonl, line 1: no "text" in it'),
        ('{"text": 5}\n', 't.jsonl, line 1: "text": input should be a valid string'),
        ('["text"]\n', "t.jsonl, line 1: not a trace"),
        ("", "t.jsonl: there are no traces in it"),
        ("\n \n", "t.jsonl: there are no traces in it"),
        ('{"format": 2, "text": "a"}\n', "t.jsonl, line 1: trace format 2 is not known"),
        ('{"format": 1, "text": "a"}\n', 't.jsonl, line 1: "segments"'),
        ('{"text": "ab", "token_ids": [1], "token_texts": ["a"]}\n', 't.jsonl, line 1: "token_texts" must'),
        (None, "cannot read t.jsonl: No such file"),
    ],
)
def test_bad_traces(main: Main, content: str | None, message: str) -> None:
    if content is not None:
        Path("t.jsonl").write_text(content)
    code, out, err = main("replay", "t.jsonl")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"relaygen: {message}")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--profile", "nope"), 'unknown profile "nope"'),
        (("--policy", "nope"), "unknown policy 'nope'"),
        (("--speeds", "25,140"), "--speeds in numbers needs --prefill"),
        (("--speeds", "25", "--prefill", "1,2"), "--speeds must be two numbers"),
        (("--speeds", "25,0", "--prefill", "1,2"), "--speeds must be two numbers"),
        (("--speeds", "none.json"), "cannot read the speeds from none.json"),
        (("--speeds", "t.jsonl"), "t.jsonl is not what `relaygen doctor --json` prints"),
        (("--prefill", "1,2"), "--prefill and --handover-ms are of use with --speeds only"),
        (("--html", "t.jsonl"), "--html t.jsonl is one of the traces"),
        (("--html", "none/o.html"), "cannot write none/o.html"),
    ],
)
def test_bad_options(main: Main, args: tuple[str, ...], message: str) -> None:
    file = lines("t.jsonl", {"text": TEXT})
    code, out, err = main("replay", file, *args)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"relaygen: {message}")
    assert json.loads(Path(file).read_text())["text"] == TEXT


# ---- profiles


def test_profiles_are_listed(main: Main) -> None:
    _, out, _ = main("profiles", "list")
    assert [line.split()[0] for line in out.splitlines()] == list(profile.builtin_names())
    _, out, _ = main("profiles", "list", "--json")
    assert [one["name"] for one in json.loads(out)] == list(profile.builtin_names())


@pytest.mark.parametrize("name", profile.builtin_names())
def test_what_is_shown_can_be_used(main: Main, name: str) -> None:
    _, out, _ = main("profiles", "show", name)
    assert profile.parse(out, "shown") == profile.load(name)
    _, out, _ = main("profiles", "show", name, "--json")
    assert json.loads(out)["cues"] == list(profile.load(name).cues)


def test_profiles_are_compared(main: Main) -> None:
    Path("a.toml").write_text('name = "a"\ncues = ["So,", "Thus"]\nanswer_cues = ["x", "y"]\n')
    text = 'name = "a"\ncues = ["Thus", "Now"]\nanswer_cues = ["y", "x"]\n[limits]\nmax_repeats = 4\n'
    Path("b.toml").write_text(text + '[think]\nopen = "<"\nclose = ">"\n')
    code, out, _ = main("profiles", "diff", "a.toml", "b.toml")
    assert code == 0
    assert out.splitlines() == [
        "cues",
        '  - "So,"',
        '  + "Now"',
        "answer_cues",
        "  the same, in another order",
        "think",
        "  - nothing",
        '  + {"open":"<","close":">"}',
        "limits.max_repeats",
        "  - 3",
        "  + 4",
    ]
    _, out, _ = main("profiles", "diff", "a.toml", "b.toml", "--json")
    assert json.loads(out)["limits.max_repeats"] == {"first": 3, "second": 4}
    assert main("profiles", "diff", "a.toml", "a.toml")[1] == "no difference\n"


def test_profiles_are_checked(main: Main) -> None:
    Path("a.toml").write_text('name = "a"\ncues = ["So,"]\n')
    assert main("profiles", "validate", "a.toml") == (0, "a.toml: valid; a, 1 cues\n", "")
    Path("a.toml").write_text('name = "a"\ncues = ["So,", ""]\n')
    code, out, err = main("profiles", "validate", "a.toml")
    assert (code, out) == (2, "")
    assert err.startswith("relaygen: a.toml, line 2: ")
