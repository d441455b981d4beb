"""Predictions: a number, a choice or a table, and why; the result is hidden until it is revealed.

    size = predict("How large is its checkpoint, in TB?")
    slower = predict("Minutes or hours?", "minutes", "hours")
    drawn = draw("Who holds it?", rows=("DP", "TP"), columns=("weights",), marks=("same", "own"))
    ...
    size.came_out(f"{checkpoint_bytes / 1e12:.2f}")
    drawn.came_out("DP: same\nTP: own")

They are kept in `predictions.json` beside the notebook, with what came out, for a class to compare.
A kernel shows a result only after it has revealed that result itself.
"""

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

import ipywidgets
import traitlets
from gemini_lab_widgets.cell_output import CellOutput

from gemini_lab.display import NO_FORMULAS, in_notebook, tell
from gemini_lab.errors import ConfigError

FILE: Final = Path("predictions.json")
LATE: Final = "entered"
"""The key of a prediction that was entered after its result."""
CHANGE: Final = "run this cell again to change it"
MOST_CHARACTERS: Final = 1000
"""Of an answer and of its reason; the rest is cut off."""
Key = tuple[Path, str]
_results: Final[dict[Key, str]] = {}
"""What this kernel's cells have found out."""
_revealed: Final[set[Key]] = set()
"""Of which of these the reader knows."""


class Prediction:
    """A question with an answer and a reason; a cell that ends in it asks for both.

    What was entered takes the boxes' place as text, so that a saved notebook has it.

    Args:
        question: The same words are the same question.
        choices: The answers to choose from; without them the answer is typed.
        box: What takes the answer in place of these; its `value` is a text.
        file: Where predictions are kept.

    Raises:
        ConfigError: The file is not one of predictions.
    """

    def __init__(
        self, question: str, *choices: str, box: "Grid | None" = None, file: Path = FILE
    ) -> None:
        self.question, self._file, self._choices = question, file, choices
        self._known = read_predictions(file).get(question, {})
        before = str(self._known.get("predicted", ""))
        self.box: Any = box
        if self.box is not None:
            self.box.value = before
        elif choices:
            self.box = ipywidgets.ToggleButtons(
                options=choices,
                value=before if before in choices else None,
                style={"button_width": "initial"},
            )
        else:
            self.box = ipywidgets.Text(value=before, placeholder="your prediction")
        self.why = ipywidgets.Text(
            value=self._known.get("why", ""),
            placeholder="why?",
            layout={"width": "32em", "max_width": "100%"},
        )
        self.keep_button = ipywidgets.Button(description="Predict", icon="check")
        self.reset_button = ipywidgets.Button(description="Start over", icon="undo")
        asked = ipywidgets.HTML(f'<b class="{NO_FORMULAS}">{escape(question)}</b>')
        buttons = ipywidgets.HBox([self.keep_button, self.reset_button])
        self._row = ipywidgets.VBox([asked, self.box, self.why, buttons])
        self._below, self._result = CellOutput(), CellOutput()
        self._lines = ""
        self._key = (file.absolute(), question)
        for each in (self.box, self.why):
            each.observe(lambda _: self._write(), names="value")
        self.keep_button.on_click(lambda _: self._close())
        self.reset_button.on_click(lambda _: self.reset())

    @property
    def seen(self) -> str | None:
        """The result, if this kernel has revealed it."""
        return _results.get(self._key) if self._key in _revealed else None

    @property
    def words(self) -> str:
        """The prediction, its reason and, once it is revealed, the result."""
        predicted, why = self._known.get("predicted"), self._known.get("why")
        told = f"predicted: {predicted or 'nothing'}" + (f", because {why}" if why else "")
        told += f" (entered {self._known[LATE]})" if LATE in self._known else ""
        if self.seen is None:
            return f"{told}; {CHANGE}" if predicted else told
        if predicted and self._choices:
            return (
                f"{told}; {'and so it' if predicted == self.seen else 'it'} came out: {self.seen}"
            )
        return f"{told}; came out: {self.seen}"

    def came_out(self, seen: object, *lines: str) -> None:
        """Reveal the result; if nothing was predicted, a button waits in its place.

        Args:
            seen: The result.
            lines: Lines that show it, hidden until then too.
        """
        self._lines = "\n".join(lines)
        _results[self._key] = str(seen)
        self._write(came_out=str(seen))
        if not self.is_empty:
            _revealed.add(self._key)
            self._below.put(self._as_text())
        if in_notebook():
            self._result.show(self._as_result())
        else:
            tell(self.words if self.seen is None else f"{self.words}\n{self._lines}".strip())

    def reveal(self) -> None:
        """Show the result to a reader who does not want to predict."""
        _revealed.add(self._key)
        self._result.put(self._as_result())

    def reset(self) -> None:
        """Forget the answer, its reason and the result, and ask again."""
        _revealed.discard(self._key)
        self._keep({})
        for box in (self.box, self.why):
            box.value = None if box is self.box and self._choices else ""
        self._below.put(self._as_widget())
        self._result.put(self._as_result())

    @property
    def is_empty(self) -> bool:
        """Whether nothing was predicted."""
        return not self._known.get("predicted")

    def _write(self, **more: str) -> None:
        predicted = str(self.box.value or "").strip()[:MOST_CHARACTERS]
        why = str(self.why.value).strip()[:MOST_CHARACTERS]
        if predicted != self._known.get("predicted", ""):
            if self.seen is not None and "came_out" not in more:
                more[LATE] = "after it had come out"
            else:
                self._known.pop("came_out", None)  # of an earlier kernel
        late = {LATE: self._known[LATE]} if LATE in self._known else {}
        came = {key: self._known[key] for key in ("came_out",) if key in self._known}
        self._keep({"predicted": predicted, "why": why, **came, **late, **more})

    def _keep(self, known: dict[str, str]) -> None:
        kept = read_predictions(self._file)
        self._known = kept[self.question] = {key: text for key, text in known.items() if text}
        draft = self._file.with_suffix(".part")
        draft.write_text(json.dumps(kept, indent=1, ensure_ascii=False), encoding="utf-8")
        draft.replace(self._file)

    def _close(self) -> None:
        """Put what was entered in the boxes' place."""
        self._write()
        if self.is_empty:
            return
        if self._key in _results:
            _revealed.add(self._key)
        self._below.put(self._as_text())
        self._result.put(self._as_result())

    def _as_text(self) -> dict[str, Any]:
        told = f"<b>{escape(self.question)}</b>&emsp;{escape(self.words)}"
        return {"text/html": _paragraph(told), "text/plain": f"{self.question}: {self.words}"}

    def _as_result(self) -> dict[str, Any]:
        """Return what a cell shows that found the result out."""
        lines = f"<pre>{escape(self._lines)}</pre>" if self._lines else ""
        if self.seen is not None:
            shown = self._as_text()
            plain = f"{shown['text/plain']}\n{self._lines}".strip()
            return {"text/html": shown["text/html"] + lines, "text/plain": plain}
        button = ipywidgets.Button(description="Show the result", icon="eye")
        button.on_click(lambda _: self.reveal())
        question = self.question if self.question.endswith("?") else f"{self.question} ..."
        asked = f"{question} Predict it above: the result appears here."
        text = ipywidgets.HTML(f'<span class="{NO_FORMULAS}">{escape(asked)}</span>')
        row = ipywidgets.HBox([text, button], layout={"flex_flow": "row wrap"})
        told = f"<summary>{escape(self.question)} The result</summary>"
        result = escape(_results.get(self._key, "")).replace("\n", "<br>")
        folded = f"<details>{told}{result}{lines}</details>"
        return {
            **row._repr_mimebundle_(),
            "text/html": _paragraph(folded),
            "text/plain": asked,
        }

    def _as_widget(self) -> dict[str, Any]:
        return {**self._row._repr_mimebundle_(), **self._as_text()}

    def _ipython_display_(self) -> None:
        self._below.show(self._as_widget())


class Grid(ipywidgets.GridBox):  # type: ignore[misc]
    """Buttons in rows and columns; a click on one takes the next mark.

    Args:
        rows, columns: Their names.
        marks: What a cell can be; before the first click it is nothing.

    Attributes:
        value: A line for each row, `ROW: MARK MARK ...`, with `?` for nothing; empty if no cell has
            a mark.
    """

    value = traitlets.Unicode()

    def __init__(self, rows: Sequence[str], columns: Sequence[str], marks: Sequence[str]) -> None:
        self._rows, self._marks = {row: [""] * len(columns) for row in rows}, ("", *marks)
        styles = ("", "success", "primary", "warning", "info")
        self._styles = dict(zip(self._marks, styles, strict=False))
        self.buttons = {
            (row, number): ipywidgets.Button(
                tooltip=f"{row}, {column}", layout={"width": "auto"}, description=" "
            )
            for row in rows
            for number, column in enumerate(columns)
        }
        cells: list[Any] = [ipywidgets.Label(text) for text in ("", *columns)]
        for row in rows:
            cells.append(ipywidgets.Label(row))
            cells += [self.buttons[row, number] for number in range(len(columns))]
        for place, button in self.buttons.items():
            button.on_click(lambda _, place=place: self._click(*place))
        wide = f"6em repeat({len(columns)}, minmax(4em, 8em))"
        super().__init__(cells, layout={"grid_template_columns": wide, "grid_gap": "2px"})
        self.observe(lambda _: self._take(), names="value")

    def _click(self, row: str, number: int) -> None:
        """Give a cell the next mark."""
        marks = self._rows[row]
        marks[number] = self._marks[(self._marks.index(marks[number]) + 1) % len(self._marks)]
        lines = [
            f"{row}: {' '.join(mark or '?' for mark in marks)}" for row, marks in self._rows.items()
        ]
        self.value = "\n".join(lines) if any(map(any, self._rows.values())) else ""

    def _take(self) -> None:
        """Show the marks that `value` has."""
        told = marks_in(self.value)
        for row, marks in self._rows.items():
            marks[:] = [
                mark if mark in self._marks else ""
                for mark in (told.get(row, []) + [""] * len(marks))[: len(marks)]
            ]
            for number, mark in enumerate(marks):
                button = self.buttons[row, number]
                button.description, button.button_style = mark or " ", self._styles[mark]


def marks_in(text: str) -> dict[str, list[str]]:
    """Return the marks of each row of a grid's value."""
    lines = (line.partition(": ") for line in text.splitlines())
    return {row: marks.split() for row, _, marks in lines}


class Drawing(Prediction):
    """A prediction that is drawn into a grid, and compared cell by cell with what came out."""

    def __init__(
        self,
        question: str,
        *,
        rows: Sequence[str],
        columns: Sequence[str],
        marks: Sequence[str],
        file: Path = FILE,
    ) -> None:
        self._columns = columns
        super().__init__(question, box=Grid(rows, columns, marks), file=file)

    @property
    def words(self) -> str:
        """How many cells are drawn and, once the result is revealed, how many are like it."""
        drawn, why = self._known.get("predicted", ""), self._known.get("why")
        cells = [mark for marks in marks_in(drawn).values() for mark in marks]
        told = f"drawn: {sum(mark != '?' for mark in cells)} cells"
        told += f", because {why}" if why else ""
        told += f" (entered {self._known[LATE]})" if LATE in self._known else ""
        if self.seen is None:
            return f"{told}; {CHANGE}" if cells else told
        pairs = self._pairs()
        return f"{told}; {sum(mine == seen for mine, seen in pairs)} of {len(pairs)} came out so"

    def _pairs(self) -> list[tuple[str, str]]:
        """Return for each cell what was drawn and what came out."""
        drawn, seen = marks_in(self._known.get("predicted", "")), marks_in(self.seen or "")
        return [
            ((drawn.get(row, []) + ["?"] * len(marks))[number], mark)
            for row, marks in seen.items()
            for number, mark in enumerate(marks)
        ]

    def _as_text(self) -> dict[str, Any]:
        seen, shown = self.seen, self.seen or self._known.get("predicted", "")
        pairs = iter(self._pairs())
        head = "".join(f"<th>{escape(column)}</th>" for column in ("", *self._columns))
        lines = []
        for row, marks in marks_in(shown).items():
            cells = (_compared(*next(pairs)) if seen else escape(mark) for mark in marks)
            drawn = "".join(f"<td>{cell}</td>" for cell in cells)
            lines.append(f"<tr><th>{escape(row)}</th>{drawn}</tr>")
        table = f"<table><tr>{head}</tr>{''.join(lines)}</table>" if lines else ""
        told = f"<b>{escape(self.question)}</b>&emsp;{escape(self.words)}"
        plain = f"{self.question}: {self.words}\n{shown}".strip()
        return {"text/html": _paragraph(told + table), "text/plain": plain}


def _compared(drawn: str, seen: str) -> str:
    """Return a cell: what came out, and what was drawn if that is something else."""
    if drawn == seen:
        return f"✓ {escape(seen)}"
    was = "" if drawn == "?" else f" <s>{escape(drawn)}</s>"
    return f"<b>{escape(seen)}</b>{was}"


def _paragraph(html: str) -> str:
    style = "overflow-wrap:anywhere;max-width:50em;margin:.5em 0"
    return f'<div class="{NO_FORMULAS}" style="{style}">{html}</div>'


def predict(question: str, *choices: str) -> Prediction:
    """Ask for a prediction, which is kept beside the notebook; see `Prediction`."""
    return Prediction(question, *choices)


def draw(
    question: str, *, rows: Sequence[str], columns: Sequence[str], marks: Sequence[str]
) -> Drawing:
    """Ask for a table of marks, which is kept as a prediction is."""
    return Drawing(question, rows=rows, columns=columns, marks=marks)


def read_predictions(file: Path) -> dict[str, dict[str, str]]:
    """Return the predictions in a file by their questions; none if it is not there.

    Raises:
        ConfigError: The file is not one of predictions.
    """
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read the predictions in {file} ({error}); move that file away"
        ) from error
    if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
        raise ConfigError(f"{file} has no predictions in it; move that file away")
    return found
