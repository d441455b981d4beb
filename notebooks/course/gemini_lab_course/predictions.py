"""Predictions: entered before a cell is run, kept, and shown beside what came out.

    size = predict("MT-NLG's checkpoint, in TB")
    size
    ...
    size.came_out(f"{checkpoint_bytes / 1e12:.2f}")

They are kept in `predictions.json` beside the notebook, so that they outlive its kernel. One that
has come out stands, and what is entered only then says so: delete the file to predict anew.
"""

import json
from html import escape
from pathlib import Path
from typing import Any, Final

import ipywidgets
from gemini_lab_widgets.cell_output import CellOutput

from gemini_lab.display import NO_FORMULAS, say
from gemini_lab.errors import ConfigError

FILE: Final = Path("predictions.json")
LATE: Final = "entered"
"""What a prediction has that was none when it was entered."""
CHANGE: Final = "run this cell again to change it"


class Prediction:
    """A question with a box for an answer; a cell that ends in it shows both.

    What was entered takes the box's place as text, so that a saved notebook has it.

    Args:
        question: What is asked; the same words are the same question.
        file: Where predictions are kept.

    Raises:
        ConfigError: The file is not one of predictions.
    """

    def __init__(self, question: str, *, file: Path = FILE) -> None:
        self.question, self._file = question, file
        self._known = _read(file).get(question, {})
        self.box = ipywidgets.Text(
            value=self._known.get("predicted", ""),
            placeholder="your prediction, and Enter",
            continuous_update=False,
            layout={"width": "22em"},
        )
        asked = ipywidgets.HTML(
            f'<b class="{NO_FORMULAS}">{escape(question)}</b>', layout={"margin": "0 1em 0 0"}
        )
        self._row = ipywidgets.HBox([asked, self.box])
        self._below = CellOutput()
        self.box.observe(self._keep, names="value")

    @property
    def stands(self) -> bool:
        return bool(self._known.get("predicted")) and "came_out" in self._known

    @property
    def words(self) -> str:
        predicted, came_out = self._known.get("predicted"), self._known.get("came_out")
        late = f" (entered {self._known[LATE]})" if LATE in self._known else ""
        told = f"predicted: {predicted or 'nothing'}{late}"
        if came_out is not None:
            return f"{told}; came out: {came_out}"
        return f"{told}; {CHANGE}" if predicted else told

    def came_out(self, seen: object) -> None:
        """Say what was predicted beside what was seen; the prediction cannot change afterwards."""
        predicted = str(self.box.value).strip()
        say(f"predicted: {predicted or 'nothing'}; came out: {seen}")
        self._write(came_out=str(seen))

    def _keep(self, _change: object) -> None:
        if not self.stands:
            self._write()

    def _write(self, **more: str) -> None:
        kept = _read(self._file)
        before, predicted = kept.get(self.question, {}), str(self.box.value).strip()
        if predicted and "came_out" in before and not before.get("predicted"):
            more[LATE] = "after it had come out"
        self._known = kept[self.question] = {**before, "predicted": predicted, **more}
        draft = self._file.with_suffix(".part")
        draft.write_text(json.dumps(kept, indent=1, ensure_ascii=False), encoding="utf-8")
        draft.replace(self._file)
        self._below.put(self._text())

    def _text(self) -> dict[str, Any]:
        told = f"<b>{escape(self.question)}</b>&emsp;{escape(self.words)}"
        style = "overflow-wrap:anywhere;max-width:50em"
        html = f'<p class="{NO_FORMULAS}" style="{style}">{told}</p>'
        return {"text/html": html, "text/plain": f"{self.question}: {self.words}"}

    def _ipython_display_(self) -> None:
        asked = {} if self.stands else self._row._repr_mimebundle_()
        self._below.show({**asked, **self._text()})


def predict(question: str) -> Prediction:
    """Ask for a prediction, which is kept beside the notebook; see `Prediction`."""
    return Prediction(question)


def _read(file: Path) -> dict[str, dict[str, str]]:
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
