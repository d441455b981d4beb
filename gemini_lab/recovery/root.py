"""The root agent's decisions (paper, section 6): what happens becomes what is to be done.

`RootAgent.handle` takes one happening and returns instructions; it does no I/O and reads no clock,
so a story of happenings is a test. What must outlive the root is in `RunState`, which a shell
writes to the store, fenced by the root's own key, before it carries out what follows it.

A run moves through phases:

    idle -> fencing -> inventory -> (waiting) -> rendezvous -> starting -> running
                ^__________________________________________________________|   any failure
    running -> finishing -> done;   anything -> failed

A failure in any phase begins again at fencing, with the next epoch; every step can be repeated.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from gemini_lab.log import events
from gemini_lab.placement import Placement, plan_placement
from gemini_lab.recovery.plan import Copy, RecoveryPlan, plan_recovery
from gemini_lab.recovery.progress import Progress
from gemini_lab.recovery.protocol import (
    ACTIVE,
    RESTARTING,
    Emit,
    FromAgent,
    HangUp,
    Happening,
    Instruction,
    JobCancelled,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    Phase,
    RequestNodes,
    RunState,
    Send,
    Tick,
    WriteState,
    in_order,
)
from gemini_lab.recovery.saver import Saver
from gemini_lab.recovery.told import planned

MAX_ATTEMPTS: Final = 3  # script errors in a row without a new iteration: the run is given up
MAX_KILLS: Final = 10  # the same for workers that a signal ended
FINAL_ERRORS: Final = frozenset({"ConfigError", "UnsupportedError", "CapacityError"})
MAX_RESTORE_FAILURES: Final = 2  # after these a version is not tried again
PHASE_LIMIT_S: Final = 60.0  # an agent that answers nothing for so long counts as lost
FINISH_LIMIT_S: Final = 600.0  # for the last version's way to the persistent tier


class RootAgent:
    """The root agent, as a state machine.

    Args:
        state: Where the previous root left the run.
        at_s: Now.
    """

    def __init__(self, *, state: RunState, at_s: float) -> None:
        self.state = state
        self.living: dict[str, NodeJoined] = {}
        self._answers: dict[str, dict[str, Any]] = {}  # this phase's, by node
        self._entered_s = at_s
        self._plan: RecoveryPlan | None = None
        self._inventory: dict[str, dict[str, Any]] = {}
        self._progress = Progress()
        self._protected: set[int] = set()
        self._restored: set[int] = set()
        self._finished: set[int] = set()
        self._saver = Saver(last_s=at_s)

    # -- happenings ------------------------------------------------------------------------

    def handle(self, happening: Happening) -> list[Instruction]:
        """What is to be done now that `happening` happened."""
        match happening:
            case NodeJoined():
                return list(self._on_joined(happening))
            case NodeLost():
                return list(self._on_lost(happening))
            case JobSubmitted():
                return list(self._on_job(happening))
            case JobCancelled():
                return list(self._on_cancel(happening.at_s))
            case Tick():
                return list(self._on_tick(happening.at_s))
            case FromAgent():
                return list(self._on_message(happening))

    def take_over(self, at_s: float) -> list[Instruction]:
        """Go on where the previous root stopped; `living` was filled by NodeJoined before."""
        phase = self.state.phase
        if phase not in ACTIVE and phase != "finishing":
            return []
        lost = [node for node in self.state.members if node is not None and node not in self.living]
        if lost:
            gone = [Emit(event=events.NodeLost(name=n, cause="connection")) for n in lost]
            return [*gone, *self._begin(at_s, cause="node_lost", lost=lost)]
        if phase in RESTARTING:
            return list(self._begin(at_s, cause="root_lost", lost=[]))
        working = {
            int(rank): status for joined in self.living.values() if joined.epoch == self.state.epoch
            for rank, status in joined.workers.items()
        }  # fmt: skip
        if phase == "running" and working.keys() < set(self.state.ranks):
            return list(self._begin(at_s, cause="worker_exited", lost=[]))
        self._finished = {rank for rank, status in working.items() if status == "finished"}
        self._protected = set(self.state.ranks)
        return list(self._finish_if_all_did(at_s))

    def _on_joined(self, joined: NodeJoined) -> Iterator[Instruction]:
        was_known = joined.node in self.living
        self.living[joined.node] = joined
        if was_known:
            yield from self._on_relinked(joined)
            return
        yield Emit(event=events.NodeJoined(name=joined.node))
        if self.state.phase == "waiting":
            yield from self._decide(joined.at_s)
        elif self.state.phase in {"fencing", "inventory"}:
            yield self._question(joined.node)

    def _on_relinked(self, joined: NodeJoined) -> Iterator[Instruction]:
        """A connection broke and came back: what was said in between is in `workers`."""
        phase = self.state.phase
        if phase in {"fencing", "inventory", "rendezvous"}:
            yield from self._begin(joined.at_s, cause="link_cut", lost=[])
        elif phase in {"starting", "running"} and joined.node in self.state.members:
            self._finished |= {int(r) for r, s in joined.workers.items() if s == "finished"}
            if not set(self._ranks_on(joined.node)) <= {int(rank) for rank in joined.workers}:
                yield from self._begin(joined.at_s, cause="worker_exited", lost=[])
            else:
                yield from self._finish_if_all_did(joined.at_s)

    def _on_lost(self, lost: NodeLost) -> Iterator[Instruction]:
        if self.living.pop(lost.node, None) is None:
            return
        yield Emit(event=events.NodeLost(name=lost.node, cause=lost.cause))
        if lost.node in self.state.members and self.state.phase in ACTIVE:
            yield from self._begin(lost.at_s, cause="node_lost", lost=[lost.node])
        elif self.state.phase in {"fencing", "inventory"}:
            self._answers.pop(lost.node, None)
            yield from self._advance(lost.at_s)
        elif self.state.phase in ACTIVE:
            yield from self._ask_for_nodes(f"{lost.node}, a standby, is gone")

    def _on_job(self, submitted: JobSubmitted) -> Iterator[Instruction]:
        job = submitted.job
        present = in_order(self.living)[: job["nodes"]]
        self._saver = Saver(last_s=submitted.at_s)
        self.state = RunState(
            epoch=self.state.epoch,
            job=job,
            members=(*present, *[None] * (job["nodes"] - len(present))),
        )
        yield from self._begin(submitted.at_s, cause="start", lost=[])

    def _on_cancel(self, at_s: float) -> Iterator[Instruction]:
        if self.state.phase in ACTIVE:
            yield from self._fail(at_s, "the run was stopped by its owner")

    def _on_message(self, said: FromAgent) -> Iterator[Instruction]:
        message = said.message
        if message.get("epoch", self.state.epoch) != self.state.epoch:
            return  # from before a fence
        match message["op"]:
            case "stopped" | "inventory" | "rendezvous":
                if message["op"] == {"fencing": "stopped"}.get(self.state.phase, self.state.phase):
                    self._answers[said.node] = message
                    yield from self._advance(said.at_s)
            case "event":
                yield from self._on_event(said.at_s, message)
            case "exited":
                yield from self._on_exit(said.at_s, said.node, message)
            case "finished":
                self._finished.add(message["rank"])
                yield from self._finish_if_all_did(said.at_s)
            case "restore_failed":
                yield from self._on_restore_failed(said.at_s, message)
            case "persisted" | "persist_failed" | "committed":
                yield from self._on_persistence(said.at_s, said.node, message)

    # -- a restart, step by step -----------------------------------------------------------------

    def _begin(self, at_s: float, *, cause: str, lost: Sequence[str]) -> Iterator[Instruction]:
        """Fence: the next epoch begins, all workers of older ones end."""
        state = self.state
        is_start = cause == "start"
        recovery = state.recovery
        if recovery is None and not is_start:
            recovery = {"cause": cause, "lost": list(lost), "at_s": at_s}
            state = replace(state, recoveries=state.recoveries + 1)
            yield Emit(
                event=events.RecoveryStarted(
                    recovery=state.recoveries,
                    epoch=state.epoch + 1,
                    cause=cause,
                    lost=tuple(lost),
                    failed_at_s=at_s,
                    iteration=state.iteration,
                )
            )
        elif recovery is not None:
            recovery = {**recovery, "lost": [*recovery["lost"], *lost]}
        self.state = replace(state, epoch=state.epoch + 1, recovery=recovery)
        yield from self._enter("fencing", at_s)
        self._plan = None
        self._protected, self._restored, self._finished = set(), set(), set()
        self._saver.cancel()
        for node in self.living:
            yield self._question(node)
        yield from self._advance(at_s)

    def _question(self, node: str) -> Send:
        """What every living agent is asked in this phase, latecomers too."""
        op = "stop" if self.state.phase == "fencing" else "inventory"
        message = {"op": op, "epoch": self.state.epoch}
        return Send(to=node, message=message)

    def _enter(self, phase: Phase, at_s: float) -> Iterator[Instruction]:
        if self.state.phase in RESTARTING and phase != "fencing":
            yield self._step(self.state.phase, at_s)
        self.state = replace(self.state, phase=phase)
        self._entered_s = at_s
        self._answers = {}
        yield WriteState(state=self.state)

    def _step(self, name: str, end_s: float) -> Emit:
        names = {"fencing": "fence", "rendezvous": "plan", "waiting": "reserve"}
        return Emit(
            event=events.RecoveryStep(
                recovery=self._number(),
                epoch=self.state.epoch,
                step=names.get(name, name),
                start_s=self._entered_s,
                end_s=end_s,
            )
        )

    def _number(self) -> int:
        """The recovery under way; 0 is the first start."""
        return self.state.recoveries if self.state.recovery is not None else 0

    def _advance(self, at_s: float) -> Iterator[Instruction]:
        """Go to the next phase when everybody who was asked has answered."""
        phase = self.state.phase
        if phase == "fencing" and self._answers.keys() >= self.living.keys():
            yield from self._enter("inventory", at_s)
            for node in self.living:
                yield self._question(node)
        elif phase == "inventory" and self._answers.keys() >= self.living.keys():
            self._inventory = dict(self._answers)
            if self._needs_storage():
                yield self._ask_storage()
            else:
                yield from self._decide(at_s)
        elif phase == "rendezvous" and self._answers:
            yield from self._start(at_s, next(iter(self._answers.values()))["address"])

    def _needs_storage(self) -> bool:
        """Whether memory does not suffice and nobody has looked into the persistent tier yet.

        A tier that is slow to answer holds up no recovery that can do without it.
        """
        if self.state.read_settings().persistent_url is None:
            return False
        is_known = any("persistent" in answer for answer in self._inventory.values())
        return not is_known and self._make_plan().tier != "memory"

    def _ask_storage(self) -> Send:
        """Have one agent answer again, with the versions that the persistent tier has."""
        node = in_order(self.living)[0]
        del self._answers[node]
        url = self.state.read_settings().persistent_url
        return Send(
            to=node,
            message={"op": "inventory", "epoch": self.state.epoch, "persistent_url": url},
        )

    def _decide(self, at_s: float) -> Iterator[Instruction]:
        """Plan; then hold a port for the rendezvous, or wait for machines."""
        if self.state.phase == "inventory":
            yield from self._report_bad_copies()
        before = self.state.members
        self._plan = plan = self._make_plan()
        self.state = replace(self.state, members=plan.members)
        spares = [node for node in self.living if node not in plan.members]
        if plan.missing:
            if self.state.phase != "waiting":
                yield from self._enter("waiting", at_s)
            yield Emit(
                event=events.RecoveryWaiting(
                    recovery=self._number(),
                    epoch=self.state.epoch,
                    missing=plan.missing,
                    standbys=tuple(spares),
                )
            )
            yield from self._ask_for_nodes(f"positions {list(plan.missing)} have no machine")
            return
        yield from self._enter("rendezvous", at_s)
        yield Emit(event=planned(plan, recovery=self._number(), epoch=self.state.epoch))
        ready = [node for node in plan.members if node in before]  # a new machine still imports
        host = (ready or plan.members)[0]
        yield Send(to=str(host), message={"op": "rendezvous", "epoch": self.state.epoch})
        if len(spares) < self.state.the_job["standbys"]:
            yield from self._ask_for_nodes("a standby was used")

    def _make_plan(self) -> RecoveryPlan:
        bad = set(self.state.bad_copies)
        copies = [
            Copy(shard=shard, version=version, node=node)
            for node, answer in self._inventory.items()
            for shard, version in answer["copies"]
            if (shard, version, node) not in bad
        ]
        stored = [v for a in self._inventory.values() for v in a.get("persistent") or []]
        return plan_recovery(
            placement=self.placement(),
            members=self.state.members,
            copies=copies if self.state.settings else [],
            living=self.living,
            standbys=in_order(self.living),
            persistent=stored,
            rejected=self.state.rejected,
            workers_per_node=self.state.the_job["workers_per_node"],
        )

    def _report_bad_copies(self) -> Iterator[Instruction]:
        for node, answer in self._inventory.items():
            for shard, version, chunk in answer["damaged"]:
                yield Emit(
                    event=events.ReplicaRejected(
                        recovery=self._number(),
                        epoch=self.state.epoch,
                        shard=shard,
                        version=version,
                        holder=node,
                        chunk=chunk,
                        reason=f"chunk {chunk} failed its checksum",
                    )
                )

    def _start(self, at_s: float, address: str) -> Iterator[Instruction]:
        assert self._plan is not None
        yield from self._enter("starting", at_s)
        self._progress.restart(self.state.ranks, iteration=self._plan.version or 0, at_s=at_s)
        message = {
            "op": "start", "epoch": self.state.epoch, "job": self.state.the_job,
            "rendezvous": address, "plan": self._plan.to_json(),
            "fingerprint": self.state.fingerprint,
        }  # fmt: skip
        for node in dict.fromkeys(self.state.members):
            yield Send(to=str(node), message=message)

    # -- what workers say --------------------------------------------------------------------

    def _on_event(self, at_s: float, message: dict[str, Any]) -> Iterator[Instruction]:
        data = message["data"]
        rank = data.get("rank")
        match message["kind"]:
            case "protected":
                yield from self._on_protected(at_s, rank, data)
            case "shard_restored":
                self._restored.add(rank)
                if self._restored == set(self.state.ranks):
                    yield self._step("retrieve", at_s)
                    self._entered_s = at_s
            case "iteration" if not data.get("restored"):
                yield from self._on_iteration(at_s, rank, data)
            case "version_complete":
                self._saver.note_complete(data["version"], next_version=data.get("next_version", 0))

    def _on_protected(self, at_s: float, rank: int, data: dict[str, Any]) -> Iterator[Instruction]:
        self._protected.add(rank)
        if self.state.settings is None:
            self.state = replace(
                self.state, settings=data["settings"], fingerprint=data["fingerprint"]
            )
            yield WriteState(state=self.state)
        if self._protected == set(self.state.ranks) and self.state.phase == "starting":
            yield self._step("start", at_s)
            self._entered_s = at_s

    def _on_iteration(self, at_s: float, rank: int, data: dict[str, Any]) -> Iterator[Instruction]:
        self._progress.note(rank, data["iteration"], at_s=at_s, duration_s=data["duration_s"])
        done = self._progress.done
        started_from = (self._plan.version or 0) if self._plan else 0
        if self.state.phase == "starting" and done > started_from:
            yield from self._resumed(at_s, done)
        elif self.state.phase == "running" and done > self.state.iteration:
            self.state = replace(self.state, iteration=done, attempts=0)

    def _resumed(self, at_s: float, iteration: int) -> Iterator[Instruction]:
        assert self._plan is not None
        yield self._step("warm_up", at_s)
        recovery, number, reached = self.state.recovery, self._number(), self.state.iteration
        self.state = replace(
            self.state, phase="running", recovery=None, iteration=iteration, attempts=0
        )
        yield WriteState(state=self.state)
        if recovery is not None:
            version = self._plan.version or 0
            yield Emit(
                event=events.RecoveryFinished(
                    recovery=number,
                    epoch=self.state.epoch,
                    version=version,
                    iteration=iteration,
                    duration_s=at_s - recovery["at_s"],
                    lost_iterations=max(0, reached - version),
                )
            )

    def _on_exit(self, at_s: float, node: str, message: dict[str, Any]) -> Iterator[Instruction]:
        if self.state.phase not in {"starting", "running"} or message["rank"] in self._finished:
            return
        attempts = self.state.attempts + 1
        self.state = replace(self.state, attempts=attempts)
        error = message.get("error") or {}
        is_final = error.get("type") in FINAL_ERRORS
        if is_final or attempts >= (MAX_ATTEMPTS if message["code"] > 0 else MAX_KILLS):
            output = message["output"].splitlines()
            last = next((line.strip() for line in reversed(output) if line.strip()), "no output")
            told = f"{error['type']}: {error['text']}" if is_final else last
            times = "" if is_final else f" (failure {attempts} without a new iteration)"
            where = f"rank {message['rank']} on {node}, exit status {message['code']}{times}"
            yield from self._fail(at_s, f"{where}: {told}", output=output)
            return
        yield from self._begin(at_s, cause="worker_exited", lost=[])

    def _on_restore_failed(self, at_s: float, message: dict[str, Any]) -> Iterator[Instruction]:
        version, shard, holder = message["version"], message["shard"], message["holder"]
        failures = dict(self.state.restore_failures)
        failures[str(version)] = failures.get(str(version), 0) + 1
        yield Emit(
            event=events.ReplicaRejected(
                recovery=self._number(),
                epoch=self.state.epoch,
                shard=shard,
                version=version,
                holder=holder,
                reason=message["reason"],
            )
        )
        bad_copies, rejected = self.state.bad_copies, self.state.rejected
        if holder is not None:
            bad_copies = (*bad_copies, (shard, version, holder))
        if failures[str(version)] >= MAX_RESTORE_FAILURES and version not in rejected:
            rejected = (*rejected, version)
            yield Emit(
                event=events.VersionRejected(
                    recovery=self._number(),
                    epoch=self.state.epoch,
                    version=version,
                    reason=f"it failed to load {failures[str(version)]} times",
                )
            )
        self.state = replace(
            self.state, restore_failures=failures, bad_copies=bad_copies, rejected=rejected
        )
        yield from self._begin(at_s, cause="restore_failed", lost=[])

    # -- time ----------------------------------------------------------------------------------

    def _on_tick(self, at_s: float) -> Iterator[Instruction]:
        phase = self.state.phase
        if phase in {"fencing", "inventory"} and at_s - self._entered_s > PHASE_LIMIT_S:
            for node in [node for node in self.living if node not in self._answers]:
                yield HangUp(node=node)
                yield from self._on_lost(NodeLost(at_s=at_s, node=node, cause="no answer"))
        elif phase == "rendezvous" and at_s - self._entered_s > PHASE_LIMIT_S:
            yield from self._begin(at_s, cause="no answer", lost=[])
        elif phase in {"starting", "running"}:
            yield from self._check_progress(at_s)
            if self.state.phase == "running":
                yield from self._saver.begin_if_due(at_s, state=self.state)
        elif phase == "finishing" and at_s - self._entered_s > FINISH_LIMIT_S:
            yield from self._saver.give_up("the persistent tier took too long", state=self.state)
            yield from self._done(at_s)

    def _check_progress(self, at_s: float) -> Iterator[Instruction]:
        """Hung workers (SIGSTOP, deadlock): no iteration within the deadline."""
        is_running = self.state.phase == "running"
        if is_running and not self._protected:
            return  # a script without protect tells nothing of its iterations
        limit_s = self._progress.limit_s(self.state.read_settings(), is_running=is_running)
        hung = self._progress.hung(at_s, limit_s, finished=self._finished)
        if not hung:
            return
        for rank, silent_s in hung.items():
            yield Emit(
                event=events.WorkerHung(
                    rank=rank, epoch=self.state.epoch, silent_s=silent_s, deadline_s=limit_s
                )
            )
        self.state = replace(self.state, attempts=self.state.attempts + 1)
        if self.state.attempts >= MAX_ATTEMPTS:
            yield from self._fail(at_s, f"no worker made progress for {limit_s:.0f} s, repeatedly")
        else:
            yield from self._begin(at_s, cause="worker_hung", lost=[])

    # -- the persistent tier -------------------------------------------------------------------

    def _on_persistence(
        self, at_s: float, node: str, message: dict[str, Any]
    ) -> Iterator[Instruction]:
        if message["version"] != self._saver.version:
            return
        yield from self._saver.hear(at_s, node, message, state=self.state)
        if self.state.phase == "finishing" and self._saver.version is None:
            if message["version"] < self._saver.complete:  # the last one had to wait for it
                yield from self._saver.begin(at_s, self._saver.complete, state=self.state)
            else:
                yield from self._done(at_s)

    # -- the end -------------------------------------------------------------------------------

    def _finish_if_all_did(self, at_s: float) -> Iterator[Instruction]:
        if self.state.phase not in {"starting", "running"}:
            return
        if self._finished != set(self.state.ranks):
            return
        if self.state.phase == "starting" and self._plan is not None:
            yield from self._resumed(at_s, self.state.iteration)
        yield from self._enter("finishing", at_s)
        yield from self._saver.begin_last(at_s, state=self.state)
        if self._saver.version is None:
            yield from self._done(at_s)

    def _done(self, at_s: float) -> Iterator[Instruction]:
        yield from self._enter("done", at_s)
        yield from self._release()
        yield Emit(event=events.RunFinished(iteration=self._saver.complete))

    def _fail(
        self, at_s: float, reason: str, *, output: Sequence[str] = ()
    ) -> Iterator[Instruction]:
        self.state = replace(self.state, epoch=self.state.epoch + 1)
        yield from self._enter("failed", at_s)
        yield from self._release()
        yield Emit(event=events.RunFailed(reason=reason, output=tuple(output)))

    def _release(self) -> Iterator[Instruction]:
        for node in self.living:
            yield Send(to=node, message={"op": "release", "epoch": self.state.epoch})

    # -- small answers ---------------------------------------------------------------------------

    def _ranks_on(self, node: str) -> range:
        per_node = self.state.the_job["workers_per_node"]
        first = self.state.members.index(node) * per_node
        return range(first, first + per_node)

    def placement(self) -> Placement:
        """Who keeps whose shard, by position."""
        settings = self.state.read_settings()
        nodes = self.state.the_job["nodes"]
        return plan_placement(
            nodes=nodes,
            replicas=min(settings.replicas, nodes),
            strategy=settings.strategy,
            racks=self.state.the_job["racks"],
        )

    def _ask_for_nodes(self, reason: str) -> Iterator[Instruction]:
        wanted = self.state.the_job["nodes"] + self.state.the_job["standbys"]
        if len(self.living) < wanted:
            yield Emit(event=events.NodeRequested(reason=reason))
            yield RequestNodes(wanted=wanted, reason=reason)
