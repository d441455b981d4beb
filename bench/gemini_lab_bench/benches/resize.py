"""How long a run stands still to go on with another number of nodes, and what its losses are then.

One run goes from four nodes to three and back, again and again; another one of the same job never
does. Without dropout, whose masks depend on the rank, the two differ by the order of sums alone.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np

from gemini_lab.lab.run import Run
from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.report.values import RunReport
from gemini_lab.training.quickstart import gpt_job
from gemini_lab_bench.benches.live_lab import ready_lab, wait_for
from gemini_lab_bench.progress import say
from gemini_lab_bench.rows import Row

NODES: Final = 4
FEWER: Final = 3
BETWEEN: Final = 5  # iterations
BESIDE: Final = "global loss compared with no resizes"
MARGIN: Final = 6  # iterations that may be done before a word is heard
GLOBAL_BATCH: Final = 12  # goes round among four and among three


def bench(repeats: int) -> list[Row]:
    """Resize a run from four nodes to three and back, `repeats` times."""
    iterations = BETWEEN + 2 * repeats * (BETWEEN + MARGIN)
    job = gpt_job(size="tiny", iterations=iterations, global_batch=GLOBAL_BATCH, dropout=0.0)
    with ready_lab(NODES) as lab:
        undisturbed = lab.train(job, persistent_url=None).wait().report()
        run = lab.train(job, persistent_url=None)
        for number in range(repeats):
            _resize(run, FEWER)
            _resize(run, NODES)
            say(f"from {NODES} nodes to {FEWER} and back, {number + 1} of {repeats}")
        report = run.wait().report()
        return rows_of(report, undisturbed, run.events())


def _resize(run: Run, nodes: int) -> None:
    wait_for(run, iteration=run.iteration + BETWEEN)
    before = run.recoveries
    run.resize(nodes)
    wait_for(run, recoveries=before + 1)


def rows_of(report: RunReport, undisturbed: RunReport, log: Sequence[Entry]) -> list[Row]:
    """Return what the resizes of a run came to."""
    resizes = [one for one in report.recoveries if one.cause == events.RESIZE]
    recut: defaultdict[int, list[events.ShardRecut]] = defaultdict(list)
    for entry in log:
        if isinstance(entry.event, events.ShardRecut):
            recut[entry.event.epoch].append(entry.event)
    stored = [
        entry.event.size_bytes
        for entry in log
        if isinstance(entry.event, events.ShardRestored) and entry.event.tier == "persistent"
    ]
    apart = tuple(ulps(report, undisturbed).values())
    return [
        Row("from the word to the first iteration after", _waits_s(log)),
        Row("of that, training stood still", tuple(r.duration_s or 0.0 for r in resizes)),
        Row("iterations done again", tuple(float(r.lost_by_any) for r in resizes), unit=""),
        Row("read from storage, in all", (float(sum(stored)),), unit="B"),
        Row(
            "read from the own nodes' memory",
            tuple(float(sum(e.local_bytes for e in of)) for of in recut.values()),
            unit="B",
        ),
        Row(
            "from that of others",
            tuple(float(sum(e.peer_bytes for e in of)) for of in recut.values()),
            unit="B",
        ),
        Row(f"{BESIDE}, each iteration", apart, unit="ulp"),
        Row(f"{BESIDE}, at most", (max(apart),), unit="ulp"),
    ]


def _waits_s(log: Sequence[Entry]) -> tuple[float, ...]:
    """Return the seconds from each request to the new size's first finished iteration."""
    found, since_s = [], 0.0
    for entry in log:
        if isinstance(entry.event, events.ResizeWanted):
            since_s = entry.at_s
        elif isinstance(entry.event, events.Resized):
            found.append(entry.at_s - since_s)
    return tuple(found)


def ulps(report: RunReport, other: RunReport) -> dict[int, float]:
    """Return by iteration how far the means of the ranks' losses are apart, in ulps of fp32."""
    ours, theirs = means(report), means(other)
    return {
        iteration: abs(ours[iteration] - theirs[iteration])
        / float(np.spacing(np.float32(theirs[iteration])))
        for iteration in sorted(ours.keys() & theirs.keys())
    }


def means(report: RunReport) -> dict[int, float]:
    """Return the loss of the global batch by iteration."""
    losses: defaultdict[int, list[float]] = defaultdict(list)
    for (iteration, _), loss in report.losses.items():
        losses[iteration].append(loss)
    return {iteration: sum(found) / len(found) for iteration, found in losses.items()}
