"""Stories of a root agent among agents that behave, as plain values and without any I/O."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal

import msgspec
from made import made

from gemini_lab.job import Job
from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.node.listener import told_of
from gemini_lab.placement import Placement
from gemini_lab.recovery.discarded_versions import left_of
from gemini_lab.recovery.messages import (
    AllLive,
    CallRoll,
    Disown,
    Disowned,
    EventSaid,
    ExecutedAs,
    Fence,
    Fenced,
    FromAgentMessage,
    Held,
    Hold,
    Inventory,
    JobOrder,
    KeptCopy,
    ReadyToJoin,
    RestoreFailed,
    ScriptError,
    ScriptFinished,
    Settle,
    StartWorkers,
    TakeInventory,
    WorkerEnded,
    WorkerPulse,
    decode,
    encode,
)
from gemini_lab.recovery.plan import (
    CopyTransfer,
    RecoveryPlan,
    Source,
    Stored,
    Unclear,
    VersionId,
    is_left,
)
from gemini_lab.recovery.protocol import (
    AgentJoined,
    AgentLost,
    Emit,
    FromAgent,
    Instruction,
    JobSubmitted,
    Requested,
    RequestNodes,
    Send,
    Tick,
    WriteState,
)
from gemini_lab.recovery.requests import AnyRequest, DrainNode
from gemini_lab.recovery.root.agent import RootAgent
from gemini_lab.recovery.root_state import RootState
from gemini_lab.recovery.told_seats import whole_ranks
from gemini_lab.seats import Seats
from gemini_lab.settings import Settings
from gemini_lab.shard.lineage import NO_LINEAGE, Lineage

RUN = 7
JOB = JobOrder(
    number=1,
    run=RUN,
    job=Job(script="story.py", cwd="/"),
    seats=Seats(nodes=4, standbys=1),
    settings={},
)


def job(**settings: str | float | None) -> JobOrder:
    """The story's job, with what its launcher was told."""
    return JobOrder(number=1, run=RUN, job=JOB.job, seats=JOB.seats, settings=settings)


def kept_by(order: StartWorkers) -> list[int]:
    """Return the ranks that go on in their processes, as an order to start workers says."""
    return whole_ranks(order.kept, order.seats.whole().ranks)


class Story:
    """A root agent among well-behaved agents, whose memory is kept in `copies`."""

    def __init__(self, *, nodes: int = 5, state: RootState | None = None) -> None:
        self.now_s = 0.0
        self.root = RootAgent(state=state or RootState(), at_s=0.0)
        self.states: list[RootState] = []
        self.events: list[events.AnyEvent] = []
        self.orders: list[Send] = []
        self.requests: list[RequestNodes] = []
        self.copies: dict[str, list[KeptCopy]] = {}
        self.forever_s = math.inf  # the moment until which pauses are sat out
        self.silent: set[str] = set()
        self.deaf: set[str] = set()  # whose inventories take long
        self.ended: set[int] = set()  # ranks whose processes could not stand still
        self.portless: set[str] = set()  # whose agents can open no port
        self.slow: set[int] = set()  # ranks whose new processes take long to start
        self.ahead: dict[str, list[int]] = {}  # ranks whose processes wait on a node for a place
        self.remembered: dict[str, list[events.Iteration]] = {}  # what agents know of iterations
        self.left: dict[str, list[VersionId]] = {}  # what agents know of rewinds
        self.code: dict[str, dict[str, ExecutedAs]] = {}  # what agents know of the script's files
        self.rewinds: dict[int, int] = {}  # how many there were, by epoch
        self.persistent: list[int] = []
        self.disowned: list[VersionId] = []  # what the tier says that runs went back behind
        self.unclear: list[Unclear] = []  # what the tier has, and does not show whole
        self.work_s: dict[int, float] = {}  # of each rank in an iteration, where that is told
        self.unread = ""
        self.settings: dict[str, str | int | float | None] = {}
        self.model_parallel_size = 1  # as workers tell
        for number in range(nodes):
            self.join(f"node-{number}")

    # -- what happens ------------------------------------------------------------------------

    def join(self, node: str, *, is_ready: bool = True) -> None:
        self.copies.setdefault(node, [])
        joined = AgentJoined(at_s=self.now_s, node=node, is_ready=is_ready)
        self.do(self.root.handle(joined))

    def lose(self, *nodes: str, cause: str = "dead") -> None:
        """Lose nodes one after another; of the dead nothing comes back."""
        for node in nodes:
            if cause == "dead":
                self.copies.pop(node, None)
            self.do(self.root.handle(AgentLost(at_s=self.now_s, node=node, cause=cause)))

    def request(self, request: AnyRequest, *, number: int = 1) -> None:
        """A user asks for something."""
        self.do(self.root.handle(Requested(at_s=self.now_s, number=number, request=request)))

    def say(self, node: str, message: FromAgentMessage) -> None:
        """An agent says something, which comes as a connection brings it."""
        heard = decode(encode(message))
        assert isinstance(heard, FromAgentMessage)
        self.do(self.root.handle(FromAgent(at_s=self.now_s, node=node, message=heard)))

    def event(self, node: str, event: events.AnyEvent) -> None:
        self.say(node, EventSaid(entry=Entry(at_s=self.now_s, node=node, event=event)))

    def exit(
        self, rank: int, code: int, output: str = "", error: ScriptError | None = None
    ) -> None:
        said = WorkerEnded(rank=rank, epoch=self.epoch, code=code, output=output, error=error)
        self.say(self.members()[rank], said)

    def finish(self, rank: int) -> None:
        self.say(self.members()[rank], ScriptFinished(rank=rank, epoch=self.epoch))

    def fail_restore(self, shard: int, version: int, *, holder: str) -> None:
        said = RestoreFailed(
            rank=shard,
            epoch=self.epoch,
            shard=shard,
            version=version,
            holder=holder,
            reason="wrong bytes",
        )
        self.say(holder, said)

    def pulse(self, rank: int, **seen: str | float | bool) -> None:
        """An agent tells what its worker does; a tick must follow."""
        said = WorkerPulse(rank=rank, epoch=self.epoch, **seen)  # type: ignore[arg-type]
        self.say(self.members()[rank], said)

    def tick(self, at_s: float) -> None:
        self.now_s = at_s
        self.do(self.root.handle(Tick(at_s=at_s)))

    # -- what agents do about it -------------------------------------------------------------

    def do(self, instructions: Iterable[Instruction]) -> None:
        """Carry out instructions; agents answer at once, and pauses are sat out."""
        self._do(instructions)
        if (
            self.root.state.phase == "waiting"
            and self.now_s < self.root.lifecycle.resumes_s < self.forever_s
        ):
            self.tick(self.root.lifecycle.resumes_s)

    def _do(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case WriteState():
                    self.states.append(instruction.state)
                case Emit():
                    self.events.append(instruction.event)
                case RequestNodes():
                    self.requests.append(instruction)
                case Send():
                    assert decode(encode(instruction.order)) == instruction.order
                    self.orders.append(instruction)
                    self.answer(instruction)

    def answer(self, sent: Send) -> None:
        if sent.to in self.silent or sent.to not in self.root.living:
            return
        epoch = sent.order.epoch
        match sent.order:
            case Fence(keeps=keeps, ends=ends):
                waiting = self.ahead.pop(sent.to, [])
                ranks = (*self.root.state.seats.ranks_on(sent.to), *waiting) if keeps else ()
                kept = [rank for rank in ranks if rank not in {*self.ended, *ends}]
                address = "" if sent.to in self.portless else f"{sent.to}:{epoch}"
                lacks = "" if address else "Too many open files"
                said = Fenced(epoch=epoch, kept=kept, address=address, no_port=lacks)
                self.say(sent.to, said)
            case TakeInventory(persistent_url=url) if sent.to not in self.deaf:
                is_read = url is not None and not self.unread
                made = Lineage(run=RUN, epoch=1)
                said = Inventory(
                    epoch=epoch,
                    copies=list(self.copies[sent.to]),
                    damaged=[],
                    persistent=[Stored(version=v, lineage=made) for v in self.persistent]
                    if is_read
                    else None,
                    unclear=self.unclear if is_read else [],
                    unread="" if url is None else self.unread,
                    disowned=self.disowned if is_read else [],
                    iterations=self.remembered.get(sent.to, []),
                    left=self.left.get(sent.to, []),
                    code=self.code.get(sent.to, {}),
                )
                self.say(sent.to, said)
            case CallRoll():
                if not self.ended & {*self.root.state.seats.ranks_on(sent.to)}:
                    self.say(sent.to, AllLive(epoch=epoch))
            case Disown(left=left) if sent.to not in self.deaf:
                made = Lineage(run=RUN, epoch=1)
                counting = [v for v in self.persistent if not is_left(v, made, left)]
                self.say(sent.to, Disowned(epoch=epoch, versions=counting, reason=self.unread))
            case Settle():
                kept = self.copies[sent.to]
                kept[:] = [copy for copy in kept if copy.ranks == sent.order.ranks]
            case StartWorkers(joins=joins, seats=seats) if joins:
                self.ahead[sent.to] = [*seats.whole().ranks_on(sent.to)]
                for rank in {*self.ahead[sent.to]} - self.slow:
                    self.ready_to_join(sent.to, rank)

    def ready_to_join(self, node: str, rank: int) -> None:
        """A process that was started ahead on this node could take its rank's place."""
        self.say(node, ReadyToJoin(rank=rank, epoch=self.epoch))

    # -- what workers do ---------------------------------------------------------------------

    def protect(self) -> None:
        """All workers call `protect`, and load what the plan says."""
        seats = self.root.state.seats
        settings = Settings.parse(self.settings)
        is_placed = seats.placement is not None
        for rank, node in enumerate(self.members()):
            said = events.Protected(
                rank=rank,
                epoch=self.epoch,
                shard_bytes=1,
                settings=settings,
                fingerprint="same",
                placement=seats.placed(settings).holders,
                model_parallel_size=self.model_parallel_size,
            )
            told = told_of(Entry(at_s=self.now_s, node=node, event=said), is_placed=is_placed)
            self.say(node, told[1])
            if (version := self.plan().version) is not None:
                if self.plan().cuts:  # the owner has its new shard, and nobody else yet
                    new = KeptCopy(rank, version, self.lineage, len(self.members()))
                    self.copies[node].append(new)
                self.event(node, self.receipt(rank))

    def receipt(self, rank: int) -> events.ShardRestored:
        plan = self.plan()
        tier = plan.sources[rank].tier
        assert plan.version is not None
        assert tier != "start"
        return made(
            events.ShardRestored,
            rank=rank,
            epoch=self.epoch,
            shard=rank,
            version=plan.version,
            tier=tier,
            verified=True,
        )

    def iterate(self, *iterations: int) -> None:
        """All ranks finish iterations, and their versions become whole everywhere."""
        for iteration in iterations:
            self._iterate(iteration)

    def _iterate(self, iteration: int) -> None:
        self.now_s += 1.0
        members = self.members()
        for rank, node in enumerate(members):
            done = events.Iteration(
                rank=rank,
                epoch=self.epoch,
                iteration=iteration,
                duration_s=1.0,
                waited_s=0.0,
                work_s=self.work_s.get(rank, 0.0),
            )
            self.event(node, done)
        for shard, holders in enumerate(self.root.state.seats.holders.holders):
            for position in holders:
                kept = self.copies[members[position]]
                kept[:] = [
                    c
                    for c in kept
                    if (c.shard, c.ranks) != (shard, len(members)) or c.version == iteration - 1
                ]
                kept.append(KeptCopy(shard, iteration, self.lineage, len(members)))
        self.say_complete(iteration)

    def go_back(
        self,
        version: int,
        *,
        from_iteration: int,
        is_heard: bool = True,
        cause: Literal["script", "guard", "person"] = "guard",
    ) -> None:
        """All ranks go back, and discard what they had since; agents keep it in mind.

        Args:
            version: To which.
            from_iteration: The newest that they had done.
            is_heard: Whether the root agent hears of it.
            cause: Who wanted it; the batches are skipped.
        """
        rewinds = self.rewinds[self.epoch] = self.rewinds.get(self.epoch, 0) + 1
        for rank, node in enumerate(self.members()):
            said = events.Rewound(
                rank=rank,
                epoch=self.epoch,
                iteration=from_iteration,
                version=version,
                rewinds=rewinds,
                skips=True,
                cause=cause,
                duration_s=0.1,
            )
            self.left.setdefault(node, []).append(left_of(said, run=RUN))
            self.copies[node][:] = [c for c in self.copies[node] if c.version <= version]
            if is_heard:
                self.event(node, said)

    def say_complete(self, version: int) -> None:
        """All ranks say that a version is whole."""
        for rank, node in enumerate(self.members()):
            whole = made(
                events.VersionComplete,
                rank=rank,
                epoch=self.epoch,
                version=version,
                next_version=version + 1,
            )
            self.event(node, whole)

    def start(
        self,
        iterations: int = 3,
        *,
        placement: Placement | None = None,
        rack_of: Mapping[str, str] | None = None,
        **settings: str | float | None,
    ) -> "Story":
        self.settings = settings
        seats = replace(JOB.seats, placement=placement, rack_of=rack_of or {})
        order = msgspec.structs.replace(job(**settings), seats=seats)
        self.do(self.root.handle(JobSubmitted(at_s=self.now_s, order=order)))
        self.protect()
        self.iterate(*range(1, iterations + 1))
        return self

    def go_on(self, *iterations: int) -> None:
        """The workers that were started again do these iterations, or the next one."""
        self.protect()
        self.iterate(*iterations or (self.root.state.reached.iteration + 1,))

    def drain(self, node: str, number: int = 1) -> None:
        """A person wants a node to go."""
        self.request(DrainNode(node=node), number=number)

    def hold(self, *ranks: int) -> None:
        """Ranks, or all of them, stop where a version is whole."""
        for rank in ranks or self.root.state.ranks:
            said = Held(rank=rank, epoch=self.epoch, version=self.root.state.reached.iteration)
            self.say(self.members()[rank], said)

    def next_root(self) -> None:
        """Another root agent goes on from what the last one stored."""
        living = self.root.living
        state = RootState.from_text(self.root.state.to_text())
        self.root = RootAgent(state=state, at_s=self.now_s)
        self.root.living.update(living)
        self.do(self.root.take_over(self.now_s))

    # -- what can be seen of it --------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self.root.state.epoch

    @property
    def lineage(self) -> Lineage:
        """In which versions are made now."""
        return replace(self.root.state.lineage, rewinds=self.rewinds.get(self.epoch, 0))

    def members(self) -> list[str]:
        return [str(node) for node in self.root.state.members]

    def plan(self) -> RecoveryPlan:
        """The plan that was carried out last: as it was told, and as its parts went out."""
        told = self.of(events.RecoveryPlanned)[-1]
        assert isinstance(told, events.RecoveryPlanned)
        sent = [s for s in self.orders if isinstance(s.order, StartWorkers)]
        got = {s.to: s.order.plan for s in sent if s.order.epoch == told.epoch}
        cuts = {part.cuts for part in got.values()}
        assert len(cuts) < 2
        plan = RecoveryPlan(
            version=told.version,
            tier=told.tier,
            members=told.members,
            sources=tuple(
                Source(shard=s.shard, tier=s.tier, holder=s.holder) for s in told.sources
            ),
            transfers=tuple(
                CopyTransfer(shard=t.shard, sender=t.sender, receiver=t.receiver)
                for t in told.transfers
            ),
            reason=told.reason,
            lineage=Lineage(RUN, told.made_in, told.made_after) if told.made_in else NO_LINEAGE,
            cuts=next(iter(cuts), ()),
        )
        assert told.ranks_then == (len(plan.cuts) or None)
        assert {n: p.transfers for n, p in got.items()} == {
            n: p.transfers for n, p in plan.parts().items()
        }
        return plan

    def told_to_hold(self) -> list[str]:
        """The nodes whose ranks were told to stop."""
        return [sent.to for sent in self.orders if isinstance(sent.order, Hold)]

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    def of(self, kind: type[events.Event]) -> list[events.Event]:
        return [event for event in self.events if isinstance(event, kind)]
