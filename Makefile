# make demo    answer a maths problem with two models on this machine
# make test    everything, from set-up to the last test
# make check   style and types
# make bench   what a hand-over costs
# make docs    the API reference, from the docstrings: build/docs/relaygen.html
PYTHON ?= python3
BIN = .venv/bin

.PHONY: demo test check bench docs
demo: .venv/local.stamp
	$(BIN)/relaygen run "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. How many clips did Natalia sell altogether in April and May?" --temperature 0

test: .venv/dev.stamp
	$(BIN)/python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder

check: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: .venv/dev.stamp
	$(BIN)/python -m benchmarks.core
	$(BIN)/python -m benchmarks.speeds
	$(BIN)/python -m benchmarks.handover

docs: .venv/dev.stamp
	$(BIN)/python -m scripts.docs

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("relaygen needs Python 3.11 or newer, this is %d.%d: run make PYTHON=python3.12" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv

.venv/local.stamp: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[local]'
	touch $@

.venv/dev.stamp: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[local,serve,ray,eval,dev]'
	touch $@ .venv/local.stamp
