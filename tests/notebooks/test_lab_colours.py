"""Figures in the labs have the colours of everything else that is drawn."""

import re

import matplotlib.pyplot as plt
import pytest
from editions import SOURCES
from gemini_lab_widgets.pictures import palette

PALETTE = {value for value in vars(palette).values() if str(value).startswith("#")}


def test_the_labs_style_takes_its_colours_from_the_palette():
    with plt.style.context("gemini_lab_widgets.labs"):
        cycle = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    assert {f"#{colour.lstrip('#')}" for colour in cycle} <= PALETTE


@pytest.mark.parametrize("stem", ["02_profiling", "04_chunks"])
def test_where_traffic_is_drawn_a_colour_means_what_it_means_on_the_dashboard(stem):
    (source,) = (source for source in SOURCES if source.stem == stem)
    drawn = re.findall(r"(?:color|facecolor|edgecolor)\W+(\w+)", source.read_text(encoding="utf-8"))
    assert "TRAINING" in drawn
    assert not [colour for colour in drawn if re.fullmatch(r"C\d", colour)]
