"""Looks for bytes that break a reader, led by which code they reach: `python -m scripts.fuzz TARGET --seconds N`.

Needs atheris (Linux, Python 3.11 to 3.13): pip install atheris. The targets are those of tests/fuzz_targets.py. Input that
breaks one is left in crash-*, and `python -m scripts.fuzz TARGET crash-...` runs it again.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any


def main() -> None:
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["relaygen", "tomllib"]):
        targets: Any = importlib.import_module("tests.fuzz_targets")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", choices=sorted(targets.TARGETS))
    parser.add_argument("again", nargs="*", help="input that is run again")
    parser.add_argument("--seconds", type=int, default=120)
    options = parser.parse_args()
    corpus = Path(tempfile.mkdtemp(prefix="relaygen-corpus-"))
    for number, seed in enumerate(targets.TARGETS[options.target].seeds):
        (corpus / str(number)).write_bytes(seed)
    limits = [f"-max_total_time={options.seconds}", "-timeout=10", "-rss_limit_mb=2048", "-max_len=4096"]
    atheris.Setup(
        [sys.argv[0], *(options.again or [str(corpus)]), *limits],
        lambda data: targets.run(options.target, data),  # pyright: ignore[reportUnknownLambdaType]
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
