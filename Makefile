# The environment is made once (.venv); a later command finds its stamp and starts at once.

PYTHON ?= python3
EXTRAS ?= all
DEMO_ARGS ?=
PYTEST_ARGS ?=
LOCK_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-$(EXTRAS)
SITE := $(BIN)/sphinx-build -q -n -W --keep-going -j auto -c docs . build/site

.DEFAULT_GOAL := help
.PHONY: help setup demo test check docs long faults fuzz soak bench lock audit wheels clean

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1|/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "make %-6s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt scripts/environment.py
	@$(PYTHON) scripts/environment.py --venv $(VENV) --extras $(EXTRAS) --stamp $(STAMP)

setup: $(STAMP)  ## make .venv with everything; EXTRAS=ue makes that of a drafting device, EXTRAS=bs that of a base station

demo: $(STAMP)  ## decode the bundled problems with a UE and a BS on this machine; DEMO_ARGS='--prompts 20 ...'
	$(BIN)/testbed demo $(DEMO_ARGS)

check: $(STAMP)  ## formatting, lint, types, the architecture's import rules, the documentation site
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(SITE)

test: check  ## the same checks, then all tests; PYTEST_ARGS='-m "not slow"' runs some
	$(BIN)/python -m pytest $(PYTEST_ARGS)

docs: $(STAMP)  ## build the documentation site into build/site; a broken link is an error
	$(SITE)

long: $(STAMP)  ## tests that take minutes each: sweeps killed, in workers, on Ray
	$(BIN)/python -m pytest -m long $(PYTEST_ARGS)

faults: $(STAMP)  ## the fault matrix on real processes, a quarter of an hour or more: table, and JSON in runs/faults
	$(BIN)/python -m pytest -s -m faults tests/faults $(PYTEST_ARGS)

fuzz: $(STAMP)  ## 100,000 hostile messages to a base station, then the wire codec under libFuzzer (where atheris is there)
	TESTBED_FUZZ=100000 $(BIN)/python -m pytest -s -m fuzz tests/bs/test_hostile.py tests/ue/llama/test_gguf.py
	@if $(BIN)/python -c 'import atheris' 2>/dev/null; then $(BIN)/python -m scripts.fuzz_codec; \
	else echo "no atheris: the coverage-guided run is left out (make setup EXTRAS=all,fuzz)"; fi

soak: $(STAMP)  ## 32 UEs under faults for half an hour, and twice too much load; SOAK_S=90 is shorter, the report is runs/soak.json
	SOAK_OUT=$${SOAK_OUT:-runs/soak.json} $(BIN)/python -m pytest -s -m soak tests/e2e $(PYTEST_ARGS)

bench: $(STAMP)  ## what is timed (benchmarks/)
	@for file in benchmarks/*.py; do echo "$(BIN)/python $$file"; $(BIN)/python "$$file" || exit; done

lock: $(STAMP)  ## resolve pyproject.toml and write constraints.txt; LOCK_ARGS=--upgrade takes the newest of everything
	$(BIN)/python -m scripts.lock $(LOCK_ARGS)

audit: $(STAMP)  ## what is installed: versions, licences, who needs it; files and pins held against their hashes
	$(BIN)/python -m scripts.audit --files --hashes

wheels: $(STAMP)  ## build the testbed's wheel, and ask which packages of a UE come as wheels for 64-bit Arm
	$(BIN)/python -m scripts.wheels

clean:  ## remove the environment, caches and builds (not runs)
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
