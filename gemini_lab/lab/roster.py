"""The presence of a lab's nodes, by the root agent's events: without any I/O."""

from collections.abc import Collection, Iterator, Sequence

from gemini_lab.log.events import (
    AnyEvent,
    Network,
    NodeJoined,
    NodeLost,
    NodeReady,
    RootElected,
)
from gemini_lab.node.this_machine import remarks_on
from gemini_lab.seats import listed


class Roster:
    """The state of a lab's nodes."""

    def __init__(self) -> None:
        self.root: str | None = None  # the node with the root agent
        self.ready: set[str] = set()  # those that have imported what workers need
        # Those that are lost in the root agent's eyes; they may still be connected.
        self.silent: set[str] = set()
        self._term = 0  # of the newest root agent that was heard
        self._networks: dict[str, Network] = {}
        self._remarked: set[str] = set()  # on these, in the run under way

    def is_heard(self, term: int | None) -> bool:
        """Return whether this term is not a deposed root's, whose word came too late."""
        if term is not None and term < self._term:
            return False
        self._term = max(self._term, term or 0)
        return True

    def follow(self, event: AnyEvent) -> None:
        match event:
            case RootElected(name=name):
                self.root = name
            case NodeReady(name=name, network=network):
                self.ready.add(name)
                if network is not None:
                    self._networks[name] = network
            case NodeLost(name=name):
                self.silent.add(name)
            case NodeJoined(name=name):
                self.silent.discard(name)

    def begin_run(self) -> None:
        self._remarked.clear()

    def remarks(self) -> Iterator[str]:
        """Yield what is likely wrong with the nodes' networks, each once a run."""
        for text in remarks_on(dict(self._networks)):
            if text not in self._remarked:
                self._remarked.add(text)
                yield text


def why_not_ready(
    living: Sequence[str], ready: Collection[str], wanted: int, *, waited_s: float
) -> str:
    """Return in words what a lab's nodes lack, and what to do."""
    importing = [name for name in living if name not in ready]
    lacks = [f"{listed(importing)} still import{'s'[len(importing) > 1 :]}"] if importing else []
    if (missing := wanted - len(living)) > 0:
        lacks.append(f"{missing} {'is' if missing == 1 else 'are'} gone, and nobody has come")
    return (
        f"{len(ready)} of {wanted} nodes are ready after {waited_s:.0f} s: {', '.join(lacks)}; "
        "wait again, with more than timeout_s, or train without: a run takes who comes meanwhile"
    )
