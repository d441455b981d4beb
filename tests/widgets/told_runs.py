"""Runs told event by event, as agents and workers tell them, for the tests of store and views."""

from collections.abc import Sequence
from typing import Any

from gemini_lab.log.events import Event
from gemini_lab.placement import Placement, plan_placement

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
    ) -> None:
        self.nodes, self.per_node = nodes, per_node
        self.names = list(names or [f"node-{i}" for i in range(nodes + standbys)])
        self.members: list[Any] = self.names[:nodes]
        self.placement = placement or plan_placement(nodes=nodes, replicas=replicas)
        self.now_s, self.epoch, self.recovery = start_s, 1, 0
        self.events: list[Event] = []
        self.say("lab_started", nodes=nodes, standbys=standbys, names=self.names, root=None)
        self.say(
            "run_started",
            name="told",
            script="job.py",
            nodes=nodes,
            standbys=standbys,
            workers_per_node=per_node,
            settings={"replicas": replicas},
            racks=None,
        )
        self.say("root_elected", name=self.names[-1], term=1)

    @property
    def ranks(self) -> range:
        return range(self.nodes * self.per_node)

    def node_of(self, rank: int) -> str:
        return str(self.members[rank // self.per_node])

    def say(self, kind: str, *, node: str = "lab", **data: Any) -> None:
        self.events.append(Event(kind=kind, at_s=self.now_s, node=node, data=data))

    def protect(self) -> "ToldRun":
        placement = self.placement.to_json()
        for rank in self.ranks:
            self.say(
                "protected",
                node=self.node_of(rank),
                rank=rank,
                epoch=self.epoch,
                shard_bytes=SHARD_BYTES,
                settings={"scheme": "background"},
                placement=placement,
            )
        return self

    def iterate(self, number: int, *, duration_s: float = 1.0, waited_s: float = 0.0) -> "ToldRun":
        self.now_s += duration_s
        for rank in self.ranks:
            self.say(
                "iteration",
                node=self.node_of(rank),
                rank=rank,
                epoch=self.epoch,
                iteration=number,
                duration_s=duration_s,
                waited_s=waited_s,
                values={},
            )
        return self

    def complete(self, version: int, *, ranks: Sequence[int] | None = None) -> "ToldRun":
        self.now_s += 0.125
        for rank in self.ranks if ranks is None else ranks:
            self.say(
                "version_complete",
                node=self.node_of(rank),
                rank=rank,
                epoch=self.epoch,
                version=version,
                sent_bytes=SHARD_BYTES,
                local_s=0.0,
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
        self.say(
            "persist_finished",
            node=self.names[-1],
            version=version,
            url="memory://",
            size_bytes=4 * SHARD_BYTES,
            duration_s=duration_s,
        )
        return self

    def fail(self, *lost: str, iteration: int) -> "ToldRun":
        """Nodes die; the root agent notices half a second later."""
        self.recovery += 1
        for name in lost:
            self.say("injected", node=name, failure={"kind": "node_loss"}, target={"name": name})
        self.now_s += 0.5
        for name in lost:
            self.say("node_lost", node=self.names[-1], name=name, cause="connection")
        self.recover_say(
            "recovery_started",
            cause="node_lost",
            lost=list(lost),
            failed_at_s=self.now_s,
            iteration=iteration,
        )
        return self

    def recover_say(self, kind: str, **data: Any) -> None:
        self.say(kind, node=self.names[-1], recovery=self.recovery, epoch=self.epoch, **data)

    def step(self, name: str, took_s: float) -> "ToldRun":
        start_s, self.now_s = self.now_s, self.now_s + took_s
        self.recover_say("recovery_step", step=name, start_s=start_s, end_s=self.now_s)
        return self

    def plan(
        self, version: int | None, *, tier: str = "memory", members: Sequence[Any]
    ) -> "ToldRun":
        self.epoch += 1
        changed = [p for p, name in enumerate(members) if name != self.members[p]]
        moves = [
            {"shard": shard, "sender": "somebody", "receiver": members[p]}
            for p in changed
            for shard in self.placement.kept_by(p)
            if members[p] is not None and tier == "memory"
        ]
        self.members = list(members)
        self.recover_say(
            "recovery_planned",
            version=version,
            tier=tier,
            members=list(members),
            sources=[],
            transfers=moves,
            reason="told so",
        )
        return self

    def resume(self, version: int, *, tier: str = "local", took_s: float = 2.0) -> "ToldRun":
        self.step("start", 1.0)
        self.now_s += took_s
        for rank in self.ranks:
            self.say(
                "shard_restored",
                node=self.node_of(rank),
                rank=rank,
                epoch=self.epoch,
                shard=rank,
                version=version,
                tier=tier,
                holder=None,
                size_bytes=SHARD_BYTES,
                verified=True,
                retrieve_s=took_s,
                verify_s=0.0,
                load_s=0.0,
            )
        self.now_s -= took_s
        self.step("retrieve", took_s).step("warm_up", 1.5)
        self.recover_say(
            "recovery_finished",
            version=version,
            iteration=version + 1,
            duration_s=5.0,
            lost_iterations=1,
        )
        return self

    def finish(self, iteration: int) -> "ToldRun":
        self.say("run_finished", node=self.names[-1], iteration=iteration)
        return self


def with_one_loss() -> ToldRun:
    """Ten iterations, node-2 lost in the tenth, from memory on with node-4, twelve in all."""
    run = ToldRun().protect().train(1, 9).persist(4).persist(8)
    run.fail("node-2", iteration=10)
    run.plan(9, members=["node-0", "node-1", "node-4", "node-3"])
    run.resume(9).protect().train(10, 12)
    return run.finish(12)
