"""ES modules of a folder as the one file that notebooks, Panel and saved pages ask for.

The modules are what a browser or Node.js would load as they are. Joining them keeps to a small part
of the language, so that it needs no tool of JavaScript's: `import { a, b } from "./other.js";` and
exported declarations, both at the beginning of a line. Whatever else it meets it refuses.
"""

import re
from functools import cache
from pathlib import Path
from typing import Final

IMPORT: Final = re.compile(
    r'^import \{((?:\s*[\w$]+\s*,)*\s*[\w$]+\s*)\}\s+from "\./(\w+)\.js";\n', re.MULTILINE
)
EXPORT: Final = re.compile(r"^export (?=(?:async )?(?:function|class|const|let) )", re.MULTILINE)
LEFT_OVER: Final = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


@cache
def joined(entry: Path) -> str:
    """Return the module `entry` with all that it imports, as one with the same exports.

    Each imported module becomes a function of its own, called once, so that equal names in two
    modules stay apart. The same files give the same text.

    Raises:
        ValueError: Modules import one another in a circle, or one has an import or export of a form
            that is not joined.
    """
    order = _in_order(entry)
    wanted: dict[str, set[str]] = {path.stem: set() for path in order}
    for path in order:
        for names, other in _imports(path):
            wanted[other].update(names)
    *parts, last = order
    return "".join([_part(path, sorted(wanted[path.stem])) for path in parts] + [_bound(last)])


def _in_order(entry: Path) -> list[Path]:
    """Return `entry` and all that it needs, each after its own imports."""
    done: list[Path] = []

    def visit(path: Path, way: tuple[str, ...]) -> None:
        if path.stem in way:
            raise ValueError(f"modules import one another: {' -> '.join((*way, path.stem))}")
        if path in done:
            return
        for _, other in _imports(path):
            visit(path.with_name(f"{other}.js"), (*way, path.stem))
        done.append(path)

    visit(entry, ())
    return done


def _imports(path: Path) -> list[tuple[list[str], str]]:
    """Return names and module of each import of `path`."""
    found = IMPORT.findall(path.read_text(encoding="utf-8"))
    return [(re.findall(r"[\w$]+", names), other) for names, other in found]


def _bound(path: Path) -> str:
    """Return the text of `path` with its imports read from the parts before it."""
    text = path.read_text(encoding="utf-8")
    bound = IMPORT.sub(lambda match: f"const {{{match[1]}}} = ${match[2]};\n", text)
    if stray := re.search(r"^import\b.*", bound, re.MULTILINE):
        raise ValueError(f"{path.name}: this form of import is not joined: {stray[0]}")
    return bound


def _part(path: Path, names: list[str]) -> str:
    """Return a module as a value that holds what others import from it."""
    body = EXPORT.sub("", _bound(path))
    if stray := LEFT_OVER.search(body):
        raise ValueError(f"{path.name}: this form of export is not joined: {stray[0]}")
    return f"const ${path.stem} = (() => {{\n{body}return {{ {', '.join(names)} }};\n}})();\n"
