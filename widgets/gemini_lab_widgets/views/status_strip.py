"""The run in a few numbers: what it does, and what it could lose now."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from bokeh.models import Div

from gemini_lab.report.reducers.course import ENDED
from gemini_lab.report.tables import Tables
from gemini_lab.report.tables.status import NodeHealth, NodeRow, Status, leaving_of
from gemini_lab.report.values import HeadlineAnswer
from gemini_lab.units import format_seconds
from gemini_lab_widgets.pictures.palette import (
    BLUE,
    DARK,
    FONT,
    GREEN,
    GREY,
    LIGHT,
    ORANGE,
    RED,
    css,
    esc,
    shown,
)
from gemini_lab_widgets.views.view import OUTPUT_CSS, View, output_html

DETAIL: Final = 40
"""Characters of a detail that a tile has room for."""
PLACES: Final = 120
"""Characters of what a node's ranks are: those of two ranks on three axes, or more."""
NAMED: Final = 32
"""Nodes that are shown one by one; of more, only those without ranks, those to leave, failed ones
and the root agent's."""
MOST_STACKS: Final = 64
"""Ranks whose stacks are shown."""
SIGNS: Final[dict[NodeHealth, str]] = {
    "training": "●",
    "starting": "◔",
    "recovering": "◐",
    "failed": "✕",
    "over": "■",
    "standby": "□",
    "drained": "◇",
    "left": "◇",
    "lost": "✕",
}
"""Health by shape."""
COLOURS: Final[dict[NodeHealth, str]] = {
    "training": GREEN,
    "starting": ORANGE,
    "recovering": ORANGE,
    "failed": RED,
    "over": GREY,
    "standby": GREY,
    "drained": GREY,
    "left": GREY,
    "lost": RED,
}
NO_RUN: Final = (
    "This page shows a run by itself as soon as one begins: gemini-lab quickstart starts one in "
    "another terminal, lab.train in a notebook. Nothing has to be loaded again."
)
NO_EVENTS: Final = "Its log has no events yet."
NOT_READ: Final = "Nothing in its log could be read: it may be another file, or a newer version's."
HEALTH: Final[dict[NodeHealth, str]] = {"failed": "its worker failed"}
"""Health in words, where it is not said by its own."""
CSS: Final = (
    """
:host { color: var(--gl-ink); font-family: FONT; }
.bk-clearfix { display: block; width: 100%; container-type: inline-size; }
.tiles { display: flex; flex-wrap: wrap; gap: 10px; margin: 0 0 10px 0; padding: 0; }
.tile { flex: 1 1 143px; box-sizing: border-box; background: var(--gl-pale); margin: 0;
  border-radius: 8px; padding: 9px 10px 10px 12px; border-left: 5px solid transparent; }
@container (max-width: 780px) { .tile { flex-basis: 30%; } }
@container (max-width: 600px) { .tile { flex-basis: 40%; } }
.tile dt { font-size: 13px; color: var(--gl-dim); margin: 0; }
.tile dd { margin: 0; font-size: 13px; color: var(--gl-dim); line-height: 1.35; }
.tile dd.value { font-size: 22px; font-weight: 650; color: var(--gl-ink); line-height: 1.25;
  font-variant-numeric: tabular-nums; }
.answers { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 250px), 1fr));
  gap: 10px 24px; margin: 0 0 14px; }
.answer dt { font-size: 14px; color: var(--gl-dim); }
.answer dd { margin: 0; font-size: 14px; line-height: 1.4; color: var(--gl-dim);
  overflow-wrap: anywhere; }
.answer dd.value { font-size: 26px; font-weight: 650; line-height: 1.3; color: var(--gl-ink);
  font-variant-numeric: tabular-nums; }
.answer a { color: inherit; text-decoration: underline; text-decoration-thickness: 1px;
  text-underline-offset: 4px; }
.value.good::before { content: "✓ "; color: GREEN; }
.value.bad::before { content: "✕ "; color: RED; }
.value.unknown { font-size: 20px; font-weight: 500; }
.badge { display: inline-block; font-size: 13px; border: 1.5px solid var(--gl-rule);
  border-radius: 5px; padding: 0 8px; margin-left: 10px; vertical-align: 2px; font-weight: 500; }
.badge.simulated { border-style: dashed; }
h2 { font-size: 21px; margin: 0 0 8px 0; font-weight: 650; }
ul { list-style: none; display: flex; flex-wrap: wrap; gap: 6px 8px; margin: 0 0 6px; padding: 0; }
li { font-size: 14px; border: 1px solid var(--gl-rule); border-radius: 14px; padding: 2px 11px; }
li i { font-style: normal; font-weight: 700; margin-right: 5px; }
li small { color: var(--gl-dim); font-size: 12.5px; }
li small + small::before { content: "· "; }
p { margin: 0 0 3px; font-size: 13px; color: var(--gl-dim); overflow-wrap: anywhere; }
summary { font-size: 14px; cursor: pointer; padding: 2px 0; }
p.wait { font-size: 15px; max-width: 44em; }
""".replace("FONT", FONT)
    .replace("GREEN", css(GREEN))
    .replace("RED", css(RED))
)


class StatusView(View):
    """The status strip; all of it is text."""

    title: ClassVar[str] = "Status"

    def _build(self) -> Sequence[Any]:
        self._head.visible = False
        self.strip = Div(
            disable_math=True, stylesheets=[CSS, OUTPUT_CSS], sizing_mode="stretch_width"
        )
        self.strip.html_attributes = {"role": "status", "aria-live": "off"}
        # Apart from the strip, so that what a reader has opened stays open while numbers change.
        self.stacks = Div(
            disable_math=True, stylesheets=[CSS, OUTPUT_CSS], sizing_mode="stretch_width"
        )
        return (self.strip, self.stacks)

    def update(self, tables: Tables) -> None:
        status = tables.status
        is_empty = status.phase == "waiting for events" and not status.is_past
        self.set_class("nothing" if is_empty else "")  # a page shows nothing else then
        if is_empty:
            words = _without_events(status)
            self._say(words)
            self._write(_waiting(status, words))
            return
        tiles = _tiles(status)
        told = [f"{one.question} {one.short}: {one.detail}" for one in tables.answers]
        self._say(
            "; ".join([*told, *(f"{name}: {value}, {note}" for name, value, note, _ in tiles)])
        )
        self._write("".join(map(_stack, status.stacks[:MOST_STACKS])), self.stacks)
        self.stacks.visible = bool(status.stacks)
        nodes = "".join(map(_node, _named(status)))
        parts = (
            f"<h2>{esc(shown(status.run or 'a run', longest=80))}{_badge(status)}</h2>",
            "<dl class=answers>",
            *map(_answer, tables.answers),
            "</dl>",
            "<dl class=tiles>",
            *(_tile(*tile) for tile in tiles),
            "</dl>",
            _failure(status),
            _diverged(status),
            f"<ul aria-label='Nodes'>{nodes}</ul>",
            _paragraphs(status),
        )
        self._write("".join(parts))

    @property
    def first_words(self) -> str:
        """Return the strip as HTML that a page shows before its scripts have run."""
        looks = "".join(
            (LIGHT.sheets[0], f"@media (prefers-color-scheme: dark) {{{DARK.sheets[0]}}}")
        )
        return (
            f"<style>{looks}{CSS}{OUTPUT_CSS}</style><div class=bk-clearfix>{self.strip.text}</div>"
        )

    def _write(self, text: str, place: Any = None) -> None:
        place = place or self.strip
        if place.text != text:
            place.text = text


def _without_events(status: Status) -> str:
    if not status.run:
        return NO_RUN
    return NOT_READ if status.unread else NO_EVENTS


def _waiting(status: Status, words: str) -> str:
    """Return what stands there while nothing is known of a run."""
    name = shown(status.run, longest=80) or "No run yet"
    return f"<h2>{esc(name)}</h2><p class=wait>{esc(words)}</p>{_paragraphs(status)}"


def _paragraphs(status: Status) -> str:
    return "".join(f"<p>{esc(line)}</p>" for line in _lines(status))


def _failure(status: Status) -> str:
    """Return why the run failed, and the last lines of its worker."""
    why = (
        f"<p class=error>{esc(f'failed: {status.detail}')}</p>" if status.phase == "failed" else ""
    )
    return why + output_html(status.error, status.output)


def _stack(stack: tuple[str, tuple[str, ...]]) -> str:
    whose, lines = stack
    return (
        f"<details><summary>{esc(f'Stacks of {whose}')}</summary>{output_html('', lines)}</details>"
    )


def _diverged(status: Status) -> str:
    return "".join(f"<p class=error>{esc(line)}</p>" for line in status.diverged[:1]) + "".join(
        f"<p>{esc(line)}</p>" for line in status.diverged[1:]
    )


def _badge(status: Status) -> str:
    kind = "simulated" if status.origin == "simulated" else "measured"
    return f"<span class='badge {kind}'>{esc(status.origin)}</span>"


def _tile(name: str, value: str, note: str, colour: str) -> str:
    edge = f" style='border-left-color:{css(colour)}'" if colour else ""
    return (
        f"<div class=tile{edge}><dt>{esc(name)}</dt><dd class=value>{esc(value)}</dd>"
        f"<dd>{esc(note)}</dd></div>"
    )


def _answer(answer: HeadlineAnswer) -> str:
    """Return one of the three answers; it leads to the view that shows where it comes from."""
    return (
        f"<div class=answer><dt>{esc(answer.question)}</dt>"
        f"<dd class='value {answer.mood}'><a href='#{answer.view}'>{esc(answer.short)}</a></dd>"
        f"<dd>{esc(answer.detail)}</dd></div>"
    )


def _tiles(status: Status) -> list[tuple[str, str, str, str]]:
    """Return name, value, note and colour of each tile."""
    colours = {"training": GREEN, "finished": BLUE, "stopped": BLUE, "failed": RED}
    busy = colours.get(status.phase, ORANGE)
    return [
        ("phase", status.phase, _moment(status), busy),
        ("iteration", f"{status.iteration:,}", "done by every rank", ""),
        ("last whole version", *_whole(status), ""),
        ("failures survivable", *_survivable(status)),
        ("nodes", *_nodes(status), ""),
    ]


def _moment(status: Status) -> str:
    if status.detail and not _is_long(status):
        return status.detail
    return f"at {format_seconds(status.now_s)}"


def _is_long(status: Status) -> bool:
    """Return whether the phase's detail needs a line of its own."""
    return len(status.detail) > DETAIL or status.phase == "failed"


def _whole(status: Status) -> tuple[str, str]:
    stored = status.persistent_version
    beside = "none" if stored is None else f"{stored:,}"
    if status.whole_version is None:
        return "none", f"in memory; persistent: {beside}"
    age = "" if status.whole_age_s is None else f"{format_seconds(status.whole_age_s)} old; "
    return f"{status.whole_version:,}", f"{age}persistent: {beside}"


def _when(status: Status) -> str:
    """Return when a tile holds: a run that is over, or looked back at, has no "now"."""
    if status.is_past:
        return "then"
    return "at its end" if status.phase in ENDED else "now"


def _survivable(status: Status) -> tuple[str, str, str]:
    most = status.survivable
    if most is None:
        return "unknown", "the log has no placement yet", ""
    when = _when(status)
    if most < 0:
        return "none", f"{when}: no version is whole in memory", RED
    version = f"version {status.survivable_version:,}"
    if most == 0:
        return "none", f"{when}: {version} is whole, but without a second copy", RED
    return f"any {most}", f"{when}: {version} stays in memory", GREEN


def _nodes(status: Status) -> tuple[str, str]:
    count = Counter(node.health for node in status.nodes)
    working = sum(node.position is not None and node.health != "lost" for node in status.nodes)
    return f"{working:,}", f"{count['standby']} standby, {status.lost_nodes} lost"


def _named(status: Status) -> Sequence[NodeRow]:
    if len(status.nodes) <= NAMED:
        return status.nodes
    return [
        node
        for node in status.nodes
        if node.position is None
        or node.health in {"lost", "failed"}
        or node.leaving is not None
        or node.is_root
    ][:NAMED]


def _node(node: NodeRow) -> str:
    where = "" if node.position is None else f" <small>position {node.position}</small>"
    root = " <small>root agent</small>" if node.is_root else ""
    goes = " <small>to leave</small>" if node.leaving is not None else ""
    sign = f"<i style='color:{css(COLOURS[node.health])}' aria-hidden=true>{SIGNS[node.health]}</i>"
    told = esc(shown("; ".join(node.places), longest=PLACES))
    ranks = f" <small>{told}</small>" if node.places else ""
    is_plain = node.health in {"training", "over"}
    health = "" if is_plain else f" <small>{HEALTH.get(node.health, node.health)}</small>"
    return f"<li>{sign}{esc(shown(node.name))}{where}{ranks}{health}{goes}{root}</li>"


def _lines(status: Status) -> list[str]:
    """Return what stands beneath the tiles."""
    lines = [status.detail] if _is_long(status) and status.phase != "failed" else []
    lines += [" · ".join(part) for part in (status.facts, status.conditions) if part]
    lines += [*leaving_of(status.nodes), *status.ailing]
    lines += [f"note: {note}" for note in status.notes]
    if status.unread:
        lines.append(f"events of the log that could not be read: {status.unread}")
    return lines
