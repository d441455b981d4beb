"""The root agent, told as stories: what happens, and what it then has others do."""

from collections.abc import Iterable
from typing import Any

from gemini_lab.placement import plan_placement
from gemini_lab.recovery.protocol import (
    Emit,
    FromAgent,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    RequestNodes,
    RunState,
    Send,
    Tick,
    WriteState,
)
from gemini_lab.recovery.root import RootAgent
from gemini_lab.settings import Settings

JOB = {
    "id": 1, "name": "story", "nodes": 4, "standbys": 1, "workers_per_node": 1, "racks": None,
    "settings": {},
}  # fmt: skip


class Story:
    """A root agent among well-behaved agents, whose memory is kept in `copies`."""

    def __init__(self, *, nodes: int = 5, state: RunState | None = None) -> None:
        self.now_s = 0.0
        self.root = RootAgent(state=state or RunState(), at_s=0.0)
        self.states: list[RunState] = []
        self.events: list[Emit] = []
        self.orders: list[Send] = []
        self.requests: list[RequestNodes] = []
        self.copies: dict[str, list[tuple[int, int]]] = {}
        self.silent: set[str] = set()
        self.persistent: list[int] = []
        self.settings: dict[str, Any] = {}
        for number in range(nodes):
            self.join(f"node-{number}")

    def join(self, node: str) -> None:
        self.copies.setdefault(node, [])
        self.do(self.root.handle(NodeJoined(at_s=self.now_s, node=node)))

    def lose(self, node: str) -> None:
        self.copies.pop(node)
        self.do(self.root.handle(NodeLost(at_s=self.now_s, node=node, cause="connection")))

    def say(self, node: str, **message: Any) -> None:
        message = {"epoch": self.root.state.epoch, **message}
        self.do(self.root.handle(FromAgent(at_s=self.now_s, node=node, message=message)))

    def event(self, node: str, kind: str, **data: Any) -> None:
        self.say(node, op="event", kind=kind, data=data)

    def tick(self, at_s: float) -> None:
        self.now_s = at_s
        self.do(self.root.handle(Tick(at_s=at_s)))

    def do(self, instructions: Iterable[Any]) -> None:
        """Carry out instructions; agents answer at once."""
        for instruction in instructions:
            match instruction:
                case WriteState():
                    self.states.append(instruction.state)
                case Emit():
                    self.events.append(instruction)
                case RequestNodes():
                    self.requests.append(instruction)
                case Send():
                    self.orders.append(instruction)
                    self.answer(instruction)

    def answer(self, order: Send) -> None:
        message = order.message
        if order.to in self.silent or order.to not in self.copies:
            return
        match message["op"]:
            case "stop":
                self.say(order.to, op="stopped", epoch=message["epoch"])
            case "inventory":
                stored = {"persistent": self.persistent} if message.get("persistent_url") else {}
                self.say(
                    order.to, op="inventory", epoch=message["epoch"], damaged=[],
                    copies=self.copies[order.to], **stored,
                )  # fmt: skip
            case "rendezvous":
                self.say(order.to, op="rendezvous", epoch=message["epoch"], address="host:1")

    # -- what workers do ---------------------------------------------------------------------

    def members(self) -> list[str]:
        return [str(node) for node in self.root.state.members]

    def protect(self) -> None:
        for rank, node in enumerate(self.members()):
            self.event(
                node, "protected", rank=rank, settings=Settings.parse(self.settings).to_json(),
                fingerprint="same",
            )  # fmt: skip
            version = self.plan()["version"]
            if version is not None:
                self.event(node, "shard_restored", rank=rank, shard=rank, version=version)

    def iterate(self, iteration: int) -> None:
        """All ranks finish an iteration, and its version becomes whole everywhere."""
        placement = plan_placement(nodes=4, replicas=2)
        self.now_s += 1.0
        members = self.members()
        for rank, node in enumerate(members):
            self.event(node, "iteration", rank=rank, iteration=iteration, duration_s=1.0)
        for shard, holders in enumerate(placement.holders):
            for position in holders:
                kept = self.copies[members[position]]
                kept[:] = [c for c in kept if c[0] != shard or c[1] >= iteration - 1]
                kept.append((shard, iteration))
        for rank, node in enumerate(members):
            self.event(node, "version_complete", rank=rank, version=iteration)

    def plan(self) -> dict[str, Any]:
        return next(o.message["plan"] for o in reversed(self.orders) if o.message["op"] == "start")

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event.data for event in self.events if event.kind == kind]

    def start(self, iterations: int = 3, **settings: Any) -> "Story":
        self.settings = settings
        self.do(self.root.handle(JobSubmitted(at_s=self.now_s, job=JOB | {"settings": settings})))
        self.protect()
        for iteration in range(1, iterations + 1):
            self.iterate(iteration)
        return self


def test_a_job_starts_on_the_first_nodes_and_leaves_the_standby_alone():
    story = Story().start()
    assert story.members() == ["node-0", "node-1", "node-2", "node-3"]
    assert story.root.state.phase == "running"
    assert story.plan()["tier"] == "start"


def test_state_is_written_before_what_follows_from_it_is_ordered():
    story = Story()
    given = story.root.handle(JobSubmitted(at_s=0.0, job=JOB))
    writes = [n for n, instruction in enumerate(given) if isinstance(instruction, WriteState)]
    sends = [n for n, instruction in enumerate(given) if isinstance(instruction, Send)]
    assert min(writes) < min(sends)


def test_a_lost_node_is_replaced_and_training_resumes_from_the_last_whole_version():
    story = Story().start(iterations=5)
    story.lose("node-2")
    plan = story.plan()
    assert story.members() == ["node-0", "node-1", "node-4", "node-3"]
    assert (plan["version"], plan["tier"]) == (5, "memory")
    assert plan["sources"][2] == {"shard": 2, "tier": "peer", "holder": "node-3"}
    story.protect()
    story.iterate(6)
    assert story.root.state.phase == "running"
    assert story.of("recovery_finished")[0]["version"] == 5


def test_the_operator_is_asked_for_a_machine_after_a_standby_was_used():
    story = Story().start()
    story.lose("node-2")
    assert [request.wanted for request in story.requests] == [5]


def test_without_a_standby_the_run_waits_and_goes_on_when_a_node_joins():
    story = Story(nodes=4).start()
    story.lose("node-1")
    assert story.root.state.phase == "waiting"
    assert story.of("recovery_waiting")[0]["missing"] == [1]
    story.join("node-7")
    assert story.members() == ["node-0", "node-7", "node-2", "node-3"]
    assert story.plan()["version"] == 3


def test_a_second_loss_during_a_recovery_begins_the_same_recovery_anew():
    story = Story(nodes=6).start()
    story.silent.add("node-3")  # node-3 does not answer the fence
    story.lose("node-0")
    epoch = story.root.state.epoch
    story.lose("node-3")
    assert story.root.state.epoch == epoch + 1
    assert story.root.state.recoveries == 1
    assert story.members() == ["node-4", "node-1", "node-2", "node-5"]
    assert story.plan()["version"] == 3


def test_answers_from_before_the_fence_are_ignored():
    story = Story().start()
    story.silent |= set(story.copies)
    story.lose("node-2")
    for node in list(story.copies):
        story.say(node, op="stopped", epoch=story.root.state.epoch - 1)
    assert story.root.state.phase == "fencing"


def test_a_node_that_joins_during_a_fence_is_asked_like_the_others():
    story = Story(nodes=4)
    story.silent.add("node-0")
    story.do(story.root.handle(JobSubmitted(at_s=0.0, job=JOB)))
    story.join("node-4")
    asked = [order.to for order in story.orders if order.message["op"] == "stop"]
    assert asked[-1] == "node-4"
    story.silent.clear()
    story.say("node-0", op="stopped")
    assert story.root.state.phase == "starting"


def test_an_agent_that_never_answers_counts_as_lost():
    story = Story().start()
    story.silent.add("node-1")
    story.event("node-0", "note", text="so far so good")
    story.say("node-0", op="exited", rank=0, code=-9, output="")
    assert story.root.state.phase == "fencing"
    story.tick(story.now_s + 61)
    assert "node-1" not in story.members()
    assert story.root.state.phase == "starting"


def test_a_new_root_takes_over_a_recovery_that_was_half_done():
    first = Story().start()
    first.silent |= set(first.copies)
    first.lose("node-2")  # the first root dies while it waits for the fence
    left = RunState.from_json(first.states[-1].to_json())
    second = Story(nodes=0, state=left)
    second.copies = dict(first.copies)
    for node in second.copies:
        second.root.living[node] = NodeJoined(at_s=9.0, node=node, epoch=left.epoch - 1)
    second.do(second.root.take_over(9.0))
    assert second.root.state.epoch > left.epoch
    assert second.root.state.recoveries == 1
    assert second.members() == ["node-0", "node-1", "node-4", "node-3"]
    assert second.plan()["version"] == 3


def test_a_new_root_leaves_a_healthy_run_alone():
    first = Story().start()
    left = RunState.from_json(first.states[-1].to_json())
    second = Story(nodes=0, state=left)
    for rank, node in enumerate(first.copies):
        second.root.living[node] = NodeJoined(
            at_s=9.0, node=node, epoch=left.epoch, workers={str(rank): "running"}
        )
    assert second.root.take_over(9.0) == []
    assert second.root.state.phase == "running"


def test_a_new_root_restarts_workers_that_died_while_there_was_none():
    first = Story().start()
    left = RunState.from_json(first.states[-1].to_json())
    second = Story(nodes=0, state=left)
    second.copies = dict(first.copies)
    for node in second.copies:
        second.root.living[node] = NodeJoined(at_s=9.0, node=node, epoch=left.epoch, workers={})
    second.do(second.root.take_over(9.0))
    assert second.plan()["version"] == 3


def test_a_copy_that_fails_to_load_is_stepped_over_and_a_version_that_fails_twice_rejected():
    story = Story().start(iterations=4)
    story.say("node-0", op="exited", rank=0, code=-9, output="")
    for holder in ("node-0", "node-1"):
        assert story.plan()["version"] == 4
        story.say(
            holder, op="restore_failed", shard=0, version=4, holder=holder, reason="wrong bytes"
        )
    assert story.plan()["version"] == 3
    assert story.of("version_rejected")[0]["version"] == 4


def test_a_damaged_replica_is_replaced_by_the_other_holders_copy():
    story = Story().start(iterations=4)
    story.copies["node-0"].remove((0, 4))
    story.say("node-3", op="exited", rank=3, code=-9, output="")
    assert story.plan()["version"] == 4
    assert story.plan()["sources"][0] == {"shard": 0, "tier": "peer", "holder": "node-1"}


def asked_storage(story: Story) -> list[str]:
    """The agents that were asked what the persistent tier has."""
    return [order.to for order in story.orders if "persistent_url" in order.message]


def test_a_lost_group_falls_back_to_storage():
    story = Story(nodes=6).start(iterations=4, persistent_url="memory://runs")
    story.persistent = [2]
    story.lose("node-0")
    story.lose("node-1")
    assert (story.plan()["version"], story.plan()["tier"]) == (2, "persistent")


def test_storage_is_asked_only_when_memory_does_not_suffice():
    """At the start, when there is no memory yet, and when a group is lost; not for one node."""
    story = Story(nodes=6).start(iterations=4, persistent_url="memory://runs")
    assert asked_storage(story) == ["node-0"]
    story.lose("node-2")
    assert story.plan()["tier"] == "memory"
    assert asked_storage(story) == ["node-0"]
    story.lose("node-0")
    story.lose("node-1")
    assert asked_storage(story)[-1] == "node-3"


def test_an_agent_that_dies_while_storage_is_read_is_asked_for_by_another():
    story = Story(nodes=6).start(iterations=4, persistent_url="memory://runs")
    story.persistent = [2]
    story.lose("node-0")
    story.silent.add("node-2")  # the one to be asked; it answers nothing any more
    story.lose("node-1")
    story.lose("node-2")
    story.join("node-6")
    assert (story.plan()["version"], story.plan()["tier"]) == (2, "persistent")
    assert asked_storage(story)[-1] == "node-3"


def test_a_worker_without_progress_counts_as_hung():
    story = Story().start(iterations=4)
    story.tick(story.now_s + 20)
    assert "worker_hung" not in story.kinds()
    story.tick(story.now_s + 11)
    assert "worker_hung" in story.kinds()
    assert story.of("recovery_started")[-1]["cause"] == "worker_hung"


def test_a_script_that_fails_again_and_again_ends_the_run_with_its_words():
    story = Story().start(iterations=2)
    for _ in range(3):
        story.say("node-1", op="exited", rank=1, code=1, output="ValueError: no such layer")
    assert story.root.state.phase == "failed"
    assert "no such layer" in story.of("run_failed")[0]["reason"]


def test_errors_between_which_training_went_on_do_not_add_up():
    story = Story().start(iterations=2)
    for iteration in range(3, 8):
        story.say("node-1", op="exited", rank=1, code=1, output="a passing fault")
        story.protect()
        story.iterate(iteration)
    assert story.root.state.phase == "running"


def test_a_version_goes_to_the_persistent_tier_and_is_committed_when_all_shards_arrived():
    story = Story().start(0, persistent_url="memory://runs", persist_every_iterations=2)
    for iteration in (1, 2):
        story.iterate(iteration)
    story.tick(story.now_s + 0.1)
    assert story.of("persist_started")[0]["version"] == 3
    for node in story.members():
        assert not [order for order in story.orders if order.message["op"] == "commit"]
        story.say(node, op="persisted", version=3, records=[{"shard": node}])
    commit = next(order.message for order in story.orders if order.message["op"] == "commit")
    assert len(commit["records"]) == 4
    story.say("node-3", op="committed", version=3, size_bytes=10)
    assert story.of("persist_finished")[0]["version"] == 3


def test_a_failed_save_does_not_disturb_training():
    story = Story().start(0, persistent_url="memory://runs", persist_every_iterations=1)
    story.iterate(1)
    story.tick(story.now_s + 0.1)
    version = story.of("persist_started")[0]["version"]
    story.say("node-2", op="persist_failed", version=version, reason="no space left")
    assert story.of("persist_failed")[0]["reason"] == "no space left"
    assert story.root.state.phase == "running"


def test_the_last_version_is_saved_though_a_slow_store_was_busy_with_another():
    story = Story().start(0, persistent_url="memory://runs", persist_every_iterations=2)
    for iteration in range(1, 7):
        story.iterate(iteration)
        story.tick(story.now_s + 0.1)
    for rank, node in enumerate(story.members()):
        story.say(node, op="finished", rank=rank)
    for version in (3, 6):
        assert story.root.state.phase == "finishing"
        assert story.of("persist_started")[-1]["version"] == version
        for node in story.members():
            story.say(node, op="persisted", version=version, records=[{"shard": node}])
        story.say("node-3", op="committed", version=version, size_bytes=10)
    assert [e["version"] for e in story.of("persist_finished")] == [3, 6]
    assert story.kinds()[-1] == "run_finished"


def test_the_run_is_over_when_every_rank_has_finished():
    story = Story().start(iterations=3)
    for rank, node in enumerate(story.members()):
        assert story.root.state.phase == "running"
        story.say(node, op="finished", rank=rank)
    assert story.root.state.phase == "done"
    assert story.kinds()[-1] == "run_finished"
