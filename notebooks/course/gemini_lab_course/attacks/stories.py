"""What happened in a modelled lab, told so that a schedule of failures can be read and drawn."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gemini_lab.lab.submission import ONE_S, TooLong, limit
from gemini_lab.log import events
from gemini_lab.recovery.protocol import Instruction, Send
from gemini_lab.recovery.root.agent import RootAgent
from gemini_lab.recovery.root_state import RootState
from gemini_lab_course.model.actions import Action as Fate
from gemini_lab_course.model.judged import Rules, Shape
from gemini_lab_course.model.node import Node
from gemini_lab_course.model.shell import Shell
from gemini_lab_course.model.truth import BrokenError
from gemini_lab_course.model.world import World
from gemini_lab_course.own_root.deciding import Cluster, Decide, Event, GuideError, told
from gemini_lab_course.own_root.guided import GuidedRoot
from gemini_lab_course.own_root.process import loaded

MakeRoot = Callable[[RootState, float], RootAgent]
"""A new root agent, from the state that the last one left, and now."""
NEVER: Final = "the run never ends, although nothing fails any more"
THROWN: Final = re.compile(r"recovery \d+ goes on from (\w+) .*though version (\d+) exists")
FAILURES: Final = {
    "kill": "is lost",
    "freeze": "falls silent",
    "thaw": "is back",
    "kill_worker": "loses its worker",
    "cut": "loses its connection to the root agent",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryMoment:
    """One thing that happened.

    Attributes:
        at_s: When, in modelled seconds.
        kind: What it was; a decision is the root agent's.
        node: Where.
        text: What it was, in a few words.
        said_by: The node that the root agent heard of it, if another one.
    """

    at_s: float
    kind: Literal["failure", "root", "decision", "running", "broken"]
    node: str
    text: str
    said_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A modelled run, from its start to its end or to where it breaks.

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


class WatchedWorld(World):
    """A world that remembers what happened.

    Args:
        shape: How large it is.
        make_root: Makes each root agent that is elected.
    """

    def __init__(self, shape: Shape, make_root: MakeRoot) -> None:
        self._make_root = make_root
        self.moments: list[StoryMoment] = []
        self.orders = 0
        self.was_told = self.has_answered = False
        super().__init__(shape, Rules())

    def note(
        self,
        kind: Literal["failure", "root", "decision", "running", "broken"],
        node: str,
        text: str,
        said_by: str | None = None,
    ) -> None:
        """Remember this."""
        moment = StoryMoment(at_s=self.now_s, kind=kind, node=node, text=text, said_by=said_by)
        self.moments.append(moment)

    # -- what is noted -----------------------------------------------------------------------------

    def make_root(self, node: Node, state: RootState) -> RootAgent:
        if state.epoch:
            self.note("root", node.name, "is the root agent now")
        return self._make_root(state, self.now_s)

    def note_handled(self, shell: Shell, instructions: Sequence[Instruction]) -> None:
        self.orders += sum(isinstance(each, Send) for each in instructions)
        root = shell.root
        if not isinstance(root, GuidedRoot):
            return
        for event, actions in root.decisions:
            self.was_told, self.has_answered = True, self.has_answered or bool(actions)
            about = getattr(event, "node", None)
            text = f"{told(event)} → {', '.join(map(told, actions)) or 'nothing'}"
            self.note("decision", shell.node.name, text, about)
        root.decisions.clear()

    def hear_event(self, shell: Shell, event: events.AnyEvent) -> None:
        super().hear_event(shell, event)
        match event:
            case events.RecoveryFinished():
                self.note("running", shell.node.name, "training goes on")
            case _:
                pass

    def do_kill(self, number: int, refuses: int) -> None:
        self._strike("kill", number, lambda node: node.is_alive)
        super().do_kill(number, refuses)

    def do_freeze(self, number: int) -> None:
        self._strike("freeze", number, lambda node: node.is_alive and not node.is_frozen)
        super().do_freeze(number)

    def do_thaw(self, number: int) -> None:
        self._strike("thaw", number, lambda node: node.is_frozen)
        super().do_thaw(number)

    def do_kill_worker(self, number: int) -> None:
        self._strike("kill_worker", number, lambda node: node.can_act and node.worker is not None)
        super().do_kill_worker(number)

    def do_cut(self, number: int, arrive_at_agent: int, arrive_at_root: int) -> None:
        self._strike("cut", number, lambda node: node.link is not None)
        super().do_cut(number, arrive_at_agent, arrive_at_root)

    def _strike(self, kind: str, number: int, hits: Callable[[Node], bool]) -> None:
        node = self._node(number)
        if hits(node) and not (kind == "kill" and self._survivors() <= 1):
            self.note("failure", node.name, FAILURES[kind])

    def _check_failure(self, shell: Shell, event: events.RunFailed) -> None:
        if event.reason.startswith("root="):
            raise BrokenError(event.reason)
        super()._check_failure(shell, event)


def tell(shape: Shape, schedule: Sequence[Fate], make_root: MakeRoot) -> Story:
    """Return what becomes of a run with these failures; afterwards nothing fails any more."""
    world, broken = WatchedWorld(shape, make_root), ""
    try:
        for action in schedule:
            if world.told.done or world.told.failed:
                break
            world.do(action)
        world.calm()
    except BrokenError as error:
        broken = in_words(str(error))
    except AssertionError as error:
        broken = f"the model's own assertion fails: {error!r}"
    if broken:
        root = world.store.root
        world.note("broken", "" if root is None else root.name, broken)
    return Story(
        nodes=tuple(world.nodes),
        moments=tuple(world.moments),
        broken=broken,
        is_silent=world.was_told and not world.has_answered,
        epochs=0 if world.store.state is None else world.store.state.epoch,
        orders=world.orders,
        iterations=len(world.histories.version) - 1,
    )


def in_words(broken: str) -> str:
    """Return what the model says of a broken run, for whom it concerns: without its inner life."""
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
        return "it waits, and nobody is told for what: after it was elected it did not say `Wait`"
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
