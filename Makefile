# A fresh machine needs Python 3.11 or newer and make; everything else is made here, in .venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench clean

help:
	@echo "make demo   predict a measured run, show both, and write a timeline"
	@echo "make test   lint, types, import rules and tests"
	@echo "make lint   the same without the tests"
	@echo "make bench  the benchmarks, as ratios"
	@echo "make clean  remove .venv and everything that the other targets made"

demo: $(VENV)/.installed
	@$(BIN)/python -m validation.demo

test: lint
	$(BIN)/python -m pytest

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.installed-dev
	$(BIN)/python -m pytest tests/benchmarks --benchmark-only

# The stamps below are renewed when pyproject.toml changed. The installation is editable, so a
# change of the code needs no new one.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@echo "installing stepsim into $(VENV)"
	@$(PIP) install --editable .
	@touch $@

# The dev installation holds the plain one: `make demo` after `make test` installs nothing.
$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	@echo "installing stepsim and its development tools into $(VENV)"
	@$(PIP) install --editable '.[dev]'
	@touch $(VENV)/.installed $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "PYTHON must be Python 3.11 or newer" \
	    "(got $$($(PYTHON) --version 2>/dev/null || echo 'nothing that runs') as $(PYTHON));" \
	    "name another: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

clean:
	rm -rf $(VENV) build dist out .mypy_cache .pytest_cache .ruff_cache .import_linter_cache \
	  .hypothesis .benchmarks
	find simulator archs workloads validation tests -name __pycache__ -type d -prune \
	  -exec rm -rf {} +
