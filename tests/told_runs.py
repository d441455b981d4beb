"""Runs told event by event, as agents and workers tell them: for tests of reducers and views."""

import gzip
from collections.abc import Sequence
from typing import Any, Literal

from made import made

from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.log.file import read_line
from gemini_lab.placement import Placement, plan_placement
from gemini_lab.settings import Settings
from gemini_lab.simulator import Outage, paper_workload, simulate
from gemini_lab.simulator.policy import gemini
from gemini_lab_course.recorded import FOLDER

UNIX_S = 1_795_000_000.0
SHARD_BYTES = 1_000


class ToldRun:
    """A run that is told bit by bit; every iteration takes `iteration_s`."""

    def __init__(
        self,
        *,
        nodes: int = 4,
        replicas: int = 2,
        per_node: int = 1,
        standbys: int = 2,
        start_s: float = UNIX_S,
        names: Sequence[str] | None = None,
        placement: Placement | None = None,
        name: str = "told",
        settings: dict[str, str] | None = None,
        racks: tuple[str, ...] | None = None,
    ) -> None:
        self.nodes, self.per_node = nodes, per_node
        self.names = list(names or [f"node-{i}" for i in range(nodes + standbys)])
        self.members: list[Any] = self.names[:nodes]
        self.placement = placement or plan_placement(nodes=nodes, replicas=replicas)
        self.now_s, self.epoch, self.recovery = start_s, 1, 0
        self.entries: list[Entry] = []
        self.say(
            events.LabStarted(
                nodes=nodes, standbys=standbys, names=tuple(self.names), root=self.names[-1]
            )
        )
        self.say(
            events.RunStarted(
                name=name,
                script="job.py",
                nodes=nodes,
                standbys=standbys,
                workers_per_node=per_node,
                racks=racks,
                settings={"replicas": replicas, **(settings or {})},
            )
        )
        self.elect(self.names[-1])

    @property
    def ranks(self) -> range:
        return range(self.nodes * self.per_node)

    def node_of(self, rank: int) -> str:
        return str(self.members[rank // self.per_node])

    def say(self, event: events.AnyEvent, *, node: str = "lab") -> None:
        self.entries.append(Entry(at_s=self.now_s, node=node, event=event))

    def say_worker(self, kind: type[Any], rank: int, **fields: Any) -> None:
        self.say(made(kind, rank=rank, epoch=self.epoch, **fields), node=self.node_of(rank))

    def say_root(self, kind: type[Any], **fields: Any) -> None:
        self.say(made(kind, **fields), node=self.root)

    def elect(self, name: str) -> "ToldRun":
        self.root = name
        self.say(events.RootElected(name=name, term=1), node=name)
        return self

    def protect(self, places: Sequence[str] = ()) -> "ToldRun":
        for rank in self.ranks:
            self.say_worker(
                events.Protected,
                rank,
                shard_bytes=SHARD_BYTES,
                fingerprint="f",
                settings=Settings(scheme="background"),
                placement=self.placement,
                place=places[rank] if places else "",
            )
        return self

    def iterate(
        self,
        number: int,
        *,
        duration_s: float = 1.0,
        waited_s: float = 0.0,
        ranks: Sequence[int] | None = None,
        losses: bool = False,
    ) -> "ToldRun":
        self.now_s += duration_s
        for rank in self.ranks if ranks is None else ranks:
            self.say_worker(
                events.Iteration,
                rank,
                iteration=number,
                duration_s=duration_s,
                waited_s=waited_s,
                values={"loss": 5.0 / number + rank / 7} if losses else {},
            )
        return self

    def complete(self, version: int, *, ranks: Sequence[int] | None = None) -> "ToldRun":
        self.now_s += 0.125
        for rank in self.ranks if ranks is None else ranks:
            self.say_worker(
                events.VersionComplete,
                rank,
                version=version,
                sent_bytes=SHARD_BYTES,
                duration_s=0.25,
                next_version=version + 1,
            )
        return self

    def train(self, first: int, last: int) -> "ToldRun":
        """Iterations `first` to `last`, each version whole before the next iteration ends."""
        for number in range(first, last + 1):
            self.iterate(number).complete(number)
        return self

    def persist(self, version: int, *, duration_s: float = 2.0) -> "ToldRun":
        self.say_root(
            events.PersistFinished,
            version=version,
            url="memory://",
            size_bytes=4 * SHARD_BYTES,
            duration_s=duration_s,
        )
        return self

    def fail(self, *lost: str, known: int, cause: str = "node_lost") -> "ToldRun":
        """Nodes die; the root agent, which knows of `known` iterations, notices 0.5 s later."""
        self.recovery += 1
        for name in lost:
            self.say(events.Injected(failure="node_loss"), node=name)
        self.now_s += 0.5
        for name in lost:
            self.say_root(events.NodeLost, name=name, cause="connection")
        self.say_root(
            events.RecoveryStarted,
            recovery=self.recovery,
            epoch=self.epoch + 1,
            cause=cause,
            lost=lost,
            failed_at_s=self.now_s,
            iteration=known,
        )
        return self

    def exit(self, rank: int, *, output: Sequence[str] = (), code: int = 1) -> "ToldRun":
        """A worker ends with an exit code and these last lines."""
        self.say_worker(events.WorkerExited, rank, pid=7, exit_code=code, output=tuple(output))
        return self

    def crash(self, rank: int, *, known: int, output: Sequence[str] = ()) -> "ToldRun":
        """A worker ends, and a recovery begins."""
        return self.exit(rank, output=output).fail(known=known, cause="worker_exited")

    def recover_say(self, kind: type[Any], **fields: Any) -> None:
        self.say_root(kind, recovery=self.recovery, epoch=self.epoch + 1, **fields)

    def step(self, name: str, took_s: float) -> "ToldRun":
        start_s, self.now_s = self.now_s, self.now_s + took_s
        self.say_root(
            events.RecoveryStep,
            recovery=self.recovery,
            epoch=self.epoch,
            step=name,
            start_s=start_s,
            end_s=self.now_s,
        )
        return self

    def plan(
        self,
        version: int | None,
        *,
        tier: Literal["memory", "persistent", "start"] = "memory",
        members: Sequence[Any] | None = None,
    ) -> "ToldRun":
        self.epoch += 1
        members = list(self.members if members is None else members)
        changed = [p for p, name in enumerate(members) if name != self.members[p]]
        moves = [
            events.ShardMove(shard=shard, sender="somebody", receiver=members[p])
            for p in changed
            for shard in self.placement.kept_by(p)
            if members[p] is not None and tier == "memory"
        ]
        self.members = members
        self.say_root(
            events.RecoveryPlanned,
            recovery=self.recovery,
            epoch=self.epoch,
            version=version,
            tier=tier,
            members=tuple(members),
            transfers=tuple(moves),
            reason="told so",
        )
        return self

    def resume(
        self,
        version: int,
        *,
        tier: Literal["local", "peer", "persistent"] = "local",
        took_s: float = 2.0,
        known_lost: int = 1,
    ) -> "ToldRun":
        """Training goes on; the root agent thinks that `known_lost` iterations are done again."""
        self.step("start", 1.0)
        self.now_s += took_s
        for rank in self.ranks:
            self.say_worker(
                events.ShardRestored,
                rank,
                shard=rank,
                version=version,
                tier=tier,
                size_bytes=SHARD_BYTES,
                verified=True,
                retrieve_s=took_s,
            )
        self.now_s -= took_s
        self.step("retrieve", took_s).step("warm_up", 1.5)
        self.say_root(
            events.RecoveryFinished,
            recovery=self.recovery,
            epoch=self.epoch,
            version=version,
            iteration=version + 1,
            duration_s=5.0,
            lost_iterations=known_lost,
        )
        return self

    def finish(self, iteration: int) -> "ToldRun":
        self.say_root(events.RunFinished, iteration=iteration)
        return self

    def give_up(self, reason: str, output: Sequence[str] = ()) -> "ToldRun":
        self.say_root(events.RunFailed, reason=reason, output=tuple(output))
        return self


TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "train.py", line 31, in <module>',
    "    loss = model(batch)",
    *(f'  File "model.py", line {line}, in forward' for line in range(40)),
    "    return x @ self.w",
    "ValueError: shapes (4, 8) and (9, 8) do not fit",
)
"""What a worker prints last when its script has a bug."""


def with_one_loss(*, start_s: float = UNIX_S) -> ToldRun:
    """Ten iterations, node-2 lost in the tenth, from memory on with node-4, twelve in all."""
    run = ToldRun(start_s=start_s).protect().train(1, 9).persist(4).persist(8)
    run.fail("node-2", known=9)
    run.plan(9, members=["node-0", "node-1", "node-4", "node-3"])
    run.resume(9).protect().train(10, 12)
    return run.finish(12)


def with_a_root_loss() -> ToldRun:
    """Version 6 of 24 iterations is the newest in the persistent tier when a group goes.

    node-0, the root agent's, and node-1 keep one another's shards. Two ranks have ended iteration
    25. The new root agent has just been elected and knows of no iteration.
    """
    run = ToldRun().elect("node-0").protect().train(1, 24).persist(6)
    run.iterate(25, ranks=[2, 3])
    run.elect("node-2").fail("node-0", "node-1", known=0)
    run.plan(6, tier="persistent", members=["node-4", "node-5", "node-2", "node-3"])
    run.resume(6, tier="persistent", known_lost=0).protect().train(7, 26)
    return run.finish(26)


def with_a_drain() -> ToldRun:
    """node-2 is to go and waits for a standby; when one has come, its ranks move there."""
    run = ToldRun().protect().train(1, 3)
    run.say_root(events.NodeLeaving, name="node-2", within_s=30.0)
    run.say_root(events.DrainWaiting, name="node-2", reason="no standby is there")
    run.train(4, 5).fail(known=5, cause=events.DRAIN)
    run.plan(5, members=["node-0", "node-1", "node-4", "node-3"]).resume(5, known_lost=0)
    run.say_root(events.NodeDrained, name="node-2")
    return run.protect().train(6, 8)


def resized(run: ToldRun, members: Sequence[str], version: int) -> ToldRun:
    """All ranks stop after a version, and go on as another number."""
    then, run.nodes = run.nodes, len(members)
    run.recovery += 1
    run.placement = plan_placement(nodes=run.nodes, replicas=2)
    run.say_root(
        events.RecoveryStarted,
        recovery=run.recovery,
        epoch=run.epoch + 1,
        cause=events.RESIZE,
        failed_at_s=run.now_s,
        iteration=version,
    )
    run.epoch, run.members = run.epoch + 1, list(members)
    run.say_root(
        events.RecoveryPlanned,
        recovery=run.recovery,
        epoch=run.epoch,
        version=version,
        members=tuple(members),
        reason="cut anew",
        ranks_then=then,
    )
    run.protect().resume(version, known_lost=0)
    run.say_root(events.Resized, nodes_then=then, nodes=run.nodes, wanted=4, iteration=version + 1)
    return run


def with_a_bug() -> ToldRun:
    """A script that raises in its fourth iteration, every time, until the run is given up."""
    run = ToldRun().protect().train(1, 3).crash(1, known=3, output=TRACEBACK)
    for _ in range(2):  # before an iteration ends it is the same recovery
        run.plan(3).step("start", 1.0).exit(1, output=TRACEBACK)
    return run.give_up("rank 1 ended with exit code 1, 3 times in a row", TRACEBACK)


def with_two_tries() -> ToldRun:
    """A recovery whose first try falls over, and a node that is lost in the second one's place."""
    run = ToldRun(per_node=2).protect().train(1, 6).persist(3)
    run.iterate(7, losses=True).fail("node-1", known=6)
    run.plan(6, members=["node-0", "node-4", "node-2", "node-3"]).step("start", 1.0)
    run.plan(5).resume(5).protect().train(6, 9)
    run.crash(0, known=9, output=TRACEBACK).plan(9).resume(9).protect().train(10, 11)
    return run.finish(11)


def with_all_that_is_noticed() -> ToldRun:
    """What a root agent and workers notice, each of it once or as often as they say it."""
    run = ToldRun(standbys=0).protect().train(1, 5)
    run.say_worker(events.CodeSeen, 0, files={"train.py": "a"}, changed=("train.py",))
    run.say_worker(
        events.Diverged,
        0,
        iteration=3,
        differs="batch",
        before="ab12",
        after="cd34",
        cause="the position in the data did not come back",
    )
    broken = {"loss": "nan", "is_held": True}
    for _ in range(2):  # a root agent that was just elected says it again
        run.say_worker(events.LossNotFinite, 1, iteration=3, **broken)
    run.say_worker(events.LossFinite, 1, iteration=5)
    run.say_worker(events.LossNotFinite, 1, iteration=6, **broken)
    for number in (1, 2):
        run.say_root(events.SumsVerified, iteration=number, replays=1, duration_s=0.5)
    wrong = {"work": "gradient", "ranks": (1, 2), "replays": 2, "version": 2, "rewinds": 0}
    for rank in (0, 1):  # every rank says it
        run.say_worker(
            events.WrongSums, rank, iteration=4, nodes=("node-2",), goes_back=True, **wrong
        )
    run.say_worker(events.WrongSums, 0, iteration=5, suspects=("node-0", "node-1"), **wrong)
    back = {"iteration": 5, "version": 3, "skips": True, "cause": "script", "duration_s": 0.1}
    for rank in run.ranks:
        run.say_worker(events.Rewound, rank, rewinds=1, **back)
        run.say_worker(events.Rewound, rank, rewinds=2, reason="the loss is NaN", **back)
    run.say_root(
        events.ReplicasPlaced,
        placement=plan_placement(nodes=4, replicas=3),
        added=((2, "node-0"), (3, "node-1")),
        loss_chance_then=0.002,
        loss_chance=0.0001,
        reason="memory may not suffice (node-2 failed 3 times: 0.11 a day): 0.002 goes to 0.0001",
    )
    run.say_root(events.ReplicasShort, loss_chance=0.1, reason="there is no memory for more")
    run.say_root(events.PersistFailed, version=4, url="memory://", reason="disk full")
    run.say_root(events.ResizeWaiting, nodes=5, reason="a machine is missing")
    run.say(events.Note(text="a remark"), node="node-0")
    run.crash(1, known=5, output=TRACEBACK)
    run.recover_say(
        events.ReplicaRejected,
        shard=1,
        version=5,
        holder="node-0",
        chunk=4,
        reason="chunk 4 failed its checksum",
    )
    return run.plan(4).resume(4)


def simulated() -> Sequence[Entry]:
    """Two machines lost in a fifth of a day of a simulated run."""
    workload = paper_workload(nodes=6, standbys=2)
    outages = [Outage(at_s=at_s, kind="hardware", positions=(3,)) for at_s in (3e3, 9e3)]
    return simulate(workload, gemini(workload), outages, days=0.2, record=True).events


def recorded(name: str) -> Sequence[Entry]:
    """The log of a real run that the course brings."""
    lines = gzip.decompress((FOLDER / f"{name}.jsonl.gz").read_bytes()).splitlines()
    return [entry for line in lines if (entry := read_line(line)) is not None]


RUNS: dict[str, Sequence[Entry]] = {
    "one loss": with_one_loss().entries,
    "root loss": with_a_root_loss().entries,
    "bug": with_a_bug().entries,
    "two tries": with_two_tries().entries,
    "drain": with_a_drain().entries,
    "noticed": with_all_that_is_noticed().entries,
    "simulated": simulated(),
    "recorded": recorded("four_failures"),
}
