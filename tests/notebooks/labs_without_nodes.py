"""What the cells before an exercise leave behind, with no node started.

Labs that only compute run their own cells. In the others runs are told instead of made.
"""

import contextlib
import io
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, get_args

import nbformat
from editions import SOURCES, read

import gemini_lab
from gemini_lab.errors import ConfigError, RunFailedError
from gemini_lab.injector import Scenario
from gemini_lab.pipeliner.schedule import Chunk
from gemini_lab.recovery.plan import CopyTransfer, RecoveryPlan, Source
from gemini_lab.report import Comparison
from gemini_lab.settings import Settings
from gemini_lab.training.quickstart import gpt_job
from gemini_lab.units import KIB, MIB
from gemini_lab_bench.benches.timed_runs import AS_IF_LARGE
from gemini_lab_course.attacks.divisions import divided
from gemini_lab_course.attacks.roots import SMALL, TRAINS
from gemini_lab_course.attacks.stories import of_function, tell
from gemini_lab_course.holdings import KINDS, pieces_of
from gemini_lab_course.own_root.deciding import Action, Event
from gemini_lab_course.own_root.process import packed

Names = dict[str, Any]

SMALLER = {"lab_06": "seeds, nodes, days = 2, 100, 5"}
"""Parameters of labs that take long."""


def edition_of(lab: str, *, with_solutions: bool = False) -> nbformat.NotebookNode:
    (source,) = (source for source in SOURCES if source.stem.startswith(lab[-2:]))
    return read(source, with_solutions=with_solutions)


def names_of(lab: str) -> Names:
    """The variables that a student's kernel has once all cells but the exercises have run."""
    return TOLD[lab]() if lab in TOLD else _computed(lab)


def _computed(lab: str) -> Names:
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    mpl.use("Agg")
    names: Names = {}
    for cell in _run_here(lab):
        with contextlib.redirect_stdout(io.StringIO()):
            exec(cell.source, names)
        if "parameters" in cell.metadata.get("tags", []):
            exec(SMALLER.get(lab, ""), names)
    plt.close("all")
    return names


def _run_here(lab: str) -> list[nbformat.NotebookNode]:
    """The code cells but for the exercises, and for those that are marked to start nodes."""
    left_out = {"exercise", "check", "nodes"}
    return [
        cell
        for cell in edition_of(lab).cells
        if cell.cell_type == "code" and not left_out & {*cell.metadata.get("tags", [])}
    ]


# -- runs that are told ---------------------------------------------------------------------------


@dataclass(frozen=True)
class ToldRecovery:
    """What checks ask of a recovery."""

    injections: tuple[SimpleNamespace, ...]
    tier: str
    receipts: tuple[SimpleNamespace, ...]
    version: int = 3

    @property
    def reason(self) -> str:
        return f"the newest whole version is in {self.tier}"


@dataclass(frozen=True)
class ToldReport:
    """What checks ask of a report. One has the same losses as another."""

    recoveries: tuple[ToldRecovery, ...] = ()

    @property
    def injections(self) -> list[str]:
        return [str(each.node) for one in self.recoveries for each in one.injections]

    def losses_match(self, _: "ToldReport") -> Comparison:
        return Comparison(compared=1, first_difference=None)


def recovery(
    struck: Sequence[tuple[str, str]], *, tier: str = "memory", tiers: Sequence[str] = ()
) -> ToldRecovery:
    """One from failures, each a kind and a node."""
    injections = tuple(SimpleNamespace(kind=kind, node=node) for kind, node in struck)
    return ToldRecovery(injections, tier, tuple(SimpleNamespace(tier=each) for each in tiers))


BUSY = recovery([], tier="start")
"""A busy machine's root agent lost its lease before the first iteration: nobody injected that."""


def attempt(scenario: Scenario) -> ToldReport:
    """A run with groups of two: the nodes of ranks 0 and 1, and those of 2 and 3."""
    scenario.check(nodes=5, ranks=4)
    by_iteration: dict[int | None, list[tuple[str, str]]] = {}
    for planned in scenario.planned:
        kind = "worker_crash" if planned.failure.kind == "worker_crash" else "node_loss"
        struck = by_iteration.setdefault(planned.iteration, [])
        struck += [(kind, place) for place in planned.failure.places]
    lost = [{node for kind, node in at if kind == "node_loss"} for at in by_iteration.values()]
    fatal = [{"rank-0", "rank-1"} <= nodes or {"rank-2", "rank-3"} <= nodes for nodes in lost]
    injected = (
        recovery(struck, tier="persistent" if is_fatal else "memory")
        for struck, is_fatal in zip(by_iteration.values(), fatal, strict=True)
    )
    return ToldReport((BUSY, *injected))


@dataclass(frozen=True)
class ToldProfile:
    """What a check asks of a profile."""

    traffic_bytes: int
    fingerprint: str
    collectives: tuple[str, ...] = ("gather", "reduce")


def profile_of(job: gemini_lab.Job) -> ToldProfile:
    """Another order of collectives for another bucket, whatever else the job says."""
    return ToldProfile(traffic_bytes=12000, fingerprint=str("10000000" in " ".join(job.args)))


def lose_a_group(**settings: Any) -> ToldReport:
    """Two neighbours die: three copies outlive that."""
    checked = Settings.parse(settings)
    tier = "memory" if checked.replicas > 2 else "persistent"
    struck = [("node_loss", "node-2"), ("node_loss", "node-3")]
    return ToldReport((recovery(struck, tier=tier),))


def lose_rank_3() -> ToldReport:
    tiers = ("local", "local", "local", "peer")
    return ToldReport((recovery([("node_loss", "node-3")], tiers=tiers),))


def _lab_00() -> Names:
    return {
        **vars(gemini_lab.injector),
        "iterations": 100,
        "attempt": attempt,
        "quiet": ToldReport(),
    }


def _lab_02() -> Names:
    job = gpt_job(size="tiny", iterations=1000, zero=AS_IF_LARGE)
    return {
        "gpt_job": gpt_job,
        "AS_IF_LARGE": AS_IF_LARGE,
        "job": job,
        "parameters": 1000,
        "profile": profile_of(job),
        "again": profile_of,
        "replace": replace,
    }


def _lab_04() -> Names:
    def on_p3dn(_: float) -> SimpleNamespace:
        return SimpleNamespace(chunks=[SimpleNamespace(size_bytes=300 * KIB)])

    def is_accepted(buffer_bytes: float) -> bool:
        if buffer_bytes > 1e15:
            raise ConfigError("a buffer of petabytes is more than there is")
        return buffer_bytes >= 300 * KIB

    return {
        "on_p3dn": on_p3dn,
        "is_accepted": is_accepted,
        "gpu_bytes": 900 * KIB,
        "KIB": KIB,
        "Chunk": Chunk,
    }


def _lab_05() -> Names:
    return {
        "nodes": 4,
        "quiet": ToldReport(),
        "lose_rank_3": lose_rank_3,
        "lose_a_group": lose_a_group,
        **{kind.__name__: kind for kind in (CopyTransfer, RecoveryPlan, Source)},
    }


def train_with(root: Any) -> ToldReport:
    """A simulated run that loses a worker, and then a node."""
    failures = (TRAINS, (0.13, "kill_rank", 0), (0.1, "at", 3), TRAINS, (0.5, "kill", 1, 1))
    broken = tell(SMALL, failures, of_function(packed(root))).broken
    if broken:
        raise RunFailedError(f"with-mine failed: {broken}")
    injected = recovery([("worker_crash", "node-0")]), recovery([("node_loss", "node-1")])
    return ToldReport((BUSY, *injected))


def _lab_08() -> Names:
    return {
        **{kind.__name__: kind for kind in (*get_args(Event), *get_args(Action))},
        "defaultdict": defaultdict,
        "seconds": 100,
        "quiet": ToldReport(),
        "train_with": train_with,
    }


def _lab_09() -> Names:
    """Two axes as they are, and runs in which every shard is what a fair division leaves."""
    axes = {"weights": "ABCD", "moments": "ABCD", "generator": "AABB", "data": "AABB"}
    two = [{kind: {axes[kind][rank]: 12_000_000} for kind in KINDS} for rank in range(4)]
    alike = [{kind: {kind: 40_000_000} for kind in KINDS} for _ in range(4)]
    sizes = [sum(kept.values()) for kept in divided(pieces_of(alike, "weights", "moments"))]
    receipts = [SimpleNamespace(shard=n, size_bytes=size + MIB) for n, size in enumerate(sizes)]
    return {
        "train_two_axes": lambda: two,
        "held": {"DP": alike},
        "recovered": {"DP": SimpleNamespace(receipts=receipts)},
    }


TOLD = {
    "lab_00": _lab_00,
    "lab_02": _lab_02,
    "lab_04": _lab_04,
    "lab_05": _lab_05,
    "lab_08": _lab_08,
    "lab_09": _lab_09,
}
assert TOLD.keys() == {
    lab
    for lab in (f"lab_{source.stem[:2]}" for source in SOURCES)
    if any("Lab(" in cell.source for cell in _run_here(lab))
}
