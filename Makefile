# Each target sets up what it needs; a second call starts at once.
.DEFAULT_GOAL := help
.PHONY: help docs test-docs demo demo-text demo-in-step demo-workers test test-tf1 test-all test-oldest test-middle test-versions test-distributed test-in-step test-in-step-all test-power test-browser test-sinks test-install test-notebook leaks crash resume conformance conformance-scripts mutations lint bench bench-quick bench-peers bench-more bench-interrupted compare

# The first of these Pythons that is there. One that pyenv holds is found also where its shims do not hand it out.
RECENT := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
find_python = $(shell for version in $(1); do \
	for python in python$$version "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$$version.*/bin/python; do \
		"$$python" $(RECENT) 2>/dev/null && echo "$$python" && exit; done; done)
# Of a new environment: make test PYTHON=/path/to/python3.12 VENV=.venv-3.12
PYTHON ?= $(call find_python,3.13 3.12 3.11 3)
OLDEST_PYTHON ?= $(call find_python,3.11)
MIDDLE_PYTHON ?= $(call find_python,3.12)
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.has-dev
PYTEST := $(BIN)/python -m pytest
TF_PYTHON ?= .venv-tf/bin/python
TF_SCRIPTS_PYTHON ?= .venv-tf215/bin/python
PEERS_PYTHON ?= .venv-peers/bin/python
# Prints the constraints of a Python.
PINS := -c 'import sys; print("constraints-oldest.txt" if sys.version_info < (3, 12) else "constraints.txt")'
PIP_INSTALL := python -m pip install --quiet --disable-pip-version-check

help: ## lists the targets
	@echo "make TARGET [PYTHON=/path/to/python] [VENV=folder], where TARGET is one of"
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## /  \1\t/p' Makefile | expand -t 24

# What is compiled once is read from the disk the next time.
demo demo-text demo-in-step demo-workers: export JAX_COMPILATION_CACHE_DIR ?= $(abspath $(VENV))/jax-cache
demo demo-text demo-in-step demo-workers: export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS ?= 0

demo: $(VENV)/.has-demo ## trains a network on handwritten digits, in less than a minute
	@$(BIN)/python examples/digits.py

demo-text: $(VENV)/.has-examples ## trains a language model
	@$(BIN)/python examples/text.py

demo-in-step: $(VENV)/.has-demo ## trains the digits in two SPMD processes
	@$(BIN)/hookline launch --spmd --processes 2 examples/loop.py --logdir runs/spmd

demo-workers: $(VENV)/.has-demo,ray ## trains the digits with four workers and two parameter servers
	@$(BIN)/hookline launch --workers 4 --servers 2 examples/digits_workers.py

# conftest.py says how many workers. One that is done takes tests from another: none waits for the longest file.
IN_PARALLEL := -n auto --dist worksteal

# With RECORD=1, what ran goes into the table of the README.
REPORT := $(VENV)/report.xml
tested = @$(if $(RECORD),rm -f $(REPORT);) $(PYTEST) $(IN_PARALLEL) $(if $(RECORD),--junitxml=$(REPORT)) $(1)$(if $(RECORD),; \
	status=$$?; $(BIN)/python -m tests.record $@ $(REPORT) && exit $$status)

# Tests start hundreds of processes, which else compile all modules of hookline again.
test test-tf1 test-all: export PYTHONDONTWRITEBYTECODE :=

# Of most of what is long a short version. XLA leaves out optimizations that do not pay for a few runs;
# tests/test_rounding.py has it compile as for users, as does test-all.
test test-tf1: export JAX_DISABLE_MOST_OPTIMIZATIONS := 1
SHORT := -m "not slow_distributed and not browser and not campaign and not rounding"
test: $(READY) ## the tests, in minutes
	$(call tested,$(SHORT))

test-tf1: $(READY) ## those of TensorFlow 1.x's names alone
	@$(PYTEST) $(IN_PARALLEL) tf1/tests tf1/src $(SHORT)

# Each campaign as long as it is, and ten times the examples of hypothesis.
test-all: $(READY) ## all tests but those below, in three quarters of an hour
	$(call tested,--hypothesis-profile=full -m "not slow_distributed and not browser")

test-oldest: ## make test with the oldest packages that hookline supports, on Python 3.11
	@test -n "$(OLDEST_PYTHON)" || { echo "$@ needs Python 3.11: make $@ OLDEST_PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(MAKE) --no-print-directory test VENV=.venv-oldest PYTHON="$(OLDEST_PYTHON)"

test-middle: ## make test with the newest packages on Python 3.12
	@test -n "$(MIDDLE_PYTHON)" || { echo "$@ needs Python 3.12: make $@ MIDDLE_PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(MAKE) --no-print-directory test VENV=.venv-3.12 PYTHON="$(MIDDLE_PYTHON)"

# Both interpreters read and write the run of one folder.
test-versions: $(READY) ## a run saved on the oldest packages goes on on the newest, and back
	@test -n "$(OLDEST_PYTHON)" || { echo "$@ needs Python 3.11: make $@ OLDEST_PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(MAKE) --no-print-directory .venv-oldest/.has-dev VENV=.venv-oldest PYTHON="$(OLDEST_PYTHON)"
	@HOOKLINE_OTHER_PYTHON=.venv-oldest/bin/python $(PYTEST) -s tests/versions

test-distributed: $(READY) ## jobs of many processes, with parameter servers and in SPMD
	@$(PYTEST) tests/distributed tests/cli -m "slow_distributed or not slow_distributed"

test-in-step: $(READY) ## 100,000 simulated schedules of SPMD processes, 1,000 real ones
	@HOOKLINE_SCHEDULES=100000 HOOKLINE_REAL_SCHEDULES=1000 $(PYTEST) tests/coordination tests/monitored/test_spmd.py \
		tests/monitored/test_schedules_spmd.py

test-in-step-all: $(READY) ## twenty SPMD jobs that are killed, stopped or ended ten times each
	@HOOKLINE_KILLED_JOBS=20 HOOKLINE_KILLS=10 $(PYTEST) -s tests/distributed/test_spmd_kills.py -m campaign

# Warnings are errors. The site needs no network, neither here nor in a browser.
SITE := build/docs
docs: $(VENV)/.has-dev,docs ## the site, in build/docs/html
	@mkdir -p $(SITE)/source
	@$(BIN)/python -m sphinx --quiet --nitpicky --fail-on-warning -c docs -d $(SITE)/doctrees $(SITE)/source $(SITE)/html
	@echo "Wrote $(SITE)/html/README.html"

test-docs: docs ## the site, its links and its reference
	@HOOKLINE_SITE=$(abspath $(SITE)/html) $(PYTEST) tests/test_site.py

# With PICTURE=docs/tensorboard.png it draws the picture of the docs too.
test-browser: $(VENV)/.has-dev,browser docs ## TensorBoard, a report and the site in headless Chromium
	@HOOKLINE_PICTURE="$(PICTURE)" HOOKLINE_SITE=$(abspath $(SITE)/html) $(PYTEST) tests/browser -m browser

test-sinks: $(VENV)/.has-dev,wandb,mlflow ## the clients of Weights & Biases and of MLflow, offline
	@$(PYTEST) tests/sinks src/hookline/sinks

PYTHONS ?= $(foreach version,3.11 3.12 3.13,$(call find_python,$(version)))
test-install: $(VENV)/.has-dev,install ## both packages as users install them, in an empty environment of each Python
	@HOOKLINE_PYTHONS="$(PYTHONS)" $(PYTEST) -s tests/test_install.py

test-notebook: $(READY) ## a real Jupyter kernel
	@$(PYTEST) tests/notebook -m "campaign or not campaign"

leaks: $(READY) ## 1,000 rounds of sessions: no thread, no file is left
	@HOOKLINE_SESSIONS=1000 $(PYTEST) -s tests/monitored/test_leaks.py

crash: $(READY) ## 1,000 kills of saving processes
	@cd tests && ../$(BIN)/python -m reliability.crash --kills 1000 --each 20

test-power: $(READY) ## power cuts at every point of a save
	@$(PYTEST) -s tests/reliability --every-power-cut -m "campaign or not campaign"

resume: $(READY) ## 1,000 schedules of failures: the same bits
	@HOOKLINE_SCHEDULES=1000 $(PYTEST) -s tests/resume/test_schedules.py

SUITES := --suites conformance tf1.conformance
conformance: $(READY) $(TF_PYTHON) ## the same scenarios on TensorFlow and on hookline
	@TF_PYTHON=$(TF_PYTHON) $(BIN)/python -m conformance $(SUITES)

# Whole scripts, on the last TensorFlow whose tf.compat.v1 has all that scripts use.
conformance-scripts: $(READY) $(TF_SCRIPTS_PYTHON) ## whole scripts on TensorFlow 2.15 and on hookline
	@TF_PYTHON=$(TF_SCRIPTS_PYTHON) $(BIN)/python -m tf1.conformance.whole_scripts

mutations: $(READY) $(TF_PYTHON) ## whether the conformance tests find planted errors
	@TF_PYTHON=$(TF_PYTHON) $(BIN)/python -m conformance.mutations $(SUITES)

lint: $(READY) ## style and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright

bench: $(VENV)/.has-dev,bench ## what a step costs; writes the figures into the docs
	@TF_PYTHON=$(TF_PYTHON) $(BIN)/python benchmarks/bench.py --results docs/bench
	@$(BIN)/python benchmarks/growth.py --results docs/bench
	@$(BIN)/python benchmarks/firing.py --results docs/bench
	@$(BIN)/python benchmarks/several_steps.py --results docs/bench
	@$(BIN)/python benchmarks/checkpoint.py --results docs/bench
	@$(BIN)/python benchmarks/save_steps.py --results docs/bench
	@$(BIN)/python benchmarks/publish.py

bench-quick: $(READY) ## a short bench, printed
	@TF_PYTHON=$(TF_PYTHON) $(BIN)/python benchmarks/bench.py --rounds 5 --steps 300 --long-rounds 5 --long-steps 100 \
		--import-rounds 0

bench-peers: $(TF_PYTHON) ## sets up TensorFlow for the benchmarks

bench-more: $(READY) ## benchmarks of data, summaries, large models, workers
	@set -e; for name in data_iterator gradual_start large_model loop parameter_server summary_writer spmd_scale; do \
		echo "== $$name"; TF_PYTHON=$(TF_PYTHON) $(BIN)/python benchmarks/$$name.py; done
	@echo "== tf1_scripts"; TF_PYTHON=$(TF_PYTHON) PYTHONPATH=benchmarks $(BIN)/python tf1/benchmarks/tf1_scripts.py

INTERRUPTED := $(foreach name,orbax keras lightning transformers,.venv-interrupted-$(name)/bin/python)
bench-interrupted: $(VENV)/.has-dev,bench $(INTERRUPTED) ## 20 interruptions of five frameworks, in half an hour
	@$(BIN)/python benchmarks/interrupted.py --results docs/bench
	@$(BIN)/python benchmarks/publish.py

# Skips with a word where the peers have no environment: make .venv-peers/bin/python sets one up.
compare: $(READY) ## Keras, Lightning and clu beside hookline
	@$(BIN)/python benchmarks/peers.py --python "$(PEERS_PYTHON)"

# The environment, with the packages of these extras; tests need hookline-tf1 too. Python 3.11 gets the oldest ones: the newest need 3.12.
$(VENV)/.has-%: pyproject.toml constraints.txt constraints-oldest.txt
	@if [ ! -x $(BIN)/python ]; then \
		"$(PYTHON)" $(RECENT) 2>/dev/null || { \
			echo "hookline needs Python 3.11 or newer, best 3.13; found none (PYTHON='$(PYTHON)')." \
				"Install one, or name it: make test PYTHON=/path/to/python3.13" >&2; exit 1; }; \
		"$(PYTHON)" -m venv $(VENV); \
	fi
	@pins=$$($(BIN)/python $(PINS)); \
	echo "Setting up $(VENV) with $$($(BIN)/python --version) and $$(grep ^jax== $$pins) (once) ..."; \
	if [ $$pins != constraints.txt ] && [ $(VENV) != .venv-oldest ]; then \
		echo "Newer packages need Python 3.12 or 3.13: remove $(VENV), and name one: make test PYTHON=/path/to/python3.13"; fi; \
	$(BIN)/$(PIP_INSTALL) -e '.[$*]' $(if $(findstring dev,$*),-e ./tf1) -c $$pins
	@touch $@

.venv-tf/bin/python:
	@echo "Setting up .venv-tf, with TensorFlow, for make conformance and make bench (once) ..."
	@"$(PYTHON)" -m venv .venv-tf.new
	@.venv-tf.new/bin/$(PIP_INSTALL) tensorflow-cpu==2.21.0
	@rm -rf .venv-tf && mv .venv-tf.new .venv-tf

.venv-peers/bin/python:
	@echo "Setting up .venv-peers, with Keras, Lightning and clu, for make compare (once) ..."
	@"$(PYTHON)" -m venv .venv-peers.new
	@.venv-peers.new/bin/$(PIP_INSTALL) -r benchmarks/peers/requirements.txt -e '.[flax]' \
		-c $$(.venv-peers.new/bin/python $(PINS))
	@rm -rf .venv-peers && mv .venv-peers.new .venv-peers

# PyTorch without CUDA is not to be had for every Python.
.venv-interrupted-lightning/bin/python .venv-interrupted-transformers/bin/python: PYTHON = $(or $(OLDEST_PYTHON),$(call find_python,3.12 3.13))
.venv-interrupted-%/bin/python:
	@echo "Setting up .venv-interrupted-$*, for make bench-interrupted (once) ..."
	@"$(PYTHON)" -m venv .venv-interrupted-$*.new
	@.venv-interrupted-$*.new/bin/$(PIP_INSTALL) -r benchmarks/interrupted/requirements-$*.txt
	@rm -rf .venv-interrupted-$* && mv .venv-interrupted-$*.new .venv-interrupted-$*

.venv-tf215/bin/python:
	@echo "Setting up .venv-tf215, with TensorFlow, for make conformance-scripts (once) ..."
	@"$(OLDEST_PYTHON)" -m venv .venv-tf215.new || { \
		echo "TensorFlow 2.15 needs Python 3.11, and none was found." >&2; exit 1; }
	@.venv-tf215.new/bin/$(PIP_INSTALL) tensorflow-cpu==2.15.1
	@rm -rf .venv-tf215 && mv .venv-tf215.new .venv-tf215
