"""relaygen.toml, the environment and flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from relaygen.config import Settings, load
from relaygen.errors import UserError


def test_a_flag_goes_before_the_environment_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "relaygen.toml"
    file.write_text(
        'port = 1\nhost = "::1"\nmax_active = 3\ncors_origins = ["https://a"]\nlarge = ["http://a", "http://b"]'
    )
    found = load(
        file, {"RELAYGEN_PORT": "2", "RELAYGEN_HOST": "localhost", "RELAYGEN_SHARED": "x"}, {"port": 3}
    )
    assert (found.port, found.host, found.max_active) == (3, "localhost", 3)
    assert found.cors_origins == ("https://a",)
    assert found.large == ("http://a", "http://b")
    assert found.small == Settings().small
    assert load(None, {"RELAYGEN_CORS_ORIGINS": "https://a, https://b"}, {}).cors_origins == (
        "https://a",
        "https://b",
    )


def test_the_file_in_this_folder_is_found(tmp_path: Path) -> None:
    file = tmp_path / "relaygen.toml"
    assert load(None, {}, {}, default_file=file) == Settings()
    file.write_text("port = 9")
    assert load(None, {}, {}, default_file=file).port == 9


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('\nhots = "x"', ["line 2", 'unknown key "hots"', 'did you mean "host"?']),
        ("# hi\n\nport = 70000", ["line 3", "port", "65535"]),
        ("[serve]\nport = 1", ["line 1", 'unknown key "serve"']),
        ("port =", ["not TOML"]),
        ("grace_s = -1", ["line 1", "grace_s"]),
    ],
)
def test_faults_name_their_line(tmp_path: Path, text: str, words: list[str]) -> None:
    file = tmp_path / "relaygen.toml"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        load(file, {}, {})
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_faults_elsewhere_name_their_place(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="RELAYGEN_PORT: port"):
        load(None, {"RELAYGEN_PORT": "many"}, {})
    with pytest.raises(UserError, match="--max-active: max_active"):
        load(None, {}, {"max_active": 0})
    with pytest.raises(UserError, match="cannot be read"):
        load(tmp_path / "none.toml", {}, {})
    (tmp_path / "latin.toml").write_bytes(b"\xe4")
    with pytest.raises(UserError, match="not UTF-8"):
        load(tmp_path / "latin.toml", {}, {})
