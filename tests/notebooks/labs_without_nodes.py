"""What the cells before an exercise leave behind, with no node started.

Labs that only compute run their own cells. In the others runs are told instead of made.
"""

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import nbformat
from editions import SOURCES, read, starts_nodes

import gemini_lab
from gemini_lab.errors import ConfigError
from gemini_lab.experiments.benches.timed_runs import AS_IF_LARGE
from gemini_lab.experiments.quickstart import gpt_job
from gemini_lab.injector import Scenario
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import VersionComplete
from gemini_lab.report import Injection, Iteration, Receipt, Recovery, RunReport, Traffic
from gemini_lab.settings import Settings
from gemini_lab.units import KIB

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

    mpl.use("Agg")
    names: Names = {}
    for cell in edition_of(lab).cells:
        tags = cell.metadata.get("tags", [])
        if cell.cell_type == "code" and not {"exercise", "check"} & {*tags}:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(cell.source, names)
            if "parameters" in tags:
                exec(SMALLER.get(lab, ""), names)
    mpl.pyplot.close("all")
    return names


# -- runs that are told ---------------------------------------------------------------------------


def receipt(shard: int, tier: str) -> Receipt:
    return Receipt(
        shard=shard, version=3, tier=tier, holder=None, size_bytes=8, verified=True,
        retrieve_s=0.0, verify_s=0.0, load_s=0.0,
    )  # fmt: skip


def recovery(
    struck: Sequence[tuple[str, str]], *, tier: str = "memory", tiers: Sequence[str] = ()
) -> Recovery:
    """One from failures, each a kind and a node."""
    return Recovery(
        number=1, cause="node_lost", lost_nodes=(), failed_at_s=1.0, resumed_at_s=2.0, version=3,
        tier=tier, reason=f"the newest whole version is in {tier}", steps=(), rejected=(),
        injections=tuple(Injection(at_s=1.0, kind=k, node=n, rank=None) for k, n in struck),
        receipts=tuple(receipt(shard, each) for shard, each in enumerate(tiers)),
        lost_iterations=1, lost_progress_s=0.1,
    )  # fmt: skip


def report(*recoveries: Recovery) -> RunReport:
    once = Iteration(
        rank=0, number=1, node="node-0", ended_at_s=1.0, duration_s=1.0, waited_s=0.0, loss=0.5
    )
    traffic = Traffic(
        checkpoint_bytes=0, versions=0, recovery_bytes=0, persistent_bytes=0,
        persistent_versions=(), persistent_failures=(),
    )  # fmt: skip
    return RunReport(
        name="told", simulated=False, script="train.py", nodes=4, ranks=4, started_at_s=0.0,
        ended_at_s=9.0, outcome="finished", reason="", iterations=(once,), recoveries=recoveries,
        injections=tuple(each for one in recoveries for each in one.injections), wasted=None,
        traffic=traffic, roots=(), notes=(),
    )  # fmt: skip


def attempt(scenario: Scenario) -> RunReport:
    """A run with groups of two: the nodes of ranks 0 and 1, and those of 2 and 3."""
    scenario.check(nodes=[f"node-{n}" for n in range(5)], ranks=4)
    by_iteration: dict[int | None, list[tuple[str, str]]] = {}
    for planned in scenario.planned:
        kind = "worker_crash" if planned.failure.kind == "worker_crash" else "node_loss"
        struck = by_iteration.setdefault(planned.iteration, [])
        struck += [(kind, place) for place in planned.failure.places]
    lost = [{node for kind, node in at if kind == "node_loss"} for at in by_iteration.values()]
    fatal = [{"rank-0", "rank-1"} <= nodes or {"rank-2", "rank-3"} <= nodes for nodes in lost]
    return report(
        *(
            recovery(struck, tier="persistent" if is_fatal else "memory")
            for struck, is_fatal in zip(by_iteration.values(), fatal, strict=True)
        )
    )


@dataclass(frozen=True)
class ToldProfile:
    """What a check asks of a profile."""

    traffic_bytes: int
    fingerprint: str
    collectives: tuple[str, ...] = ("gather", "reduce")


def profile_of(job: gemini_lab.Job) -> ToldProfile:
    """Another order of collectives for another bucket, whatever else the job says."""
    return ToldProfile(traffic_bytes=12000, fingerprint=str("10000000" in " ".join(job.args)))


def whole(version: int, *, next_version: int) -> VersionComplete:
    return VersionComplete(
        rank=0, epoch=1, version=version, sent_bytes=8, local_s=0.0, duration_s=0.0,
        next_version=next_version,
    )  # fmt: skip


@dataclass(frozen=True)
class ToldRun:
    """A run on a machine whose checkpoint fits, or of which every third version leaves."""

    every: int

    def report(self) -> SimpleNamespace:
        schedule = SimpleNamespace(every_iterations=self.every, leftover_bytes=5 * KIB)
        return SimpleNamespace(plans=(SimpleNamespace(at_s=1.0, schedule=schedule),))

    def events(self, _: str) -> list[Entry]:
        versions = range(10, 20, self.every)
        said = [whole(version, next_version=version + self.every) for version in versions]
        return [Entry(at_s=2.0, node="node-0", event=event) for event in said]


def train_on(*, layer_ms: float, link_bytes_per_s: float) -> ToldRun:
    return ToldRun(every=3 if link_bytes_per_s < 30e6 or layer_ms < 5 else 1)


def lose_a_group(**settings: Any) -> RunReport:
    """Two neighbours die: three copies outlive that."""
    checked = Settings.parse(settings)
    tier = "memory" if checked.replicas > 2 else "persistent"
    return report(recovery([("node_loss", "node-2"), ("node_loss", "node-3")], tier=tier))


def lose_rank_3() -> RunReport:
    tiers = ("local", "local", "local", "peer")
    return report(recovery([("node_loss", "node-3")], tiers=tiers))


def _lab_00() -> Names:
    return {**vars(gemini_lab.injector), "iterations": 100, "attempt": attempt, "quiet": report()}


def _lab_02() -> Names:
    job = gpt_job(size="tiny", iterations=1000, zero=AS_IF_LARGE)
    return {
        "gpt_job": gpt_job, "AS_IF_LARGE": AS_IF_LARGE, "job": job, "parameters": 1000,
        "profile": profile_of(job), "again": profile_of, "replace": replace,
    }  # fmt: skip


def _lab_04() -> Names:
    def plan(**_: Any) -> SimpleNamespace:
        return SimpleNamespace(chunks=[SimpleNamespace(size_bytes=300 * KIB)])

    def is_accepted(buffer_bytes: float) -> bool:
        if buffer_bytes > 1e15:
            raise ConfigError("a buffer of petabytes is more than there is")
        return buffer_bytes >= 300 * KIB

    return {
        "plan": plan, "is_accepted": is_accepted, "shard_bytes": 900 * KIB, "train_on": train_on,
        "KIB": KIB,
    }  # fmt: skip


def _lab_05() -> Names:
    return {
        "nodes": 4, "quiet": report(), "lose_rank_3": lose_rank_3, "lose_a_group": lose_a_group,
    }  # fmt: skip


TOLD = {"lab_00": _lab_00, "lab_02": _lab_02, "lab_04": _lab_04, "lab_05": _lab_05}
assert TOLD.keys() == {f"lab_{s.stem[:2]}" for s in SOURCES if starts_nodes(s)}
