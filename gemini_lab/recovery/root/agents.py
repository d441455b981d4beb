"""Agents that come, go, and come back, and a root agent after another."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from gemini_lab.log import events
from gemini_lab.recovery.discarded_versions import disown
from gemini_lab.recovery.drains import forgotten
from gemini_lab.recovery.messages import (
    Fence,
    Inventory,
    OrderFailed,
    Release,
)
from gemini_lab.recovery.protocol import AgentJoined, AgentLost, Emit, HangUp, Instruction, Send
from gemini_lab.recovery.resizes import patience_s
from gemini_lab.recovery.root.ending import Ending
from gemini_lab.recovery.root.known_run import KnownRun, PartOfRoot
from gemini_lab.recovery.root.lifecycle import Lifecycle
from gemini_lab.recovery.root.workers import Workers
from gemini_lab.recovery.root_state import ACTIVE, RESTARTING, Phase
from gemini_lab.recovery.stop import what_for

MOST_BREAKS: Final = 3
"""Of a connection before its agent has answered: as often it is asked, and then done without."""


class Agents(PartOfRoot):
    """The agents of a run: they join, are lost, and come back."""

    def __init__(
        self, run: KnownRun, lifecycle: Lifecycle, workers: Workers, ending: Ending
    ) -> None:
        super().__init__(run)
        self.lifecycle, self.workers, self.ending = lifecycle, workers, ending

    # -- a root agent after another ------------------------------------------------------------

    def take_over(self, at_s: float) -> list[Instruction]:
        """Go on from the previous root agent's state; `living` was filled before."""
        phase = self.state.phase
        again = [Emit(event=event) for event in self.state.story.said]
        if phase not in ACTIVE:
            return [*again, *self.ending.part(at_s)]
        heard = list(self.workers.learn_left(self.run.living.values()))
        goes_on = self._go_on(at_s, phase)
        return [*again, *heard, *goes_on, *self.run.ask_for_nodes("the last root agent was lost")]

    def _go_on(self, at_s: float, phase: Phase) -> list[Instruction]:
        """Return what an active run needs of a newly elected root agent."""
        lost = [
            node for node in self.state.members if node is not None and node not in self.run.living
        ]
        away = [node for node in self.state.nodes.silent if node not in self.run.living]
        is_unsure = self.state.reached.is_unsure or phase in {
            "starting",
            "running",
            "finishing",
        }
        silent = tuple(dict.fromkeys((*away, *lost)))
        self.run.change(
            replace(self.state.reached, is_unsure=is_unsure),
            replace(self.state.nodes, silent=silent),
        )
        gone = [Emit(event=events.NodeLost(name=n, cause="connection")) for n in lost]
        if said := list(self.workers.on_unheard(at_s, self.run.living.values(), lost=lost)):
            return [*gone, *said]
        if lost:
            return [*gone, *self.lifecycle.restart(at_s, cause="node_lost", lost=lost)]
        if phase in RESTARTING or phase == "finishing":
            return list(self.lifecycle.restart(at_s, cause="root_lost", lost=[]))
        if stopping_for := what_for(self.state):  # who of them holds is not known
            leaves = [self.state.drain.holding] if self.state.drain.holding else []
            return list(self.lifecycle.restart(at_s, cause=stopping_for, lost=leaves))
        if phase == "running" and self._working() < set(self.state.ranks):
            return list(self.lifecycle.restart(at_s, cause="worker_exited", lost=[]))
        # Which scripts have ended agents say next, after the last versions: these are to be saved.
        self.run.watch.protected = set(self.state.ranks)
        self.run.watch.progress.restart(self.state.ranks, iteration=self.state.reached.iteration)
        return list(self.run.tell_tier())

    def _working(self) -> set[int]:
        """Return the ranks of this epoch's workers, as their agents reported when they joined."""
        there = (one for one in self.run.living.values() if one.epoch == self.state.epoch)
        return {rank for joined in there for rank in joined.workers}

    # -- agents that come and go ---------------------------------------------------------------

    def on_joined(self, joined: AgentJoined) -> Iterator[Instruction]:
        was_known = joined.node in self.run.living
        self.run.living[joined.node] = joined
        if was_known:
            yield from self._on_relinked(joined)
            return
        if joined.node in self.state.nodes.silent:  # its workers may have gone on meanwhile
            self.run.has_all_words = False
        silent = tuple(node for node in self.state.nodes.silent if node != joined.node)
        self.run.change(replace(self.state.nodes, silent=silent))
        yield Emit(event=events.NodeJoined(name=joined.node))
        if self.state.phase in ACTIVE:
            yield from self.workers.learn_left([joined])
        if self.state.phase == "running":
            yield from self.lifecycle.preload([joined.node])
        yield from self.run.let_leave(joined.at_s)
        yield from self._ask_again(joined)
        phase = self.state.phase
        if phase in {"inventory", "waiting"}:  # it was not fenced with the others
            yield Send(to=joined.node, order=Fence(epoch=self.state.epoch))
        if phase == "waiting":  # what it has in memory may be what is waited for
            yield from self.lifecycle.take_inventory(joined.at_s)
        elif phase in {"fencing", "inventory"}:
            yield self.lifecycle.question(joined.node)
        yield from self.workers.on_unheard(joined.at_s, [joined])

    def _on_relinked(self, joined: AgentJoined) -> Iterator[Instruction]:
        """Act on a connection that came back; `joined` has what was sent in between."""
        self.run.has_all_words = False  # some may be lost with the connection
        if self.state.phase in ACTIVE:
            yield from self.workers.learn_left([joined])
        if said := list(self.workers.on_unheard(joined.at_s, [joined])):
            yield from said
            return
        yield from self._ask_again(joined)
        phase = self.state.phase
        if phase == "running" and self.run.ahead.is_lost_with(joined):
            yield from self.run.without_ahead(joined.at_s, f"the connection to {joined.node} broke")
        if phase in {"fencing", "inventory"}:
            yield from self._ask_question_again(joined)
        elif phase in {"starting", "running"} and joined.node in self.state.members:
            self.run.repeats.skip(self.state.seats.ranks_on(joined.node))
            if not {*joined.workers} >= set(self.state.seats.ranks_on(joined.node)):
                reason = f"workers on {joined.node} ended while the connection to it was broken"
                yield from self.lifecycle.on_machine(
                    joined.at_s, joined.node, reason, cause="worker_exited"
                )
            else:
                yield from self.run.stop.ask_again(self.state, joined.node)

    def _ask_again(self, joined: AgentJoined) -> Iterator[Instruction]:
        """Send again what an answer is awaited for, because it or the answer may have been lost.

        What workers said is repeated by their agent, see `node.worker_history`.
        """
        yield from self.run.saver.ask_again(joined.node)
        if (back := self.run.asked_back) is not None and back.epoch == self.state.epoch:
            yield Send(to=joined.node, order=back)
        if self.state.is_disowning:
            yield from disown(self.state, [joined.node])
        if self.state.phase in {"done", "failed"} and joined.workers:
            yield Send(to=joined.node, order=Release(epoch=self.state.epoch))

    def _ask_question_again(self, joined: AgentJoined) -> Iterator[Instruction]:
        """Ask an agent again if its connection broke before it answered, `MOST_BREAKS` times."""
        node = joined.node
        if node in self.run.answered:
            return
        self.run.breaks[node] += 1
        if self.run.breaks[node] < MOST_BREAKS:
            yield self.lifecycle.question(node)
        else:
            yield from self._drop(joined.at_s, [node])

    def on_failed_order(self, at_s: float, node: str, said: OrderFailed) -> Iterator[Instruction]:
        """Go on without an agent that lacks what an order needs; it may do it later."""
        reason = f"{node} cannot do {said.order}: {said.reason}"
        phase = self.state.phase
        yield Emit(event=events.Note(text=reason))
        if phase == "fencing" and node in self.run.living:  # its workers may still run
            yield from self._drop(at_s, [node], reason=reason)
        elif phase == "inventory" and node in self.run.living:
            yield from self._avoid(node, reason)
            yield from self._without_inventory(at_s, node, reason)

    def _without_inventory(self, at_s: float, node: str, reason: str) -> Iterator[Instruction]:
        """Go on without a node's inventory until it can send one."""
        known = self.run.inventory.get(node)
        if known is None and node in self.state.members and node not in self.state.nodes.silent:
            self.run.change(replace(self.state.nodes, silent=(*self.state.nodes.silent, node)))
        if node == self.run.tier_asked:
            known = known or Inventory(epoch=self.state.epoch, copies=[], damaged=[])
            self.run.inventory[node] = msgspec.structs.replace(known, unread=reason)
        self.run.answered.add(node)
        yield from self.lifecycle.advance(at_s)

    def _avoid(self, node: str, reason: str) -> Iterator[Instruction]:
        """Use a node last of all from now on, and emit the reason once."""
        if node not in self.state.nodes.excluded:
            self.run.change(replace(self.state.nodes, excluded=(*self.state.nodes.excluded, node)))
            yield Emit(event=events.NodeExcluded(name=node, reason=reason))

    def on_lost(self, lost: AgentLost) -> Iterator[Instruction]:
        was_living = self.run.living.pop(lost.node, None) is not None
        if lost.cause == "dead":
            self.run.state = forgotten(self.state, lost.node)
        yield from self._note_silence(lost, was_living=was_living)
        if not was_living:
            return
        yield Emit(event=events.NodeLost(name=lost.node, cause=lost.cause))
        if lost.node in self.state.members and self.state.phase in ACTIVE:
            yield from self.lifecycle.restart(lost.at_s, cause="node_lost", lost=[lost.node])
        elif self.state.phase in {"fencing", "inventory"}:
            self.run.answered.discard(lost.node)
            self.run.inventory.pop(lost.node, None)
            yield from self.lifecycle.advance(lost.at_s)
        elif self.state.phase in ACTIVE:
            yield from self.run.ask_for_nodes(f"{lost.node}, a standby, is gone")
            if lost.node == self.run.ahead.standby:
                yield from self.run.without_ahead(lost.at_s, f"{lost.node} is gone")

    def _note_silence(self, lost: AgentLost, *, was_living: bool) -> Iterator[Instruction]:
        """Remember nodes whose memory may come back; a dead node's does not."""
        silent = list(self.state.nodes.silent)
        is_dead, is_seated = lost.cause == "dead", lost.node in self.state.members
        if is_dead and lost.node in silent:
            silent.remove(lost.node)
        elif not is_dead and was_living and is_seated and lost.node not in silent:
            silent.append(lost.node)
        if tuple(silent) == self.state.nodes.silent:
            return
        self.run.change(replace(self.state.nodes, silent=tuple(silent)))
        if self.state.phase == "waiting":
            yield from self.lifecycle.decide(lost.at_s)

    def on_none_come(self, at_s: float) -> Iterator[Instruction]:
        if self.state.phase == "waiting" and patience_s(self.state, at_s):
            self.run.change(replace(self.state.resize, none_come=True))
            yield from self.lifecycle.decide(at_s)

    def drop_silent(self, at_s: float) -> Iterator[Instruction]:
        """Count agents that live but do not answer as lost; they are used last of all."""
        self.run.asked_s = at_s  # who comes back has as much time again
        yield from self._drop(
            at_s, [node for node in self.run.living if node not in self.run.answered]
        )

    def _drop(
        self, at_s: float, nodes: Sequence[str], *, reason: str = ""
    ) -> Iterator[Instruction]:
        """Go on without agents that live but do not do what they are asked."""
        told = reason or f"it did not answer in the recovery's phase {self.state.phase!r}"
        for node in nodes:
            yield from self._avoid(node, told)
            yield HangUp(node=node)
            yield from self.on_lost(AgentLost(at_s=at_s, node=node, cause="no answer"))
