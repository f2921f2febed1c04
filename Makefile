# One virtual environment per checkout: the editable install holds absolute paths.
# Everything below is safe to repeat; a step whose inputs did not change does nothing.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NODE_MODULES := $(addsuffix /node_modules/.package-lock.json,tests/web examples/web examples/web-minimal examples/extension web tests/web/bundlers tests/e2e/clients tools/lint)
# Where `make demo` puts the package it compiles, and what it compiles.
OUT ?= artifacts/demo
MODEL ?= tiny
# Extra arguments for pytest, for example ARGS="-k rotary -x".
ARGS ?=
# A file of tests at a time to each process: what it sets up is set up once. In order, for tests/conftest.py has put the
# longest files first. One process more than there are cores, for tests wait: for browsers, servers, locks and times. A
# process that crashes ends the run: replaced ones are known to wait for ever. Empty for one.
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
WORKERS ?= -n $$(($(CORES) + 1)) --maxprocesses=4 --max-worker-restart=0 --dist=loadfile --no-loadscope-reorder

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Containers are known to set it: each process of the tests would translate all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup objects browsers node docs lock lint fix types tree check test test-all test-exhaustive quick-tests all-tests part smoke demo wheel npm release bench ray all clean

help:
	@echo "make demo    compile the tiny model and chat with it in the browser (HEADLESS=1: ask, also about a picture; PORT=N)"
	@echo "make test    install what the tests need, then lint, types and tests of every part; make test-all: more sizes and recipes"
	@echo "make setup | docs | lint | fix | types | check | test-exhaustive | part | smoke | wheel | npm | release | bench | ray | all | clean    see CONTRIBUTING.md"

# --- environment -------------------------------------------------------------------------------

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "error: $(PYTHON) is not Python 3.10 to 3.13"; echo "hint: make PYTHON=python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV) || { echo "hint: on Debian, apt-get install python3-venv"; rm -rf $(VENV); exit 1; }

# What a user needs: the compiler and the chat, no torch. With LOCKED=1 (Python 3.11, Linux) everything but torch
# comes in the versions and with the hashes of requirements/ci.txt.
$(VENV)/user.stamp: pyproject.toml | $(BIN)/python
	$(if $(LOCKED),$(BIN)/pip install -q --require-hashes --no-deps -r requirements/ci.txt)
	$(BIN)/pip install -q $(if $(LOCKED),--no-build-isolation) -e .
	@touch $@

# What a developer needs on top. The CPU build of torch is a fraction of the default build's size; it is
# taken where the package index (or PIP_EXTRA_INDEX_URL) offers it.
# What makes a wheel, and no more: torch would be gigabytes. LOCKED has it in user.stamp, with its hash.
$(VENV)/build.stamp: pyproject.toml | $(VENV)/user.stamp
	@build=$$(sed -nE 's/^ *"(build[^"]+)".*/\1/p' pyproject.toml); $(BIN)/pip install -q "$$build"
	@touch $@

$(VENV)/dev.stamp: $(VENV)/user.stamp
	@torch=$$(sed -nE 's/^ *"(torch==[^"]+)".*/\1/p' pyproject.toml); \
	  $(BIN)/pip install -q "$$torch+cpu" 2>/dev/null || $(BIN)/pip install -q "$$torch"
	$(BIN)/pip install -q $(if $(LOCKED),--no-build-isolation) -e '.[dev]'
	@touch $@

# What Vite runs on (`engines` in examples/web/package-lock.json), which builds the page.
node:
	@found=$$(node --version 2>/dev/null) || found=none; case "$$found" in \
	  v20.19.*|v20.[2-9][0-9].*|v22.1[2-9].*|v22.[2-9][0-9].*|v2[3-9].*|v[3-9][0-9].*) ;; \
	  *) echo "error: the browser parts need Node 20.19 or newer (of 22: 22.12 or newer), found: $$found"; \
	     echo "hint: install one from nodejs.org, and put it first on PATH"; exit 1;; esac >&2

# npm writes this file when it is done.
%/node_modules/.package-lock.json: %/package-lock.json | node
	cd $* && npm ci --no-audit --no-fund --loglevel=error
	@touch $@

setup: $(VENV)/dev.stamp
	+@$(MAKE) --no-print-directory -j4 objects browsers

# What every model library is linked with, which is compiled once a machine: one thread, beside downloads.
objects: $(VENV)/dev.stamp
	@$(BIN)/python tools/prebuild.py

browsers: $(NODE_MODULES)
	@bash tools/install-webgpu-debian.sh

docs: | $(BIN)/python
	$(BIN)/python -m tools.draw_packages

lock: $(VENV)/dev.stamp
	@bash tools/lock-ci.sh

# --- checks ------------------------------------------------------------------------------------

# Biome reads biome.jsonc, clang-format .clang-format. Without git, so that an unpacked archive is checked as well.
LINTERS := $(VENV)/dev.stamp tools/lint/node_modules/.package-lock.json
BIOME := tools/lint/node_modules/.bin/biome check --error-on-warnings
NATIVE = $(shell find targets/native tests benchmarks -name node_modules -prune -o \
  \( -name '*.cc' -o -name '*.h' -o -name '*.c' -o -name '*.cu' \) -print)
lint: $(LINTERS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIOME) .
	$(BIN)/clang-format --dry-run --Werror $(NATIVE)
	$(BIN)/shellcheck .ci/run tools/*.sh

fix: $(LINTERS)
	$(BIN)/ruff check --fix --exit-zero .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(NATIVE)
	$(BIOME) --write .

# mypy cannot see through the editable install, so it gets the installed layout as a tree of links.
tree:
	@rm -rf build/tree && mkdir -p build/tree/gemma4_compile && cd build/tree/gemma4_compile && \
	  ln -s ../../../gemma4_compile/* ../../../model_spec ../../../quantization ../../../targets .

# Tests are POSIX where they plant pipes, fork and send signals: for the other systems what they try is checked.
# What these packages say of themselves is the same everywhere: read again, it would be three quarters of the time.
PORTABLE := build/tree/gemma4_compile tools examples benchmarks
ALIKE := "torch.*", "transformers.*", "peft.*", "huggingface_hub.*"
ABROAD := --config-file build/mypy.toml --no-warn-unused-ignores
types: $(VENV)/dev.stamp tree
	$(BIN)/mypy
	@(cat pyproject.toml; printf '[[tool.mypy.overrides]]\nmodule = [%s]\nfollow_imports = "skip"\n' '$(ALIKE)') > build/mypy.toml
	$(BIN)/mypy $(ABROAD) --platform darwin --cache-dir .mypy_cache/darwin $(PORTABLE)
	$(BIN)/mypy $(ABROAD) --platform win32 --cache-dir .mypy_cache/win32 $(PORTABLE)

smoke: $(VENV)/user.stamp
	@$(BIN)/python -c 'import pytest, pytest_timeout' 2>/dev/null || $(BIN)/pip install -q pytest pytest-timeout
	$(BIN)/python -m pytest -m smoke $(ARGS)

PYTEST := HF_HUB_OFFLINE=1 $(BIN)/python -m pytest $(WORKERS)

# While one writes: no Node, no browser, no whole package.
check: $(VENV)/dev.stamp
	$(PYTEST) -m "not slow and not package and not exhaustive" tests/unit tests/passes tests/smoke $(ARGS)

# Every part of the product on every target that a CPU runs; what is marked slow varies that. mypy has one thread
# and runs beside the first tests.
test: setup lint
	+@$(MAKE) --no-print-directory -j2 types quick-tests

test-all: setup lint
	+@$(MAKE) --no-print-directory -j2 types all-tests

quick-tests:
	$(PYTEST) -m "not slow and not exhaustive" $(ARGS)

all-tests:
	$(PYTEST) -m "not exhaustive" $(ARGS)

# Variations of what test-all shows: a workflow runs them once a week.
test-exhaustive: setup
	$(PYTEST) -m exhaustive $(ARGS)

# For machines side by side: the tests of one part, those of test-all.
PART_unit := tests/unit tests/passes tests/smoke
PART_kernels := tests/numerics tests/metal tests/cuda
PART_models := tests/parity tests/e2e
PART_web := tests/web
part: setup
	@test -n "$(PART_$(PART))" || { echo "error: no part \`$(PART)'"; echo "hint: make part PART=unit, kernels, models or web"; exit 2; }
	$(PYTEST) -m "not exhaustive" $(PART_$(PART)) $(ARGS)

# --- use ---------------------------------------------------------------------------------------

demo: $(VENV)/user.stamp examples/web/node_modules/.package-lock.json
ifdef HEADLESS
	@bash tools/install-webgpu-debian.sh
endif
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python examples/web/demo.py --model $(MODEL) --output $(OUT) $(if $(PORT),--port $(PORT)) $(if $(HEADLESS),--headless)

# The page, gemma4-web and the objects that every model library is linked with go into the wheel as they are built
# here. A wheel made otherwise has neither page nor module, and compiles the objects once per machine.
MADE := gemma4_compile/page gemma4_compile/gemma4_web targets/prebuilt
wheel: $(VENV)/build.stamp $(addsuffix /node_modules/.package-lock.json,examples/web web)
	cd examples/web && npm run --silent build
	cd web && npm run --silent build
	rm -rf $(MADE)
	$(BIN)/python tools/prebuild.py targets/prebuilt
	cp -r examples/web/dist gemma4_compile/page && cp -r web/dist gemma4_compile/gemma4_web
	$(BIN)/python -m build; status=$$?; rm -rf $(MADE); exit $$status

# gemma4-web for `npm install`, as dist/gemma4-web-VERSION.tgz.
npm: web/node_modules/.package-lock.json
	@mkdir -p dist
	cd web && npm pack --silent --pack-destination ../dist

# Everything that a release consists of, in dist/, with its checksums.
release: clean
	@$(MAKE) wheel npm
	cd dist && sha256sum * > ../SHA256SUMS && mv ../SHA256SUMS .

# An environment of its own: Ray is half a gigabyte that nothing else needs.
ray: $(BIN)/python
	$(PYTHON) -m venv build/ray
	build/ray/bin/pip install -q -e . -r examples/ray-serve/requirements.txt pytest
	build/ray/bin/python -m pytest --rootdir examples/ray-serve -p no:cacheprovider -c /dev/null -W ignore -q examples/ray-serve $(ARGS)

bench: $(VENV)/user.stamp
	$(BIN)/python -m benchmarks.compile_library

all: test-all demo

clean:
	rm -rf build dist artifacts .mypy_cache .ruff_cache .pytest_cache
