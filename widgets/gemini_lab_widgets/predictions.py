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
from typing import Final

import ipywidgets

from gemini_lab.errors import ConfigError

FILE: Final = Path("predictions.json")
LATE: Final = "entered"
"""What a prediction has that was none when it was entered."""
_NONE: Final = "nothing"


class Prediction:
    """A question with a place for an answer; a cell that ends in it shows both.

    Args:
        question: What is asked; the same words are the same question.
        file: Where predictions are kept.

    Raises:
        ConfigError: The file is not one of predictions.
    """

    def __init__(self, question: str, *, file: Path = FILE) -> None:
        self.question, self._file = question, file
        known = _read(file).get(question, {})
        self.box = ipywidgets.Text(
            value=known.get("predicted", ""),
            placeholder="your prediction, and Enter",
            continuous_update=False,
            layout={"width": "22em"},
        )
        self.told = ipywidgets.HTML()
        asked = ipywidgets.HTML(f"<b>{escape(question)}</b>", layout={"margin": "0 1em 0 0"})
        self._row = ipywidgets.HBox([asked, self.box, self.told])
        self._show(known)
        self.box.observe(self._keep, names="value")

    def came_out(self, seen: object) -> None:
        """Print what was predicted beside what was seen; from now on the prediction stands."""
        predicted = str(self.box.value).strip()
        print(f"predicted: {predicted or _NONE}; came out: {seen}")  # noqa: T201
        self._write(came_out=str(seen))

    def _keep(self, _change: object) -> None:
        if not self.box.disabled:
            self._write()

    def _write(self, **more: str) -> None:
        kept = _read(self._file)
        before, predicted = kept.get(self.question, {}), str(self.box.value).strip()
        if predicted and "came_out" in before and not before.get("predicted"):
            more[LATE] = "after it had come out"
        kept[self.question] = {**before, "predicted": predicted, **more}
        draft = self._file.with_suffix(".part")
        draft.write_text(json.dumps(kept, indent=1, ensure_ascii=False), encoding="utf-8")
        draft.replace(self._file)
        self._show(kept[self.question])

    def _show(self, known: dict[str, str]) -> None:
        """Say whether the answer is kept, or what it became."""
        predicted, came_out = known.get("predicted"), known.get("came_out")
        self.box.disabled = bool(predicted) and came_out is not None
        late = f"; predicted {known[LATE]}" if LATE in known else ""
        if self.box.disabled:
            self.told.value = f"came out: <b>{escape(str(came_out))}</b>{escape(late)}"
        else:
            self.told.value = "kept" if predicted else ""

    def _repr_mimebundle_(self, **options: object) -> object:
        return self._row._repr_mimebundle_(**options)


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
