"""A node's agent, which obeys roots."""

from collections import deque
from typing import TYPE_CHECKING

from gemini_lab.log import events
from gemini_lab.recovery.messages import (
    AllLive,
    CallRoll,
    Commit,
    Committed,
    DamagedCopy,
    Fence,
    Fenced,
    FromAgentMessage,
    Held,
    Hold,
    Inventory,
    KeptCopy,
    Persist,
    Persisted,
    Release,
    RootOrder,
    SaveFailed,
    ScriptError,
    Settle,
    StartWorkers,
    TakeInventory,
    WorkerEnded,
)
from gemini_lab.recovery.plan import VersionId
from gemini_lab.shard.layout import ShardRecord
from gemini_lab.shard.lineage import Lineage
from gemini_lab_course.model.machines import (
    Link,
    ModelledJob,
    ModelledSlab,
    ModelledWorker,
    Writing,
)
from gemini_lab_course.model.truth import BrokenError, HeldVersion

if TYPE_CHECKING:
    from gemini_lab_course.model.judged import JudgedWorld
    from gemini_lab_course.model.shell import Shell

WELL_S = 100.0  # longer than three of the longest pauses between two starts


class AgentNode:
    """One machine of the lab.

    Attributes:
        is_alive: Whether its memory is there.
        refuses: Whether its machine, when the agent is dead, says that nothing listens.
        is_frozen: Whether every process of it stands still.
        is_cut_off: Whether nothing reaches its agent, nor does it reach any.
        sees_store: Whether it reaches the store.
        lacks: Whether no worker can be started on it, as its machine lacks memory or processes.
        well_since_s: When that was over last.
        epoch: The newest that its agent knows.
        term: Of the newest root that has greeted its agent.
    """

    def __init__(self, name: str, world: "JudgedWorld") -> None:
        self.name = name
        self.world = world
        self.is_alive, self.refuses = True, True
        self.is_frozen = self.is_cut_off = False
        self.sees_store = True
        self.lacks, self.well_since_s = False, 0.0
        self.epoch = self.term = 0
        self.link: Link | None = None
        self.worker: ModelledWorker | None = None
        self.slab: ModelledSlab | None = None
        self.aside: dict[int, ModelledSlab] = {}  # of other numbers of ranks
        self.shell: Shell | None = None
        self.is_store_away = False
        self.settled_s = 0.0
        self.expected: Persist | None = None
        self.writing: deque[Writing] = deque()
        self.protected: events.Protected | None = None
        self.left: tuple[VersionId, ...] = ()  # what its workers said of rewinds

    @property
    def can_act(self) -> bool:
        """Whether its processes run."""
        return self.is_alive and not self.is_frozen

    @property
    def is_well(self) -> bool:
        """Whether workers could be started on it for long enough that a run should have tried."""
        is_reached = self.can_act and not self.is_cut_off and self.sees_store
        is_free = not self.lacks and self.name not in self.world.store.drains
        return is_reached and is_free and self.world.now_s - self.well_since_s >= WELL_S

    @property
    def reaches_store(self) -> bool:
        """Whether it can read and write the store now."""
        return self.can_act and self.sees_store and self.world.store.is_up

    def copies(self) -> list[HeldVersion]:
        """Return what is whole in its memory."""
        slabs = [*([] if self.slab is None else [self.slab]), *self.aside.values()]
        return [copy for slab in slabs for copy in slab.copies()]

    def own_copies(self) -> list[HeldVersion]:
        """Return what of that the number of ranks made that trains here, or did last."""
        return [] if self.slab is None else list(self.slab.copies())

    def turn_to(self, ranks: int) -> None:
        """Workers of so many ranks start, as `MemoryManager.turn_to` has it."""
        if self.slab is not None and self.slab.ranks != ranks:
            self.aside[self.slab.ranks] = self.slab
            self.slab = None
        if self.slab is None:
            self.slab = self.aside.pop(ranks, None)

    def told(self, lineage: Lineage) -> Lineage:
        """Return a lineage as the agents of this world tell it."""
        return lineage if self.world.rules.has_lineage else Lineage(run=lineage.run)

    # -- its orders --------------------------------------------------------------------------------

    def say(self, message: FromAgentMessage) -> None:
        """Send a message to the root; it is lost while no root is connected."""
        if self.link is not None and not self.link.is_broken:
            self.link.to_root.append(message)

    def hear(self) -> bool:
        """Obey the next order."""
        if not self.can_act or self.is_cut_off or self.link is None or not self.link.to_agent:
            return False
        self.obey(self.link.to_agent.popleft())
        return True

    def obey(self, order: RootOrder) -> None:
        if order.epoch < self.epoch:
            return
        self.epoch = order.epoch
        match order:
            case Fence():
                self.expected = None
                self.kill_worker()
                self.world.ports += 1
                self.say(Fenced(epoch=order.epoch, address=f"{self.name}:{self.world.ports}"))
            case TakeInventory():
                self.say(self._inventory(order))
            case StartWorkers():
                self._start_worker(order)
            case Hold() | CallRoll() if self.worker is not None:
                self._ask(self.worker, order)
            case Persist():
                self.expected = order
                self._write_if_complete()
            case Commit():
                self.writing.append(order)
            case Settle():
                self.aside = {n: slab for n, slab in self.aside.items() if n == order.ranks}
                if self.slab is not None and self.slab.ranks != order.ranks:
                    self.slab = None
            case Release():
                self.kill_worker()
                self.slab, self.left = None, ()
                self.aside.clear()
                self.world.safety.is_excused = True

    def _ask(self, worker: ModelledWorker, order: Hold | CallRoll) -> None:
        if isinstance(order, CallRoll):
            self.say(AllLive(epoch=order.epoch))
            return
        worker.wants_hold = True
        if worker.has_held:
            self._say_held(worker)

    def _say_held(self, worker: ModelledWorker) -> None:
        self.say(Held(rank=worker.rank, epoch=worker.epoch, version=worker.version))

    def _inventory(self, order: TakeInventory) -> Inventory:
        copies = self.copies()
        tier, asked = self.world.tier, order.persistent_url is not None
        is_read = asked and (tier.is_up or self.world.rules.takes_unread_for_empty)
        return Inventory(
            epoch=order.epoch,
            copies=[
                KeptCopy(c.shard, c.version, self.told(c.lineage), c.ranks)
                for c in copies
                if c.is_good
            ],
            damaged=[
                DamagedCopy(c.shard, c.version, self.told(c.lineage), 0)
                for c in copies
                if not c.is_good
            ],
            persistent=(tier.stored() if tier.is_up else []) if is_read else None,
            unread="503" if asked and not is_read else "",
            left=[*self.left] if self.world.rules.keeps_rewinds else [],
            protected=self.protected if order.asks_settings and copies else None,
        )

    def _start_worker(self, order: StartWorkers) -> None:
        (rank,) = order.seats.ranks_on(self.name)
        if self.worker is not None:
            raise BrokenError(
                f"{self.name} starts rank {rank} of epoch {order.epoch} while rank "
                f"{self.worker.rank} of epoch {self.worker.epoch} still writes its memory"
            )
        if self.lacks:
            said = ScriptError(error="CapacityError", text="its process could not be started")
            self.say(WorkerEnded(rank=rank, epoch=order.epoch, code=1, output="", error=said))
            return
        self.turn_to(order.seats.world_size)
        key = (order.epoch, order.rendezvous)
        job = self.world.jobs.get(key)
        if job is None:
            job = self.world.jobs[key] = ModelledJob(order=order)
        self.worker = ModelledWorker(
            rank=rank, epoch=order.epoch, job=job, plan=order.plan, moved_s=self.world.now_s
        )

    def kill_worker(self) -> None:
        """End the worker, if there is one."""
        if self.worker is not None:
            self.worker.job.gone.add(self.worker.rank)
            self.worker = None

    def end_older_worker(self) -> None:
        """End a worker of an epoch that the store says is over."""
        state = self.world.store.state
        if state is not None and state.epoch > self.epoch and self.worker is not None:
            self.epoch = state.epoch
            self.kill_worker()

    # -- the persistent tier -----------------------------------------------------------------------

    def _has(self, order: Persist) -> bool:
        found = {c.shard for c in self.own_copies() if c.version == order.version}
        return self.slab is not None and found >= {*(order.shards or self.slab.shards[:1])}

    def _has_passed(self, version: int) -> bool:
        own = (
            []
            if self.slab is None
            else [c for c in self.own_copies() if c.shard == self.slab.shards[0]]
        )
        return any(copy.version > version for copy in own)

    def _write_if_complete(self) -> None:
        if self.expected is not None and self._has(self.expected):
            self.writing.append(self.expected)
            self.expected = None
        elif self.expected is not None and self._has_passed(self.expected.version):
            order, self.expected = self.expected, None
            self.say(SaveFailed(epoch=order.epoch, version=order.version, reason="passed"))

    def write(self) -> bool:
        """Finish what is being written to the persistent tier, or fail to."""
        if not self.can_act or not self.writing:
            return False
        order = self.writing.popleft()
        tier = self.world.tier
        if tier.is_full or not tier.is_up:
            self.say(SaveFailed(epoch=order.epoch, version=order.version, reason="full"))
        elif isinstance(order, Commit):
            tier.commit(order)
            self.say(Committed(epoch=order.epoch, version=order.version, size_bytes=1))
        else:
            self._write_shard(order)
        return True

    def _write_shard(self, order: Persist) -> None:
        own = -1 if self.slab is None else self.slab.shards[0]
        chosen = [self._copy_for(order, shard) for shard in order.shards or [own]]
        copies = [copy for copy in chosen if copy is not None and copy.is_good]
        if len(copies) < len(chosen):
            self.say(SaveFailed(epoch=order.epoch, version=order.version, reason="gone"))
            return
        self.say(
            Persisted(
                epoch=order.epoch,
                version=order.version,
                lineage=self.told(copies[0].lineage),
                records=[
                    ShardRecord(shard=copy.shard, file=str(copy.state), size_bytes=1, digest="")
                    for copy in copies
                ],
            )
        )

    def _copy_for(self, order: Persist, shard: int) -> HeldVersion | None:
        """Return the copy to be written: of the named history, or of the last one."""
        found = [c for c in self.own_copies() if c.version == order.version and c.shard == shard]
        if order.lineage is not None:
            found = [c for c in found if self.told(c.lineage) == order.lineage]
        return max(found, key=lambda c: c.lineage, default=None)
