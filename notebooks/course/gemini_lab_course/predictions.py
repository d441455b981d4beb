"""Predictions: a number or a choice, and why; the result stays hidden until a cell reveals it.

    size = predict("How large is its checkpoint, in TB?")
    slower = predict("Minutes or hours?", "minutes", "hours")
    ...
    size.came_out(f"{checkpoint_bytes / 1e12:.2f}")

They are kept in `predictions.json` beside the notebook, with what came out, for a class to compare.
A kernel shows a result only after it has revealed that result itself.
"""

import json
from html import escape
from pathlib import Path
from typing import Any, Final

import ipywidgets
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
        file: Where predictions are kept.

    Raises:
        ConfigError: The file is not one of predictions.
    """

    def __init__(self, question: str, *choices: str, file: Path = FILE) -> None:
        self.question, self._file, self._choices = question, file, choices
        self._known = read_predictions(file).get(question, {})
        before = self._known.get("predicted", "")
        if choices:
            self.box = ipywidgets.ToggleButtons(
                options=choices,
                value=before if before in choices else None,
                style={"button_width": "initial"},
            )
        else:
            self.box = ipywidgets.Text(value=before, placeholder="your prediction")
        self.why = ipywidgets.Text(
            value=self._known.get("why", ""), placeholder="why?", layout={"width": "32em"}
        )
        self.keep_button = ipywidgets.Button(description="Predict", icon="check")
        self.reset_button = ipywidgets.Button(description="Start over", icon="undo")
        asked = ipywidgets.HTML(f'<b class="{NO_FORMULAS}">{escape(question)}</b>')
        buttons = ipywidgets.HBox([self.keep_button, self.reset_button])
        self._row = ipywidgets.VBox([asked, self.box, self.why, buttons])
        self._below, self._result = CellOutput(), CellOutput()
        self._key = (file.absolute(), question)
        for box in (self.box, self.why):
            box.observe(lambda _: self._write(), names="value")
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

    def came_out(self, seen: object) -> None:
        """Reveal the result beside the prediction; without one, a button waits in its place."""
        _results[self._key] = str(seen)
        self._write(came_out=str(seen))
        if not self.is_empty:
            _revealed.add(self._key)
            self._below.put(self._as_text())
        if in_notebook():
            self._result.show(self._as_result())
        else:
            tell(self.words)

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
        if self.seen is not None:
            return self._as_text()
        button = ipywidgets.Button(description="Show the result", icon="eye")
        button.on_click(lambda _: self.reveal())
        asked = f"{self.question} Predict it above: the result appears here."
        text = ipywidgets.HTML(f'<span class="{NO_FORMULAS}">{escape(asked)}</span>')
        row = ipywidgets.HBox([text, button], layout={"flex_flow": "row wrap"})
        told = f"<summary>{escape(self.question)} The result</summary>"
        folded = f"<details>{told}{escape(_results.get(self._key, ''))}</details>"
        return {
            **row._repr_mimebundle_(),
            "text/html": _paragraph(folded),
            "text/plain": asked,
        }

    def _as_widget(self) -> dict[str, Any]:
        return {**self._row._repr_mimebundle_(), **self._as_text()}

    def _ipython_display_(self) -> None:
        self._below.show(self._as_widget())


def _paragraph(html: str) -> str:
    style = "overflow-wrap:anywhere;max-width:50em;margin:.5em 0"
    return f'<div class="{NO_FORMULAS}" style="{style}">{html}</div>'


def predict(question: str, *choices: str) -> Prediction:
    """Ask for a prediction, which is kept beside the notebook; see `Prediction`."""
    return Prediction(question, *choices)


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
