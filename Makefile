# Each target sets up what it needs; a second call starts at once. PYTHON=... chooses the interpreter of a new .venv.
.DEFAULT_GOAL := test
.PHONY: demo demo-workers test test-distributed test-power test-browser leaks crash resume conformance conformance-scripts mutations lint bench

RECENT := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do $$p $(RECENT) 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
READY := .venv/.hookline-ready
TF_PYTHON ?= .venv-tf/bin/python
TF_SCRIPTS_PYTHON ?= .venv-tf215/bin/python
BROWSER_READY := .venv/.hookline-browser-ready

demo: $(READY)
	@$(BIN)/python examples/digits.py

demo-workers: $(READY)
	@$(BIN)/hookline launch --workers 4 --servers 2 examples/digits_workers.py

# A worker for each core, at most four: each holds JAX, and some a Ray cluster.
test: $(READY)
	@$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadfile

test-distributed: $(READY)
	@$(BIN)/python -m pytest tests/distributed tests/cli -m "slow_distributed or not slow_distributed"

# With PICTURE=docs/tensorboard.png it draws the picture of the docs too.
test-browser: $(BROWSER_READY)
	@HOOKLINE_PICTURE="$(PICTURE)" $(BIN)/python -m pytest tests/browser -m browser

leaks: $(READY)
	@HOOKLINE_SESSIONS=1000 $(BIN)/python -m pytest -s tests/monitored/test_leaks.py

crash: $(READY)
	@cd tests && ../$(BIN)/python -m reliability.crash --kills 1000 --each 20

test-power: $(READY)
	@$(BIN)/python -m pytest -s tests/reliability --every-power-cut

resume: $(READY)
	@HOOKLINE_SCHEDULES=1000 $(BIN)/python -m pytest -s tests/resume/test_schedules.py

conformance: $(READY) $(TF_PYTHON)
	@TF_PYTHON=$(TF_PYTHON) $(BIN)/python -m conformance

# Whole scripts, on the last TensorFlow whose tf.compat.v1 has all that scripts use.
conformance-scripts: $(READY) $(TF_SCRIPTS_PYTHON)
	@TF_PYTHON=$(TF_SCRIPTS_PYTHON) $(BIN)/python -m conformance.v1

mutations: $(READY) $(TF_PYTHON)
	@TF_PYTHON=$(TF_PYTHON) $(BIN)/python -m conformance.mutations

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright

bench: $(READY)
	@set -e; for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python "$$script"; done

$(READY): pyproject.toml constraints.txt
	@if [ ! -x $(BIN)/python ]; then \
		"$(PYTHON)" $(RECENT) 2>/dev/null || { \
			echo "hookline needs Python 3.11 or newer; found none (PYTHON='$(PYTHON)')." \
				"Install one, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }; \
		"$(PYTHON)" -m venv .venv; \
	fi
	@echo "Setting up .venv (once) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	@touch $@

.venv-tf/bin/python:
	@echo "Setting up .venv-tf, with TensorFlow, for make conformance (once) ..."
	@"$(PYTHON)" -m venv .venv-tf.new
	@.venv-tf.new/bin/python -m pip install --quiet --disable-pip-version-check tensorflow-cpu==2.21.0
	@rm -rf .venv-tf && mv .venv-tf.new .venv-tf

.venv-tf215/bin/python:
	@echo "Setting up .venv-tf215, with TensorFlow, for make conformance-scripts (once) ..."
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info >= (3, 12))' || { \
		echo "TensorFlow 2.15 needs Python 3.11: make conformance-scripts PYTHON=/path/to/python3.11" >&2; exit 1; }
	@"$(PYTHON)" -m venv .venv-tf215.new
	@.venv-tf215.new/bin/python -m pip install --quiet --disable-pip-version-check tensorflow-cpu==2.15.1
	@rm -rf .venv-tf215 && mv .venv-tf215.new .venv-tf215

$(BROWSER_READY): $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[browser]' -c constraints.txt
	@touch $@
