"""One palette: the timeline's script has the colours of everything else."""

import re
from pathlib import Path

import gemini_lab_widgets
import pytest
from gemini_lab_widgets.pictures import palette

SCRIPT = Path(gemini_lab_widgets.__file__).parent / "js" / "theme.js"
KINDS = {
    "collective": palette.TRAINING,
    "checkpoint": palette.REPLICAS[0],
    "exposed": palette.FELT,
    "restore": palette.PINK,
    "complete": palette.GREEN,
    "failure": palette.FAILURE,
}
AREAS = {
    "surface": "paper",
    "text": "ink",
    "muted": "dim",
    "grid": "grid",
    "training": "pale",
    "button": "pale",
}


@pytest.mark.parametrize("name", ["LIGHT", "DARK"])
def test_the_timeline_has_the_colours_of_the_palette(name: str) -> None:
    block = re.search(rf"export const {name} = {{(.*?)}};", SCRIPT.read_text(), re.DOTALL)
    assert block is not None
    told = dict(re.findall(r'(\w+): "(#[0-9a-f]{6})"', block[1]))
    theme = getattr(palette, name)
    kinds = KINDS if name == "LIGHT" else {k: palette.ON_DARK[c] for k, c in KINDS.items()}
    expected = kinds | {area: getattr(theme, mine) for area, mine in AREAS.items()}
    assert {**told, **expected} == told


def test_the_scripts_words_are_in_the_font_of_all_others() -> None:
    pen = SCRIPT.with_name("pen.js").read_text(encoding="utf-8")
    assert f'FAMILY = "{palette.FONT}"' in pen
