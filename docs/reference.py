"""The generated pages of the reference: commands, settings, events, symptoms and public names.

Each build makes them from the code; nobody edits them.
"""

import importlib
import inspect
import io
import os
import pkgutil
import re
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from importlib import metadata
from pathlib import Path
from types import ModuleType

import events_table
import symptoms

import gemini_lab
from gemini_lab.cli.main import GROUPS, function_of
from gemini_lab.settings import GROUPS as SETTINGS

STAGES = ("profiler", "placement", "pipeliner", "injector", "recovery")
ROOMS = (*STAGES, "simulator")


def version() -> str:
    """The installed package's version."""
    return metadata.version("gemini-lab")


def write(folder: Path) -> None:
    """Write all pages into `folder`, and touch only those that differ."""
    pages = {
        "index.md": _index(),
        "public.rst": _public(),
        "commands.md": commands(),
        "settings.md": settings(),
        "symptoms.md": symptoms.page(),
    }
    pages |= {f"{room}.rst": _room(f"gemini_lab.{room}") for room in ROOMS}
    pages["events.md"] = _events()
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if old.name not in pages:
            old.unlink()
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


TASKS = (
    "Choose how many copies, and where",
    "Let copies follow the risk",
    "Save to the persistent tier",
    "React to wrong numbers and other code",
    "Change the number of nodes",
    "Find hung workers, and restart faster",
    "Choose when versions leave, and as what",
    "Plan chunks for idle spans",
)
"""A heading for each group of settings, in their order."""
CLI_HEAD = """\
# Commands

Each command's own `--help`. Exit codes are on [a page of their own](../exit-codes.md).
"""
SETTINGS_HEAD = """\
# Settings

Write settings into the `"gemini"` block of DeepSpeed's configuration, or give them to `protect` as
`settings=`. `gemini-lab run --set NAME=VALUE` overrides both. `gemini-lab run --dry-run` prints the
value and the origin of each. Times are in seconds; sizes may be written like `"4 MiB"`.
"""


def commands() -> str:
    """The help of every command, by the groups of `gemini-lab --help`."""
    parts = [CLI_HEAD]
    for group, names in GROUPS.items():
        parts.append(f"## {group.capitalize()}\n")
        parts += [f"### gemini-lab {name}\n\n```text\n{_help(name)}\n```\n" for name in names]
    return "\n".join(parts)


def _help(name: str) -> str:
    """What a command prints as its help, 90 columns wide."""
    said, before = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "90"  # by which argparse breaks lines
    try:
        with redirect_stdout(said), suppress(SystemExit):
            function_of(name)(["--help"])
    finally:
        os.environ.pop("COLUMNS")
        os.environ |= {} if before is None else {"COLUMNS": before}
    return said.getvalue().strip()


def settings() -> str:
    """A table of settings for each task."""
    parts = [SETTINGS_HEAD]
    for task, group in zip(TASKS, SETTINGS, strict=True):
        text = inspect.cleandoc(group.__doc__ or "")
        about, _, listed = text.partition("\n\nAttributes:\n")
        parts += [f"## {task}\n", f"{about}\n", "| setting | default | meaning |", "|---|---|---|"]
        for entry in re.split(r"\n(?= {4}\w)", listed):
            name, _, meaning = " ".join(entry.split()).partition(": ")
            default = getattr(group, name)
            shown = "" if default is None else f"`{default}`"
            parts.append(
                f"| `{name}` | {shown or 'none'} | {meaning.replace('|', chr(92) + '|')} |"
            )
        parts.append("")
    return "\n".join(parts)


def public_names() -> dict[str, str]:
    """Where each of `gemini_lab.__all__` is described, as `module.name`."""
    in_rooms = {
        id(value): full for room in ROOMS for full, value in _names(f"gemini_lab.{room}").items()
    }
    return {
        name: in_rooms.get(id(getattr(gemini_lab, name)), f"gemini_lab.{name}")
        for name in gemini_lab.__all__
    }


def _index() -> str:
    pages = ["public", *ROOMS]
    return (
        "# Public names\n\nMade from the docstrings of this version. Names that are not here are "
        "private and may\nchange without notice.\n\n"
        "```{toctree}\n:maxdepth: 1\n\n" + "\n".join(pages) + "\n```\n"
    )


def _public() -> str:
    """The names of the package itself; those of a stage are described there."""
    elsewhere, here = [], []
    for name, full in public_names().items():
        if full == f"gemini_lab.{name}":
            here.append(_described(full, getattr(gemini_lab, name)))
        else:
            elsewhere.append(
                f"- :py:obj:`gemini_lab.{name} <{full}>`: {_first_line(getattr(gemini_lab, name))}"
            )
    head = _heading("gemini_lab", "What ``import gemini_lab`` gives.")
    listed = "Described with their stage\n--------------------------\n\n" + "\n".join(elsewhere)
    return f"{head}.. py:module:: gemini_lab\n\n{''.join(here)}{listed}\n"


def _room(module: str) -> str:
    package = importlib.import_module(module)
    head = _heading(module, _with_map(inspect.getdoc(package) or ""))
    described = "".join(_described(full, value) for full, value in _names(module).items())
    return f"{head}.. py:module:: {module}\n\n{described}"


def _with_map(text: str) -> str:
    """A room's docstring, in which what is indented, its map, is shown as it is written."""
    return re.sub(r"\n\n(?=    \S)", "\n\n::\n\n", text)


def _names(module: str) -> dict[str, object]:
    """The public names of a package: its `__all__`, else what its modules define."""
    package = importlib.import_module(module)
    listed = getattr(package, "__all__", None)
    if listed is not None:
        return {f"{module}.{name}": getattr(package, name) for name in listed}
    return {
        f"{part.__name__}.{name}": value
        for part in _modules(package)
        for name, value in vars(part).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == part.__name__
    }


def _modules(package: ModuleType) -> Iterator[ModuleType]:
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        yield importlib.import_module(found.name)


def _described(full: str, value: object) -> str:
    """A directive that has Sphinx read the docstring."""
    if inspect.isclass(value):
        return f".. autoclass:: {full}\n   :members:\n   :exclude-members: __init__, __new__\n\n"
    if callable(value):
        return f".. autofunction:: {full}\n\n"
    module, _, name = full.rpartition(".")
    return f".. py:data:: {name}\n   :module: {module}\n\n"


def _first_line(value: object) -> str:
    return (inspect.getdoc(value) or "").partition("\n")[0]


def _heading(title: str, text: str) -> str:
    return f"{title}\n{'=' * len(title)}\n\n{text}\n\n"


def _events() -> str:
    """The table of the kinds of events."""
    head = (
        "# Events\n\nEvery kind of event in a run's log, made from `gemini_lab.log.events`. A line "
        "of the log is a JSON\nobject: `at_s`, `node`, `kind`, and the fields below. Moments are "
        "Unix time in real runs, and seconds\nsince the start in simulated ones.\n\n"
    )
    return f"{head}{events_table.table()}\n"
