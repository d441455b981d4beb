"""A run in a few numbers, and its nodes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from gemini_lab.display import error_line
from gemini_lab.report.recovery import culprit_of
from gemini_lab.report.reducer import RunReducer
from gemini_lab.report.reducers.copies import NONE
from gemini_lab.report.reducers.course import Phase
from gemini_lab.report.reducers.nodes import Nodes
from gemini_lab.report.tables.recoveries import Losses, Origin
from gemini_lab.units import format_bytes, format_seconds

NodeHealth = Literal[
    "starting", "training", "recovering", "failed", "standby", "lost", "over", "drained", "left"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """One node as it is now."""

    name: str
    # Where it trains; `None` for a standby or a node that is gone or about to go.
    position: int | None
    # What it does; `"failed"` where its worker exited or hung and no other was started, `"over"`
    # where the run is, `"drained"` where its ranks have moved so that its machine may be taken,
    # `"left"` where that has happened.
    health: NodeHealth
    is_root: bool = False
    rack: str = ""  # where its position is; empty where the log does not say
    # What its ranks wait for before they move, as its machine is to go; empty where they wait for
    # nothing, `None` where the machine stays.
    leaving: str | None = None
    places: tuple[str, ...] = ()  # what each of its ranks is; empty if the job's are alike


def leaving_of(nodes: Iterable[NodeRow]) -> list[str]:
    """Say in words what becomes of nodes whose machines are to go or may be taken."""
    lines = []
    for node in nodes:
        if node.leaving is not None:
            lines.append(
                f"{node.name} is to leave: {node.leaving or 'its ranks are about to move'}"
            )
        elif node.health == "drained":
            lines.append(f"{node.name} has no ranks left: its machine may be taken")
    return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The run in a few numbers."""

    run: str
    origin: Origin
    phase: Phase
    detail: str  # the recovery's step, why a run failed, or nothing
    error: str  # what the worker raised because of which the run failed or recovers; or nothing
    output: tuple[str, ...]
    now_s: float
    iteration: int
    whole_version: int | None  # newest version of which every shard is whole in memory somewhere
    whole_age_s: float | None
    # This many nodes, whichever, may be lost now, and memory still has a whole version; -1 where
    # memory has none at all, `None` where the placement is not known.
    survivable: int | None
    survivable_version: int | None
    persistent_version: int | None
    # In order of position, then standbys, then nodes that were lost last.
    nodes: tuple[NodeRow, ...]
    lost_nodes: int
    recoveries: int
    wasted_s: float  # lost progress and retrieval of those recoveries, as far as measured
    conditions: tuple[str, ...]  # what the run emulates or assumes, for people
    notes: tuple[str, ...]
    unread: int
    # Losses that are no numbers now; what came out otherwise when it was done again, and the likely
    # cause; or nothing.
    diverged: tuple[str, ...] = ()
    is_open: bool = False  # whether the newest of them has not come to its end
    is_past: bool = False
    # When the run began, its command, its size, and what it is made with, for people.
    facts: tuple[str, ...] = ()
    ailing: tuple[str, ...] = ()  # ranks that are slow, and faults that machines tell of
    # What workers' threads did when a user asked: whose, when and how, and the lines.
    stacks: tuple[tuple[str, tuple[str, ...]], ...] = ()


GONE_SHOWN: Final = 8
LEAVES: Final = {
    "background": "versions leave in the background, as fast as the link takes them",
    "gemini": "versions leave in chunks that fit the network's idle spans (scheme gemini)",
    "interleaved": "versions leave in idle spans, one buffer at a time (scheme interleaved)",
    "naive": "versions leave in idle spans, in one piece each (scheme naive)",
    "blocking": "versions leave while training waits for them (scheme blocking)",
    "none": "no versions are kept (scheme none)",
}
"""When versions leave, by scheme, in words."""


def status(run: RunReducer, *, now_s: float, losses: Losses, is_past: bool = False) -> Status:
    """Return the run in a few numbers, at the moment `now_s` of the log's clock."""
    copies, course, nodes = run.copies, run.course, run.nodes
    version, survivable = copies.newest(), copies.survivable()
    whole_at_s = copies.whole_at_s(version)
    error, output = _error(run, losses)
    return Status(
        run=run.name,
        origin="simulated" if course.is_simulated else "measured here",
        phase=course.phase,
        detail=course.detail,
        error=error,
        output=output,
        now_s=now_s - course.started_at_s,
        iteration=run.reached.done(),
        whole_version=version,
        whole_age_s=None if whole_at_s is None else max(0.0, now_s - whole_at_s),
        survivable=None if survivable is None else survivable[0],
        survivable_version=None if survivable is None else survivable[1],
        persistent_version=None if copies.persistent == NONE else copies.persistent,
        nodes=(*seated(run), *standbys(nodes), *_gone(nodes)),
        lost_nodes=nodes.lost_count,
        recoveries=losses.total,
        wasted_s=losses.wasted_s,
        is_open=any(one.resumed_at_s is None for one in losses.recoveries[-1:]),
        conditions=tuple(_conditions(run)),
        diverged=tuple(_diverged(run)),
        notes=(
            *(f"{node}: {text}" for _, node, text in course.notes),
            *_changes(run),
        ),
        unread=run.unread,
        is_past=is_past,
        facts=tuple(_facts(run)),
        ailing=run.ailments.lines(),
        stacks=tuple(
            (f"rank {rank} at {format_seconds(at_s - course.started_at_s)}, {one.how}", one.lines)
            for rank, (at_s, one) in sorted(run.ailments.stacks.items())
        ),
    )


def _facts(run: RunReducer) -> Iterable[str]:
    course, job = run.course, run.course.job
    if job is None or job.script is None:
        return
    began = datetime.fromtimestamp(course.started_at_s, tz=UTC)
    yield f"began {began:%Y-%m-%d %H:%M:%S} UTC"
    yield " ".join(["python", *(["-m"] if job.module else []), job.script, *job.args])
    yield f"{course.nodes} nodes x {job.workers_per_node}"
    if job.made_with:
        yield ", ".join(f"{name} {version}" for name, version in job.made_with.items())


def _changes(run: RunReducer) -> Iterable[str]:
    """Give the newest return to a version, the run's size, and where copies lie."""
    if run.rewinds.found:
        times = f" ({run.rewinds.total} times by now)" if run.rewinds.total > 1 else ""
        newest = run.rewinds.found[-1]
        yield f"{'' if newest.reason else 'training went '}{newest}{times}"
    if run.sizes.found:
        yield f"{run.sizes.found[-1]}"
    if run.sizes.waits_for:
        yield run.sizes.waits_for
    if run.copies_placed.found:
        yield f"{run.copies_placed.found[-1]}"
    if run.copies_placed.short:
        yield run.copies_placed.short


def _diverged(run: RunReducer) -> Iterable[str]:
    """Give machines that computed wrong, losses that are no numbers, and what differs.

    Other code comes first: it may be why.
    """
    if run.course.code_changes:
        yield f"OTHER CODE: {run.course.code_changes[-1]}"
    if run.verified.wrong:
        times = f" ({run.verified.total} times by now)" if run.verified.total > 1 else ""
        yield f"WRONG SUMS{times}: {run.verified.wrong[-1]}"
    if run.finite.under_way is not None:
        yield f"NOT FINITE: {run.finite.under_way.began}"
    found = run.divergences.found
    if found:
        first = min(found, key=lambda one: (one.epoch, one.iteration, one.rank))
        yield f"DIVERGED: {first}"
        yield f"likely: {first.cause}"


def _error(run: RunReducer, losses: Losses) -> tuple[str, tuple[str, ...]]:
    """Return a worker's error and last lines while the run does not train because of it."""
    if run.course.phase not in {"failed", "recovering", "waiting for machines"}:
        return "", ()
    under_way = losses.recoveries[-1:] if run.course.phase != "failed" else ()
    exits = [one for recovery in under_way for one in recovery.exits]
    if run.course.phase == "failed":
        exits = [one for one in run.recoveries.exits if one.output][-1:]
    gone = culprit_of(exits)
    output = run.course.output
    if gone is not None and not gone.is_from_outside:
        output = output or gone.output
    return error_line(output) if gone is None else str(gone), output


def seated(run: RunReducer) -> tuple[NodeRow, ...]:
    """Return the nodes on positions, in order; those that live and did not fail do all the same."""
    nodes = run.nodes
    busy: NodeHealth = "starting" if run.course.phase == "starting" else "training"
    if run.course.phase in {"recovering", "waiting for machines"}:
        busy = "recovering"
    if run.course.is_over:
        busy = "over"
    racks = (run.course.job.racks if run.course.job else None) or ()
    places, per_node = run.copies.places, run.copies.per_node
    places = places if any(places) else []
    return tuple(
        NodeRow(
            name=name or "no node",
            position=position,
            health="lost" if position in nodes.gone else "failed" if name in nodes.failed else busy,
            is_root=name == nodes.root,
            rack=racks[position] if position < len(racks) else "",
            leaving=nodes.leaving.get(name or ""),
            places=tuple(places[position * per_node : (position + 1) * per_node]),
        )
        for position, name in enumerate(nodes.members)
    )


def standbys(nodes: Nodes) -> tuple[NodeRow, ...]:
    """Return nodes that have no position, and were not lost."""
    return tuple(
        NodeRow(name=name, position=None, health="standby", is_root=name == nodes.root)
        for name in nodes.standbys
    )


def _gone(nodes: Nodes) -> tuple[NodeRow, ...]:
    """Return the nodes whose ranks have moved, and the last that left or were lost."""
    seats = set(nodes.members)
    lost = [name for name in nodes.lost if name not in seats]
    kinds: tuple[tuple[NodeHealth, Sequence[str]], ...] = (
        ("drained", [*nodes.drained]),
        ("left", [*nodes.left][-GONE_SHOWN:]),
        ("lost", lost[-GONE_SHOWN:]),
    )
    return tuple(
        NodeRow(
            name=name,
            position=None,
            health=health,
            is_root=health == "drained" and name == nodes.root,
        )
        for health, names in kinds
        for name in names
    )


def _conditions(run: RunReducer) -> Iterable[str]:
    """Return the emulated or assumed conditions of the run."""
    settings = run.course.settings
    if scheme := settings.get("scheme"):
        yield LEAVES.get(str(scheme), f"scheme {scheme}")
    for name, text in (
        ("link_bytes_per_s", "each node on a link paced to {}/s"),
        ("copy_bytes_per_s", "sub-buffers emptied at {}/s"),
    ):
        rate = settings.get(name)
        if isinstance(rate, int | float) and rate:
            yield text.format(format_bytes(rate))
    if run.course.job is not None and (assumed := run.course.job.simulated) is not None:
        yield f"{assumed.policy}: {assumed.assumptions}"
