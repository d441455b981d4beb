"""Agents that come, go, and come back, and a root agent after another."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from gemini_lab.log import events
from gemini_lab.recovery.disowning import disown
from gemini_lab.recovery.drains import forgotten
from gemini_lab.recovery.keeping import SEVERED
from gemini_lab.recovery.messages import (
    AllLive,
    Fence,
    Inventory,
    OrderFailed,
    Release,
    RestoreFailed,
    Severed,
    WorkerStatus,
)
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

MOST_BREAKS: Final = 3
"""Of a connection before its agent has answered: as often it is asked, and then done without."""


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
        if self.state.phase == "running":
            yield from self._preload([joined.node])
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
            yield from self._ask_question_again(joined)
        elif phase in {"starting", "running"} and joined.node in self.state.members:
            self._repeats.skip(self.state.seats.ranks_on(joined.node))
            self._finished |= {r for r, status in joined.workers.items() if status == "finished"}
            if not joined.workers.keys() >= set(self.state.seats.ranks_on(joined.node)):
                reason = f"workers on {joined.node} ended while the connection to it was broken"
                yield from self._on_machine(joined.at_s, joined.node, reason, cause="worker_exited")
            else:
                yield from self._stop.ask_again(self.state, joined.node)
                yield from self._finish_if_all_did(joined.at_s)

    def _ask_again(self, joined: NodeJoined) -> Iterator[Instruction]:
        """Repeat what was said once and is waited for: it, or the answer, may have been lost.

        What workers said is repeated by their agent, see `node.worker_history`.
        """
        yield from self._saver.ask_again(joined.node)
        if (back := self._asked_back) is not None and back.epoch == self.state.epoch:
            yield Send(to=joined.node, order=back)
        if self.state.is_disowning:
            yield from disown(self.state, [joined.node])
        if self.state.phase in {"done", "failed"} and joined.workers:
            yield Send(to=joined.node, order=Release(epoch=self.state.epoch))

    def _ask_question_again(self, joined: NodeJoined) -> Iterator[Instruction]:
        """Ask an agent again whose connection broke before it had answered, but not for ever."""
        node = joined.node
        is_port = self._port is not None and self._port.to == node
        if node in self._answered or (self.state.phase == "rendezvous" and not is_port):
            return
        self._breaks[node] += 1
        if self._breaks[node] < MOST_BREAKS:
            yield self._port if self._port is not None else self._question(node)
        elif self._port is None:
            yield from self._drop(joined.at_s, [node])
        else:
            reason = f"the connection to {node} broke {MOST_BREAKS} times as it was to hold a port"
            yield from self._on_machine(joined.at_s, node, reason, cause=SEVERED)

    def _on_trouble(
        self, at_s: float, node: str, said: Severed | AllLive | RestoreFailed | OrderFailed
    ) -> Iterator[Instruction]:
        """Something could not be done, or used."""
        if isinstance(said, OrderFailed):
            yield from self._on_failed_order(at_s, node, said)
        else:
            yield from super()._on_trouble(at_s, node, said)

    def _on_failed_order(self, at_s: float, node: str, said: OrderFailed) -> Iterator[Instruction]:
        """An agent lacks what an order needs; its memory is there, and it may do it later."""
        reason = f"{node} cannot do {said.order}: {said.reason}"
        phase = self.state.phase
        yield Emit(event=events.Note(text=reason))
        if phase == "fencing" and node in self.living:  # its workers may still run
            yield from self._drop(at_s, [node], reason=reason)
        elif phase == "inventory" and node in self.living:
            yield from self._avoid(node, reason)
            yield from self._without_inventory(at_s, node, reason)
        elif phase == "rendezvous" and self._port is not None and self._port.to == node:
            yield from self._on_machine(at_s, node, reason, cause="order_failed", is_told=True)

    def _without_inventory(self, at_s: float, node: str, reason: str) -> Iterator[Instruction]:
        """Go on without what a node has in memory, or reads of the tier, until it can tell."""
        known = self._inventory.get(node)
        if known is None and node in self.state.members and node not in self.state.silent:
            self.state = replace(self.state, silent=(*self.state.silent, node))
        if node == self._tier_asked:
            known = known or Inventory(epoch=self.state.epoch, copies=[], damaged=[])
            self._inventory[node] = msgspec.structs.replace(known, unread=reason)
        self._answered.add(node)
        yield from self._advance(at_s)

    def _avoid(self, node: str, reason: str) -> Iterator[Instruction]:
        """Use a node last of all from now on, and say why, once."""
        if node not in self.state.excluded:
            self.state = replace(self.state, excluded=(*self.state.excluded, node))
            yield Emit(event=events.NodeExcluded(name=node, reason=reason))

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
        yield from self._drop(at_s, [node for node in self.living if node not in self._answered])

    def _drop(
        self, at_s: float, nodes: Sequence[str], *, reason: str = ""
    ) -> Iterator[Instruction]:
        """Go on without agents that live but do not do what they are asked."""
        told = reason or f"it did not answer in the recovery's phase {self.state.phase!r}"
        for node in nodes:
            yield from self._avoid(node, told)
            yield HangUp(node=node)
            yield from self._on_lost(NodeLost(at_s=at_s, node=node, cause="no answer"))
