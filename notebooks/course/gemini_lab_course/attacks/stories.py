"""What happened in a simulated lab, told so that a schedule of failures can be read and drawn."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gemini_lab.lab.submission import ONE_S, TooLong, limit
from gemini_lab.log import events
from gemini_lab.recovery.protocol import Instruction, Send
from gemini_lab.recovery.root.agent import RootAgent
from gemini_lab.recovery.root_state import RootState
from gemini_lab_bench.world.schedule import Happening
from gemini_lab_bench.world.seeds import run_world
from gemini_lab_bench.world.story import StoryMoment, WatchedWorld
from gemini_lab_bench.world.virtual_machine import VirtualMachine
from gemini_lab_bench.world.world import WorldShape
from gemini_lab_course.own_root.deciding import Cluster, Decide, Event, GuideError, told
from gemini_lab_course.own_root.guided import GuidedRoot
from gemini_lab_course.own_root.process import loaded

MakeRoot = Callable[[RootState, float], RootAgent]
"""A new root agent, from the state that the last one left, and now."""
NEVER: Final = "the run never ends, although nothing fails any more"
THROWN: Final = re.compile(r"recovery \d+ goes on from (\w+) .*though version (\d+) exists")


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A simulated run, from its start to its end or to where it breaks.

    Attributes:
        nodes: All that there were.
        moments: In order.
        broken: How it broke; empty if it did not.
        is_silent: Whether the root agent was told things, and never answered one.
        epochs: Starts of the workers.
        orders: How many were sent to agents.
        iterations: How many were done, again and again included.
    """

    nodes: tuple[str, ...]
    moments: tuple[StoryMoment, ...]
    broken: str
    is_silent: bool
    epochs: int
    orders: int
    iterations: int


class RootWorld(WatchedWorld):
    """A world in which a root agent decides; in the end nothing fails any more.

    Args:
        seed: Of who comes first, where nothing else decides that.
        shape: How large it is.
        schedule: What befalls it.
        make_root: Makes each root agent that is elected.
    """

    settles_s, decides_s, heals_all = 150.0, 20.0, True

    def __init__(
        self, seed: int, shape: WorldShape, schedule: Sequence[Happening], make_root: MakeRoot
    ) -> None:
        super().__init__(seed, shape, schedule)
        self._make_root = make_root
        self.orders = self.iterations = 0
        self.was_told = self.has_answered = False
        self.world.make_root = self._make

    # -- what is noted -----------------------------------------------------------------------------

    def _make(self, packed: str, *, state: RootState, at_s: float) -> RootAgent:
        del packed
        root = self._make_root(state, at_s)
        for name in ("handle", "take_over"):
            setattr(root, name, self._watched(root, getattr(root, name)))
        return root

    def _watched(
        self, root: RootAgent, decide: Callable[[Any], list[Instruction]]
    ) -> Callable[[Any], list[Instruction]]:
        """Return the same decisions, of which this world remembers what is told of them."""

        def decided(about: Any) -> list[Instruction]:
            instructions = decide(about)
            self.orders += sum(isinstance(each, Send) for each in instructions)
            for event, actions in root.decisions if isinstance(root, GuidedRoot) else ():
                self.was_told, self.has_answered = True, self.has_answered or bool(actions)
                text = f"{told(event)} → {', '.join(map(told, actions)) or 'nothing'}"
                self.note("decision", self.last_root, text, getattr(event, "node", None))
            if isinstance(root, GuidedRoot):
                root.decisions.clear()
            return instructions

        return decided

    def hear(self, machine: VirtualMachine, event: events.AnyEvent, term: int | None) -> None:
        super().hear(machine, event, term)
        self.iterations += isinstance(event, events.Iteration) and event.rank == 0


def tell(
    shape: WorldShape, schedule: Sequence[Happening], make_root: MakeRoot, *, seed: int = 1
) -> Story:
    """Return what becomes of a run with these failures; afterwards nothing fails any more."""
    watched = RootWorld(seed, shape, schedule, make_root)
    world = watched.world
    ran = run_world(watched)
    broken = ""
    if ran.wrong:
        broken = in_words(ran.wrong[0].partition(" ")[2])
        watched.note("broken", watched.last_root, broken)
    return Story(
        nodes=tuple(machine.name for machine in world.machines),
        moments=tuple(watched.moments),
        broken=broken,
        is_silent=watched.was_told and not watched.has_answered,
        epochs=max((job.start.epoch for job in world.jobs.values()), default=0),
        orders=watched.orders,
        iterations=watched.iterations,
    )


def in_words(broken: str) -> str:
    """Return what the judge says of a broken run, without its inner life."""
    if broken.startswith("the run does not end"):
        return NEVER
    if " epochs without a fault" in broken:
        return "it starts over again and again, although nothing fails any more"
    if thrown := THROWN.match(broken):
        origin = "the start" if thrown[1] in {"None", "0"} else f"version {thrown[1]}"
        return (
            f"progress is thrown away: training goes on from {origin} though version {thrown[2]} "
            "exists, or may come back"
        )
    if broken.startswith("the root waits, but the last it said"):
        return "it waits without a reason: after it was elected it did not say `Wait`"
    return broken.removeprefix("a healthy run fails: ")


def of_function(text: str) -> MakeRoot:
    """Return a maker of root agents that each load a packed function of their own."""
    return lambda state, at_s: GuidedRoot(state=state, at_s=at_s, decide=_limited(loaded(text)))


def _limited(decide: Decide) -> Decide:
    """Ask it in this process, thousands of times: its owner waits, and no lease does."""

    def limited(state: dict[str, object], event: Event, cluster: Cluster) -> object:
        try:
            with limit(ONE_S):
                return decide(state, event, cluster)
        except TooLong:
            raise GuideError(f"there is no answer after {ONE_S:g} s") from None

    return limited


def of_the_lab(state: RootState, at_s: float) -> RootAgent:
    """Return the lab's own root agent."""
    return RootAgent(state=state, at_s=at_s)
