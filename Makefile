# `make` alone lists what there is. Works with GNU make 3.81 and later, which is what macOS has.

PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
# What `make up` runs, and on top of it what tests and checks need. Each is installed when it is first needed.
RUN     := $(VENV)/.installed-run
STAMP   := $(VENV)/.installed-dev
RUN_EXTRAS := embedded serve client telegram prometheus
LOCKER  := build/lock-tool
# Twice as many as a small machine has cores: tests wait for locks, leases and programs that start.
WORKERS ?= 4
ARGS    ?=

PYTEST  := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
PIP     := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Exit status 0 for a Python that the locks cover.
COVERED := import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))

.DEFAULT_GOAL := help
.PHONY: help up web test test-all long check verify bench soak planted contracts schema reference lock format clean reset-data faults faults-planted bot-kills

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  PYTHON=python3.12 chooses the interpreter of a new $(VENV); ARGS='-x -k lease' is handed on."

# What Python compiles is kept, whatever the environment says: the install leaves that to the first start.
# `exec` leaves no shell in between: make passes a SIGTERM on to its children, and waits for them.
up: export PYTHONDONTWRITEBYTECODE :=
up: $(RUN) web ## run everything on an embedded PostgreSQL
	@exec env AFTERCOMMIT_STARTED_BY='make up' $(BIN)/aftercommit up --app systems.site:application $(ARGS)

# Where the machine has no Node, one from a wheel is used. Nothing is done when nothing changed.
web: $(RUN) ## build the pages that browsers get, into build/web/site
	@$(BIN)/python -m tools.web build

# On the server that DATABASE_URL names, otherwise on the newest PostgreSQL of the embedded package. `make test` needs nothing but
# Python and wheels and stays below five minutes on two cores; `make test-all` adds what takes longer or runs other programs.
# Tests start Python by the hundred: what it compiles is kept, whatever the environment says (`make clean` removes it).
test test-all long: export PYTHONDONTWRITEBYTECODE :=
test: $(STAMP) web ## run five minutes of tests, on PostgreSQL 18 or on that of DATABASE_URL
	$(PYTEST) -m 'not long and not thorough and not needs' $(ARGS)

test-all: $(STAMP) web ## run every test but the campaigns, also those that need programs of the system
	$(PYTEST) -m 'not long' $(ARGS)

# The same properties with more examples, every moment to kill a migration at, the large volumes.
long: $(STAMP) web ## run the campaigns of the tests: many more examples and the large volumes, on PostgreSQL 18
	AFTERCOMMIT_TEST_LONG=1 $(PYTEST) -m 'long or sized or hypothesis' --timeout 1200 $(ARGS)

check: $(STAMP) ## lint, formatting, types, layers, golden schema, reference, contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tools.schema --check
	$(BIN)/python -m tools.reference --check
	$(BIN)/python -m tools.contracts
	$(BIN)/python -m tools.web check

verify: test-all check ## test-all and check

# Without ARGS a whole run, which writes the page, the picture and the record anew. `make bench ARGS=--quick` only prints.
# The long log needs 20 GB of disk.
# The feed cases ask wrk, and nginx with nchan where it is installed: apt-get install wrk nginx libnginx-mod-nchan.
bench: $(STAMP) ## measure our parts beside raw SQL and beside peers (an hour and a half); ARGS=--quick, --only, --no-peers
	$(BIN)/python -m bench $(if $(strip $(ARGS)),$(ARGS),--json docs/benchmarks.json --page docs)

# Without ARGS an hour, which writes docs/soak.md and docs/soak.json. `make soak ARGS='--minutes 3 --rate 100'` only prints.
soak: $(STAMP) ## publish 500 events/s for an hour with consumers and readers, and see what grows; ARGS=--minutes, --rate, --readers
	$(BIN)/python -m bench.soak $(if $(strip $(ARGS)),$(ARGS),--out docs)

planted: $(STAMP) ## plant known bugs in a copy of the tree and see the tests catch them
	$(BIN)/python -m tools.planted $(ARGS)

faults: $(STAMP) ## kill, stop, crash and cut off everything for about 13 minutes, and check what came of it; ARGS='--kills 3000'
	$(BIN)/python -m tests.faults $(ARGS)

faults-planted: $(STAMP) ## plant known bugs in a copy of the tree and see the fault harness find them
	$(BIN)/python -m tests.faults.planted $(ARGS)

bot-kills: $(STAMP) ## kill the Telegram bot 300 times between fetch, send and save; ARGS=--kills, --seed, --state
	$(BIN)/python -m tests.telegram.kills $(ARGS)

contracts: $(STAMP) ## print each contract row with the tests that prove it
	@$(BIN)/python -m tools.contracts $(ARGS)

schema: $(STAMP) ## write the golden schema again from the migrations
	$(BIN)/python -m tools.schema $(ARGS)

reference: $(STAMP) ## write docs/reference.md again from the public names
	$(BIN)/python -m tools.reference $(ARGS)

format: $(STAMP) ## sort imports, apply safe fixes, format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

# Keeps the pins that still fit; `make lock ARGS=--upgrade` takes the newest of everything. dev.lock has the versions of run.lock.
LOCK = $(LOCKER)/bin/uv pip compile pyproject.toml --quiet $(ARGS) --universal --fork-strategy fewest --python-version 3.11 \
    --generate-hashes --no-annotate --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock'
lock: ## write requirements/*.lock again from pyproject.toml
	@test -x $(LOCKER)/bin/uv || { $(PYTHON) -m venv $(LOCKER) && \
	    $(LOCKER)/bin/python -m pip --disable-pip-version-check --quiet install 'uv>=0.9'; }
	$(LOCK) --output-file requirements/run.lock $(addprefix --extra ,$(RUN_EXTRAS)) --group run
	$(LOCK) --output-file requirements/dev.lock --all-extras --group dev --constraint requirements/run.lock
	$(subst pyproject.toml,,$(LOCK)) --output-file requirements/node.lock --group pyproject.toml:node

clean: ## remove caches and build output; the environment and the data stay
	@echo "removing build dist web/node_modules .coverage .*_cache .hypothesis and every __pycache__"
	@rm -rf web/node_modules web/client/dist src/aftercommit/feed/app/pages/built
	@rm -rf build dist .coverage .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
	@echo "kept: $(VENV), and the data in .aftercommit (make reset-data removes that)"

reset-data: ## remove the embedded database and all that is in it
	@for file in $$(find .aftercommit -name postmaster.pid 2>/dev/null); do \
	    pid=$$(head -n 1 $$file); \
	    if kill -0 $$pid 2>/dev/null; then \
	        echo "A PostgreSQL server (process $$pid) still runs on this data. Stop it first." >&2; exit 1; \
	    fi; \
	done
	@echo "removing .aftercommit"
	@rm -rf .aftercommit

# Built again when a lock or the metadata changes. The build backend comes from the lock too, so nothing is fetched without a
# hash. Modules are compiled when they are first imported: most never are.
$(RUN): requirements/run.lock pyproject.toml
	@test -x $(BIN)/python || { \
	    command -v $(PYTHON) >/dev/null || { echo "There is no '$(PYTHON)'. Set PYTHON=..." >&2; exit 1; }; \
	    $(PYTHON) -c '$(COVERED)' || { echo "aftercommit needs Python 3.11 or newer (3.11 to 3.13 are tested);" \
	        "'$(PYTHON)' is $$($(PYTHON) --version 2>&1). Set PYTHON=..." >&2; exit 1; }; \
	    echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@$(BIN)/python -c '$(COVERED)' || { echo "aftercommit needs Python 3.11 or newer (3.11 to 3.13 are tested); $(VENV) has" \
	    "$$($(BIN)/python --version 2>&1). Remove $(VENV) and set PYTHON=..." >&2; exit 1; }
	@echo "installing requirements/run.lock into $(VENV)"
	@$(PIP) install --no-compile --require-hashes -r requirements/run.lock
	@$(PIP) install --no-compile --no-deps --no-build-isolation -e .
	@touch $@

$(STAMP): requirements/dev.lock $(RUN)
	@echo "installing requirements/dev.lock into $(VENV)"
	@$(PIP) install --no-compile --require-hashes -r requirements/dev.lock
	@touch $@
