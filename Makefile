# Each target sets up what it needs; a second call starts at once. PYTHON=... chooses the interpreter of a new .venv.
.DEFAULT_GOAL := test
.PHONY: demo demo-text demo-in-step demo-workers test test-all test-distributed test-in-step test-in-step-all test-power test-browser test-sinks test-notebook leaks crash resume conformance conformance-scripts mutations lint bench bench-quick bench-peers bench-more compare

RECENT := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do $$p $(RECENT) 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
READY := .venv/.hookline-ready
PYTEST := $(BIN)/python -m pytest
TF_PYTHON ?= .venv-tf/bin/python
PEERS_PYTHON ?= .venv-peers/bin/python
BENCH_READY := .venv/.hookline-bench-ready
TF_SCRIPTS_PYTHON ?= .venv-tf215/bin/python
BROWSER_READY := .venv/.hookline-browser-ready
SINKS_READY := .venv/.hookline-sinks-ready

# What is compiled once is read from the disk the next time.
demo demo-text demo-in-step demo-workers: export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.venv/jax-cache
demo demo-text demo-in-step demo-workers: export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS ?= 0

demo: $(READY)
	@$(BIN)/python examples/digits.py

demo-text: $(READY)
	@$(BIN)/python examples/text.py

demo-in-step: $(READY)
	@$(BIN)/hookline launch --in-step --processes 2 examples/loop.py --logdir runs/in-step

demo-workers: $(READY)
	@$(BIN)/hookline launch --workers 4 --servers 2 examples/digits_workers.py

# conftest.py says how many workers. One that is done takes tests from another: none waits for the longest file.
IN_PARALLEL := -n auto --dist worksteal

# Tests start hundreds of processes, which else compile all modules of hookline anew.
test test-all: export PYTHONDONTWRITEBYTECODE :=

# In minutes: of most of what is long a short version. XLA takes a third of its usual time to compile, without
# optimizations that do not pay for a few runs; tests/test_rounding.py has it compile as for users.
test: export XLA_FLAGS := --xla_cpu_use_fusion_emitters=false
test: export JAX_DISABLE_MOST_OPTIMIZATIONS := 1
test: $(READY)
	@$(PYTEST) $(IN_PARALLEL) -m "not slow_distributed and not browser and not campaign and not rounding"

# Everything: each campaign as long as it is, and ten times the examples of hypothesis.
test-all: $(READY)
	@$(PYTEST) $(IN_PARALLEL) --hypothesis-profile=full -m "not slow_distributed and not browser"

test-distributed: $(READY)
	@$(PYTEST) tests/distributed tests/cli -m "slow_distributed or not slow_distributed"

# What processes in step agree on: 100,000 simulated schedules, and 1,000 with real processes.
test-in-step: $(READY)
	@HOOKLINE_SCHEDULES=100000 HOOKLINE_REAL_SCHEDULES=1000 $(PYTEST) tests/coordination tests/monitored/test_in_step.py \
		tests/monitored/test_schedules_in_step.py

# Twenty jobs of two processes, of which one is killed, stopped or asked to end ten times.
test-in-step-all: $(READY)
	@HOOKLINE_KILLED_JOBS=20 HOOKLINE_KILLS=10 $(PYTEST) -s tests/distributed/test_in_step_kills.py -m campaign

# With PICTURE=docs/tensorboard.png it draws the picture of the docs too.
test-browser: $(BROWSER_READY)
	@HOOKLINE_PICTURE="$(PICTURE)" $(PYTEST) tests/browser -m browser

# With the clients of Weights & Biases and of MLflow, offline.
test-sinks: $(SINKS_READY)
	@$(PYTEST) tests/sinks src/hookline/sinks

# In a real Jupyter kernel: interrupts at any moment, cells run twenty times, the example.
test-notebook: $(READY)
	@$(PYTEST) tests/notebook -m "campaign or not campaign"

leaks: $(READY)
	@HOOKLINE_SESSIONS=1000 $(PYTEST) -s tests/monitored/test_leaks.py

crash: $(READY)
	@cd tests && ../$(BIN)/python -m reliability.crash --kills 1000 --each 20

test-power: $(READY)
	@$(PYTEST) -s tests/reliability --every-power-cut -m "campaign or not campaign"

resume: $(READY)
	@HOOKLINE_SCHEDULES=1000 $(PYTEST) -s tests/resume/test_schedules.py

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

# What a step costs, and how that grows; the figures go into the docs.
bench: $(BENCH_READY)
	@TF_PYTHON=$(TF_PYTHON) $(BIN)/python benchmarks/bench.py --results docs/bench
	@$(BIN)/python benchmarks/growth.py --results docs/bench
	@$(BIN)/python benchmarks/firing.py --results docs/bench
	@$(BIN)/python benchmarks/several_steps.py --results docs/bench
	@$(BIN)/python benchmarks/publish.py

bench-quick: $(READY)
	@TF_PYTHON=$(TF_PYTHON) $(BIN)/python benchmarks/bench.py --rounds 5 --steps 300 --long-rounds 5 --long-steps 100 \
		--import-rounds 0

bench-peers: $(TF_PYTHON)

# The other benchmarks: large models, summaries, iterators, workers. Each says what it measures.
bench-more: $(READY)
	@set -e; for name in data_iterator gradual_start large_model loop parameter_server summary_writer tf1_scripts in_step_scale; do \
		echo "== $$name"; TF_PYTHON=$(TF_PYTHON) $(BIN)/python benchmarks/$$name.py; done

# Skips with a word where the peers have no environment: make .venv-peers/bin/python sets one up.
compare: $(READY)
	@$(BIN)/python benchmarks/peers.py --python "$(PEERS_PYTHON)"

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
	@echo "Setting up .venv-tf, with TensorFlow, for make conformance and make bench (once) ..."
	@"$(PYTHON)" -m venv .venv-tf.new
	@.venv-tf.new/bin/python -m pip install --quiet --disable-pip-version-check tensorflow-cpu==2.21.0
	@rm -rf .venv-tf && mv .venv-tf.new .venv-tf

.venv-peers/bin/python:
	@echo "Setting up .venv-peers, with Keras, Lightning and clu, for make compare (once) ..."
	@"$(PYTHON)" -m venv .venv-peers.new
	@.venv-peers.new/bin/python -m pip install --quiet --disable-pip-version-check \
		-r benchmarks/peers/requirements.txt -e '.[flax]' -c constraints.txt
	@rm -rf .venv-peers && mv .venv-peers.new .venv-peers

$(BENCH_READY): $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[bench]' -c constraints.txt
	@touch $@

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

$(SINKS_READY): $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[wandb,mlflow]' -c constraints.txt
	@touch $@
