"""A run as the root agent knows it, and what more than one layer does with it."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from gemini_lab.log import events
from gemini_lab.recovery.ahead import Ahead
from gemini_lab.recovery.disowning import disown
from gemini_lab.recovery.drains import Drains, ask_for_nodes
from gemini_lab.recovery.ends import Ends
from gemini_lab.recovery.finite import LossWatch
from gemini_lab.recovery.hangs import Pulses
from gemini_lab.recovery.keeping import Keeping
from gemini_lab.recovery.messages import ExecutedAs, Inventory, RootOrder
from gemini_lab.recovery.plan import RecoveryPlan, VersionId
from gemini_lab.recovery.planning import make_plan
from gemini_lab.recovery.progress import Progress
from gemini_lab.recovery.protocol import (
    RESTARTING,
    Emit,
    Instruction,
    NodeJoined,
    Phase,
    RootState,
    Send,
    WriteState,
)
from gemini_lab.recovery.repeats import Repeats
from gemini_lab.recovery.replicas import Replicas
from gemini_lab.recovery.resizes import Resizes
from gemini_lab.recovery.rewinds import joined
from gemini_lab.recovery.roll_call import RollCall
from gemini_lab.recovery.saver import Saver
from gemini_lab.recovery.stakes import TierPause
from gemini_lab.recovery.stop import Stop

FIRST_RETRY_S: Final = 2.0  # while waiting: until all are asked again


class KnownRun:
    """A run as the root agent knows it.

    Args:
        state: Where the previous root left the run.
        at_s: Now.

    Attributes:
        state: Where it stands; what is written to the store.
        living: What the agent of each node said when it joined.
        resumes_s: When workers may start again, where a run that keeps failing pauses.
    """

    def __init__(self, *, state: RootState, at_s: float) -> None:
        self.state = state.on_clock(at_s)
        self.living: dict[str, NodeJoined] = {}
        self._answered: set[str] = set()  # who has answered this phase's question
        self._entered_s = at_s
        self._asked_s = at_s  # since when an answer is waited for
        self._plan: RecoveryPlan | None = None
        self._inventory: dict[str, Inventory] = {}
        self._waits_for = ""  # what was last said of that
        self._tier_pause: TierPause | None = None  # a version there that did not load
        self._looks = 0  # how often the tier was asked again, while the run waits
        self._has_run_short = False  # whether it was planned anew with fewer machines
        self._retry_s = FIRST_RETRY_S
        self._cause, self.resumes_s = "", -math.inf
        self._port: Send | None = None  # the question for the rendezvous of now
        self._portless = set[str | None]()  # nodes that could not hold one when they were asked
        self._tier_asked = ""  # who is asked for the persistent tier's list
        self._breaks: Counter[str] = Counter()  # of each agent's connection, in this phase
        self._progress = Progress()
        self._pulses = Pulses()
        self._ends = Ends()
        self._repeats = Repeats()
        self._losses = LossWatch()
        self._protected: set[int] = set()
        self._is_unprotected_told = False
        self._restored: set[int] = set()
        self._finished: set[int] = set()
        # Another machine's clock may be ahead of this one's.
        self._saver = Saver(
            last_s=min(at_s, state.saved_at_s),
            last_version=state.saved,
            is_behind=state.is_behind,
        )
        self._asked_back: RootOrder | None = None  # the last order to go back
        self._stop = Stop()
        self._roll_call = RollCall()
        self._ahead = Ahead()
        self._drains, self._resizes = Drains(self._stop, self._ahead), Resizes(self._stop)
        self._keeping = Keeping(self._ahead)
        self._replicas = Replicas(self._stop)

    def _enter(self, phase: Phase, at_s: float) -> Iterator[Instruction]:
        if self.state.phase in RESTARTING and phase != "fencing":
            yield self._step(self.state.phase, at_s)
        self.state = replace(self.state, phase=phase)
        self._entered_s = self._asked_s = at_s
        self._answered, self._port, self._tier_asked = set(), None, ""
        self._breaks.clear()
        yield WriteState(state=self.state)

    def _step(self, name: str, end_s: float) -> Emit:
        names = {"fencing": "fence", "rendezvous": "plan", "waiting": "reserve"}
        return Emit(
            event=events.RecoveryStep(
                recovery=self.state.recovery,
                epoch=self.state.epoch,
                step=names.get(name, name),
                start_s=self._entered_s,
                end_s=end_s,
            )
        )

    def _adopt(self, instructions: Iterable[Instruction]) -> Iterator[Instruction]:
        """Take on each state that is to be written."""
        for one in instructions:
            if isinstance(one, WriteState):
                self.state = one.state
            yield one

    def _make_plan(self) -> RecoveryPlan:
        return self._plan_of(self.state)

    def _plan_of(self, state: RootState) -> RecoveryPlan:
        importing = {node for node, joined in self.living.items() if not joined.is_ready}
        first = self._keeping.standby
        return make_plan(state, self.living, self._inventory, importing=importing, first=first)

    def _spares(self) -> list[str]:
        going = {*self.state.leaving, *self.state.moved, *self.state.wrong}
        return [node for node in self.state.seats.spares(self.living) if node not in going]

    def _learn_settings(self, event: events.Protected) -> None:
        self.state = replace(
            self.state,
            settings=event.settings,
            fingerprint=event.fingerprint,
            placed=replace(self.state.seats, placement=event.placement),
        )

    def _learn_code(self, files: Mapping[str, ExecutedAs]) -> None:
        """Keep what workers said last of each file that they execute.

        A word that came too late, or was lost with its connection, comes with a node's inventory.
        """
        known = self.state.code
        newer = {name: said for name, said in files.items() if said >= known.get(name, said)}
        self.state = replace(self.state, code={**known, **newer})

    def _leave_behind(self, left: Iterable[VersionId]) -> int | None:
        """Training went back: versions after that, and iterations, count no more.

        Returns:
            To which version the last start went back; `None` if it did not, or that was known.
        """
        run, trained = self.state.job.run, self.state.trained
        after = joined(self.state.left, (one for one in left if one.lineage.run == run))
        if after == self.state.left:
            return None
        # What the root knows is of the last start: what was left before that has been gone past.
        new = {one for one in {*after} - {*self.state.left} if one.lineage.epoch == trained}
        self.state = replace(self.state, left=after)
        if not new:
            return None
        to = min(one.version for one in new)
        self._saver.leave(to)
        self.state = replace(
            self.state,
            newest=min(self.state.newest, to),
            begun=min(self.state.begun, to),
            iteration=min(self.state.iteration, to),
            saved=self._saver.last[0],
            is_behind=self._saver.is_behind,
        )
        return to

    def _tell_tier(self) -> Iterator[Instruction]:
        """Tell the persistent tier again what was left: whoever was told before may be lost."""
        if self.state.is_behind:
            yield from disown(self.state, self.living)

    def _let_leave(self, at_s: float) -> Iterator[Instruction]:
        """Let go whoever has no ranks; have all ranks stop if the next one's can move now."""
        yield from self._adopt(self._drains.let_go(self.state, self.living))
        yield from self._adopt(self._drains.begin_if_due(at_s, self.state, self.living))
        yield from self._adopt(self._resizes.begin_if_due(at_s, self.state, self.living))

    def _ask_for_nodes(self, reason: str) -> Iterator[Instruction]:
        yield from ask_for_nodes(self.state, self.living, reason)

    def _without_ahead(self, at_s: float, why: str) -> Iterator[Instruction]:
        """Processes that were started ahead come to nothing: the ranks that are to move do."""
        yield from self._ahead.give_up(self.state, why)
        yield from self._let_leave(at_s)
