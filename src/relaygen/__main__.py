"""The command's first step: loading the rest takes a moment, in which Ctrl-C has to be quiet too."""

from __future__ import annotations

import importlib
import sys


def main() -> None:
    try:
        importlib.import_module("relaygen.cli").main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
