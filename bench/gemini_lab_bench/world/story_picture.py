"""A space-time diagram of a simulated lab: a line for each node, and what befell it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gemini_lab_widgets.pictures import palette
from gemini_lab_widgets.pictures.board import MARGIN, WIDTH, Board, fit
from gemini_lab_widgets.pictures.picture import Table
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch

from gemini_lab_bench.figures.pages import document
from gemini_lab_bench.world.story import StoryMoment

MOST_ROWS: Final = 26
"""Of what happened, the last ones."""
ROW: Final = 24.0
CLOCK: Final = 62.0
"""Where the first node's line stands."""
LANE: Final = 64.0
SMALL: Final = 12.5
COLOURS: Final = {
    "failure": palette.FAILURE,
    "root": palette.ORANGE,
    "decision": palette.BLUE,
    "running": palette.GREEN,
    "broken": palette.FAILURE,
}
MARKS: Final = {"failure": "✕", "root": "★", "decision": "●", "running": "▶", "broken": "✕"}
SAID: Final = {"failure": "{node} {text}", "root": "{node} {text}"}


def draw_story(board: Board, nodes: Sequence[str], moments: Sequence[StoryMoment]) -> None:
    """Draw what happened on which node, below what is on the board already."""
    shown = moments[-MOST_ROWS:]
    left_out = len(moments) - len(shown)
    if left_out:
        board.notes([f"{left_out} earlier moments are not drawn."])
    plane = board.plane(ROW * (len(shown) + 1) + 6)
    lane = min(LANE, WIDTH / 2 / max(1, len(nodes)))
    places = {node: CLOCK + lane * (i + 0.5) for i, node in enumerate(nodes)}
    for node, x in places.items():
        name = node if lane == LANE else node.rpartition("-")[2]
        plane.text(x, ROW / 2, name, ha="center", va="center_baseline", weight="bold", size=SMALL)
        plane.plot([x, x], [ROW, ROW * (len(shown) + 1)], color=palette.LIGHT.rule, linewidth=1)
    for row, moment in enumerate(shown):
        _moment(plane, places, moment, ROW * (row + 1.5))
    board.legend(
        [
            (palette.FAILURE, "a failure"),
            (palette.BLUE, "the root agent hears (arrow: from whom) → decides"),
            (palette.ORANGE, "a root agent is elected"),
            (palette.GREEN, "training goes on"),
        ]
    )


def _moment(plane: Axes, places: dict[str, float], moment: StoryMoment, y: float) -> None:
    colour, x = COLOURS[moment.kind], places.get(moment.node)
    clock = "" if moment.kind == "broken" else f"{moment.at_s:.2f} s"
    plane.text(MARGIN, y, clock, color=palette.LIGHT.dim, size=SMALL, va="center_baseline")
    if x is not None:
        if moment.said_by in places and moment.said_by != moment.node:
            _arrow(plane, places[str(moment.said_by)], x, y)
        plane.text(
            x, y, MARKS[moment.kind], color=colour, size=15, ha="center", va="center_baseline"
        )
    text = SAID.get(moment.kind, "{text}").format(node=moment.node, text=moment.text)
    right = CLOCK + min(LANE * len(places), WIDTH / 2) + 10
    is_plain = moment.kind == "decision"
    plane.text(
        right,
        y,
        fit(text, WIDTH - right - MARGIN, size=SMALL),
        color=palette.LIGHT.ink if is_plain else colour,
        size=SMALL,
        va="center_baseline",
        weight="normal" if is_plain else "bold",
    )


def _arrow(plane: Axes, start: float, end: float, y: float) -> None:
    shrunk = 8 if end > start else -8
    plane.add_patch(
        FancyArrowPatch(
            (start, y),
            (end - shrunk, y),
            arrowstyle="-|>,head_length=.4,head_width=.2",
            mutation_scale=12,
            color=palette.BLUE,
            linewidth=1.2,
        )
    )


def story_table(moments: Sequence[StoryMoment]) -> Table:
    """Return all that happened, as text."""
    rows = [(f"{m.at_s:.2f} s", m.node, m.said_by or "", m.text) for m in moments]
    return Table(head=("time", "node", "heard from", "what"), rows=rows)


def write_story(file: Path, title: str, moments: Sequence[StoryMoment]) -> None:
    """Write a page with the diagram of a break, and all that happened before it."""
    nodes = sorted({moment.node for moment in moments} - {""}, key=lambda name: (len(name), name))
    board = Board(title=title, beside=moments[-1].text, description=moments[-1].text)
    draw_story(board, nodes, moments)
    picture = board.picture(tables=[story_table(moments)], plain=title, summary="all that happened")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(document(title, picture.html(is_open=True)), encoding="utf-8")
