# Two commands: `make demo` and `make test`. Each makes its own environment in .venv first.

PYTHON ?= $(shell for each in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$each && break; done)
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo demo-aws rides test servers lint format docs bench clean

demo: $(VENV)/ready
	@$(BIN)/eventonce demo

demo-aws: $(VENV)/ready servers
	@PATH="$(CURDIR)/.servers/bin:$$PATH" $(BIN)/eventonce demo --aws

rides: $(VENV)/ready servers
	@PATH="$(CURDIR)/.servers/bin:$$PATH" $(BIN)/python examples/rides/run.py

test: $(VENV)/ready servers
	$(BIN)/python -m pytest --numprocesses 4 --dist worksteal

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

bench: $(VENV)/ready servers
	$(BIN)/python benchmarks/keying.py
	$(BIN)/python benchmarks/audit.py
	PATH="$(CURDIR)/.servers/bin:$$PATH" $(BIN)/python benchmarks/sqs.py
	$(BIN)/python benchmarks/webhook.py
	PATH="$(CURDIR)/.servers/bin:$$PATH" $(BIN)/python benchmarks/publish.py
	PATH="$(CURDIR)/.servers/bin:$$PATH" $(BIN)/python benchmarks/relay.py

clean:
	rm -rf $(VENV) .servers .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/ready: pyproject.toml
	@test -n "$(PYTHON)" || { echo "eventonce needs Python 3.11 or newer; install it, or name one: make PYTHON=/path/to/python3" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all,test,lint]'
	@touch $@
