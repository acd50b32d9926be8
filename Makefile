# Two commands: `make demo` and `make test`. Each installs what it needs into .venv first, and nothing else.

PYTHON ?= $(shell for each in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$each && break; done)
BIN := .venv/bin
INSTALL = $(PYTHON) tools/install.py --into
SERVERS = tests/servers.sh $(PYTHON)
WITH_SERVERS = PATH="$(CURDIR)/.servers/bin:$$PATH"
PYTEST = $(BIN)/python -m pytest --numprocesses 6 --dist worksteal
unexport PYTHONDONTWRITEBYTECODE  # the tests start over a thousand processes: each module is compiled once
MINUTES ?= 5  # of torture for each store in make proof
SECONDS_EACH ?= 60  # for each target of make fuzz

.PHONY: demo demo-aws rides test test-long test-spark test-all nightly servers lint format docs bench bench-quick \
	bench-more audit proof fuzz clean python

demo: python
	@$(INSTALL) .venv
	@$(BIN)/eventonce demo

demo-aws: python
	@$(INSTALL) .venv --extras aws
	@$(SERVERS) ministack
	@$(WITH_SERVERS) $(BIN)/eventonce demo --aws

rides: python
	@$(INSTALL) .venv --extras aws,http --groups rides
	@$(SERVERS) ministack
	@$(WITH_SERVERS) $(BIN)/python examples/rides/run.py

# --- tests: by cost ---

test: python
	@$(INSTALL) .venv --extras all --groups test
	@$(SERVERS)
	@echo "Running the tests, with every store and every door over the wire: about 6 minutes on two free cores."
	@$(PYTEST) -m "not long"

test-long: python
	@$(INSTALL) .venv --extras all --groups test
	@$(SERVERS)
	@echo "Running the longer tests (kills, deep simulation, fuzzing): about 8 minutes on two free cores."
	@$(PYTEST) -m long

test-spark: python
	@$(INSTALL) .venv-spark --extras spark,duckdb --groups spark
	@.venv-spark/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall .
	@echo "Running the tests on Spark Connect: about a minute on two free cores."
	@.venv-spark/bin/python -m pytest tests/spark/test_connect.py
	@if java -version >/dev/null 2>&1; then \
		echo "Running the tests on Spark itself: about 3 minutes on two free cores." && \
		.venv-spark/bin/python -m pytest tests/spark --ignore tests/spark/test_connect.py; \
	else echo "The tests on Spark itself are skipped, because there is no Java; install Java 17 to run them."; \
		[ "$$CI" != true ]; fi

test-all: test test-long test-spark

nightly: test-all
	@echo "Fuzzing and the proof at length: about an hour."
	@$(MAKE) --no-print-directory fuzz proof

servers: python
	@$(SERVERS)

# --- for whoever works on it ---

lint: python
	@$(INSTALL) .venv --extras all --groups test,lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: python
	@$(INSTALL) .venv --extras all --groups test,lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: python
	@$(INSTALL) .venv --extras all --groups test
	$(BIN)/python -m tools.cli_page
	$(BIN)/python -m tools.api_page
	$(BIN)/python -m tools.key_vectors
	$(BIN)/python -m lab.proof_page

bench: python
	@$(INSTALL) .venv --extras all --groups bench
	@$(SERVERS)
	$(BIN)/python -m benchmarks

bench-quick: python
	@$(INSTALL) .venv --extras redis,postgres,dynamodb --groups bench
	@$(SERVERS) redis postgresql dynoxide
	@$(BIN)/python -m benchmarks --quick

bench-more: python
	@$(INSTALL) .venv --extras all --groups bench
	@$(SERVERS)
	$(BIN)/python -m benchmarks.audit
	$(BIN)/python -m benchmarks.scale
	$(WITH_SERVERS) $(BIN)/python -m benchmarks.sqs
	$(BIN)/python -m benchmarks.webhook
	$(WITH_SERVERS) $(BIN)/python -m benchmarks.publish
	$(WITH_SERVERS) $(BIN)/python -m benchmarks.relay
	$(BIN)/python -m benchmarks.function

audit: python
	@$(INSTALL) .venv --extras all --groups test,lint
	@$(SERVERS) pip-audit
	@$(WITH_SERVERS) $(BIN)/python tests/audit_dependencies.py

proof: python
	@$(INSTALL) .venv --extras all --groups test
	@$(SERVERS)
	$(WITH_SERVERS) $(BIN)/python -m lab.proof_page --run $(MINUTES)

fuzz: python
	@$(INSTALL) .venv --extras all --groups test,fuzz
	$(BIN)/python -m tests.fuzz.run $(SECONDS_EACH)

clean:
	rm -rf .venv .venv-spark .servers .fuzz .pytest_cache .mypy_cache .ruff_cache .hypothesis

python:
	@$(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	{ echo "eventonce needs Python 3.11 or newer; install it, or name one: make PYTHON=/path/to/python3" >&2; exit 2; }
