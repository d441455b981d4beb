"""The run as the root agent knows it, and steps that more than one of its parts takes."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from gemini_lab.log import events
from gemini_lab.profiler.slow_ranks import SlowRanks
from gemini_lab.recovery.discarded_versions import disown
from gemini_lab.recovery.drains import Drains, ask_for_nodes
from gemini_lab.recovery.ends import RankEnds
from gemini_lab.recovery.guard import LossWatch
from gemini_lab.recovery.hangs import Pulses
from gemini_lab.recovery.kept_ranks import Ahead, Keeping, RollCall
from gemini_lab.recovery.messages import Ailing, ExecutedAs, Inventory, RootOrder
from gemini_lab.recovery.plan import RecoveryPlan, VersionId, joined
from gemini_lab.recovery.planning import make_plan
from gemini_lab.recovery.progress import Progress
from gemini_lab.recovery.protocol import AgentJoined, Emit, Instruction, WriteState
from gemini_lab.recovery.repeats import Repeats
from gemini_lab.recovery.replicas import ReplicaPlacing
from gemini_lab.recovery.resizes import Resizes
from gemini_lab.recovery.root_state import RESTARTING, Phase, RootState, StatePart
from gemini_lab.recovery.saver import Saver
from gemini_lab.recovery.stop import Stop

FIRST_RETRY_S: Final = 2.0  # while waiting: until all are asked again


class RankWatch:
    """The ranks since they were started last: how far each is, and what is seen of it."""

    def __init__(self) -> None:
        self.progress, self.pulses, self.ends, self.losses = (
            Progress(),
            Pulses(),
            RankEnds(),
            LossWatch(),
        )
        self.slow = SlowRanks()
        self.protected: set[int] = set()  # ranks that have called `protect`
        self.restored: set[int] = set()  # ranks that have loaded their shards
        self.finished: set[int] = set()  # ranks whose scripts have ended
        # Whether a user was told that the script has not called `protect`.
        self.is_unprotected_told = False

    def on_fence(self) -> None:
        """Forget what was said of workers that end now."""
        self.protected, self.restored, self.finished = set(), set(), set()

    def on_start(self, ranks: range, *, iteration: int) -> None:
        """Expect all ranks to go on after an iteration."""
        self.progress.restart(ranks, iteration=iteration)
        self.pulses.restart()
        self.ends.restart(ranks, iteration=iteration)
        self.slow.restart(len(ranks))


class KnownRun:
    """A run as the root agent knows it.

    Args:
        state: The state that the previous root agent stored.
        at_s: Now.

    Attributes:
        entered_s: When this phase began.
        asked_s: When the answer was asked for that is waited for.
    """

    def __init__(self, *, state: RootState, at_s: float) -> None:
        self.state = state.on_clock(at_s)  # its state, which is written to the store
        self.living: dict[str, AgentJoined] = {}  # what the agent of each node said when it joined
        self.answered: set[str] = set()  # agents that have answered this phase's question
        self.entered_s = self.asked_s = at_s
        self.retry_s = FIRST_RETRY_S  # pause until what failed is tried again
        self.plan: RecoveryPlan | None = None
        self.inventory: dict[str, Inventory] = {}  # what each agent has in memory
        # The port that each agent has held since this fence; empty if it could open none.
        self.ports: dict[str, str] = {}
        self.tier_asked = ""  # the agent that is asked for the persistent tier's list
        # How often each agent's connection broke in this phase.
        self.breaks: Counter[str] = Counter()
        self.asked_back: RootOrder | None = None  # the last order to rewind
        # Whether this root agent has every word of the ranks on their iterations: it was there from
        # the start or has asked for them, and no connection has broken since.
        self.has_all_words = False
        self.watch = RankWatch()
        # The faults that each node's machine tells of now.
        self.ailing: dict[str, dict[str, Ailing]] = {}
        self.repeats = Repeats()
        # Another machine's clock may be ahead of this one's.
        self.saver = Saver(
            last_s=min(at_s, state.tier.saved_at_s),
            last_version=state.tier.saved,
            is_behind=state.tier.is_behind,
        )
        if (since := state.tier.not_finite_since) is not None:
            self.watch.losses = LossWatch(since)
            self.saver.is_held = state.read_settings().on_not_finite != "warn"
        self.stop = Stop()
        self.roll_call = RollCall()
        self.ahead = Ahead()
        self.drains, self.resizes = Drains(self.stop, self.ahead), Resizes(self.stop)
        self.keeping = Keeping(self.ahead)
        self.replicas = ReplicaPlacing(self.stop)

    @property
    def heard_until(self) -> int:
        """The newest iteration up to which all ranks' words are known here."""
        progress = self.watch.progress
        return progress.done if self.has_all_words and progress.is_known else 0

    def change(self, *parts: StatePart) -> None:
        """Put changed parts into the state."""
        self.state = self.state.with_parts(*parts)

    def enter(self, phase: Phase, at_s: float) -> Iterator[Instruction]:
        if self.state.phase in RESTARTING and phase != "fencing":
            yield self.step(self.state.phase, at_s)
        self.state = replace(self.state, phase=phase)
        self.entered_s = self.asked_s = at_s
        self.answered, self.tier_asked = set(), ""
        self.breaks.clear()
        yield WriteState(state=self.state)

    def step(self, name: str, end_s: float) -> Emit:
        names = {"fencing": "fence", "waiting": "reserve"}
        return Emit(
            event=events.RecoveryStep(
                recovery=self.state.recovery,
                epoch=self.state.epoch,
                step=names.get(name, name),
                start_s=self.entered_s,
                end_s=end_s,
            )
        )

    def adopt(self, instructions: Iterable[Instruction]) -> Iterator[Instruction]:
        """Yield the instructions; adopt each state that they write."""
        for one in instructions:
            if isinstance(one, WriteState):
                self.state = one.state
            yield one

    def plan_of(self, state: RootState) -> RecoveryPlan:
        importing = {node for node, joined in self.living.items() if not joined.is_ready}
        first = self.keeping.standby
        return make_plan(state, self.living, self.inventory, importing=importing, first=first)

    def spares(self) -> list[str]:
        going = {*self.state.drain.leaving, *self.state.drain.moved, *self.state.nodes.wrong}
        return [node for node in self.state.seats.spares(self.living) if node not in going]

    def learn_settings(self, event: events.Protected) -> None:
        placement = event.placement or self.state.seats.placement
        self.change(
            replace(
                self.state.setup,
                settings=event.settings,
                fingerprint=event.fingerprint,
                placed=replace(self.state.seats, placement=placement),
                model_parallel_size=event.model_parallel_size,
            )
        )

    def learn_code(self, files: Mapping[str, ExecutedAs]) -> None:
        """Remember what workers said last of each file that they execute.

        A word that came too late, or was lost with its connection, comes with a node's inventory.
        """
        known = self.state.setup.code
        newer = {name: said for name, said in files.items() if said >= known.get(name, said)}
        self.change(replace(self.state.setup, code={**known, **newer}))

    def leave_behind(self, left: Iterable[VersionId]) -> int | None:
        """Discard versions and iterations after the one that training went back to.

        Returns:
            To which version the last start went back; `None` if it did not, or that was known.
        """
        run, trained = self.state.job.run, self.state.reached.trained
        after = joined(self.state.discarded.left, (one for one in left if one.lineage.run == run))
        if after == self.state.discarded.left:
            return None
        # What the root knows is of the last start: what was left before that has been gone past.
        new = {
            one for one in {*after} - {*self.state.discarded.left} if one.lineage.epoch == trained
        }
        self.change(replace(self.state.discarded, left=after))
        if not new:
            return None
        to = min(one.version for one in new)
        self.saver.leave(to)
        self.change(
            replace(
                self.state.reached,
                newest=min(self.state.reached.newest, to),
                begun=min(self.state.reached.begun, to),
                iteration=min(self.state.reached.iteration, to),
            ),
            replace(self.state.tier, saved=self.saver.last[0], is_behind=self.saver.is_behind),
        )
        return to

    def tell_tier(self) -> Iterator[Instruction]:
        """Tell the tier again what was left, because the agent told before may be lost."""
        if self.state.tier.is_behind:
            yield from disown(self.state, self.living)

    def let_leave(self, at_s: float) -> Iterator[Instruction]:
        """Release drained nodes without ranks; stop all ranks if the next node's can move now."""
        yield from self.adopt(self.drains.let_go(self.state, self.living))
        yield from self.adopt(self.drains.begin_if_due(at_s, self.state, self.living))
        yield from self.adopt(self.resizes.begin_if_due(at_s, self.state, self.living))

    def ask_for_nodes(self, reason: str) -> Iterator[Instruction]:
        yield from ask_for_nodes(self.state, self.living, reason)

    def without_ahead(self, at_s: float, why: str) -> Iterator[Instruction]:
        """Give up processes that were started ahead; their ranks move without them."""
        yield from self.ahead.give_up(self.state, why)
        yield from self.let_leave(at_s)


class PartOfRoot:
    """A part of the root agent, which decides on a run as the others know it, too."""

    def __init__(self, run: KnownRun) -> None:
        self.run = run

    @property
    def state(self) -> RootState:
        """The state now."""
        return self.run.state
