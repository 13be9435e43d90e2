# One command for people and for CI. `make help` lists the targets.
#
#   PYTHON=python3.12   another interpreter for the virtual environment (3.11 or later)
#   VENV=path           another place for it
#   STRICT=1            a missing lint tool is an error instead of a visible skip
#   PYTEST_ARGS="..."   passed to pytest, e.g. PYTEST_ARGS="--require tvm -k capture"

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:

PYTHON ?= python3
VENV ?= .venv
STRICT ?= 0
PYTEST_ARGS ?=
BENCH_ARGS ?=
PEER_ARGS ?=
FUZZ_SCHEMAS ?= 10000000
FUZZ_CALLS ?= 1000000
FUZZ_SECONDS ?= 900
FUZZ_SEED ?= 0
FUZZ_PROGRAMS ?= 20000

BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PEERS := numpy torch jax upstream numexpr
UV := $(shell command -v uv 2>/dev/null)
# $(call pip-install,INTERPRETER) installs what the words after it name: with uv where there is one, else with pip.
pip-install = $(if $(UV),uv pip install --quiet --python $(1),$(1) -m pip install --quiet --disable-pip-version-check)
RUST_SOURCES := Cargo.toml Cargo.lock $(shell find crates -name '*.rs' -o -name Cargo.toml)
# Everything below the door builds and tests without Python.
BELOW_THE_DOOR := --workspace --exclude tp-python
export PYO3_PYTHON := $(abspath $(BIN)/python)
export VIRTUAL_ENV := $(abspath $(VENV))

.PHONY: help demo test lint format rust-test python-test bench bench-calls bench-instructions bench-peers \
        device-test fuzz fuzz-pointwise docs clean optional wheel

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMPS)/native $(STAMPS)/demo ## build, then run examples/quickstart.py: one operator from definition to a proved run
	@$(MAKE) --no-print-directory optional OPTIONAL=tvm
	$(BIN)/python examples/quickstart.py

wheel: $(STAMPS)/demo ## one wheel for Python 3.11 and later of this platform, in target/wheels
	$(BIN)/maturin build --release

test: lint rust-test python-test ## lint, Rust tests, Python tests, the examples

lint: $(STAMPS)/dev ## rustfmt, clippy, ruff, mypy, import-linter
	@$(call rust-tool,fmt,rustfmt,--all --check)
	@$(call rust-tool,clippy,clippy,--workspace --all-targets --quiet -- -D warnings)
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --quiet --check .
	$(BIN)/mypy --no-error-summary
	PYTHONPATH=python $(BIN)/lint-imports --no-logo

# $(call rust-tool,SUBCOMMAND,COMPONENT,ARGUMENTS): a missing component is said, and is an error under STRICT=1.
rust-tool = if cargo $(1) --version >/dev/null 2>&1; then echo "cargo $(1) $(3)"; cargo $(1) $(3); else \
	  echo "SKIPPED cargo $(1): the component is not installed (rustup component add $(2))"; [ "$(STRICT)" != 1 ]; fi

format: $(STAMPS)/dev ## rewrite sources the way lint wants them
	cargo fmt --all
	$(BIN)/ruff check --quiet --fix .
	$(BIN)/ruff format --quiet .

rust-test: $(STAMPS)/venv ## the crates below the Python door
	cargo test --quiet $(BELOW_THE_DOOR)

python-test: $(STAMPS)/dev $(STAMPS)/native ## pytest over tests, by one thread and by four; one pass over each Python benchmark, the notebooks
	@$(MAKE) --no-print-directory optional OPTIONAL="tvm triton"
	$(BIN)/python -m pytest -n auto --nbmake --benchmark-disable tests benches/python examples $(PYTEST_ARGS)
	$(BIN)/python -m pytest --parallel-threads=4 --skip-thread-unsafe=1 -rfE tests $(PYTEST_ARGS)

bench: $(STAMPS)/dev $(STAMPS)/native ## criterion (Rust) and pytest-benchmark (Python)
	$(if $(wildcard benches/Cargo.toml),cargo bench -p tp-bench $(BENCH_ARGS),@true)
	$(BIN)/python -m pytest benches/python --benchmark-only --benchmark-columns=min,median,rounds,iterations $(BENCH_ARGS)

bench-calls: $(STAMPS)/dev $(STAMPS)/native ## cost of each call from Python in units of one trivial builtin call, beside its bar
	$(BIN)/python benches/python/calls.py $(BENCH_ARGS)

bench-instructions: $(STAMPS)/dev $(STAMPS)/native ## instructions per call under callgrind against the committed table
	$(BIN)/python benches/callgrind/check.py $(BENCH_ARGS)

bench-peers: $(STAMPS)/dev $(STAMPS)/native $(PEERS:%=.venvs/%/.ready) ## the same work beside numpy, torch, jax and upstream, interleaved
	@$(MAKE) --no-print-directory optional OPTIONAL=tvm
	$(BIN)/python benches/python/peers ours=$(BIN)/python $(foreach p,$(PEERS),$(p)=.venvs/$(p)/bin/python) $(PEER_ARGS)

device-test: $(STAMPS)/dev $(STAMPS)/native ## the tests that need a GPU; fails where there is none
	@$(MAKE) --no-print-directory optional OPTIONAL=triton
	$(BIN)/python -m pytest -m device --require cuda --require triton tests $(PYTEST_ARGS)

fuzz: ## schema strings and random calls: FUZZ_SCHEMAS=10000000 FUZZ_CALLS=1000000 FUZZ_SECONDS=900 FUZZ_SEED=0
	cargo run --quiet --release -p tp-bench --bin fuzz -- --schemas $(FUZZ_SCHEMAS) --calls $(FUZZ_CALLS) \
	  --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED)

fuzz-pointwise: $(STAMPS)/dev $(STAMPS)/native ## random pointwise programs, eager = native = TVM: FUZZ_PROGRAMS=20000 FUZZ_SEED=0 (an hour or two)
	@$(MAKE) --no-print-directory optional OPTIONAL=tvm
	TENSORPLAY_TEST_PROGRAMS=$(FUZZ_PROGRAMS) TENSORPLAY_TEST_SEED=$(FUZZ_SEED) $(BIN)/python -m pytest \
	  --require tvm tests/compile/test_random_pointwise.py $(PYTEST_ARGS)

docs: ## API pages of the crates (target/doc), broken links are errors
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --document-private-items $(BELOW_THE_DOOR)

clean: ## remove builds, environments and caches
	rm -rf target $(VENV) .venvs dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks
	rm -f python/tensorplay/_native*.so
	find python tests benches examples -name __pycache__ -type d -prune -exec rm -rf {} +

# --- environments -----------------------------------------------------------------------------------

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or later is needed: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' || \
	  { echo "Python's venv module is needed (on Debian and Ubuntu: the package python3-venv)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/demo: requirements/demo.txt requirements/constraints.txt | $(STAMPS)/venv
	$(call pip-install,$(BIN)/python) -r requirements/demo.txt
	@touch $@

$(STAMPS)/dev: requirements/dev.txt requirements/demo.txt requirements/constraints.txt | $(STAMPS)/venv
	$(call pip-install,$(BIN)/python) -r requirements/dev.txt
	@touch $@ $(STAMPS)/demo

$(STAMPS)/native: pyproject.toml $(RUST_SOURCES) | $(STAMPS)/demo
	@# pip would print a line for each requirement of an extra that was not asked for.
	@echo "building the extension; the first time takes a few minutes"
	PIP_QUIET=1 $(BIN)/maturin develop --release --quiet $(if $(UV),--uv)
	@touch $@

# Heavy packages that the project can do without. One that cannot be installed is said here and shown as a
# skip by the tests and the demo; the next run tries again.
optional: $(OPTIONAL:%=$(STAMPS)/tried-%)

TRIED := $(foreach o,tvm triton,$(STAMPS)/tried-$(o))
.PHONY: $(TRIED)
$(TRIED): $(STAMPS)/tried-%: | $(STAMPS)/venv
	@if [ ! -e $(STAMPS)/$* ] || [ requirements/constraints.txt -nt $(STAMPS)/$* ]; then \
	  echo "installing the optional package $*"; \
	  if $(call pip-install,$(BIN)/python) -r requirements/$*.txt; then touch $(STAMPS)/$*; \
	  else echo "NOT INSTALLED $*: going on without it; what needs it is skipped and says so"; fi; fi

.venvs/%/.ready: requirements/peer-%.txt
	$(PYTHON) -m venv .venvs/$*
	$(call pip-install,.venvs/$*/bin/python) -r $<
	@touch $@
