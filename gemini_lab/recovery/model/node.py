"""A node: its agent, which obeys roots, and its worker, which trains with the others."""

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.recovery.messages import (
    AllLive,
    CallRoll,
    Commit,
    Committed,
    DamagedCopy,
    Doing,
    EventSaid,
    Fence,
    Fenced,
    FromAgentMessage,
    Hold,
    HoldPort,
    Inventory,
    KeptCopy,
    Persist,
    Persisted,
    PersistFailed,
    PortHeld,
    Release,
    RestoreFailed,
    RootOrder,
    ScriptError,
    ScriptFinished,
    Settle,
    Severed,
    StartWorkers,
    TakeInventory,
    WorkerExited,
    WorkerPulse,
)
from gemini_lab.recovery.messages import Held as HeldSaid
from gemini_lab.recovery.model.machines import (
    ITERATION_S,
    NEVER,
    Job,
    Link,
    Moment,
    Slab,
    Worker,
    Writing,
)
from gemini_lab.recovery.model.truth import BrokenError, Held
from gemini_lab.recovery.plan import CopyTransfer, VersionId
from gemini_lab.recovery.rewinds import joined, left_of
from gemini_lab.shard.layout import ShardRecord
from gemini_lab.shard.lineage import Lineage

if TYPE_CHECKING:
    from gemini_lab.recovery.model.shell import Shell
    from gemini_lab.recovery.model.world import World


class Node:
    """One machine of the lab.

    Attributes:
        is_alive: Whether its memory is there.
        refuses: Whether its machine, when the agent is dead, says that nothing listens.
        is_frozen: Whether every process of it stands still.
        is_cut_off: Whether nothing reaches its agent, nor does it reach any.
        sees_store: Whether it reaches the store.
        epoch: The newest that its agent knows.
        term: Of the newest root that has greeted its agent.
    """

    def __init__(self, name: str, world: "World") -> None:
        self.name = name
        self.world = world
        self.is_alive, self.refuses = True, True
        self.is_frozen = self.is_cut_off = False
        self.sees_store = True
        self.epoch = self.term = 0
        self.link: Link | None = None
        self.worker: Worker | None = None
        self.slab: Slab | None = None
        self.aside: dict[int, Slab] = {}  # of other numbers of ranks
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
    def reaches_store(self) -> bool:
        """Whether it can read and write the store now."""
        return self.can_act and self.sees_store and self.world.store.is_up

    def copies(self) -> list[Held]:
        """What is whole in its memory."""
        slabs = [*([] if self.slab is None else [self.slab]), *self.aside.values()]
        return [copy for slab in slabs for copy in slab.copies()]

    def own_copies(self) -> list[Held]:
        """What of that the number of ranks made that trains here, or did last."""
        return [] if self.slab is None else list(self.slab.copies())

    def turn_to(self, ranks: int) -> None:
        """Workers of so many ranks start, as `MemoryKeeper.turn_to` has it."""
        if self.slab is not None and self.slab.ranks != ranks:
            self.aside[self.slab.ranks] = self.slab
            self.slab = None
        if self.slab is None:
            self.slab = self.aside.pop(ranks, None)

    def told(self, lineage: Lineage) -> Lineage:
        """A lineage as the agents of this world tell it."""
        return lineage if self.world.rules.has_lineage else Lineage(run=lineage.run)

    # -- the agent -----------------------------------------------------------------------------

    def say(self, message: FromAgentMessage) -> None:
        """To the root; nobody hears it while no root is connected."""
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
                self.say(Fenced(epoch=order.epoch))
            case TakeInventory():
                self.say(self._inventory(order))
            case HoldPort():
                self.world.ports += 1
                self.say(PortHeld(epoch=order.epoch, address=f"{self.name}:{self.world.ports}"))
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

    def _ask(self, worker: Worker, order: Hold | CallRoll) -> None:
        if isinstance(order, CallRoll):
            self.say(AllLive(epoch=order.epoch))
            return
        worker.wants_hold = True
        if worker.has_held:
            self._say_held(worker)

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
        self.turn_to(order.seats.world_size)
        key = (order.epoch, order.rendezvous)
        job = self.world.jobs.get(key)
        if job is None:
            job = self.world.jobs[key] = Job(order=order)
        self.worker = Worker(
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

    # -- the persistent tier ---------------------------------------------------------------------

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
            self.say(PersistFailed(epoch=order.epoch, version=order.version, reason="passed"))

    def write(self) -> bool:
        """Finish what is being written to the persistent tier, or fail to."""
        if not self.can_act or not self.writing:
            return False
        order = self.writing.popleft()
        tier = self.world.tier
        if tier.is_full or not tier.is_up:
            self.say(PersistFailed(epoch=order.epoch, version=order.version, reason="full"))
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
            self.say(PersistFailed(epoch=order.epoch, version=order.version, reason="gone"))
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

    def _copy_for(self, order: Persist, shard: int) -> Held | None:
        """The copy that is to be written: of the history that is named, or of the last one."""
        found = [c for c in self.own_copies() if c.version == order.version and c.shard == shard]
        if order.lineage is not None:
            found = [c for c in found if self.told(c.lineage) == order.lineage]
        return max(found, key=lambda c: c.lineage, default=None)

    # -- the worker --------------------------------------------------------------------------------

    def exit_worker(self, code: int, error: ScriptError | None = None) -> None:
        """The worker ends by itself, or by a signal."""
        worker = self.worker
        assert worker is not None
        self.kill_worker()
        if worker.epoch >= self.epoch and worker.status != "finished":
            self.say(
                WorkerExited(
                    rank=worker.rank, epoch=worker.epoch, code=code, output="", error=error
                )
            )

    def sever_worker(self) -> None:
        """The worker's connections to others break, and it lives."""
        if self.worker is not None:
            self.say(Severed(rank=self.worker.rank, epoch=self.worker.epoch))

    def work(self) -> bool:
        """One move of the worker, if it need not wait for the others."""
        worker = self.worker
        if not self.can_act or worker is None or worker.is_hung or worker.status == "finished":
            return False
        moves = (
            self._arrive,
            self._protect,
            self._forget,
            self._restore,
            self._train,
        )
        has_moved = moves[worker.stage](worker)
        if has_moved:
            worker.moved_s = self.world.now_s
        return has_moved

    def watch(self) -> None:
        """The agent tells when its worker comes to stand still, and when it gets on again."""
        worker = self.worker
        if not self.can_act or worker is None or worker.status == "finished":
            return
        still_s = self.world.now_s - worker.moved_s
        seen = "stopped" if worker.is_hung else "waits" if still_s >= 3 else "gets on"
        if worker.told != (seen, self.link):
            worker.told = (seen, self.link)
            self.say(
                WorkerPulse(
                    rank=worker.rank,
                    epoch=worker.epoch,
                    doing=_doing(worker),
                    still_s=still_s if seen == "waits" else 0.0,
                    idle_s=still_s if seen == "waits" else 0.0,
                    waits_in="a collective" if seen == "waits" else "",
                    silent_s=max(still_s, 3.0) if seen == "stopped" else 0.0,
                    is_stopped=seen == "stopped",
                )
            )

    def notice_gone_peers(self) -> bool:
        """A collective fails where a rank is gone."""
        worker = self.worker
        if not self.can_act or worker is None or worker.status == "finished":
            return False
        if worker.is_hung or not worker.job.gone - {worker.rank}:
            return False
        self.exit_worker(1)
        return True

    def _all(self, done: Mapping[int, Moment], least: Moment, job: Job) -> bool:
        return all(done.get(rank, NEVER) >= least for rank in job.seats.ranks)

    def _event(self, event: events.AnyEvent) -> None:
        if isinstance(event, events.Rewound):
            one = left_of(event, run=self.world.order.run)
            self.left = joined(self.left, [one])
            self.world.left = joined(self.world.left, [one])
        self.say(EventSaid(entry=Entry(at_s=self.world.now_s, node=self.name, event=event)))
        if isinstance(event, events.VersionComplete):
            self._write_if_complete()

    def _arrive(self, worker: Worker) -> bool:
        worker.job.reached[worker.rank] = 1
        worker.stage = 1
        return True

    def _protect(self, worker: Worker) -> bool:
        job = worker.job
        if any(job.reached.get(rank, 0) < 1 for rank in job.seats.ranks):
            return False
        settings = self.world.settings
        seats = job.seats if job.seats.placement is not None else job.seats.placed(settings)
        kept = seats.kept_shards(worker.rank)
        if self.slab is None:
            self.slab = Slab(kept, self.world.histories, ranks=seats.world_size)
        elif self.slab.shards != kept:
            if not self.world.rules.lays_out_anew:
                said = ScriptError(error="ConfigError", text="this node keeps other shards")
                self.exit_worker(1, said)
                return True
            self.slab = self.slab.laid_out(kept)
        worker.stage, job.reached[worker.rank] = 2, 2
        self.protected = events.Protected(
            rank=worker.rank,
            epoch=worker.epoch,
            shard_bytes=1,
            settings=settings,
            fingerprint="same",
            placement=seats.holders,
        )
        self._event(self.protected)
        return True

    def _forget(self, worker: Worker) -> bool:
        """Discard what is left behind, as `engine.restore.forget_left_versions` does."""
        plan, slab = worker.plan, self.slab
        assert slab is not None
        for copy in list(slab.copies()):
            is_later = plan.version is None or copy.version > plan.version
            is_other = copy.version == plan.version and self.told(copy.lineage) != plan.lineage
            if is_later or is_other:
                slab.discard(copy)
        worker.stage = 3
        return True

    def _restore(self, worker: Worker) -> bool:
        plan = worker.plan
        if plan.version is None:
            return self._load(worker, None)
        if plan.tier == "persistent":
            return self._fetch(worker, plan.version)
        if plan.cuts:
            return self._recut(worker, plan.version)
        while worker.transfer < len(plan.transfers):
            ended = self._transfer(worker, plan.transfers[worker.transfer], plan.version)
            if ended is not None:
                return ended
            worker.transfer += 1
        copy = self._find(worker.rank, plan.version, plan.lineage)
        if copy is None:
            self.exit_worker(1)
            return True
        if not copy.is_good:
            return self._reject(worker, worker.rank, plan.version, self.name)
        return self._load(worker, copy)

    def _transfer(self, worker: Worker, move: CopyTransfer, version: int) -> bool | None:
        """Send or get one copy; what `_restore` ends with where it cannot go on."""
        assert self.slab is not None
        sent = worker.job.sent
        if move.sender == self.name:
            copy = self._find(move.shard, version, worker.plan.lineage)
            if copy is None:
                self.exit_worker(1)
                return True
            sent[move] = copy
        elif move.receiver == self.name:
            if move not in sent:
                return False
            if not sent[move].is_good:
                return self._reject(worker, move.shard, version, move.sender)
            got = self.slab.begin(move.shard, version, sent[move].lineage, sent[move].state)
            self.slab.commit(got)
        return None

    def _find(self, shard: int, version: int, lineage: Lineage) -> Held | None:
        assert self.slab is not None
        return self.slab.find(shard, version, lineage if self.world.rules.has_lineage else None)

    def _fetch(self, worker: Worker, version: int) -> bool:
        tier = self.world.tier
        if not tier.is_up or version not in tier.versions:
            return self._reject(worker, worker.rank, version, None)
        _, states = tier.versions[version]
        assert self.slab is not None
        lineage = Lineage(run=worker.job.order.order.run, epoch=worker.epoch)
        state = states.get(worker.rank, states[0])  # of another number of ranks it is all the same
        held = self.slab.begin(worker.rank, version, lineage, state)
        self.slab.commit(held)
        return self._load(worker, held)

    def _recut(self, worker: Worker, version: int) -> bool:
        """Make the new shard of all old ones, as `engine.restore.recut` does."""
        job, plan = worker.job, worker.plan
        if any(job.reached.get(rank, 0) < 2 for rank in job.seats.ranks):
            return False
        states = set[int]()
        for cut in plan.cuts:
            name = cut.reader(self.name, number=job.seats.position_of(worker.rank))
            reader = self.world.nodes[name]
            if reader.worker is None or reader.worker.epoch != worker.epoch:
                return False  # who waits for it hears that it is gone
            aside = reader.aside.get(len(plan.cuts))
            lineage = plan.lineage if self.world.rules.has_lineage else None
            copy = None if aside is None else aside.find(cut.shard, version, lineage)
            if copy is None:
                self.exit_worker(1)
                return True
            if not copy.is_good:
                return self._reject(worker, cut.shard, version, name)
            states.add(copy.state)
        if len(states) > 1:
            raise BrokenError(f"shards of the states {states} are cut anew together")
        assert self.slab is not None
        lineage = Lineage(run=job.order.order.run, epoch=worker.epoch)
        held = self.slab.begin(worker.rank, version, lineage, states.pop())
        self.slab.commit(held)
        return self._load(worker, held)

    def _reject(self, worker: Worker, shard: int, version: int, holder: str | None) -> bool:
        self.say(
            RestoreFailed(
                rank=worker.rank,
                epoch=worker.epoch,
                shard=shard,
                version=version,
                holder=holder,
                reason="unusable",
            )
        )
        self.exit_worker(1)
        return True

    def _load(self, worker: Worker, copy: Held | None) -> bool:
        job = worker.job
        worker.state = 0 if copy is None else copy.state
        worker.version = 0 if copy is None else copy.version
        worker.stage, job.loaded[worker.rank] = 4, worker.state
        job.updated[worker.rank] = worker.moment
        job.states[worker.rank, worker.version] = worker.state
        if len(set(job.loaded.values())) > 1:
            raise BrokenError(f"epoch {worker.epoch}: ranks loaded the states {job.loaded}")
        if copy is None:
            self._send(worker)
        else:
            self._event(_restored(worker, self.name))
            is_replicated = worker.plan.tier == "memory" and not worker.plan.cuts
            if is_replicated and len(job.loaded) == job.seats.world_size:
                self.world.note_full(job)
        return True

    def _send(self, worker: Worker) -> None:
        """Begin to move the version just made: its buffers are overwritten from now on."""
        job, slab = worker.job, self.slab
        assert slab is not None
        rewinds = worker.rewinds if self.world.rules.counts_rewinds else 0
        lineage = Lineage(run=job.order.order.run, epoch=worker.epoch, rewinds=rewinds)
        worker.buffers = [
            slab.begin(shard, worker.version, lineage, worker.state) for shard in slab.shards
        ]
        worker.moving, job.begun[worker.rank] = 1, worker.moment

    def _train(self, worker: Worker) -> bool:
        job, version = worker.job, worker.version
        if worker.moving == 0:
            return self._go_back(worker)
        if worker.moving == 1:
            seats = job.seats if job.seats.placement else job.seats.placed(self.world.settings)
            peers = {*seats.peers_that_keep(worker.rank), *seats.kept_shards(worker.rank)}
            if any(job.begun.get(rank, NEVER) < worker.moment for rank in peers):
                return False
            assert self.slab is not None
            for held in worker.buffers:
                held.state = job.states[held.shard, version]
                self.slab.commit(held)
            worker.moving, job.committed[worker.rank] = 2, worker.moment
            if worker.wants_hold:
                job.wants.add(worker.moment)
            return True
        if worker.moving == 2:
            if not self._all(job.committed, worker.moment, job):
                return False
            worker.moving = 3
            if job.full_at < worker.moment:
                job.full_at = worker.moment
                self.world.note_full(job)
            self._event(_complete(worker))
            if worker.holds_at is None and worker.moment in job.wants:
                worker.holds_at = version + 1
            return True
        if version == worker.holds_at and version < self.world.iterations:
            return self._hold(worker)
        if version >= self.world.iterations:
            worker.status = "finished"
            self.say(ScriptFinished(rank=worker.rank, epoch=worker.epoch))
            return True
        return self._update(worker)

    def _hold(self, worker: Worker) -> bool:
        """Stand still, and say so once."""
        is_news, worker.has_held = not worker.has_held, True
        if is_news:
            self._say_held(worker)
        return is_news

    def _say_held(self, worker: Worker) -> None:
        self.say(HeldSaid(rank=worker.rank, epoch=worker.epoch, version=worker.version))

    def _update(self, worker: Worker) -> bool:
        job, version = worker.job, worker.version
        is_computing = self.world.now_s < worker.updated_s + ITERATION_S
        if is_computing or not self._all(job.updated, worker.moment, job):
            return False
        worker.updated_s = self.world.now_s
        inputs = {job.states[rank, version] for rank in job.seats.ranks}
        if len(inputs) > 1:
            raise BrokenError(f"an update of version {version} mixes the states {inputs}")
        worker.state = self.world.histories.update(worker.state, worker.epoch, worker.rewinds)
        worker.version = version + 1
        job.updated[worker.rank] = worker.moment
        job.states[worker.rank, worker.version] = worker.state
        self._event(
            events.Iteration(
                rank=worker.rank,
                epoch=worker.epoch,
                iteration=worker.version,
                duration_s=1.0,
                waited_s=0.0,
            ),
        )
        if job.wish is not None and job.wish[0] == worker.version and not worker.rewinds:
            worker.moving = 0
        else:
            self._send(worker)
        return True

    def _go_back(self, worker: Worker) -> bool:
        """At the loop's top, instead of sending: as `engine.rewinding` does."""
        job, slab = worker.job, self.slab
        assert slab is not None
        assert job.wish is not None
        newest = worker.version - 1 - job.wish[1]
        if worker.rank not in job.offers:
            job.offers[worker.rank] = {
                (copy.version, copy.lineage)
                for copy in slab.copies()
                if copy.shard == worker.rank and copy.is_good and copy.version <= newest
            }
            return True
        if len(job.offers) < job.seats.world_size:
            return False
        found = set.intersection(*job.offers.values())
        if not found:  # nothing to go back to: here training goes on
            self._send(worker)
            return True
        version, lineage = max(found)
        copy = self._find(worker.rank, version, lineage)
        assert copy is not None
        before, worker.version, worker.state = worker.version, version, copy.state
        worker.rewinds, worker.moving = 1, 3
        if worker.holds_at is not None:
            worker.holds_at = version + 1  # not where it was taken back, but after the next update
        job.updated[worker.rank] = worker.moment
        job.states[worker.rank, version] = copy.state
        self._event(_rewound(worker, before))
        for later in [each for each in slab.copies() if each.version > version]:
            slab.discard(later)
        return True


def _rewound(worker: Worker, iteration: int) -> events.Rewound:
    return events.Rewound(
        rank=worker.rank,
        epoch=worker.epoch,
        iteration=iteration,
        version=worker.version,
        rewinds=worker.rewinds,
        skips=True,
        cause="script",
        duration_s=0.0,
    )


def _doing(worker: Worker) -> Doing:
    if worker.has_held:
        return "held"
    return "step" if worker.stage == 4 else "starting"


def _restored(worker: Worker, name: str) -> events.ShardRestored:
    is_sent = any(m.receiver == name and m.shard == worker.rank for m in worker.plan.transfers)
    is_stored = worker.plan.tier == "persistent"
    return events.ShardRestored(
        rank=worker.rank,
        epoch=worker.epoch,
        shard=worker.rank,
        version=worker.version,
        tier="persistent" if is_stored else "peer" if is_sent else "local",
        holder=None,
        size_bytes=1,
        verified=True,
        retrieve_s=0.0,
        verify_s=0.0,
        load_s=0.0,
    )


def _complete(worker: Worker) -> events.VersionComplete:
    return events.VersionComplete(
        rank=worker.rank,
        epoch=worker.epoch,
        version=worker.version,
        sent_bytes=1,
        local_s=0.0,
        duration_s=0.0,
        next_version=worker.version + 1,
    )
