# make quickstart   set everything up and run the main job
# make test         set everything up and run the tests: what is fast, and each way to recover once
# make test-full    all tests but the long ones
# make test-long    all tests
# make test-gpu     ten minutes on a machine with a GPU: what only one can settle, told as it comes
# make lint         formatter, linter, types, import contracts, sizes and the English of the docs
# make docs         the site, into build/docs
# make notebooks    make the labs from notebooks/src, without solutions
# make solutions    the labs with solutions, as a course for nbgrader in build/course

VENV ?= .venv
export VENV

.PHONY: quickstart test test-full test-long test-gpu lint docs notebooks solutions set-up

quickstart: set-up
	$(VENV)/bin/gemini-lab quickstart

test: set-up
	$(VENV)/bin/python -m pytest -n 2

test-full: set-up
	$(VENV)/bin/python -m pytest -n 2 --full

test-long: set-up
	$(VENV)/bin/python -m pytest --long

test-gpu: set-up
	$(VENV)/bin/gemini-lab bench gpu --all --lines build/gpu.jsonl

lint: set-up
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/python .ci/size
	$(VENV)/bin/python .ci/prose

docs: set-up
	@echo "building the site: a minute, or some on a busy machine"
	$(VENV)/bin/python -m sphinx --fail-on-warning --quiet docs build/docs
	@echo "the site is at build/docs/index.html"

notebooks: set-up
	$(VENV)/bin/python notebooks/build.py

solutions: set-up
	$(VENV)/bin/python notebooks/build.py --solutions

set-up:
	.ci/set-up
