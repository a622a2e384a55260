"""The file format between the scorers and the statistics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaygen.analyse import scored
from relaygen.analyse.scored import ScoredTrace
from relaygen.errors import UserError

ONE = ScoredTrace(
    id="a",
    problem="1+1?",
    model="L",
    scorer="S",
    text="So, 2",
    token_ids=(1, 2, 3),
    token_texts=("So", ",", " 2"),
    margins=(0.5, 0.0, 1.0),
    agree=(1, 0, 1),
    logprobs=(-0.5, None, -0.1),
)


@st.composite
def traces(draw: st.DrawFn) -> ScoredTrace:
    texts = draw(st.lists(st.text(max_size=3), min_size=1, max_size=5).filter(any))
    n = len(texts)
    words = st.text(max_size=4)

    def each(values: st.SearchStrategy[Any]) -> tuple[Any, ...]:
        return tuple(draw(st.lists(values, min_size=n, max_size=n)))

    return ScoredTrace(
        draw(words),
        draw(words),
        draw(words),
        draw(words),
        "".join(texts),
        each(st.integers(0, 2**31)),
        tuple(texts),
        each(st.floats(0, 1)),
        each(st.integers(0, 1)),
        each(st.none() | st.floats(-1e6, 0)),
    )


@given(st.lists(traces(), min_size=1, max_size=3))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, written: list[ScoredTrace]
) -> None:
    path = tmp_path_factory.mktemp("scored") / "s.jsonl"
    path.write_bytes(b"\n".join(map(scored.dumps, written)))  # blank lines do no harm
    assert list(scored.read(path)) == written


def test_the_names_of_the_fields_are_the_format() -> None:
    line: Mapping[str, Any] = orjson.loads(scored.dumps(ONE))
    assert line == {
        "id": "a",
        "problem": "1+1?",
        "model": "L",
        "scorer": "S",
        "text": "So, 2",
        "token_ids": [1, 2, 3],
        "token_texts": ["So", ",", " 2"],
        "margins": [0.5, 0.0, 1.0],
        "agree": [1, 0, 1],
        "logprobs": [-0.5, None, -0.1],
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"margins": [0.5, 0.0]}, '"margins" must have one entry for each of the 3 ids'),
        ({"margins": [0.5, 0.0, 1.5]}, '"margins.2": input should be less than or equal to 1'),
        ({"agree": [1, 0, 2]}, '"agree.2"'),
        ({"logprobs": [-1, None, "x"]}, '"logprobs.2": input should be a valid number'),
        ({"token_texts": ["So", ",", "2"]}, '"token_texts" do not add up to "text"'),
        ({"text": ""}, '"text"'),
        ({"token_ids": None}, '"token_ids"'),
    ],
)
def test_faults_name_file_and_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(scored.dumps(ONE) + orjson.dumps({**scored.to_json(ONE), **changes}))
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        list(scored.read(path))
    assert f"{path}, line 2" in str(caught.value)


def test_files_without_traces(tmp_path: Path) -> None:
    empty, broken = tmp_path / "empty", tmp_path / "broken"
    empty.write_text("\n")
    broken.write_bytes(scored.dumps(ONE)[:40])
    with pytest.raises(UserError, match="there are no scored traces in it"):
        list(scored.read(empty))
    with pytest.raises(UserError, match=r"broken, line 1: not a scored trace: invalid JSON"):
        list(scored.read(broken))
    with pytest.raises(UserError, match="cannot read"):
        list(scored.read(tmp_path / "none"))
