# The one list of entry points. A fresh Debian 12 with make, git, apt and Python 3.11 is enough:
# the first target that needs something sets it up, and the stamps in $(VENV) keep it from doing so again.
SHELL := /bin/bash
PYTHON ?= /usr/bin/python3
VENV ?= .venv
PREFIX ?= /usr/local
CONTRACT := .contract
BIN := $(VENV)/bin
PIP := $(BIN)/pip install -qq --disable-pip-version-check
IN_PARALLEL := -n 4 --dist=loadscope
SCRIPT_FOLDERS := .ci scripts tests/support examples
RUN_PACKAGES := python3 python3-venv python3-dev gcc pkg-config libsystemd-dev
TEST_PACKAGES := $(RUN_PACKAGES) tmux strace procps util-linux locales systemd dbus dbus-user-session libpam-systemd passwd \
	shellcheck man-db groff-base
.NOTPARALLEL:
.PHONY: help run test test-long test-contract test-page check lint bench man install clean

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile

run: $(VENV)/.run ## show the poller at its main job, on its built-in defaults
	@$(BIN)/python scripts/demo.py

test: lint ## lint, then run all tests, of some sweeps a sample; ARGS="-k name" narrows them
	@$(BIN)/pytest $(IN_PARALLEL) $(ARGS)

test-long: lint ## the same with every sweep in full, which takes hours
	@THE_LOOP_FULL_SWEEP=1 $(BIN)/pytest $(IN_PARALLEL) $(ARGS)

test-contract: $(VENV)/.dev $(CONTRACT)/.fetched ## hold our GitHub fake and client against what others published of GitHub
	@$(BIN)/pytest tests/published $(ARGS)

test-page: $(VENV)/.dev ## look at the page of `the-loop report` in a headless browser
	@scripts/debian-packages chromium fonts-dejavu-core
	@$(BIN)/pytest tests/browser $(ARGS)

check: lint ## lint, then the quick tests
	@$(BIN)/pytest $(IN_PARALLEL) -m "not crash and not slow and not systemd" $(ARGS)

lint: $(VENV)/.dev ## check style, formatting, types, shell scripts and spelling
	@$(BIN)/ruff check && $(BIN)/ruff format --check && $(BIN)/mypy
	@shellcheck $$(grep -rlI '^#!.*sh$$' $(SCRIPT_FOLDERS))
	@$(BIN)/codespell . .ci

bench: $(VENV)/.dev ## measure what the README claims
	@for name in replay scale service delivery lives ended growth; do \
		echo "== $$name" && $(BIN)/python benchmarks/$$name.py || exit 1; done

man: $(VENV)/.run ## write the manual pages into build/man
	@$(BIN)/python scripts/man_pages.py build/man

install: $(VENV)/.run ## put units, catalog, manual pages, completion, … below DESTDIR, for a command in PREFIX/bin
	@$(BIN)/python scripts/install_files.py "$(DESTDIR)" "$(PREFIX)"

clean: ## remove whatever the targets above made
	@rm -rf $(VENV) $(CONTRACT) .*_cache .hypothesis .coverage* build dist src/*.egg-info
	@find src tests scripts -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# $(call set_up,DEBIAN PACKAGES,REQUIREMENTS FILE)
# No build isolation: what comes as source only is then built by the pinned setuptools, not by today's newest.
# The venv is tested by its pip, since a venv made without python3-venv is left half done.
define set_up
@scripts/debian-packages $(1)
@echo "setting up $(VENV)"; test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
@$(PIP) --require-hashes -r <(sed -n '/^setuptools==/,/^ *#/p' $(2))
@$(PIP) --require-hashes --no-build-isolation --use-pep517 -r $(2)
@$(PIP) --no-build-isolation --no-deps -e .
@touch $(VENV)/.run $@
endef

$(VENV)/.run: requirements.txt pyproject.toml
	$(call set_up,$(RUN_PACKAGES),$<)

$(VENV)/.dev: requirements-dev.txt pyproject.toml  # a superset of requirements.txt
	$(call set_up,$(TEST_PACKAGES),$<)

$(CONTRACT)/.fetched: scripts/contract-files tests/published/package.json tests/published/package-lock.json
	@scripts/contract-files $(CONTRACT)
	@touch $@
