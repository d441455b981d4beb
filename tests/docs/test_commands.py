"""Commands and settings that README and guide give are ones that there are, with such values."""

import argparse
import dataclasses
import json
import re
import shlex
from pathlib import Path

import pytest

from gemini_lab.cli.main import COMMANDS, main
from gemini_lab.settings import Settings
from gemini_lab_bench.command import BENCHES

ROOT = Path(__file__).parents[2]
SETTINGS = {each.name for each in dataclasses.fields(Settings)}
PAGES = (
    ROOT / "README.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if "made" not in page.parts),
)
FILLED = {"...": "train.py", "WHERE": "otlp", "--your --own --arguments": "--seed 1"}


class ParsedError(Exception):
    """A command line was understood; what it asks for is not done."""


def blocks(page):
    """Its indented lines, those that go on in the next one as one line."""
    text = page.read_text(encoding="utf-8")
    lines = re.sub(r" \\\n +", " ", text).splitlines()
    return [line.strip() for line in lines if line.startswith("    ")]


LINES = sorted({line for page in PAGES for line in blocks(page) if line.startswith("gemini-lab ")})
INLINE = sorted(
    {
        found
        for page in PAGES
        for found in re.findall(r"`gemini-lab ([^`]+)`", page.read_text(encoding="utf-8"))
    }
)


def stop_when_parsed(monkeypatch):
    """Have every command end where it knows what it is asked."""
    for name in ("parse_args", "parse_intermixed_args"):
        parse = getattr(argparse.ArgumentParser, name)

        def stop(*arguments, parse=parse, **more):
            parse(*arguments, **more)
            raise ParsedError

        monkeypatch.setattr(argparse.ArgumentParser, name, stop)


@pytest.mark.parametrize("line", LINES)
def test_a_command_line_of_a_page_is_understood(monkeypatch, line):
    for open_, filled in FILLED.items():
        line = line.replace(open_, filled)
    _, *words = shlex.split(line, comments=True)
    stop_when_parsed(monkeypatch)
    with pytest.raises(ParsedError):
        main(words)


@pytest.mark.parametrize("text", INLINE)
def test_a_command_that_a_sentence_names_has_the_options_that_it_names(capsys, text):
    """Sentences leave out what a command needs besides, so it is asked for its help."""
    name, *words = shlex.split(text)
    if name.startswith("--"):
        assert main([name]) == 0
        return
    assert name in COMMANDS
    whose = [name, *words[:1]] if name == "bench" and {*words[:1]} & {*BENCHES} else [name]
    with pytest.raises(SystemExit):
        main([*whose, "--help"])
    told = capsys.readouterr().out
    assert [word for word in words if word.startswith("-") and word not in told] == []


def settings_in(page):
    """What stands in its blocks of JSON and, one by one, in its sentences."""
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL):
        yield json.loads(block)["gemini"]
    for name, value in re.findall(r"`\"(\w+)\": ([^`{}]+)`", text):
        if name in SETTINGS:
            yield {name: json.loads("100" if value == "n" else value)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_of_a_page_are_taken(page):
    for found in settings_in(page):
        Settings.parse(found)


def test_there_are_settings_on_the_pages():
    assert sum(len(list(settings_in(page))) for page in PAGES) > 10
