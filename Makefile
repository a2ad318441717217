# Everything a contributor or CI runs. `make` alone prints the targets.

PYTHON ?= python3
ARGS ?=
URL ?=
PYTEST_ARGS ?=
# Many tests wait for something: three of them to a core keep it busy.
WORKERS ?= $(shell expr 3 \* $$(nproc 2>/dev/null || echo 2))

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

export PIP_ROOT_USER_ACTION := ignore
MAKEFLAGS += --no-print-directory
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help demo test check pytest servers lint types audit bench screenshots clean rebuild-venv

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.ready-to-run ## Real work, one worker killed midway, nothing lost (a file; else URL=redis://...)
	@$(BIN)/penstock demo $(if $(URL),--url '$(URL)') $(ARGS)

# Each module is compiled once, not in each of the thousands of processes that tests start.
unexport PYTHONDONTWRITEBYTECODE

# No test is retried: what fails now and then is a finding.
test: servers lint ## Set up, lint, types and every test (what CI runs)
	@$(MAKE) -j2 types pytest

check: lint ## Lint, types and the fast tests that need no server
	@$(MAKE) -j2 types pytest CHOSEN='-m "not slow and not system and not server"'

# Beside `types`, which has ended long before it. In a new checkout, one process compiles the tests for all.
pytest: $(VENV)/.ready-to-develop
	@[ -d tests/__pycache__ ] || $(BIN)/python -m pytest -q --collect-only >/dev/null 2>&1 || true
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal $(CHOSEN) $(PYTEST_ARGS)

servers: ## See that the servers which tests start are there; install them where we may
	@.ci/servers

lint: $(VENV)/.ready-to-develop ## Ruff: rules and format
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo "Not formatted. Run: $(BIN)/ruff format ." >&2; exit 1; }

types: $(VENV)/.ready-to-develop ## Mypy (strict) and basedpyright over src, TypeScript over the dashboard's scripts
	@$(BIN)/mypy
	@$(BIN)/basedpyright
	@$(BIN)/python -m tools.script_types

# tests/test_dependencies.py looks at what can be seen offline; known vulnerabilities are in a database elsewhere.
audit: $(VENV)/.ready-to-develop ## Known vulnerabilities of what we depend on (asks the network)
	@$(PIP) check
	@$(PIP) install pip-audit || { echo "No pip-audit to be had here: it needs the network." >&2; exit 1; }
	@$(BIN)/python -m pip_audit --local --skip-editable

bench: $(VENV)/.ready-to-develop ## Measure every store (ARGS="..." goes to the runner)
	@$(BIN)/python -m benchmarks $(ARGS)

screenshots: $(VENV)/.ready-to-develop ## Pictures of all pages of the dashboard; five of them are in docs/images
	@$(BIN)/python -m tools.screenshots $(ARGS)

clean: ## Remove caches and build output (the environment stays: rm -rf .venv)
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

# The environment. Three stamps: it exists; it can run Penstock; it can develop Penstock.

$(VENV)/.ready-to-develop: pyproject.toml $(VENV)/.created
	@echo "Installing Penstock and its development tools into $(VENV) ..." >&2
	@$(PIP) install -e '.[all,dev]'
	@touch $(VENV)/.ready-to-run $@

$(VENV)/.ready-to-run: pyproject.toml $(VENV)/.created
	@echo "Installing Penstock into $(VENV) ..." >&2
	@$(PIP) install -e '.[all]'
	@touch $@

# An environment remembers where it was made. One that was copied here from another checkout would
# run that checkout's code, so it is made anew.
ifneq ($(shell cat $(VENV)/.created 2>/dev/null),$(CURDIR))
$(VENV)/.created: rebuild-venv
endif
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Penstock needs Python 3.11 or later, and '$(PYTHON)' is not. Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@rm -rf $(VENV)
	@if $(PYTHON) -c 'import venv, ensurepip' 2>/dev/null; then $(PYTHON) -m venv $(VENV); \
	elif $(PYTHON) -c 'import virtualenv' 2>/dev/null; then \
	  echo "'$(PYTHON)' has no venv module; using virtualenv instead." >&2; \
	  $(PYTHON) -m virtualenv --quiet $(VENV); \
	else \
	  echo "'$(PYTHON)' has neither venv with ensurepip nor virtualenv. One of these helps:" >&2; \
	  echo "  apt install python3-venv    |    $(PYTHON) -m pip install virtualenv    |    make PYTHON=/another/python3" >&2; \
	  exit 1; \
	fi
	@printf '%s\n' '$(CURDIR)' > $@
