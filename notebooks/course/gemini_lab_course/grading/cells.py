"""Which cells of a notebook an exercise needs: those that define what it uses, and so on."""

import ast
import re
import symtable
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from IPython.core.inputtransformer2 import TransformerManager

Notebook = dict[str, object]
"""As JSON has it."""
EXERCISE: Final = "exercise"
CHECK: Final = "check"
TIME: Final = re.compile(r"^%time\s+", re.MULTILINE)
"""What stands before a line that is run, and timed."""
EVERYTHING: Final = "*"
"""What `from MODULE import *` sets."""
CHANGES: Final = frozenset(
    {"add", "append", "clear", "discard", "extend", "insert", "pop", "remove", "reverse"}
    | {"setdefault", "sort", "update"}
)
"""Methods that change a list, a set or a dictionary."""


@dataclass(frozen=True)
class Cell:
    """A cell with code.

    Attributes:
        source: The code.
        grade_id: nbgrader's name of it; empty where it is neither an exercise's answer nor a check.
    """

    source: str
    grade_id: str = ""

    @property
    def is_check(self) -> bool:
        """Whether it judges an answer."""
        return self.grade_id.startswith(CHECK)

    @property
    def is_answer(self) -> bool:
        """Whether an answer belongs here."""
        return self.grade_id.startswith(EXERCISE)

    @cached_property
    def python(self) -> str:
        """The code with IPython's own forms, such as `%time`, in Python; empty if it is none."""
        lines = self.source.lstrip().splitlines(keepends=True)
        code = "".join(lines[1:] if lines and lines[0].startswith("%%") else lines)
        with suppress(SyntaxError, ValueError):
            plain: str = TransformerManager().transform_cell(TIME.sub("", code))
            ast.parse(plain)
            return plain
        return ""

    @property
    def defined(self) -> set[str]:
        """The names that it sets, or changes what is in them; `*` where an import hides some."""
        table = symtable.symtable(self.python, "cell", "exec")
        names = {
            each.get_name()
            for each in table.get_symbols()
            if each.is_assigned() or each.is_imported()
        }
        nodes = list(ast.walk(ast.parse(self.python)))
        stars = {name.name for n in nodes if isinstance(n, ast.ImportFrom) for name in n.names}
        return names | {_changed(node) for node in nodes} - {""} | stars & {EVERYTHING}

    @property
    def used(self) -> set[str]:
        """The names that it reads, those in its functions too."""
        names = [node for node in ast.walk(ast.parse(self.python)) if isinstance(node, ast.Name)]
        return {node.id for node in names if isinstance(node.ctx, ast.Load)}


def _changed(node: ast.AST) -> str:
    """The name of what is changed in place, as by `found[1] = 2` or `found.append(2)`, or none."""
    match node:
        case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store()):
            return name
        case ast.Attribute(value=ast.Name(id=name), ctx=ast.Store()):
            return name
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=how)) if how in CHANGES:
            return name
    return ""


def grade_id_of(metadata: object) -> str:
    """The name that nbgrader gives a cell with these metadata; empty if it has none."""
    marks = metadata.get("nbgrader") if isinstance(metadata, Mapping) else None
    return str(marks.get("grade_id", "")) if isinstance(marks, Mapping) else ""


def title_of(notebook: Notebook) -> str:
    """The line with which a notebook begins, by which people know a lab; empty if there is none."""
    cells = notebook.get("cells")
    first: object = next(iter(cells), {}) if isinstance(cells, list) else {}
    if not isinstance(first, Mapping) or first.get("cell_type") != "markdown":
        return ""
    source = first.get("source", "")
    text = source if isinstance(source, str) else "".join(source)
    return next(iter(text.strip().splitlines()), "")


def code_cells(notebook: Notebook) -> list[Cell]:
    """The cells with code, in order; of copies of one the first keeps nbgrader's name."""
    cells = notebook.get("cells")
    found, known = [], {""}
    for each in cells if isinstance(cells, list) else []:
        if each.get("cell_type") == "code":
            source = each.get("source", "")
            text = source if isinstance(source, str) else "".join(source)
            grade_id = grade_id_of(each.get("metadata"))
            found.append(Cell(text, "" if grade_id in known else grade_id))
            known.add(grade_id)
    return found


def needed(cells: Sequence[Cell], names: Collection[str]) -> list[int]:
    """The numbers of the cells without which these names are not what they are, in order."""
    wanted, found = {*names, EVERYTHING}, []
    for number in range(len(cells) - 1, -1, -1):
        cell = cells[number]
        if cell.defined & wanted:
            wanted |= cell.used
            found.append(number)
    return found[::-1]
