# The verbs a person types. A machine needs make and Python 3.11 or newer; the first verb makes the rest.
#
#   PYTHON=python3.13     interpreter for the virtual environment
#   VENV=.venv            where the virtual environment is
#   DATABASE_URL=…        use this PostgreSQL and start none
#   EMBEDDED=--no-fsync   options for the embedded PostgreSQL (--major 16, --bin DIR)
#   TESTS=tests/unit      what make test runs
#   LANES=4               in so many processes, each with a server of its own; without TESTS and ARGS, one more than cores
#   FAULTS=tests/chaos/…  what make chaos runs
#   ARGS="-x -k lease"    more arguments for pytest, benchmarks or the demo
#   SECONDS=120 SEED=7    how long the nemesis rages, and which faults again; JOBS=50000 registers at least so many

PYTHON ?= python3
VENV ?= .venv
EMBEDDED ?=
TESTS ?=
LANES ?= $(if $(TESTS)$(ARGS),1,$(shell expr $$(getconf _NPROCESSORS_ONLN) + 1))
FAULTS ?=
ARGS ?=
ONCE ?=
PORT ?=
SECONDS ?=
SEED ?=
JOBS ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := binary,celery,embedded,environ,otel,prometheus,sentry,tasks
POSTGRES := $(BIN)/python -m django_pgjobs.embedded $(EMBEDDED)
PYTEST := $(BIN)/python -X dev -m pytest
# Each lane is a process with a server of its own, since a transaction in one database keeps dead rows in another; a file
# is run by one of them.
TESTING = $(if $(filter-out 1,$(LANES)),$(PYTEST) -d --dist loadfile --tx "$(LANES)*popen//python=$(POSTGRES) -- $(BIN)/python -X dev",$(POSTGRES) -- $(PYTEST))

.DEFAULT_GOAL := help
.PHONY: help install demo test e2e contract chaos nemesis browser foreign screenshots rubric lint format messages docs bench clean
.SUFFIXES:

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## make the virtual environment and nothing else

$(STAMP): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not installed; name another interpreter with PYTHON=…" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; name one with PYTHON=…" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "Setting up $(VENV)" >&2
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]' --group dev
	@touch $@

demo: $(STAMP) ## run the example on real input, then serve it (ONCE=1 approves one report, refuses one, ends; PORT=8000)
	@$(POSTGRES) --data .pg -- $(BIN)/python -m example_project.demo $(if $(ONCE),--once) $(if $(PORT),--port $(PORT)) $(ARGS)

test: $(STAMP) ## run the suite except slow, chaos and browser tests (COVERAGE=1 measures, from Python 3.12 on)
	@test -z "$(COVERAGE)" || $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 12))' \
		|| { echo "Coverage is measured with Python 3.12 or newer; name one with PYTHON=… VENV=…" >&2; exit 1; }
	@$(TESTING) $(if $(COVERAGE),--cov --cov-report=term) $(TESTS) $(ARGS)

e2e: $(STAMP) ## run the tests that start real workers
	@$(POSTGRES) -- $(PYTEST) tests/e2e $(ARGS)

contract: $(STAMP) ## run Django's own tests of django.tasks on our backends, those of each Django that PYTHON can run
	@$(POSTGRES) -- $(PYTEST) -m contract tests/contract $(ARGS)

chaos: $(STAMP) ## kill processes and servers under leases of 1.5 s: the fixed set, or with SECONDS or SEED the nemesis
ifeq ($(strip $(SECONDS)$(SEED)$(JOBS)),)
ifeq ($(strip $(FAULTS)$(ARGS)),)
	@$(POSTGRES) -- $(BIN)/python -m tests.chaos
else
	@$(POSTGRES) -- $(PYTEST) -m chaos $(or $(FAULTS),tests/chaos) $(ARGS)
endif
else
	@$(BIN)/python -m tests.chaos.nemesis --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED)) $(if $(JOBS),--jobs $(JOBS)) $(ARGS)
endif

nemesis: $(STAMP) ## random faults for SECONDS=60, repeated by SEED=…; prints the seed and what it found, by id
	@$(BIN)/python -m tests.chaos.nemesis --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED)) $(if $(JOBS),--jobs $(JOBS)) $(ARGS)

browser: $(STAMP) ## run the admin's tests in Chromium
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
		|| { echo "No Chromium found; on Debian: apt-get install chromium" >&2; exit 1; }
	@$(POSTGRES) -- $(PYTEST) -m browser $(ARGS)

foreign: $(STAMP) ## run real software on our backend and on the bridge for Celery, each in an environment of its own (ARGS=--publish)
	@$(POSTGRES) -- $(BIN)/python -m tests.foreign $(ARGS)

screenshots: $(STAMP) ## take the pictures of the admin anew, and draw the README's picture of the processes
	@$(POSTGRES) -- $(PYTEST) -m browser tests/browser/readme_pictures.py $(ARGS)
	@PGJOBS_TEST_SCREENSHOTS=docs/_static $(POSTGRES) -- $(PYTEST) -m browser tests/browser/test_overview.py $(ARGS)
	@$(BIN)/python docs/_ext/drawings.py

rubric: $(STAMP) ## print the numbers by which the house is judged each month
	@$(BIN)/python -m tests.rubric

lint: $(STAMP) ## check style, types, imports and migrations
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	@$(POSTGRES) -- $(BIN)/python -m django makemigrations --check --dry-run --settings tests.settings

format: $(STAMP) ## write what the formatter and the safe fixes say
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

messages: $(STAMP) ## write the admin's texts into the translations' catalogues, and compile them (needs gettext)
	@command -v msgfmt >/dev/null || { echo "No gettext found; on Debian and Ubuntu: apt-get install gettext" >&2; exit 1; }
	@cd django_pgjobs && $(abspath $(BIN))/python -m django makemessages --all --no-obsolete --no-wrap --no-location
	@cd django_pgjobs && $(abspath $(BIN))/python -m django compilemessages

docs: $(STAMP) ## build the documentation; a warning is an error
	$(BIN)/sphinx-build -W -n --keep-going -q -b html docs docs/_build/html

bench: $(STAMP) ## measure our own speed, and that of other queues; ARGS=--quick to try it out
	@$(POSTGRES) -- $(BIN)/python -m benchmarks.run $(ARGS)

clean: ## delete what was built, and the embedded server's data
	@if test -e $(STAMP); then $(BIN)/python -m django_pgjobs.embedded --clean --data .pg; fi
	rm -rf .pg .bench build dist docs/_build htmlcov .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
