"""A recovery as a film: the ring of nodes, step by step, in slow motion.

It is one SVG that moves by its own style sheet, so it plays in a notebook, in a saved page and in a
README. Who asks the system for less motion sees its last picture.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import cos, pi, sin
from pathlib import Path
from typing import Final

from gemini_lab.report.recovery import Recovery, Step, done_again
from gemini_lab.units import format_seconds
from gemini_lab_widgets.pictures.palette import (
    BLUE,
    DARK,
    FONT,
    GREEN,
    GREY,
    LIGHT,
    MARK,
    RED,
    css,
    esc,
    shown,
)
from gemini_lab_widgets.pictures.palette import STEPS as COLOURS

LEAST_S: Final = 1.4
"""So long each step lasts in the film."""
MOST_S: Final = 3.5
BEFORE_S: Final = 1.2
AFTER_S: Final = 2.5
MOST_NODES: Final = 24
"""Positions that are drawn; of more, those that the recovery does not change are left out."""
WIDE, TALL, RADIUS, NODE = 560, 430, 112, 25
MOST_LETTERS: Final = 52
"""Of the title, which has one line."""
STORE: Final = "the persistent tier"
SAYS: Final = {
    "detect": "the root agent notices",
    "fence": "the root agent stops all workers; memory stays",
    "inventory": "every agent says which versions it holds",
    "plan": "the root agent picks the newest whole version",
    "serialise": "versions are written for loading",
    "reserve": "a machine is found",
    "rejoin": "processes that were kept join again",
    "retrieve": "shards are loaded: from home, or from a peer",
    "warm_up": "the first iteration",
}


@dataclass(frozen=True, slots=True)
class Scene:
    """One step as the film shows it: from when to when, and its words."""

    name: str
    start_s: float
    end_s: float
    title: str
    says: str


class Film:
    """The film of one recovery; a cell that ends in it plays it.

    Args:
        recovery: One that has a plan.
    """

    def __init__(self, recovery: Recovery) -> None:
        self._recovery = recovery
        self.scenes = scenes(recovery)
        self._length_s = self.scenes[-1].end_s

    def save(self, path: str | Path) -> Path:
        """Write the film to an SVG file, for any browser; return its path."""
        path = Path(path)
        path.write_text(self.svg(), encoding="utf-8")
        return path

    def svg(self, *, has_colours: bool = True) -> str:
        """Return the film; the same bytes for the same recovery.

        Args:
            has_colours: Whether it brings the colours of light and dark pages, or its page does.
        """
        told = self._recovery
        drawn = "".join(self._drawn())
        mine = f"film-{sha256(drawn.encode()).hexdigest()[:8]}"
        style, drawn = _timed(drawn, mine, self._length_s)
        label = esc(f"Recovery {told.number}: {told.what}, in slow motion")
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="{mine}" role="img" '
            f'viewBox="0 0 {WIDE} {TALL}" width="{WIDE}" height="{TALL}" aria-label="{label}" '
            f'style="max-width:100%;height:auto">'
            f"<style>{_colours(mine) if has_colours else ''}{_look(mine)}{style}</style>"
            f'<rect class="paper" width="{WIDE}" height="{TALL}" rx="8"/>{drawn}</svg>'
        )

    def _repr_html_(self) -> str:
        return self.svg()

    def __repr__(self) -> str:
        return f"<Film: recovery {self._recovery.number}, {self._recovery.what}>"

    # -- what is drawn; `data-on` says from when to when ---------------------------------------

    def _drawn(self) -> Iterator[str]:
        told = self._recovery
        title = shown(f"Recovery {told.number}: {told.what}", longest=MOST_LETTERS)
        yield _text(18, 28, title, size=16, bold=True)
        took = "" if told.duration_s is None else f"in truth {format_seconds(told.duration_s)}"
        yield _text(18, 48, f"in slow motion; {took}".rstrip("; "), css="dim", size=12)
        for scene in self.scenes:
            on = (scene.start_s, scene.end_s)
            yield _text(WIDE - 18, 48, scene.title, size=14, bold=True, anchor="end", on=on)
            yield _text(WIDE / 2, TALL - 52, scene.says, size=14, anchor="middle", on=on)
        yield from self._clock()
        yield from self._nodes()

    def _clock(self) -> Iterator[str]:
        """Draw each step's part of the film as a bar, which fills as it plays."""
        wide = WIDE - 36
        for scene in self.scenes:
            left = 18 + wide * scene.start_s / self._length_s
            part = wide * (scene.end_s - scene.start_s) / self._length_s - 2
            colour = COLOURS.get(scene.name, COLOURS["start"])
            box = f'x="{left:.1f}" y="{TALL - 34}" width="{part:.1f}" height="12" rx="2"'
            yield f'<rect {box} class="pale"/>'
            yield (
                f'<g style="fill:{css(colour)}"><rect {box} '
                f"{_on((scene.start_s, self._length_s))}>"
                f"<title>{esc(scene.title)}</title></rect></g>"
            )

    def _nodes(self) -> Iterator[str]:
        told = self._recovery
        before = told.before or told.members
        places = _places(told)
        stop = self._when("fence", at_end=False) or self._when("start", at_end=False)
        seat, end = self._when("start", at_end=False), self._length_s
        train = self._when("warm_up", at_end=False) or self._length_s - AFTER_S
        struck = self._when("detect", at_end=False)
        hit = {one.node: "its worker is gone" for one in told.exits[:1]}
        hit |= {one.node: one.kind.replace("_", " ") for one in told.injections}
        spots = dict(zip(places, _ring(len(places)), strict=True))
        load = (self._when("retrieve", at_end=False), self._when("retrieve", at_end=True))
        yield from self._arrows(spots, load)
        for position, (x, y) in spots.items():
            old, new = _at(before, position), _at(told.members, position)
            is_dead = old in told.lost_nodes or bool(old and old != new and not told.is_planned)
            circle = f'cx="{x:.1f}" cy="{y:.1f}" r="{NODE}"'
            here = (0.0 if old else seat, end if new else seat)
            yield f'<circle {circle} class="live" {_on(None if old and new else here)}/>'
            stands = (max(stop, here[0]), min(train, here[1]))
            yield f'<circle {circle} class="still" {_on(stands)}/>'
            if is_dead:
                yield f'<circle {circle} class="dead" {_on((struck, seat))}/>'
                yield _text(x, y + 6, "✕", anchor="middle", css="on", size=20, on=(struck, seat))
            if is_dead or old != new:
                for node, on in ((old, (0, struck if is_dead else seat)), (new, (seat, end))):
                    if node:
                        yield _text(x, y + 5, _brief(node), anchor="middle", css="on", on=on)
                continue
            if old in hit:
                words, at_y = hit[old], y + NODE + 15
                yield _text(x, at_y, words, anchor="middle", css="dim", size=12, on=(struck, seat))
            if new:
                yield _text(x, y + 5, _brief(new), anchor="middle", css="on")

    def _arrows(
        self, spots: dict[int, tuple[float, float]], on: tuple[float, float]
    ) -> Iterator[str]:
        told = self._recovery
        seat_of = {node: position for position, node in enumerate(told.members)}
        per_node = max(1, len(told.receipts) // max(1, len(told.members)))
        for receipt in told.receipts:
            to = receipt.shard // per_node
            if to not in spots:
                continue
            x1, y1 = spots[to]
            if receipt.tier == "persistent":
                x0, y0 = WIDE / 2, _middle()[1]
                yield _text(x0, y0 + 4, STORE, anchor="middle", size=12, on=on)
            elif receipt.tier == "peer" and seat_of.get(receipt.holder) in spots:
                x0, y0 = spots[seat_of[receipt.holder]]
            else:
                circle = f'cx="{x1:.1f}" cy="{y1:.1f}" r="{NODE + 5}"'
                yield f'<circle {circle} class="home" {_on(on)}/>'
                continue
            yield f'<path d="{_curve(x0, y0, x1, y1)}" class="copy" {_on(on)}/>'
            words = f"shard {receipt.shard}"
            yield _text((x0 + x1) / 2, (y0 + y1) / 2 - 6, words, anchor="middle", size=12, on=on)

    def _when(self, name: str, *, at_end: bool) -> float:
        """Return when in the film a step begins or ends; 0 if it has no such step."""
        found = [scene for scene in self.scenes if scene.name == name]
        if not found:
            return 0.0
        return found[-1].end_s if at_end else found[0].start_s


def scenes(recovery: Recovery) -> list[Scene]:
    """Return the film's scenes in order: training, each step, and training again."""
    found = [Scene("", 0.0, BEFORE_S, "training", f"iteration {recovery.reached} is done")]
    steps = sorted(recovery.steps, key=lambda step: (step.start_s, step.end_s))
    longest_s = max((step.duration_s for step in steps), default=0.0) or 1.0
    for step in steps:
        start_s = found[-1].end_s
        shown_s = LEAST_S + (MOST_S - LEAST_S) * max(step.duration_s, 0.0) / longest_s
        title = f"{step.label}: {format_seconds(step.duration_s)}"
        found.append(Scene(step.name, start_s, start_s + shown_s, title, _says(step, recovery)))
    start_s = found[-1].end_s
    again = f"training again: {recovery.source}"
    if recovery.lost_iterations:
        again += f"; {done_again([recovery])}"
    found.append(Scene("", start_s, start_s + AFTER_S, "training", again))
    return found


def film(recovery: Recovery) -> Film:
    """Return the film of a recovery of a report: `film(run.report().recoveries[0])`."""
    return Film(recovery)


def _says(step: Step, recovery: Recovery) -> str:
    if step.name == "plan" and recovery.version is not None:
        return f"the root agent picks {recovery.source}"
    if step.name == "start":
        then, now = len(recovery.before or recovery.members), len(recovery.members)
        pairs = zip(recovery.before, recovery.members, strict=False)
        new = [f"{one} replaces {old}" for old, one in pairs if old and one and old != one][:2]
        new = [f"{now} nodes in place of {then}"] if now != then else new
        return "; ".join([*filter(None, [", ".join(new)]), "workers start again"])
    if step.name == "retrieve" and recovery.tier == "persistent":
        return f"shards are loaded from {STORE}"
    return SAYS.get(step.name, step.label)


def _places(recovery: Recovery) -> list[int]:
    """Return the positions to draw: all, or those that change and some others."""
    count = max(len(recovery.before), len(recovery.members))
    if count <= MOST_NODES:
        return list(range(count))
    changed = [n for n in range(count) if _at(recovery.before, n) != _at(recovery.members, n)]
    rest = [n for n in range(count) if n not in {*changed}]
    return sorted([*changed, *rest][:MOST_NODES])


def _at(members: Sequence[str | None], position: int) -> str | None:
    return members[position] if position < len(members) else None


def _brief(node: str) -> str:
    return node.removeprefix("node-")[-4:]


def _middle() -> tuple[float, float]:
    return WIDE / 2, 205.0


def _ring(count: int) -> list[tuple[float, float]]:
    x, y = _middle()
    angles = [2 * pi * n / max(1, count) - pi / 2 for n in range(count)]
    return [(x + 1.35 * RADIUS * cos(a), y + RADIUS * sin(a)) for a in angles]


def _curve(x0: float, y0: float, x1: float, y1: float) -> str:
    """Return a path from rim to rim, bent towards the middle."""
    x, y = _middle()
    length = max(1.0, ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5)
    dx, dy = NODE * (x1 - x0) / length, NODE * (y1 - y0) / length
    bend = f"Q{(x0 + x1) / 2 * 0.6 + x * 0.4:.1f} {(y0 + y1) / 2 * 0.6 + y * 0.4:.1f}"
    return f"M{x0 + dx:.1f} {y0 + dy:.1f}{bend} {x1 - dx:.1f} {y1 - dy:.1f}"


def _text(
    x: float,
    y: float,
    words: str,
    *,
    size: int = 13,
    bold: bool = False,
    anchor: str = "start",
    css: str = "ink",
    on: tuple[float, float] | None = None,
) -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" class="{css}"'
        f"{weight} {_on(on)}>{esc(words)}</text>"
    )


def _on(span: tuple[float, float] | None) -> str:
    """Return the mark of what is to be seen in a part of the film only."""
    return "" if span is None else f'data-on="{span[0]:.2f} {span[1]:.2f}"'


def _timed(drawn: str, mine: str, length_s: float) -> tuple[str, str]:
    """Return the rules that show each marked element in its time, and the elements with them."""
    spans = list(dict.fromkeys(re.findall(r'data-on="([^"]*)"', drawn)))
    rules = [f"@media (prefers-reduced-motion:reduce){{.{mine} *{{animation:none!important}}}}"]
    for number, span in enumerate(spans):
        begin, end = (100 * float(part) / length_s for part in span.split())
        is_last = end > 99.9
        frames = f"0%{{opacity:{int(begin <= 0)}}}{begin:.2f}%{{opacity:1}}"
        frames += "" if is_last else f"{end:.2f}%{{opacity:0}}"
        rules.append(f"@keyframes {mine}-{number}{{{frames}100%{{opacity:{int(is_last)}}}}}")
        play = f"{mine}-{number} {length_s:.2f}s step-end infinite"
        drawn = drawn.replace(
            f'data-on="{span}"', f'opacity="{int(is_last)}" style="animation:{play}"'
        )
    return "".join(rules), drawn


def _look(mine: str) -> str:
    """Return the rules of what is drawn, in the page's colours."""
    paints = {
        "paper": "var(--gl-paper)",
        "pale": "var(--gl-pale)",
        "ink": "var(--gl-ink)",
        "dim": "var(--gl-dim)",
        "on": css(MARK),
        "live": css(GREEN),
        "still": css(GREY),
        "dead": css(RED),
    }
    rules = "".join(f".{mine} .{name}{{fill:{paint}}}" for name, paint in paints.items())
    lines = f"fill:none;stroke:{css(BLUE)};stroke-width:3.5"
    return (
        f"{rules}.{mine} text{{font-family:{FONT}}}.{mine} .on{{font-weight:600}}"
        f".{mine} .home,.{mine} .copy{{{lines}}}"
    )


def _colours(mine: str) -> str:
    """Return the colours where no page defines them: by the notebook's theme, or the system's."""
    light, dark = LIGHT.variables, DARK.variables
    return (
        f".{mine}{{{light}}}@media (prefers-color-scheme:dark){{.{mine}{{{dark}}}}}"
        f'[data-jp-theme-light="true"] .{mine}{{{light}}}'
        f'[data-jp-theme-light="false"] .{mine}{{{dark}}}'
    )
