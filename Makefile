# Two commands: `make demo` and `make test`. Each makes its own environment in .venv first.

PYTHON ?= $(shell for each in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$each && break; done)
VENV := .venv
BIN := $(VENV)/bin
MINUTES ?= 5  # of torture for each store in make proof
SECONDS_EACH ?= 60  # for each target of make fuzz

.PHONY: demo demo-aws rides test test-spark servers lint format docs bench bench-quick bench-more audit proof fuzz clean

demo: $(VENV)/ready
	@$(BIN)/eventonce demo

demo-aws: $(VENV)/ready servers
	@PATH="$(CURDIR)/.servers/bin:$$PATH" $(BIN)/eventonce demo --aws

rides: $(VENV)/ready servers
	@PATH="$(CURDIR)/.servers/bin:$$PATH" $(BIN)/python examples/rides/run.py

test: $(VENV)/ready servers
	$(BIN)/python -m pytest --numprocesses 4 --dist worksteal

test-spark: $(VENV)/ready
	@if ! java -version >/dev/null 2>&1; then echo "test-spark: skipped, because there is no Java; install Java 17 to run it"; \
	else $(MAKE) --no-print-directory $(VENV)-spark/ready && \
	$(VENV)-spark/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall . && \
	$(VENV)-spark/bin/python -m pytest tests/spark; fi

servers: $(VENV)/ready
	@tests/servers.sh $(BIN)/python

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/ready
	$(BIN)/python docs/make_cli_page.py
	$(BIN)/python docs/make_proof_page.py

bench: $(VENV)/bench servers
	$(BIN)/python benchmarks

bench-quick: $(VENV)/bench servers
	$(BIN)/python benchmarks --quick

bench-more: $(VENV)/bench servers
	$(BIN)/python benchmarks/audit.py
	$(BIN)/python benchmarks/scale.py
	PATH="$(CURDIR)/.servers/bin:$$PATH" $(BIN)/python benchmarks/sqs.py
	$(BIN)/python benchmarks/webhook.py
	PATH="$(CURDIR)/.servers/bin:$$PATH" $(BIN)/python benchmarks/publish.py
	PATH="$(CURDIR)/.servers/bin:$$PATH" $(BIN)/python benchmarks/relay.py

audit: $(VENV)/ready servers
	@PATH="$(CURDIR)/.servers/bin:$$PATH" $(BIN)/python tests/audit_dependencies.py

proof: $(VENV)/ready servers
	PATH="$(CURDIR)/.servers/bin:$$PATH" $(BIN)/python docs/make_proof_page.py --run $(MINUTES)

fuzz: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check atheris
	$(BIN)/python -m tests.fuzz.run $(SECONDS_EACH)

$(VENV)/bench: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-spark .servers .fuzz .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/ready: pyproject.toml
	@test -n "$(PYTHON)" || { echo "eventonce needs Python 3.11 or newer; install it, or name one: make PYTHON=/path/to/python3" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all,test,lint]'
	@touch $@

# The whole of PySpark, which has 450 MB, and eventonce from its wheel as workers have it.
$(VENV)-spark/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)-spark
	$(VENV)-spark/bin/python -m pip install --quiet --disable-pip-version-check '.[spark,duckdb]' pytest pytest-timeout
	@touch $@
