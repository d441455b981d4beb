"""What must not be lost: neither from memory nor from the tier, unless a person let go of it."""

from collections.abc import Iterator, Sequence
from math import inf
from typing import Final, TypeVar

from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.report.reducers.rank_progress import Reached
from gemini_lab_bench.chaos.aftermath import Aftermath

REJECTED: Final = (events.ReplicaRejected, events.VersionRejected)
EXCUSED_S: Final = 10.0
"""A copy that was found to be bad is told of within so long, before or after it is let go."""
SKEW_S: Final = 0.5
"""Between a moment in the log and the same one as an observer has it."""
LEFT: Final = "left anywhere"
"""As a run says that there is nothing to go on from."""
UNSAVED: Final = "the run's last one, is not in"
"""As a run says that its last version is not in the tier."""
INVENTORY_S: Final = 0.3
"""Before a plan: what is in memory then was there when agents were asked for it."""

State = TypeVar("State")


class GivenUp:
    """Whether a person has let go of what is waited for, for the recovery under way.

    Args:
        run: Whose log is gone through.
    """

    def __init__(self, run: Aftermath) -> None:
        self.is_given = False
        self._coming = sorted(run.let_go_s)

    def take(self, entry: Entry) -> None:
        if isinstance(entry.event, events.RecoveryFinished):
            self.is_given = False
        while self._coming and self._coming[0] <= entry.at_s + SKEW_S:
            self.is_given = True
            del self._coming[0]


def thrown_away(run: Aftermath) -> Iterator[str]:
    """Check that memory gave the newest whole version, unless copies of it were bad."""
    complete: dict[int, set[int]] = {}  # the ranks that told of each version
    newest, ranks, is_excused, word = 0, 0, False, GivenUp(run)
    holders: Sequence[Sequence[int]] = ()  # of each shard: the positions
    members: Sequence[str | None] = ()
    gone = set[str | None]()
    for entry in run.entries:
        word.take(entry)
        match event := entry.event:
            case events.RunStarted():
                ranks = event.nodes * event.workers_per_node
            case events.VersionComplete():
                told = complete.setdefault(event.version, set())
                told.add(event.rank)
                newest = max(newest, event.version) if len(told) == ranks else newest
            case events.Rewound():
                complete, newest = {}, min(newest, event.version)
            case events.ReplicaRejected() | events.VersionRejected():
                is_excused = True
            case events.Protected(placement=placement) if placement is not None:
                holders = placement.holders
            case events.NodeLost():
                gone.add(event.name)
            case events.NodeJoined():
                gone.discard(event.name)  # its memory may be back
            case events.RecoveryPlanned():
                version = event.version or 0
                is_excused |= word.is_given
                # Then memory has an older version at most, of nodes that came back.
                is_excused |= any(
                    all(rank < len(members) and members[rank] in gone for rank in shard)
                    for shard in holders
                )
                if event.tier == "memory" and version < newest and not is_excused:
                    yield (
                        f"epoch {event.epoch} goes on from version {version}, though {newest} was "
                        "whole in memory"
                    )
                complete, newest, is_excused = {}, version, False
                ranks = len(event.members) or ranks  # each node of a campaign has one
                members, gone = event.members, set()


def left_in_memory(run: Aftermath) -> Iterator[str]:
    """Check that no plan goes back behind what an observer sees whole in memory then."""
    is_excused, word = False, GivenUp(run)
    for entry in run.entries:
        word.take(entry)
        match event := entry.event:
            case events.ReplicaRejected() | events.VersionRejected() | events.WrongSums():
                is_excused = True
            case events.RecoveryFinished():
                is_excused = False
            case events.RecoveryPlanned() if not (is_excused or word.is_given):
                around = entry.at_s - INVENTORY_S, entry.at_s + INVENTORY_S / 3
                states = [(one.at_s, one) for one in run.memory]
                seen = min(_between(states, *around), key=lambda one: one.line, default=None)
                if seen is None or (seen.epoch, seen.rewinds) < (event.made_in, event.made_after):
                    continue
                if (event.version or 0) < seen.version:
                    yield (
                        f"epoch {event.epoch} goes on from version {event.version}, though "
                        f"{seen.version} of epoch {seen.epoch} was seen whole in memory"
                    )


def _between(
    states: Sequence[tuple[float, State]], since_s: float, until_s: float
) -> Iterator[State]:
    """Yield what was so at some moment between two; each state is so from its own moment on."""
    until = [*(at_s for at_s, _ in states[1:]), inf]
    for (at_s, state), over_s in zip(states, until, strict=False):
        if at_s <= until_s and over_s >= since_s:
            yield state


def bare(run: Aftermath) -> Iterator[str]:
    """Check that a version is always whole in memory, unless nodes are gone or copies were bad."""
    trained_s = max(
        (e.at_s for e in run.entries if isinstance(e.event, events.Iteration)), default=0.0
    )
    bad_s = [e.at_s for e in run.entries if isinstance(e.event, REJECTED)]
    loading = [*_loading_from_the_tier(run.entries)]
    for gap_s in run.gaps_s:
        is_excused = any(abs(gap_s - at_s) < EXCUSED_S for at_s in bad_s)
        is_excused |= any(since_s <= gap_s <= until_s for since_s, until_s in loading)
        if gap_s < trained_s and not is_excused:  # later, nodes give their memory back
            yield f"no version was whole in memory at {gap_s:.3f}, though no node was gone"


def _loading_from_the_tier(entries: Sequence[Entry]) -> Iterator[tuple[float, float]]:
    """Yield the span of each recovery from the tier, until all ranks made a version again.

    An older version that was whole on returned nodes frees its memory for the tier's newer one.
    """
    since_s: float | None = None
    for entry in entries:
        match entry.event:
            case events.RecoveryPlanned(tier=tier):
                if since_s is not None:
                    yield since_s, entry.at_s
                since_s = entry.at_s - SKEW_S if tier == "persistent" else None
            case events.RecoveryFinished() if since_s is not None:
                yield since_s, entry.at_s + SKEW_S
                since_s = None
    if since_s is not None:
        yield since_s, inf


def forgotten(run: Aftermath) -> Iterator[str]:
    """Check that no plan goes back behind the newest saved version, unless it was spoilt."""
    saved, word = 0, GivenUp(run)
    for entry in run.entries:
        word.take(entry)
        match event := entry.event:
            case events.PersistFinished():
                saved = event.version
            case events.Rewound() if event.version < saved:
                saved = 0  # a person's word; what else is there is not known here
            case events.RecoveryPlanned() if (event.version or 0) < saved:
                if saved not in run.spoilt and not word.is_given:
                    yield (
                        f"epoch {event.epoch} goes on from version {event.version}, though {saved} "
                        "was saved"
                    )
                saved = 0


def misled(run: Aftermath) -> Iterator[str]:
    """Check that nobody is told that nothing is left while the tier has a whole version."""
    for entry in run.entries:
        if isinstance(event := entry.event, events.RecoveryWaiting) and LEFT in event.reason:
            around = entry.at_s - SKEW_S, entry.at_s + SKEW_S
            there = _between(run.tier, *around)
            if good := min((max(one - run.spoilt, default=0) for one in there), default=0):
                yield f"version {good} was whole in the tier as the run said: {event.reason}"
                return


def removed(run: Aftermath) -> Iterator[str]:
    """Check that a saved version stays whole in the tier until a newer one is."""
    for version, since_s, until_s in _saved(run):
        if version in run.spoilt:
            continue
        first_s, last_s = since_s + SKEW_S, until_s - SKEW_S
        there = [] if first_s > last_s else [*_between(run.tier, first_s, last_s)]
        if fewest := [one for one in there if max(one, default=0) < version]:
            yield (
                f"version {version} was saved, but later neither it nor a newer one was in the "
                f"tier, only {sorted(fewest[0])}"
            )
            return
        left = run.readable if until_s == inf else None
        if left is not None and max(left, default=0) < version:
            yield (
                f"version {version} was saved, but at the end only {sorted(left)} can be read of "
                "the tier"
            )


def _saved(run: Aftermath) -> Iterator[tuple[int, float, float]]:
    """Yield each saved version, and from when to when it was the newest that counts."""
    version, since_s = 0, 0.0
    for entry in run.entries:
        match event := entry.event:
            case events.PersistFinished():
                is_over, after = True, event.version
            case events.Rewound() | events.RecoveryPlanned():
                is_over, after = (event.version or 0) < version, 0
            case _:
                continue
        if is_over:
            if version:
                yield version, since_s, entry.at_s
            version, since_s = after, entry.at_s
    if version:
        yield version, since_s, inf


def unsaved(run: Aftermath) -> Iterator[str]:
    """Check that a run that is done has saved its last version, or says that it has not."""
    saved = 0
    for entry in run.entries:
        match event := entry.event:
            case events.PersistFinished():
                saved = event.version
            case events.Note() if UNSAVED in event.text:
                return
            case events.RunFinished() if run.tier and saved < run.iterations:
                yield (
                    f"the run is done, but the last version that was saved is {saved} of "
                    f"{run.iterations}, and nothing says so"
                )


def untrue(run: Aftermath) -> Iterator[str]:
    """Check that a recovery cost what it says: what the ranks had done, and do again.

    A root agent that was elected meanwhile knows at least that something was lost, if any of the
    nodes that trained until then is left to tell.
    """
    reached, since, is_new = Reached(), 0, False
    trained, members, gone = set[str | None](), set[str | None](), set[str | None]()
    for entry in run.entries:
        reached.take(entry)
        match event := entry.event:
            case events.RootElected():
                is_new = True
            case events.NodeLost():
                gone.add(event.name)
            case events.RecoveryPlanned():
                members = {*event.members}
                trained = trained or members
            case events.RecoveryFinished():
                before = reached.between(since, event.epoch)
                fewest = max(0, before.by_all - event.version) - 1  # last words may be lost
                most = max(0, before.by_any - event.version) + 1
                if is_new:
                    fewest = 0 if trained <= gone else min(fewest, 1)
                if not fewest <= event.lost_iterations <= most:
                    yield (
                        f"recovery {event.recovery} says that {event.lost_iterations} iterations "
                        f"were lost: ranks had done {before.by_all} to {before.by_any}, and went "
                        f"on from version {event.version}"
                    )
                since, is_new, trained, gone = event.epoch, False, members, set()
