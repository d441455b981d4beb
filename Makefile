# make quickstart   set everything up and run the main job
# make test         set everything up and run the tests

VENV ?= .venv
export VENV

.PHONY: quickstart test lint set-up

quickstart: set-up
	$(VENV)/bin/gemini-lab quickstart

test: set-up
	$(VENV)/bin/python -m pytest

lint: set-up
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

set-up:
	.ci/set-up
