# The environment (.venv) is created once; later commands find its stamp and start immediately.

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

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1|/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "make %-6s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt hashes.txt scripts/environment.py
	@$(PYTHON) scripts/environment.py --venv $(VENV) --extras $(EXTRAS) --stamp $(STAMP)

setup: $(STAMP)  ## create .venv with everything; EXTRAS=ue for a UE only, EXTRAS=bs for a base station only

demo: $(STAMP)  ## decode the bundled problems with a UE and a BS on this machine; DEMO_ARGS='--prompts 20 ...'
	$(BIN)/testbed demo $(DEMO_ARGS)

check: $(STAMP)  ## check formatting, lint, types, import rules, evidence of figures, and the documentation site
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m scripts.evidence --check
	$(SITE)

test: check  ## run the checks and all tests, in one process more than cores, four at most (tests wait a quarter of their time); PYTEST_ARGS='-m "not slow"' selects tests
	$(BIN)/python -m pytest -n $$(($$(nproc) < 4 ? $$(nproc) + 1 : 4)) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

docs: $(STAMP)  ## build the documentation site into build/site; broken links are errors
	$(SITE)

long: $(STAMP)  ## run tests that take minutes each: killed sweeps, worker processes, Ray, the commands of README and docs
	$(BIN)/python -m pytest -m long $(PYTEST_ARGS)

faults: $(STAMP)  ## run the fault matrix on real processes (15 minutes or more): table, and JSON in runs/faults
	$(BIN)/python -m pytest -s -m faults tests/faults $(PYTEST_ARGS)

fuzz: $(STAMP)  ## send 100,000 generated messages (TESTBED_FUZZ says how many, TESTBED_FUZZ_SEED which) to base stations, an agent and an endpoint, and mutated files to commands, then fuzz the wire codec with libFuzzer (if atheris is installed)
	TESTBED_FUZZ=$${TESTBED_FUZZ:-100000} $(BIN)/python -m pytest -s -m fuzz tests/bs/test_hostile.py tests/experiments/agent/test_hostile.py tests/ue/api/test_schema_fuzz.py tests/llama/test_gguf.py tests/test_mutated_files.py
	@if $(BIN)/python -c 'import atheris' 2>/dev/null; then $(BIN)/python -m scripts.fuzz_codec; \
	else echo "atheris is not installed: no coverage-guided run (make setup EXTRAS=all,fuzz)"; fi

soak: $(STAMP)  ## run 32 UEs under faults for half an hour, then overload; SOAK_S=90 shortens it, report in runs/soak.json
	SOAK_OUT=$${SOAK_OUT:-runs/soak.json} $(BIN)/python -m pytest -s -m soak tests/e2e $(PYTEST_ARGS)

bench: $(STAMP)  ## run all benchmarks (benchmarks/)
	@for file in benchmarks/*.py; do echo "$(BIN)/python $$file"; $(BIN)/python "$$file" || exit; done

lock: $(STAMP)  ## resolve pyproject.toml, write constraints.txt and hashes.txt; LOCK_ARGS=--upgrade takes the newest versions
	$(BIN)/python -m scripts.lock $(LOCK_ARGS)

audit: $(STAMP)  ## list installed packages; compare files with their hashes, find files of no package, and compare hashes with the index
	$(BIN)/python -m scripts.audit --files --hashes

wheels: $(STAMP)  ## build the testbed's wheel, and check which packages of a UE have wheels for 64-bit Arm
	$(BIN)/python -m scripts.wheels

clean:  ## remove the environment, caches and builds (not runs)
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
