# Every target does its own set-up: a fresh machine with Python 3.11+ needs nothing else.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test test-browser test-engines test-gpu lint format bench-gateway bench-index clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[worker,dev]'
	touch $@

demo: $(READY)  ## two real engines behind the router, round robin against cache-aware placement
	$(BIN)/warmroute demo

test: $(READY)  ## the fast suite
	$(BIN)/pytest -q -n 2 -m 'not browser and not engines and not gpu'

test-browser: $(READY)  ## the report's page in a real Chromium, installed from Debian's packages where there is none
	command -v chromium >/dev/null || command -v google-chrome >/dev/null || ! command -v apt-get >/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || \
		echo 'Chromium could not be installed: its tests are skipped'
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[browser]'
	$(BIN)/pytest -q -rs -m browser

test-engines: $(READY)  ## against a real vLLM: VLLM=path/to/vllm
	$(BIN)/pytest -q -m engines

test-gpu: $(READY)
	$(BIN)/pytest -q -m gpu

bench-gateway: $(READY)  ## CPU time of the gateway beside sglang-router and vllm-router
	$(BIN)/python benchmarks/gateway.py

bench-index: $(READY)  ## the prefix index beside ai-dynamo-runtime's
	$(BIN)/python benchmarks/index.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
