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


def contrast(one: str, other: str) -> float:
    """Return how much lighter one colour is than another, as WCAG defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("colour", [one for one in palette.ON_DARK if one != palette.MARK])
def test_text_on_a_colour_can_be_read_in_light_and_dark(colour: str) -> None:
    text = palette.on(colour)
    assert contrast(colour, text) >= 4.5
    assert contrast(palette.DARK.kinds[colour], palette.DARK.kinds[text]) >= 4.5
