# Everything runs from .venv, which `make setup` builds from requirements.lock alone.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Tried in this order; `make setup PYTHON=/path/to/python` tries that one only.
PYTHON ?= python3.13 python3.12 python3.11 python3
ARGS ?=
PIP_OPTIONS := --quiet --disable-pip-version-check --no-deps --no-compile

# Bytecode is cached also where the environment says not to, as images do: the tests start thousands of processes.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help setup demo test test-all lint docs web bench soak lock clean

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 10

setup: $(READY)  ## build .venv (nothing to do when the lock and pyproject.toml have not changed)
	@:

demo: $(READY)  ## run the demo; options with ARGS="..."
	@$(BIN)/triggerer demo $(ARGS)

# Two more than there are CPUs, since tests often wait for other processes. Each worker has servers of its own (about
# 1.5 GB), so there are not as many as a large machine has CPUs.
WORKERS ?= $(shell cpus=$$(nproc); echo $$((cpus < 2 ? cpus + 2 : 4)))

# Lint runs beside the tests. What it finds is shown as soon as it is known, and again at the end, where little is shown
# otherwise: the failures of the tests are to be among the last lines.
test: $(READY)  ## checks, and the tests of what a user's path crosses; options with ARGS="..."
	@mkdir -p .cache; \
	{ $(MAKE) --no-print-directory lint >.cache/lint.log 2>&1 || { cat .cache/lint.log; false; }; } & lint=$$!; \
	status=0; \
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not full and not soak" \
	  $$($(BIN)/python -m tests.tiers) $(ARGS) || status=$$?; \
	if wait $$lint; then echo "lint: passed (.cache/lint.log)"; else status=$$?; cat .cache/lint.log; fi; \
	exit $$status

# One worker more than in `make test`, since more of these tests wait.
test-all: $(READY)  ## the tests that `make test` leaves out, without the long proofs; options with ARGS="..."
	$(BIN)/python -m pytest -n $$(( $(WORKERS) + 1 )) --dist worksteal -m "full and not soak" $(ARGS)

lint: $(READY)  ## style, types and import rules only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(READY)  ## write the generated pages of docs/ again
	$(BIN)/python -m tests.reference
	$(BIN)/python -m tests.rules

# The built files are committed, so that a machine without node has the page. The lock names no registry's host.
web:  ## build the page of the API again, byte for byte (needs node 20)
	cd triggerer/api/web && npm ci --no-audit --no-fund --ignore-scripts --loglevel=error && npm run --silent check && npm run --silent build

bench: $(READY)  ## measure; options with ARGS="..."
	@$(BIN)/python -m tests.benchmarks $(ARGS)

soak: $(READY)  ## the long proofs
	$(BIN)/python -m pytest -m soak $(ARGS)

# --no-header and the --no-emit options keep paths and hosts out of the file.
lock:  ## resolve requirements.lock again from pyproject.toml (needs uv on PATH); ARGS="--upgrade"
	uv pip compile pyproject.toml --all-extras --group dev --universal --python-version 3.11 --generate-hashes \
	  --no-header --no-emit-index-url --no-emit-find-links --quiet -o requirements.lock $(ARGS)

clean:  ## remove .venv and caches
	rm -rf $(VENV) .cache .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

define FIND_PYTHON
found=; lacks_pip=; \
for candidate in $(PYTHON); do \
  "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
  if "$$candidate" -c 'import ensurepip, venv' 2>/dev/null; then found=$$candidate; break; fi; \
  lacks_pip=$$candidate; \
done; \
if [ -z "$$found" ] && [ -n "$$lacks_pip" ]; then \
  echo "make setup: $$lacks_pip cannot make virtual environments: its ensurepip module is missing." >&2; \
  echo "  On Debian and Ubuntu: sudo apt-get install python3-venv    Then run make setup again." >&2; \
  exit 1; \
fi; \
if [ -z "$$found" ]; then \
  echo "make setup: Python 3.11 or newer is needed; tried: $(PYTHON)." >&2; \
  echo "  Install one (Debian 12: sudo apt-get install python3 python3-venv)," >&2; \
  echo "  or name the one you have: make setup PYTHON=/path/to/python3.12" >&2; \
  exit 1; \
fi
endef

# An environment whose interpreter is gone or too old is built again; any other is brought up to date in place.
# No build isolation for our own package: hatchling comes from the lock, with its hash. The lock is complete, so pip resolves
# nothing. Bytecode is made by all CPUs at once; the packages' own tests, a third of it all, need none. What cannot be compiled is shown, and harms nobody.
# One shell for all steps, so that the last line can say how long they took.
$(READY): requirements.lock pyproject.toml
	@if $(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	  echo "make setup: bringing $(VENV) up to date"; \
	else \
	  $(FIND_PYTHON); \
	  echo "make setup: building $(VENV) with $$found ($$($$found --version))"; \
	  rm -rf $(VENV); "$$found" -m venv $(VENV); \
	fi; \
	echo "make setup: installing the packages of requirements.lock, with their hashes (up to $$(grep -c '^[^ #].*==' requirements.lock))"; \
	sed -n '/^pip==/,/[^\]$$/p' requirements.lock >$(VENV)/pip.lock; \
	$(BIN)/python -m pip install $(PIP_OPTIONS) --require-hashes -r $(VENV)/pip.lock; \
	$(BIN)/python -m pip install $(PIP_OPTIONS) --require-hashes -r requirements.lock; \
	echo "make setup: installing triggerer, and compiling"; \
	$(BIN)/python -m pip install $(PIP_OPTIONS) --no-build-isolation -e .; \
	$(BIN)/python -m compileall -q -j 0 -x 'site-packages/.*/(tests|testing)/' $(VENV)/lib || true; \
	touch $@; \
	echo "make setup: done in $$SECONDS s; next: make demo, or $(BIN)/triggerer --help"
