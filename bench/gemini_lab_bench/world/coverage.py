"""The marks that simulated worlds reach: states of the root agent, and what befell it in each.

Each mark is derived from a type or a value that production code has anyway, so that production
code pays nothing and a new order, message or event is listed as soon as it exists.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, get_args

from gemini_lab import recovery
from gemini_lab.log import events
from gemini_lab.node.root_shell import RootShell
from gemini_lab.recovery.messages import EventSaid, FromAgentMessage, RootOrder, WordsSaid
from gemini_lab.recovery.protocol import (
    AgentLost,
    FromAgent,
    Happening,
    HeardEvent,
    Requested,
    Tick,
)
from gemini_lab.recovery.requests import AnyRequest
from gemini_lab.recovery.root_state import ACTIVE, Phase, RootState
from gemini_lab.seats import listed

PHASES: Final = tuple(phase for phase in get_args(Phase) if phase in ACTIVE)
NO_ROOT: Final = "no root"
"""In the place of a phase, while no machine is root."""
CARRIERS: Final = (EventSaid, WordsSaid)
"""Messages that count by what they carry."""
OF_WORKERS: Final = ("starting", "running", "finishing")
"""In which workers of the run's epoch may say something."""
ANSWERS: Final = {
    "Fenced": ("fencing", "inventory", "running"),
    # A run that waits asks all agents again; it waits on once they have answered.
    "Inventory": ("inventory", "starting"),
    **dict.fromkeys(
        ("Persisted", "SaveFailed", "Committed"), ("inventory", "waiting", *OF_WORKERS)
    ),
    # All scripts have ended before a run is finishing, and these are not said again.
    **dict.fromkeys(
        ("Iteration", "Rewound", "WrongSums", "WorkerEnded", "Severed"),
        ("starting", "running"),
    ),
    "WorkerPulse": ("inventory", "waiting", "starting", "running"),  # ranks may keep their process
    # Ranks load before they train, and they are ordered to stop, or to join, while others train.
    "RestoreFailed": ("starting",),
    **dict.fromkeys(("Held", "ReadyToJoin", "AllLive"), ("running",)),
}
"""By name, the phases in which the root agent may hear something; others cannot occur."""
OF_AGENTS: Final = ("OrderFailed", "Ailing", "NodeLeaves", "ReadyToStart", "Disowned")
"""What an agent may say at any time."""
LOSSES: Final = ("dead", "refused", "connection", "lease")
"""By which agents are lost; that one gives no answer is seen by the root agent itself."""
ASPECTS: Final[dict[str, Callable[[RootState], object]]] = {
    "a drain waits": lambda state: state.drain.leaving,
    "ranks stop for a drain": lambda state: state.drain.holding,
    "a resize waits": lambda state: state.resize.wanted not in {0, state.resize.size},
    "ranks stop for a resize": lambda state: state.resize.resizing,
    "copies wait for a new placement": lambda state: state.copies.later,
    "ranks stop for a new placement": lambda state: state.copies.is_replacing,
    "a user has given up progress": lambda state: state.discarded.has_given_up,
    "a rewind left versions behind": lambda state: state.discarded.left,
    "a version in the tier does not load": lambda state: state.discarded.rejected,
    "a copy is bad": lambda state: state.discarded.bad_copies,
    "the tier is behind": lambda state: state.tier.is_behind,
    "nodes are silent": lambda state: state.nodes.silent,
    "a node is excluded": lambda state: state.nodes.excluded,
    "a node computes wrong": lambda state: state.nodes.wrong,
    "versions may be unheard of": lambda state: state.reached.is_unsure,
    "a run saves before it fails": lambda state: state.story.parting,
}
"""What may be so while something else happens, by the state in the store."""
MOMENTS: Final = {
    "a root agent is elected": events.RootElected,
    "a recovery begins": events.RecoveryStarted,
    "an agent joins": events.NodeJoined,
    "an agent is lost": events.NodeLost,
}
_MADE: Final = re.compile(r"\b([A-Z]\w+)\(")
"""Where an event is made, and not only matched."""


class Coverage:
    """What was reached so far, in one world or in many.

    Attributes:
        marks: How often each mark was reached.
        struck: How often each kind of fault struck in each phase.
    """

    def __init__(self) -> None:
        self.marks: Counter[str] = Counter()
        self.struck: Counter[tuple[str, str]] = Counter()
        self._before = RootState()  # the root agent's, before what it decides on now

    def add(self, other: "Coverage") -> None:
        """Add what was reached elsewhere."""
        self.marks += other.marks
        self.struck += other.struck

    def strike(self, kind: str, phase: str) -> None:
        """Count a fault in the phase in which it strikes."""
        self.struck[kind, phase] += 1

    def hear(self, event: events.AnyEvent) -> None:
        """Mark an event of the root agent, and what was so before."""
        self.marks[f"event {type(event).__name__}"] += 1
        for moment, kind in MOMENTS.items():
            if isinstance(event, kind):
                so = [name for name, is_so in ASPECTS.items() if is_so(self._before)]
                self.marks.update(f"{moment} while {name}" for name in so)

    def follow(self, shell: RootShell, state: RootState) -> None:
        """Mark all that a root agent hears, by its phase, and all that it orders.

        Args:
            shell: The one that was just elected.
            state: Of the last root agent, as it was stored.
        """
        self._before = state
        if state.phase in ACTIVE:
            self.marks[f"a root agent is elected while the run is {state.phase}"] += 1
        take, send = shell._happenings.get, shell._links.send  # noqa: SLF001 - as a debugger does

        async def taken() -> Happening:
            happening = await take()
            root = shell._root  # noqa: SLF001
            if root is not None:
                self._before = root.state
                if root.state.phase in ACTIVE and not _is_old(happening, root.state):
                    names = names_of(happening)
                    self.marks.update(f"{name} while {root.state.phase}" for name in names)
            return happening

        def sent(node: str, order: RootOrder) -> None:
            self.marks[f"order {type(order).__name__}"] += 1
            send(node, order)

        shell._happenings.get = taken  # type: ignore[method-assign]  # noqa: SLF001
        shell._links.send = sent  # type: ignore[method-assign]  # noqa: SLF001

    def missing(self) -> list[str]:
        """Return the marks that were never reached."""
        return [mark for mark in all_marks() if not self.marks[mark]]

    def table(self) -> Iterator[str]:
        """Yield lines of how often each kind of fault struck in each phase."""
        phases = (*PHASES, "idle", NO_ROOT)
        yield f"{'':14}" + "".join(f"{phase:>11}" for phase in phases)
        for kind in sorted({kind for kind, _ in self.struck}):
            counts = (self.struck[kind, phase] for phase in phases)
            yield f"{kind:14}" + "".join(f"{count:>11}" for count in counts)

    def lines(self) -> Iterator[str]:
        """Yield the table, and the marks that were never reached, by what they begin with."""
        yield from self.table()
        missing = self.missing()
        there = len(all_marks())
        yield f"{there - len(missing)} of {there} marks were reached; never:"
        for what, ends in _grouped(missing).items():
            yield f"  {what}: {listed(ends)}"


def all_marks() -> list[str]:
    """Return all marks that there are."""
    messages = [kind.__name__ for kind in get_args(FromAgentMessage) if kind not in CARRIERS]
    messages += [kind.__name__ for kind in get_args(HeardEvent)]
    phases = {name: ANSWERS.get(name, OF_WORKERS) for name in messages}
    always = [f"lost ({cause})" for cause in LOSSES]
    always += [kind.__name__ for kind in get_args(AnyRequest)]
    always += [*OF_AGENTS, "AgentJoined", "NoMachineComes"]
    phases |= dict.fromkeys(always, PHASES)
    return [
        *(f"{name} while {phase}" for name, each in phases.items() for phase in each),
        *(f"order {kind.__name__}" for kind in RootOrder.__subclasses__()),
        *(f"event {name}" for name in _events_of_root()),
        *(f"a root agent is elected while the run is {phase}" for phase in PHASES),
        *(f"{moment} while {name}" for moment in MOMENTS for name in ASPECTS),
    ]


def _events_of_root() -> list[str]:
    """Return the names of events that rooms of the root agent make, by their source."""
    found = {"RootElected", "LinkCut"}  # which its shell and its connections make
    for file in sorted(Path(recovery.__path__[0]).rglob("*.py")):
        lines = [x for x in file.read_text().splitlines() if not x.lstrip().startswith("case ")]
        found |= {name for name in _MADE.findall("\n".join(lines)) if _is_said(name)}
    return sorted(found)


def _is_said(name: str) -> bool:
    kind = getattr(events, name, None)
    return isinstance(kind, type) and kind in get_args(events.AnyEvent)


def _is_old(happening: Happening, state: RootState) -> bool:
    """Return whether a root agent passes this over: a tick, or a word from before a fence."""
    if isinstance(happening, FromAgent):
        return happening.message.epoch not in {None, state.epoch}
    return isinstance(happening, Tick)


def names_of(happening: Happening) -> list[str]:
    """Return what a root agent hears of, by name."""
    match happening:
        case AgentLost(cause=cause):
            return [f"lost ({cause})"]
        case Requested(request=request):
            return [type(request).__name__]
        case FromAgent(message=EventSaid(entry=entry)):
            return [type(entry.event).__name__]
        case FromAgent(message=WordsSaid(words=words)):
            return [type(word).__name__ for word in words]
        case FromAgent(message=message):
            return [type(message).__name__]
    return [type(happening).__name__]


def _grouped(marks: Iterable[str]) -> dict[str, list[str]]:
    """Return marks by what stands before their last part."""
    found: dict[str, list[str]] = {}
    for mark in marks:
        what, join, end = mark.rpartition(" while ")
        if not join:
            what, _, end = mark.partition(" ")
        found.setdefault(what, []).append(end)
    return found
