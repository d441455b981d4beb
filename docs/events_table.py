"""The reference's table of events, and which source files emit each kind."""

import ast
import inspect
from collections import ChainMap, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

import field_texts
import msgspec

from gemini_lab.log import events
from gemini_lab.log.entry import moments_of
from gemini_lab.log.events import KINDS, Event

PACKAGE: Final = Path(events.__file__).parents[1]
_BY_NAME: Final = {kind.__name__: name for name, kind in events.KINDS.items()}


def emitters() -> Mapping[str, tuple[str, ...]]:
    """For each kind that is made somewhere in the package, the modules that do, in order.

    An event is made by calling its class or the class's `of`. The class was imported from
    `gemini_lab.log.events` by its name or with the module. Tests are not looked at.
    """
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for kind in made_in(path.read_text(encoding="utf-8")):
            found[kind].add(module)
    return {kind: tuple(sorted(modules)) for kind, modules in found.items()}


def made_in(source: str) -> Iterator[str]:
    """The kinds of events that a module's source makes."""
    tree = ast.parse(source)
    classes, modules = _imported(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        match _maker(node.func):
            case ast.Name(id=name) if name in classes:
                yield classes[name]
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module in modules:
                if name in _BY_NAME:
                    yield _BY_NAME[name]


def _maker(called: ast.expr) -> ast.expr:
    """The class that is called, also by its constructor `of`."""
    return called.value if isinstance(called, ast.Attribute) and called.attr == "of" else called


def _imported(tree: ast.AST) -> tuple[dict[str, str], set[str]]:
    """The event classes by the name that they have here, and the names of the events' module."""
    classes, modules = {}, set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        for alias in node.names:
            here = alias.asname or alias.name
            if node.module == events.__name__ and alias.name in _BY_NAME:
                classes[here] = _BY_NAME[alias.name]
            elif node.module == "gemini_lab.log" and alias.name == "events":
                modules.add(here)
    return classes, modules


_UNITS: Final = {"_bytes_per_s": "bytes/s", "_bytes": "bytes", "_us": "microseconds", "_s": "s"}


def table() -> str:
    """The Markdown table: kind, meaning, fields with their types and units, who says it."""
    said_by = emitters()
    rows = [
        f"| `{name}` | {_meaning(kind)} | {'<br>'.join(_fields(kind))} "
        f"| {'<br>'.join(f'`{module}`' for module in said_by.get(name, ()))} |"
        for name, kind in KINDS.items()
    ]
    return "\n".join(["| kind | what happened | fields | said by |", "|---|---|---|---|", *rows])


def _meaning(kind: type[Event]) -> str:
    return _in_a_cell((inspect.getdoc(kind) or "").partition("\n\n")[0])


def _fields(kind: type[Event]) -> Iterator[str]:
    hints, moments = get_type_hints(kind, include_extras=True), moments_of(kind)
    bases = kind.__mro__[: kind.__mro__.index(Event)]
    texts = ChainMap(*(field_texts.of(base) for base in bases))
    for field in msgspec.structs.fields(kind):
        unit = "moment" if field.name in moments else _unit(field.name)
        of = ", ".join(filter(None, (_type(hints[field.name]), unit)))
        yield f"`{field.name}` ({of}): {_in_a_cell(texts[field.name])}"


def _unit(name: str) -> str:
    return next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), "")


def _type(hint: Any) -> str:
    """A type as people read it."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint is type(None):
        return "none"
    if origin is None:
        return str(hint.__name__)
    if origin is Annotated:
        return _type(parts[0])
    if origin is Literal:
        return " or ".join(f'"{value}"' for value in parts)
    if origin is tuple:
        is_list = len(parts) == 2 and parts[1] is ...
        return f"list of {_type(parts[0])}" if is_list else f"[{', '.join(map(_type, parts))}]"
    if origin is dict:
        return f"{_type(parts[1])} by name"
    return " or ".join(_type(part) for part in parts)


def _in_a_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
