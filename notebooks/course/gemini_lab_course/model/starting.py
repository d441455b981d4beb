"""How a node's worker starts: it meets the others, and loads what the plan says."""

from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.recovery.discarded_versions import joined, left_of
from gemini_lab.recovery.messages import EventSaid, RestoreFailed, ScriptError, WorkerEnded
from gemini_lab.recovery.plan import CopyTransfer
from gemini_lab.shard.lineage import Lineage
from gemini_lab_course.model.agent import AgentNode
from gemini_lab_course.model.machines import ModelledSlab, ModelledWorker
from gemini_lab_course.model.truth import BrokenError, HeldVersion


class StartingNode(AgentNode):
    """A node whose worker starts."""

    def exit_worker(self, code: int, error: ScriptError | None = None) -> None:
        """End the worker by itself, or by a signal."""
        worker = self.worker
        assert worker is not None
        self.kill_worker()
        if worker.epoch >= self.epoch and worker.status != "finished":
            self.say(
                WorkerEnded(rank=worker.rank, epoch=worker.epoch, code=code, output="", error=error)
            )

    def _event(self, event: events.AnyEvent) -> None:
        if isinstance(event, events.Rewound):
            one = left_of(event, run=self.world.order.run)
            self.left = joined(self.left, [one])
            self.world.left = joined(self.world.left, [one])
        self.say(EventSaid(entry=Entry(at_s=self.world.now_s, node=self.name, event=event)))
        if isinstance(event, events.VersionComplete):
            self._write_if_complete()

    def _arrive(self, worker: ModelledWorker) -> bool:
        worker.job.reached[worker.rank] = 1
        worker.stage = 1
        return True

    def _protect(self, worker: ModelledWorker) -> bool:
        job = worker.job
        if any(job.reached.get(rank, 0) < 1 for rank in job.seats.ranks):
            return False
        settings = self.world.settings
        seats = job.seats if job.seats.placement is not None else job.seats.placed(settings)
        kept = seats.kept_shards(worker.rank)
        if self.slab is None:
            self.slab = ModelledSlab(kept, self.world.histories, ranks=seats.world_size)
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

    def _forget(self, worker: ModelledWorker) -> bool:
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

    def _restore(self, worker: ModelledWorker) -> bool:
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

    def _transfer(self, worker: ModelledWorker, move: CopyTransfer, version: int) -> bool | None:
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

    def _find(self, shard: int, version: int, lineage: Lineage) -> HeldVersion | None:
        assert self.slab is not None
        return self.slab.find(shard, version, lineage if self.world.rules.has_lineage else None)

    def _fetch(self, worker: ModelledWorker, version: int) -> bool:
        tier = self.world.tier
        if not tier.is_up or tier.is_mute or version not in tier.versions:
            return self._reject(worker, worker.rank, version, None)
        _, states = tier.versions[version]
        assert self.slab is not None
        lineage = Lineage(run=worker.job.order.order.run, epoch=worker.epoch)
        state = states.get(worker.rank, states[0])  # of another number of ranks it is all the same
        held = self.slab.begin(worker.rank, version, lineage, state)
        self.slab.commit(held)
        return self._load(worker, held)

    def _recut(self, worker: ModelledWorker, version: int) -> bool:
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
            raise BrokenError(f"shards of the states {states} are cut again together")
        assert self.slab is not None
        lineage = Lineage(run=job.order.order.run, epoch=worker.epoch)
        held = self.slab.begin(worker.rank, version, lineage, states.pop())
        self.slab.commit(held)
        return self._load(worker, held)

    def _reject(self, worker: ModelledWorker, shard: int, version: int, holder: str | None) -> bool:
        self.say(
            RestoreFailed(
                rank=worker.rank,
                epoch=worker.epoch,
                shard=shard,
                version=version,
                holder=holder,
                reason="unusable",
                is_unread=holder is None,
            )
        )
        self.exit_worker(1)
        return True

    def _load(self, worker: ModelledWorker, copy: HeldVersion | None) -> bool:
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

    def _send(self, worker: ModelledWorker) -> None:
        """Begin to move the version just made: its buffers are overwritten from now on."""
        job, slab = worker.job, self.slab
        assert slab is not None
        rewinds = worker.rewinds if self.world.rules.counts_rewinds else 0
        lineage = Lineage(run=job.order.order.run, epoch=worker.epoch, rewinds=rewinds)
        worker.buffers = [
            slab.begin(shard, worker.version, lineage, worker.state) for shard in slab.shards
        ]
        worker.moving, job.begun[worker.rank] = 1, worker.moment


def _restored(worker: ModelledWorker, name: str) -> events.ShardRestored:
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
