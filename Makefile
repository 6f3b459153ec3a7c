# The environment is made once (.venv); a later command finds its stamp and starts at once.

PYTHON ?= python3
EXTRAS ?= all
DEMO_ARGS ?=
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-$(EXTRAS)

.DEFAULT_GOAL := help
.PHONY: help setup demo test check long fuzz bench lock clean

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1|/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "make %-6s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt scripts/environment.py
	@$(PYTHON) scripts/environment.py --venv $(VENV) --extras $(EXTRAS) --stamp $(STAMP)

setup: $(STAMP)  ## make .venv with everything; EXTRAS=ue makes that of a drafting device, EXTRAS=bs that of a base station

demo: $(STAMP)  ## decode the bundled problems with a UE and a BS on this machine; DEMO_ARGS='--prompts 20 ...'
	$(BIN)/testbed demo $(DEMO_ARGS)

check: $(STAMP)  ## formatting, lint, types, the architecture's import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

test: check  ## the same checks, then all tests; PYTEST_ARGS='-m "not slow"' runs some
	$(BIN)/python -m pytest $(PYTEST_ARGS)

long: $(STAMP)  ## tests that take minutes each: sweeps killed, in workers, on Ray
	$(BIN)/python -m pytest -m long $(PYTEST_ARGS)

fuzz: $(STAMP)  ## 100,000 hostile messages to a base station, then the wire codec under libFuzzer (where atheris is there)
	TESTBED_FUZZ=100000 $(BIN)/python -m pytest -s -m fuzz tests/bs/test_hostile.py
	@if $(BIN)/python -c 'import atheris' 2>/dev/null; then $(BIN)/python -m scripts.fuzz_codec; \
	else echo "no atheris: the coverage-guided run is left out (pip install 'atheris>=3.0')"; fi

bench: $(STAMP)  ## what is timed (benchmarks/)
	@for file in benchmarks/*.py; do echo "$(BIN)/python $$file"; $(BIN)/python "$$file" || exit; done

lock: $(STAMP)  ## resolve pyproject.toml anew and write constraints.txt
	$(BIN)/python -m scripts.lock

clean:  ## remove the environment, caches and builds (not runs)
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
