"""What happens in a simulated lab, told so that a schedule of failures can be read and drawn."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gemini_lab.log import events
from gemini_lab.node.root_shell import RootShell
from gemini_lab.recovery.protocol import Happening as RootHappening
from gemini_lab.recovery.protocol import Instruction, RequestNodes, Send
from gemini_lab_bench.world.coverage import names_of
from gemini_lab_bench.world.schedule import BefallenWorld, Happening
from gemini_lab_bench.world.virtual_machine import VirtualMachine
from gemini_lab_bench.world.world import WorldShape

FAILURES: Final = {
    "kill": "is lost",
    "freeze": "falls silent",
    "thaw": "is back",
    "kill_rank": "loses its worker",
    "reset": "loses its connections to the root agent",
}
Kind = Literal["failure", "root", "decision", "running", "broken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryMoment:
    """One thing that happened.

    Attributes:
        at_s: When, in simulated seconds.
        kind: What it was; a decision is the root agent's.
        node: Where.
        text: What it was, in a few words.
        said_by: The node that the root agent heard of it, if another one.
    """

    at_s: float
    kind: Kind
    node: str
    text: str
    said_by: str | None = None


class WatchedWorld(BefallenWorld):
    """A world that remembers its failures, its root agents, and when training goes on."""

    def __init__(self, seed: int, shape: WorldShape, schedule: Sequence[Happening]) -> None:
        super().__init__(seed, shape, schedule)
        self.moments: list[StoryMoment] = []
        self.last_root = ""
        self.world.judge.on_event = self.hear

    def note(self, kind: Kind, node: str, text: str, said_by: str | None = None) -> None:
        """Remember this."""
        at_s = self.world.loop.time()
        moment = StoryMoment(at_s=at_s, kind=kind, node=node, text=text, said_by=said_by)
        self.moments.append(moment)

    def hear(self, machine: VirtualMachine, event: events.AnyEvent, term: int | None) -> None:
        """Hear all that agents say."""
        del term
        match event:
            case events.RootElected():
                self.last_root = machine.name
                if self.world.jobs:
                    self.note("root", machine.name, "is the root agent now")
            case events.RecoveryFinished():
                self.note("running", machine.name, "training goes on")

    def befall(self, kind: str, *numbers: int) -> None:
        before = {one: (one.is_dead, one.process.runs) for one in self.world.machines}
        if kind == "kill_rank" and self._machine(numbers[0]).has_workers:
            self.note("failure", self._machine(numbers[0]).name, FAILURES[kind])
        if kind == "reset":
            self.note("failure", self._machine(numbers[1]).name, FAILURES[kind])
        super().befall(kind, *numbers)
        for machine, (was_dead, ran) in before.items():
            if machine.is_dead and not was_dead:
                self.note("failure", machine.name, FAILURES["kill"])
            elif not machine.is_dead and machine.process.runs != ran:
                self.note("failure", machine.name, FAILURES["freeze" if ran else "thaw"])


class ToldWorld(WatchedWorld):
    """A world that remembers what the lab's own root agents hear and order, too."""

    def hear(self, machine: VirtualMachine, event: events.AnyEvent, term: int | None) -> None:
        super().hear(machine, event, term)
        if isinstance(event, events.RootElected):
            for _, shell in self.world.judge.shells():
                self._follow_root(shell)

    def _follow_root(self, shell: RootShell) -> None:
        take, act = shell._happenings.get, shell._carry_out  # noqa: SLF001 - as a debugger does
        heard: list[RootHappening] = []

        async def taken() -> RootHappening:
            heard[:] = [await take()]
            return heard[0]

        async def acted(instructions: Iterable[Instruction]) -> None:
            decided = [*instructions]
            if orders := _orders(decided):
                what = ", ".join(names_of(heard[0])) if heard else "takes over"
                said_by = getattr(heard[0], "node", None) if heard else None
                self.note("decision", shell.record.name, f"{what} → {orders}", said_by)
            await act(decided)

        shell._happenings.get = taken  # type: ignore[method-assign]  # noqa: SLF001
        shell._carry_out = acted  # type: ignore[method-assign]  # noqa: SLF001

    def befall(self, kind: str, *numbers: int) -> None:
        told = len(self.moments)
        super().befall(kind, *numbers)
        if len(self.moments) == told:  # what strikes no machine alone
            self.note("failure", "", " ".join([kind, *map(str, numbers)]))


def _orders(decided: Sequence[Instruction]) -> str:
    """Return what a root agent has others do, in a few words."""
    sent = [one for one in decided if isinstance(one, Send)]
    names = dict.fromkeys(type(one.order).__name__ for one in sent)
    nodes = {name: [o.to for o in sent if type(o.order).__name__ == name] for name in names}
    said = [
        f"{name}({to[0] if len(to) == 1 else f'{len(to)} nodes'})" for name, to in nodes.items()
    ]
    said += ["RequestNodes" for one in decided if isinstance(one, RequestNodes)]
    return ", ".join(said)
