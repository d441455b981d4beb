"""How much sooner a version is whole at peers than in a remote store: Fig. 11, scaled down.

On two, three and more nodes the same job trains on paced links: in a lab, and in turn with that
under torchrun, where its checkpoints go to a store that all ranks share. A node's link is five
times as fast as the store, as 100 Gbit/s beside the paper's 20. Both times last from the end of an
iteration on its last rank until the version is whole on the last rank. The paper's formula needs
only the two rates that were set: N x link / store.

As that formula, the bench leaves training traffic out: an accelerator's time in the layers, whose
weights stay in place, keeps links idle for longer than a version needs. And times are compared by
byte: in each shard a MiB is kept for small state, which for so small a model is a third and more of
it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from gemini_lab.lab.lab import Lab
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Iteration, VersionComplete
from gemini_lab.training.quickstart import gpt_job
from gemini_lab.units import MB
from gemini_lab_bench.benches.live_lab import ready_lab
from gemini_lab_bench.benches.store_runs import checkpoint_times, started
from gemini_lab_bench.progress import say
from gemini_lab_bench.rows import Row, single

NODES: Final = (2, 3, 4)
STORE_BYTES_PER_S: Final = 0.5 * MB
LINK_BYTES_PER_S: Final = 5 * STORE_BYTES_PER_S
LAYER_S: Final = 0.25
ITERATIONS: Final = 8
SETTLED: Final = 2  # versions that do not count
EVERY: Final = 6  # iterations, longer than the store takes for a checkpoint
CHECKPOINTS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How versions left, in one run."""

    time_s: float  # until one was whole; median
    size_bytes: int  # of one, all shards together


@dataclass(frozen=True, slots=True, kw_only=True)
class WaysInTurn:
    """Both ways in one turn, with so many nodes."""

    nodes: int
    peers: Way
    store: Way

    @property
    def reduction(self) -> float:
        """How much sooner as many bytes are whole at peers."""
        peers, store = self.peers, self.store
        return store.time_s / store.size_bytes / (peers.time_s / peers.size_bytes)


def bench(repeats: int) -> list[Row]:
    """Measure both ways `repeats` times on each number of nodes, in turn."""
    pairs = []
    for nodes in NODES:
        with ready_lab(nodes) as lab:
            for _ in range(repeats):
                pairs.append(
                    WaysInTurn(nodes=nodes, peers=_to_peers(lab), store=_to_the_store(nodes))
                )
                say(f"{nodes} nodes: to peers {pairs[-1].reduction:.1f} times faster")
    return rows_of(pairs)


def rows_of(pairs: Sequence[WaysInTurn]) -> list[Row]:
    """Return by number of nodes both times, their ratio in a turn, and the formula's."""
    rows = []
    for nodes in dict.fromkeys(one.nodes for one in pairs):
        mine = [one for one in pairs if one.nodes == nodes]
        settings: dict[str, Any] = {
            "nodes": nodes,
            "link_bytes_per_s": LINK_BYTES_PER_S,
            "store_bytes_per_s": STORE_BYTES_PER_S,
            "layer_s": LAYER_S,
        }
        predicted = nodes * LINK_BYTES_PER_S / STORE_BYTES_PER_S
        rows += [
            _times(f"{nodes} nodes: to peers", [one.peers for one in mine]),
            _times(f"{nodes} nodes: to the store", [one.store for one in mine]),
            Row(
                f"{nodes} nodes: reduction, at as many bytes",
                tuple(one.reduction for one in mine),
                unit="",
                settings=settings,
            ),
            single(f"{nodes} nodes: by the formula", predicted),
        ]
    return rows


def _times(name: str, ways: Sequence[Way]) -> Row:
    settings = {"size_bytes": ways[0].size_bytes}
    return Row(name, tuple(one.time_s for one in ways), settings=settings)


def whole_times(log: Sequence[Entry]) -> list[float]:
    """Return the times from an iteration's end on all ranks until its version was whole on all."""
    made_s: dict[int, float] = {}
    whole_s: dict[int, float] = {}
    for entry in log:
        match entry.event:
            case Iteration(iteration=version):
                made_s[version] = max(entry.at_s, made_s.get(version, 0.0))
            case VersionComplete(version=version, whole_s=float() as took_s) as said:
                at_s = entry.at_s - said.duration_s + took_s
                whole_s[version] = max(at_s, whole_s.get(version, 0.0))
    return [whole_s[version] - made_s[version] for version in sorted(whole_s.keys() & made_s)]


def _to_peers(lab: Lab) -> Way:
    """Measure a run on the lab's nodes, each of which sends its shard to one other."""
    job = gpt_job(size="tiny", iterations=ITERATIONS, layer_s=LAYER_S)
    run = lab.train(job, persistent_url=None, link_bytes_per_s=LINK_BYTES_PER_S).wait()
    log = run.events("iteration", "version_complete")
    sent = [one.event.sent_bytes for one in log if isinstance(one.event, VersionComplete)]
    return Way(time_s=median(whole_times(log)[SETTLED:]), size_bytes=lab.nodes * max(sent))


def _to_the_store(ranks: int) -> Way:
    job = ("--layer-s", str(LAYER_S), "--link-bytes-per-s", str(LINK_BYTES_PER_S))
    with started(EVERY, STORE_BYTES_PER_S, ranks=ranks, job=job) as run:
        said = run.wait("whole", after_s=0.0, count=ranks * CHECKPOINTS)
    part = next(one["size_bytes"] for one in said if one["what"] == "whole")
    return Way(time_s=median(checkpoint_times(said)), size_bytes=ranks * part)
