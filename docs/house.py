"""The drawing of the house: its rooms in floors, as SVG in the page's own colours.

```{house}
```
"""

from html import escape
from typing import Final

from docutils import nodes
from docutils.parsers.rst import Directive

FLOORS: Final = (
    (
        "A person holds",
        (
            (
                ("lab", "Lab, Run,|controls"),
                ("cli", "the command|gemini-lab"),
                ("training", "a job worth|protecting"),
            ),
        ),
    ),
    (
        "Processes act",
        (
            (
                ("launch", "MPI, etcd,|operators"),
                ("node", "agent, root,|workers"),
                ("adapters", "Trainers,|Accelerator"),
                ("engine", "protect; state|out and in"),
                ("kept", "outlives a|recovery"),
                ("transfer", "chunks between|collectives"),
            ),
        ),
    ),
    (
        "Bytes lie and travel",
        (
            (
                ("memory", "the slab, which|outlives a worker"),
                ("storage", "the persistent|tier"),
                ("shard", "what lies where|in a version"),
                ("wire", "carries|messages"),
            ),
        ),
    ),
    (
        "Stages decide: plain data in, plain data out",
        (
            (("simulator", "runs the same stages at a thousand machines"),),
            (
                ("profiler", "when is the|network idle?"),
                ("placement", "who keeps whose|replica?"),
                ("pipeliner", "which chunk in|which span?"),
                ("injector", "what breaks,|and when?"),
                ("recovery", "what is loaded|from where?"),
            ),
        ),
    ),
    (
        "Values",
        (
            (
                ("seats", "who sits|where"),
                ("settings", "a job's|settings"),
                ("job", "what is|to be run"),
                ("units", "bytes and|seconds"),
                ("errors", "one tree|of errors"),
            ),
        ),
    ),
)
"""Rooms of `gemini_lab`, floor by floor: a room uses those of its own floor and below."""

BESIDE: Final = ("log", "report")
WIDTH, MAIN, PAD, GAP = 760, 624, 10, 8
TITLE, BETWEEN = 20, 12
LINE = 14
Row = tuple[tuple[str, str], ...]


class House(Directive):
    """`{house}`: the drawing."""

    def run(self) -> list[nodes.Node]:
        """The drawing as a node; Sphinx calls it."""
        return [nodes.raw("", drawing(), format="html")]


def rooms() -> list[str]:
    """The names of all rooms, from the top."""
    return [*(name for _, rows in FLOORS for row in rows for name, _ in row), *BESIDE]


def drawing() -> str:
    """The house as one SVG element."""
    parts, y = [], 2.0
    for number, (title, rows) in enumerate(FLOORS):
        if number:
            parts.append(_arrow(MAIN / 2, y + 1, y + BETWEEN - 1))
            y += BETWEEN
        floor, height = _floor(title, rows, y)
        parts.append(floor)
        y += height
    parts.append(_log(y))
    return (
        f'<div class="picture"><svg class="house" viewBox="0 0 {WIDTH} {y + 2:.0f}" role="img" '
        f'aria-label="{escape(_told())}">{"".join(parts)}</svg></div>'
    )


def _floor(title: str, rows: tuple[Row, ...], y: float) -> tuple[str, float]:
    """A floor from `y` down, and its height."""
    parts, top = [_text(PAD + 2, y + 17, title, "title")], y + TITLE + PAD / 2
    for row in rows:
        height = 28.0 + LINE * max(len(text.split("|")) for _, text in row)
        parts.append(_row(row, top, height))
        top += height + PAD / 2
    kind = "floor pure" if title.startswith("Stages") else "floor"
    return _box(2, y, MAIN - 4, top - y, kind) + "".join(parts), top - y


def _row(row: Row, top: float, height: float) -> str:
    width = (MAIN - 2 * PAD - GAP * (len(row) - 1)) / len(row)
    parts = []
    for number, (name, text) in enumerate(row):
        x = PAD + number * (width + GAP)
        parts.append(_box(x, top, width, height, "room"))
        parts.append(_text(x + width / 2, top + 17, name, "name"))
        parts += [
            _text(x + width / 2, top + 33 + LINE * line, words, "what")
            for line, words in enumerate(text.split("|"))
        ]
    return "".join(parts)


def _log(bottom: float) -> str:
    """The log beside all floors, and above it those who only read."""
    x, width, half = MAIN + 20.0, WIDTH - MAIN - 22.0, 96.0
    middle = x + width / 2
    parts = [_box(x, 2, width, half - BETWEEN, "floor reads")]
    parts.append(_text(middle, 28, "gemini_lab_", "name"))
    parts.append(_text(middle, 43, "widgets", "name"))
    parts.append(_text(middle, 63, "draws, serves,", "what"))
    parts.append(_text(middle, 77, "controls", "what"))
    parts.append(_arrow(middle, half - BETWEEN + 3, half + 1))
    parts.append(_box(x, half + 2, width, bottom - half - 2, "floor log"))
    for line, words in enumerate(BESIDE):
        parts.append(_text(middle, half + 34 + 112 * line, words, "name"))
    for line, words in enumerate(("one class a kind", "of event; every", "room emits them")):
        parts.append(_text(middle, half + 52 + 14 * line, words, "what"))
    for line, words in enumerate(("what a run did,", "from the log and", "nothing else")):
        parts.append(_text(middle, half + 164 + 14 * line, words, "what"))
    parts += [
        f'<path class="line" d="M{MAIN} {y} h14 m-5 -4 l6 4 l-6 4"/>' for y in (150, 250, 350)
    ]
    return "".join(parts)


def _told() -> str:
    floors = "; ".join(
        f"{title}: {', '.join(name for row in rows for name, _ in row)}" for title, rows in FLOORS
    )
    return (
        f"The rooms of gemini_lab from the top. {floors}. Each floor uses those below it. "
        f"Beside all of them: {', '.join(BESIDE)}, which gemini_lab_widgets reads."
    )


def _box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" rx="7"/>'
    )


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _arrow(x: float, top: float, bottom: float) -> str:
    return f'<path class="line" d="M{x:.1f} {top:.1f} V{bottom:.1f} m-4 -5 l4 5 l4 -5"/>'
