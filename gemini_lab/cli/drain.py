"""`gemini-lab drain RUN NODE`: move a node's ranks to a standby, before its machine goes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gemini_lab.cli.asked import ask, parser_of_asking
from gemini_lab.cli.exits import Exit
from gemini_lab.display import tell
from gemini_lab.log.events import (
    AnyEvent,
    DrainWaiting,
    NodeDrained,
    NodeLost,
    RecoveryFinished,
)

WAIT_S: Final = 600.0


def command(arguments: Sequence[str]) -> int:
    """Move a node's ranks to a standby, and return when its machine may be taken.

    All ranks stop at the end of an iteration and start again with the standby in the node's place,
    so nothing is done again. Without a standby the node trains on until one is there.
    """
    parser = parser_of_asking("drain", command.__doc__, wait_s=WAIT_S)
    parser.add_argument("node", help="the node whose machine is to go")
    options = parser.parse_args(arguments)
    return ask(options, lambda run: run.drain(options.node), Leaving(options.node))


@dataclass(frozen=True, slots=True)
class Leaving:
    """A node that is to have no ranks any more.

    Attributes:
        node: Its name.
    """

    node: str

    def hear(self, event: AnyEvent) -> Exit | None:
        """Say how the move goes."""
        match event:
            case DrainWaiting(name=self.node, reason=reason, is_given_up=is_given_up):
                tell(f"{self.node} trains on: {reason}")
                return Exit.AGAIN if is_given_up else None
            case RecoveryFinished(lost_iterations=again):
                took = f"after {event.duration_s:.1f} s, {again} iterations done again"
                tell(f"training goes on {took}")
            case NodeDrained(name=self.node):
                tell(f"{self.node} has no ranks any more: its machine may be taken")
                return Exit.FINISHED
            case NodeLost(name=self.node):
                tell(
                    f"{self.node} was lost before its ranks could move; the run recovers by itself"
                )
                return Exit.AGAIN
        return None

    def at_end(self, name: str) -> Exit:
        """Where no run is, no node has ranks."""
        tell(f"{name} is over: {self.node} has no ranks any more")
        return Exit.FINISHED

    def late(self, _name: str, wait_s: float) -> str:
        """The node keeps its ranks until they can move."""
        return (
            f"{self.node} still has ranks after {wait_s:.0f} s (--wait); they move as soon as they "
            "can"
        )
