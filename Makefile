# make quickstart   set everything up and run the main job
# make test         set everything up and run the tests
# make lint         formatter, linter and types
# make docs         the site, into build/docs
# make notebooks    make the notebooks from notebooks/src
# make students     the same without solutions, into build/students

VENV ?= .venv
export VENV

.PHONY: quickstart test lint docs notebooks students set-up

quickstart: set-up
	$(VENV)/bin/gemini-lab quickstart

test: set-up
	$(VENV)/bin/python -m pytest

lint: set-up
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

docs: set-up
	$(VENV)/bin/python -m sphinx --fail-on-warning --quiet docs build/docs
	@echo "the site is at build/docs/index.html"

notebooks: set-up
	$(VENV)/bin/python notebooks/build.py

students: set-up
	$(VENV)/bin/python notebooks/build.py --students

set-up:
	.ci/set-up
