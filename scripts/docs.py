"""The API reference, from the docstrings: `python -m scripts.docs`, or `make docs`."""

from __future__ import annotations

import warnings
from pathlib import Path

import pdoc
import pdoc.render

import relaygen

FOLDER = Path("build/docs")
PAGES = ("api", "config", "errors", "profile", "trace", "types")


def main() -> None:
    # A public name that is not found is an error; of named tuples pdoc cannot read the types, which then stay names.
    warnings.filterwarnings("error", message="Found .* in relaygen.__all__")
    warnings.filterwarnings("ignore", message="Error parsing type annotation")
    for name in relaygen.__all__:  # loaded when they are asked for, which pdoc does not do
        setattr(relaygen, name, getattr(relaygen, name))
    pdoc.render.configure(docformat="markdown")
    pdoc.pdoc("relaygen", *(f"relaygen.{name}" for name in PAGES), output_directory=FOLDER)
    print(FOLDER / "relaygen.html")


if __name__ == "__main__":
    main()
