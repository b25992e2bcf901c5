# Needs make and Python 3.11-3.13; everything else is installed into .venv from requirements.lock.

TORCH := 2.13.0

# The first interpreter that is new enough and can make environments (Debian ships venv apart from python3).
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	&& echo "$$p" && break; done)

define NO_PYTHON
homespun needs Python 3.11, 3.12 or 3.13 with its venv module, and found none on the PATH.
Install one (Debian and Ubuntu: apt install python3 python3-venv), or name it: make PYTHON=/path/to/python3
endef
export NO_PYTHON

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help quickstart lint test test-all docs wheel lock audit clean

# A file's tests go to one worker, so that its fixtures are built once. Bytecode is kept for the other processes.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n auto --maxprocesses 4 --dist loadfile

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z.]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

.venv: .venv/.installed ## the environment, from requirements.lock

.venv/.installed: requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "$$NO_PYTHON" >&2; exit 1; }
	test -x .venv/bin/pip || $(PYTHON) -m venv --clear .venv
	.venv/bin/pip install --disable-pip-version-check --use-pep517 --require-hashes --no-deps -r requirements.lock
	.venv/bin/pip install --disable-pip-version-check torch==$(TORCH)
	.venv/bin/pip install --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

quickstart: .venv/.installed ## homespun fit on the documentation of installed packages, in minutes
	.venv/bin/homespun quickstart

lint: .venv/.installed ## ruff and mypy
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

test: .venv/.installed ## the tests, but for slow ones
	$(PYTEST) -m "not slow"

test-all: test ## all tests: those of make test, then the slow ones
	$(PYTEST) -m slow

docs: .venv/.installed ## the documentation, into site/
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict

wheel: .venv/.installed ## the wheel, into dist/
	.venv/bin/python -m build --wheel --no-isolation

lock: ## renew requirements.lock with the newest versions that pyproject.toml allows
	@test -n "$(PYTHON)" || { echo "$$NO_PYTHON" >&2; exit 1; }
	$(PYTHON) -m venv --clear .venv-lock
	.venv-lock/bin/pip install --disable-pip-version-check '.[dev,docs,track,export,gguf,metrics,vectors,sentencepiece,tune,ray,serve,peers]' hatchling editables torch==$(TORCH)
	.venv-lock/bin/pip freeze --all --exclude homespun --exclude pip | grep -viE '^(torch=|nvidia|cuda|triton)' > .venv-lock/packages.in
	.venv-lock/bin/pip install --disable-pip-version-check uv
	{ sed -n '/^#/p' requirements.lock; .venv-lock/bin/uv pip compile --quiet --no-deps --no-header --no-annotate --universal \
		--generate-hashes .venv-lock/packages.in; } > requirements.lock.new
	mv requirements.lock.new requirements.lock
	rm -rf .venv-lock

AUDIT := .venv-audit/bin

define SUMMARY
import json, pathlib, sys
path = pathlib.Path("dist/audit.json")
packages = json.loads(path.read_text())["dependencies"] if path.exists() else []
known = [package for package in packages if "vulns" in package]
if not known:
    print("audit skipped: the list of vulnerabilities cannot be reached")
    sys.exit()
found = [package for package in known if package["vulns"]]
print(f"{len(known)} of {len(packages)} packages are in the list, {len(found)} have known vulnerabilities")
for package in found:
    print(package["name"], package["version"], *(each["id"] for each in package["vulns"]))
sys.exit(bool(found))
endef
export SUMMARY

audit: ## bill of materials and known vulnerabilities of requirements.lock, into dist/; skipped offline
	@test -n "$(PYTHON)" || { echo "$$NO_PYTHON" >&2; exit 1; }
	@mkdir -p dist; rm -f dist/sbom.json dist/audit.*; $(PYTHON) -m venv --clear .venv-audit
	@if $(AUDIT)/pip install --quiet --disable-pip-version-check pip-audit cyclonedx-bom; then \
		{ cat requirements.lock; echo torch==$(TORCH); } > dist/requirements.txt; \
		$(AUDIT)/cyclonedx-py requirements dist/requirements.txt --output-reproducible -o dist/sbom.json; \
		sed -i.hashes 's/ *\\$$//; /^ *--hash/d' dist/requirements.txt; \
		$(AUDIT)/pip-audit -r dist/requirements.txt --no-deps --disable-pip --progress-spinner off -f json -o dist/audit.json 2>dist/audit.log; \
	fi; $(PYTHON) -c "$$SUMMARY"; status=$$?; rm -rf .venv-audit; exit $$status

clean: ## remove what was built; .venv and runs/ stay
	rm -rf build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .venv-lock
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
