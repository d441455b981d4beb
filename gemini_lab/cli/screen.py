"""A run on one screen of a terminal: what an operator asks first."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gemini_lab.display import readable
from gemini_lab.report.recovery import Recovery
from gemini_lab.report.reducer import RunReducer
from gemini_lab.report.reducers.course import ENDED
from gemini_lab.report.tables.recoveries import losses as losses_of
from gemini_lab.report.tables.replica_map import memory
from gemini_lab.report.tables.status import NodeRow, Status, leaving_of, status
from gemini_lab.report.tables.time_breakdown import SpentRow, spent
from gemini_lab.units import format_bytes, format_seconds

RECENT: Final = 64
"""Newest iterations whose median is the pace."""
RECOVERIES: Final = 4
PARTS_SHOWN: Final = 5
LONGEST_NAME: Final = 40
"""Characters of a node's name; of a longer one the end would begin a line of its own."""
SILENT_S: Final = 15.0
"""A log without an owner that has told nothing for so long tells of the past."""
VALUES_SHOWN: Final = 4
COLOURS: Final = {
    "training": "green",
    "finished": "green",
    "over": "green",
    "standby": "cyan",
    "drained": "cyan",
    "left": "dim",
    "failed": "red",
    "stopped": "green",
    "lost": "red",
}
"""Of phases and of nodes' states; what is on its way is yellow."""


def console(*, soft_wrap: bool = False) -> Console:
    """Return a console for which `[red]` and `:smile:` in a run's names are letters."""
    return Console(markup=False, emoji=False, soft_wrap=soft_wrap)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """The facts on a run that its log does not have."""

    # For people, by name, such as its folder.
    words: Mapping[str, str] = field(default_factory=dict)
    # Whether its log has no owner any more, as far as can be seen from here.
    is_ownerless: bool = False


def screen(run: RunReducer, now_s: float, beside: Beside) -> RenderableType:
    """Return the run at the moment `now_s` of its log's clock.

    Args:
        run: What its log comes to.
        now_s: The moment; a run that is over is shown as it ended, and one whose log ended without
            that as it was then.
        beside: What else is known.
    """
    if run.course.job is None:
        return Text(f"{run.name}: its log has no event yet")
    words, silent_s = dict(beside.words), 0.0
    if run.course.ended_at_s is not None:
        now_s, words = run.course.ended_at_s, {**words, "owner": "none: the run is over"}
    elif beside.is_ownerless and run.newest_s is not None and now_s - run.newest_s > SILENT_S:
        now_s, silent_s = run.newest_s, now_s - run.newest_s
    told = status(run, now_s=now_s, losses=losses_of(run))
    parts: list[RenderableType] = [
        _facts(run, told, now_s, words, silent_s=silent_s),
        "",
        _nodes(run, told, is_past=silent_s > 0),
    ]
    recoveries = run.recoveries.recoveries()[-RECOVERIES:]
    if recoveries:
        parts += ["", _recoveries(recoveries, told.recoveries)]
    parts += [
        _marked("!", line, style="yellow") for line in (*leaving_of(told.nodes), *told.ailing)
    ]
    loud = [*told.diverged, *([told.error] if told.error else [])]
    parts += [_marked("!", text, style="red") for text in loud]
    parts += [_marked("note ", note, style="dim") for note in told.notes[-3:]]
    return Group(*parts)


def _marked(mark: str, text: str, *, style: str) -> Table:
    """Return a text beside its mark; however narrow it is, no line of it begins at the margin."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text(mark, style=style), Text(text, style=style))
    return table


def _facts(
    run: RunReducer, told: Status, now_s: float, beside: Mapping[str, str], *, silent_s: float
) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")  # a path that was cut short could not be copied
    table.add_row("run", told.run)
    table.add_row("started", _times(run, told, silent_s))
    table.add_row("phase", _phase(told, silent_s))
    table.add_row("iteration", f"{told.iteration}{_pace(run)}")
    if logged := list(_logged(run)):
        table.add_row("logged", Text(", ".join(logged)))
    table.add_row("in memory", _in_memory(told) if not silent_s else _was_in_memory(told))
    table.add_row("persistent", _persistent(run, told, now_s))
    table.add_row("time", ", ".join(_time(spent(run, now_s=now_s).rows)))
    for name, text in beside.items():
        table.add_row(name, Text(readable(text)))
    return table


def _times(run: RunReducer, told: Status, silent_s: float) -> str:
    """Return when a run started, and when it ended or how long it has been running."""
    took, ended_s = format_seconds(told.now_s), run.course.ended_at_s
    if run.course.is_simulated:
        return f"at 0 s of simulated time, {took} ago"
    started = moment(run.course.started_at_s)
    if ended_s is not None:
        return f"{started}, ended {moment(ended_s)}, after {took}"
    return started if silent_s else f"{started}, {took} ago"


def moment(at_s: float) -> str:
    """Return a moment of the wall clock in this machine's time; of what no clock shows, a dash."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))
    except (OverflowError, OSError, ValueError):
        return "-"


def _phase(told: Status, silent_s: float) -> Text:
    detail = f" ({told.detail})" if told.detail else ""
    if silent_s:
        ago = format_seconds(round(silent_s))
        return Text(f"unknown: {told.phase}{detail} when its log ended, {ago} ago", style="red")
    return Text(f"{told.phase}{detail}", style=colour_of(told.phase))


def _was_in_memory(told: Status) -> Text:
    version = "no whole version" if told.whole_version is None else f"version {told.whole_version}"
    return Text(f"{version} when its log ended; what memory has now is unknown", style="red")


def colour_of(state: str) -> str:
    """Return the colour of a run's phase or a node's state."""
    return COLOURS.get(state, "yellow")


def _pace(run: RunReducer) -> str:
    starts_s, ends_s, _ = run.pace.spans()
    if not ends_s.size:
        return ""
    newest = np.argsort(ends_s)[-RECENT:]
    median_s = float(np.median((ends_s - starts_s)[newest]))
    return f", one in {format_seconds(median_s)}"


def _logged(run: RunReducer) -> Iterator[str]:
    """Yield the newest values that the script logged, means over ranks."""
    for name in run.logged.names[:VALUES_SHOWN]:
        means = run.logged.told(name, until=run.reached.done()).means
        if len(means):
            yield f"{name} {means[-1]:.5g}"


def _in_memory(told: Status) -> Text:
    if told.whole_version is None:
        return Text("no whole version", style="red")
    age = "" if told.whole_age_s is None else f", {format_seconds(told.whole_age_s)} old"
    if told.phase in ENDED:
        return Text(f"version {told.whole_version} when it ended")
    text = Text(f"version {told.whole_version}{age}; ")
    if not told.survivable or told.survivable < 0:
        return text.append("NO node may be lost now", style="red")
    nodes = "any node" if told.survivable == 1 else f"any {told.survivable} nodes"
    return text.append(f"{nodes} may be lost")


def _persistent(run: RunReducer, told: Status, now_s: float) -> Text:
    settings = run.course.settings
    url = settings.get("persistent_url")
    if told.persistent_version is not None:
        written = run.persistent.written
        age = (
            f", {format_seconds(max(0.0, now_s - written[-1][0]))} old"
            if written and told.phase not in ENDED
            else ""
        )
        return Text(f"version {told.persistent_version}{age}{f', in {url}' if url else ''}")
    if "persistent_url" not in settings:
        return Text("not known before the script has called protect")
    if url is None:
        return Text("none: without one, a version that no memory has is lost", style="yellow")
    return Text(f"nothing yet, in {url}")


def _time(rows: Sequence[SpentRow]) -> Iterator[str]:
    """Yield the largest parts of the wall time; training comes first, however little it is."""
    wall_s = sum(row.seconds for row in rows)
    others = sorted((row for row in rows if row.part != "training"), key=lambda row: -row.seconds)
    training = [row for row in rows if row.part == "training"]
    for row in [*training, *others][:PARTS_SHOWN]:
        yield f"{row.label} {100 * row.seconds / wall_s:.1f} %"


def _nodes(run: RunReducer, told: Status, *, is_past: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("NODE", no_wrap=True, max_width=LONGEST_NAME)
    for name in ("STATE THEN" if is_past else "STATE", "RANKS", "MEMORY"):
        table.add_column(name)
    taken = {row.node: format_bytes(row.taken_bytes) for row in memory(run).rows}
    for node in told.nodes:
        name = f"{node.name} (root)" if node.is_root else node.name
        state = Text(node.health, style="dim" if is_past else colour_of(node.health))
        if node.leaving is not None:
            state.append(", to leave", style="yellow")
        table.add_row(name, state, _ranks(run, node), taken.get(node.name, ""))
    return table


def _ranks(run: RunReducer, node: NodeRow) -> str:
    if node.position is None:
        return ""
    per_node = run.copies.per_node
    first = node.position * per_node
    ranks = str(first) if per_node == 1 else f"{first}-{first + per_node - 1}"
    return f"{ranks} ({readable('; '.join(node.places))})" if node.places else ranks


def _recoveries(recoveries: Sequence[Recovery], total: int) -> Table:
    title = f"{total} recover{'y' if total == 1 else 'ies'}, the newest last"
    table = Table(
        box=None, padding=(0, 2, 0, 0), header_style="dim", title=title, title_justify="left"
    )
    for name in ("#", "CAUSE", "LOST", "TOOK", "VERSION", "FROM", "DONE AGAIN"):
        table.add_column(name)
    for one in recoveries:
        took = "under way" if one.duration_s is None else format_seconds(one.duration_s)
        table.add_row(
            str(one.number),
            one.cause.replace("_", " "),
            ", ".join(one.lost_nodes),
            took,
            "" if one.version is None else str(one.version),
            one.tier or "",
            str(one.lost_iterations),
        )
    return table
