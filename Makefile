# make quickstart   set everything up and run the main job
# make test         set everything up and run the tests
# make notebooks    make the labs from notebooks/src, without solutions
# make solutions    the labs with solutions, as a course for nbgrader in build/course

VENV ?= .venv
export VENV

.PHONY: quickstart test lint notebooks solutions set-up

quickstart: set-up
	$(VENV)/bin/gemini-lab quickstart

test: set-up
	$(VENV)/bin/python -m pytest

lint: set-up
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

notebooks: set-up
	$(VENV)/bin/python notebooks/build.py

solutions: set-up
	$(VENV)/bin/python notebooks/build.py --solutions

set-up:
	.ci/set-up
