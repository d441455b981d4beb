"""Who says which kind of event: read from the sources, for the documentation and a test."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from gemini_lab.log import events

PACKAGE: Final = Path(__file__).parents[1]
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
