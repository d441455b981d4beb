"""What must hold after a run with faults: pure functions of its log and of what is left."""

import os
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf
from statistics import fmean
from typing import Final

from gemini_lab.log import events
from gemini_lab.log.entry import Entry, encode_entry
from gemini_lab.report.reducers.rank_progress import Reached
from gemini_lab_bench.chaos import lost
from gemini_lab_bench.chaos.aftermath import Aftermath

EDITED: Final = b"own_part.py"
"""The module of the script's own that is edited, as a line of the log names it."""
STUMBLED: Final = re.compile(
    r"(Overflow|Type|Attribute|Key|Index|Value|Name|Memory|Recursion|Assertion|struct\.)[Ee]rror\b"
)
"""The last line of what a program says that fell over its own values."""
FAR: Final = 0.01
"""Of a mean loss: sums in another order differ in last bits, and training makes more of it."""


def problems(run: Aftermath) -> list[str]:
    """Return what does not hold, one line each; empty for a run without fault."""
    found = [run.hang] if run.hang else []
    for oracle in (
        other_losses,
        misjudged,
        two_roots,
        two_lineages,
        lost.thrown_away,
        lost.left_in_memory,
        lost.bare,
        lost.forgotten,
        lost.misled,
        lost.removed,
        lost.unsaved,
        lost.untrue,
        untold,
        unsaid,
        harmed,
        left_behind,
    ):
        found += oracle(run)
    return found


def other_losses(run: Aftermath) -> Iterator[str]:
    """Check that every loss that a rank told, in any try, is the undisturbed run's, bit by bit.

    Up to a resize: from then on sums are taken in another order, and ranks have other samples.
    """
    seen: set[tuple[int, int]] = set()
    resized = _resized(run)
    for entry in run.entries:
        event = entry.event
        if not isinstance(event, events.Iteration) or (loss := event.value("loss")) is None:
            continue
        if resized is not None and event.epoch >= resized:
            continue
        place = event.iteration, event.rank
        seen.add(place)
        expected = run.undisturbed.get(place)
        if expected is None or loss.hex() != expected.hex():
            yield (
                f"loss of iteration {event.iteration}, rank {event.rank}, epoch {event.epoch}: "
                f"{loss!r}, undisturbed {expected!r}"
            )
            return  # what follows from a wrong state is wrong too
    if resized is not None:
        yield from _far_losses(run, since_epoch=resized)
        return
    missing = sorted(run.undisturbed.keys() - seen)
    if missing and run.has_finished:
        told = ", ".join(f"iteration {i} of rank {rank}" for i, rank in missing[:5])
        yield f"{len(missing)} losses are not in the log: {told}"


def misjudged(run: Aftermath) -> Iterator[str]:
    """Check that nothing done again is said to differ, unless sums are wrong."""
    told = [entry.event for entry in run.entries]
    if not any(isinstance(event, events.WrongSums) for event in told):
        yield from (f"it was said: {event}" for event in told if isinstance(event, events.Diverged))


def _resized(run: Aftermath) -> int | None:
    planned = [e.event for e in run.entries if isinstance(e.event, events.RecoveryPlanned)]
    return next((one.epoch for one in planned if len(one.members) != len(planned[0].members)), None)


def _far_losses(run: Aftermath, *, since_epoch: int) -> Iterator[str]:
    """Check that after a resize the loss of all samples is near the undisturbed run's.

    What a version says of its last iteration may be of some of the ranks that did it.
    """
    told: dict[tuple[int, int], list[float]] = {}
    restored = set[int]()
    known: dict[int, list[float]] = {}
    for entry in run.entries:
        event = entry.event
        if not isinstance(event, events.Iteration) or (loss := event.value("loss")) is None:
            continue
        if event.restored:
            restored.add(event.iteration)
        else:
            told.setdefault((event.epoch, event.iteration), []).append(loss)
    for (number, _), loss in run.undisturbed.items():
        known.setdefault(number, []).append(loss)
    ranks = {
        e.event.epoch: len(e.event.members)
        for e in run.entries
        if isinstance(e.event, events.RecoveryPlanned)
    }
    for (epoch, number), losses in told.items():
        if epoch < since_epoch or len(losses) < ranks.get(epoch, 0):
            continue  # of an iteration that was broken off not all is known
        mean, expected = fmean(losses), fmean(known.get(number, [inf]))
        if abs(mean - expected) > FAR * abs(expected):
            yield f"iteration {number}, epoch {epoch}: mean loss {mean}, undisturbed {expected}"
            return
    missing = sorted(known.keys() - {number for _, number in told} - restored)
    if missing and run.has_finished:
        yield f"no loss of {len(missing)} iterations is in the log: {missing[:5]}"


def two_roots(run: Aftermath) -> Iterator[str]:
    """Check that a term has one root agent, and that terms only rise."""
    elected = [e.event for e in run.entries if isinstance(e.event, events.RootElected)]
    for before, after in pairwise(elected):
        if after.term < before.term:
            yield f"{after.name} is root of term {after.term} after {before.name} of {before.term}"
    by_term: dict[int, set[str]] = {}
    for root in elected:
        by_term.setdefault(root.term, set()).add(root.name)
    for term, names in by_term.items():
        if len(names) > 1:
            yield f"term {term} has the roots {', '.join(sorted(names))}"


def two_lineages(run: Aftermath) -> Iterator[str]:
    """Check that an epoch has one plan, of whose version all its shards are."""
    plans: dict[int, events.RecoveryPlanned] = {}
    newest: dict[tuple[int, int], int] = {}  # of each epoch and rank
    took: dict[tuple[int, int], float] = {}  # the newest iteration of each
    for entry in run.entries:
        match event := entry.event:
            case events.RecoveryPlanned():
                before = plans.setdefault(event.epoch, event)
                if (before.version, before.made_in) != (event.version, event.made_in):
                    yield f"epoch {event.epoch} has two plans: {before} and {event}"
            case events.ShardRestored() if event.epoch in plans:
                planned = plans[event.epoch].version
                if event.version != planned:
                    yield (
                        f"epoch {event.epoch}: shard {event.shard} of version {event.version} was "
                        f"loaded where {planned} was planned"
                    )
            case events.Rewound():
                newest[event.epoch, event.rank] = event.version
            case events.Iteration(restored=False) if event.epoch in plans:
                place = event.epoch, event.rank
                last = newest.get(place, plans[event.epoch].version or 0)
                took_s, took[place] = took.get(place), event.duration_s
                if (event.iteration, event.duration_s) == (last, took_s):
                    continue  # said once more, because its script logged something late
                newest[place] = event.iteration
                if event.iteration != last + 1:
                    yield (
                        f"epoch {event.epoch}: rank {event.rank} did iteration {event.iteration} "
                        f"after {last}"
                    )


def untold(run: Aftermath) -> Iterator[str]:
    """Check that the log tells how the run and each recovery ended, as the command does."""
    if run.bad_lines:
        yield f"{run.bad_lines} lines of the log are no events"
    ends = [e.event for e in run.entries if isinstance(e.event, events.RunFailed)]
    given_up = [end.reason for end in ends if not (run.was_told_to_end and end.cause == "notice")]
    if given_up:
        yield f"the run was given up: {given_up[0]}"
    if run.is_cut_short or run.hang or given_up:
        return
    if not run.has_finished and not ends:
        yield "the log does not say that the run finished"
    if run.exit_status != (os.EX_TEMPFAIL if ends else 0):  # it saved a version; it is done
        how = "was told to end" if ends else "finished"
        yield f"the run {how}, and its command ended with status {run.exit_status}"
    begun = _recoveries(run, events.RecoveryStarted)
    over = _recoveries(run, events.RecoveryFinished)
    if unfinished := sorted(begun - over):
        yield f"the log does not tell the end of the recoveries {unfinished}"


def unsaid(run: Aftermath) -> Iterator[str]:
    """Check that a start with an edited script names the file that was edited."""
    for since_s, until_s in run.edits:
        told = [e for e in run.entries if since_s <= e.at_s <= until_s]
        kept = {e.event.epoch for e in told if isinstance(e.event, events.ProcessesKept)}
        begun = {
            e.event.epoch
            for e in told
            if isinstance(e.event, events.RecoveryStep)
            and e.event.step == "start"
            and e.event.start_s > since_s
        }
        over = {e.event.epoch for e in told if isinstance(e.event, events.RecoveryFinished)}
        if (begun & over) - kept and not any(EDITED in encode_entry(entry) for entry in told):
            yield (
                f"epoch {min((begun & over) - kept)} began with an edited {EDITED.decode()}, and "
                "nothing says so"
            )


def harmed(run: Aftermath) -> Iterator[str]:
    """Nobody's words are answered by a traceback, and nothing of ours falls over its values."""
    yield from run.said
    stumbled: set[str] = set()  # an agent may do so again and again
    for entry in run.entries:
        match event := entry.event:
            case events.WorkerExited(output=(*_, last)) if STUMBLED.match(last.strip()):
                stumbled.add(f"rank {event.rank} of epoch {event.epoch} ended with {last[:200]}")
            case events.Note(text=text) if STUMBLED.match(text.partition("'s agent: ")[2]):
                stumbled.add(text[:200])
    yield from sorted(stumbled)


def left_behind(run: Aftermath) -> Iterator[str]:
    """Check that nothing is left at the end."""
    if run.left:
        yield f"left behind: {', '.join(run.left)}"


def standstill_s(entries: Sequence[Entry], *, since_s: float, until_s: float) -> float:
    """Return the longest time, within these moments, without a new iteration of all ranks.

    Args:
        entries: The log.
        since_s: On the log's clock.
        until_s: On the log's clock.
    """
    reached, done = Reached(), 0
    moments = [since_s]
    for entry in entries:
        reached.take(entry)
        if isinstance(entry.event, events.Iteration) and not entry.event.restored:
            now = reached.done()
            if now != done and since_s <= entry.at_s <= until_s:
                moments.append(entry.at_s)
            done = now
    return max(after - before for before, after in pairwise([*sorted(moments), until_s]))


def _recoveries(run: Aftermath, kind: type[events.OfRecovery]) -> set[int]:
    return {e.event.recovery for e in run.entries if isinstance(e.event, kind)}


def losses_of(entries: Sequence[Entry]) -> dict[tuple[int, int], float]:
    """Return every loss that a log tells, by (iteration, rank)."""
    found = {}
    for entry in entries:
        event = entry.event
        if isinstance(event, events.Iteration) and (loss := event.value("loss")) is not None:
            found[event.iteration, event.rank] = loss
    return found
