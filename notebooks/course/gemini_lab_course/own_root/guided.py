"""A root agent whose recoveries a user's function decides: `lab.train(job, root=decide)`.

What a root agent does besides, such as beginning a job, following its progress and ending it, the
lab's own `RootAgent` does. After a failure `decide(state, event, cluster)` is asked: once for each
thing that happens, until training goes on.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from gemini_lab.log.events import RunFailed
from gemini_lab.recovery.messages import Fenced as FencedSaid
from gemini_lab.recovery.messages import Inventory
from gemini_lab.recovery.plan import Copy, RecoveryPlan
from gemini_lab.recovery.planning import good_copies, hopes, make_plan
from gemini_lab.recovery.protocol import AgentJoined, AgentLost, Instruction, WriteState
from gemini_lab.recovery.root.agent import RootAgent
from gemini_lab.recovery.root.agents import Agents
from gemini_lab.recovery.root.ending import Ending
from gemini_lab.recovery.root.known_run import KnownRun
from gemini_lab.recovery.root.lifecycle import Lifecycle
from gemini_lab.recovery.root_state import RootState
from gemini_lab.seats import in_order
from gemini_lab.shard.lineage import Lineage
from gemini_lab_course.own_root.deciding import (
    Action,
    Ask,
    Changed,
    Cluster,
    Decide,
    Event,
    Failed,
    Fence,
    Fenced,
    GuideError,
    Joined,
    Kept,
    Start,
    Told,
    Wait,
    as_actions,
    as_text,
    told,
)

ASKING: Final = frozenset({"fencing", "inventory", "waiting"})
"""The phases of a recovery in which nothing is started yet."""
SILENCE_S: Final = 10.0
"""If `decide` did nothing and no answer is missing, the log says so after this time."""


class GuidedLifecycle(Lifecycle):
    """Recoveries that `decide` decides; until a worker has called `protect` none does."""

    guide: Decide

    def __init__(self, run: KnownRun, ending: Ending) -> None:
        super().__init__(run, ending)
        self.decisions: list[tuple[Event, tuple[Action, ...]]] = []
        self.is_guided = False  # nothing is to be decided before a worker has called `protect`
        self._failure = "root_lost"
        self._lost: tuple[str, ...] = ()
        self._has_fenced: set[str] = set()
        self._chosen: RecoveryPlan | None = None
        self._idle: tuple[float, Event] | None = None  # since when, and what got no answer

    # -- what happens, as `decide` hears it ------------------------------------------------------

    def restart(
        self, at_s: float, *, cause: str, lost: Sequence[str], ends: Sequence[int] = ()
    ) -> Iterator[Instruction]:
        self.is_guided = self.run.state.setup.settings is not None and cause != "start"
        if not self.is_guided:
            yield from super().restart(at_s, cause=cause, lost=lost, ends=ends)
            return
        self._failure, self._lost = cause, (*self._lost, *lost)
        yield from self.ask_guide(at_s, Failed(cause=cause, lost=tuple(lost)))

    def on_answer(
        self, at_s: float, node: str, answer: FencedSaid | Inventory
    ) -> Iterator[Instruction]:
        if not self.is_guided or self.run.state.phase == "running":
            yield from super().on_answer(at_s, node, answer)
        elif self.run.state.phase not in ASKING:
            return
        elif isinstance(answer, FencedSaid):
            self._has_fenced.add(node)
            self.run.ports[node] = answer.address
            self.run.answered |= {node} if self.run.state.phase == "fencing" else set()
            yield from self.ask_guide(at_s, Fenced(node=node))
        elif self.run.state.phase == "inventory":
            yield from super().on_answer(at_s, node, answer)
            copies = [copy for copy in self._good_copies() if copy.node == node]
            kept = tuple(Kept(each.shard, each.version, each.lineage.epoch) for each in copies)
            yield from self.ask_guide(at_s, Told(node=node, copies=kept))

    def give_up(self, at_s: float, ending: RunFailed, *, cause: str) -> Iterator[Instruction]:
        """End the run at once: only the function may ask agents to save something first."""
        del cause
        yield from self.ending.end(at_s, ending)

    def decide(self, at_s: float, plan: RecoveryPlan | None = None) -> Iterator[Instruction]:
        """Ask `decide` when the lab's own root agent would look at its plan again."""
        if self.is_guided:
            yield from self.ask_guide(at_s, Changed())
        else:
            yield from super().decide(at_s, plan)

    def advance(self, at_s: float) -> Iterator[Instruction]:
        if not self.is_guided:
            yield from super().advance(at_s)

    def take_inventory(self, at_s: float) -> Iterator[Instruction]:
        if not self.is_guided:
            yield from super().take_inventory(at_s)

    def say_if_silent(self, at_s: float) -> Iterator[Instruction]:
        """Say once that `decide` did nothing and no agent has anything more to say."""
        is_over = self.run.state.phase in {"failed", "done"}
        if is_over or self._idle is None or self._is_to_hear_more():
            return
        since_s, event = self._idle
        if at_s - since_s > SILENCE_S:
            self._idle = None
            yield self.waiting_event(
                f"your function answered nothing to {told(event)}, and all nodes have answered; "
                "lab.run.stop() ends the run"
            )

    def _is_to_hear_more(self) -> bool:
        """Return whether an agent that was asked has yet to answer."""
        answered = {"fencing": self._has_fenced, "inventory": self.run.inventory.keys()}
        return not self.run.living.keys() <= answered.get(
            self.run.state.phase, self.run.living.keys()
        )

    # -- what it says, and how that is done ------------------------------------------------------

    def ask_guide(self, at_s: float, event: Event) -> Iterator[Instruction]:
        """Ask `decide`, and do what it answers; an answer without sense ends the run."""
        kept: dict[str, object] = json.loads(self.run.state.setup.own or "{}")
        try:
            actions = as_actions(self.guide(kept, event, self._cluster()))
            own = as_text(kept)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it raises
            said = str(error) if isinstance(error, GuideError) else raised(error)
            self.decisions.append((event, ()))
            yield from self.ending.fail(
                at_s, f"your function was told {told(event)}: {said}", cause="script"
            )
            return
        self.decisions.append((event, actions))
        self._idle = None if actions else (at_s, event)
        if own != self.run.state.setup.own:
            self.run.state = replace(self.run.state, setup=replace(self.run.state.setup, own=own))
            yield WriteState(state=self.run.state)
        for action in actions:
            yield from self._obey(at_s, action)

    def _obey(self, at_s: float, action: Action) -> Iterator[Instruction]:
        match action:
            case _ if self.run.state.phase in {"failed", "done"}:
                return
            case Fence():
                lost, self._lost, self._has_fenced = self._lost, (), set()
                yield from super().restart(at_s, cause=self._failure, lost=lost)
            case Ask():
                yield from super().take_inventory(at_s)
            case Wait():
                plan = make_plan(self.run.state, self.run.living, self.run.inventory)
                yield from self.wait(at_s, plan, action.why or "your function waits")
            case Start():
                yield from self._start_with(at_s, action.version)

    def _start_with(self, at_s: float, version: int | None) -> Iterator[Instruction]:
        try:
            self._chosen = self._plan_for(version)
            yield from super().decide(at_s)
        except GuideError as error:
            yield from self.ending.fail(at_s, str(error), cause="script")
        finally:
            self._chosen = None

    def _make_plan(self) -> RecoveryPlan:
        return self._chosen or super()._make_plan()

    def _reason_to_wait(self, plan: RecoveryPlan, at_s: float) -> str:
        return "" if self.is_guided else super()._reason_to_wait(plan, at_s)

    def _reason_to_pause(self, at_s: float) -> str:
        return "" if self.is_guided else super()._reason_to_pause(at_s)

    def _plan_for(self, version: int | None) -> RecoveryPlan:
        """Return the plan that loads this version.

        Raises:
            GuideError: It cannot be loaded, or workers of before may still run.
        """
        if self.run.state.phase not in ASKING:
            raise GuideError(
                f"your function starts workers although those of epoch {self.run.state.epoch} "
                "were not ended"
            )
        only = {node: _only(said, version=version) for node, said in self.run.inventory.items()}
        members = self._members()
        seated = replace(
            self.run.state,
            setup=replace(self.run.state.setup, placed=self.run.state.seats.seated(members)),
        )
        plan = make_plan(seated, self.run.living, only)
        if plan.missing:
            raise GuideError(
                f"your function starts workers, and position {plan.missing[0]} has no machine"
            )
        if plan.version != version:
            raise GuideError(
                f"your function starts from version {version}, {self._lacking(version)}"
            )
        late = [node for node in plan.members if node not in self._has_fenced]
        if late:
            raise GuideError(
                f"your function starts workers on {late[0]}, which has not said yet that it ended "
                "its old ones: both would write to its memory"
            )
        return plan

    def _lacking(self, version: int | None) -> str:
        """Return why a version is not whole on the nodes that train."""
        members, keeps = self._members(), self._keeps()
        held = [c for c in self._good_copies() if c.version == version and c.node in members]
        shards: defaultdict[Lineage, set[int]] = defaultdict(set)
        for copy in held:
            if copy.shard in keeps[members.index(copy.node)]:
                shards[copy.lineage].add(copy.shard)
        every = set(self.run.state.ranks)
        if set().union(*shards.values()) == every:
            return "whose shards are of different epochs and do not fit together"
        missing = min(every - max(shards.values(), key=len, default=set()))
        elsewhere = next((copy.node for copy in held if copy.shard == missing), None)
        if elsewhere is not None:
            return f"and {elsewhere}, which has shard {missing} of it, trains where others are kept"
        return f"and no node that trains and was heard has shard {missing} of it"

    def _good_copies(self) -> list[Copy]:
        return good_copies(self.run.state, self.run.inventory)

    def _members(self) -> tuple[str | None, ...]:
        return make_plan(self.run.state, self.run.living, self.run.inventory).members

    def _keeps(self) -> tuple[tuple[int, ...], ...]:
        """Return the shards that each position keeps."""
        seats = self.run.state.seats
        return tuple(
            tuple(sorted({s for rank in seats.ranks_at(position) for s in seats.kept_shards(rank)}))
            for position in range(seats.nodes)
        )

    def _cluster(self) -> Cluster:
        known = hopes(self.run.state, self.run.inventory)
        return Cluster(
            members=self._members(),
            keeps=self._keeps(),
            living=tuple(in_order(self.run.living)),
            silent=tuple(in_order(self.run.state.nodes.silent)),
            newest=None if known.unheard else known.newest,
            has_given_up=self.run.state.discarded.has_given_up,
        )


class GuidedAgents(Agents):
    """Agents; `decide` is told which of them join and leave."""

    lifecycle: GuidedLifecycle

    def on_joined(self, joined: AgentJoined) -> Iterator[Instruction]:
        is_new, phase = joined.node not in self.run.living, self.run.state.phase
        yield from super().on_joined(joined)
        if self.lifecycle.is_guided and is_new and phase in ASKING:
            yield from self.lifecycle.ask_guide(joined.at_s, Joined(node=joined.node))

    def on_lost(self, lost: AgentLost) -> Iterator[Instruction]:
        is_spare = lost.node in self.run.living and lost.node not in self.run.state.members
        yield from super().on_lost(lost)
        if self.lifecycle.is_guided and is_spare and self.run.state.phase in ASKING:
            failed = Failed(cause="node_lost", lost=(lost.node,))
            yield from self.lifecycle.ask_guide(lost.at_s, failed)


class GuidedRoot(RootAgent):
    """A root agent that asks `decide` what to do after a failure.

    Args:
        state: The state that the previous root agent stored.
        at_s: Now.
        decide: The function to ask.
    """

    lifecycle_kind = GuidedLifecycle
    agents_kind = GuidedAgents
    lifecycle: GuidedLifecycle

    def __init__(self, *, state: RootState, at_s: float, decide: Decide) -> None:
        super().__init__(state=state, at_s=at_s)
        self.lifecycle.guide = decide

    @property
    def guide(self) -> Decide:
        """The function to ask."""
        return self.lifecycle.guide

    @property
    def decisions(self) -> list[tuple[Event, tuple[Action, ...]]]:
        """The questions, and the decisions on them."""
        return self.lifecycle.decisions

    def _on_tick(self, at_s: float) -> Iterator[Instruction]:
        yield from super()._on_tick(at_s)
        yield from self.lifecycle.say_if_silent(at_s)


def _only(said: Inventory, *, version: int | None) -> Inventory:
    copies = [copy for copy in said.copies if copy.version == version]
    return msgspec.structs.replace(said, copies=copies, persistent=None)


def raised(error: BaseException) -> str:
    """Return in a line what a function raised."""
    text = next(iter(str(error).strip().splitlines()), "")
    return f"it raised {type(error).__name__}" + (f": {text}" if text else "")
