"""The names that a notebook's cells set, failed to set, or did not set yet.

A cell that is run out of order, or after one that was skipped, ends in a `NameError`. Here it
becomes a card that names the cell to run first.
"""

import ast
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple

from gemini_lab.errors import GeminiError, in_lines

NOTEBOOK: Final = ("JPY_SESSION_NAME", "__vsc_ipynb_file__")
"""The variable of Jupyter's kernels, and the name in VS Code's, that hold the notebook's path."""
MOST_BYTES: Final = 64 * 2**20
"""Of a notebook that is read."""
_SETS: Final = re.compile(r"^(?:def|class)\s+(\w+)|^(\w+)\s*(?::[^=\n]+)?=", re.MULTILINE)
"""A name that a cell sets; it is also read from cells that are no Python."""
_failed: Final[dict[str, str]] = {}
"""Names whose newest cell raised before it could set them, with the error."""


def in_short(error: BaseException) -> str:
    """Return one line of an error; its name too, unless gemini_lab's own message says enough."""
    text = next(iter(str(error).strip().splitlines()), "")
    if isinstance(error, GeminiError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def shell() -> Any:
    """Return IPython's shell; `None` if there is none."""
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


def has_failed(name: str) -> bool:
    """Return whether the newest cell that sets a name raised."""
    return name in _failed


def why_missing(name: str) -> str:
    """Return which cell of the notebook sets a name; empty if none is known to."""
    if name in _failed:
        return f"the cell that makes `{name}` raised {_failed[name]}; mend it and run it again"
    place = _maker(name)
    return "" if place is None else f"first run the cell `{place.first_line}`{place.where}"


# -- names and the cells that set them -------------------------------------------------------------


class Place(NamedTuple):
    """A cell, and the section that it is in."""

    first_line: str
    section: str

    @property
    def where(self) -> str:
        """The section, if there is one."""
        return f", in section *{self.section}*" if self.section else ""


def _maker(name: str) -> Place | None:
    """Return the notebook's first cell that sets a name."""
    section = ""
    for kind, source in _cells():
        if kind == "markdown":
            heads = re.findall(r"^##\s+(.+)$", source, re.MULTILINE)
            section = heads[-1] if heads else section
        elif name in names_set_by(source):
            lines = [line for line in source.splitlines() if line and not line.startswith("#")]
            return Place(_shortened(lines[0]) if lines else "", section)
    return None


def _shortened(line: str, most: int = 60) -> str:
    line = line.strip().replace("`", "'")
    return line if len(line) <= most else f"{line[:most]}..."


def _cells() -> Iterator[tuple[str, str]]:
    """Yield the kind and the source of each cell of the notebook that this kernel runs."""
    path = notebook_path()
    try:
        if path is None or path.stat().st_size > MOST_BYTES:
            return
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        yield from [(str(cell["cell_type"]), "".join(cell["source"])) for cell in cells]
    except (OSError, ValueError, KeyError, TypeError):
        return


def notebook_path() -> Path | None:
    """Return the notebook's file, if the server or the editor told the kernel which it is."""
    running = shell()
    told = os.environ.get(NOTEBOOK[0]) or (running and running.user_ns.get(NOTEBOOK[1]))
    return Path(str(told)) if told else None


def names_set_by(source: str) -> set[str]:
    """Return the names that a cell sets, imports or defines in the notebook."""
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return {first or second for first, second in _SETS.findall(source)}
    found = set()
    for node in _outside_functions(body):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found.add(node.name)
    return found


def _outside_functions(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the nodes of a cell that run in the notebook's own namespace."""
    left: list[ast.AST] = list(body)
    while left:
        node = left.pop()
        yield node
        scopes = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
        comprehensions = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
        if not isinstance(node, scopes + comprehensions):
            left += ast.iter_child_nodes(node)


# -- what IPython tells ----------------------------------------------------------------------------


def _note(result: Any) -> None:
    """Keep in mind which names a cell has set, or failed to set."""
    names = names_set_by(result.info.raw_cell or "")
    error = result.error_before_exec or result.error_in_exec
    for name in names:
        _failed.pop(name, None)
        if error is not None and not getattr(error, "is_verdict", False):
            _failed[name] = in_short(error)


def _show_missing(
    running: Any,
    kind: type[BaseException],
    error: NameError,
    trace: TracebackType,
    tb_offset: int | None = None,
) -> None:
    """Show which cell is to be run first, in the place of a cell's `NameError`."""
    is_ours = kind is NameError and _is_of_a_cell(trace, running.user_ns)
    why = why_missing(error.name or "") if is_ours else ""
    if why:
        told = f"There is no `{error.name}` yet: {why}. Then run this one again."
        error._render_traceback_ = lambda: [in_lines(told)]  # type: ignore[attr-defined]
    running.showtraceback((kind, error, trace), tb_offset=tb_offset)


def _is_of_a_cell(trace: TracebackType, names: Mapping[str, object]) -> bool:
    """Return whether the innermost frame is a cell's, or that of a function of a cell."""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_globals is names


def follow(running: Any) -> None:
    """Follow a shell's cells from now on."""
    running.events.register("post_run_cell", _note)
    if not running.custom_exceptions:
        running.set_custom_exc((NameError,), _show_missing)


if (_running := shell()) is not None:
    follow(_running)
