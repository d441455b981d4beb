"""A node: its agent, which obeys roots, and its worker, which trains with the others."""

from collections.abc import Mapping

from gemini_lab.log import events
from gemini_lab.recovery.messages import Doing, ScriptFinished, Severed, WorkerPulse
from gemini_lab_course.model.machines import ITERATION_S, NEVER, ModelledJob, ModelledWorker, Moment
from gemini_lab_course.model.starting import StartingNode
from gemini_lab_course.model.truth import BrokenError


class Node(StartingNode):
    """One machine of the lab, whose worker trains."""

    def sever_worker(self) -> None:
        """Break the worker's connections to others; it lives."""
        if self.worker is not None:
            self.say(Severed(rank=self.worker.rank, epoch=self.worker.epoch))

    def work(self) -> bool:
        """Return one move of the worker, if it need not wait for the others."""
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
        """Tell when the worker comes to stand still, and when it gets on again."""
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
        """Return a collective fails where a rank is gone."""
        worker = self.worker
        if not self.can_act or worker is None or worker.status == "finished":
            return False
        if worker.is_hung or not worker.job.gone - {worker.rank}:
            return False
        self.exit_worker(1)
        return True

    def _all(self, done: Mapping[int, Moment], least: Moment, job: ModelledJob) -> bool:
        return all(done.get(rank, NEVER) >= least for rank in job.seats.ranks)

    def _train(self, worker: ModelledWorker) -> bool:
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

    def _hold(self, worker: ModelledWorker) -> bool:
        """Stand still, and say so once."""
        is_news, worker.has_held = not worker.has_held, True
        if is_news:
            self._say_held(worker)
        return is_news

    def _update(self, worker: ModelledWorker) -> bool:
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

    def _go_back(self, worker: ModelledWorker) -> bool:
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


def _rewound(worker: ModelledWorker, iteration: int) -> events.Rewound:
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


def _doing(worker: ModelledWorker) -> Doing:
    if worker.has_held:
        return "held"
    return "step" if worker.stage == 4 else "starting"


def _complete(worker: ModelledWorker) -> events.VersionComplete:
    return events.VersionComplete(
        rank=worker.rank,
        epoch=worker.epoch,
        version=worker.version,
        sent_bytes=1,
        local_s=0.0,
        duration_s=0.0,
        next_version=worker.version + 1,
    )
