"""The drawing of the house: its rooms in floors, as SVG in the page's own colours.

```{house}
```
"""

from html import escape
from typing import Final

from docutils import nodes
from docutils.parsers.rst import Directive

FLOORS: Final = (
    ("A person holds", (
        ("lab", "Lab, Run,|controls"),
        ("cli", "the command|gemini-lab"),
        ("experiments", "figures, benches,|peers"),
        ("training", "a job worth|protecting"),
    )),
    ("Processes act", (
        ("launch", "MPI, etcd,|operators"),
        ("node", "agent, root,|workers"),
        ("engine", "protect; ZeRO|state out and in"),
        ("transfer", "chunks between|collectives"),
    )),
    ("Bytes lie and travel", (
        ("memory", "the slab, which|outlives a worker"),
        ("storage", "the persistent|tier"),
        ("shard", "what lies where|in a version"),
        ("wire", "one encoder,|one decoder"),
    )),
    ("Stages decide: plain data in, plain data out", (
        ("profiler", "when is the|network idle?"),
        ("placement", "who keeps whose|replica?"),
        ("pipeliner", "which chunk in|which span?"),
        ("injector", "what breaks,|and when?"),
        ("recovery", "what is loaded|from where?"),
    )),
    ("", (("simulator", "the same stages at a thousand machines"),)),
    ("Values", (
        ("seats", "who sits|where"),
        ("settings", "a job's|settings"),
        ("job", "what is|to be run"),
        ("units", "bytes and|seconds"),
        ("errors", "one tree|of errors"),
    )),
)  # fmt: skip
"""Rooms of `gemini_lab`, floor by floor: a room uses those of its own floor and below."""

WIDTH, MAIN, PAD, GAP = 760, 624, 10, 8
ROOM, TITLE, BETWEEN = 58, 20, 12
LOW_ROOM = 40


class House(Directive):
    """`{house}`: the drawing."""

    def run(self) -> list[nodes.Node]:
        """The drawing as a node; Sphinx calls it."""
        return [nodes.raw("", drawing(), format="html")]


def rooms() -> list[str]:
    """The names of all rooms, from the top."""
    return [name for _, floor in FLOORS for name, _ in floor]


def drawing() -> str:
    """The house as one SVG element."""
    parts, y = [], 2.0
    for title, floor in FLOORS:
        height = _height(title, floor)
        parts.append(_floor(title, floor, y, height))
        y += height + BETWEEN
        if floor is not FLOORS[-1][1] and title:
            parts.append(_arrow(MAIN / 2, y - BETWEEN + 1, y - 1))
    parts.append(_log(y - BETWEEN))
    return (
        f'<svg class="house" viewBox="0 0 {WIDTH} {y - BETWEEN + 2:.0f}" role="img" '
        f'aria-label="{escape(_told())}">{"".join(parts)}</svg>'
    )


def _height(title: str, floor: tuple[tuple[str, str], ...]) -> float:
    room = ROOM if any("|" in text for _, text in floor) else LOW_ROOM
    return room + (TITLE if title else 0) + PAD


def _floor(title: str, floor: tuple[tuple[str, str], ...], y: float, height: float) -> str:
    width = (MAIN - 2 * PAD - GAP * (len(floor) - 1)) / len(floor)
    is_pure = title.startswith("Stages") or not title
    kind = "floor pure" if is_pure else "floor"
    parts = [_box(2, y, MAIN - 4, height, kind)]
    top = y + (TITLE if title else 0) + PAD / 2
    if title:
        parts.append(_text(PAD + 2, y + 17, title, "title"))
    for number, (name, text) in enumerate(floor):
        x = PAD + number * (width + GAP)
        room = height - (top - y) - PAD / 2
        parts.append(_box(x, top, width, room, "room"))
        parts.append(_text(x + width / 2, top + 17, name, "name"))
        parts += [
            _text(x + width / 2, top + 33 + 14 * line, words, "what")
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
    for line, words in enumerate(("log", "report")):
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
        f"{title or 'on the stages'}: {', '.join(name for name, _ in floor)}"
        for title, floor in FLOORS
    )
    return (
        f"The rooms of gemini_lab from the top. {floors}. Each floor uses those below it. "
        "Beside all of them the log, which gemini_lab_widgets reads."
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
