"""A model of one rank's process: it trains, keeps versions and restores, at its agent's boundary.

Its state is one number that every update changes. An update in another epoch makes another state,
which real training would not: so two histories are told apart wherever they are mixed.
"""

import asyncio
import os
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

import xxhash

from gemini_lab.engine.heartbeat import BEAT_S
from gemini_lab.errors import GeminiError, IntegrityError
from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.memory.slab import Slab
from gemini_lab.recovery.messages import (
    Doing,
    End,
    EndReached,
    EventSaid,
    GoBack,
    GoOn,
    Held,
    Hold,
    Message,
    OldSlabsGiven,
    OldSlabsWanted,
    ReadyToJoin,
    Refused,
    RestoreFailed,
    ScriptError,
    ScriptFinished,
    Severed,
    SlabGiven,
    SlabRequest,
    SlotWanted,
    Stand,
    Stands,
    WorkerPulse,
    WorkerStart,
)
from gemini_lab.settings import Settings
from gemini_lab.shard.layout import ShardLayout, fingerprint_of
from gemini_lab.shard.lineage import Lineage
from gemini_lab.storage import persistent_tier
from gemini_lab.wire.local import LocalChannel

if TYPE_CHECKING:
    from gemini_lab_bench.world.virtual_machine import VirtualMachine
    from gemini_lab_bench.world.world import VirtualWorld

PAYLOAD: Final = struct.Struct("<QQQ40x")
"""A shard's bytes: the state, the version, the rank."""
HALF_BYTES: Final = 12
"""Of these, which are written before the rest: a rank may be killed in between."""
CHUNK_BYTES: Final = 64
PORT_FD: Final = -1
"""In the place of the descriptor of a port in which ranks meet."""
FIRST_STATE: Final = 1
SCRIPT: Final = "model.py"
NEVER: Final = (-1, -1)
"""The moment of a rank that has no version whole: how often it went back, and a version."""
WORD_S: Final = 0.2
"""In which a rank whose collective failed waits for the word that another one is lost."""
WRONG_S: Final = 600.0
"""In which ranks are ended that have said which machine computes wrong."""
SEVERED_S: Final = 5.0
"""The same, after it has said that a connection broke."""


class PeerLostError(Exception):
    """A collective failed, because a rank's connection is closed."""


class RejectedError(Exception):
    """This process is of no use: its copy cannot be used, or it cannot go on without its peers."""


@dataclass(eq=False, slots=True)
class RankGroup:
    """The ranks of one start, and what they exchange."""

    world: "VirtualWorld"
    start: WorkerStart
    ranks: dict[int, "VirtualRank"] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    # After which version the script goes back, and how far beyond.
    wish: tuple[int, int] | None = None
    is_served: bool = False  # whether one of them has the port in which all meet
    # A rank whose script comes to an end while the others train on, and how it does.
    ends_early: tuple[int, str] | None = None
    _said: dict[object, dict[int, Any]] = field(default_factory=dict)
    _waiting: dict[object, list[tuple["VirtualRank", asyncio.Future[Any]]]] = field(
        default_factory=dict
    )

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.start.seats.world_size

    @property
    def is_halfway(self) -> bool:
        """Whether some ranks, but not all, have a version whole that was made in this start."""
        moments = [rank.whole for rank in self.ranks.values()]
        newest = max(moments, default=NEVER)
        return newest[1] > (self.start.plan.version or 0) and moments.count(newest) < self.size

    async def meet(self, rank: "VirtualRank", what: object, value: Any = None) -> list[Any]:
        """Do a collective: return what each rank gave, once all have come.

        Raises:
            PeerLostError: A rank's process has ended.
        """
        said = self._said.setdefault(what, {})
        said[rank.start.rank] = value
        future = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(what, []).append((rank, future))
        if self.gone:
            self._fail(rank, future)
        elif len(said) == self.size:
            for other, one in self._waiting.pop(what):
                delay_s = self.world.network.delay_s()
                self.world.loop.after(delay_s, _settle, other, one, None)
        with rank.waiting(str(what)):
            await future
        if rank.is_severed:  # its collective fails
            raise PeerLostError
        return [said[number] for number in range(self.size)]

    async def fetch(self, rank: "VirtualRank", what: object) -> Any:
        """Return what one rank gave, once it has."""
        while what not in self._said:
            if self.gone:
                raise PeerLostError
            with rank.waiting(str(what)):
                await asyncio.sleep(0.02)
        return self._said[what][0]

    def give(self, what: object, value: Any) -> None:
        """Give something that another rank fetches."""
        self._said[what] = {0: value}

    def lose(self, rank: int) -> None:
        """Break the connections to a rank whose process has ended."""
        self.gone.add(rank)
        for waiting in self._waiting.values():
            for other, future in waiting:
                self._fail(other, future)

    def _fail(self, rank: "VirtualRank", future: asyncio.Future[Any]) -> None:
        self.world.loop.after(
            self.world.network.delay_s(), _settle, rank, future, PeerLostError("a peer has ended")
        )


def _settle(rank: "VirtualRank", future: asyncio.Future[Any], error: PeerLostError | None) -> None:
    if future.done() or rank.process.is_gone:
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


class RankChannel(LocalChannel):
    """The agent's end of the channel to a rank."""

    def __init__(self, rank: "VirtualRank") -> None:
        self.rank = rank

    def send(self, message: Message, fds: tuple[int, ...] = ()) -> bool:
        rank = self.rank
        if rank.process.is_gone:
            return False
        given = [os.dup(fd) for fd in fds if fd != PORT_FD]
        rank.serves |= PORT_FD in fds
        rank.world.loop.soon(rank.process, rank.hear, message, given)
        return True


class VirtualRank:
    """One rank's process.

    Args:
        world: Its own.
        machine: Where it runs.
        start: What it is told.
        serves: Whether it has the port in which all ranks meet.
    """

    def __init__(
        self,
        world: "VirtualWorld",
        machine: "VirtualMachine",
        start: WorkerStart,
        *,
        serves: bool = False,
    ) -> None:
        self.world, self.machine, self.start, self.serves = world, machine, start, serves
        self.process = machine.new_process(f"{machine.name} rank {start.rank}")
        self.pid = world.new_pid()
        self.state, self.version, self.rewinds = FIRST_STATE, 0, 0
        self.lineage, self.whole = Lineage(run=start.order.run), NEVER
        self.seats = start.seats
        self.wants_hold = self.is_severed = False
        self.slab: Slab | None = None
        self._doing: Doing = "starting"
        self._waits_in, self._moved_s = "", 0.0
        self._answers: asyncio.Queue[tuple[Message, list[int]]] = asyncio.Queue()
        self._order: GoBack | None = None  # which may have been obeyed
        self._say: Callable[[Message], None] = lambda _: None
        self._end: Callable[[int], None] = lambda _: None
        self._work: asyncio.Task[int] | None = None
        self._goes_on = asyncio.Event()
        self._is_kept = self._may_stand = False
        # Who starts beside those that train meets none of them yet.
        self.job = RankGroup(world, start) if start.joins else world.job_of(start)

    # -- its process -----------------------------------------------------------------------------

    def begin(self, *, say: Callable[[Message], None], end: Callable[[int], None]) -> None:
        """Start."""
        self._say, self._end = say, end
        self.job.ranks[self.start.rank] = self
        if self.machine.process.runs is False:
            self.process.stop("frozen")
        self.process.start(self._live())

    def kill(self, *, is_told: bool) -> None:
        """End at once.

        Args:
            is_told: Whether the machine's kernel lives, and closes the connections to other ranks.
        """
        if self.process.is_gone:
            return
        self.process.kill()
        if is_told:
            self.job.lose(self.start.rank)
        if self.slab is not None:
            self.slab.close()

    def say(self, message: Message) -> None:
        """Send a message to the agent."""
        self.world.loop.soon(self.machine.process, self._say, message)

    def hear(self, message: Message, fds: list[int]) -> None:
        """Receive a message of the agent."""
        match message:
            case Hold():
                self.wants_hold = True
            case SlabGiven() | OldSlabsGiven() | Refused():
                self._answers.put_nowait((message, fds))
            case GoBack():
                self._order = message
            case Stand():
                self._stand(message)
            case GoOn(start=start):
                self._go_on(start, fds)
            case _:
                for fd in fds:
                    os.close(fd)

    def waiting(self, what: str) -> "_Waiting":
        """Note in a block that training stands in a collective."""
        return _Waiting(self, what)

    def moved(self) -> None:
        """Note that training got on."""
        self._moved_s = self.world.loop.time()

    def set_waits(self, what: str) -> None:
        """Note in which collective training is; empty: in none."""
        self._waits_in = what
        self.moved()

    @property
    def stands(self) -> bool:
        """Whether it stands still in a recovery, so that it writes no memory."""
        return self._work is not None and self._work.cancelled()

    def _stand(self, order: Stand) -> None:
        """Stop where training is, as `kept.process` does, if this process can go on from there."""
        reason = "" if self._may_stand else "it is not in a loop over protected.steps"
        if self._may_stand and self._work is not None:
            self._work.cancel()
        self.say(Stands(rank=self.start.rank, epoch=order.epoch, reason=reason))

    def _go_on(self, start: WorkerStart, fds: list[int]) -> None:
        """Train with other ranks from the version of another plan."""
        assert not fds
        self.start, self.job = start, self.world.job_of(start)
        self.job.ranks[start.rank] = self
        self.rewinds, self.whole, self._order = 0, NEVER, None
        self.wants_hold = self.is_severed = False
        self._is_kept = True
        self._goes_on.set()

    async def _live(self) -> None:
        beat = asyncio.get_running_loop().create_task(self._beat())
        while True:
            self._work = asyncio.get_running_loop().create_task(self._train())
            await asyncio.wait([self._work])
            if not self._work.cancelled():
                break
            await self._goes_on.wait()
            self._goes_on.clear()
        beat.cancel()
        self.world.loop.soon(self.machine.process, self._end, self._work.result())
        self.kill(is_told=True)

    async def _train(self) -> int:
        """Run the script; return the exit status of the process."""
        try:
            await self._script()
        except PeerLostError:
            await asyncio.sleep(WORD_S)
            self.say(Severed(rank=self.start.rank, epoch=self.start.epoch))
            await asyncio.sleep(SEVERED_S)
        except RejectedError:
            pass
        except GeminiError as error:
            self.say(ScriptError(error=type(error).__name__, text=str(error)))
        else:
            self._may_stand = False
            if self.job.ends_early == (self.start.rank, "process"):
                return 0
            self.say(ScriptFinished(rank=self.start.rank, epoch=self.start.epoch))
            # It serves the others until the root agent has the workers end.
            await asyncio.Event().wait()
        return 1

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            still_s = self.world.loop.time() - self._moved_s
            self.say(
                WorkerPulse(
                    rank=self.start.rank,
                    epoch=self.start.epoch,
                    doing=self._doing,
                    still_s=still_s,
                    idle_s=still_s,
                    waits_in=self._waits_in[:40],
                )
            )

    # -- its script ------------------------------------------------------------------------------

    async def _come(self) -> None:
        """Start, meet the other ranks, and load what the plan says."""
        rng = self.machine.random
        self.moved()
        await asyncio.sleep(rng.uniform(0.001, 0.05) if self._is_kept else rng.uniform(0.1, 1.5))
        if self.start.joins and not self._is_kept:
            self._may_stand = True
            self.say(ReadyToJoin(rank=self.start.rank, epoch=self.start.epoch))
            await asyncio.Event().wait()
        if self._is_kept and self.start.plan.version is None:
            raise RejectedError  # there is no version to go on from in this process
        self._doing = "meeting"
        self.job.is_served |= self.serves
        await self.job.meet(self, "rendezvous")
        self.world.judge.met(self)
        self.serves = False  # another start has another port
        await self._protect()
        self._forget()
        self._doing = "restoring"
        await self._restore()
        states = await self.job.meet(self, "loaded", (self.state, self.version))
        self.world.judge.loaded(self, states)
        self._doing = "step"
        self._may_stand = self.world.shape.keeps

    async def _script(self) -> None:
        await self._come()
        plan = self.start.plan
        if plan.version is not None:
            if plan.tier == "memory" and not plan.cuts:  # else peers have no copies of it yet
                self._note_full()
            self._begin()
            await self._update()
        has_gone_back, obeyed = False, 0
        while True:
            # A version becomes whole while the next iteration computes, or just before.
            is_early = (self.version + self.start.rank) % 3 > 0
            if is_early and not self._is_over():
                self._begin()
            if not has_gone_back:
                await self._replicate()
            if not is_early and not self._is_over():
                self._begin()
            mine = _Asked(self.wants_hold, self._is_over(), self._order)
            asked: list[_Asked] = await self.job.meet(self, ("whole", self.moment), mine)
            self._note_full()
            if any(one.wants_hold for one in asked):
                await self._hold()
            if all(one.is_over for one in asked):
                return
            await self._update()
            if self.job.ends_early is not None and self.job.ends_early[0] == self.start.rank:
                await self._end_early(self.job.ends_early[1])
                return
            orders = [one.order for one in asked]
            order = max((o for o in orders if o), key=lambda o: o.number, default=None)
            newest = None
            if order is not None and order.number > obeyed:
                obeyed, newest = order.number, self.version - order.steps
            elif self.job.wish is not None and self.job.wish[0] == self.version:
                newest = self.version - 1 - self.job.wish[1] if not self.rewinds else None
            by_script = order is None or order.number != obeyed
            has_gone_back = newest is not None and await self._go_back(newest, by_script=by_script)

    async def _end_early(self, how: str) -> None:
        """Come to an end while the others train on: of the data, of the loop, or of the process."""
        rank, epoch = self.start.rank, self.start.epoch
        what: End = "epoch" if how == "data" else "loop"
        self.say(EndReached(rank=rank, epoch=epoch, iteration=self.version, what=what))
        self._doing = "between steps"
        while how == "data":  # it waits for the others at the end of the epoch
            await asyncio.sleep(1.0)

    def _is_over(self) -> bool:
        most = self.world.shape.iterations
        return self.version >= most if most else self.world.is_ending

    @property
    def moment(self) -> tuple[int, int]:
        """How often it went back, and its version."""
        return self.rewinds, self.version

    def _own_lineage(self) -> Lineage:
        run = self.start.order.run
        return Lineage(run=run, epoch=self.start.epoch, rewinds=self.rewinds)

    async def _go_back(self, newest: int, *, by_script: bool) -> bool:
        """Go back to the newest version that will do, as `engine.rewinding` does."""
        offers = set()
        for copy in self._slab.copies():
            if copy.shard == self.start.rank and copy.version <= newest:
                is_good = not self._slab.read(copy.shard, copy.version, copy.lineage).bad_chunks()
                offers |= {(copy.version, copy.lineage)} if is_good else set()
        found = set.intersection(*await self.job.meet(self, ("offers", self.moment), offers))
        if not found:
            self._event(
                events.RewindFailed(
                    rank=self.start.rank,
                    epoch=self.start.epoch,
                    iteration=self.version,
                    cause="person",
                    reason="no memory has it",
                )
            )
            return False
        version, lineage = max(found)
        iteration, data = self.version, self._slab.snapshot(self.start.rank, version, lineage)
        self.state, self.version, _ = PAYLOAD.unpack(bytes(data))
        self.rewinds += 1
        said = events.Rewound(
            rank=self.start.rank,
            epoch=self.start.epoch,
            iteration=iteration,
            version=version,
            rewinds=self.rewinds,
            skips=True,
            cause="script" if by_script else "person",
            duration_s=0.0,
        )
        self.world.judge.rewound(said)
        self._event(said)
        for copy in self._slab.copies():
            if copy.version > version:
                self._slab.discard(copy.shard, copy.version, copy.lineage)
        return True

    async def _protect(self) -> None:
        start = self.start
        settings = Settings.parse(start.order.settings)
        seats = start.seats
        if seats.placement is None:  # rank 0 was told the machines' risk, and tells the others
            risk = self.job.ranks[0].start.seats.risk
            seats = replace(seats, risk=risk).placed(settings)
        self.seats = seats
        kept = seats.kept_shards(start.rank)
        if self.slab is None:
            self.slab = await self._new_slab(kept)
        if (code := self.world.code) != start.code.get(SCRIPT):
            changed = (SCRIPT,) if SCRIPT in start.code else ()
            seen = events.CodeSeen(
                rank=start.rank, epoch=start.epoch, files={SCRIPT: code}, changed=changed
            )
            self._event(seen)
        self._event(
            events.Protected(
                rank=start.rank,
                epoch=start.epoch,
                shard_bytes=PAYLOAD.size,
                settings=settings,
                fingerprint=fingerprint_of([0] * self.job.size),
                placement=seats.holders,
            )
        )
        await self.job.meet(self, "protected")

    async def _new_slab(self, kept: Sequence[int]) -> Slab:
        self.say(
            SlabRequest(
                slots=[SlotWanted(shard, PAYLOAD.size) for shard in kept],
                chunk_bytes=CHUNK_BYTES,
                layout=_layout(self.start.rank, self.job.size),
                replicas=[_layout(shard, self.job.size) for shard in kept[1:]],
            )
        )
        answer, fds = await self._answers.get()
        if isinstance(answer, Refused):
            raise answer.to_error()
        slab = Slab.attach(fds[0])
        os.close(fds[0])
        return slab

    def _forget(self) -> None:
        """Discard what is left behind, as `engine.restore` does."""
        plan, slab = self.start.plan, self._slab
        for copy in slab.copies():
            is_later = plan.version is None or copy.version > plan.version
            if is_later or (copy.version == plan.version and copy.lineage != plan.lineage):
                slab.discard(copy.shard, copy.version, copy.lineage)

    @property
    def _slab(self) -> Slab:
        assert self.slab is not None
        return self.slab

    async def _restore(self) -> None:
        """Load what the plan says."""
        plan, rank = self.start.plan, self.start.rank
        if plan.version is None:
            return
        if plan.tier == "persistent" or plan.cuts:
            self.lineage = self._own_lineage()
            data = await (self._cut(plan.version) if plan.cuts else self._fetch(plan.version))
            self._write(rank, plan.version, self.lineage, data)
            self.world.judge.sealed(plan.version, self.lineage, PAYLOAD.unpack(data)[0])
            self._load(data, "peer" if plan.cuts else "persistent")
            return
        seats, is_sent = self.start.seats, False
        for move in plan.transfers:
            key = ("copy", move.shard, move.sender, move.receiver)
            if seats.rank_on(move.sender, keeping=move.shard) == rank:
                self.job.give(key, self._read(move.shard, plan.version))
            elif seats.rank_on(move.receiver, keeping=move.shard) == rank:
                is_sent |= move.shard == rank
                data = await self.job.fetch(self, key)
                if data is None:
                    self._reject(move.shard, plan.version, move.sender)
                self._write(move.shard, plan.version, plan.lineage, data)
            await asyncio.sleep(self.machine.random.uniform(0, 0.01))
        own = self._read(rank, plan.version)
        if own is None:
            self._reject(rank, plan.version, self.machine.name)
        self._load(own, "peer" if is_sent else "local")
        self.lineage = plan.lineage

    def _read(self, shard: int, version: int) -> bytes | None:
        """Return a copy's bytes; `None` if it differs from its checksums."""
        try:
            return bytes(self._slab.snapshot(shard, version, self.start.plan.lineage))
        except IntegrityError as error:
            if "is not complete here" in str(error):
                self.world.judge.broken(f"{self.process.name}: the plan names a copy: {error}")
            return None

    def _reject(
        self, shard: int, version: int, holder: str | None, *, is_unread: bool = False
    ) -> NoReturn:
        self.say(
            RestoreFailed(
                rank=self.start.rank,
                epoch=self.start.epoch,
                shard=shard,
                version=version,
                holder=holder,
                reason="unusable",
                is_unread=is_unread,
            )
        )
        raise RejectedError

    async def _fetch(self, version: int) -> bytes:
        """Return this rank's shard, as the persistent tier has it or makes it possible."""
        rank, tier = self.start.rank, self.world.tier
        try:
            await tier.reach(None, self.machine)
            there = persistent_tier(tier.url)
            data, _ = there.read_file(version, rank % there.shards(version))
        except GeminiError as error:
            self._reject(rank, version, None, is_unread=not isinstance(error, IntegrityError))
        return PAYLOAD.pack(PAYLOAD.unpack(data)[0], version, rank)

    async def _cut(self, version: int) -> bytes:
        """Return this rank's shard, made of those of another number of ranks."""
        plan, seats = self.start.plan, self.start.seats
        self.say(OldSlabsWanted(ranks=len(plan.cuts)))
        _, fds = await self._answers.get()
        old = {}
        for fd in fds:
            slab = Slab.attach(fd)
            os.close(fd)
            for slot in slab.slots:
                with suppress(IntegrityError):
                    old[slot.shard] = bytes(slab.snapshot(slot.shard, version, plan.lineage))
            slab.close()
        given = await self.job.meet(self, "cuts", old)
        position, states = seats.position_of(self.start.rank), set()
        for cut in plan.cuts:
            name = cut.reader(self.machine.name, number=position)
            data = given[seats.ranks_on(name)[0]].get(cut.shard)
            if data is None:
                self._reject(cut.shard, version, name)
            states.add(PAYLOAD.unpack(data)[0])
        self.world.judge.mixed(self, [*states])
        return PAYLOAD.pack(states.pop(), version, self.start.rank)

    def _load(self, data: bytes | None, tier: Any) -> None:
        assert data is not None
        self.state, self.version, rank = PAYLOAD.unpack(data)
        assert rank == self.start.rank
        self._event(
            events.ShardRestored(
                rank=rank,
                epoch=self.start.epoch,
                shard=rank,
                version=self.version,
                tier=tier,
                holder=None,
                size_bytes=PAYLOAD.size,
                verified=True,
                retrieve_s=0.0,
                verify_s=0.0,
                load_s=0.0,
            )
        )

    async def _replicate(self) -> None:
        """Write the version into the own slab, and have the others write theirs of it."""
        version, moment = self.version, self.moment
        lineage = self.lineage = self._own_lineage()
        buffers = {shard: self._slab.begin(shard, version, lineage) for shard in self._shards}
        states = await self.job.meet(self, ("begun", moment), self.state)
        self.world.judge.mixed(self, states)
        for shard, buffer in buffers.items():
            data = memoryview(PAYLOAD.pack(states[shard], version, shard))
            for part in (slice(0, HALF_BYTES), slice(HALF_BYTES, PAYLOAD.size)):
                await asyncio.sleep(self.machine.random.uniform(0, 0.025))
                buffer.data[part] = data[part]
            buffer.seal(PAYLOAD.size)
            self.world.judge.sealed(version, lineage, states[shard])
        self.whole = moment
        await self.job.meet(self, ("committed", moment))
        self._event(
            events.VersionComplete(
                rank=self.start.rank,
                epoch=self.start.epoch,
                version=version,
                sent_bytes=PAYLOAD.size,
                local_s=0.0,
                duration_s=0.0,
                next_version=version + 1,
            )
        )

    @property
    def _shards(self) -> Sequence[int]:
        return self.seats.kept_shards(self.start.rank)

    def _write(self, shard: int, version: int, lineage: Lineage, data: bytes) -> None:
        buffer = self._slab.begin(shard, version, lineage)
        buffer.data[: PAYLOAD.size] = memoryview(data)
        buffer.seal(PAYLOAD.size)

    def _note_full(self) -> None:
        self.world.judge.note_full(self)

    async def _hold(self) -> None:
        """Stand still until the root agent ends this process."""
        self._doing = "held"
        self.say(Held(rank=self.start.rank, epoch=self.start.epoch, version=self.version))
        await asyncio.Event().wait()

    def _begin(self) -> None:
        self._event(
            events.IterationBegun(
                rank=self.start.rank,
                epoch=self.start.epoch,
                iteration=self.version + 1,
                inputs=events.Inputs(batch=f"{self.version}", random={}, ranks=self.job.size),
            )
        )

    async def _update(self) -> None:
        began_s = self.world.loop.time()
        work_s = self.machine.random.uniform(0.2, 0.6) * self.world.shape.pace
        await asyncio.sleep(work_s * self.machine.slowness)
        mine = self.state, self.machine.name if self.machine.is_wrong else ""
        given = await self.job.meet(self, ("update", self.moment), mine)
        self.world.judge.mixed(self, [state for state, _ in given])
        wrong = tuple(sorted({name for _, name in given if name}))
        if wrong and len(self.start.seats.members) > len(wrong) + 1:  # others can outvote them
            await self._say_wrong(wrong)
        self.version += 1
        self.state = next_state(self.state, self.start.epoch, self.rewinds)
        self.moved()
        self.world.judge.trained(self)
        self._event(
            events.Iteration(
                rank=self.start.rank,
                epoch=self.start.epoch,
                iteration=self.version,
                duration_s=self.world.loop.time() - began_s,
                waited_s=0.0,
                work_s=work_s * self.machine.slowness,
                values={"loss": 1.0 if self.world.is_finite else float("nan")},
            )
        )

    async def _say_wrong(self, nodes: tuple[str, ...]) -> NoReturn:
        """Say which machines compute wrong, and stand still, as `engine.verify` does."""
        said = events.WrongSums(
            rank=self.start.rank,
            epoch=self.start.epoch,
            iteration=self.version + 1,
            work="gradient",
            ranks=(),
            nodes=nodes,
            suspects=(),
            replays=2,
            version=self.version,
            goes_back=True,
            rewinds=self.rewinds,
        )
        self._event(said)
        self._doing = "paused"
        await asyncio.sleep(WRONG_S)
        raise RejectedError

    def sever(self) -> None:
        """Break this rank's connections to the others; all live."""
        self.is_severed = True
        self.say(Severed(rank=self.start.rank, epoch=self.start.epoch))

    def _event(self, event: events.AnyEvent) -> None:
        at_s = self.machine.wall_s()
        self.say(EventSaid(entry=Entry(at_s=at_s, node=self.machine.name, event=event)))


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a rank was asked by the end of an iteration; all ranks exchange it."""

    wants_hold: bool
    is_over: bool
    order: GoBack | None


class _Waiting:
    def __init__(self, rank: VirtualRank, what: str) -> None:
        self._rank, self._what = rank, what

    def __enter__(self) -> None:
        self._rank.set_waits(self._what)

    def __exit__(self, *_: object) -> None:
        self._rank.set_waits("")


def next_state(state: int, epoch: int, rewinds: int) -> int:
    """Return the state after an update in an epoch: after a rewind other batches come."""
    return xxhash.xxh3_64_intdigest(f"{state} {epoch} {rewinds}".encode())


def _layout(rank: int, size: int) -> ShardLayout:
    return ShardLayout(
        rank=rank,
        world_size=size,
        stage=2,
        optimizer="Adam",
        tensors=(),
        small_offset_bytes=0,
        small_capacity_bytes=PAYLOAD.size,
        payload_bytes=PAYLOAD.size,
        weights={},
        pieces=(),
        aliases={},
        frozen=(),
        frozen_digest="",
    )
