"""Which cells of a notebook an exercise needs: those that define what it uses, and so on."""

import ast
import symtable
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

Notebook = dict[str, object]
"""As JSON has it."""
EXERCISE: Final = "exercise"
CHECK: Final = "check"


@dataclass(frozen=True, slots=True)
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

    @property
    def defined(self) -> set[str]:
        """The names that it sets, or changes what is in them; none if it cannot be read."""
        try:
            table = symtable.symtable(self.source, "cell", "exec")
            tree = ast.parse(self.source)
        except (SyntaxError, ValueError):
            return set()
        names = {
            each.get_name()
            for each in table.get_symbols()
            if each.is_assigned() or each.is_imported()
        }
        stores = (ast.Subscript, ast.Attribute)
        changed = [n for n in ast.walk(tree) if isinstance(n, stores) and _is_store(n)]
        return names | {n.value.id for n in changed if isinstance(n.value, ast.Name)}

    @property
    def used(self) -> set[str]:
        """The names that it reads, those in its functions too."""
        try:
            tree = ast.parse(self.source)
        except (SyntaxError, ValueError):
            return set()
        names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
        return {node.id for node in names if isinstance(node.ctx, ast.Load)}


def _is_store(node: ast.Subscript | ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Store)


def code_cells(notebook: Notebook) -> list[Cell]:
    """The cells with code, in order."""
    cells = notebook.get("cells")
    found = []
    for each in cells if isinstance(cells, list) else []:
        if each.get("cell_type") == "code":
            source = each.get("source", "")
            text = source if isinstance(source, str) else "".join(source)
            grader = each.get("metadata", {}).get("nbgrader", {})
            found.append(Cell(text, str(grader.get("grade_id", ""))))
    return found


def needed(cells: Sequence[Cell], names: Collection[str]) -> list[int]:
    """The numbers of the cells without which these names are not what they are, in order."""
    wanted, found = set(names), []
    for number in range(len(cells) - 1, -1, -1):
        cell = cells[number]
        if cell.defined & wanted:
            wanted |= cell.used
            found.append(number)
    return found[::-1]
