"""`gemini-lab resize RUN N`: have a run go on with another number of nodes."""

from collections.abc import Sequence
from typing import Final

from gemini_lab.cli.asked import ask, parser_of_asking
from gemini_lab.cli.exits import Exit
from gemini_lab.display import tell
from gemini_lab.errors import ConfigError
from gemini_lab.lab.attached import AttachedRun
from gemini_lab.limits import whole
from gemini_lab.log.events import (
    AnyEvent,
    RecoveryFinished,
    Resized,
    ResizeRefused,
    ResizeWaiting,
    ResizeWanted,
)

WAIT_S: Final = 600.0


def command(arguments: Sequence[str]) -> int:
    """Have a run go on with another number of nodes, and return when it does.

    All ranks stop at the end of an iteration, and the shards of its version are cut anew from
    memory, so nothing is done again. Where machines are missing the run trains on until they come.
    """
    parser = parser_of_asking("resize", command.__doc__, wait_s=WAIT_S)
    parser.add_argument("nodes", type=whole("nodes", least=1), help="how many nodes it is to have")
    options = parser.parse_args(arguments)
    awaited = Size(options.nodes)
    return ask(options, awaited.want, awaited)


class Size:
    """The number of nodes that a run is to have.

    Args:
        nodes: That number.
    """

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._now = 0  # nodes that it has

    def want(self, run: AttachedRun) -> str:
        """Ask for it; says what the run answers."""
        self._now = len(run.members)
        if self._now == self._nodes:
            tell(f"{run.name} has {self._nodes} nodes")
        return run.resize(self._nodes)

    def hear(self, event: AnyEvent) -> Exit | None:
        """Say what becomes of it.

        Raises:
            ConfigError: The run cannot have so many.
        """
        match event:
            case ResizeWanted(nodes=self._nodes) if self._now == self._nodes:
                return Exit.FINISHED
            case ResizeWaiting(nodes=self._nodes, reason=reason):
                tell(f"it trains on with {self._now} nodes: {reason}")
            case ResizeRefused(nodes=self._nodes, reason=reason):
                raise ConfigError(f"it cannot have {self._nodes} nodes: {reason}")
            case ResizeRefused(nodes=nodes, reason=reason):  # as many as there were so far
                tell(f"not with {nodes} nodes on the way, it goes back: {reason}")
            case RecoveryFinished(lost_iterations=again):
                took = f"after {event.duration_s:.1f} s, {again} iterations done again"
                tell(f"training goes on {took}")
            case Resized():
                tell(f"{event}")
                self._now = event.nodes
                return Exit.FINISHED if self._now == self._nodes else None
        return None

    def at_end(self, name: str) -> Exit:
        """The run is over before it had so many.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(f"{name} is over, with {self._now} nodes")

    def late(self, name: str, wait_s: float) -> str:
        """It goes on as it is until it can."""
        return (
            f"{name} still has {self._now} nodes after {wait_s:.0f} s (--wait); it goes on with "
            f"{self._nodes} as soon as it can"
        )
