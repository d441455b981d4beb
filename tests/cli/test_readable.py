"""What came from a log, a script or a folder's name is printed as letters, whoever wrote it."""

import io
import re
import sys
from contextlib import redirect_stderr, redirect_stdout, suppress
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from lab_stand_in import run_in
from told_runs import ToldRun

from gemini_lab.cli.main import main
from gemini_lab.display import readable
from gemini_lab.errors import GeminiError
from gemini_lab.lab.progress_bars import Shown
from gemini_lab.log import events
from gemini_lab.log.entry import Entry, encode_entry
from gemini_lab.log.file import read_log
from gemini_lab.placement import Placement, plan_placement
from gemini_lab.settings import Settings

TITLE, CLEAR, CLIPBOARD = "\x1b]0;yours\x07", "\x1b[2J\x1b[H", "\x1b]52;c;cm0gLXJm\x07"
LINKED = "[link=http://evil]here[/link][red]:smile:[/nothing]"
HOSTILE = (
    f"a{TITLE}{CLEAR}{CLIPBOARD}\x9b2J\x85\u2028\u202egnp.exe\u2066\u200b\x7f\x00\x08{LINKED}"
    "\r\nforged: the run finished\nforged again"
)
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What no output has; line ends are looked at apart."""
OF_STAGES = {
    Placement: plan_placement(nodes=4, replicas=2),
    Settings: Settings(),
}


def filled(kind: Any) -> Any:
    """A value of a type, in plain JSON, with something hostile in each text."""
    if kind in OF_STAGES:
        return msgspec.to_builtins(OF_STAGES[kind])
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind)
        return {name: filled(hints[name]) for name in kind.__struct_encode_fields__}
    simple = {str: HOSTILE, int: 1, float: 1.0, bool: True, NoneType: None}
    if kind in simple:
        return simple[kind]
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return args[0]
    if origin in {Union, UnionType}:
        return filled(str if str in args else next(one for one in args if one is not NoneType))
    if origin is tuple:
        return [filled(one) for one in args if one is not Ellipsis]
    if origin is dict:
        return {filled(args[0]): filled(args[1])}
    return None


def hostile(kind: type[events.Event]) -> Entry | None:
    """An entry of a kind, as a stranger may have written it; None where it has no text."""
    told = {name: filled(hint) for name, hint in get_type_hints(kind).items()}
    told = {name: value for name, value in told.items() if name in kind.__struct_fields__}
    if kind is events.LogOpened:
        return None
    for left_out in ({}, {"calibration", "profile", "schedule"}):
        with suppress(msgspec.ValidationError, GeminiError):
            said = {name: value for name, value in told.items() if name not in left_out}
            event = msgspec.convert({"kind": kind.__struct_config__.tag, **said}, events.AnyEvent)
            return Entry(at_s=1_795_000_100.0, node=HOSTILE, event=event)
    return None


ENTRIES = {kind.__name__: hostile(kind) for kind in get_args(events.AnyEvent)}
WITHOUT_TEXT = {"LogOpened", "Profiled", "Collectives"}


def test_something_hostile_stands_in_each_text_of_all_kinds():
    assert {name for name, entry in ENTRIES.items() if entry is None} <= WITHOUT_TEXT
    texts = {
        (name, field)
        for name, entry in ENTRIES.items()
        if entry is not None
        for field, hint in get_type_hints(type(entry.event)).items()
        if hint is str and getattr(entry.event, field) != HOSTILE
    }
    assert not texts


def written(folder, entries):
    """A log with these entries among those of a plain run, below `folder`."""
    run = ToldRun(nodes=4)
    for step in range(1, 4):
        run.iterate(step)
    folder.mkdir(parents=True)
    lines = [encode_entry(one) for one in [*run.entries, *entries]]
    (folder / "events.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    return folder


def is_clean(text: str) -> bool:
    """Whether a terminal shows all of it as letters, and no line of it was made up."""
    forged = [line for line in text.splitlines() if line.startswith("forged")]
    return not RAW.search(text) and not forged


COMMANDS = {
    "report": ["report"],
    "report --predict": ["report", "--predict"],
    "report --json": ["report", "--json"],
    "status": ["status"],
    "metrics": ["metrics", "--once"],
    "top": ["top", "--every", "0.1"],
}


def said_by(arguments: list[str]) -> str:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with redirect_stdout(out), redirect_stderr(out), suppress(SystemExit):
        main(arguments)
    out.seek(0)
    return out.read()


ENDING = Entry(
    at_s=1_795_000_200.0, node="lab", event=events.RunFailed(reason=HOSTILE, output=(HOSTILE,))
)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_prints_what_a_stranger_wrote_into_a_log(tmp_path, command):
    entries = [entry for entry in ENTRIES.values() if entry]
    folder = written(tmp_path / "a\x1b[2Jb", [*entries, ENDING])
    said = said_by([*COMMANDS[command], str(folder)])
    assert "Traceback" not in said
    assert is_clean(said), said


@pytest.mark.parametrize("kind", [name for name, entry in ENTRIES.items() if entry])
def test_no_kind_of_event_has_a_text_that_is_printed_raw(tmp_path, kind):
    folder = written(tmp_path / "run", [ENTRIES[kind], ENDING])
    said = said_by(["report", str(folder)]) + said_by(["status", str(folder)])
    assert "Traceback" not in said
    assert is_clean(said), said


@pytest.mark.parametrize("kind", [name for name, entry in ENTRIES.items() if entry])
def test_who_follows_a_run_is_shown_letters(tmp_path, kind, capsys):
    run = run_in(tmp_path / "run")
    shown = Shown(run, total=None, show_output=True)
    run.hear(0, [HOSTILE])
    run.follow(ENTRIES[kind])
    run.follow(Entry(at_s=2.0, node="lab", event=events.RunFailed(reason=HOSTILE)))
    shown.follow()
    with pytest.raises(GeminiError) as failed:
        run.wait(1)
    told = capsys.readouterr()
    assert is_clean(told.out + told.err), told
    assert is_clean(str(failed.value))
    assert "a\\x1b]0;yours" in told.out


def test_an_error_and_a_missing_run_are_said_in_letters(tmp_path):
    for arguments in (["report", HOSTILE], ["status", str(tmp_path / HOSTILE)], [HOSTILE]):
        assert is_clean(said_by(arguments))


def test_a_damaged_line_is_said_in_letters(tmp_path):
    folder = written(tmp_path / "run", [])
    with (folder / "events.jsonl").open("ab") as log:
        log.write(msgspec.json.encode({"at_s": 1.0, "node": "n", "kind": "note", HOSTILE: 1}))
        log.write(b"\n")
    said = said_by(["report", str(folder)])
    assert "events.jsonl, line" in said
    assert is_clean(said), said


def test_letters_of_all_languages_stay_as_they_are():
    for text in ("Zürich", "日本語", "שלום", "👩‍👩‍👧", "naïve «so»", "a\u00a0b"):
        assert readable(text) == text


def test_what_is_readable_stays_so_and_several_lines_only_where_they_are_marked():
    assert readable(readable(HOSTILE)) == readable(HOSTILE)
    assert readable("one\ntwo\tthree") == "one\\ntwo three"
    assert readable("one\ntwo", has_lines=True) == "one\ntwo"
    assert readable("\x1b[1;31mred\x1b[0m") == "red"


def test_notes_keep_their_lines_and_names_do_not(tmp_path):
    entries = [ENTRIES["Note"], ENTRIES["NodeReady"]]
    read = [*read_log(written(tmp_path / "run", entries) / "events.jsonl")][-2:]
    assert read[0].event.text.count("\n") == 2
    assert "\n" not in read[1].event.name
    assert "forged" in read[1].event.name


def test_a_locale_without_all_letters_is_no_error(tmp_path, monkeypatch):
    folder = written(tmp_path / "run", [])
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict", write_through=True)
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["status", str(folder)]) == 0
    assert main(["report", str(folder.rename(tmp_path / "zürich"))]) == 0
