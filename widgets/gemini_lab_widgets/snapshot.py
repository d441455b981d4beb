"""From a run's state to the tables that views draw."""

from collections.abc import Iterable

from gemini_lab.settings import SCHEDULED
from gemini_lab.units import format_bytes
from gemini_lab_widgets.copies import NONE, survival
from gemini_lab_widgets.losses import Losses
from gemini_lab_widgets.run_state import RunState
from gemini_lab_widgets.tables import Memory, NodeHealth, NodeRow, Overhead, Replicas, Status


def status(
    run: RunState,
    *,
    name: str,
    now_s: float,
    losses: Losses,
    overhead: Overhead | None,
    unread: int,
) -> Status:
    """The run in a few numbers, at the moment `now_s` of the log's clock."""
    copies, roster = run.copies, run.roster
    version, survivable = copies.newest(), copies.survivable()
    whole_at_s = copies.whole_at_s(version)
    members = copies.members
    return Status(
        run=name,
        origin=run.origin,
        phase=run.phase,
        detail=run.detail,
        now_s=now_s - run.start_s,
        iteration=min(copies.reached, default=0),
        overhead=overhead,
        whole_version=version,
        whole_age_s=None if whole_at_s is None else max(0.0, now_s - whole_at_s),
        survivable=None if survivable is None else survivable[0],
        survivable_version=None if survivable is None else survivable[1],
        persistent_version=_persistent(run),
        nodes=(*_seated(run), *roster.standbys(members), *roster.gone(members)),
        lost_nodes=roster.lost_count,
        recoveries=losses.total,
        wasted_s=losses.wasted_s,
        conditions=tuple(_conditions(run)),
        notes=tuple(run.notes),
        unread=unread,
    )


def replicas(run: RunState) -> Replicas:
    """Who keeps whose replica."""
    copies, placement = run.copies, run.copies.placement
    return Replicas(
        strategy="" if placement is None else placement.strategy,
        replicas=0 if placement is None else placement.replicas,
        groups=() if placement is None else placement.groups,
        nodes=_seated(run),
        standbys=run.roster.standbys(copies.members),
        copies=copies.rows(writing=run.is_writing),
        what_if=copies.what_if(),
        survival=() if placement is None else survival(placement),
        version=copies.newest(),
        persistent_version=_persistent(run),
    )


def memory(run: RunState) -> Memory:
    """Memory by node, and what the log does not tell."""
    rows = run.copies.memory(writing=run.is_writing)
    notes = []
    if not rows:
        notes.append("the log has not told the size of a shard yet")
    elif run.copies.simulated:
        notes.append("simulated: a shard's size follows from what a version sends")
    if rows:
        notes.append(
            "the log states no limit of a node's memory; the outline is what its buffers take, "
            "two for each shard that it keeps"
        )
    if str(run.settings.get("scheme")) in SCHEDULED:
        buffer_bytes = run.settings.get("buffer_bytes")
        if isinstance(buffer_bytes, int):
            size = format_bytes(buffer_bytes)
            notes.append(f"beside that, {size} of sub-buffers between wire and memory")
    return Memory(rows=rows, limit_bytes=None, notes=tuple(notes))


def _persistent(run: RunState) -> int | None:
    return None if run.copies.persistent == NONE else run.copies.persistent


def _seated(run: RunState) -> tuple[NodeRow, ...]:
    busy: NodeHealth = "starting" if run.phase == "starting" else "training"
    if run.phase in {"recovering", "waiting for machines"}:
        busy = "recovering"
    return run.roster.seated(run.copies.members, run.copies.gone, busy)


def _conditions(run: RunState) -> Iterable[str]:
    """What the run emulates or assumes."""
    settings = run.settings
    if scheme := settings.get("scheme"):
        yield f"scheme {scheme}"
    for name, text in (
        ("link_bytes_per_s", "each node on a link paced to {}/s"),
        ("copy_bytes_per_s", "sub-buffers emptied at {}/s"),
    ):
        rate = settings.get(name)
        if isinstance(rate, int | float) and rate:
            yield text.format(format_bytes(rate))
    if run.origin == "simulated":
        yield f"{settings.get('policy', 'simulated')}: {settings.get('assumptions', '')}"
