# `make run` and `make test` do all their own set-up: they need Python 3.11 or newer with pip and venv, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test test-all lint docs bench-walks bench-train bench-sgpm torture fuzz audit clean help

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

run: $(VENV)/ready  ## train on the embedded graph, beside two yardsticks, and write a report
	@$(BIN)/tokenphormer train debian --compare

test: lint  ## every check and every test but the slow ones
	$(BIN)/pytest -n 2 --dist loadscope

test-all: lint  ## the slow tests too
	$(BIN)/pytest -m ''

lint: $(VENV)/ready  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/ready  ## the site, into docs/_build
	$(BIN)/python -m sphinx -W --keep-going -q docs docs/_build
	@echo docs/_build/index.html

bench-walks: $(VENV)/ready  ## the walk engine beside its peers
	$(BIN)/python -m benchmarks.bench_walks $(ARGS)

$(VENV)/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

bench-train: $(VENV)/ready  ## tokens and training: time and memory (add ARGS="--device cuda" on a GPU)
	$(BIN)/python -m benchmarks.bench_train $(ARGS)

torture: $(VENV)/ready  ## kill every command a hundred times at random moments, and compare (ARGS="--kills 20 --seed 1")
	$(BIN)/python scripts/torture.py $(ARGS)

fuzz: $(VENV)/ready  ## 100,000 damaged inputs to everything that reads some (ARGS="--inputs 1000 --targets rows")
	$(BIN)/python scripts/fuzz.py $(ARGS)

audit: $(VENV)/ready  ## known vulnerabilities of what is installed; says so if the database cannot be reached
	$(BIN)/python scripts/audit.py $(ARGS) || test $$? -eq 77

bench-sgpm: $(VENV)/ready  ## pre-training: time and memory (add ARGS="--device cuda" on a GPU)
	$(BIN)/python -m benchmarks.bench_sgpm $(ARGS)

clean:  ## remove the environment and all caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -exec rm -rf {} +
