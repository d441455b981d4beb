"""Agents that come, go, and come back, and a root agent after another."""

from collections.abc import Iterator
from dataclasses import replace

from gemini_lab.log import events
from gemini_lab.recovery.disowning import disown
from gemini_lab.recovery.drains import forgotten
from gemini_lab.recovery.keeping import SEVERED
from gemini_lab.recovery.messages import Fence, Learned, Prepare, Release, WorkerStatus
from gemini_lab.recovery.protocol import (
    ACTIVE,
    RESTARTING,
    Emit,
    HangUp,
    Instruction,
    NodeJoined,
    NodeLost,
    Phase,
    Send,
)
from gemini_lab.recovery.resizes import patience_s
from gemini_lab.recovery.stop import what_for
from gemini_lab.recovery.watching import WatchedRun


class AttendedRun(WatchedRun):
    """A run whose agents come and go."""

    # -- a root agent after another ------------------------------------------------------------

    def take_over(self, at_s: float) -> list[Instruction]:
        """Go on where the previous root stopped; `living` was filled by NodeJoined before."""
        phase = self.state.phase
        again = [Emit(event=event) for event in self.state.said]
        if phase not in ACTIVE:
            return [*again, *self._part(at_s)]
        heard = list(self._learn_left(self.living.values()))
        goes_on = self._go_on(at_s, phase)
        return [*again, *heard, *goes_on, *self._ask_for_nodes("the last root agent was lost")]

    def _go_on(self, at_s: float, phase: Phase) -> list[Instruction]:
        """What an active run needs of a new root agent."""
        lost = [node for node in self.state.members if node is not None and node not in self.living]
        away = [node for node in self.state.silent if node not in self.living]
        is_unsure = self.state.is_unsure or phase in {"starting", "running", "finishing"}
        silent = tuple(dict.fromkeys((*away, *lost)))
        self.state = replace(self.state, is_unsure=is_unsure, silent=silent)
        gone = [Emit(event=events.NodeLost(name=n, cause="connection")) for n in lost]
        if said := list(self._on_unheard(at_s, self.living.values(), lost=lost)):
            return [*gone, *said]
        if lost:
            return [*gone, *self._begin(at_s, cause="node_lost", lost=lost)]
        if phase in RESTARTING or phase == "finishing":
            return list(self._begin(at_s, cause="root_lost", lost=[]))
        if stopping_for := what_for(self.state):  # who of them holds is not known
            leaves = [self.state.holding] if self.state.holding else []
            return list(self._begin(at_s, cause=stopping_for, lost=leaves))
        working = self._working()
        if phase == "running" and working.keys() < set(self.state.ranks):
            return list(self._begin(at_s, cause="worker_exited", lost=[]))
        self._finished = {rank for rank, status in working.items() if status == "finished"}
        self._protected = set(self.state.ranks)
        self._progress.restart(self.state.ranks, iteration=self.state.iteration)
        return [*self._tell_tier(), *self._finish_if_all_did(at_s)]

    def _working(self) -> dict[int, WorkerStatus]:
        """The workers of this epoch, as their agents told when they joined."""
        return {
            rank: status
            for joined in self.living.values()
            if joined.epoch == self.state.epoch
            for rank, status in joined.workers.items()
        }

    # -- agents that come and go ---------------------------------------------------------------

    def _on_joined(self, joined: NodeJoined) -> Iterator[Instruction]:
        was_known = joined.node in self.living
        self.living[joined.node] = joined
        if was_known:
            yield from self._on_relinked(joined)
            return
        silent = tuple(node for node in self.state.silent if node != joined.node)
        self.state = replace(self.state, silent=silent)
        yield Emit(event=events.NodeJoined(name=joined.node))
        if self.state.phase in ACTIVE:
            yield from self._learn_left([joined])
        if self._learned is not None:
            yield self._prepare(joined.node, self._learned)
        yield from self._let_leave(joined.at_s)
        yield from self._ask_again(joined)
        phase = self.state.phase
        if phase in {"inventory", "waiting"}:  # it was not fenced with the others
            yield Send(to=joined.node, order=Fence(epoch=self.state.epoch))
        if phase == "waiting":  # what it has in memory may be what is waited for
            yield from self._take_inventory(joined.at_s)
        elif phase in {"fencing", "inventory"}:
            yield self._question(joined.node)
        yield from self._on_unheard(joined.at_s, [joined])

    def _on_relinked(self, joined: NodeJoined) -> Iterator[Instruction]:
        """A connection broke and came back: what was said in between is in what joined."""
        if self.state.phase in ACTIVE:
            yield from self._learn_left([joined])
        if said := list(self._on_unheard(joined.at_s, [joined])):
            yield from said
            return
        yield from self._ask_again(joined)
        phase = self.state.phase
        if phase == "running" and self._ahead.is_lost_with(joined):
            yield from self._without_ahead(joined.at_s, f"the connection to {joined.node} broke")
        if phase in {"fencing", "inventory", "rendezvous"}:
            yield from self._begin(joined.at_s, cause=SEVERED, lost=[])
        elif phase in {"starting", "running"} and joined.node in self.state.members:
            self._finished |= {r for r, status in joined.workers.items() if status == "finished"}
            if not joined.workers.keys() >= set(self.state.seats.ranks_on(joined.node)):
                yield from self._begin(joined.at_s, cause="worker_exited", lost=[])
            else:
                yield from self._stop.ask_again(self.state, joined.node)
                yield from self._finish_if_all_did(joined.at_s)

    def _ask_again(self, joined: NodeJoined) -> Iterator[Instruction]:
        """Repeat what was said once and is waited for: it, or the answer, may have been lost.

        What workers said is repeated by their agent, see `node.remembered`.
        """
        yield from self._saver.ask_again(joined.node)
        if (back := self._asked_back) is not None and back.epoch == self.state.epoch:
            yield Send(to=joined.node, order=back)
        if self.state.is_disowning:
            yield from disown(self.state, [joined.node])
        if self.state.phase in {"done", "failed"} and joined.workers:
            yield Send(to=joined.node, order=Release(epoch=self.state.epoch))

    def _on_lost(self, lost: NodeLost) -> Iterator[Instruction]:
        was_living = self.living.pop(lost.node, None) is not None
        if lost.cause == "dead":
            self.state = forgotten(self.state, lost.node)
        yield from self._note_silence(lost, was_living=was_living)
        if not was_living:
            return
        yield Emit(event=events.NodeLost(name=lost.node, cause=lost.cause))
        if lost.node in self.state.members and self.state.phase in ACTIVE:
            yield from self._begin(lost.at_s, cause="node_lost", lost=[lost.node])
        elif self.state.phase in {"fencing", "inventory"}:
            self._answered.discard(lost.node)
            self._inventory.pop(lost.node, None)
            yield from self._advance(lost.at_s)
        elif self.state.phase in ACTIVE:
            yield from self._ask_for_nodes(f"{lost.node}, a standby, is gone")
            if lost.node == self._ahead.standby:
                yield from self._without_ahead(lost.at_s, f"{lost.node} is gone")

    def _note_silence(self, lost: NodeLost, *, was_living: bool) -> Iterator[Instruction]:
        """Keep in mind whose memory may come back; of the dead nothing does."""
        silent = list(self.state.silent)
        is_dead, is_seated = lost.cause == "dead", lost.node in self.state.members
        if is_dead and lost.node in silent:
            silent.remove(lost.node)
        elif not is_dead and was_living and is_seated and lost.node not in silent:
            silent.append(lost.node)
        if tuple(silent) == self.state.silent:
            return
        self.state = replace(self.state, silent=tuple(silent))
        if self.state.phase == "waiting":
            yield from self._decide(lost.at_s)

    def _on_none_come(self, at_s: float) -> Iterator[Instruction]:
        if self.state.phase == "waiting" and patience_s(self.state, at_s):
            self.state = replace(self.state, none_come=True)
            yield from self._decide(at_s)

    def _drop_silent_agents(self, at_s: float) -> Iterator[Instruction]:
        """Agents that live but do not answer count as lost, and are used again last of all."""
        self._asked_s = at_s  # who comes back has as much time again
        for node in [node for node in self.living if node not in self._answered]:
            self.state = replace(self.state, excluded=(*self.state.excluded, node))
            yield HangUp(node=node)
            yield from self._on_lost(NodeLost(at_s=at_s, node=node, cause="no answer"))

    def _prepare(self, node: str, learned: Learned) -> Send:
        """Also standbys: they are who starts without having seen the script."""
        order = Prepare(
            epoch=self.state.epoch, modules=learned.modules, environment=learned.environment
        )
        return Send(to=node, order=order)
